"""Erasure's page: what a model loses where no linear map finds a label in its queries, keys or values any more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from trisect.core.finding import About, Comparison, Estimate, Finding
from trisect.report import format as report_format
from trisect.report import format as words
from trisect.report.charts import Figure
from trisect.report.format import resampled_words, spoken_subject, stack_words, unit
from trisect.report.measures import MeasuredValue, Measures, layer_figure, place_order
from trisect.report.sheet import Section, Sheet, Table, present, provenance, quiet, sentences, small_multiples

if TYPE_CHECKING:
    from trisect.experiments.erase.settings import EraseFacts

REFERENCES = (
    "Nora Belrose, David Schneider-Joseph, Shauli Ravfogel, Ryan Cotterell, Edward Raff, Stella Biderman. "
    "LEACE: Perfect linear concept erasure in closed form. NeurIPS 2023.",
    "Yanai Elazar, Shauli Ravfogel, Alon Jacovi, Yoav Goldberg. Amnesic Probing. TACL 2021.",
    "Bradley Efron, Robert Tibshirani. An Introduction to the Bootstrap. Chapman & Hall 1993.",
)


class Erased(NamedTuple):
    """One label erased at one place: the rise, that beyond its controls, theirs, the rank, and what was linear there."""

    label: str
    rise: MeasuredValue
    excess: MeasuredValue
    randoms: tuple[float, ...]
    rank: int
    explained: float

    @property
    def place(self) -> str:
        """The place as a site is spelt."""
        return self.rise.site


def page(tables: Mapping[str, pl.DataFrame], about: About[EraseFacts]) -> Sheet:
    """The page from the table measures."""
    facts, found = about.facts, read_erased(tables["measures"])
    name = words.called(facts.subject, about.command)
    whose = "of the word" if facts.whose == "own" else "of the next piece's word"
    columns = f"the label {' or '.join(facts.labels)} {whose}"
    lede = (
        f"What {name} loses on {facts.corpus} when {columns} is erased from its queries, keys or "
        f"values, in one {facts.per} at a time, so that no linear map finds it there. This speaks of this one model on "
        "these texts."
    )
    sections = (_answer(findings(tables, about), found, facts), _numbers(found, about))
    erasure = f"LEACE, {columns}, per {facts.per}, seed {facts.seed}"
    own = provenance(about, *report_format.read_facts(facts), ("Erasure", erasure), timed=False)
    return Sheet(f"What {name} needs", "Erasure", lede, sections, own, REFERENCES)


def read_erased(measures: pl.DataFrame) -> list[Erased]:
    """Every erasure, in the order of labels, stacks, layers, heads and components."""
    rows = Measures.of(measures.filter(pl.col("component").is_not_null()), missing=True)
    found = []
    for mine in rows.by("group", "stack", "layer", "head", "component").values():
        named = mine.where(at=None).first("measure")
        plain = {name.rpartition("_")[0]: row for name, row in named.items()}
        randoms = tuple(row.value for row in mine.known if row.at is not None)
        rank, explained = named["erase_rank"].value, named["erase_explained"].value
        label = mine.rows[0].group or ""
        found.append(Erased(label, plain["erase_rise"], plain["erase_excess"], randoms, int(rank), explained))
    return sorted(found, key=lambda e: (e.label, place_order(e.rise)))


def findings(tables: Mapping[str, pl.DataFrame], about: About[EraseFacts]) -> tuple[Finding, ...]:
    """What is measured, and for each label where its erasure costs more than random subspaces do."""
    found = _by_label(read_erased(tables["measures"]))
    unedited = report_format.unedited("Rises", tables["measures"], about.facts)
    return (unedited, *(_label(label, mine, about.facts) for label, mine in found.items()))


def _by_label(found: Sequence[Erased]) -> dict[str, list[Erased]]:
    return {label: [e for e in found if e.label == label] for label in dict.fromkeys(e.label for e in found)}


def _most(found: Sequence[Erased], facts: EraseFacts) -> tuple[Erased, str]:
    """Where the excess is largest, and it in words."""
    most = max(found, key=lambda e: e.excess.value)
    return most, f"{spoken_subject(most.excess)}{'' if facts.objective == 'output' else ' nats'}"


def _label(label: str, mine: Sequence[Erased], facts: EraseFacts) -> Finding:
    """The rise beyond random subspaces at every place, its places' names being sites."""
    known = [e for e in mine if e.excess.mean is not None]
    if not known:
        said = f"Erasing {label} leaves no number anywhere."
        return Finding("erase_excess", said, unit(facts), groups=(label,), per=facts.unit)
    above, below = (sum(e.excess.side == side for e in known) for side in (1, -1))
    most, size = _most(known, facts)
    said = f"Erasing {label} costs more than random subspaces of the same rank at {above} of "
    said += words.several(len(mine), "place") + (f", less at {below}" if below else "")
    said += f"; most at {most.place}, by {size}."
    values = tuple(e.excess._replace(n=facts.units).estimate(e.place) for e in known)
    side, known_of = f"above 0 at {above}, below 0 at {below}, of {len(mine)}", facts.compared.get(label)
    own = known_of if isinstance(known_of, Mapping) else None
    noted = None if own is None else Comparison.of(own)
    said += report_format.paired_words(own, facts.unit)
    return Finding("erase_excess", said, unit(facts), values, side, groups=(label,), per=facts.unit, compared=noted)


def _answer(findings: Sequence[Finding], found: Sequence[Erased], facts: EraseFacts) -> Section:
    """The lead, the figures, all findings in words, and how to read them."""
    said = (
        f"LEACE is fitted to {words.count(facts.fitted)} labelled positions of the train split or more, and takes out "
        "as many directions as the label has classes less one, where the site is as wide. A rise alone says how much "
        f"was removed; what it says of the label is the rise beyond {words.several(facts.draws, 'random subspace')} "
        "of the same rank, drawn from the same whitened space, with the mean kept. The covariance that it whitens by is "
        f"{'shrunk, as concept-erasure does by default' if facts.shrinkage else 'as the positions have it (no shrinkage)'}.",
        f"Intervals are 95 % of a bootstrap over {resampled_words(facts)}, each erasure compared with the "
        "unedited pass over the same text, and are not corrected for how many there are.",
        *report_format.too_few(facts),
        "Nothing is said about what is not linear: a label can be gone for every linear map and still be there.",
    )
    caption = (
        f"Rise beyond random subspaces, mean over the {facts.per}s that were erased; each panel has an axis of its own."
    )
    short, lead = [], ()
    for label, mine in _by_label(found).items():
        values = Measures(tuple(e.excess for e in mine)).known.means()
        short.append(Finding("erase_excess", "", report_format.axis_unit(facts), values, title=label))
    if known := [e for e in found if e.excess.mean is not None]:
        (most, size), where = _most(known, facts), sum(e.excess.side > 0 for e in known)
        lead = (
            f"{where} of {words.several(len(known), 'erasure')} cost more than random subspaces of the same rank do (interval "
            f"above 0); the largest excess is that of {most.label} at {most.place}: {size}.",
        )
    in_words = sentences([replace(one, title=" ".join(one.groups) or "unedited") for one in findings])
    drawn = (*present(small_multiples("erasure-short", "Label by label", caption, short)), *_figures(found, facts))
    return Section("What is needed", lead, drawn, present(in_words), blocks=quiet(said))


def _figures(found: Sequence[Erased], facts: EraseFacts) -> Iterable[Figure]:
    """For each label and stack the rise, and beside it what of it is beyond the controls, on one axis."""
    groups: dict[tuple[str, str], list[Erased]] = {}
    for e in found:
        if e.rise.mean is not None:
            groups.setdefault((e.label, e.rise.stack), []).append(e)
    for number, ((label, stack), mine) in enumerate(groups.items(), start=1):
        beyond = [e.excess.bar for e in mine if e.excess.mean is not None]
        panels = {"Erased": [e.rise.bar for e in mine]} | ({"Beyond random subspaces": beyond} if beyond else {})
        where = f" in the {stack_words(stack)}" if stack_words(stack) else ""
        caption = (
            f"Rise{where} with {label} erased at one place, and what of it is beyond the mean of "
            f"{words.several(facts.draws, 'random subspace')} of the same rank. Bars are 95 % intervals, "
            f"n\u00a0=\u00a0{resampled_words(facts)}."
        )
        name = "-".join(("erasure", *(words.slug(c) for c in (label, stack) if c != "plain")))
        names = (name, f"Figure {number}", f"Erasing {label}")
        yield layer_figure(names, caption, panels, report_format.axis_unit(facts))


def _numbers(found: Sequence[Erased], about: About[EraseFacts]) -> Section:
    """Every erasure as a row."""
    rise = f"rise, {report_format.axis_unit(about.facts)}"
    columns = ("site", "label", "rank", "linear share", rise, "random subspaces", "beyond them")
    places = words.decimals([e.rise.value for e in found if e.rise.mean is not None])

    def number(row: MeasuredValue) -> str:
        shown, ends = words.number(row.mean, True, places), words.ends(row, True, places)
        return shown if row.low is None else f"{shown} ({ends})"

    def row(e: Erased) -> tuple[str, ...]:
        spread = Estimate("", None, min(e.randoms), max(e.randoms)) if e.randoms else Estimate("", None)
        share = words.number(e.explained, False, 3)
        return e.place, e.label, str(e.rank), share, number(e.rise), words.ends(spread, True, places), number(e.excess)

    said = (
        "The linear share is how much of the variance of the label's classes, added up, a linear map of the site explains "
        "on the positions that LEACE is fitted to; nothing is left of it there.",
        *about.notes,
    )
    return Section("Numbers", said, (), (Table(columns, tuple(map(row, found)), "Every erasure"),))
