"""Rewinding between published checkpoints of one model: criticality and mid-stage curves of q, k and v without training."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from trisect.core.errors import CorpusError
from trisect.core.site import Site
from trisect.core.subject import Batch, RowScores, Shape, SiteTarget, Texts
from trisect.core.tables import frame
from trisect.core.trace import Projections
from trisect.experiments.checkpoints.settings import RewindFacts, RewindSettings
from trisect.hf.files.checkpoints import ParameterSlice, SliceValues, blend, cuts_of, locate, read_cuts, replaced, take
from trisect.hf.files.fetch import Options
from trisect.hf.load import Pretrained, load
from trisect.lab.experiment import Measured, RunContext
from trisect.lab.passes import plan_edits
from trisect.lab.word_labels import find_articles
from trisect.measure.criticality import adaptive_curves, criticality, exact_curves, mean_difference
from trisect.stats.bootstrap import bootstrap_ratios, percentile_interval

# summed over each text or article, in nats; without a loss, of relative changes of the output
Losses = Float[np.ndarray, " N"]
InterpolationRow = dict[str, Any]
RewoundSite = tuple[Site, tuple[ParameterSlice, ...]]  # grown to all that its weights serve, and where these are


class _Trials:
    """A model and the prepared texts on which all sets of weights are compared."""

    def __init__(self, subject: Pretrained, texts: Texts, settings: RewindSettings) -> None:
        self.subject, self.settings = subject, settings
        self.batches: tuple[Batch, ...] = tuple(subject.batches(texts.texts(), settings.batch, scored=True))
        self.passes = 0  # through all texts
        self.moves = subject.objective == "output"  # no loss: how far the output moves from that of the final weights
        self.measure, self.suffix = ("output_change", "") if self.moves else ("loss_nats", "_nats")
        self._clean: list[RowScores] = []
        losses, counts = self._score()
        if not counts.sum():
            reason = f"{len(counts)} were read, and in none is a token predicted from others."
            raise CorpusError(f"The texts {texts.name!r} have no loss.", reason, "Give texts of more than one token.")
        self.read = np.flatnonzero(counts > 0)
        self.articles = find_articles(texts, len(counts), self.read.tolist())
        self.final, self.tokens = (self.articles.sums(n[self.read, None], self.read)[:, 0] for n in (losses, counts))

    def losses(self, cuts: Sequence[ParameterSlice], values: SliceValues) -> Losses:
        """Losses with the given weights, by article, or by text if there are no articles; those without a loss are left out."""
        with replaced(self.subject.model, cuts, values):
            return self.articles.sums(self._score()[0][self.read, None], self.read)[:, 0]

    @torch.no_grad()
    def _score(self) -> tuple[Losses, Losses]:
        """Loss and number of tokens of each text with the present weights; the first call's outputs are those of the final weights."""
        losses, counts = np.zeros((2, 1 + max((t for b in self.batches for t, _ in b.rows), default=-1)))
        for batch, clean in zip(self.batches, self._clean or [None] * len(self.batches), strict=True):
            scores = self.subject.score(batch, clean=clean)
            if self.moves and clean is None:
                self._clean.append(scores)
            texts = [text for text, _ in batch.rows]
            np.add.at(losses, texts, scores.total.double().cpu().numpy())
            np.add.at(counts, texts, scores.count.double().cpu().numpy())
        self.passes += 1
        return losses, counts

    def rows(self, site: Site, numbers: dict[str, float], at: float | None = None) -> list[InterpolationRow]:
        """Rows of the table `sites` by measure, without the column `subject`; missing values stay missing."""
        place = {"site": str(site), "at": at, "n": int(self.tokens.sum())}
        return [place | {"measure": name, "value": float(v)} for name, v in numbers.items() if np.isfinite(v)]

    def curve(
        self,
        kind: str,
        site: Site,
        at: Float[np.ndarray, " A"],
        losses: Float[np.ndarray, " A"],
        sums: Float[np.ndarray, "A N"],
    ) -> tuple[list[InterpolationRow], Float[np.ndarray, "R A"]]:
        """Losses, intervals of their rise over the last, and the area; also for every bootstrap draw.

        `at` is α, or the number of the revision from 0 (initial) on.
        """
        draws = bootstrap_ratios(sums.T, self.tokens, self.settings.seed)
        rises = draws - draws[:, -1:]
        rise = percentile_interval(rises, len(self.tokens))
        area = percentile_interval(rises.mean(1, keepdims=True), len(self.tokens))
        rows = []
        named = {self.measure: losses, f"rise_low{self.suffix}": rise.low, f"rise_high{self.suffix}": rise.high}
        for name, values in named.items():
            for x, value in zip(at, values, strict=True):
                rows += self.rows(site, {f"{kind}_{name}": value}, float(x))
        areas = {"area": mean_difference(losses, losses[-1]), "area_low": area.low[0], "area_high": area.high[0]}
        return rows + self.rows(site, {f"{kind}_{name}": value for name, value in areas.items()}), draws

    def line(self, place: RewoundSite, first: SliceValues, last: SliceValues) -> list[InterpolationRow]:
        """Rows for the straight line from a site's first to its last weights, and its criticality."""
        site, cuts = place
        sums: dict[float, Losses] = {1.0: self.final}
        grid, epsilon = np.arange(self.settings.points) / (self.settings.points - 1), self.settings.epsilon

        def evaluate(alphas: list[float]) -> Float[np.ndarray, "1 N"]:
            for alpha in alphas:
                if alpha not in sums:
                    sums[alpha] = self.losses(cuts, blend(first, last, alpha))
            return np.array([[sums[alpha].sum() / self.tokens.sum() for alpha in alphas]])

        exact, losses_fall = self.settings.exact, not self.moves
        curves = exact_curves(evaluate, grid, 1) if exact else adaptive_curves(evaluate, grid, 1, epsilon, losses_fall)
        losses, by_unit = curves.values[0], curves.mix @ np.stack([sums[x] for x in curves.points])
        rows, draws = self.curve("rewind", site, grid, losses, by_unit)
        result = criticality(grid, losses, epsilon, losses_fall)
        scores = np.array([[criticality(grid, curve, epsilon, losses_fall).score] for curve in draws])
        ends = percentile_interval(scores, len(self.tokens))
        numbers = {
            "criticality": result.score,
            "criticality_first": result.first,
            "criticality_low": ends.low[0],
            "criticality_high": ends.high[0],
            f"rewind_check{self.suffix}": curves.checks[0],
            "rewind_evaluations": curves.evaluations,
            "rewind_nodes": curves.nodes,
        }
        return rows + self.rows(site, numbers)

    def rewind(
        self,
        places: Sequence[RewoundSite],
        read: Callable[[str], list[SliceValues]],
        step: Callable[[int, int], object],
    ) -> tuple[list[InterpolationRow], list[str]]:
        """Rows of every site, without the column `subject`, and notes; `read` returns a revision's weights, one at a time."""
        final = [take(self.subject.model.state_dict(), cuts) for _, cuts in places]
        *earlier, _ = self.settings.revisions
        rows: list[InterpolationRow] = []
        stages: list[list[Losses]] = [[] for _ in places]
        same: list[str] = []
        for number, revision in enumerate(earlier):
            for i, (place, values) in enumerate(zip(places, read(revision), strict=True)):
                if self.settings.stages:
                    stages[i].append(self.losses(place[1], values))
                if not number:
                    if all(map(torch.equal, values, (v.cpu() for v in final[i]))):
                        same.append(str(place[0]))
                    rows += self.line(place, values, final[i])
                step(number * len(places) + i + 1, len(earlier) * len(places))
        for (site, _), losses in zip(places, stages, strict=True):
            if losses:
                sums = np.stack([*losses, self.final])
                at, means = np.arange(len(sums), dtype=float), sums.sum(1) / self.tokens.sum()
                rows += self.curve("midstage", site, at, means, sums)[0]
        return rows, [f"At {', '.join(same)} the initial weights are the final ones."] if same else []


NO_LOSS = "The model has no loss of its own: numbers say how far its output moves, |y − y_final|² / |y_final|², averaged over tokens."


def measure(settings: RewindSettings, context: RunContext) -> Measured[RewindFacts]:
    """Rewind sites of revision `final` of a model towards `initial` (A5) and to each of `stages` (A6).

    Revisions are subfolders of a local folder, else revisions of a hub. A site's components, layers and heads are
    rewound together; None is q, k and v of every layer, one at a time. `points` α are on the grid; unless `exact` they
    are interpolated between nodes that check themselves. `epsilon` is the share of the final loss that counts as a drop.
    The table `sites` has the measures of a study's rewinding, with `n` the predicted tokens; intervals are 95 % of a
    bootstrap over articles (texts where none is marked), drawn with `seed`. A model without a loss is measured by how
    far its output moves, as `ablate` measures it: |Δy|² as a share of |y|². `epsilon` is then that share, so that 0.01
    is a tenth of the output's length. Raises TrisectError.
    """
    texts, folder = context.texts, Path(settings.model)
    *_, (place, revision) = [locate(settings.model, name) for name in settings.revisions]
    rest = settings.dtype, settings.device, None, settings.pickle, settings.remote_code
    subject = load(place, None, None, settings.window, revision, *rest)
    places, notes = plan_places(subject.shape, subject.projections(), settings.sites)
    trials = _Trials(subject, texts, settings)
    options = Options(None, settings.dtype, "cpu", None, settings.pickle, settings.remote_code)

    def read(revision: str) -> list[SliceValues]:
        all_cuts = [cut for _, cuts in places for cut in cuts]
        values = iter(read_cuts(settings.model, revision, all_cuts, subject.model, options))
        return [tuple(next(values) for _ in cuts) for _, cuts in places]

    with context.progress(f"rewinding {len(places)} sites") as step:
        rows, same = trials.rewind(places, read, step)
    facts = RewindFacts(
        f"{folder.resolve().name if folder.is_dir() else settings.model}@{settings.final}",
        subject.fingerprint,
        subject.objective,
        texts.name,
        texts.fingerprint,
        len(trials.read),
        int(trials.tokens.sum()),
        trials.passes,
        settings.points,
        settings.epsilon,
        settings.exact,
        settings.seed,
        settings.initial,
        settings.stages,
        settings.final,
        articles=None if trials.articles.numbers is None else len(trials.tokens),
    )
    table = frame("sites", [row | {"subject": facts.subject} for row in rows])
    loss, config = float(trials.final.sum() / trials.tokens.sum()), getattr(subject.model, "config", None)
    vocabulary = getattr(config, "decoder_vocab_size", None) or getattr(config, "vocab_size", None)
    untrained = above_chance(loss, vocabulary if isinstance(vocabulary, int) else None)
    cut = (note for batch in trials.batches for note in batch.notes)
    notes = (*texts.notes, *trials.articles.notes, *untrained, *(NO_LOSS,) * trials.moves, *notes, *same, *cut)
    return Measured({"sites": table}, facts, tuple(dict.fromkeys(notes)))


def above_chance(loss: float, vocabulary: int | None) -> tuple[str, ...]:
    """A warning for a final model whose loss in nats is above that of uniform guesses."""
    if vocabulary is None or not loss > math.log(vocabulary):
        return ()
    chance = f"ln {vocabulary:,} = {math.log(vocabulary):.2f}"
    warning = f"The final model's loss, {loss:.2f} nats per token, is above that of equal guesses, {chance}"
    return (f"{warning}: its language-model head may never have been trained, and what is rewound then means little.",)


def plan_places(
    shape: Shape, projections: Sequence[Projections], sites: Sequence[Site | str] | None
) -> tuple[list[RewoundSite], list[str]]:
    """The sites with their weights, and notes on weights that other sites share.

    Where layers share weights a site grows to all that they serve, and is rewound once. Raises SiteError.
    """
    by_address = {p.address: p for p in projections}
    serving: dict[SiteTarget, ParameterSlice] = {}
    for target in (SiteTarget(address, component, None) for address in shape.heads for component in ("q", "k", "v")):
        origin = by_address[target.address].origins[target.component]
        if origin.parameter is not None and origin.rows is not None:
            serving[target] = cuts_of(target, by_address[target.address])[0]
    places: dict[Site, RewoundSite] = {}
    notes: dict[str, None] = {}
    for site, first, targets in plan_edits(shape, sites, "layer" if sites is None else "site"):
        cuts = tuple(dict.fromkeys(cut for t in targets for cut in cuts_of(t, by_address[t.address])))
        units: dict[str, set[int]] = {}
        for cut in cuts:
            units.setdefault(cut.parameter, set()).update(cut.units)
        served = {(t.component, t.address.layer) for t in targets}
        served |= {  # every component and layer of the stack that these weights serve
            (t.component, t.address.layer)
            for t, cut in serving.items()
            if t.address.stack == first.stack and not units.get(cut.parameter, set()).isdisjoint(cut.units)
        }
        grown = Site(tuple(c for c, _ in served), tuple(n for _, n in served), site.heads, site.stack)
        if (grown.layers, grown.components) != (site.layers, site.components):
            notes[f"{grown} is one set of weights, and is rewound as one."] = None
        for t in targets:
            if (origin := by_address[t.address].origins[t.component]).how != "rows":
                notes[f"{t.component} of {t.address} is not a selection of weights alone: {origin.words}."] = None
        places.setdefault(grown, (grown, cuts))
    return list(places.values()), list(notes)
