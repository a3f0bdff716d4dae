"""Kobayashi et al.'s claims under revision 2 of the rules: changed after the results of revision 1 had been seen, and so said.

All five are one family. Layers are the units of what is said over layers; frequency is asked within texts and of words
alone, since a mean weight is about one over the text's length; alignments are judged over models that were trained alike.
"""

from __future__ import annotations

from dataclasses import replace

from trisect.core.claim import Claim, Part, Source, Statistic
from trisect.papers.norms import ALIGNMENT as FIRST_ALIGNMENT
from trisect.papers.norms import SOURCE as FIRST
from trisect.papers.norms import WHY_NONE, WHY_RHO

WORDS = "words alone, ranks within their text"
LEAST_MODELS = 5


def _within(name: str, what: str, direction: str, bound: float, reason: str) -> Part:
    return Part(
        f"rank correlation of frequency rank and {what}, {WORDS}", Statistic(name), direction, bound, "ρ", reason
    )


FREQUENCY = (
    _within("spearman_rank_f_within", "‖f(x)‖", "above", 0.10, WHY_RHO),
    _within("spearman_rank_a_within", "a", "within", 0.20, WHY_NONE),
)


def _revised(claim: Claim) -> Claim:
    if claim.id != "C-4":
        return claim
    return replace(claim, parts=(*FREQUENCY, *(replace(part, decides=False) for part in claim.parts)))


CLAIMS: tuple[Claim, ...] = tuple(map(_revised, FIRST.claims))
ALIGNMENT_CLAIMS: tuple[Claim, ...] = tuple(
    replace(claim, least_seeds=LEAST_MODELS) for claim in FIRST_ALIGNMENT.claims
)

SOURCE: Source = replace(FIRST, claims=CLAIMS, revision=2, beside=len(ALIGNMENT_CLAIMS))
ALIGNMENT: Source = replace(FIRST_ALIGNMENT, claims=ALIGNMENT_CLAIMS, unit="model", revision=2, beside=len(CLAIMS))
