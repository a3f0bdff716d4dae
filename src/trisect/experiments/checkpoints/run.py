"""Rewinding between published checkpoints of one model: criticality and mid-stage curves of q, k and v without training."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float

from trisect.core.errors import CorpusError, SpecError
from trisect.core.site import Site
from trisect.core.subject import Batch, RowScores, Shape, SiteTarget, Texts
from trisect.core.tables import frame
from trisect.core.trace import Projections
from trisect.experiments.checkpoints.settings import RewindFacts, RewindSettings
from trisect.lab.experiment import Measured, RunContext
from trisect.lab.passes import plan_edits
from trisect.lab.word_labels import find_articles
from trisect.measure.criticality import GridCurves, adaptive_curves, criticality, exact_curves, mean_difference
from trisect.stats.bootstrap import bootstrap_ratios, percentile_interval

if TYPE_CHECKING:
    from trisect.hf.files.checkpoints import ParameterSlice, SliceValues
    from trisect.hf.load import Pretrained


# summed over each text or article, in nats; without a loss, of relative changes of the output
Losses = Float[np.ndarray, " N"]
InterpolationRow = dict[str, Any]


class RewoundSite(NamedTuple):
    """A site that is rewound, grown to all that its weights serve, and where these weights are."""

    site: Site
    cuts: tuple[ParameterSlice, ...]


class Trials:
    """A model and the texts on which every set of weights is tried; the texts are made ready once."""

    def __init__(self, subject: Pretrained, texts: Texts, settings: RewindSettings) -> None:
        self.subject, self.settings = subject, settings
        self.batches: tuple[Batch, ...] = tuple(subject.batches(texts.texts(), settings.batch, scored=True))
        self.passes = 0  # through all texts
        self.moves = subject.objective == "output"  # no loss: how far the output moves from that of the final weights
        self._clean: list[RowScores] = []
        self._tokens = np.zeros(1 + max((t for b in self.batches for t, _ in b.rows), default=-1))
        final = self._losses()
        if not self._tokens.sum():
            known = f"{len(self._tokens)} were read, and in none is a token predicted from others."
            raise CorpusError(f"The texts {texts.name!r} have no loss.", known, "Give texts of more than one token.")
        self.name, self.ends = ("output_change", "") if self.moves else ("loss_nats", "_nats")
        self.kept = np.flatnonzero(self._tokens > 0)
        self.articles = find_articles(texts, len(self._tokens), self.kept.tolist())
        self.tokens, self.final = self._by_unit(self._tokens), self._by_unit(final)

    def losses(self, cuts: Sequence[ParameterSlice], values: SliceValues) -> Losses:
        """Of each article, or text where none is marked, that has a loss, with those values in the model."""
        from trisect.hf.files.checkpoints import replaced

        with replaced(self.subject.model, cuts, values):
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
        self.passes += 1
        return found

    def rows(self, spot: RewoundSite, named: dict[str, float], at: float | None = None) -> list[InterpolationRow]:
        """Rows of the table `sites` without their subject, by measure; missing stays missing."""
        own = {"site": str(spot.site), "at": at, "n": int(self.tokens.sum())}
        return [own | {"measure": name, "value": float(v)} for name, v in named.items() if np.isfinite(v)]

    def curve(
        self,
        kind: str,
        spot: RewoundSite,
        at: Float[np.ndarray, " A"],
        losses: Float[np.ndarray, " A"],
        sums: Float[np.ndarray, "A N"],
    ) -> tuple[list[InterpolationRow], Float[np.ndarray, "R A"]]:
        """Losses, the intervals of their rise over the last one, the area; and the curve under every draw of texts or articles.

        `at` is α, or the number of the revision from 0 (initial) on.
        """
        drawn = bootstrap_ratios(sums.T, self.tokens, self.settings.seed)
        rises = drawn - drawn[:, -1:]
        rise = percentile_interval(rises, len(self.tokens))
        area = percentile_interval(rises.mean(1, keepdims=True), len(self.tokens))
        names = (self.name, f"rise_low{self.ends}", f"rise_high{self.ends}")
        rows = []
        for name, values in zip(names, (losses, rise.low, rise.high), strict=True):
            for x, value in zip(at, values, strict=True):
                rows += self.rows(spot, {f"{kind}_{name}": value}, float(x))
        areas = {"area": mean_difference(losses, losses[-1]), "area_low": area.low[0], "area_high": area.high[0]}
        return rows + self.rows(spot, {f"{kind}_{name}": value for name, value in areas.items()}), drawn

    def line(self, spot: RewoundSite, first: SliceValues, last: SliceValues) -> list[InterpolationRow]:
        """The rows of the straight line from the first to the last weights of a site, and its criticality."""
        from trisect.hf.files.checkpoints import blend

        sums: dict[float, Losses] = {1.0: self.final}
        grid, epsilon = np.arange(self.settings.points) / (self.settings.points - 1), self.settings.epsilon

        def evaluate(alphas: list[float]) -> Float[np.ndarray, "1 N"]:
            for alpha in alphas:
                if alpha not in sums:
                    sums[alpha] = self.losses(spot.cuts, blend(first, last, alpha))
            return np.array([[sums[alpha].sum() / self.tokens.sum() for alpha in alphas]])

        curves: GridCurves = (
            exact_curves(evaluate, grid, 1)
            if self.settings.exact
            else adaptive_curves(evaluate, grid, 1, epsilon, not self.moves)
        )
        losses, by_unit = curves.values[0], curves.mix @ np.stack([sums[x] for x in curves.points])
        rows, drawn = self.curve("rewind", spot, grid, losses, by_unit)
        found = criticality(grid, losses, epsilon, not self.moves)
        scores = np.array([[criticality(grid, curve, epsilon, not self.moves).score] for curve in drawn])
        ends = percentile_interval(scores, len(self.tokens))
        named = {
            "criticality": found.score,
            "criticality_first": found.first,
            "criticality_low": ends.low[0],
            "criticality_high": ends.high[0],
            f"rewind_check{self.ends}": curves.checks[0],
            "rewind_evaluations": curves.evaluations,
            "rewind_nodes": curves.nodes,
        }
        return rows + self.rows(spot, named)


def rewind(
    trials: Trials,
    spots: Sequence[RewoundSite],
    read: Callable[[str], list[SliceValues]],
    step: Callable[[int, int], object],
) -> tuple[list[InterpolationRow], list[str]]:
    """The rows of every site, without their subject, and notes; `read` gives a revision's weights, held one revision at a time."""
    from trisect.hf.files.checkpoints import take

    final = [take(trials.subject.model.state_dict(), spot.cuts) for spot in spots]
    *earlier, _ = trials.settings.revisions
    rows: list[InterpolationRow] = []
    middle: list[list[Losses]] = [[] for _ in spots]
    same: list[str] = []
    for number, name in enumerate(earlier):
        for i, (spot, values) in enumerate(zip(spots, read(name), strict=True)):
            if trials.settings.stages:
                middle[i].append(trials.losses(spot.cuts, values))
            if not number:
                same += [str(spot.site)] if all(map(torch.equal, values, (v.cpu() for v in final[i]))) else []
                rows += trials.line(spot, values, final[i])
            step(number * len(spots) + i + 1, len(earlier) * len(spots))
    for spot, losses in zip(spots, middle, strict=True):
        if losses:
            sums = np.stack([*losses, trials.final])
            at, means = np.arange(len(sums), dtype=float), sums.sum(1) / trials.tokens.sum()
            rows += trials.curve("midstage", spot, at, means, sums)[0]
    return rows, [f"At {', '.join(same)} the initial weights are the final ones."] if same else []


NO_LOSS = "The model has no loss of its own: numbers say how far its output moves, |y − y_final|² / |y_final|², averaged over tokens."


def check(settings: RewindSettings) -> None:
    """Raise SpecError where a revision in between is one of the ends: means over all would count it twice."""
    ends = {settings.initial, settings.final}
    if (name := next((name for name in settings.stages if name in ends), None)) is not None:
        known = f"The revisions are {', '.join(settings.revisions)}, the initial one first and the final one last."
        raise SpecError(f"The revision {name!r} was given twice.", known, "Name every revision once.")


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
    from trisect.hf.files.checkpoints import locate, read_cuts
    from trisect.hf.files.fetch import Options
    from trisect.hf.load import load

    texts, folder = context.texts, Path(settings.model)
    place, revision = {one: locate(settings.model, one) for one in settings.revisions}[settings.final]
    rest = settings.dtype, settings.device, None, settings.pickle, settings.remote_code
    subject = load(place, None, None, settings.window, revision, *rest)
    spots, notes = plan_places(subject.shape, subject.projections(), settings.sites)
    trials = Trials(subject, texts, settings)
    options = Options(None, settings.dtype, "cpu", None, settings.pickle, settings.remote_code)

    def read(revision: str) -> list[SliceValues]:
        cuts = [cut for spot in spots for cut in spot.cuts]
        values = iter(read_cuts(settings.model, revision, cuts, subject.model, options))
        return [tuple(next(values) for _ in spot.cuts) for spot in spots]

    with context.progress(f"rewinding {len(spots)} sites") as step:
        rows, same = rewind(trials, spots, read, step)
    facts = RewindFacts(
        f"{folder.resolve().name if folder.is_dir() else settings.model}@{settings.final}",
        subject.fingerprint,
        subject.objective,
        texts.name,
        texts.fingerprint,
        len(trials.kept),
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
    said = (*texts.notes, *trials.articles.notes, *untrained, *(NO_LOSS,) * trials.moves, *notes, *same, *cut)
    return Measured({"sites": table}, facts, tuple(dict.fromkeys(said)))


def above_chance(loss: float, vocabulary: int | None) -> tuple[str, ...]:
    """A warning where a final model's loss in nats is above that of equal guesses."""
    if vocabulary is None or not loss > math.log(vocabulary):
        return ()
    chance = f"ln {vocabulary:,} = {math.log(vocabulary):.2f}"
    said = f"The final model's loss, {loss:.2f} nats per token, is above that of equal guesses, {chance}"
    return (f"{said}: its language-model head may never have been trained, and what is rewound then means little.",)


def plan_places(
    shape: Shape, projections: Sequence[Projections], sites: Sequence[Site | str] | None
) -> tuple[list[RewoundSite], list[str]]:
    """The sites with their weights, and notes on those whose weights serve more than was named.

    Where layers share weights a site grows to all that they serve, and is rewound once. Raises SiteError.
    """
    from trisect.hf.files.checkpoints import cuts_of

    known = {p.address: p for p in projections}
    serving: dict[SiteTarget, ParameterSlice] = {}
    for target in (SiteTarget(address, component, None) for address in shape.heads for component in ("q", "k", "v")):
        origin = known[target.address].origins[target.component]
        if origin.parameter is not None and origin.rows is not None:
            serving[target] = cuts_of(target, known[target.address])[0]
    places: dict[Site, RewoundSite] = {}
    notes: dict[str, None] = {}
    for site, first, targets in plan_edits(shape, sites, "layer" if sites is None else "site"):
        cuts = tuple(dict.fromkeys(cut for t in targets for cut in cuts_of(t, known[t.address])))
        units: dict[str, set[int]] = {}
        for cut in cuts:
            units.setdefault(cut.parameter, set()).update(cut.units)
        own = {(t.component, t.address.layer) for t in targets}
        own |= {  # every component and layer of the stack that these weights serve
            (t.component, t.address.layer)
            for t, cut in serving.items()
            if t.address.stack == first.stack and not units.get(cut.parameter, set()).isdisjoint(cut.units)
        }
        grown = Site(tuple(c for c, _ in own), tuple(n for _, n in own), site.heads, site.stack)
        if (grown.layers, grown.components) != (site.layers, site.components):
            notes[f"{grown} is one set of weights, and is rewound as one."] = None
        for t in targets:
            if (origin := known[t.address].origins[t.component]).how != "rows":
                notes[f"{t.component} of {t.address} is not a selection of weights alone: {origin.words}."] = None
        places.setdefault(grown, RewoundSite(grown, cuts))
    return list(places.values()), list(notes)
