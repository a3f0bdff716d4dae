"""Losses of many variants of one hidden state: where a token's variants span few directions, their logits do as well.

Rewound weights move a token's hidden state along a smooth path, so that its A variants are combinations of r << A
directions to float accuracy: h_a = Σ_k c_ak q_k. Then z_a = Σ_k c_ak (W q_k): r products with the decoder instead of A.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from trisect.lm.loss import Scores, token_scores

ROUNDING = 64  # times the float's own step (8e-6 in float32): what of a variant's length may be left unspanned
# on a CPU what stays in a core's own cache, on a GPU few launches
STATES = {"cpu": 330_000, "cuda": 200_000_000}  # floats of hidden states factored at once
TOKENS = {"cpu": 32, "cuda": 1_024}  # tokens of like rank scored at once
LOGITS = {"cpu": 1_200_000, "cuda": 60_000_000}  # logits worked on at once
LOOK = {"cpu": 1, "cuda": 8}  # directions found before one looks whether they suffice, for which a GPU is waited for
PROBE = 64  # the most frequent words; the largest of their logits is subtracted from all before exp
SAFE = (1e-25, 1e30)  # sums of exp outside which a token is scored the plain way


class Decoder(NamedTuple):
    """The decoder, and beside its weights the biases and a column of ones, so that one product makes whole logits."""

    weight: Float[Tensor, "V D"]
    bias: Float[Tensor, " V"]
    wide: Float[Tensor, "V K"]


def make_decoder(weight: Float[Tensor, "V D"], bias: Float[Tensor, " V"]) -> Decoder:
    """A decoder that is used for many tokens."""
    return Decoder(weight, bias, torch.cat([weight, bias[:, None], torch.ones_like(bias)[:, None]], 1))


class Span(NamedTuple):
    """Directions and coefficients of each token's variants, how many directions it needs, and whether they suffice."""

    basis: Float[Tensor, "N R D"]
    shares: Float[Tensor, "N A R"]
    rank: Int[Tensor, " N"]
    enough: Bool[Tensor, " N"]


def span(h: Float[Tensor, "N A D"], most: int) -> Span:
    """Up to `most` directions whose combinations give each token's variants to ROUNDING steps of the longest one.

    Gram-Schmidt with the largest remainder as the next direction. Directions need not be orthogonal to rounding: what
    is subtracted is what is kept, so that basis and shares give back `h` less the remainder that is measured.
    """
    rest, tokens = h.clone(), torch.arange(h.shape[0], device=h.device)
    basis, shares = h.new_zeros(h.shape[0], most, h.shape[2]), h.new_zeros(*h.shape[:2], most)
    limit = (ROUNDING * torch.finfo(h.dtype).eps) ** 2 * torch.einsum("nad,nad->na", h, h).amax(-1)
    rank = torch.zeros_like(tokens)
    largest, row = torch.einsum("nad,nad->na", rest, rest).max(-1)
    for k in range(most):
        lacking = ~(largest <= limit)
        if k % LOOK[h.device.type] == 0 and not bool(lacking.any()):
            break  # directions found beyond that are zeros
        rank += lacking
        q = rest[tokens, row] * (lacking * largest.clamp_min(torch.finfo(h.dtype).tiny).rsqrt())[:, None]
        c = torch.bmm(rest, q[:, :, None])
        rest.baddbmm_(c, q[:, None], alpha=-1)
        basis[:, k], shares[:, :, k] = q, c[..., 0]
        largest, row = torch.einsum("nad,nad->na", rest, rest).max(-1)
    return Span(basis, shares, rank, largest <= limit)


def variant_scores(h: Float[Tensor, "A N D"], decoder: Decoder, y: Int[Tensor, " N"]) -> Scores:
    """Loss and correctness of every token under each of its A hidden states; no gradient."""
    count, tokens, width = h.shape
    loss, correct = h.new_empty(tokens, count), torch.empty(tokens, count, dtype=torch.bool, device=h.device)
    most = int(0.9 * count * width / (width + 1.5 * count))  # more directions than this cost more than they save
    room = h.new_empty(LOGITS[h.device.type])
    for few in slices(tokens, STATES[h.device.type] // (count * width)):
        states, gold = h[:, few].transpose(0, 1).contiguous(), y[few]
        found = span(states, most)
        order = torch.argsort(torch.where(found.enough, found.rank, most + 1))
        ranks, enough = torch.stack([found.rank[order], found.enough[order].long()]).cpu()  # all that shapes depend on
        for part in slices(len(order), TOKENS[h.device.type]):
            which = order[part]
            rank = int(ranks[part].max())
            whole = not bool(enough[part].all())
            factors = (states[which], None) if whole else (found.basis[which, :rank], found.shares[which, :, :rank])
            loss[few.start + which], correct[few.start + which] = _score(*factors, decoder, gold[which], room)
    loss, correct = loss.T, correct.T
    if len(wild := torch.nonzero(~torch.isfinite(loss).all(0))[:, 0]):
        plain = token_scores(h[:, wild].contiguous(), decoder.weight[None], decoder.bias[None], y[wild])
        loss[:, wild], correct[:, wild] = plain
    return Scores(loss, correct)


def _score(
    basis: Float[Tensor, "N R D"],
    shares: Float[Tensor, "N A R"] | None,
    decoder: Decoder,
    y: Int[Tensor, " N"],
    room: Float[Tensor, " M"],
) -> tuple[Float[Tensor, "N A"], Bool[Tensor, "N A"]]:
    """Losses (not a number where exp left the SAFE range) and correctness, a block of words at a time."""
    count = len(y), (basis if shares is None else shares).shape[1]
    left, mix = _extend(basis, shares, basis.new_zeros(len(y)))
    shift = _logits(left, mix, decoder.wide[:PROBE], None).amax((1, 2))
    left, mix = _extend(basis, shares, -shift)
    total, best, gold = (basis.new_full(count, fill) for fill in (0.0, -torch.inf, 0.0))
    block = max(1, len(room) // (count[0] * count[1]))
    for words in slices(len(decoder.wide), block):
        z = _logits(left, mix, decoder.wide[words], room)
        best = torch.maximum(best, z.amax(-1))
        at = (y - words.start).clamp(0, z.shape[-1] - 1)[:, None, None].expand(*count, 1)
        gold = torch.where(((y >= words.start) & (y < words.stop))[:, None], z.gather(-1, at)[..., 0], gold)
        total += z.exp_().sum(-1)
    safe = (total > SAFE[0]) & (total < SAFE[1])
    return torch.where(safe, total.log() - gold, torch.nan), gold >= best


def _extend(
    basis: Float[Tensor, "N R D"], shares: Float[Tensor, "N A R"] | None, shift: Float[Tensor, " N"]
) -> tuple[Float[Tensor, "N S K"], Float[Tensor, "N A S"] | None]:
    """The same with the bias and the shift, which every variant has once."""
    tokens, rank, width = basis.shape
    left = basis.new_zeros(tokens, rank + (shares is not None), width + 2)
    left[:, :rank, :width] = basis
    own = slice(None) if shares is None else slice(rank, None)
    left[:, own, width] = 1
    left[:, own, width + 1] = shift[:, None]
    return left, None if shares is None else torch.cat([shares, torch.ones_like(shares[:, :, :1])], 2)


def _logits(
    left: Float[Tensor, "N S K"],
    mix: Float[Tensor, "N A S"] | None,
    wide: Float[Tensor, "W K"],
    room: Float[Tensor, " M"] | None,
) -> Float[Tensor, "N A W"]:
    tokens, rank, width = left.shape
    rows = left.reshape(-1, width)
    if mix is None:
        return _product(rows, wide, room).view(tokens, rank, -1)
    some = torch.mm(rows, wide.T).view(tokens, rank, -1)
    if room is None:
        return torch.bmm(mix, some)
    shape = (tokens, mix.shape[1], some.shape[2])
    return torch.bmm(mix, some, out=room[: shape[0] * shape[1] * shape[2]].view(shape))


def _product(rows: Float[Tensor, "R K"], wide: Float[Tensor, "W K"], room: Float[Tensor, " M"] | None) -> Tensor:
    if room is None:
        return torch.mm(rows, wide.T)
    return torch.mm(rows, wide.T, out=room[: len(rows) * len(wide)].view(len(rows), len(wide)))


def slices(count: int, size: int) -> Iterator[slice]:
    """The numbers from 0 to count, that one left out, in pieces of `size`, the last one shorter; never less than 1."""
    for start in range(0, count, max(1, size)):
        yield slice(start, min(start + max(1, size), count))
