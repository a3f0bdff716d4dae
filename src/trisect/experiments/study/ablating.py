"""Mean ablation of a site of a trained baseline: what the loss rises by where q, k or v is its mean over train.

A component that is its mean everywhere is an in-projection without weights whose bias is that mean, so that the ablated
model is evaluated like the variants of rewinding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from trisect.core.site import Site
from trisect.core.spec import Model
from trisect.experiments.study.erasing import loss_rises
from trisect.experiments.study.probing import SiteRow
from trisect.lm.feed import Piece
from trisect.lm.fleet import forward, weights_of
from trisect.stats.tested import finite


def ablate(
    final: Mapping[str, Tensor], model: Model, site: Site, pieces: Mapping[str, Sequence[Piece]]
) -> list[SiteRow]:
    """Rise of the loss on train and validation, with 95 % intervals over rows, at a resolved site of q, k or v.

    `final` are a baseline's weights without a member axis, `pieces` what is evaluated, by split. Means are over the tokens
    of the train pieces, of the unedited model; at a site of several layers all are replaced at once.
    """
    changed = mean_ablated(final, model, site, pieces["train"])
    found = []
    for split, own in pieces.items():
        rises, low, high, n = loss_rises(final, model, list(own), site, [changed])
        named = (("", rises[0]), ("low_", low[0]), ("high_", high[0]))
        found += [SiteRow(str(site), f"ablate_rise_{end}nats", None, split, finite(value), n) for end, value in named]
    return found


@torch.no_grad()
def mean_ablated(final: Mapping[str, Tensor], model: Model, site: Site, pieces: Sequence[Piece]) -> dict[str, Tensor]:
    """The weights under which a resolved site of q, k or v is its mean over the pieces at every token."""
    changed, means = dict(final), _means(final, model, site, pieces)
    for n, mean in means.items():
        for name, part in weights_of(site, model, n):
            whole = f"layers.{n}.{name}"
            if changed[whole] is final[whole]:
                changed[whole] = final[whole].clone()
            changed[whole][part] = mean.to(final[whole])[part] if name == "in.bias" else 0.0
    return changed


def _means(
    final: Mapping[str, Tensor], model: Model, site: Site, pieces: Sequence[Piece]
) -> dict[int, Float[Tensor, " W"]]:
    """The mean of q, k and v side by side, by layer."""
    whole = {name: values[None] for name, values in final.items()}
    sums: dict[int, Tensor] = {}
    for piece in pieces:
        kept = forward(whole, piece.inputs, model, blocks=[("qkv", n) for n in site.layers or ()]).kept
        for (_, n), x in kept.items():
            here = x[0].flatten(0, 1).double().sum(0)
            sums[n] = sums[n] + here if n in sums else here
    count = sum(piece.inputs.numel() for piece in pieces)
    return {n: total / count for n, total in sums.items()}
