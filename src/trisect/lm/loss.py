"""Decoder and cross-entropy in one, a block of rows at a time, so that the logits are never held whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

BLOCK = 4_000_000  # logits held at once: 16 MB in float32, about what stays in a cache


class Scores(NamedTuple):
    """Cross-entropy in nats per token, and whether the arg-max word was the gold word."""

    loss: Float[Tensor, "F N"]
    correct: Bool[Tensor, "F N"]


class Gradients(NamedTuple):
    """Of each member's mean loss, with respect to hidden states, decoder weights and decoder biases."""

    hidden: Float[Tensor, "F N D"]
    weight: Float[Tensor, "F V D"]
    bias: Float[Tensor, "F V"]


def token_scores(
    h: Float[Tensor, "F N D"], w: Float[Tensor, "G V D"], b: Float[Tensor, "G V"], y: Int[Tensor, " N"]
) -> Scores:
    """Loss and correctness of every token; the decoder may be shared by all members (G = 1). No gradient."""
    loss, correct = h.new_empty(h.shape[:2]), torch.empty(h.shape[:2], dtype=torch.bool, device=h.device)
    with torch.no_grad():
        for members, rows in _blocks(h.shape[0], h.shape[1], w.shape[1]):
            own = slice(None) if w.shape[0] == 1 else members
            z = _logits(h[members, rows], w[own], b[own])
            loss[members, rows], correct[members, rows] = _score(z, y[rows])
    return Scores(loss, correct)


def loss_and_gradients(
    h: Float[Tensor, "F N D"], w: Float[Tensor, "F V D"], b: Float[Tensor, "F V"], y: Int[Tensor, " N"]
) -> tuple[Scores, Gradients]:
    """Scores of every token, and the gradients of each member's mean loss, formed while a block is at hand.

    p = softmax(h Wᵀ + b); with r = (p - onehot(y)) / N: dh = r W, dW = rᵀ h, db = sum of r over rows.
    """
    count = h.shape[1]
    loss, correct = h.new_empty(h.shape[:2]), torch.empty(h.shape[:2], dtype=torch.bool, device=h.device)
    dh, dw, db = torch.empty_like(h), torch.zeros_like(w), torch.zeros_like(b)
    with torch.no_grad():
        for members, rows in _blocks(h.shape[0], count, w.shape[1]):
            x, gold = h[members, rows], y[rows]
            z = _logits(x, w[members], b[members])
            top = z.max(-1)
            at = gold.expand(z.shape[0], -1)[..., None]
            chosen = z.gather(-1, at)[..., 0]
            correct[members, rows] = top.indices == gold
            z.sub_(top.values[..., None]).exp_()
            total = z.sum(-1)
            loss[members, rows] = total.log() + top.values - chosen
            z.mul_((1 / (count * total))[..., None])
            z.scatter_add_(-1, at, torch.full_like(at, -1, dtype=z.dtype) / count)
            dh[members, rows] = torch.bmm(z, w[members])
            dw[members].baddbmm_(z.transpose(1, 2), x)
            db[members] += z.sum(1)
    return Scores(loss, correct), Gradients(dh, dw, db)


def _score(z: Float[Tensor, "F N V"], y: Int[Tensor, " N"]) -> Scores:
    top = z.max(-1)
    chosen = z.gather(-1, y.expand(z.shape[0], -1)[..., None])[..., 0]
    return Scores(z.sub_(top.values[..., None]).exp_().sum(-1).log_() + top.values - chosen, top.indices == y)


def _logits(h: Float[Tensor, "F N D"], w: Float[Tensor, "G V D"], b: Float[Tensor, "G V"]) -> Float[Tensor, "F N V"]:
    if w.shape[0] == 1:
        return torch.nn.functional.linear(h, w[0], b[0])
    return torch.baddbmm(b[:, None], h, w.transpose(1, 2))


def _blocks(members: int, rows: int, vocabulary: int) -> Iterator[tuple[slice, slice]]:
    """Member and row slices whose logits fit a block; rows are only cut when one member alone does not fit."""
    together = max(1, BLOCK // (rows * vocabulary))
    height = rows if rows * vocabulary <= BLOCK else max(1, BLOCK // vocabulary)
    for f in range(0, members, together):
        for r in range(0, rows, height):
            yield slice(f, min(f + together, members)), slice(r, min(r + height, rows))
