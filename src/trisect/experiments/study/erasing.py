"""Erasing a label at a site of a trained baseline: what the loss rises by, and by how much where a random subspace goes.

q, k and v are affine in what a layer reads, so that erasing there is the same as other weights of the in-projection;
the erased model and its controls are evaluated side by side like the variants of rewinding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from trisect.core.site import Site
from trisect.core.spec import Model, Training
from trisect.experiments.study.probing import TRAIN, SiteRow, read_pieces
from trisect.lm.feed import Piece
from trisect.lm.fleet import COMPONENT_ROW, forward, generator
from trisect.lm.places import blocks_of, representation
from trisect.lm.rewind import Variants, evaluate_variants
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
) -> list[SiteRow]:
    """Rise of the validation loss with the next word's label erased at a resolved site of q, k or v, and its controls.

    `final` are a baseline's weights without a member axis. LEACE is fitted to windows spread over train and applied at
    every token; components of one layer are erased together, layers one after the other, each as those below leave it.
    Each of `draws` controls takes out a random subspace of the same rank, in the same whitened space about the same
    mean. Raises CorpusError without labels enough, SpecError without the extra `erase`.
    """
    read, scored = read_pieces(corpus, training, label, seed, tokens, final["decoder.bias"].device)
    leace, randoms = dict(final), [dict(final) for _ in range(draws)]
    draw, rank, fitted, explained = generator("erase", str(site), label, seed), 0, 0, []
    for layer in sorted(site.layers or ()):
        here = Site(site.components, (layer,), site.heads)
        moments = fit(leace, model, read, here, label, len(corpus.column(label)))
        eraser = moments.leace()
        rank, fitted = rank + eraser.rank, moments.count
        explained.append(moments.explained())
        apply(leace, here, eraser, model)
        for changed in randoms:
            apply(changed, here, moments.random(eraser.rank, draw), model)
    rises, low, high, n = loss_rises(final, model, scored, site, [leace, *randoms])
    rows = [
        ("erase_rise_nats", None, rises[0], n),
        ("erase_rise_low_nats", None, low[0], n),
        ("erase_rise_high_nats", None, high[0], n),
        *(("erase_random_rise_nats", float(i), rise, n) for i, rise in enumerate(rises[1:], 1)),
    ]
    found = [SiteRow(str(site), name, at, "valid", _finite(value), n) for name, at, value, n in rows]
    found.append(SiteRow(str(site), "erase_rank", None, "train", float(rank), fitted))
    found.append(SiteRow(str(site), "erase_explained", None, "train", _finite(float(np.mean(explained))), fitted))
    return found


@torch.no_grad()
def fit(
    parameters: ModelParameters, model: Model, pieces: list[Piece], site: Site, label: str, classes: int
) -> LabelMoments:
    """Of the representation at a site of one layer, at the tokens whose next word carries a label."""
    whole = {n: v[None] for n, v in parameters.items()}
    moments = LabelMoments(len(_rows(site, model)), classes, parameters["decoder.bias"].device)
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
    variants = Variants([*changed, final], torch.eye(len(changed) + 1, dtype=torch.float64))
    curve = evaluate_variants({n: v[None] for n, v in final.items()}, model, pieces, site, variants)
    band = paired_band(curve.row_nats, curve.row_tokens, BOUNDLESS)
    return curve.loss_nats[:-1] - curve.loss_nats[-1], band.low[:-1], band.high[:-1], curve.n


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
