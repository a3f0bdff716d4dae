"""The page of an ablation: the change of the loss by layer and by head."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from trisect.core.finding import About, Comparison, Finding
from trisect.report import format as words
from trisect.report.charts import Figure
from trisect.report.format import axis_unit, number_words, sample_words, stack_words, unit
from trisect.report.maps import head_maps
from trisect.report.measures import MeasuredValue, Measures, layer_figure
from trisect.report.sheet import Section, Sheet, Table, present, provenance, quiet, small_multiples

if TYPE_CHECKING:
    from trisect.experiments.ablate.settings import AblateFacts

LARGEST_ROWS = 10  # rows of the table of what changes most
REPLACEMENT_WORDS = {
    "zero": "replaced by 0",
    "mean": "replaced by their mean over all tokens of the texts",
    "resample": "replaced by those of another text, place by place",
}
PATTERN_HELD_NOTE = (
    "All attention weights are held at those of the unedited pass, except in a layer whose q or k is edited. An edit "
    "of v thus acts through values only, and an edit of q or k through the attention weights of its own layer only."
)
ZERO_NOTE = (
    "With queries or keys of 0 all products q·k are 0, so that both edits give a head the same attention weights: "
    "uniform ones, unless the model adds something to the products, such as a position bias."
)
REFERENCES = (
    "Paul Michel, Omer Levy, Graham Neubig. Are Sixteen Heads Really Better than One? NeurIPS 2019.",
    "Elena Voita et al. Analyzing Multi-Head Self-Attention. ACL 2019.",
    "Bradley Efron, Robert Tibshirani. An Introduction to the Bootstrap. Chapman & Hall 1993.",
)


def page(tables: Mapping[str, pl.DataFrame], about: About[AblateFacts]) -> Sheet:
    """The page from the table measures."""
    facts, changes = about.facts, _changes(tables["measures"])
    name = words.display_name(facts.subject, about.command)
    lede = f"{name} · {facts.corpus} · {sample_words(facts)} · {_edit_words(facts)}, in one {facts.per} at a time"
    lede += ", attention weights held" * facts.hold
    results, short = findings(tables, about), list[Finding]()  # those with one number per component are drawn
    notes = (
        results[0].words,
        *(finding.comparison for finding in results if finding.compared is not None),
        *((PATTERN_HELD_NOTE,) * facts.hold),
        f"Intervals are 95 % of a bootstrap over {sample_words(facts)}, each edit compared with the "
        "unedited pass over the same text, and are not corrected for how many there are.",
        words.ABLATION_AND_PATCHING,
        *words.too_few(facts),
        *((ZERO_NOTE,) * (facts.how == "zero")),
    )
    titles = {"mean_change": "mean over layers", "largest_change": "where it is largest"}
    for finding in reversed(results):
        names = [e.name.partition("@")[0].rpartition(".")[2] for e in finding.values]
        if finding.measure in titles and len(set(names)) == len(names):
            values = tuple(e._replace(name=name) for e, name in zip(finding.values, names, strict=True))
            short.append(replace(finding, title=titles[finding.measure], unit=axis_unit(facts), values=values))
    caption = (
        f"Change of {_outcome_words(facts)} by component; lines are 95 % intervals, where available. "
        f"n\u00a0=\u00a0{sample_words(facts)}."
    )
    multiples = small_multiples("ablation-short", "What each component does", caption, short)
    shown = (*present(multiples), *_figures(changes.finite, facts))
    answer = Section("What breaks", (), shown, blocks=quiet(notes))
    edit = f"{facts.how}, per {facts.per}{', pattern held' if facts.hold else ''}, seed {facts.seed}"
    sources = provenance(about, *words.read_facts(facts), ("Edit", edit), timed=False)
    title = f"What breaks in {name} {'without its' if facts.how in REPLACEMENT_WORDS else 'with edited'} queries, keys or values?"
    sections = (answer, _numbers(changes, about))
    return Sheet(title, "trisect · ablation", lede, sections, sources, REFERENCES, lead(results, facts))


def _edit_words(facts: AblateFacts) -> str:
    """What q, k or v is replaced by, or the function that changes it, in words."""
    return REPLACEMENT_WORDS.get(facts.how, f"changed by {facts.how}")


def _changes(measures: pl.DataFrame) -> Measures:
    return Measures.of(measures, missing=True).where("loss_change_nats", "output_change").ordered()


def findings(tables: Mapping[str, pl.DataFrame], about: About[AblateFacts]) -> tuple[Finding, ...]:
    """The baseline, the site with the largest change of each component, and each component's mean change over whole layers."""
    facts, changes = about.facts, _changes(tables["measures"]).finite
    results = [words.baseline_finding("Changes", tables["measures"], facts, " 0 is no change.")]
    kind, unit_words = ("change", "as a share") if facts.objective == "output" else ("rise", "in nats")
    if largest_rows := [max(rows, key=lambda row: row.value) for rows in changes.by("component").values()]:
        none = " (none is above 0)" * (kind == "rise" and all(row.value <= 0 for row in changes))
        largest = ", ".join(f"{row.site} {number_words(row)}" for row in largest_rows)
        values = tuple(row._replace(n=facts.units).estimate() for row in largest_rows)
        text = f"The largest {kind}{none} of each component, {unit_words}: {largest}."
        results.append(Finding("largest_change", text, unit(facts), values, per=facts.unit))
    layers = Measures(tuple(row for row in changes if ".h" not in row.spot))
    values = tuple(
        mean._replace(name=rows.rows[0].site.rpartition("@")[0])
        for rows in layers.by("stack", "component").values()
        for mean in rows.means()
    )
    if values:
        parts = ", ".join(f"{mean.name} {words.number(mean.mean, True)}" for mean in values)
        compared = words.comparison_words(facts.compared, facts.unit)
        text = f"Averaged over layers the {kind} is, {unit_words}: {parts}.{compared}"
        paired = None if facts.compared is None else Comparison.from_data(facts.compared)
        fields = ("mean_change", text, unit(facts), values, compared.strip())
        results.append(Finding(*fields, per=facts.unit, compared=paired))
    return tuple(results)


def _outcome_words(facts: AblateFacts) -> str:
    return "the output" if facts.objective == "output" else "the loss"


def lead(results: Sequence[Finding], facts: AblateFacts) -> str:
    """The page's first sentence: the change per component; empty if no edit has a number.

    It ranks components by size, but calls them different only by paired differences.
    """
    named = {finding.measure: finding for finding in results}
    finding = named.get("mean_change") or named.get("largest_change")
    if finding is None:
        return ""
    signed, sizes = facts.objective != "output", []
    by_rise = signed and "mean_change" not in named
    ordered = sorted(finding.values, key=lambda e: -(e.mean or 0.0) if by_rise else -abs(e.mean or 0.0))
    for e in ordered:
        plain = e.name.rpartition(".")[2]
        at = f" ({e.name})," * (plain != e.name)
        owner_words = words.site_words(e.name) if "@" in e.name else f"{words.COMPONENT_NAMES.get(plain, plain)}{at}"
        sizes.append(f"{owner_words}{',' * ('@' in e.name)} by {words.number(e.mean, signed)}")
    unit_of = "nats" if signed else "of its squared length"
    state = "without" if facts.how in REPLACEMENT_WORDS else "with a function in"
    owner, its = (f"one {facts.per}'s ", "its ") if "mean_change" in named else ("", "")
    more = "".join(f", {state} {its}{size}" for size in sizes[1:])
    tail = "" if finding.compared is None else f" ({finding.compared.words(facts.unit)}, paired by {facts.unit})"
    over, verb = (
        (", mean over layers", "changes")
        if "mean_change" in named
        else ("", "rises most" if by_rise and (ordered[0].mean or 0.0) > 0 else "changes most")
    )
    outcome = words.capital(_outcome_words(facts))
    return f"{outcome} {verb} {state} {owner}{sizes[0]} {unit_of}{more}{over}{tail}."


def _figures(changes: Measures, facts: AblateFacts) -> Iterable[Figure]:
    """One figure by layer for all stacks, and a figure by head for each stack."""
    outcome = _outcome_words(facts)
    n, axis, signed = f"n\u00a0=\u00a0{sample_words(facts)}.", axis_unit(facts), facts.objective != "output"
    if layers := changes.where(head=None).by("stack"):
        panels = {stack_words(s).capitalize() or "All layers": [row.bar for row in rows] for s, rows in layers.items()}
        caption = f"Change of {outcome} with one layer's component {_edit_words(facts)}. Bars are 95 % intervals, {n}"
        yield layer_figure(("ablation-layers", "Figure 1", "By layer"), caption, panels, axis)
    single = Measures(tuple(row for row in changes if row.head is not None))
    peak = max((abs(row.value) for row in single), default=0.0) or 1.0
    dots = "; a dot where the 95 % interval excludes 0" * signed
    caption = f"Change of {outcome} with one head's component {_edit_words(facts)}{dots}. The same colours in every panel, {n}"
    for number, (stack, rows) in enumerate(single.by("stack").items(), start=1 + bool(layers)):
        name = "ablation-heads" + ("" if stack == "plain" else f"-{stack}")
        title = ", ".join(filter(None, ("By head", stack_words(stack))))
        ends, marked = (-peak, peak) if signed else (0.0, peak), (lambda row: row.side != 0) if signed else None
        yield head_maps((name, f"Figure {number}", title), caption, rows, axis, signed, ends, marked)


def _numbers(changes: Measures, about: About[AblateFacts]) -> Section:
    """A table of all edits, after one of the largest changes."""
    ranked = sorted(changes, key=lambda row: -abs(row.value) if row.mean is not None else float("inf"))
    places = words.decimals([row.value for row in changes.finite])
    columns = ("site", f"change, {axis_unit(about.facts)}", "95 % interval")

    def table(rows: Iterable[MeasuredValue], caption: str) -> Table:
        cells = ((row.site, words.number(row.mean, True, places), words.ends(row, True, places)) for row in rows)
        return Table(columns, tuple(cells), caption)

    largest_table = (table(ranked[:LARGEST_ROWS], "What changes it most"),) if len(changes) > LARGEST_ROWS else ()
    return Section("Numbers", tuple(about.notes), (), (*largest_table, table(changes, "Every edit")))
