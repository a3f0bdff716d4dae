"""Xie and Jiang's claims under revision 2 of the rules: changed after the results of revision 1 had been seen, and so said.

What is "close to initialisation" is counted from word frequencies, the measures of rewinding and freezing have to be off
their floor, and a fifteenth claim speaks of one component in all layers at once.
"""

from __future__ import annotations

from dataclasses import replace

from trisect.core.claim import (
    AboveUnigram,
    Claim,
    Combination,
    Leaf,
    LearnedFraction,
    LossChange,
    Part,
    RewindChange,
    Source,
)
from trisect.papers.submodules import CLAIMS as FIRST
from trisect.papers.submodules import MARGIN, WHY_MARGIN
from trisect.papers.submodules import SOURCE as FIRST_SOURCE

FLOORED = ("A-10", "A-11", "A-12", "A-13", "A-14", "A-15")
WHY_UNIGRAM = (
    "A model at word frequencies has learned some four fifths of what the baseline has: less than a tenth of what lies "
    "above them counts as close to initialisation."
)


def _revised(claim: Claim) -> Claim:
    """Parts that ask for a small learned fraction ask for a small fraction above word frequencies; the old ones are shown."""
    parts: list[Part] = []
    for part in claim.parts:
        effect = part.effect
        if isinstance(effect, LearnedFraction) and part.direction == "below":
            above = AboveUnigram(effect.label, effect.sites, effect.split)
            name = part.name.replace("learned fraction", "fraction above unigram")
            unit = "of what the baseline learned above word frequencies"
            parts += [
                replace(part, name=name, effect=above, unit=unit, reason=WHY_UNIGRAM),
                replace(part, decides=False),
            ]
        else:
            parts.append(part)
    return replace(claim, parts=tuple(parts), floored=claim.id in FLOORED)


def _all_layers(what: str, of: type[RewindChange] | None, split: str, decides: bool = True) -> tuple[Part, ...]:
    """v less k and v less q above the margin, k less q within it, in all layers at once."""

    def at(component: str) -> Leaf:
        site = (f"{component}@all",)
        return LossChange("freeze", site, split) if of is None else of(site, split)

    def pair(x: str, y: str, direction: str) -> Part:
        effect = Combination(((1.0, at(x)), (-1.0, at(y))))
        return Part(f"{what}, {x}@all minus {y}@all", effect, direction, MARGIN, "nats", WHY_MARGIN, decides)

    return pair("v", "k", "above"), pair("v", "q", "above"), pair("k", "q", "within")


ALL_LAYERS = Claim(
    "A-15",
    "In all layers at once, values matter more than keys and queries, which are alike.",
    "6, future work; revision 2",
    (
        *_all_layers("rise of the train loss at α = 0", RewindChange, "train"),
        *_all_layers("train loss change by freezing", None, "train"),
        *_all_layers("valid loss change by freezing", None, "valid", decides=False),
    ),
    floored=True,
)

CLAIMS: tuple[Claim, ...] = (*map(_revised, FIRST), ALL_LAYERS)
SOURCE: Source = replace(FIRST_SOURCE, claims=CLAIMS, revision=2)
