"""Ablation's page: what a model loses where q, k or v is taken away, by layer or by head."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from trisect.report import format as words
from trisect.report.grids import grid
from trisect.report.layers import Bar, component_groups, component_key, cut, frame_of, layer_panel
from trisect.report.panels import Figure
from trisect.report.sheet import Section, Sheet, Table, write_sheet
from trisect.report.subject import FEW_TEXTS, LOSSES, STACKS, corpus, spoken

SHOWN = 10  # rows of the table of what changes most
HOW = {
    "zero": "replaced by 0",
    "mean": "replaced by their mean over all tokens of the texts",
    "resample": "replaced by those of another text, place by place",
}
REFERENCES = (
    "Paul Michel, Omer Levy, Graham Neubig. Are Sixteen Heads Really Better than One? NeurIPS 2019.",
    "Elena Voita et al. Analyzing Multi-Head Self-Attention. ACL 2019.",
    "Bradley Efron, Robert Tibshirani. An Introduction to the Bootstrap. Chapman & Hall 1993.",
)


class Change(NamedTuple):
    """One edit and what it changed; `value` is null where the edited loss is no number."""

    stack: str
    layer: int
    head: int | None
    component: str
    heads: str
    value: float | None
    low: float | None
    high: float | None

    @property
    def place(self) -> str:
        """Component, layer and heads, as a site is spelt."""
        stack = "" if self.stack == "plain" else f"{self.stack}."
        heads = f".h{self.head if self.head is not None else self.heads}" if self.head or self.heads else ""
        return f"{stack}{self.component}@{self.layer}{heads}"


def write(folder: Path, measures: pl.DataFrame, about: Mapping[str, Any]) -> Path:
    """Write `folder/report.html` and its figures from the table `measures` of an ablation; returns the page's path."""
    return write_sheet(folder, make_sheet(measures, about))


def make_sheet(measures: pl.DataFrame, about: Mapping[str, Any]) -> Sheet:
    """The page as data; `about` is what stands in ablation.json beside the tables."""
    changes = _changes(measures)
    how = f"{HOW[about['how']]}, in one {about['per']} at a time"
    held = " Attention weights are held as they were without the edit." if about["hold"] else ""
    lede = (
        f"What {about['subject']} loses on {about['corpus']} when queries, keys or values are {how}.{held} "
        f"This speaks of this one model on these texts."
    )
    parts = [_answer(measures, changes, about), _tables(changes, about)]
    return Sheet(f"What breaks in {about['subject']}", "Ablation", lede, tuple(parts), _facts(about), REFERENCES)


def _changes(measures: pl.DataFrame) -> list[Change]:
    """Every edit, in the order of stacks, layers, heads and components."""
    picked = measures.filter(pl.col("measure").is_in(["loss_change_nats", "output_change"]))
    found = []
    for row in picked.iter_rows(named=True):
        heads = row["group"].partition("heads ")[2].partition(", pattern")[0]
        where = (row["stack"], row["layer"], row["head"], row["component"], heads)
        found.append(Change(*where, row["value"], row["low"], row["high"]))
    rank = list(STACKS)
    return sorted(found, key=lambda c: (rank.index(c.stack), c.layer, c.head or 0, "qkv".find(c.component), c.heads))


def _unit(about: Mapping[str, Any]) -> str:
    return "share" if about["objective"] == "output" else "nats"


def findings(measures: pl.DataFrame, about: Mapping[str, Any]) -> tuple[str, ...]:
    """What is measured, and where each component matters most, as sentences."""
    known = [c for c in _changes(measures) if c.value is not None]
    return (_measured(measures, about), *([_extremes(known, about)] if known else []))


def _measured(measures: pl.DataFrame, about: Mapping[str, Any]) -> str:
    said = f"Changes are of {LOSSES[about['objective']]}"
    if about["objective"] == "output":
        return (
            said + ": the squared length of the change over that of the output, averaged over tokens. 0 is no change."
        )
    clean = measures.filter(pl.col("measure") == "loss_nats").row(0, named=True)
    return said + f", in nats per token. Unedited it is {spoken(clean['value'], clean['low'], clean['high'], False)}."


def _answer(measures: pl.DataFrame, changes: Sequence[Change], about: Mapping[str, Any]) -> Section:
    said, known = [*findings(measures, about)], [c for c in changes if c.value is not None]
    if about["hold"]:
        said.append(
            "Every layer's attention weights stay those of the unedited pass; where q or k is edited, those of the edited "
            "layer are its own. What is left is what an edit of v carries along the values, and what an edit of q or k "
            "does through the one pattern that it makes."
        )
    said.append(
        f"Intervals are 95 % of a bootstrap over {words.several(about['texts'], 'text')}, each edit compared with the "
        "unedited pass over the same text, and are not corrected for how many there are."
    )
    if about["texts"] < FEW_TEXTS:
        said.append(f"With fewer than {FEW_TEXTS} texts such intervals are too narrow to lean on.")
    if about["how"] == "zero":
        said.append(
            "Queries or keys of 0 make every product of theirs 0, so that both leave a head the same pattern: an even one, "
            "unless the model adds something to the products, such as a position's bias."
        )
    return Section("What breaks", tuple(said), tuple(_figures(known, about)))


def _extremes(known: Sequence[Change], about: Mapping[str, Any]) -> str:
    """Where each component matters most, and over all edits where it matters least."""
    parts = []
    for component in component_groups([Bar(c.component, "", 0.0) for c in known]):
        most = max((c for c in known if c.component == component), key=lambda c: c.value or 0.0)
        parts.append(f"{most.place} {spoken(most.value, most.low, most.high)}")
    kind, unit = ("change", "as a share") if about["objective"] == "output" else ("rise", "in nats")
    if kind == "rise" and all((c.value or 0.0) <= 0 for c in known):
        kind = "rise (none is above 0)"
    return f"The largest {kind} of each component, {unit}: {', '.join(parts)}."


def _figures(known: Sequence[Change], about: Mapping[str, Any]) -> Iterable[Figure]:
    whole, single = [c for c in known if c.head is None], [c for c in known if c.head is not None]
    if whole:
        yield _by_layer(whole, about)
    most = max((abs(c.value or 0.0) for c in single), default=0.0) or 1.0
    for number, stack in enumerate(dict.fromkeys(c.stack for c in single), start=1 + bool(whole)):
        yield _by_head([c for c in single if c.stack == stack], number, most, about)


def _by_layer(changes: Sequence[Change], about: Mapping[str, Any]) -> Figure:
    named: dict[str, list[Bar]] = {}
    for c in changes:
        named.setdefault(c.stack, []).append(Bar(c.component, _layer(c), c.value or 0.0, c.low, c.high))
    bars = [bar for of in named.values() for bar in of]
    axis = frame_of(bars, _unit(about))
    panels = tuple(layer_panel(STACKS[stack].capitalize() or "All layers", of, axis) for stack, of in named.items())
    caption = f"Change of {_what(about)} with one layer's component {HOW[about['how']]}. Bars are 95 % intervals, "
    caption += f"n\u00a0=\u00a0{words.several(about['texts'], 'text')}.{cut(bars, axis)}"
    return Figure("ablation-layers", "Figure 1", "By layer", caption, panels, component_key(bars))


def _by_head(changes: Sequence[Change], number: int, most: float, about: Mapping[str, Any]) -> Figure:
    """A map for each component of one stack; a loss may fall or rise, a change of the output has no sign."""
    signed, stack = about["objective"] != "output", changes[0].stack
    groups = component_groups([Bar(c.component, "", 0.0) for c in changes])
    named = {words.GROUP.get(g, g): [c for c in changes if c.component == g] for g in groups}
    values = {title: [(c.layer, c.head or 0, c.value or 0.0) for c in of] for title, of in named.items()}
    clear = {title: {(c.layer, c.head or 0) for c in of if _clear(c)} for title, of in named.items()}
    caption = f"Change of {_what(about)} with one head's component {HOW[about['how']]}"
    caption += "; a dot where the 95 % interval leaves 0 out. " if signed else ". "
    caption += f"The same colours in every panel, n\u00a0=\u00a0{words.several(about['texts'], 'text')}."
    name = "ablation-heads" + ("" if stack == "plain" else f"-{stack}")
    title = "By head" + (f", {STACKS[stack]}" if STACKS[stack] else "")
    ends, marked = ((-most, most), clear) if signed else ((0.0, most), None)
    return grid(name, f"Figure {number}", title, caption, values, _unit(about), signed, ends, marked)


def _layer(change: Change) -> str:
    return f"{change.layer}" + (f".h{change.heads}" if change.heads else "")


def _clear(change: Change) -> bool:
    return change.low is not None and change.high is not None and (change.low > 0 or change.high < 0)


def _what(about: Mapping[str, Any]) -> str:
    return "the output" if about["objective"] == "output" else "the loss"


def _tables(changes: Sequence[Change], about: Mapping[str, Any]) -> Section:
    """Every edit as a row, and before it the few that change most."""
    ranked = sorted(changes, key=lambda c: -abs(c.value) if c.value is not None else float("inf"))
    places = words.decimals([c.value for c in changes if c.value is not None])
    columns = ("site", f"change, {_unit(about)}", "95 % interval")

    def row(change: Change) -> tuple[str, ...]:
        ends = "–"
        if change.low is not None and change.high is not None:
            ends = " to ".join(words.number(end, True, places) for end in (change.low, change.high))
        return change.place, words.number(change.value, True, places), ends

    tables = [Table(columns, tuple(map(row, changes)), "Every edit")]
    if len(changes) > SHOWN:
        tables.insert(0, Table(columns, tuple(map(row, ranked[:SHOWN])), "What changes it most"))
    return Section("Numbers", tuple(about["notes"]), (), tuple(tables))


def _facts(about: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return (
        ("Model", f"{about['subject']}, weights {about['fingerprint']}"),
        ("Texts", corpus(about)),
        ("Tokens" if about["objective"] == "output" else "Predicted tokens", words.count(about["tokens"])),
        (
            "Edit",
            f"{about['how']}, per {about['per']}{', pattern held' if about['hold'] else ''}, seed {about['seed']}",
        ),
        ("Command", about["command"]),
        ("Versions", ", ".join(f"{name} {version}" for name, version in sorted(about["versions"].items()))),
    )
