"""Word alignment from attention by weight, norm and contribution: read sentence pairs, score them against gold links, judge claims."""

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
from trisect.core.files import safe_join
from trisect.core.finding import About
from trisect.core.tables import INTEGER, TEXT, NewRow, frame
from trisect.core.trace import Projections, crosses
from trisect.experiments.align.settings import AlignFacts, AlignSettings, PicturedPair
from trisect.lab.experiment import Measured, RunContext
from trisect.lab.subject import check_crossing, check_pretrained
from trisect.measure.alignment import (
    KINDS,
    NO_LINK,
    as_links,
    best_links,
    count_hits,
    diagonal,
    error_rates,
    gold_tables,
    link_directions,
    precisions,
    recalls,
    views,
    word_scores,
)
from trisect.measure.norms import contributions
from trisect.papers.norms import ALIGNMENT, DIRECTIONS, SETTINGS
from trisect.stats.bootstrap import CrossedBootstrap, CrossedEstimate
from trisect.stats.significance import nan_to_none
from trisect.text.bitext import (
    Bitext,
    Link,
    SentencePair,
    SpannedText,
    make_bitext,
    read_links,
    read_pairs,
    read_texts,
    write_links,
)

if TYPE_CHECKING:
    from trisect.core.trace import Trace
    from trisect.hf.load import Pretrained


class Column(NamedTuple):
    """One way to extract links: the decoder position of a word (setting), weight, norm or contribution (kind), layer and head.

    Within one text the setting is one of DIRECTIONS. `head` is None for the layer itself.
    """

    setting: str
    kind: str
    layer: int
    head: int | None

    @property
    def group(self) -> str:
        """Setting and kind, as in the column `group` of `measures`."""
        return f"{self.setting} {self.kind}"

    @property
    def mirrored(self) -> bool:
        """Whether links are from each word of the source, instead of each word of the target."""
        return self.setting == "backward"


class ModelLinks(NamedTuple):
    """The links of one model: for every pair, the source word of each target word (−1: none), per column.

    For a mirrored column, the target word of each source word; J is then the longer side. `notes` name layers without links.
    """

    subject: str
    columns: tuple[Column, ...]
    best: Mapping[int, Int[np.ndarray, "C J"]]
    notes: tuple[str, ...] = ()
    stack: str = "cross"


SCORE_KINDS = (*KINDS, "contribution")


def _turn(links: Iterable[Link], mirrored: bool) -> set[Link]:
    """Links with source and target exchanged if `mirrored`."""
    return {(b, a) if mirrored else (a, b) for a, b in links}


def _columns(projections: Iterable[Projections], settings: Iterable[str]) -> tuple[Column, ...]:
    """The columns for layers whose norms can be computed, and for their heads."""
    return tuple(
        Column(setting, kind, p.address.layer, head)
        for p in projections
        if p.w_o is not None
        for setting in settings
        for kind in SCORE_KINDS
        for head in (None, *range(1, len(p.w_o) + 1))
    )


def _scores(trace: Trace) -> tuple[Float[torch.Tensor, "B H1 T S"], ...]:
    """Scores of the layer, then of its heads, for each kind in BY."""
    heads, layer = contributions(trace)
    return (*views(trace), torch.cat([layer[:, None], heads], 1))


@torch.no_grad()
def link_across(
    subject: Pretrained, pairs: Sequence[SentencePair], batch: int, step: Callable[[int, int], object]
) -> ModelLinks:
    """Links of every pair, the gold target as the decoder's input (teacher forcing); memory is an integer per word and column.

    Raises ModelError if the model has no cross-attention whose norms can be computed.
    """
    from trisect.hf.load import cross_batches

    cross = [p for p in subject.projections() if p.address.stack == "cross"]
    columns = _columns(cross, SETTINGS)
    if not columns:
        problem = f"No norm can be computed in the cross-attention of {subject.name}."
        reason = " ".join(subject.notes) or "Its output is not a plain projection of the values."
        raise ModelError(problem, reason, "Choose another.")
    without = (
        f"Left out, {p.address}: {p.origins['o'].words if 'o' in p.origins else 'no output projection was found'}."
        for p in cross
        if p.w_o is None
    )
    layers = {column.layer for column in columns}
    best: dict[int, Int[np.ndarray, "C J"]] = {}
    for crossed in cross_batches(subject, [(pair.source, pair.target) for pair in pairs], batch)[0]:
        links: dict[int, list[Int[np.ndarray, "N J"]]] = {number: [] for number in crossed.pairs}
        for trace in subject.trace(crossed.batch).traces:
            if trace.stack != "cross" or trace.layer not in layers:
                continue
            kinds = _scores(trace)
            for row, number in enumerate(crossed.pairs):
                words = len(pairs[number].source), len(pairs[number].target)
                source = crossed.source[row][trace.key_real[row]]
                queries = int(trace.query_real[row].sum())
                targets = (crossed.shifted[row, :queries], crossed.predicted[row, :queries])
                for target, scores in product(targets, kinds):
                    by_word = word_scores(scores[row, :, :queries, : len(source)], target, source, words)
                    links[number].append(best_links(by_word, words[0]))
        best |= {number: np.concatenate(parts).astype(np.int16) for number, parts in links.items()}
        step(len(best), len(pairs))
    return ModelLinks(subject.name, columns, best, (*subject.notes, *without))


@torch.no_grad()
def _link_within(
    subject: Pretrained, texts: Sequence[SpannedText], batch: int, step: Callable[[int, int], object]
) -> ModelLinks:
    """Links between the two parts of each text, in the first stack with self-attention.

    Only words of the other part can be linked: attention to a word's own part, to special tokens and outside words does not count.
    Texts longer than the model's window are left out. Raises ModelError without such a stack, and for a token that spans several
    words.
    """
    from trisect.hf.load import piece_spans

    projections = [p for p in subject.projections() if not crosses(p.address.stack)]
    stack = projections[0].address.stack if projections else ""
    columns = _columns((p for p in projections if p.address.stack == stack), DIRECTIONS)
    if not columns:
        words = " ".join(subject.notes) or subject.shape.describe()
        raise ModelError(f"No norm can be computed in the self-attention of {subject.name}.", words, "Choose another.")
    layers = {column.layer for column in columns}
    owners = [_word_of_pieces(subject.name, text, piece_spans(subject, text[0])) for text in texts]
    order, best = sorted(range(len(texts)), key=lambda n: (owners[n].shape[1], n)), dict[int, Int[np.ndarray, "C J"]]()
    for read in subject.batches((texts[n][0] for n in order), batch):
        sides: dict[int, Int[torch.Tensor, "2 T"]] = {}
        for row, (place, start) in enumerate(read.rows):
            inner = (read.source.real[row] & ~read.source.special[row]).nonzero()[:, 0].tolist()
            owner = torch.from_numpy(owners[order[place]])
            if inner and not start and inner[-1] - inner[0] + 1 == owner.shape[1]:  # the text is one window
                sides[row] = torch.full((2, read.source.real.shape[1]), NO_LINK)
                sides[row][:, inner[0] : inner[-1] + 1] = owner
        links: dict[int, list[Int[np.ndarray, "N J"]]] = {row: [] for row in sides}
        for trace in subject.trace(read).traces if sides else ():
            if trace.stack != stack or trace.layer not in layers:
                continue
            kinds = _scores(trace)
            for row, (source, target) in sides.items():
                sources, targets = map(len, texts[order[read.rows[row][0]]][1:])
                of_row = [scores[row] for scores in kinds]
                ahead = [word_scores(s, target, source, (sources, targets))[..., :sources] for s in of_row]
                back = [word_scores(s, source, target, (targets, sources))[..., :targets] for s in of_row]
                # by direction, then kind, as the columns are
                for by_kind in zip(*map(link_directions, ahead, back), strict=True):
                    for best_of in by_kind:
                        missing = max(sources, targets) - best_of.shape[1]
                        links[row].append(np.pad(best_of, ((0, 0), (0, missing)), constant_values=NO_LINK))
        best |= {order[read.rows[row][0]]: np.concatenate(parts).astype(np.int16) for row, parts in links.items()}
        step(len(best), len(texts))
    return ModelLinks(subject.name, columns, best, tuple(subject.notes), stack)


def _word_of_pieces(name: str, placed: SpannedText, pieces: Sequence[Link]) -> Int[np.ndarray, "2 P"]:
    """For each token of a text, given as a span of characters, its source word and its target word (from 0), −1 for none."""
    text, *sides = placed
    owner = np.full((2, len(pieces)), NO_LINK)
    for place, (start, end) in enumerate(pieces):
        piece = text[start:end]
        start += len(piece) - len(piece.lstrip())
        words = [(side, w) for side in (0, 1) for w, (a, b) in enumerate(sides[side]) if max(a, start) < min(b, end)]
        if len(words) > 1:
            reason = "A token that spans several words cannot be aligned to one."
            problem = f"The token {piece!r} of {text[:60]!r} spans several words in {name}."
            raise ModelError(problem, reason, "Choose words with --word that no token extends beyond.")
        for side, word in words:
            owner[side, place] = word
    return owner


def _gold(pair: SentencePair, mirrored: bool = False) -> Any:
    """The gold links of a pair as `count_hits` expects them; `mirrored`: as links from target to source."""
    sure, possible = (_turn(links or (), mirrored) for links in (pair.sure, pair.possible))
    source, target = len(pair.source), len(pair.target)
    return gold_tables(sure, possible, (target, source) if mirrored else (source, target))


def _hits(linked: ModelLinks, pairs: Sequence[SentencePair], numbers: Sequence[int]) -> Float[np.ndarray, "N C 4"]:
    """Counts against the gold links of the given pairs, as measure.alignment.error_rates expects them."""
    hits = np.zeros((len(numbers), len(linked.columns), 4))
    mirrored = np.array([column.mirrored for column in linked.columns])
    for counts, number in zip(hits, numbers, strict=True):
        pair = pairs[number]
        for turned, words in ((False, len(pair.target)), (True, len(pair.source))):
            if (which := mirrored == turned).any():
                counts[which] = count_hits(linked.best[number][which, :words], _gold(pair, turned))
    return hits


LINKING = "Word alignments are read from attention between a source and a target."
LENGTHS = (10, 15, 20, 30)  # words of the longer side; the last group has all longer pairs
DIAGONAL = "diagonal"
VALUE_DRAWS = 2  # draws, if only the value itself is used
SETTING_WORDS = {"awi": "input", "awo": "output"}
Counts: TypeAlias = Float[np.ndarray, "N C 4"]
Values: TypeAlias = Float[np.ndarray, "R ..."]


@dataclass(frozen=True, eq=False)
class AlignmentCounts:
    """Counts of the same N sentence pairs for one model or several, with their columns and baselines.

    `chosen` is each model's best layer on other pairs, by setting and kind; empty without such pairs.
    `lengths` are the words of each pair's longer side, `diagonal` the counts of links along the diagonal.
    """

    models: tuple[str, ...]
    columns: tuple[Column, ...]
    counts: tuple[Counts, ...]
    chosen: tuple[Mapping[tuple[str, str], int], ...]
    lengths: Int[np.ndarray, " N"]
    diagonal: Float[np.ndarray, "N 4"]
    stack: str = "cross"

    @property
    def settings(self) -> tuple[str, ...]:
        """All settings of the columns."""
        return tuple(dict.fromkeys(c.setting for c in self.columns))

    @property
    def kinds(self) -> tuple[str, ...]:
        """All kinds of the columns."""
        return tuple(dict.fromkeys(c.kind for c in self.columns))

    @property
    def name(self) -> str:
        """Names of the models, joined, for the column `subject`."""
        return ", ".join(self.models)

    def where(self, **attributes: Any) -> list[int]:
        """Indices of the columns with the given attributes."""
        return [i for i, c in enumerate(self.columns) if all(getattr(c, k) == v for k, v in attributes.items())]

    def only(self, model: int) -> AlignmentCounts:
        """The counts of one model."""
        chosen = self.chosen[model : model + 1]
        return replace(self, models=(self.models[model],), counts=(self.counts[model],), chosen=chosen)

    @property
    def pairs(self) -> list[range]:
        """The sentence pairs by number, the same for every model."""
        return [range(len(self.lengths))] * len(self.models)

    def rates(self, redrawn: CrossedBootstrap, setting: str, kind: str | None) -> CrossedEstimate:
        """The error rate of a setting and kind, mean over layers; without a kind, norms less weights."""
        shares = np.zeros(len(self.columns))
        for name, sign in _signs(kind).items():
            layers = self.where(setting=setting, kind=name, head=None)
            shares[layers] = sign / len(layers)
        used = np.flatnonzero(shares)
        counts = [array[:, used] for array in self.counts]
        return redrawn(self.pairs, lambda model, times: error_rates(_sums(counts[model], times)) @ shares[used])


def _signs(kind: str | None) -> dict[str, float]:
    """Signs of the kinds in a sum; without a kind, norm less weight."""
    return {kind: 1.0} if kind else {"norm": 1.0, "weight": -1.0}


def _sums(counts: Counts, times: Float[np.ndarray, "R N"]) -> Float[np.ndarray, "R C 4"]:
    return (times @ counts.reshape(len(counts), -1)).reshape(len(times), *counts.shape[1:])


def choose_layers(counts: Counts, columns: Sequence[Column]) -> dict[tuple[str, str], int]:
    """The layer with the lowest error rate for every setting and kind, the first if several are equal."""
    rates = np.nan_to_num(error_rates(counts.sum(0)), nan=2.0)
    best = {}
    for pair in dict.fromkeys(c[:2] for c in columns):
        places = [i for i, c in enumerate(columns) if c[:2] == pair and c.head is None]
        best[pair] = columns[min(places, key=lambda i: rates[i])].layer
    return best


def alignment_rows(scored: AlignmentCounts, redrawn: CrossedBootstrap) -> list[NewRow]:
    """Every row of `measures` about gold links; n is the number of sentence pairs.

    The group is a setting and a kind, such as 'awi norm', or of differences (norm less weight) the setting alone.
    aer, precision, recall (per layer; aer also per head, and without a layer: mean over layers), aer_difference,
    aer_best and aer_best_difference (the layer chosen on other pairs; `at` has it for a single model), aer_by_length
    (mean over layers; `at` the most words that the longer side has, None in the last), and of several models aer_sd,
    the standard deviation over them (n: how many), and their own rows. The subject 'diagonal' needs no model. Within one text
    single heads have no intervals, and aer_head, precision_head and recall_head are of the head with the lowest rate in the
    other half of the texts (every second one); layer and head are named where both halves choose the same.
    """
    rows = _rows(scored, redrawn)
    if len(scored.models) > 1:
        by_model = [scored.only(i) for i in range(len(scored.models))]
        rows += [row for model in by_model for row in _rows(model, redrawn)]
        rates = np.stack([error_rates(counts.sum(0)) for counts in scored.counts])
        spreads = [(_place(scored.columns[i]), rates[:, i]) for i in scored.where(head=None)]
        for setting, kind in product(scored.settings, scored.kinds):
            mean = rates[:, scored.where(setting=setting, kind=kind, head=None)].mean(1)
            spreads.append(({"group": f"{setting} {kind}"}, mean))
        columns = {"subject": scored.name, "stack": scored.stack, "measure": "aer_sd", "n": len(scored.models)}
        rows += [columns | place | {"value": nan_to_none(values.std(ddof=1))} for place, values in spreads]
    straight = redrawn([range(len(scored.lengths))], lambda _, times: error_rates(times @ scored.diagonal))
    return [*rows, {"subject": DIAGONAL, "stack": scored.stack, "measure": "aer", **straight.row()}]


def _rows(scored: AlignmentCounts, redrawn: CrossedBootstrap) -> list[NewRow]:
    """Rows of all models together, or of one model."""
    columns, within = scored.columns, scored.stack != "cross"
    norms, layers = scored.where(kind="norm", **({"head": None} if within else {})), scored.where(head=None)
    places = layers if within else list(range(len(columns)))  # heads within texts would need thousands of intervals
    weights = [columns.index(columns[i]._replace(kind="weight")) for i in norms]

    def everything(model: int, times: Float[np.ndarray, "R N"]) -> Values:
        sums = _sums(scored.counts[model], times)
        rates, by_layer = error_rates(sums), sums[:, layers]
        differences = rates[:, norms] - rates[:, weights]
        return np.concatenate([rates[:, places], differences, precisions(by_layer), recalls(by_layer)], 1)

    estimates = redrawn(scored.pairs, everything)  # all from the same sums
    names = [_place(columns[i]) | {"measure": "aer"} for i in places]
    names += [_place(columns[i]) | {"group": columns[i].setting, "measure": "aer_difference"} for i in norms]
    names += [_place(columns[i]) | {"measure": name} for name in ("precision", "recall") for i in layers]
    rows: list[NewRow] = [row | estimates.at(i).row() for i, row in enumerate(names)]
    rows += _head_rows(scored, redrawn) if within else []
    for name, estimate in _statistics(scored, redrawn).items():
        measure, setting, *kind = name.split("/")
        row: NewRow = {"measure": measure, "group": " ".join([setting, *kind])}
        if measure == "aer_best" and len(scored.models) == 1:
            row["at"] = float(scored.chosen[0][setting, kind[0]])
        rows.append(row | estimate.row())
    for limit, which in buckets(scored.lengths).items():
        counts = tuple(array[which] for array in scored.counts)
        part = replace(scored, counts=counts, lengths=scored.lengths[which], diagonal=scored.diagonal[which])
        for setting, kind in product(scored.settings, scored.kinds):
            row = {"measure": "aer_by_length", "group": f"{setting} {kind}", "at": limit}
            rows.append(row | part.rates(redrawn, setting, kind).row())
    return [{"subject": scored.name, "stack": scored.stack} | row for row in rows]


def _head_rows(scored: AlignmentCounts, redrawn: CrossedBootstrap) -> list[NewRow]:
    """For links within texts: rates of every head, and of the best head on the other half of the texts."""
    rates, rows = {"aer": error_rates, "precision": precisions, "recall": recalls}, list[NewRow]()
    heads = [i for i, c in enumerate(scored.columns) if c.head is not None]
    totals = np.stack([counts.sum(0) for counts in scored.counts])
    for (name, rate), i in product(rates.items(), heads):
        value = nan_to_none(np.mean(rate(totals[:, i])))
        rows.append(_place(scored.columns[i]) | {"measure": name, "value": value, "n": len(scored.lengths)})
    if len(scored.lengths) < 2:
        return rows
    half = np.arange(len(scored.lengths)) % 2
    for setting, kind in product(scored.settings, scored.kinds):
        places = np.array([i for i in scored.where(setting=setting, kind=kind) if scored.columns[i].head is not None])
        chosen, counts = set[Column](), list[Float[np.ndarray, "N 4"]]()
        for counts_of_model in scored.counts:
            others = [error_rates(counts_of_model[half != side][:, places].sum(0)) for side in (0, 1)]
            best = places[[np.nan_to_num(rate, nan=2.0).argmin() for rate in others]]
            chosen |= {scored.columns[i] for i in best}
            counts.append(counts_of_model[np.arange(len(half)), best[half]])
        place = _place(chosen.pop()) if len(chosen) == 1 else {"group": f"{setting} {kind}"}
        for name, rate in rates.items():
            values = redrawn(scored.pairs, lambda model, times, rate=rate, counts=counts: rate(times @ counts[model]))
            rows.append(place | {"measure": f"{name}_head"} | values.row())
    return rows


def _statistics(scored: AlignmentCounts, redrawn: CrossedBootstrap) -> dict[str, CrossedEstimate]:
    """Error rates by name: aer/SETTING/KIND and aer_difference/SETTING, means over layers, and aer_best likewise."""

    def of_best(model: int, times: Float[np.ndarray, "R N"], setting: str, kind: str | None) -> Values:
        """The rate in the layer chosen on the trial pairs."""
        total = np.zeros(len(times))
        for name, sign in _signs(kind).items():
            (place,) = scored.where(setting=setting, kind=name, layer=scored.chosen[model][setting, name], head=None)
            total += sign * error_rates(times @ scored.counts[model][:, place])
        return total

    rates: dict[str, CrossedEstimate] = {}
    best: dict[str, CrossedEstimate] = {}
    for setting, kind in product(scored.settings, (*scored.kinds, None)):
        tail = f"/{setting}/{kind}" if kind else f"_difference/{setting}"
        rates[f"aer{tail}"] = scored.rates(redrawn, setting, kind)
        if all(scored.chosen) and scored.chosen:
            best[f"aer_best{tail}"] = redrawn(scored.pairs, partial(of_best, setting=setting, kind=kind))
    return rates | best


def judge_alignment(scored: AlignmentCounts | None, about: Mapping[str, object]) -> pl.DataFrame:
    """The table `claims`: C-5 on each model's error rates, by Student's t over models that differ in their seed alone.

    A setting in which any model's links are no better than the diagonal's, by weight and by norm, gets no verdict.
    """
    values: dict[str, list[float]] = {}
    barred = {}
    if scored is not None:
        for model in range(len(scored.models)):
            for name, estimate in _statistics(scored.only(model), CrossedBootstrap(0, VALUE_DRAWS)).items():
                values.setdefault(name.replace("/", "_"), []).append(float(estimate.value))
        straight = float(error_rates(scored.diagonal.sum(0)))
        for setting, rate in product(SETTINGS, ("aer", "aer_best")):
            rates = [values[f"{rate}_{setting}_{kind}"] for kind in KINDS if f"{rate}_{setting}_{kind}" in values]
            if above := sum(min(sample) >= straight for sample in zip(*rates, strict=True)):
                barred[f"{rate}_difference_{setting}"] = (
                    f"the models do not align where the word is the decoder's {SETTING_WORDS[setting]}: {above} of {len(rates[0])} "
                    f"are no better than the diagonal (AER {straight:.3f})"
                )
    return judge_models(ALIGNMENT, values, about, barred)


def buckets(lengths: Int[np.ndarray, " N"]) -> dict[float | None, Int[np.ndarray, " M"]]:
    """Sentence pairs by length of their longer side: at most so many words, None for longer ones."""
    place = np.searchsorted(LENGTHS, lengths)
    limits = (*map(float, LENGTHS), None)
    return {limits[i]: np.flatnonzero(place == i) for i in range(len(limits)) if (place == i).any()}


def _place(column: Column) -> NewRow:
    return {"layer": column.layer, "head": column.head, "group": column.group}


def _link_rows(
    models: Sequence[ModelLinks], pairs: Sequence[SentencePair], numbers: Sequence[int], redrawn: CrossedBootstrap
) -> list[NewRow]:
    """Rows of `measures` without gold links, per layer.

    linked: the share of target words with a link; agreement: the share with the same link (or none) by weight and by norm.
    """
    columns = models[0].columns
    layers = [i for i, c in enumerate(columns) if c.head is None]
    norms = [i for i in layers if columns[i].kind == "norm"]
    weights = [columns.index(columns[i]._replace(kind="weight")) for i in norms]
    mirrored = np.array([columns[i].mirrored for i in (*layers, *norms)])
    words = np.array([np.where(mirrored, len(pairs[n].source), len(pairs[n].target)) for n in numbers], dtype=float)

    def count(best: Int[np.ndarray, "C J"], words: Float[np.ndarray, " K"]) -> Float[np.ndarray, " K"]:
        linked, same = best[layers] != NO_LINK, best[norms] == best[weights]
        is_word = np.arange(best.shape[1]) < words[:, None]  # a row is as long as the longer side
        return (np.concatenate([linked, same]) & is_word).sum(-1).astype(float)

    counts = [np.stack([count(model.best[n], words[i]) for i, n in enumerate(numbers)]) for model in models]
    members = [range(len(numbers))] * len(models)
    shares = redrawn(members, lambda model, times: (times @ counts[model]) / (times @ words))
    rows = [_place(columns[i]) | {"measure": "linked"} for i in layers]
    rows += [_place(columns[i]) | {"group": columns[i].setting, "measure": "agreement"} for i in norms]
    subject = {"subject": ", ".join(model.subject for model in models), "stack": models[0].stack}
    return [subject | row | shares.at(i).row() for i, row in enumerate(rows)]


MIN_WORDS, MAX_WORDS = 4, 14  # words of either side of a pair that can be shown


def choose_picture(
    linked: ModelLinks,
    pairs: Sequence[SentencePair],
    numbers: Sequence[int],
    chosen: Mapping[tuple[str, str], int] | None,
) -> PicturedPair | None:
    """The first pair whose sides are short enough for the page, if there is one. Words and pairs count from 1.

    Links are those of the layers chosen on other pairs; without these, of the layer before the last.
    """
    fits = (n for n in numbers if all(MIN_WORDS <= len(side) <= MAX_WORDS for side in pairs[n].sides))
    if (n := next(fits, None)) is None:
        return None
    before_last = list(dict.fromkeys(c.layer for c in linked.columns))[-2:][0]
    setting = linked.columns[0].setting
    layers = {kind: before_last if chosen is None else chosen[setting, kind] for kind in KINDS}
    weight, norm = (
        _plain(as_links(linked.best[n][linked.columns.index(Column(setting, kind, layers[kind], None))]))
        for kind in KINDS
    )
    return PicturedPair(
        title=f"Pair {n + 1}",
        source=list(pairs[n].source),
        target=list(pairs[n].target),
        sure=_plain(pairs[n].sure),
        possible=_plain(pairs[n].possible),
        layers=layers,
        weight=weight,
        norm=norm,
    )


def _plain(links: Iterable[tuple[int, int]] | None) -> list[list[int]]:
    """Links counted from 1, sorted, as JSON-ready data."""
    return sorted([source + 1, target + 1] for source, target in links or ())


Chosen = tuple[Mapping[tuple[str, str], int], ...]  # a layer by setting and kind, for each model
LINKS = {
    "subject": TEXT,
    "pair": INTEGER,  # from 1, as the lines of the files
    "setting": TEXT,  # awi, awo
    "kind": TEXT,  # weight, norm, contribution
    "layer": INTEGER,
    "source": INTEGER,  # words from 1
    "target": INTEGER,
}


def measure(settings: AlignSettings, context: RunContext) -> Measured[AlignFacts]:
    """Word alignment from cross-attention (definitions C5).

    The models are one encoder–decoder or several that differ in their seed alone. Intervals and the claim resample
    pairs, and models across them. The folder `links` beside the tables has a file for every model, setting, kind and
    layer, as Pharaoh (from 0) and .talp (from 1). Raises ModelError for a model without cross-attention, CorpusError for files
    that do not fit together.
    """
    bitext, texts = read_bitext(settings) if settings.bitext is None else (settings.bitext, ())
    subjects = tuple(
        check_pretrained(subject) if texts else check_crossing(subject, LINKING) for subject in context.subjects
    )
    pairs, valid = bitext.test, bitext.valid
    if not pairs:
        raise CorpusError(f"{bitext.name} has no test pairs.", "Test pairs are the ones to align.", "Give some.")
    test = [_link(subject, pairs, settings.batch, context, texts) for subject in subjects]
    for linked in test[1:]:
        if linked.columns != test[0].columns:
            problem = f"{linked.subject} has other layers or heads than {test[0].subject}."
            reason = "Several models count as one recipe with several seeds, and are averaged."
            raise ModelError(problem, reason, "Give one at a time.")
    numbers = [n for n in range(len(pairs)) if all(n in linked.best for linked in test)]
    if not numbers:
        problem = f"No pair of {bitext.name} fits into {', '.join(linked.subject for linked in test)}."
        raise ModelError(problem, "They have more tokens than the model's window.", "Give shorter sentences.")
    redrawn, gold = CrossedBootstrap(settings.seed, settings.draws), pairs[0].sure is not None
    chosen: Chosen = ()
    if gold and valid and valid[0].sure is not None:
        trial = [_link(subject, valid, settings.batch, context) for subject in subjects]
        chosen = tuple(choose_layers(_hits(linked, valid, sorted(linked.best)), linked.columns) for linked in trial)
    scored = _score(test, pairs, numbers, chosen) if gold else None
    rows = _link_rows(test, pairs, numbers, redrawn)
    rows += [] if scored is None else alignment_rows(scored, redrawn)
    picture = choose_picture(test[0], pairs, numbers, chosen[0] if chosen else None)
    facts = _facts(subjects, bitext, len(numbers), settings, chosen, picture)

    def judge(about: About[AlignFacts]) -> pl.DataFrame:
        fields = ("models", "corpus", "corpus_fingerprint", "pairs", "seed")
        return judge_alignment(scored, {name: getattr(about.facts, name) for name in fields})

    notes = [*bitext.notes]
    if (lost := len(pairs) - len(numbers)) > 0:
        notes.append(
            f"{lost} of {len(pairs)} sentence pairs have more tokens than the model's window, and are left out."
        )
    notes += (note for linked in test for note in linked.notes)
    folder = context.folder / "links"
    tables = {"measures": frame("measures", rows), "links": _write_links(folder, test, len(pairs))}
    judge_by, unit = (None, None) if texts else (judge, "model")  # the claim is about translators
    return Measured(tables, facts, tuple(dict.fromkeys(notes)), judge_by, unit, paths={"links": folder})


def read_bitext(settings: AlignSettings) -> tuple[Bitext, tuple[SpannedText, ...]]:
    """The sentence pairs of the settings' files (those of `trial` as the valid split), and the texts that contain both sides, if any.

    Raises CorpusError if they cannot be read, or do not fit together.
    """
    source = Path(settings.source)
    if settings.marker is not None or settings.spans is not None:
        return _pairs_within(settings, source)
    if settings.target is None:
        reason = "Source and target are two files; or --marker or --spans says where the two are in each text."
        todo = "Give --target FILE, --marker TEXT or --spans FILE."
        raise CorpusError(f"{source} has no target.", reason, todo)
    target = Path(settings.target)
    pairs, notes = read_pairs(source, target, settings.gold, settings.base)
    valid: tuple[SentencePair, ...] = ()
    if settings.trial is not None:
        source_file, target_file, links = settings.trial
        valid, more = read_pairs(source_file, target_file, links, settings.base)
        notes = (*notes, *more)
    if settings.limit is not None:
        pairs = pairs[: settings.limit]
        notes = (*notes, f"Only the first {settings.limit:,} sentence pairs are read.")
    return make_bitext(f"{source.name} and {target.name}", {"valid": valid, "test": pairs}, notes), ()


def _pairs_within(settings: AlignSettings, path: Path) -> tuple[Bitext, tuple[SpannedText, ...]]:
    """The pairs within single texts, and those texts."""
    options = {"--target": settings.target, "--trial": settings.trial, "--marker": settings.marker and settings.spans}
    if wrong := [name for name, value in options.items() if value is not None]:
        reason = "Source and target are in one text, on both sides of a marker or at spans."
        problem = f"{wrong[0]} was given with --marker or --spans."
        if wrong[0] == "--marker":
            problem = "--marker and --spans were both given."
        raise CorpusError(problem, reason, f"Leave {wrong[0]} out, or the others.")
    texts = read_texts(path, settings.marker, settings.spans, settings.word)
    notes = [f"Words of the texts are the matches of {settings.word}."]
    links: Sequence[tuple[Any, Any]] = [(None, None)] * len(texts)
    if settings.gold is not None:
        links, _, note = read_links(Path(settings.gold), [(len(s), len(t)) for _, s, t in texts], settings.base)
        notes.append(note)
    pairs = tuple(
        SentencePair(tuple(text[a:b] for a, b in source), tuple(text[a:b] for a, b in target), *gold)
        for (text, source, target), gold in zip(texts, links, strict=True)
    )[: settings.limit]
    if settings.limit is not None:
        notes.append(f"Only the first {settings.limit:,} texts are read.")
    return make_bitext(path.name, {"test": pairs}, notes), texts[: settings.limit]


def _link(
    subject: Pretrained,
    pairs: Sequence[SentencePair],
    batch: int,
    context: RunContext,
    texts: Sequence[SpannedText] = (),
) -> ModelLinks:
    with context.progress(f"Reading pairs with {subject.name}") as step:
        return _link_within(subject, texts, batch, step) if texts else link_across(subject, pairs, batch, step)


def _score(
    models: Sequence[ModelLinks], pairs: Sequence[SentencePair], numbers: Sequence[int], chosen: Chosen
) -> AlignmentCounts:
    """Counts of all models against gold links, and those of the diagonal."""
    words = [(len(pairs[n].source), len(pairs[n].target)) for n in numbers]
    straight = np.stack([count_hits(diagonal(sizes), _gold(pairs[n])) for n, sizes in zip(numbers, words, strict=True)])
    counts = tuple(_hits(linked, pairs, numbers) for linked in models)
    names, (first, *_) = tuple(linked.subject for linked in models), models
    return AlignmentCounts(names, first.columns, counts, chosen, np.max(words, axis=1), straight, first.stack)


def _facts(
    subjects: Sequence[Pretrained],
    bitext: Bitext,
    pairs: int,
    settings: AlignSettings,
    chosen: Chosen,
    picture: PicturedPair | None,
) -> AlignFacts:
    names, gold = [subject.name for subject in subjects], bitext.test[0].sure is not None
    return AlignFacts(
        ", ".join(names),
        {subject.name: subject.fingerprint for subject in subjects},
        subjects[0].shape.describe(),
        bitext.name,
        bitext.fingerprint,
        len(bitext.valid),
        gold,
        pairs,
        settings.seed,
        settings.draws,
        {
            name: {f"{setting.upper()} by {kind}": layer for (setting, kind), layer in layers.items()}
            for name, layers in zip(names, chosen, strict=False)
        },
        picture,
        settings.marker or ("spans" if settings.spans is not None else ""),
    )


def _write_links(folder: Path, models: Sequence[ModelLinks], pairs: int) -> pl.DataFrame:
    """Write a file per model, setting, kind, layer and format, with a line for each of `pairs`; returns all links as a table.

    Words and pairs of the table count from 1.
    """
    rows: list[tuple[str | int, ...]] = []
    for number, linked in enumerate(models, start=1):
        mark = f"model-{number}-" if len(models) > 1 else ""
        for i, (setting, kind, layer, head) in enumerate(linked.columns):
            if head is not None:
                continue
            best = (linked.best[n][i] if n in linked.best else () for n in range(pairs))
            lines = [_turn(as_links(np.array(links)), linked.columns[i].mirrored) for links in best]
            for ending, base in ((".pharaoh", 0), (".talp", 1)):
                path = safe_join(folder, f"{mark}{setting}-{kind}-layer-{layer}{ending}")
                write_links(path, [(links, ()) for links in lines], base)
            for pair, links in enumerate(lines, start=1):
                rows += [(linked.subject, pair, setting, kind, layer, s + 1, t + 1) for s, t in sorted(links)]
    return pl.DataFrame(rows, schema=LINKS, orient="row")
