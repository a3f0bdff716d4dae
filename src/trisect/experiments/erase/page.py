"""The page of erasure: the rise of the loss without a label's linear trace in queries, keys or values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import polars as pl

from trisect.core.finding import About, Comparison, Estimate, Finding
from trisect.report import format as words
from trisect.report.charts import Figure
from trisect.report.format import axis_unit, number_words, sample_words, stack_words, unit
from trisect.report.measures import MeasuredValue, Measures, layer_figure
from trisect.report.sheet import Section, Sheet, Table, present, provenance, quiet, small_multiples

if TYPE_CHECKING:
    from trisect.experiments.erase.settings import EraseFacts

LabelAtSite = Mapping[str, MeasuredValue]  # its numbers, by their measures
REFERENCES = (
    "Nora Belrose, David Schneider-Joseph, Shauli Ravfogel, Ryan Cotterell, Edward Raff, Stella Biderman. "
    "LEACE: Perfect linear concept erasure in closed form. NeurIPS 2023.",
    "Yanai Elazar, Shauli Ravfogel, Alon Jacovi, Yoav Goldberg. Amnesic Probing. TACL 2021.",
    "Bradley Efron, Robert Tibshirani. An Introduction to the Bootstrap. Chapman & Hall 1993.",
)


def page(tables: Mapping[str, pl.DataFrame], about: About[EraseFacts]) -> Sheet:
    """The page from the table measures."""
    facts, rows = about.facts, _rows(tables["measures"])
    name = words.display_name(facts.subject, about.command)
    owner = "of the word" if facts.whose == "own" else "of the next piece's word"
    columns = f"the label {' or '.join(facts.labels)} {owner}"
    lede = f"{name} · {facts.corpus} · {sample_words(facts)} · {columns}, erased linearly in one {facts.per} at a time"
    sections = (_answer(findings(tables, about), _by_label(rows), facts), _numbers(rows, about))
    answer = "No erasure has a number."
    if excesses := Measures(tuple(row for sites in _by_label(rows).values() for row in _excesses(sites, facts))):
        largest = max(excesses, key=lambda row: (row.side > 0, row.value))
        costs, tail = ("changes the output", " of it") if facts.objective == "output" else ("raises the loss", " nats")
        size = f"{words.number(largest.value, True)}{tail}"
        more = sum(row.side > 0 for row in excesses)
        where = f", most for the label {largest.group} in {words.site_words(largest.site)}: by {size}" * bool(more)
        answer = (
            f"Erasing a label (LEACE) surely {costs} more than erasing as many random directions at {more or 'none'} of "
            f"{words.quantity(len(excesses), 'place')}{where}."
        )
    erasure = f"LEACE, {columns}, per {facts.per}, seed {facts.seed}"
    sources = provenance(about, *words.read_facts(facts), ("Erasure", erasure), timed=False)
    title = f"Which labels does {name} need in its queries, keys and values?"
    return Sheet(title, "trisect · erasure", lede, sections, sources, REFERENCES, answer)


def _rows(measures: pl.DataFrame) -> Measures:
    return Measures.of(measures.filter(pl.col("component").is_not_null()), missing=True)


def _by_label(rows: Measures) -> dict[str, list[LabelAtSite]]:
    """The sites of each label, in order."""
    labels = sorted(rows.where(at=None).ordered().by("group").items())
    sites = ("stack", "layer", "head", "component")
    return {label: [site.first("measure") for site in rows.by(*sites).values()] for label, rows in labels}


def _number(site: LabelAtSite, kind: str, facts: EraseFacts) -> MeasuredValue:
    """The rise of a site, or its excess over random subspaces."""
    return site[f"erase_{kind}_{unit(facts)}"]


def _excesses(sites: Iterable[LabelAtSite], facts: EraseFacts) -> Measures:
    """The excess over random subspaces of every site, where it was measured."""
    return Measures(tuple(_number(site, "excess", facts) for site in sites)).finite


def findings(tables: Mapping[str, pl.DataFrame], about: About[EraseFacts]) -> tuple[Finding, ...]:
    """What is measured, and for each label the sites where erasing it costs more than random subspaces do."""
    facts = about.facts
    results = [words.baseline_finding("Rises", tables["measures"], facts)]
    for label, sites in _by_label(_rows(tables["measures"])).items():
        excesses = _excesses(sites, facts)
        if not excesses:
            text = f"Erasing {label} leaves no number anywhere."
            results.append(Finding("erase_excess", text, unit(facts), groups=(label,), per=facts.unit))
            continue
        above, below = (sum(row.side == side for row in excesses) for side in (1, -1))
        largest = max(excesses, key=lambda row: row.value)
        size = f"{number_words(largest)}{'' if facts.objective == 'output' else ' nats'}"
        paired = facts.compared.get(label)
        paired = paired if isinstance(paired, Mapping) else None
        text = (
            f"Erasing {label} costs more than random subspaces of the same rank at {above} of {words.quantity(len(sites), 'place')}"
            f"{f', less at {below}' if below else ''}; most at {largest.site}, by {size}.{words.comparison_words(paired, facts.unit)}"
        )
        values = tuple(row._replace(n=facts.units).estimate() for row in excesses)
        sides = f"above 0 at {above}, below 0 at {below}, of {len(sites)}"
        fields = ("erase_excess", text, unit(facts), values, sides)
        compared = None if paired is None else Comparison.from_data(paired)
        results.append(Finding(*fields, groups=(label,), per=facts.unit, compared=compared))
    return tuple(results)


def _answer(findings: Sequence[Finding], by_label: Mapping[str, Sequence[LabelAtSite]], facts: EraseFacts) -> Section:
    """The figures, what is measured, and how to read them."""
    compared = {
        label: words.comparison_words(rows, facts.unit)
        for label, rows in facts.compared.items()
        if isinstance(rows, Mapping)
    }
    notes = (
        findings[0].words,
        *(f"{label}: {comparison.strip()}" for label, comparison in compared.items()),
        f"LEACE is fitted to {words.count(facts.fitted)} labelled positions of the train split or more, and takes out "
        "as many directions as the label has classes less one, where the site is as wide. A rise alone says how much "
        f"was removed; what it says of the label is the rise beyond {words.quantity(facts.draws, 'random subspace')} "
        "of the same rank, drawn from the same whitened space, with the mean kept. The covariance that it whitens by is "
        f"{'shrunk, as concept-erasure does by default' if facts.shrinkage else 'as the positions have it (no shrinkage)'}.",
        f"Intervals are 95 % of a bootstrap over {sample_words(facts)}, each erasure compared with the "
        "unedited pass over the same text, and are not corrected for how many there are.",
        *words.too_few(facts),
        "Nothing is said about what is not linear: a label can be gone for every linear map and still be there.",
    )
    caption = f"Rise beyond random subspaces, mean over the {facts.per}s that were erased; n\u00a0=\u00a0{sample_words(facts)}."
    excesses = {label: _excesses(sites, facts) for label, sites in by_label.items()}
    short = [
        Finding("erase_excess", "", axis_unit(facts), rows.means(), title=label) for label, rows in excesses.items()
    ]
    figures = (*present(small_multiples("erasure-short", "Label by label", caption, short)), *_figures(by_label, facts))
    return Section("What is needed", (), figures, blocks=quiet(notes))


def _figures(by_label: Mapping[str, Sequence[LabelAtSite]], facts: EraseFacts) -> Iterable[Figure]:
    """For each label and stack, the rise and its excess over the controls, on one axis."""
    rises = Measures(tuple(_number(site, "rise", facts) for sites in by_label.values() for site in sites)).finite
    for number, ((label, stack), rows) in enumerate(rises.by("group", "stack").items(), start=1):
        sites = [site for site in by_label[label] if _number(site, "rise", facts) in rows.rows]
        beyond = [row.bar for row in _excesses(sites, facts)]
        panels = {"Erased": [row.bar for row in rows]} | ({"Beyond random subspaces": beyond} if beyond else {})
        where = f" in the {stack_words(stack)}" if stack_words(stack) else ""
        caption = (
            f"Rise{where} with {label} erased at one place, and what of it is beyond the mean of "
            f"{words.quantity(facts.draws, 'random subspace')} of the same rank. Bars are 95 % intervals, "
            f"n\u00a0=\u00a0{sample_words(facts)}."
        )
        name = "-".join(("erasure", *(words.slug(c) for c in (label, stack) if c != "plain")))
        yield layer_figure((name, f"Figure {number}", f"Erasing {label}"), caption, panels, axis_unit(facts))


def _numbers(rows: Measures, about: About[EraseFacts]) -> Section:
    """A table of all erasures."""
    facts, sites = about.facts, [site for label in _by_label(rows).values() for site in label]
    columns = ("site", "label", "rank", "linear share", f"rise, {axis_unit(facts)}", "random subspaces", "beyond them")
    places = words.decimals([rise.value for site in sites if (rise := _number(site, "rise", facts)).mean is not None])
    randoms = rows.where(f"erase_random_rise_{unit(facts)}").finite.by("stack", "layer", "head", "component", "group")

    def number(row: MeasuredValue) -> str:
        shown, ends = words.number(row.mean, True, places), words.ends(row, True, places)
        return shown if row.low is None else f"{shown} ({ends})"

    def row(site: LabelAtSite) -> tuple[str, ...]:
        at = site["erase_rank"]
        draws = [draw.value for draw in randoms.get((at.stack, at.layer, at.head, at.component, at.group), ())]
        spread = Estimate("", None, min(draws), max(draws)) if draws else Estimate("", None)
        share = words.number(site["erase_explained"].value, False, 3)
        rise, excess = (number(_number(site, kind, facts)) for kind in ("rise", "excess"))
        return at.site, at.group or "", f"{at.value:.0f}", share, rise, words.ends(spread, True, places), excess

    notes = (
        "The linear share is how much of the variance of the label's classes, added up, a linear map of the site explains "
        "on the positions that LEACE is fitted to; nothing is left of it there.",
        *about.notes,
    )
    return Section("Numbers", notes, (), (Table(columns, tuple(map(row, sites)), "Every erasure"),))
