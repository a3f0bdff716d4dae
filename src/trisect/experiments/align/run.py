"""Word links from cross-attention by weight and by norm, against gold links: sentence pairs are read, scored and judged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import polars as pl
import torch
from jaxtyping import Float, Int

from trisect.claims.models import judge_models
from trisect.core.errors import CorpusError, ModelError
from trisect.core.files import inside
from trisect.core.finding import About
from trisect.core.tables import TEXT, WHOLE, NewRow, frame
from trisect.experiments.align.settings import AlignFacts, AlignSettings, PicturedPair
from trisect.lab.experiment import Measured, RunContext
from trisect.lab.subject import check_crossing
from trisect.measure.alignment import (
    KINDS,
    NONE,
    as_links,
    best_links,
    count_hits,
    diagonal,
    error_rates,
    gold_of,
    precisions,
    recalls,
    views,
    word_scores,
)
from trisect.papers.norms import ALIGNMENT, SETTINGS
from trisect.stats.bootstrap import CrossedBootstrap, CrossedEstimate
from trisect.stats.tested import number as as_number
from trisect.text.bitext import Bitext, SentencePair, make_bitext, read_pairs, write_links

if TYPE_CHECKING:
    from trisect.hf.load import Pretrained


class Column(NamedTuple):
    """One way to get links: which decoder position a word has, by weight or by norm, and of which layer and head.

    `head` is None for the layer itself.
    """

    setting: str
    kind: str
    layer: int
    head: int | None

    @property
    def group(self) -> str:
        """Setting and kind, as rows of the table `measures` have them."""
        return f"{self.setting} {self.kind}"


class Linked(NamedTuple):
    """The links of one model: for every pair that it read the source word of each target word (−1: none), per column.

    `notes` say which layers of cross-attention give no links.
    """

    subject: str
    columns: tuple[Column, ...]
    best: Mapping[int, Int[np.ndarray, "C J"]]
    notes: tuple[str, ...] = ()


@torch.no_grad()
def link(subject: Pretrained, pairs: Sequence[SentencePair], batch: int, step: Callable[[int, int], object]) -> Linked:
    """Read every pair with the gold target before the decoder; memory grows by a whole number a word and column.

    Raises ModelError where the model has no cross-attention whose norms can be taken.
    """
    from trisect.hf.load import cross_batches

    cross = [p for p in subject.projections() if p.address.stack == "cross"]
    layers = {
        p.address.layer: len(p.w_o) for p in cross if p.w_o is not None
    }  # whose norms can be computed, and their heads
    if not layers:
        known = " ".join(subject.notes) or "Its output is not a plain projection of the values."
        raise ModelError(f"No norm can be computed in the cross-attention of {subject.name}.", known, "Choose another.")
    without = (
        f"Left out, {p.address}: {p.origins['o'].words if 'o' in p.origins else 'no output projection was found'}."
        for p in cross
        if p.w_o is None
    )
    columns = tuple(
        Column(setting, kind, layer, head)
        for layer, heads in layers.items()
        for setting in SETTINGS
        for kind in KINDS
        for head in (None, *range(1, heads + 1))
    )
    best: dict[int, Int[np.ndarray, "C J"]] = {}
    for crossed in cross_batches(subject, [(pair.source, pair.target) for pair in pairs], batch)[0]:
        found: dict[int, list[Int[np.ndarray, "N J"]]] = {number: [] for number in crossed.pairs}
        for trace in subject.trace(crossed.batch).traces:
            if trace.stack != "cross" or trace.layer not in layers:
                continue
            seen = views(trace)
            for row, number in enumerate(crossed.pairs):
                words = len(pairs[number].source), len(pairs[number].target)
                source = crossed.source[row][trace.key_real[row]]
                queries = int(trace.query_real[row].sum())
                for positions in (crossed.given, crossed.asked):
                    target = positions[row, :queries]
                    for scores in seen:
                        whole = word_scores(scores[row, :, :queries, : len(source)], target, source, words)
                        found[number].append(best_links(whole, words[0]))
        best |= {number: np.concatenate(parts).astype(np.int16) for number, parts in found.items()}
        step(len(best), len(pairs))
    return Linked(subject.name, columns, best, (*subject.notes, *without))


def _gold(pair: SentencePair) -> Any:
    """The gold links of a pair as counts take them."""
    return gold_of(pair.sure or set(), pair.possible or set(), (len(pair.source), len(pair.target)))


def _hits(linked: Linked, pairs: Sequence[SentencePair], kept: Sequence[int]) -> Float[np.ndarray, "N C 4"]:
    """Counts against the gold links of the `kept` pairs, as measure.alignment.error_rates takes them."""
    counts = [count_hits(linked.best[number], _gold(pairs[number])) for number in kept]
    return np.stack(counts) if counts else np.zeros((0, len(linked.columns), 4))


LINKING = "Word alignments are read from attention between a source and a target."
LENGTHS = (10, 15, 20, 30)  # words of the longer side; the last group holds what is longer
DIAGONAL = "diagonal"
ONCE = 2  # draws, where only the value itself is wanted
WHERE = {"awi": "input", "awo": "output"}
Counts: TypeAlias = Float[np.ndarray, "N C 4"]
Values: TypeAlias = Float[np.ndarray, "R ..."]


@dataclass(frozen=True, eq=False)
class Scored:
    """Counts of the same N sentence pairs for each of several models, and what stands beside them.

    `chosen` is for each model the layer that was best on other pairs, by setting and kind; empty without such pairs.
    `lengths` are the words of each pair's longer side, `diagonal` the counts of links along the diagonal.
    """

    models: tuple[str, ...]
    columns: tuple[Column, ...]
    counts: tuple[Counts, ...]
    chosen: tuple[Mapping[tuple[str, str], int], ...]
    lengths: Int[np.ndarray, " N"]
    diagonal: Float[np.ndarray, "N 4"]

    @property
    def name(self) -> str:
        """The models, as a subject of rows."""
        return ", ".join(self.models)

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers that give links."""
        return tuple(dict.fromkeys(c.layer for c in self.columns))

    def where(self, **wanted: Any) -> list[int]:
        """The places of columns with these attributes."""
        return [i for i, c in enumerate(self.columns) if all(getattr(c, k) == v for k, v in wanted.items())]

    def only(self, model: int) -> Scored:
        """One of the models."""
        mine = slice(model, model + 1)
        return replace(self, models=self.models[mine], counts=self.counts[mine], chosen=self.chosen[mine])

    @property
    def pairs(self) -> list[range]:
        """The sentence pairs of every model, which are the same ones."""
        return [range(len(self.lengths))] * len(self.models)

    def rates(self, redrawn: CrossedBootstrap, setting: str, kind: str | None) -> CrossedEstimate:
        """The error rate of a setting and kind, mean over layers; without a kind that of norms less that of weights."""
        shares = np.zeros(len(self.columns))
        for name, sign in _signs(kind).items():
            shares[self.where(setting=setting, kind=name, head=None)] = sign / len(self.layers)
        used = np.flatnonzero(shares)
        some = [one[:, used] for one in self.counts]
        return redrawn(self.pairs, lambda model, times: error_rates(_sums(some[model], times)) @ shares[used])


def _signs(kind: str | None) -> dict[str, float]:
    """What a number of a kind is made of; without a kind norm less weight."""
    return {kind: 1.0} if kind else {"norm": 1.0, "weight": -1.0}


def _sums(counts: Counts, times: Float[np.ndarray, "R N"]) -> Float[np.ndarray, "R C 4"]:
    return (times @ counts.reshape(len(counts), -1)).reshape(len(times), *counts.shape[1:])


def choose_layers(counts: Counts, columns: Sequence[Column]) -> dict[tuple[str, str], int]:
    """The layer with the lowest error rate for every setting and kind, the first of equals."""
    rates = error_rates(counts.sum(0))
    found = {}
    for pair in product(SETTINGS, KINDS):
        places = [i for i, c in enumerate(columns) if c[:2] == pair and c.head is None]
        found[pair] = columns[min(places, key=lambda i: (np.nan_to_num(rates[i], nan=2.0), i))].layer
    return found


def alignment_rows(scored: Scored, redrawn: CrossedBootstrap) -> list[NewRow]:
    """Every row of `measures` about gold links; n is the number of sentence pairs.

    The group is a setting and a kind, such as 'awi norm', or of differences (norm less weight) the setting alone.
    aer, precision, recall (per layer; aer also per head, and without a layer: mean over layers), aer_difference,
    aer_best and aer_best_difference (the layer chosen on other pairs; `at` it, where there is one model), aer_by_length
    (mean over layers; `at` the most words that the longer side has, None in the last), and of several models aer_sd,
    the standard deviation over them (n: how many), and their own rows. The subject 'diagonal' needs no model.
    """
    rows = _rows(scored, redrawn)
    if len(scored.models) > 1:
        alone = [scored.only(i) for i in range(len(scored.models))]
        rows += [row for one in alone for row in _rows(one, redrawn)]
        rates = np.stack([error_rates(one.sum(0)) for one in scored.counts])
        spreads = [(_place(scored.columns[i]), rates[:, i]) for i in scored.where(head=None)]
        for setting, kind in product(SETTINGS, KINDS):
            mean = rates[:, scored.where(setting=setting, kind=kind, head=None)].mean(1)
            spreads.append(({"group": f"{setting} {kind}"}, mean))
        own = {"subject": scored.name, "stack": "cross", "measure": "aer_sd", "n": len(scored.models)}
        rows += [own | name | {"value": as_number(of.std(ddof=1))} for name, of in spreads]
    found = redrawn([range(len(scored.lengths))], lambda _, times: error_rates(times @ scored.diagonal))
    return [*rows, {"subject": DIAGONAL, "stack": "cross", "measure": "aer", **found.row()}]


def _rows(scored: Scored, redrawn: CrossedBootstrap) -> list[NewRow]:
    """The rows of all models together, or of one."""
    columns, norms, wholes = scored.columns, scored.where(kind="norm"), scored.where(head=None)
    weights = [columns.index(columns[i]._replace(kind="weight")) for i in norms]

    def everything(model: int, times: Float[np.ndarray, "R N"]) -> Values:
        sums = _sums(scored.counts[model], times)
        rates, layers = error_rates(sums), sums[:, wholes]
        return np.concatenate([rates, rates[:, norms] - rates[:, weights], precisions(layers), recalls(layers)], 1)

    found = redrawn(scored.pairs, everything)  # all from the same sums
    named = [_place(column) | {"measure": "aer"} for column in columns]
    named += [_place(columns[i]) | {"group": columns[i].setting, "measure": "aer_difference"} for i in norms]
    named += [_place(columns[i]) | {"measure": name} for name in ("precision", "recall") for i in wholes]
    rows: list[NewRow] = [row | found.at(i).row() for i, row in enumerate(named)]
    for name, found in statistics(scored, redrawn).items():
        measure, setting, *kind = name.split("/")
        row: NewRow = {"measure": measure, "group": " ".join([setting, *kind])}
        if measure == "aer_best" and len(scored.models) == 1:
            row["at"] = float(scored.chosen[0][setting, kind[0]])
        rows.append(row | found.row())
    for most, which in buckets(scored.lengths).items():
        counts = tuple(one[which] for one in scored.counts)
        some = replace(scored, counts=counts, lengths=scored.lengths[which], diagonal=scored.diagonal[which])
        for setting, kind in product(SETTINGS, KINDS):
            row = {"measure": "aer_by_length", "group": f"{setting} {kind}", "at": most}
            rows.append(row | some.rates(redrawn, setting, kind).row())
    return [{"subject": scored.name, "stack": "cross"} | row for row in rows]


def statistics(scored: Scored, redrawn: CrossedBootstrap) -> dict[str, CrossedEstimate]:
    """Error rates of the whole by name: aer/SETTING/KIND and aer_difference/SETTING, means over layers, and aer_best likewise."""

    def of_best(model: int, times: Float[np.ndarray, "R N"], setting: str, kind: str | None) -> Values:
        """In the layer that the model was given by other pairs."""
        total = np.zeros(len(times))
        for name, sign in _signs(kind).items():
            (place,) = scored.where(setting=setting, kind=name, layer=scored.chosen[model][setting, name], head=None)
            total += sign * error_rates(times @ scored.counts[model][:, place])
        return total

    found: dict[str, CrossedEstimate] = {}
    for setting, kind in product(SETTINGS, (*KINDS, None)):
        name = f"aer/{setting}/{kind}" if kind else f"aer_difference/{setting}"
        found[name] = scored.rates(redrawn, setting, kind)
    if all(scored.chosen) and scored.chosen:
        for setting, kind in product(SETTINGS, (*KINDS, None)):
            name = f"aer_best/{setting}/{kind}" if kind else f"aer_best_difference/{setting}"
            found[name] = redrawn(scored.pairs, partial(of_best, setting=setting, kind=kind))
    return found


def judge_alignment(scored: Scored | None, about: Mapping[str, object]) -> pl.DataFrame:
    """The table `claims`: C-5 on each model's error rates, by Student's t over models that were trained alike.

    No verdict rests on a setting in which some model's links are no better than the diagonal's, by weight and by norm.
    """
    values: dict[str, list[float]] = {}
    barred = {}
    if scored is not None:
        for model in range(len(scored.models)):
            for name, one in statistics(scored.only(model), CrossedBootstrap(0, ONCE)).items():
                values.setdefault(name.replace("/", "_"), []).append(float(one.value))
        straight = float(error_rates(scored.diagonal.sum(0)))
        for setting, rate in product(SETTINGS, ("aer", "aer_best")):
            rates = [values[f"{rate}_{setting}_{kind}"] for kind in KINDS if f"{rate}_{setting}_{kind}" in values]
            if above := sum(min(of) >= straight for of in zip(*rates, strict=True)):
                barred[f"{rate}_difference_{setting}"] = (
                    f"the models do not align where the word is the decoder's {WHERE[setting]}: {above} of {len(rates[0])} "
                    f"are no better than the diagonal (AER {straight:.3f})"
                )
    return judge_models(ALIGNMENT, values, about, barred)


def buckets(lengths: Int[np.ndarray, " N"]) -> dict[float | None, Int[np.ndarray, " M"]]:
    """Sentence pairs by the words of their longer side: at most so many, and None for what is longer than all."""
    place = np.searchsorted(LENGTHS, lengths)
    most = (*map(float, LENGTHS), None)
    return {most[i]: np.flatnonzero(place == i) for i in range(len(most)) if (place == i).any()}


def _place(column: Column) -> NewRow:
    return {"layer": column.layer, "head": column.head, "group": column.group}


def link_rows(
    several: Sequence[Linked], pairs: Sequence[SentencePair], kept: Sequence[int], redrawn: CrossedBootstrap
) -> list[NewRow]:
    """Rows of `measures` that need no gold links, per layer: linked, the share of target words with a link, and

    agreement, the share of them with the same link (or none) by weight and by norm, which has the setting as its group.
    """
    columns = several[0].columns
    wholes = [i for i, c in enumerate(columns) if c.head is None]
    norms = [i for i in wholes if columns[i].kind == "norm"]
    weights = [columns.index(columns[i]._replace(kind="weight")) for i in norms]
    words = np.array([len(pairs[n].target) for n in kept], dtype=float)

    def count(best: Int[np.ndarray, "C J"]) -> Float[np.ndarray, " K"]:
        linked, same = best[wholes] != NONE, best[norms] == best[weights]
        return np.concatenate([linked.sum(-1), same.sum(-1)]).astype(float)

    counts = [np.stack([count(one.best[n]) for n in kept]) for one in several]
    pairs_of = [range(len(kept))] * len(several)
    found = redrawn(pairs_of, lambda model, times: (times @ counts[model]) / (times @ words)[:, None])
    rows = [_place(columns[i]) | {"measure": "linked"} for i in wholes]
    rows += [_place(columns[i]) | {"group": columns[i].setting, "measure": "agreement"} for i in norms]
    own = {"subject": ", ".join(one.subject for one in several), "stack": "cross"}
    return [own | row | found.at(i).row() for i, row in enumerate(rows)]


SHORTEST, LONGEST = 4, 14  # words of either side of a pair that can be shown
_SETTING = "awi"
RULE = (
    f"Of the pairs with {SHORTEST} to {LONGEST} words on both sides, sorted by the error rate of norms less that of weights (AWI, "
    "the first model): the first, the one in the middle, and the last."
)
FIRST = f"The first pairs with {SHORTEST} to {LONGEST} words on both sides."
_EXAMPLE_COLUMNS = ("norms help most", "in the middle", "norms help least")


def choose_pictures(
    linked: Linked, pairs: Sequence[SentencePair], kept: Sequence[int], chosen: Mapping[tuple[str, str], int] | None
) -> list[PicturedPair]:
    """Up to three pairs as plain data, by RULE; without gold links the first three. Words and pairs count from 1.

    Links are of the layers that were chosen on other pairs; where none were, of the layer before the last.
    """
    fitting = [n for n in kept if all(SHORTEST <= len(side) <= LONGEST for side in (pairs[n].source, pairs[n].target))]
    if not fitting:
        return []
    every = list(dict.fromkeys(c.layer for c in linked.columns))
    before_last = every[max(0, len(every) - 2)]
    wanted = {kind: chosen[_SETTING, kind] if chosen is not None else before_last for kind in KINDS}
    places = {kind: linked.columns.index(Column(_SETTING, kind, layer, None)) for kind, layer in wanted.items()}

    def gain(number: int) -> tuple[float, int]:
        best, gold = linked.best[number], _gold(pairs[number])
        weight, norm = (float(error_rates(count_hits(best[places[kind]], gold))) for kind in KINDS)
        return norm - weight, number

    titles, shown = [""] * 3, fitting[:3]
    if pairs[fitting[0]].sure is not None:
        ranked = sorted(fitting, key=gain)
        shown = list(dict.fromkeys([ranked[0], ranked[len(ranked) // 2], ranked[-1]]))
        titles = [f", {where}" for where in _EXAMPLE_COLUMNS] if len(shown) == len(_EXAMPLE_COLUMNS) else titles
    return [
        PicturedPair(
            title=f"Pair {n + 1}{title}",
            source=list(pairs[n].source),
            target=list(pairs[n].target),
            sure=_plain(pairs[n].sure),
            possible=_plain(pairs[n].possible),
            layers=wanted,
            weight=_plain(as_links(linked.best[n][places["weight"]])),
            norm=_plain(as_links(linked.best[n][places["norm"]])),
        )
        for n, title in zip(shown, titles, strict=False)
    ]


def _plain(links: Iterable[tuple[int, int]] | None) -> list[list[int]]:
    """Links from 1, sorted, as JSON has them."""
    return sorted([source + 1, target + 1] for source, target in links or ())


Chosen = tuple[Mapping[tuple[str, str], int], ...]  # a layer by setting and kind, for each model
LINKS = {
    "subject": TEXT,
    "pair": WHOLE,  # from 1, as the lines of the files
    "setting": TEXT,  # awi, awo
    "kind": TEXT,  # weight, norm
    "layer": WHOLE,
    "source": WHOLE,  # words from 1
    "target": WHOLE,
}


def check(settings: AlignSettings) -> None:
    """Raise CorpusError where the sentence pairs that are named cannot be read, or do not fit together."""
    if settings.bitext is None:
        _run_pairs(settings)


def measure(settings: AlignSettings, context: RunContext) -> Measured[AlignFacts]:
    """Word alignment from cross-attention (definitions C5).

    The models are one encoder–decoder or several that were trained alike but for their seed. Intervals and the claim resample
    pairs, and models across them. Beside the tables lies the folder `links`, with a file for every model, setting, kind and
    layer, as Pharaoh (from 0) and .talp (from 1). Raises ModelError for a model without cross-attention, CorpusError for files
    that do not fit together.
    """
    subjects = tuple(check_crossing(subject, LINKING) for subject in context.subjects)
    bitext = _run_pairs(settings) if settings.bitext is None else settings.bitext
    pairs, valid = bitext.test, bitext.valid
    if not pairs:
        raise CorpusError(f"{bitext.name} has no test pairs.", "Those are what is aligned.", "Give some.")
    test = [_link(subject, pairs, settings.batch, context) for subject in subjects]
    for one in test[1:]:
        if one.columns != test[0].columns:
            given = f"{one.subject} has other layers or heads than {test[0].subject}."
            known = "Several models are treated as one that was trained several times, and are averaged."
            raise ModelError(given, known, "Give one at a time.")
    kept = [n for n in range(len(pairs)) if all(n in one.best for one in test)]
    if not kept:
        known = "Their pieces are more than it reads at once."
        given = f"No pair of {bitext.name} fits into {', '.join(one.subject for one in test)}."
        raise ModelError(given, known, "Give shorter sentences.")
    redrawn, gold = CrossedBootstrap(settings.seed, settings.draws), pairs[0].sure is not None
    chosen: Chosen = ()
    if gold and valid and valid[0].sure is not None:
        others = [_link(subject, valid, settings.batch, context) for subject in subjects]
        chosen = tuple(choose_layers(_hits(one, valid, sorted(one.best)), one.columns) for one in others)
    scored = _score(test, pairs, kept, chosen) if gold else None
    rows = link_rows(test, pairs, kept, redrawn)
    rows += [] if scored is None else alignment_rows(scored, redrawn)
    pictures = choose_pictures(test[0], pairs, kept, chosen[0] if chosen else None)
    facts = _facts(subjects, bitext, len(kept), settings, chosen, pictures)

    def judge(about: About[AlignFacts]) -> pl.DataFrame:
        named = ("models", "corpus", "corpus_fingerprint", "pairs", "seed")
        return judge_alignment(scored, {name: getattr(about.facts, name) for name in named})

    long = f"{len(pairs) - len(kept)} of {len(pairs)} sentence pairs have more pieces than the model reads, and are left out."
    lost = (long,) * (len(kept) < len(pairs))
    notes = dict.fromkeys((*bitext.notes, *lost, *(note for one in test for note in one.notes)))
    folder = context.folder / "links"
    tables = {"measures": frame("measures", rows), "links": _write_links(folder, test, len(pairs))}
    return Measured(tables, facts, tuple(notes), judge, "model", paths={"links": folder})


def _run_pairs(settings: AlignSettings) -> Bitext:
    """The pairs of the files that the settings name, those of the trial as valid ones."""
    source, target = Path(settings.source), Path(settings.target)
    found = read_pairs(source, target, settings.gold, settings.base)
    notes, pairs, valid = found.notes, found.pairs, ()
    if settings.trial is not None:
        beside, across, linked = settings.trial
        other = read_pairs(beside, across, linked, settings.base)
        valid, notes = other.pairs, (*notes, *other.notes)
    if settings.limit is not None:
        pairs = pairs[: settings.limit]
        notes = (*notes, f"Only the first {settings.limit:,} sentence pairs are read.")
    return make_bitext(f"{source.name} and {target.name}", {"valid": valid, "test": pairs}, notes)


def _link(subject: Pretrained, pairs: Sequence[SentencePair], batch: int, context: RunContext) -> Linked:
    with context.progress(f"Reading pairs with {subject.name}") as step:
        return link(subject, pairs, batch, step)


def _score(several: Sequence[Linked], pairs: Sequence[SentencePair], kept: Sequence[int], chosen: Chosen) -> Scored:
    """Counts of all models against gold, and those of the diagonal."""
    words = {n: (len(pairs[n].source), len(pairs[n].target)) for n in kept}
    straight = np.stack([count_hits(diagonal(words[n]), _gold(pairs[n])) for n in kept])
    counts = tuple(_hits(one, pairs, kept) for one in several)
    lengths = np.array([max(words[n]) for n in kept])
    return Scored(tuple(one.subject for one in several), several[0].columns, counts, chosen, lengths, straight)


def _facts(
    subjects: Sequence[Pretrained],
    bitext: Bitext,
    kept: int,
    settings: AlignSettings,
    chosen: Chosen,
    pictures: Sequence[PicturedPair],
) -> AlignFacts:
    names, gold = [subject.name for subject in subjects], bitext.test[0].sure is not None
    return AlignFacts(
        ", ".join(names),
        {subject.name: subject.fingerprint for subject in subjects},
        subjects[0].shape.words(),
        bitext.name,
        bitext.fingerprint,
        len(bitext.valid),
        gold,
        kept,
        settings.seed,
        settings.draws,
        {
            name: {f"{setting.upper()} by {kind}": layer for (setting, kind), layer in layers.items()}
            for name, layers in zip(names, chosen, strict=False)
        },
        RULE if gold else FIRST,
        tuple(pictures),
    )


def _write_links(folder: Path, several: Sequence[Linked], pairs: int) -> pl.DataFrame:
    """A file for every model, setting, kind and layer in either form, with a line for each of `pairs`, and all links as a table.

    Words and pairs of the table count from 1.
    """
    rows: dict[str, list[Any]] = {name: [] for name in LINKS}
    for number, linked in enumerate(several, start=1):
        mark = f"model-{number}-" if len(several) > 1 else ""
        for i, column in ((i, column) for i, column in enumerate(linked.columns) if column.head is None):
            lines = [as_links(linked.best[n][i]) if n in linked.best else set() for n in range(pairs)]
            name = f"{mark}{column.setting}-{column.kind}-layer-{column.layer}"
            for ending, base in ((".pharaoh", 0), (".talp", 1)):
                write_links(inside(folder, f"{name}{ending}"), [(links, ()) for links in lines], base)
            for pair, links in enumerate(lines, start=1):
                named = (linked.subject, pair, column.setting, column.kind, column.layer)
                for key, value in zip(LINKS, named, strict=False):
                    rows[key] += [value] * len(links)
                rows["source"] += [source + 1 for source, _ in sorted(links)]
                rows["target"] += [target + 1 for _, target in sorted(links)]
    return pl.DataFrame(rows, schema=LINKS)
