"""Ablation's page: what changes when q, k or v is ablated, by layer or by head."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from trisect.core.finding import About, Comparison, Estimate, Finding
from trisect.report import format as words
from trisect.report.blocks import TextBlock
from trisect.report.heatmaps import grid
from trisect.report.layers import Bar, component_groups, component_key, cut, frame_of, layer_panel
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
    from trisect.experiments.ablate.settings import AblateFacts

SHOWN = 10  # rows of the table of what changes most
HOW = {
    "zero": "replaced by 0",
    "mean": "replaced by their mean over all tokens of the texts",
    "resample": "replaced by those of another text, place by place",
}
NO_CHANGE = " 0 is no change."
_SHORT = "Change of {} by component, each panel on an axis of its own; lines are 95 % intervals where there are such."
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


def page(tables: Mapping[str, pl.DataFrame], about: About[AblateFacts]) -> Sheet:
    """The page from the table measures."""
    facts, changes = about.facts, _changes(tables["measures"])
    how = f"{HOW[facts.how]}, in one {facts.per} at a time"
    held = " Attention weights are held as they were without the edit." if facts.hold else ""
    name = words.called(facts.subject, about.command)
    lede = (
        f"What {name} loses on {facts.corpus} when queries, keys or values are {how}.{held} "
        f"This speaks of this one model on these texts."
    )
    parts = (_answer(findings(tables, about), changes, facts), _tables(changes, about))
    own = provenance(about, *read_facts(facts), ("Edit", _edit(facts)), timed=False)
    return Sheet(f"What breaks in {name}", "Ablation", lede, parts, own, REFERENCES)


def findings(tables: Mapping[str, pl.DataFrame], about: About[AblateFacts]) -> tuple[Finding, ...]:
    """What is measured; where each component matters most, and how much it does over all layers."""
    facts, known = about.facts, [c for c in _changes(tables["measures"]) if c.value is not None]
    most = (_largest(known, facts),) if known else ()
    return (unedited("Changes", tables["measures"], facts, NO_CHANGE), *most, *_average(known, facts))


def _changes(measures: pl.DataFrame) -> list[Change]:
    """Every edit, in the order of stacks, layers, heads and components."""
    picked = measures.filter(pl.col("measure").is_in(["loss_change_nats", "output_change"]))
    found = []
    for row in picked.iter_rows(named=True):
        heads = row["group"].partition("heads ")[2].partition(", pattern")[0]
        where = (row["stack"], row["layer"], row["head"], row["component"], heads)
        found.append(Change(*where, row["value"], row["low"], row["high"]))
    return sorted(found, key=lambda c: (stack_order(c.stack), c.layer, c.head or 0, "qkv".find(c.component), c.heads))


def _answer(found: Sequence[Finding], changes: Sequence[Change], facts: AblateFacts) -> Section:
    said, known = [], [c for c in changes if c.value is not None]
    if facts.hold:
        said.append(
            "Every layer's attention weights stay those of the unedited pass; where q or k is edited, those of the edited "
            "layer are its own. What is left is what an edit of v carries along the values, and what an edit of q or k "
            "does through the one pattern that it makes."
        )
    said.append(
        f"Intervals are 95 % of a bootstrap over {resampled_words(facts)}, each edit compared with the "
        "unedited pass over the same text, and are not corrected for how many there are."
    )
    said += too_few(facts)
    if facts.how == "zero":
        said.append(
            "Queries or keys of 0 make every product of theirs 0, so that both leave a head the same pattern: an even one, "
            "unless the model adds something to the products, such as a position's bias."
        )
    drawn = small_multiples(
        "ablation-short", "In short", _SHORT.format(_what(facts)), _by_component(found, axis_unit(facts))
    )
    shown = (*((drawn,) if drawn else ()), *_figures(known, facts))
    whole = sentences(found)
    notes = tuple(TextBlock(one, "quiet") for one in said)
    return Section("What breaks", lead(found, facts), shown, (whole,) if whole else (), blocks=notes)


def lead(found: Sequence[Finding], facts: AblateFacts) -> tuple[str, ...]:
    """What each component does, in a sentence; empty where no edit has a number. Which does most is said by paired differences alone."""
    mean = next((one for one in found if one.measure == "mean_change"), None)
    one = mean or next((one for one in found if one.measure == "largest_change"), None)
    if one is None:
        return ()
    where = "Averaged over layers" if mean else "At the site where each does most"
    signed = facts.objective != "output"
    sizes = ", ".join(f"{e.name} {words.number(e.mean, signed)}" for e in one.values)
    of = f"\u00a0{one.unit}" if signed else " of the output's squared length"
    said = f"{where}, {_what(facts)} changes by {sizes}{of}."
    if one.compared is None:
        return (said,)
    return (f"{said} Paired by {facts.unit}: {one.compared.words(facts.unit)}.",)


def _by_component(found: Sequence[Finding], unit: str) -> list[Finding]:
    """The findings whose numbers are one for each of q, k and v, with titles for their panels."""
    titles = {"mean_change": "mean over layers", "largest_change": "where it is largest"}
    return [
        replace(
            one,
            title=titles[one.measure],
            unit=unit,
            values=tuple(e._replace(name=_component(e.name)) for e in one.values),
        )
        for one in found
        if one.measure in titles and len({_component(e.name) for e in one.values}) == len(one.values)
    ]


def _component(site: str) -> str:
    return site.partition("@")[0].rpartition(".")[2]


def _largest(known: Sequence[Change], facts: AblateFacts) -> Finding:
    """Where each component matters most."""
    groups = component_groups([Bar(c.component, "", 0.0) for c in known])
    most = [max((c for c in known if c.component == group), key=lambda c: c.value or 0.0) for group in groups]
    kind, of = _kind(facts)
    if kind == "rise" and all((c.value or 0.0) <= 0 for c in known):
        kind = "rise (none is above 0)"
    parts = ", ".join(f"{c.place} {spoken(c.value, c.low, c.high)}" for c in most)
    values = tuple(Estimate(c.place, c.value, c.low, c.high, facts.units) for c in most)
    return Finding(
        "largest_change", f"The largest {kind} of each component, {of}: {parts}.", unit(facts), values, per=facts.unit
    )


def _average(known: Sequence[Change], facts: AblateFacts) -> tuple[Finding, ...]:
    """Each component's change, averaged over the layers whose heads are edited together; none where no layer is."""
    found: dict[str, list[float]] = {}
    for c in known:
        if c.head is None and not c.heads:
            found.setdefault(c.place.rpartition("@")[0], []).append(c.value or 0.0)
    if not found:
        return ()
    values = tuple(Estimate(name, sum(of) / len(of), n=len(of)) for name, of in found.items())
    kind, of = _kind(facts)
    parts = ", ".join(f"{one.name} {words.number(one.mean, True)}" for one in values)
    said, compared = f"Averaged over layers the {kind} is, {of}: {parts}.", paired_words(facts.compared, facts.unit)
    noted = None if facts.compared is None else Comparison.of(facts.compared)
    return (
        Finding(
            "mean_change", f"{said}{compared}", unit(facts), values, compared.strip(), per=facts.unit, compared=noted
        ),
    )


def _kind(facts: AblateFacts) -> tuple[str, str]:
    return ("change", "as a share") if facts.objective == "output" else ("rise", "in nats")


def _figures(known: Sequence[Change], facts: AblateFacts) -> Iterable[Figure]:
    whole, single = [c for c in known if c.head is None], [c for c in known if c.head is not None]
    if whole:
        yield _by_layer(whole, facts)
    most = max((abs(c.value or 0.0) for c in single), default=0.0) or 1.0
    for number, stack in enumerate(dict.fromkeys(c.stack for c in single), start=1 + bool(whole)):
        yield _by_head([c for c in single if c.stack == stack], number, most, facts)


def _by_layer(changes: Sequence[Change], facts: AblateFacts) -> Figure:
    named: dict[str, list[Bar]] = {}
    for c in changes:
        named.setdefault(c.stack, []).append(Bar(c.component, _layer(c), c.value or 0.0, c.low, c.high))
    bars = [bar for of in named.values() for bar in of]
    axis = frame_of(bars, axis_unit(facts))
    panels = tuple(
        layer_panel(stack_words(stack).capitalize() or "All layers", of, axis) for stack, of in named.items()
    )
    caption = f"Change of {_what(facts)} with one layer's component {HOW[facts.how]}. Bars are 95 % intervals, "
    caption += f"n\u00a0=\u00a0{resampled_words(facts)}.{cut(bars, axis)}"
    return Figure("ablation-layers", "Figure 1", "By layer", caption, panels, component_key(bars))


def _by_head(changes: Sequence[Change], number: int, most: float, facts: AblateFacts) -> Figure:
    """A map for each component of one stack; a loss may fall or rise, a change of the output has no sign."""
    signed, stack = facts.objective != "output", changes[0].stack
    groups = component_groups([Bar(c.component, "", 0.0) for c in changes])
    named = {words.GROUP.get(g, g): [c for c in changes if c.component == g] for g in groups}
    values = {title: [(c.layer, c.head or 0, c.value or 0.0) for c in of] for title, of in named.items()}
    clear = {title: {(c.layer, c.head or 0) for c in of if _clear(c)} for title, of in named.items()}
    caption = f"Change of {_what(facts)} with one head's component {HOW[facts.how]}"
    caption += "; a dot where the 95 % interval leaves 0 out. " if signed else ". "
    caption += f"The same colours in every panel, n\u00a0=\u00a0{resampled_words(facts)}."
    name = "ablation-heads" + ("" if stack == "plain" else f"-{stack}")
    title = "By head" + (f", {stack_words(stack)}" if stack_words(stack) else "")
    ends, marked = ((-most, most), clear) if signed else ((0.0, most), None)
    return grid(name, f"Figure {number}", title, caption, values, axis_unit(facts), signed, ends, marked)


def _layer(change: Change) -> str:
    return f"{change.layer}" + (f".h{change.heads}" if change.heads else "")


def _clear(change: Change) -> bool:
    return change.low is not None and change.high is not None and (change.low > 0 or change.high < 0)


def _what(facts: AblateFacts) -> str:
    return "the output" if facts.objective == "output" else "the loss"


def _tables(changes: Sequence[Change], about: About[AblateFacts]) -> Section:
    """Every edit as a row, and before it the few that change most."""
    ranked = sorted(changes, key=lambda c: -abs(c.value) if c.value is not None else float("inf"))
    places = words.decimals([c.value for c in changes if c.value is not None])
    columns = ("site", f"change, {axis_unit(about.facts)}", "95 % interval")

    def row(change: Change) -> tuple[str, ...]:
        ends = "–"
        if change.low is not None and change.high is not None:
            ends = " to ".join(words.number(end, True, places) for end in (change.low, change.high))
        return change.place, words.number(change.value, True, places), ends

    tables = [Table(columns, tuple(map(row, changes)), "Every edit")]
    if len(changes) > SHOWN:
        tables.insert(0, Table(columns, tuple(map(row, ranked[:SHOWN])), "What changes it most"))
    return Section("Numbers", tuple(about.notes), (), tuple(tables))


def _edit(facts: AblateFacts) -> str:
    return f"{facts.how}, per {facts.per}{', pattern held' if facts.hold else ''}, seed {facts.seed}"
