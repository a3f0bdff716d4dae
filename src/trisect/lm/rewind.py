"""Rewinding: suffix-only evaluation of a trained model with one site's weights replaced.

All variants of a site share everything below its lowest layer, so that part is run once; from there on the variants
are the members of a fleet whose other weights are shared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from trisect.core.site import Site
from trisect.core.spec import Model
from trisect.lm.feed import Piece
from trisect.lm.fleet import COMPONENT_ROW, attend, causal, embed, finish, forward, project, self_only
from trisect.lm.loss import token_scores

TOGETHER = 8_400  # tokens × variants run at once


class Curve(NamedTuple):
    """Mean loss in nats and accuracy of each variant, over n tokens."""

    loss_nats: Float[np.ndarray, " A"]
    accuracy: Float[np.ndarray, " A"]
    n: int


Variant = Callable[[slice], Mapping[str, Tensor]]  # which variants -> the replaced parameters, [A, ...] each


def blend(initial: Mapping[str, Tensor], final: Mapping[str, Tensor], site: Site, alphas: Sequence[float]) -> Variant:
    """Convex rewinding (science A5): (1 − α)·θ⁰ + α·θᶠ at the site, the final weights elsewhere.

    `initial` and `final` hold the in-projections of every layer, without a member axis.
    """

    def variants(which: slice) -> Mapping[str, Tensor]:
        def mix(name: str) -> Tensor:
            weight = torch.tensor(alphas[which], dtype=final[name].dtype, device=final[name].device)
            weight = weight.view(-1, *[1] * final[name].dim())
            return (1 - weight) * initial[name] + weight * final[name]

        return _replace(final, site, mix, len(range(*which.indices(len(alphas)))))

    return variants


def stages(epochs: Sequence[Mapping[str, Tensor]], final: Mapping[str, Tensor], site: Site) -> Variant:
    """Mid-stage rewinding (science A6): the site's weights of each epoch, the final weights elsewhere."""

    def variants(which: slice) -> Mapping[str, Tensor]:
        return _replace(final, site, lambda name: torch.stack([e[name] for e in epochs[which]]), len(epochs[which]))

    return variants


def _replace(final: Mapping[str, Tensor], site: Site, new: Callable[[str], Tensor], count: int) -> dict[str, Tensor]:
    """The in-projections that hold the site, `count` times over, its own rows replaced by `new`'s."""
    replaced: dict[str, Tensor] = {}
    for part in site.parts():
        for kind in ("weight", "bias"):
            name = f"layers.{part.layers[0] if part.layers else 0}.in.{kind}"
            if name not in replaced:
                replaced[name] = final[name].expand(count, *final[name].shape).clone()
            each = final[name].shape[0] // 3
            row = COMPONENT_ROW[part.components[0]] * each
            replaced[name][:, row : row + each] = new(name)[:, row : row + each]
    return replaced


def evaluate_variants(
    final: Mapping[str, Tensor], model: Model, pieces: Sequence[Piece], site: Site, variants: Variant, count: int
) -> Curve:
    """Loss and accuracy of `count` variants of a trained model that differ at one resolved site.

    `final` are the trained parameters, each with a leading axis of 1.
    """
    lowest = min(site.layers or (1,))
    totals, tokens = torch.zeros(2, count, dtype=torch.float64), 0
    with torch.no_grad():
        for piece in pieces:
            mask = causal(piece.inputs.shape[1], final["embed.weight"].dtype, piece.inputs.device)
            x = embed(final, piece.inputs, model, None)
            for n in range(1, lowest):
                x = finish(final, n, x, attend(project(final, n, x), model.heads, mask, None), None)
            size = max(1, TOGETHER // piece.targets.numel())
            for start in range(0, count, size):
                chunk = slice(start, min(start + size, count))
                mixed = {**final, **variants(chunk)}
                y = x
                for n in range(lowest, model.layers + 1):
                    y = finish(mixed, n, y, attend(project(mixed, n, y), model.heads, mask, None), None)
                scores = token_scores(y.flatten(1, 2), final["decoder.weight"], final["decoder.bias"], piece.targets)
                totals[:, chunk] += torch.stack([scores.loss.double().sum(1), scores.correct.double().sum(1)]).cpu()
            tokens += piece.targets.numel()
    loss, accuracy = (totals / tokens).numpy()
    return Curve(loss, accuracy, tokens)


def self_only_loss(final: Mapping[str, Tensor], model: Model, pieces: Sequence[Piece]) -> Curve:
    """Loss and accuracy of a trained model whose every position attends to itself alone (science A2, the check)."""
    totals, tokens = torch.zeros(2, 1, dtype=torch.float64), 0
    with torch.no_grad():
        for piece in pieces:
            mask = self_only(piece.inputs.shape[1], final["embed.weight"].dtype, piece.inputs.device)
            hidden = forward(final, piece.inputs, model, mask=mask).hidden
            scores = token_scores(hidden.flatten(1, 2), final["decoder.weight"], final["decoder.bias"], piece.targets)
            totals[:, 0] += torch.stack([scores.loss.double().sum(), scores.correct.double().sum()]).cpu()
            tokens += piece.targets.numel()
    loss, accuracy = (totals / tokens).numpy()
    return Curve(loss, accuracy, tokens)
