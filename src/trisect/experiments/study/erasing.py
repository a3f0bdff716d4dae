"""Erasing a label at a site of a trained baseline: what the loss rises by, and by how much where a random subspace goes.

q, k and v are affine in what a layer reads, so that erasing there is the same as other weights of the in-projection;
the erased model and its controls are evaluated side by side like the variants of rewinding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from trisect.core.methods import ARTICLES, ON_TRAIN, Fitted
from trisect.core.site import Site
from trisect.core.spec import Model, Training
from trisect.experiments.study.folds import Fold
from trisect.experiments.study.probing import TRAIN, SiteRow, dealt_rows, read_folds
from trisect.lm.feed import Piece
from trisect.lm.fleet import COMPONENT_ROW, forward, generator
from trisect.lm.places import blocks_of, representation
from trisect.lm.rewind import Curve, Variants, evaluate_variants
from trisect.measure.erasure import Eraser, LabelMoments
from trisect.stats.ratios import paired_band
from trisect.text.corpus import Corpus

VALID = 20_000  # tokens of validation on which losses are compared, about
BOUNDLESS = 10**9  # rows that the text could have had: those that are read stand for more of its kind

ModelParameters = dict[str, Tensor]


def erase(
    final: Mapping[str, Tensor],
    model: Model,
    corpus: Corpus,
    training: Training,
    site: Site,
    label: str,
    draws: int,
    seed: int,
    tokens: tuple[int, int] = (TRAIN, VALID),
    fitted: Fitted = ARTICLES,
    shrinkage: bool = True,
) -> list[SiteRow]:
    """Rise of the validation loss with the next word's label erased at a resolved site of q, k or v, and its controls.

    `final` are a baseline's weights without a member axis. Rows are drawn from validation and dealt into folds as whole
    articles: LEACE is fitted to all but one and applied at every token of that one, and the interval is over articles,
    else over rows (see `deal`). With `fitted` 'train' it is fitted to windows spread over train. Components of one
    layer are erased together, layers one after the other, each as those below leave it. Each of `draws` controls takes out a
    random subspace of the same rank, in the same whitened space about the same mean.
    Raises CorpusError without labels enough, SpecError without the extra `erase`.
    """
    drawn = tokens if fitted == ON_TRAIN else (tokens[1], 0)  # all that is compared is fitted to as well
    folds = read_folds(corpus, training, label, seed, drawn, final["decoder.bias"].device, fitted)
    found = [
        _of_fold(final, model, fold, site, label, len(corpus.column(label)), draws, seed, shrinkage) for fold in folds
    ]
    rises, low, high, n = _rises([one.curve for one in found], folds)
    whose, count = (
        ("train", found[0].fitted) if fitted == ON_TRAIN else ("valid", round(mean_of([one.fitted for one in found])))
    )
    rows = [
        ("erase_rise_nats", None, rises[0], n),
        ("erase_rise_low_nats", None, low[0], n),
        ("erase_rise_high_nats", None, high[0], n),
        *(("erase_random_rise_nats", float(i), rise, n) for i, rise in enumerate(rises[1:], 1)),
    ]
    made = [SiteRow(str(site), name, at, "valid", _finite(value), n) for name, at, value, n in rows]
    made.append(SiteRow(str(site), "erase_rank", None, whose, mean_of([one.rank for one in found]), count))
    made.append(
        SiteRow(str(site), "erase_explained", None, whose, _finite(mean_of([one.explained for one in found])), count)
    )
    return made + dealt_rows("erase", (site,), folds)


class _Erased(NamedTuple):
    """One fold without the label: its losses, how many directions were removed, of how many tokens, what they explained."""

    curve: Curve
    rank: float
    fitted: int
    explained: float


def mean_of(values: Sequence[float]) -> float:
    """A number's mean over folds."""
    return float(np.mean(values))


def _of_fold(
    final: Mapping[str, Tensor],
    model: Model,
    fold: Fold,
    site: Site,
    label: str,
    classes: int,
    draws: int,
    seed: int,
    shrinkage: bool,
) -> _Erased:
    """Fit the erasers to a fold's others, and find the losses in it with the label and with random subspaces removed."""
    leace, randoms = dict(final), [dict(final) for _ in range(draws)]
    key = (fold.number,) if fold.number else ()
    draw, rank, count, explained = generator("erase", str(site), label, seed, *key), 0, 0, []
    for layer in sorted(site.layers or ()):
        here = Site(site.components, (layer,), site.heads)
        moments = fit(leace, model, fold.fit, here, label, classes, shrinkage)
        eraser = moments.leace()
        rank, count = rank + eraser.rank, moments.count
        explained.append(moments.explained())
        apply(leace, here, eraser, model)
        for changed in randoms:
            apply(changed, here, moments.random(eraser.rank, draw), model)
    curve = _losses(final, model, fold.scored, site, [leace, *randoms])
    return _Erased(curve, float(rank), count, float(np.mean(explained)))


@torch.no_grad()
def fit(
    parameters: ModelParameters,
    model: Model,
    pieces: list[Piece],
    site: Site,
    label: str,
    classes: int,
    shrinkage: bool = True,
) -> LabelMoments:
    """Of the representation at a site of one layer, at the tokens whose next word carries a label."""
    whole = {n: v[None] for n, v in parameters.items()}
    device = parameters["decoder.bias"].device
    moments = LabelMoments(len(_rows(site, model)), classes, device, shrinkage=shrinkage)
    for piece in pieces:
        known = piece.labels[label] >= 0
        kept = forward(whole, piece.inputs, model, blocks=blocks_of([site], model)).kept
        moments.add(representation(kept, 0, site, model).T[known], piece.labels[label][known])
    return moments


def _rows(site: Site, model: Model) -> Tensor:
    """The rows of the in-projection that make the representation at a site of one layer, in its order."""
    starts = [COMPONENT_ROW[component] * model.width for component in site.components]
    return torch.cat([torch.arange(start, start + model.width) for start in starts])


def apply(parameters: ModelParameters, site: Site, eraser: Eraser, model: Model) -> None:
    """Put the erasure into a layer's in-projection."""
    rows, names = _rows(site, model), [f"layers.{(site.layers or (1,))[0]}.in.{kind}" for kind in ("weight", "bias")]
    made = eraser.through(*(parameters[name][rows] for name in names))
    for name, values in zip(names, made, strict=True):
        parameters[name] = parameters[name].index_copy(0, rows.to(values.device), values)


def loss_rises(
    final: Mapping[str, Tensor], model: Model, pieces: list[Piece], site: Site, changed: list[ModelParameters]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Each changed model's rise of the loss and the ends of its 95 % interval over rows; and the number of tokens."""
    return _rises([_losses(final, model, pieces, site, changed)], [])


def _losses(
    final: Mapping[str, Tensor], model: Model, pieces: list[Piece], site: Site, changed: list[ModelParameters]
) -> Curve:
    """Of each changed model, and last of the model as it is."""
    variants = Variants([*changed, final], torch.eye(len(changed) + 1, dtype=torch.float64))
    return evaluate_variants({n: v[None] for n, v in final.items()}, model, pieces, site, variants)


def _rises(curves: Sequence[Curve], folds: Sequence[Fold]) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Rises over the last variant, all folds together, with intervals over the folds' articles, else over rows."""
    nats = np.concatenate([curve.row_nats for curve in curves], 1)
    tokens = np.concatenate([curve.row_tokens for curve in curves])
    if folds and all(fold.articles is not None for fold in folds):
        own = np.concatenate([fold.articles for fold in folds if fold.articles is not None])
        member = (np.unique(own)[:, None] == own).astype(float)
        nats, tokens = nats @ member.T, (member @ tokens).astype(int)
    band, n = paired_band(nats, tokens, BOUNDLESS), int(tokens.sum())
    losses = nats.sum(1) / n
    return losses[:-1] - losses[-1], band.low[:-1], band.high[:-1], n


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
