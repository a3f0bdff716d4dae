"""Rows of an interchange: shares of answers and changes per site, and what came pair by pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl
from jaxtyping import Bool, Float, Int

from trisect.core.tables import REAL, TEXT, WHOLE, NewRow, frame
from trisect.experiments.patch.settings import PatchSettings
from trisect.lab.passes import EditedPass
from trisect.measure.interchange import (
    BASE,
    UNKNOWN,
    LogitChange,
    PairShare,
    logit_change,
    share_of,
    shares,
    which_came,
)
from trisect.stats.bootstrap import drawn_ratios, percentile_interval
from trisect.stats.tested import finite
from trisect.text.pairs import ANSWERS, TextPair

DONOR = "donor"
SINGLE = ("q", "k", "v")
# what is from the donor -> what is from the donor where base and donor change places
COMPLEMENT: dict[str, str] = dict(zip(ANSWERS, ("donor", "k+v", "q+v", "q+k", "v", "k", "q", "base"), strict=True))
PAIRS = {
    **{"pair": WHOLE, "kind": TEXT, "base": TEXT, "donor": TEXT},
    **{f"answer_{name}": TEXT for name in ANSWERS},
    **{"own_base": TEXT, "own_donor": TEXT, "counted": pl.Boolean},  # what the model answers unpatched
}
TOKENS = {
    **{"pair": WHOLE, "side": TEXT, "position": WHOLE, "base": TEXT, "donor": TEXT},
    # components that are patched there, and whether the answer is read there
    **{"patched": TEXT, "answers": pl.Boolean},
}
CHANGES = {
    **{"pair": WHOLE, "stack": TEXT, "layer": WHOLE, "head": WHOLE, "component": TEXT, "group": TEXT},
    **{"came": TEXT, "answer": TEXT},  # whose prediction it was (of the patched text's answers), and the token
    **{"logit_difference": REAL, "output_change": REAL},
}


class Interchanged(NamedTuple):
    """One site patched in one direction: what each pair then answered (null: no answers), and the difference of logits.

    `values` are changes of the output where there are no answers.
    """

    how: str
    edit: EditedPass
    answers: Int[np.ndarray, " N"] | None
    values: Float[np.ndarray, " N"]


class PairReading(NamedTuple):
    """One side of a pair token by token: base, donor, which components are patched there, and where the answer is read."""

    pair: int
    side: str
    base: tuple[str, ...]
    donor: tuple[str, ...]
    patched: tuple[str, ...]
    answers: int | None


class PatchedRuns(NamedTuple):
    """All that was run, as arrays over pairs.

    `stated` are ids of answers as the pairs have them, `predicted` the same with the model's own where base or donor is not
    stated; `own` what it answers to both texts unpatched, `differences` the base's answer's logit less the donor's there.
    """

    pairs: tuple[TextPair, ...]
    stated: Mapping[str, Int[np.ndarray, " N"]]
    predicted: Mapping[str, Int[np.ndarray, " N"]]
    own: Mapping[str, Int[np.ndarray, " N"]]
    differences: Mapping[str, Float[np.ndarray, " N"]]
    done: tuple[Interchanged, ...]
    readings: tuple[PairReading, ...]
    words: Mapping[int, str]


class PatchTables(NamedTuple):
    """Tables by name, what a reader has to know, and how many pairs count."""

    tables: Mapping[str, pl.DataFrame]
    notes: tuple[str, ...]
    counted: int


def tables(subject: str, runs: PatchedRuns, settings: PatchSettings) -> PatchTables:
    """`measures`: a row per site and number; `pairs`, `tokens` and `interchanges`: what was read and what came."""
    counted = counted_pairs(runs, settings.answered)
    rows = [{"subject": subject} | row for row in _answered(runs)]
    for one in runs.done:
        where = where_patched(one)
        rows += [{"subject": subject} | where | row for row in _site(one, runs, counted, settings.seed)]
    notes = []
    if settings.answered and not counted.all():
        left = int((~counted).sum())
        notes.append(
            f"Pairs of which the model does not answer both texts as stated were left out: {left} of {len(counted)}."
        )
    if runs.own and (alike := int((runs.predicted["base"] == runs.predicted["donor"]).sum())):
        notes.append(
            f"Pairs whose base and donor have the same answer, which say nothing about the way to the donor: {alike} of {len(counted)}."
        )
    made = {
        "measures": frame("measures", rows),
        "pairs": pl.DataFrame([_pair(i, runs, counted) for i in range(len(runs.pairs))], PAIRS, orient="row"),
        "tokens": pl.DataFrame([row for one in runs.readings for row in _tokens(one)], TOKENS, orient="row"),
        "interchanges": pl.DataFrame([row for one in runs.done for row in _came(one, runs)], CHANGES, orient="row"),
    }
    return PatchTables(made, tuple(notes), int(counted.sum()))


def predictions(
    how: str, component: str, answers: Mapping[str, Int[np.ndarray, " N"]]
) -> dict[str, Int[np.ndarray, " N"]]:
    """Which answer each name predicts in one direction: 'base' is the patched text's own, 'donor' that of the other.

    The component comes second, since where two predict the same answer the first is named.
    """
    own = DONOR if component == "q+k+v" else component
    found = {}
    for name in dict.fromkeys([BASE, own, *SINGLE, *ANSWERS]):
        source = name if how == "denoise" else COMPLEMENT[name]
        if source in answers:
            found[name] = answers[source]
    return found


def counted_pairs(runs: PatchedRuns, answered: bool) -> Bool[np.ndarray, " N"]:
    """Pairs that count: with `answered` those whose two texts the model answers as stated."""
    right = np.ones(len(runs.pairs), dtype=bool)
    for name, mine in runs.own.items() if answered else ():
        known = runs.stated.get(name, np.full(len(mine), UNKNOWN))
        right &= (mine == known) | (known == UNKNOWN)
    return right


def _answered(runs: PatchedRuns) -> list[NewRow]:
    """How many texts the model answers as stated, unpatched."""
    found = []
    for name, mine in runs.own.items():
        if name in runs.stated:
            known = runs.stated[name] != UNKNOWN
            found.append({"measure": "answered", "group": name} | _row(share_of((mine == runs.stated[name])[known])))
    return found


def where_patched(one: Interchanged) -> NewRow:
    """The columns that say which site was patched, and in which direction."""
    heads, several = one.edit.site.heads, len(one.edit.addresses) > 1
    single = heads is not None and len(heads) == 1
    layers, _, spelt = str(one.edit.site).rpartition("@")[2].partition(".h")
    some = f", layers {layers}" * several + ("" if heads is None or single else f", heads {spelt}")
    return {
        "stack": one.edit.address.stack,
        "layer": None if several else one.edit.address.layer,
        "head": heads[0] if single and heads else None,
        "component": "+".join(one.edit.site.components),
        "group": f"{one.how}{some}",
    }


def _site(one: Interchanged, runs: PatchedRuns, counted: Bool[np.ndarray, " N"], seed: int) -> list[NewRow]:
    """The numbers of one site in one direction."""
    values = one.values[counted]
    if one.answers is None:
        ends = percentile_interval(drawn_ratios(values[:, None], np.ones(len(values)), seed), len(values))
        row = {
            "value": finite(values.mean()),
            "low": finite(ends.low[0]),
            "high": finite(ends.high[0]),
            "n": len(values),
        }
        return [{"measure": "output_change"} | row]
    own, other = ("base", "donor") if one.how == "denoise" else ("donor", "base")
    ends = (runs.differences[own][counted], runs.differences[other][counted])
    found = [{"measure": "logit_change"} | _row(logit_change(values, *ends, seed))]
    asked = compared(one, runs, counted)
    scored = [shares(one.answers[counted], of.predicted, of.component) for of in asked]
    found += [{"measure": of.measure} | _row(share.own) for of, share in zip(asked, scored, strict=True)]
    found.append({"measure": "unchanged"} | _row(scored[-1].unchanged))
    return [*found, *({"measure": f"as {name}"} | _row(share) for name, share in scored[-1].others.items())]


class ComparedAnswers(NamedTuple):
    """A share of answers: the column `measure` of its row, whose prediction is counted, and the predictions that have to differ."""

    measure: str
    component: str
    predicted: Mapping[str, Int[np.ndarray, " N"]]


def compared(one: Interchanged, runs: PatchedRuns, counted: Bool[np.ndarray, " P"]) -> list[ComparedAnswers]:
    """Shares of one site in one direction: of the other text's answer and, where it has one, of the component's own."""
    component = "+".join(one.edit.site.components)
    named = {name: of[counted] for name, of in predictions(one.how, component, runs.predicted).items()}
    both = {name: named[name] for name in (BASE, DONOR)}
    found = [ComparedAnswers(DONOR, DONOR, both)]
    if component == "q+k+v":
        found.append(ComparedAnswers("own", DONOR, both))
    elif component in named:
        beside = SINGLE if component in SINGLE else ()  # four values leave a joint component no answer of its own
        ours = {name: named[name] for name in (BASE, *beside, component) if name in named}
        found.append(ComparedAnswers("own", component, ours))
    return found


def _row(found: PairShare | LogitChange) -> NewRow:
    return {"value": found.value, "low": found.low, "high": found.high, "n": found.n}


def _pair(number: int, runs: PatchedRuns, counted: Bool[np.ndarray, " N"]) -> NewRow:
    pair = runs.pairs[number]
    own = {f"own_{name}": runs.words.get(int(mine[number])) for name, mine in runs.own.items()}
    found = {"pair": number + 1, "kind": pair.kind, "base": _in_words(pair.base), "donor": _in_words(pair.donor)}
    found |= {f"answer_{name}": pair.answers.get(name) for name in ANSWERS} | own
    return {name: found.get(name) for name in PAIRS} | {"counted": bool(counted[number])}


def _tokens(one: PairReading) -> list[NewRow]:
    longest = max(len(one.base), len(one.donor))

    def at(of: Sequence[str], place: int) -> str | None:
        return of[place] if place < len(of) else None

    return [
        {
            "pair": one.pair + 1,
            "side": one.side,
            "position": place + 1,
            "base": at(one.base, place),
            "donor": at(one.donor, place),
            "patched": at(one.patched, place) or "",
            "answers": place == one.answers,
        }
        for place in range(longest)
    ]


def _came(one: Interchanged, runs: PatchedRuns) -> list[NewRow]:
    """What came of every pair."""
    where, count = where_patched(one), len(runs.pairs)
    came: Sequence[str | None] = [None] * count
    if one.answers is not None:
        came = which_came(one.answers, predictions(one.how, "+".join(one.edit.site.components), runs.predicted))
    value = "output_change" if one.answers is None else "logit_difference"
    return [
        dict.fromkeys(CHANGES)
        | where
        | {"pair": i + 1, "came": came[i], value: finite(one.values[i])}
        | {"answer": None if one.answers is None else runs.words.get(int(one.answers[i]))}
        for i in range(count)
    ]


def _in_words(text: str | tuple[str, str]) -> str:
    return text if isinstance(text, str) else " → ".join(text)
