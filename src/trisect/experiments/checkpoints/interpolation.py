"""Interpolate one site's weights between revisions of a model, and evaluate its loss on texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float

from trisect.core.errors import CorpusError
from trisect.core.site import Site
from trisect.core.subject import Batch, RowScores, Subject, Texts
from trisect.lab.articles import find_articles
from trisect.measure.criticality import criticality, mean_difference
from trisect.measure.curves import GridCurves, adaptive_curves, exact_curves
from trisect.stats.bootstrap import drawn_ratios, percentile_interval

if TYPE_CHECKING:
    from torch import nn

    from trisect.hf.checkpoints import ParameterSlice, SliceValues

# summed over each text or article, in nats; without a loss, of relative changes of the output
Losses = Float[np.ndarray, " N"]
InterpolationRow = dict[str, Any]


class RewoundSite(NamedTuple):
    """A site that is rewound, grown to all that its weights serve, and where these weights are."""

    site: Site
    cuts: tuple[ParameterSlice, ...]


class How(NamedTuple):
    """How a curve is drawn: α on its grid, the share of the final loss that counts as a drop, and the bootstrap's seed."""

    points: int
    epsilon: float
    exact: bool
    seed: int

    @property
    def grid(self) -> Float[np.ndarray, " A"]:
        """α from 0 to 1."""
        return np.arange(self.points) / (self.points - 1)


class Earlier(NamedTuple):
    """The initial revision and those in between, by name, and how the values of one at every place are read."""

    read: Callable[[str], list[SliceValues]]
    names: tuple[str, ...]


class Trials:
    """A model and the texts on which every set of weights is tried; the texts are made ready once."""

    def __init__(self, subject: Subject, module: nn.Module, texts: Texts, size: int) -> None:
        self.subject, self.module = subject, module
        self.batches: tuple[Batch, ...] = tuple(subject.batches(texts.texts(), size, scored=True))
        self.passes = {"texts": 0}  # through all of them; changed in place, so that it can be kept
        self.moves = subject.objective == "output"  # no loss: how far the output moves from that of the final weights
        self._clean: list[RowScores] = []
        self._tokens = np.zeros(1 + max((t for b in self.batches for t, _ in b.rows), default=-1))
        self.final = self._losses()
        if not self._tokens.sum():
            known = f"{len(self._tokens)} were read, and in none is a token predicted from others."
            raise CorpusError(f"The texts {texts.name!r} have no loss.", known, "Give texts of more than one token.")
        self.curve = "output_change" if self.moves else "loss_nats"
        self.ends = "" if self.moves else "_nats"
        self.kept = np.flatnonzero(self._tokens > 0)
        self.articles = find_articles(texts, len(self._tokens), self.kept.tolist())
        self.tokens, self.final = self._by_unit(self._tokens), self._by_unit(self.final)

    def losses(self, cuts: Sequence[ParameterSlice], values: SliceValues) -> Losses:
        """Of each article, or text where none is marked, that has a loss, with those values in the model."""
        from trisect.hf.checkpoints import replaced

        with replaced(self.module, cuts, values):
            return self._by_unit(self._losses())

    def _by_unit(self, numbers: Losses) -> Losses:
        return self.articles.sums(numbers[self.kept, None], self.kept)[:, 0]

    def _losses(self) -> Losses:
        self._tokens[:] = 0
        found = np.zeros_like(self._tokens)
        with torch.no_grad():
            for number, batch in enumerate(self.batches):
                scores = self.subject.score(batch, clean=self._clean[number] if number < len(self._clean) else None)
                if self.moves and number == len(self._clean):
                    self._clean.append(scores)
                texts = [text for text, _ in batch.rows]
                np.add.at(found, texts, scores.total.double().cpu().numpy())
                np.add.at(self._tokens, texts, scores.count.double().cpu().numpy())
        self.passes["texts"] += 1
        return found


def rewind(
    trials: Trials,
    spots: Sequence[RewoundSite],
    earlier: Earlier,
    how: How,
    step: Callable[[int, int], object],
) -> tuple[list[InterpolationRow], list[str]]:
    """The rows of every site, without their subject, and notes; one revision's weights are held at a time."""
    from trisect.hf.checkpoints import take

    final = [take(trials.module.state_dict(), spot.cuts) for spot in spots]
    stages = len(earlier.names) > 1
    rows: list[InterpolationRow] = []
    middle: list[list[Losses]] = [[] for _ in spots]
    same: list[str] = []
    for number, name in enumerate(earlier.names):
        for i, (spot, values) in enumerate(zip(spots, earlier.read(name), strict=True)):
            if stages:
                middle[i].append(trials.losses(spot.cuts, values))
            if not number:
                same += [str(spot.site)] if all(map(torch.equal, values, (v.cpu() for v in final[i]))) else []
                rows += _convex(trials, spot, values, final[i], how)
            step(number * len(spots) + i + 1, len(earlier.names) * len(spots))
    for spot, losses in zip(spots, middle, strict=True):
        rows += _midstage(trials, spot, [*losses, trials.final], how) if losses else []
    notes = [f"At {', '.join(same)} the initial weights are the final ones."] if same else []
    return rows, notes


def _convex(
    trials: Trials, spot: RewoundSite, first: SliceValues, last: SliceValues, how: How
) -> list[InterpolationRow]:
    from trisect.hf.checkpoints import blend

    sums: dict[float, Losses] = {1.0: trials.final}

    def evaluate(alphas: list[float]) -> Float[np.ndarray, "1 N"]:
        for alpha in alphas:
            if alpha not in sums:
                sums[alpha] = trials.losses(spot.cuts, blend(first, last, alpha))
        return np.array([[sums[alpha].sum() / trials.tokens.sum() for alpha in alphas]])

    grid = how.grid
    curves: GridCurves = (
        exact_curves(evaluate, grid, 1)
        if how.exact
        else adaptive_curves(evaluate, grid, 1, how.epsilon, not trials.moves)
    )
    losses = curves.values[0]
    rows, drawn = _curve(
        "rewind", spot, grid, losses, curves.mix @ np.stack([sums[x] for x in curves.points]), trials, how
    )
    found = criticality(grid, losses, how.epsilon, not trials.moves)
    scores = np.array([[criticality(grid, curve, how.epsilon, not trials.moves).score] for curve in drawn])
    ends = percentile_interval(scores, len(trials.tokens))
    named = {"criticality": found.score, "criticality_first": found.first}
    named |= {"criticality_low": ends.low[0], "criticality_high": ends.high[0]}
    named |= {
        f"rewind_check{trials.ends}": curves.checks[0],
        "rewind_evaluations": curves.evaluations,
        "rewind_nodes": curves.nodes,
    }
    return _finite([*rows, *(_row(spot, trials, name, value) for name, value in named.items())])


def _midstage(trials: Trials, spot: RewoundSite, losses: Sequence[Losses], how: How) -> list[InterpolationRow]:
    """`at` is the number of the revision, from 0 (initial) on."""
    sums = np.stack(losses)
    means = sums.sum(1) / trials.tokens.sum()
    return _finite(_curve("midstage", spot, np.arange(len(sums), dtype=float), means, sums, trials, how)[0])


def _curve(
    kind: str,
    spot: RewoundSite,
    at: Float[np.ndarray, " A"],
    losses: Float[np.ndarray, " A"],
    sums: Float[np.ndarray, "A N"],
    trials: Trials,
    how: How,
) -> tuple[list[InterpolationRow], Float[np.ndarray, "R A"]]:
    """Losses, the intervals of their rise over the last one, the area; and the curve under every draw of texts or articles."""
    drawn = drawn_ratios(sums.T, trials.tokens, how.seed)
    rises = drawn - drawn[:, -1:]
    rise = percentile_interval(rises, len(trials.tokens))
    area = percentile_interval(rises.mean(1, keepdims=True), len(trials.tokens))
    ends = (f"rise_low{trials.ends}", f"rise_high{trials.ends}")
    columns = {trials.curve: losses, ends[0]: rise.low, ends[1]: rise.high}
    rows = [
        _row(spot, trials, f"{kind}_{name}", value, float(x))
        for name, values in columns.items()
        for x, value in zip(at, values, strict=True)
    ]
    areas = {"area": mean_difference(losses, losses[-1]), "area_low": area.low[0], "area_high": area.high[0]}
    return rows + [_row(spot, trials, f"{kind}_{name}", value) for name, value in areas.items()], drawn


def _row(spot: RewoundSite, trials: Trials, measure: str, value: float, at: float | None = None) -> InterpolationRow:
    n = int(trials.tokens.sum())
    return {"site": str(spot.site), "measure": measure, "at": at, "value": float(value), "n": n}


def _finite(rows: list[InterpolationRow]) -> list[InterpolationRow]:
    return [row for row in rows if np.isfinite(row["value"])]  # missing stays missing
