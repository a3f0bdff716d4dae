"""Erasure's page: what a model loses where no linear map finds a label in its queries, keys or values any more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from trisect.report import format as words
from trisect.report.layers import Bar, component_key, cut, frame_of, layer_panel
from trisect.report.panels import Figure
from trisect.report.sheet import Section, Sheet, Table, write_sheet
from trisect.report.subject import FEW_TEXTS, LOSSES, STACKS, corpus, spoken

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


def write(folder: Path, measures: pl.DataFrame, about: Mapping[str, Any]) -> Path:
    """Write `folder/report.html` and its figures from the table `measures` of an erasure; returns the page's path."""
    return write_sheet(folder, make_sheet(measures, about))


def make_sheet(measures: pl.DataFrame, about: Mapping[str, Any]) -> Sheet:
    """The page as data; `about` is what stands in erasure.json beside the tables."""
    found = read_erased(measures)
    lede = (
        f"What {about['subject']} loses on {about['corpus']} when {_columns(about)} is erased from its queries, keys or "
        f"values, in one {about['per']} at a time, so that no linear map finds it there. This speaks of this one model on "
        "these texts."
    )
    sections = (_answer(measures, found, about), _numbers(found, about))
    return Sheet(f"What {about['subject']} needs", "Erasure", lede, sections, _facts(about), REFERENCES)


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
    rank_of = list(STACKS)
    return sorted(
        found,
        key=lambda e: (e.label, rank_of.index(e.stack), e.layer, e.head or 0, "qkv".find(e.component), e.component),
    )


def findings(measures: pl.DataFrame, about: Mapping[str, Any]) -> tuple[str, ...]:
    """What is measured, and for each label where its erasure costs more than random subspaces do, as sentences."""
    found = read_erased(measures)
    return (
        _measured(measures, about),
        *(_label(label, found, about) for label in dict.fromkeys(e.label for e in found)),
    )


def _measured(measures: pl.DataFrame, about: Mapping[str, Any]) -> str:
    said = f"Rises are of {LOSSES[about['objective']]}"
    if about["objective"] == "output":
        return said + ": the squared length of the change over that of the output, averaged over tokens."
    clean = measures.filter(pl.col("measure") == "loss_nats").row(0, named=True)
    return said + f", in nats per token. Unedited it is {spoken(clean['value'], clean['low'], clean['high'], False)}."


def _label(label: str, found: Sequence[Erased], about: Mapping[str, Any]) -> str:
    mine = [e for e in found if e.label == label]
    known = [e for e in mine if e.excess.value is not None]
    above = [e for e in known if e.excess.side > 0]
    if not known:
        return f"Erasing {label} leaves no number anywhere."
    most = max(known, key=lambda e: e.excess.value or 0.0)
    unit = "" if about["objective"] == "output" else " nats"
    said = (
        f"Erasing {label} costs more than random subspaces of the same rank at {len(above)} of "
        f"{words.several(len(mine), 'place')}"
    )
    if below := sum(e.excess.side < 0 for e in known):
        said += f", less at {below}"
    return f"{said}; most at {most.place}, by {spoken(*most.excess)}{unit}."


def _answer(measures: pl.DataFrame, found: Sequence[Erased], about: Mapping[str, Any]) -> Section:
    said = [*findings(measures, about)]
    said.append(
        f"LEACE is fitted to {words.count(about['fitted'])} labelled positions of the train split or more, and takes out "
        "as many directions as the label has classes less one, where the site is as wide. A rise alone says how much "
        f"was taken out; what it says of the label is the rise beyond {words.several(about['draws'], 'random subspace')} "
        "of the same rank, drawn from the same whitened space, with the mean kept."
    )
    said.append(
        f"Intervals are 95 % of a bootstrap over {words.several(about['texts'], 'text')}, each erasure compared with the "
        "unedited pass over the same text, and are not corrected for how many there are."
    )
    if about["texts"] < FEW_TEXTS:
        said.append(f"With fewer than {FEW_TEXTS} texts such intervals are too narrow to lean on.")
    said.append(
        "Nothing is said about what is not linear: a label can be gone for every linear map and still be there."
    )
    return Section("What is needed", tuple(said), tuple(_figures(found, about)))


def _figures(found: Sequence[Erased], about: Mapping[str, Any]) -> Iterable[Figure]:
    """For each label and stack the rise, and beside it what of it is beyond the controls, on one axis."""
    number = 0
    for label in dict.fromkeys(e.label for e in found):
        for stack in dict.fromkeys(e.stack for e in found if e.label == label):
            mine = [e for e in found if (e.label, e.stack) == (label, stack) and e.rise.value is not None]
            if not mine:
                continue
            number += 1
            yield _figure(number, label, stack, mine, about)


def _figure(number: int, label: str, stack: str, mine: Sequence[Erased], about: Mapping[str, Any]) -> Figure:
    rises = [Bar(e.component, e.spot, *_drawn(e.rise)) for e in mine]
    beyond = [Bar(e.component, e.spot, *_drawn(e.excess)) for e in mine if e.excess.value is not None]
    axis = frame_of([*rises, *beyond], "share" if about["objective"] == "output" else "nats")
    panels = [layer_panel("Erased", rises, axis)]
    if beyond:
        panels.append(layer_panel("Beyond random subspaces", beyond, axis))
    where = f" in the {STACKS[stack]}" if STACKS[stack] else ""
    caption = f"Rise{where} with {label} erased at one place, and what of it is beyond the mean of "
    caption += f"{words.several(about['draws'], 'random subspace')} of the same rank. Bars are 95 % intervals, "
    caption += f"n\u00a0=\u00a0{words.several(about['texts'], 'text')}.{cut([*rises, *beyond], axis)}"
    name = "-".join(("erasure", *(words.slug(c) for c in (label, stack) if c != "plain")))
    return Figure(name, f"Figure {number}", f"Erasing {label}", caption, tuple(panels), component_key(rises))


def _drawn(ends: Ends) -> tuple[float, float | None, float | None]:
    return ends.value or 0.0, ends.low, ends.high


def _numbers(found: Sequence[Erased], about: Mapping[str, Any]) -> Section:
    unit = "share" if about["objective"] == "output" else "nats"
    columns = ("site", "label", "rank", "linear share", f"rise, {unit}", "random subspaces", "beyond them")
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
        *about["notes"],
    )
    return Section("Numbers", said, (), (Table(columns, tuple(map(row, found)), "Every erasure"),))


def _interval(ends: Ends, places: int) -> str:
    shown = words.number(ends.value, True, places)
    if ends.low is None or ends.high is None:
        return shown
    return f"{shown} ({' to '.join(words.number(end, True, places) for end in (ends.low, ends.high))})"


def _columns(about: Mapping[str, Any]) -> str:
    whose = "of the word" if about["whose"] == ONE else "of the next piece's word"
    return f"the label {' or '.join(about['labels'])} {whose}"


def _facts(about: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return (
        ("Model", f"{about['subject']}, weights {about['fingerprint']}"),
        ("Texts", corpus(about)),
        ("Tokens" if about["objective"] == "output" else "Predicted tokens", words.count(about["tokens"])),
        ("Erasure", f"LEACE, {_columns(about)}, per {about['per']}, seed {about['seed']}"),
        ("Command", about["command"]),
        ("Versions", ", ".join(f"{name} {version}" for name, version in sorted(about["versions"].items()))),
    )
