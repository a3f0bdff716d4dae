"""Rows of an alignment: error rates, what norms change, best layers and lengths, with sentence pairs and models resampled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import polars as pl
from jaxtyping import Float, Int

from trisect.claims.models import judge_models
from trisect.core.tables import NewRow
from trisect.experiments.align.links import Column, Linked
from trisect.measure.alignment import KINDS, NONE, error_rates, precisions, recalls
from trisect.papers.norms import SETTINGS
from trisect.papers.norms_revised import ALIGNMENT
from trisect.stats.bootstrap import CrossedBootstrap, CrossedEstimate
from trisect.stats.tested import number

if TYPE_CHECKING:
    from trisect.text.bitext import SentencePair

LENGTHS = (10, 15, 20, 30)  # words of the longer side; the last group holds what is longer
DIAGONAL = "diagonal"
ONCE = 2  # draws, where only the value itself is wanted
Counts: TypeAlias = Float[np.ndarray, "N C 4"]
Values: TypeAlias = Float[np.ndarray, "R C"]


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
        chosen = self.chosen[model : model + 1]
        one = (self.models[model],), self.columns, (self.counts[model],), chosen
        return Scored(*one, self.lengths, self.diagonal)


def choose_layers(counts: Counts, columns: Sequence[Column]) -> dict[tuple[str, str], int]:
    """The layer with the lowest error rate for every setting and kind, the first of equals."""
    rates = error_rates(counts.sum(0))
    found = {}
    for setting in SETTINGS:
        for kind in KINDS:
            places = [i for i, c in enumerate(columns) if c[:2] == (setting, kind) and c.head is None]
            found[setting, kind] = columns[min(places, key=lambda i: (np.nan_to_num(rates[i], nan=2.0), i))].layer
    return found


def alignment_rows(scored: Scored, redrawn: CrossedBootstrap) -> list[NewRow]:
    """Every row of `measures` about gold links; n is the number of sentence pairs.

    The group is a setting and a kind, such as 'awi norm', or of differences (norm less weight) the setting alone.
    aer, precision, recall (per layer; aer also per head, and without a layer: mean over layers), aer_difference,
    aer_best and aer_best_difference (the layer chosen on other pairs; `at` it, where there is one model), aer_by_length
    (mean over layers; `at` the most words that the longer side has, null in the last), and of several models aer_sd,
    the standard deviation over them (n: how many), and their own rows. The subject 'diagonal' needs no model.
    """
    rows = _rows(scored, redrawn)
    if len(scored.models) > 1:
        alone = [scored.only(i) for i in range(len(scored.models))]
        rows += [row for one in alone for row in _rows(one, redrawn)]
        rows += _spread_rows(scored)
    found = redrawn([range(len(scored.lengths))], lambda _, times: error_rates(times @ scored.diagonal))
    return [*rows, {"subject": DIAGONAL, "stack": "cross", "measure": "aer", **found.row()}]


def _rows(scored: Scored, redrawn: CrossedBootstrap) -> list[NewRow]:
    own: NewRow = {"subject": scored.name, "stack": "cross"}
    rows: list[NewRow] = []
    found, named = _everything(scored, redrawn), _column_rows(scored)
    rows += [row | found.at(i).row() for i, row in enumerate(named)]
    for name, found in statistics(scored, redrawn).items():
        measure, setting, *kind = name.split("/")
        row: NewRow = {"measure": measure, "group": " ".join([setting, *kind])}
        if measure == "aer_best" and len(scored.models) == 1:
            row["at"] = float(scored.chosen[0][setting, kind[0]])
        rows.append(row | found.row())
    for most, which in buckets(scored.lengths).items():
        some = _subset(scored, which)
        for setting in SETTINGS:
            for kind in KINDS:
                found = _mean(some, redrawn, setting, kind)
                row = {"measure": "aer_by_length", "group": f"{setting} {kind}", "at": most}
                rows.append(row | found.row())
    return [own | row for row in rows]


def statistics(scored: Scored, redrawn: CrossedBootstrap) -> dict[str, CrossedEstimate]:
    """Error rates of the whole by name: aer/SETTING/KIND and aer_difference/SETTING, means over layers, and aer_best likewise."""
    found: dict[str, CrossedEstimate] = {}
    for setting in SETTINGS:
        for kind in KINDS:
            found[f"aer/{setting}/{kind}"] = _mean(scored, redrawn, setting, kind)
        found[f"aer_difference/{setting}"] = _mean(scored, redrawn, setting, None)
    if all(scored.chosen) and scored.chosen:
        for setting in SETTINGS:
            for kind in (*KINDS, None):
                of = partial(_best_of, scored, setting, kind)
                name = f"aer_best/{setting}/{kind}" if kind else f"aer_best_difference/{setting}"
                found[name] = redrawn(_pairs(scored), of)
    return found


def judge_alignment(scored: Scored | None, about: Mapping[str, object]) -> pl.DataFrame:
    """The table `claims`: C-5 on each model's error rates, by Student's t over models that were trained alike.

    No verdict rests on a setting in which some model's links are no better than the diagonal's, by weight and by norm.
    """
    values: dict[str, list[float]] = {}
    for model in range(0 if scored is None else len(scored.models)):
        assert scored is not None
        for name, one in statistics(scored.only(model), CrossedBootstrap(0, ONCE)).items():
            values.setdefault(name.replace("/", "_"), []).append(float(one.value))
    return judge_rates(values, None if scored is None else float(error_rates(scored.diagonal.sum(0))), about)


def judge_rates(
    values: Mapping[str, Sequence[float]], diagonal: float | None, about: Mapping[str, object]
) -> pl.DataFrame:
    """The same from error rates by name, one a model, and that of the diagonal (null: nothing was measured)."""
    return judge_models(ALIGNMENT, values, about, {} if diagonal is None else _not_aligned(values, diagonal))


WHERE = {"awi": "input", "awo": "output"}


def _not_aligned(values: Mapping[str, Sequence[float]], straight: float) -> dict[str, str]:
    """By the name of a difference of error rates, why it is not judged: a model that does not align in that setting."""
    found = {}
    for setting in SETTINGS:
        for rate, difference in (("aer", "aer_difference"), ("aer_best", "aer_best_difference")):
            rates = [values[f"{rate}_{setting}_{kind}"] for kind in KINDS if f"{rate}_{setting}_{kind}" in values]
            above = sum(min(of) >= straight for of in zip(*rates, strict=True))
            if above:
                found[f"{difference}_{setting}"] = (
                    f"the models do not align where the word is the decoder's {WHERE[setting]}: {above} of {len(rates[0])} "
                    f"are no better than the diagonal (AER {straight:.3f})"
                )
    return found


def buckets(lengths: Int[np.ndarray, " N"]) -> dict[float | None, Int[np.ndarray, " M"]]:
    """Sentence pairs by the words of their longer side: at most so many, and null for what is longer than all."""
    place = np.searchsorted(LENGTHS, lengths)
    most = (*map(float, LENGTHS), None)
    return {most[i]: np.flatnonzero(place == i) for i in range(len(most)) if (place == i).any()}


def _pairs(scored: Scored) -> list[range]:
    """The sentence pairs of every model, which are the same ones."""
    return [range(len(scored.lengths))] * len(scored.models)


def _drawn(
    scored: Scored, redrawn: CrossedBootstrap, of: Callable[[Float[np.ndarray, "R C 4"]], Values]
) -> CrossedEstimate:
    """A function of the columns' counts, for all pairs and in every draw of them."""
    return redrawn(_pairs(scored), lambda model, times: of(_sums(scored.counts[model], times)))


def _sums(counts: Counts, times: Float[np.ndarray, "R N"]) -> Float[np.ndarray, "R C 4"]:
    return (times @ counts.reshape(len(counts), -1)).reshape(len(times), *counts.shape[1:])


def _mean(scored: Scored, redrawn: CrossedBootstrap, setting: str, kind: str | None) -> CrossedEstimate:
    """The error rate of a setting and kind, mean over layers; without a kind that of norms less that of weights."""
    signs = {kind: 1.0} if kind else {"norm": 1.0, "weight": -1.0}
    shares = np.zeros(len(scored.columns))
    for name, sign in signs.items():
        shares[scored.where(setting=setting, kind=name, head=None)] = sign / len(scored.layers)
    used = np.flatnonzero(shares)
    some = _columns(scored, used)
    return _drawn(some, redrawn, lambda sums: error_rates(sums) @ shares[used])


def _column_rows(scored: Scored) -> list[NewRow]:
    """What `_everything` gives, in its order."""
    norms, wholes = scored.where(kind="norm"), scored.where(head=None)
    rows = [_named(c) | {"measure": "aer"} for c in scored.columns]
    rows += [
        _named(scored.columns[i]) | {"group": scored.columns[i].setting, "measure": "aer_difference"} for i in norms
    ]
    return rows + [_named(scored.columns[i]) | {"measure": name} for name in ("precision", "recall") for i in wholes]


def _everything(scored: Scored, redrawn: CrossedBootstrap) -> CrossedEstimate:
    """Error rates of all columns, norm less weight, precisions and recalls of layers: all from the same sums."""
    norms, wholes = scored.where(kind="norm"), scored.where(head=None)
    weights = [scored.columns.index(scored.columns[i]._replace(kind="weight")) for i in norms]

    def of(sums: Float[np.ndarray, "R C 4"]) -> Values:
        rates, layers = error_rates(sums), sums[:, wholes]
        return np.concatenate([rates, rates[:, norms] - rates[:, weights], precisions(layers), recalls(layers)], 1)

    return _drawn(scored, redrawn, of)


def _best_of(
    scored: Scored, setting: str, kind: str | None, model: int, times: Float[np.ndarray, "R N"]
) -> Float[np.ndarray, " R"]:
    """The error rate in the layer that a model was given by other pairs; without a kind norm less weight."""
    total = np.zeros(len(times))
    for name, sign in ({kind: 1.0} if kind else {"norm": 1.0, "weight": -1.0}).items():
        (place,) = scored.where(setting=setting, kind=name, layer=scored.chosen[model][setting, name], head=None)
        total += sign * error_rates(times @ scored.counts[model][:, place])
    return total


def _columns(scored: Scored, used: Sequence[int] | Int[np.ndarray, " K"]) -> Scored:
    columns = tuple(scored.columns[i] for i in used)
    counts = tuple(one[:, list(used)] for one in scored.counts)
    return Scored(scored.models, columns, counts, scored.chosen, scored.lengths, scored.diagonal)


def _subset(scored: Scored, which: Int[np.ndarray, " M"]) -> Scored:
    counts = tuple(one[which] for one in scored.counts)
    return Scored(scored.models, scored.columns, counts, scored.chosen, scored.lengths[which], scored.diagonal[which])


def _spread_rows(scored: Scored) -> list[NewRow]:
    """Standard deviations over models: of every layer, and of means over layers."""
    rates = np.stack([error_rates(one.sum(0)) for one in scored.counts])
    own = {"subject": scored.name, "stack": "cross", "measure": "aer_sd", "n": len(scored.models)}
    rows = [
        own | _named(scored.columns[i]) | {"value": number(rates[:, i].std(ddof=1))} for i in scored.where(head=None)
    ]
    for setting in SETTINGS:
        for kind in KINDS:
            whole = rates[:, scored.where(setting=setting, kind=kind, head=None)].mean(1)
            rows.append(own | {"group": f"{setting} {kind}", "value": number(whole.std(ddof=1))})
    return rows


def _named(column: Column) -> NewRow:
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
    counts = [
        np.stack([np.concatenate([_linked(one.best[n], wholes), _same(one.best[n], norms, weights)]) for n in kept])
        for one in several
    ]
    pairs_of = [range(len(kept))] * len(several)
    found = redrawn(pairs_of, lambda model, times: (times @ counts[model]) / (times @ words)[:, None])
    rows = [_named(columns[i]) | {"measure": "linked"} for i in wholes]
    rows += [_named(columns[i]) | {"group": columns[i].setting, "measure": "agreement"} for i in norms]
    own = {"subject": ", ".join(one.subject for one in several), "stack": "cross"}
    return [own | row | found.at(i).row() for i, row in enumerate(rows)]


def _linked(best: Int[np.ndarray, "C J"], wholes: Sequence[int]) -> Float[np.ndarray, " K"]:
    return (best[wholes] != NONE).sum(-1).astype(float)


def _same(best: Int[np.ndarray, "C J"], norms: Sequence[int], weights: Sequence[int]) -> Float[np.ndarray, " K"]:
    return (best[norms] == best[weights]).sum(-1).astype(float)
