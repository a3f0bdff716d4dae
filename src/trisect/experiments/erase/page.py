"""Erasure's page: what a model loses where no linear map finds a label in its queries, keys or values any more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from trisect.core.finding import About, Comparison, Estimate, Finding
from trisect.report import format as words
from trisect.report.blocks import TextBlock
from trisect.report.layers import Bar, component_key, cut, frame_of, layer_panel
from trisect.report.multiples import sentences, small_multiples
from trisect.report.panels import Figure
from trisect.report.provenance import provenance
from trisect.report.sheet import Section, Sheet, Table
from trisect.report.subject import (
    axis_unit,
    paired_words,
    read_facts,
    resampled_words,
    spoken,
    stack_order,
    stack_words,
    too_few,
    unedited,
    unit,
)

if TYPE_CHECKING:
    from trisect.experiments.erase.settings import EraseFacts

REFERENCES = (
    "Nora Belrose, David Schneider-Joseph, Shauli Ravfogel, Ryan Cotterell, Edward Raff, Stella Biderman. "
    "LEACE: Perfect linear concept erasure in closed form. NeurIPS 2023.",
    "Yanai Elazar, Shauli Ravfogel, Alon Jacovi, Yoav Goldberg. Amnesic Probing. TACL 2021.",
    "Bradley Efron, Robert Tibshirani. An Introduction to the Bootstrap. Chapman & Hall 1993.",
)
ONE = "own"  # whose label a position carries: that of the word it belongs to


class Ends(NamedTuple):
    """A number and the ends of its interval; null where the erased model's loss is no number."""

    value: float | None
    low: float | None
    high: float | None

    @property
    def side(self) -> int:
        """1 or -1 where the interval lies above or below 0, else 0."""
        if self.low is None or self.high is None:
            return 0
        return int(self.low > 0) - int(self.high < 0)


class Erased(NamedTuple):
    """One label erased at one site: the rise, that beyond its controls, theirs, the rank, and what was linear there."""

    label: str
    stack: str
    layer: int
    head: int | None
    component: str
    rise: Ends
    excess: Ends
    randoms: tuple[float, ...]
    rank: int
    explained: float

    @property
    def place(self) -> str:
        """Component, layer and head, as a site is spelt."""
        stack = "" if self.stack == "plain" else f"{self.stack}."
        return f"{stack}{self.component}@{self.spot}"

    @property
    def spot(self) -> str:
        """The layer, with the head where it is one alone."""
        return f"{self.layer}" + (f".h{self.head}" if self.head is not None else "")


def page(tables: Mapping[str, pl.DataFrame], about: About[EraseFacts]) -> Sheet:
    """The page from the table measures."""
    facts, found = about.facts, read_erased(tables["measures"])
    name = words.called(facts.subject, about.command)
    lede = (
        f"What {name} loses on {facts.corpus} when {_columns(facts)} is erased from its queries, keys or "
        f"values, in one {facts.per} at a time, so that no linear map finds it there. This speaks of this one model on "
        "these texts."
    )
    sections = (_answer(findings(tables, about), found, facts), _numbers(found, about))
    erasure = f"LEACE, {_columns(facts)}, per {facts.per}, seed {facts.seed}"
    own = provenance(about, *read_facts(facts), ("Erasure", erasure), timed=False)
    return Sheet(f"What {name} needs", "Erasure", lede, sections, own, REFERENCES)


def read_erased(measures: pl.DataFrame) -> list[Erased]:
    """Every erasure, in the order of labels, stacks, layers, heads and components."""
    keys = ("group", "stack", "layer", "head", "component")
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in measures.filter(pl.col("component").is_not_null()).iter_rows(named=True):
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    found = []
    for where, rows in groups.items():
        named = {r["measure"].rpartition("_")[0] if r["at"] is None else "": r for r in rows}
        rise, excess = (Ends(*(named[n][end] for end in Ends._fields)) for n in ("erase_rise", "erase_excess"))
        randoms = tuple(r["value"] for r in rows if r["at"] is not None and r["value"] is not None)
        rank, explained = (
            next(r["value"] for r in rows if r["measure"] == f"erase_{n}") for n in ("rank", "explained")
        )
        label, stack, layer, head, component = where
        found.append(Erased(label, stack, layer, head, component, rise, excess, randoms, int(rank), explained))
    return sorted(
        found,
        key=lambda e: (e.label, stack_order(e.stack), e.layer, e.head or 0, "qkv".find(e.component), e.component),
    )


def findings(tables: Mapping[str, pl.DataFrame], about: About[EraseFacts]) -> tuple[Finding, ...]:
    """What is measured, and for each label where its erasure costs more than random subspaces do."""
    found = read_erased(tables["measures"])
    labels = dict.fromkeys(e.label for e in found)
    return (
        unedited("Rises", tables["measures"], about.facts),
        *(_label(label, [e for e in found if e.label == label], about.facts) for label in labels),
    )


def _label(label: str, mine: Sequence[Erased], facts: EraseFacts) -> Finding:
    """The rise beyond random subspaces at every place, its places' names being sites."""
    known = [e for e in mine if e.excess.value is not None]
    if not known:
        return Finding(
            "erase_excess", f"Erasing {label} leaves no number anywhere.", unit(facts), groups=(label,), per=facts.unit
        )
    above, below = (sum(e.excess.side == side for e in known) for side in (1, -1))
    most = max(known, key=lambda e: e.excess.value or 0.0)
    said = f"Erasing {label} costs more than random subspaces of the same rank at {above} of "
    said += words.several(len(mine), "place") + (f", less at {below}" if below else "")
    tail = "" if facts.objective == "output" else " nats"
    said += f"; most at {most.place}, by {spoken(*most.excess)}{tail}."
    values = tuple(Estimate(e.place, *e.excess, facts.units) for e in known)
    side, known_of = f"above 0 at {above}, below 0 at {below}, of {len(mine)}", facts.compared.get(label)
    own = known_of if isinstance(known_of, Mapping) else None
    noted = None if own is None else Comparison.of(own)
    said += paired_words(own, facts.unit)
    return Finding("erase_excess", said, unit(facts), values, side, groups=(label,), per=facts.unit, compared=noted)


def _answer(findings: Sequence[Finding], found: Sequence[Erased], facts: EraseFacts) -> Section:
    said = [
        f"LEACE is fitted to {words.count(facts.fitted)} labelled positions of the train split or more, and takes out "
        "as many directions as the label has classes less one, where the site is as wide. A rise alone says how much "
        f"was removed; what it says of the label is the rise beyond {words.several(facts.draws, 'random subspace')} "
        "of the same rank, drawn from the same whitened space, with the mean kept. The covariance that it whitens by is "
        f"{'shrunk, as concept-erasure does by default' if facts.shrinkage else 'as the positions have it (no shrinkage)'}.",
        f"Intervals are 95 % of a bootstrap over {resampled_words(facts)}, each erasure compared with the "
        "unedited pass over the same text, and are not corrected for how many there are.",
    ]
    said += too_few(facts)
    said.append(
        "Nothing is said about what is not linear: a label can be gone for every linear map and still be there."
    )
    caption = (
        f"Rise beyond random subspaces, mean over the {facts.per}s that were erased; each panel has an axis of its own."
    )
    drawn = small_multiples("erasure-short", "Label by label", caption, _by_component(found, axis_unit(facts)))
    whole = sentences([replace(one, title=" ".join(one.groups) or "unedited") for one in findings])
    shown = (*((drawn,) if drawn else ()), *_figures(found, facts))
    notes = tuple(TextBlock(one, "quiet") for one in said)
    return Section("What is needed", _lead(found, facts), shown, (whole,) if whole else (), blocks=notes)


def _lead(found: Sequence[Erased], facts: EraseFacts) -> tuple[str, ...]:
    """Where an erasure costs most, in a sentence; empty where none left a number."""
    known = [e for e in found if e.excess.value is not None]
    if not known:
        return ()
    most = max(known, key=lambda e: e.excess.value or 0.0)
    where = sum(e.excess.side > 0 for e in known)
    size = f"{spoken(*most.excess)}{'' if facts.objective == 'output' else ' nats'}"
    said = f"{where} of {words.several(len(known), 'erasure')} cost more than random subspaces of the same rank do (interval above 0)"
    return (f"{said}; the largest excess is that of {most.label} at {most.place}: {size}.",)


def _by_component(found: Sequence[Erased], unit_: str) -> list[Finding]:
    """For each label what of the rise is beyond the controls, by component, as means over places."""
    short = []
    for label in dict.fromkeys(e.label for e in found):
        of: dict[str, list[float]] = {}
        for e in found:
            if e.label == label and e.excess.value is not None:
                of.setdefault(e.component, []).append(e.excess.value)
        values = tuple(Estimate(name, sum(each) / len(each), n=len(each)) for name, each in of.items())
        short.append(Finding("erase_excess", "", unit_, values, title=label))
    return short


def _figures(found: Sequence[Erased], facts: EraseFacts) -> Iterable[Figure]:
    """For each label and stack the rise, and beside it what of it is beyond the controls, on one axis."""
    number = 0
    for label in dict.fromkeys(e.label for e in found):
        for stack in dict.fromkeys(e.stack for e in found if e.label == label):
            mine = [e for e in found if (e.label, e.stack) == (label, stack) and e.rise.value is not None]
            if not mine:
                continue
            number += 1
            yield _figure(number, label, stack, mine, facts)


def _figure(number: int, label: str, stack: str, mine: Sequence[Erased], facts: EraseFacts) -> Figure:
    rises = [Bar(e.component, e.spot, *_drawn(e.rise)) for e in mine]
    beyond = [Bar(e.component, e.spot, *_drawn(e.excess)) for e in mine if e.excess.value is not None]
    axis = frame_of([*rises, *beyond], axis_unit(facts))
    panels = [layer_panel("Erased", rises, axis)]
    if beyond:
        panels.append(layer_panel("Beyond random subspaces", beyond, axis))
    where = f" in the {stack_words(stack)}" if stack_words(stack) else ""
    caption = f"Rise{where} with {label} erased at one place, and what of it is beyond the mean of "
    caption += f"{words.several(facts.draws, 'random subspace')} of the same rank. Bars are 95 % intervals, "
    caption += f"n\u00a0=\u00a0{resampled_words(facts)}.{cut([*rises, *beyond], axis)}"
    name = "-".join(("erasure", *(words.slug(c) for c in (label, stack) if c != "plain")))
    return Figure(name, f"Figure {number}", f"Erasing {label}", caption, tuple(panels), component_key(rises))


def _drawn(ends: Ends) -> tuple[float, float | None, float | None]:
    return ends.value or 0.0, ends.low, ends.high


def _numbers(found: Sequence[Erased], about: About[EraseFacts]) -> Section:
    columns = (
        "site",
        "label",
        "rank",
        "linear share",
        f"rise, {axis_unit(about.facts)}",
        "random subspaces",
        "beyond them",
    )
    places = words.decimals([e.rise.value for e in found if e.rise.value is not None])

    def row(e: Erased) -> tuple[str, ...]:
        spread = "–"
        if e.randoms:
            spread = " to ".join(words.number(end, True, places) for end in (min(e.randoms), max(e.randoms)))
        share = words.number(e.explained, False, 3)
        return e.place, e.label, str(e.rank), share, _interval(e.rise, places), spread, _interval(e.excess, places)

    said = (
        "The linear share is how much of the variance of the label's classes, added up, a linear map of the site explains "
        "on the positions that LEACE is fitted to; nothing is left of it there.",
        *about.notes,
    )
    return Section("Numbers", said, (), (Table(columns, tuple(map(row, found)), "Every erasure"),))


def _interval(ends: Ends, places: int) -> str:
    shown = words.number(ends.value, True, places)
    if ends.low is None or ends.high is None:
        return shown
    return f"{shown} ({' to '.join(words.number(end, True, places) for end in (ends.low, ends.high))})"


def _columns(facts: EraseFacts) -> str:
    whose = "of the word" if facts.whose == ONE else "of the next piece's word"
    return f"the label {' or '.join(facts.labels)} {whose}"
