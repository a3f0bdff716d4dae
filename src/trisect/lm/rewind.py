"""Rewinding: evaluation of a trained model with the weights of one site reset to earlier values.

All variants of a site share everything below its lowest layer, so that part runs once. From there on the variants run side by
side with all other weights in common, and their losses are computed together.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from trisect.core.errors import SpecError
from trisect.core.site import Site
from trisect.core.spec import Model
from trisect.lm.feed import Piece
from trisect.lm.fleet import (
    Index,
    attend,
    causal,
    embed,
    embedding_rows,
    finish,
    forward,
    generator,
    linear,
    project,
    weights_of,
)
from trisect.lm.loss import Scores, extend_decoder, slices, token_scores, variant_scores

# tokens × variants in one pass: what stays in a core's cache on a CPU, few kernel launches on a GPU
TOKENS_PER_PASS = {"cpu": 1_800, "cuda": 400_000}


class Curve(NamedTuple):
    """Mean loss in nats and accuracy of each variant, over n tokens; and the summed loss of each row of each piece.

    A row is one sequence of window length.
    """

    loss_nats: Float[np.ndarray, " A"]
    accuracy: Float[np.ndarray, " A"]
    n: int
    row_nats: Float[np.ndarray, "A R"]
    row_tokens: Int[np.ndarray, " R"]


class Variants(NamedTuple):
    """Variants of a site's weights: mixtures of P sets of weights with the coefficients `shares`."""

    weights: Sequence[Mapping[str, Tensor]]
    shares: Float[Tensor, "A P"]

    def mix(self, name: str, part: slice | Index, which: slice = slice(None)) -> Float[Tensor, "A ..."]:
        """The named parameter's part of the site under each variant."""
        weights = torch.stack([w[name][part] for w in self.weights])
        return torch.tensordot(self.shares[which].to(weights), weights, 1)


def blend(initial: Mapping[str, Tensor], final: Mapping[str, Tensor], alphas: Sequence[float]) -> Variants:
    """Convex rewinding (definitions A5): (1 − α)·θ⁰ + α·θᶠ."""
    final_share = torch.tensor(alphas, dtype=torch.float64)
    return Variants((initial, final), torch.stack([1 - final_share, final_share], 1))


def stages(epochs: Sequence[Mapping[str, Tensor]]) -> Variants:
    """Mid-stage rewinding (definitions A6): the weights of each epoch."""
    return Variants(epochs, torch.eye(len(epochs), dtype=torch.float64))


def draw_rows(pieces: Sequence[Piece], tokens: int, *key: object) -> list[Piece]:
    """Random whole rows with about `tokens` tokens, without replacement; determined by `key` alone.

    A row is one sequence of window length: what the model reads at once. At least two are drawn if there are two; a larger
    draw contains the smaller one.
    """
    rows = [(p, r) for p, piece in enumerate(pieces) for r in range(piece.inputs.shape[0])]
    count = max(2, round(tokens * len(rows) / sum(piece.targets.numel() for piece in pieces)))
    chosen = sorted(rows[i] for i in torch.randperm(len(rows), generator=generator("rows", *key))[:count].tolist())
    return [pieces[p].some_rows([r for _, r in group]) for p, group in itertools.groupby(chosen, lambda row: row[0])]


@torch.no_grad()
def evaluate_variants(
    final: Mapping[str, Tensor], model: Model, pieces: Sequence[Piece], site: Site, variants: Variants
) -> Curve:
    """Loss and accuracy of the variants of a trained model that differ at one resolved site.

    `final` are the trained parameters, each with a leading axis of 1. Raises SpecError where the variants lack weights
    of the site.
    """
    needed = [f"layers.{n}.{name}" for n in site.layers or () for name, _ in weights_of(site, model, n)]
    if missing := [name for name in needed if any(name not in weights for weights in variants.weights)]:
        reason = f"The run kept only {', '.join(sorted({name.split('.')[-2] for name in variants.weights[0]}))}."
        todo = "Delete the baseline's folder and call 'trisect study' again: the baseline is then trained again and its weights are kept."
        problem = f"The site '{site}' cannot be rewound: {missing[0]} is needed at every epoch."
        raise SpecError(problem, reason, todo)
    count, limit = len(variants.shares), TOKENS_PER_PASS[final["decoder.bias"].device.type]
    wide = extend_decoder(final["decoder.weight"][0], final["decoder.bias"][0])
    size = min(count, max(1, limit // pieces[0].inputs.shape[1]))
    chunks = [(which, _upper(final, model, site, variants, which)) for which in slices(count, size)]

    def scores() -> Iterator[tuple[Piece, Scores]]:
        for piece in pieces:
            length = piece.inputs.shape[1]
            mask = causal(length, final["embed.weight"].dtype, piece.inputs.device)
            x = embed(embedding_rows(final["embed.weight"], piece.inputs), piece.inputs, None)
            for n in range(1, min(site.layers or (1,))):  # the same for every variant
                x = finish(final, n, x, attend(project(final, n, x), model.heads, mask, None), None, idle=model.idle)
            for chunk in slices(len(piece.inputs), limit // (size * length)):
                hidden = torch.cat([_above(mixed, model, x[:, chunk], site, variants, a) for a, mixed in chunks])
                part = piece.some_rows(range(len(piece.inputs))[chunk])
                yield part, variant_scores(part.target_states(hidden.flatten(1, 2)), wide, part.gold)

    return _curve(scores())


def _curve(parts: Iterable[tuple[Piece, Scores]]) -> Curve:
    """Sums of each row, collected in one copy, so that a GPU is synchronised once."""
    rows, correct_sums, tokens = list[Tensor](), list[Tensor](), list[int]()
    for piece, (loss, correct) in parts:
        rows.append(loss.double().view(len(loss), len(piece.inputs), -1).sum(2))
        correct_sums.append(correct.double().sum(1))
        tokens += [piece.tokens // len(piece.inputs)] * len(piece.inputs)
    table = torch.cat([*rows, torch.stack(correct_sums).sum(0)[:, None]], 1).cpu().numpy()
    row_nats, n = np.ascontiguousarray(table[:, :-1]), sum(tokens)
    return Curve(row_nats.sum(1) / n, table[:, -1] / n, n, row_nats, np.array(tokens))


def _above(
    mixed: Mapping[str, Tensor],
    model: Model,
    x: Float[Tensor, "1 B T D"],
    site: Site,
    variants: Variants,
    which: slice,
) -> Float[Tensor, "A B T D"]:
    """The last hidden states of the variants; `mixed` holds the mixed weights, all but those that project the lowest layer's input."""
    lowest, shares = min(site.layers or (1,)), variants.shares[which].to(x)
    mask = causal(x.shape[2], x.dtype, x.device)
    rows = [part[0] if part else slice(None) for name, part in weights_of(site, model, lowest) if name == "in.weight"]
    for n in range(lowest, model.layers + 1):
        qkv = project(mixed, n, x)
        if n == lowest and rows:  # the input is shared: q, k and v of each variant are mixtures of those of the P sets
            qkv = qkv.expand(len(shares), -1, -1, -1).clone()
            for part in rows:
                kinds = ("weight", "bias")
                ends = [torch.stack([w[f"layers.{n}.in.{kind}"][part] for w in variants.weights]) for kind in kinds]
                projected = linear(x.flatten(1, 2), *ends).flatten(1)
                qkv[..., part] = torch.mm(shares, projected).view(len(shares), *x.shape[1:3], -1)
        attended = attend(qkv, model.heads, mask, None)
        wide = attended.expand(len(shares), -1, -1, -1)
        x = finish(mixed, n, x, wide, None, idle=model.idle)
    return x


def _upper(
    final: Mapping[str, Tensor], model: Model, site: Site, variants: Variants, which: slice
) -> dict[str, Tensor]:
    """All weights, those of the site replaced by each variant's, except for the lowest layer's in-projection."""
    mixed = dict(final)
    for n in site.layers or (1,):
        for kind, part in weights_of(site, model, n):
            if n == min(site.layers or (1,)) and kind.startswith("in."):
                continue
            name = f"layers.{n}.{kind}"
            # weights and biases need the same leading axis for the batched product, even where a bias has no variants
            for key in (f"{name.rsplit('.', 1)[0]}.{suffix}" for suffix in ("weight", "bias")):
                if mixed[key] is final[key]:
                    mixed[key] = final[key].expand(len(variants.shares[which]), *final[key].shape[1:]).clone()
            mixed[name][(slice(None), *part)] = variants.mix(name, part, which)
    return mixed


def parts_of(sites: Iterable[Site], model: Model) -> tuple[str, ...]:
    """The matrices of a layer whose weights have to be saved after every epoch to rewind the resolved sites."""
    names = {name.split(".")[0] for s in sites for n in s.layers or () for name, _ in weights_of(s, model, n)}
    return tuple(part for part in ("in", "out", "up", "down") if part in names)


@torch.no_grad()
def self_only_loss(final: Mapping[str, Tensor], model: Model, pieces: Sequence[Piece]) -> Curve:
    """Loss and accuracy of a trained model whose positions attend to themselves alone (definitions A2, the check)."""

    def scores() -> Iterator[tuple[Piece, Scores]]:
        for piece in pieces:
            mask = torch.full_like(
                causal(piece.inputs.shape[1], final["embed.weight"].dtype, piece.inputs.device), -math.inf
            )
            hidden = forward(final, piece.inputs, model, mask=mask.fill_diagonal_(0.0)).hidden
            target_states = piece.target_states(hidden.flatten(1, 2))
            yield piece, token_scores(target_states, final["decoder.weight"], final["decoder.bias"], piece.gold)

    return _curve(scores())
