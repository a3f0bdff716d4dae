"""Decoder and cross-entropy in one, block by block of rows, and losses of many variants of a hidden state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from trisect.lm.matmul import add_at

# logits held at once: on a CPU 17 MB in float32, about what stays in a cache; on a GPU 2 GB
BLOCK = {"cpu": 4_200_000, "cuda": 500_000_000}
# those of one member in training, whose three products gain more from many rows than from a cache
MEMBER_LOGITS = {"cpu": 10_500_000, "cuda": 500_000_000}
# logits that softmax and sums go over at once: a core's own cache
SOFTMAX_LOGITS = {"cpu": 300_000, "cuda": 500_000_000}


class Scores(NamedTuple):
    """Cross-entropy in nats per token, and whether no word was more likely than the true one."""

    loss: Float[Tensor, "F N"]
    correct: Bool[Tensor, "F N"]


class _Gradients(NamedTuple):
    """Gradients of each member's mean loss with respect to hidden states, decoder weights and decoder biases."""

    hidden: Float[Tensor, "F N D"]
    weight: Float[Tensor, "F V D"]
    bias: Float[Tensor, "F V"]


def workspace(rows: int, vocabulary: int, like: Tensor) -> Float[Tensor, " S"]:
    """Memory for a block of logits, reused by all calls: on a CPU new pages cost more than the sums."""
    limit = max(BLOCK[like.device.type], MEMBER_LOGITS[like.device.type])
    return like.new_empty(max(min(limit, rows * vocabulary), vocabulary))


def token_scores(
    h: Float[Tensor, "F N D"],
    w: Float[Tensor, "G V D"],
    b: Float[Tensor, "G V"],
    y: Int[Tensor, " N"],
    work: Float[Tensor, " S"] | None = None,
) -> Scores:
    """Loss and correctness of every token; the decoder may be shared by all members (G = 1). No gradient."""
    loss, correct = h.new_empty(h.shape[:2]), torch.empty(h.shape[:2], dtype=torch.bool, device=h.device)
    with torch.no_grad():
        limit = BLOCK[h.device.type]
        for members, rows in _blocks(h.shape[0], h.shape[1], w.shape[1], limit, limit):
            z, part = _room(h[members, rows], w.shape[1], work), h[members, rows]
            if w.shape[0] == 1:
                torch.addmm(b[0], part.reshape(-1, h.shape[2]), w[0].t(), out=z.view(-1, w.shape[1]))
            else:
                torch.baddbmm(b[members, None], part, w[members].transpose(1, 2), out=z)
            loss[members, rows], correct[members, rows] = _softmax(z, y[rows])
    return Scores(loss, correct)


def loss_and_gradients(
    h: Float[Tensor, "F N D"],
    w: Float[Tensor, "F V D"],
    b: Float[Tensor, "F V"],
    y: Int[Tensor, " N"],
    into: tuple[Float[Tensor, "F V D"], Float[Tensor, "F V"]] | None = None,
    work: Float[Tensor, " S"] | None = None,
) -> tuple[Scores, _Gradients]:
    """Scores of every token, and gradients of each member's mean loss, computed while a block is in cache.

    p = softmax(h Wᵀ + b); with r = p - onehot(y): dh = r W / N, dW = rᵀ h / N, db = sum of r over rows / N.
    dW and db are written into `into` where it is given. `work` is room for a block of logits (see `workspace`).
    """
    count, kind = h.shape[1], h.device.type
    loss, correct = h.new_empty(h.shape[:2]), torch.empty(h.shape[:2], dtype=torch.bool, device=h.device)
    dh = torch.empty_like(h)
    dw, db = into or (torch.empty_like(w), torch.empty_like(b))
    scaled = h / count
    db.zero_()
    with torch.no_grad():
        for members, rows in _blocks(h.shape[0], count, w.shape[1], BLOCK[kind], MEMBER_LOGITS[kind]):
            z = _room(h[members, rows], w.shape[1], work)
            torch.bmm(h[members, rows], w[members].transpose(1, 2), out=z)
            loss[members, rows], correct[members, rows] = _scores_in_place(z, b[members], y[rows], db[members], True)
            torch.bmm(z, w[members], out=dh[members, rows])
            of_words = z.transpose(1, 2), scaled[members, rows]
            if rows.start:
                dw[members].baddbmm_(*of_words)
            else:
                torch.bmm(*of_words, out=dw[members])
    return Scores(loss, correct), _Gradients(dh.div_(count), dw, db.div_(count))


def _scores_in_place(
    z: Float[Tensor, "F N V"], b: Float[Tensor, "F V"], y: Int[Tensor, " N"], db: Float[Tensor, "F V"], gold: bool
) -> Scores:
    """Scores from products without biases, which become p, or with `gold` p - onehot(y), in place.

    The sums of that over rows are added to `db`. A few rows at a time, so that every pass over them but the first finds them in cache;
    products narrower than the biases are widened, and p narrowed again, within the same rows.
    """
    loss, correct = b.new_empty(z.shape[:2]), torch.empty(z.shape[:2], dtype=torch.bool, device=z.device)
    limit, wide = SOFTMAX_LOGITS[z.device.type], None
    for members, rows in _blocks(z.shape[0], z.shape[1], z.shape[2], limit, limit):
        block = z[members, rows]
        if z.dtype != b.dtype:
            wide = b.new_empty(block.numel()) if wide is None else wide  # the first block is the largest
            block = wide[: block.numel()].view(block.shape).copy_(block)
        block.add_(b[members, None])
        loss[members, rows], correct[members, rows] = _softmax(block, y[rows])
        if gold:
            at = y[rows].expand(block.shape[0], -1)[..., None]
            block.scatter_add_(-1, at, block.new_full((1, 1, 1), -1.0).expand(at.shape))
        db[members] += block.sum(1)
        if z.dtype != b.dtype:
            z[members, rows] = block
    return Scores(loss, correct)


def _softmax(z: Float[Tensor, "F N V"], y: Int[Tensor, " N"]) -> Scores:
    """Scores of a block of logits, which become probabilities in place.

    log of the sum of exp(z) = max z - log(max p), which stays finite where the gold word's own p underflows.
    """
    top = z.amax(-1)
    chosen = z.gather(-1, y.expand(z.shape[0], -1)[..., None])[..., 0]
    torch.softmax(z, -1, out=z)
    return Scores(top - z.amax(-1).log_() - chosen, chosen == top)


def _room(h: Float[Tensor, "F N D"], vocabulary: int, work: Float[Tensor, " S"] | None) -> Float[Tensor, "F N V"]:
    """The memory for the logits of the states."""
    count = h.shape[0] * h.shape[1] * vocabulary
    return (h.new_empty(count) if work is None else work[:count]).view(h.shape[0], h.shape[1], vocabulary)


def _blocks(members: int, rows: int, vocabulary: int, limit: int, tall: int) -> Iterator[tuple[slice, slice]]:
    """Member and row slices whose logits fit a block; rows are split only if one member does not fit `tall`."""
    members_at_once = max(1, limit // (rows * vocabulary))
    # even heights: a thin last block costs as much as a full one
    height = min(-(-rows // -(-rows * vocabulary // tall)), max(1, tall // vocabulary))
    for f in range(0, members, members_at_once):
        for r in range(0, rows, height):
            yield slice(f, min(f + members_at_once, members)), slice(r, min(r + height, rows))


class NarrowDecoder:
    """`loss_and_gradients` with bfloat16 factors in its three products; its memory is reused from step to step.

    With p = softmax(h Wᵀ + b): dh = (p W - W[y]) / N and dW = (pᵀ h - onehot(y)ᵀ h) / N. The products with p are narrow; the
    terms of the gold words, where most of a young model's gradient lies, are sums of few numbers in the precision of `h`
    (on a CPU an error of 1e-4 of the gradient instead of 2e-3). One product over all rows makes dW, so that it is rounded once.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._rooms: dict[str, Tensor] = {}

    def __call__(
        self,
        h: Float[Tensor, "F N D"],
        w: Float[Tensor, "F V D"],
        b: Float[Tensor, "F V"],
        y: Int[Tensor, " N"],
        into: tuple[Float[Tensor, "F V D"], Float[Tensor, "F V"]],
    ) -> tuple[Scores, _Gradients]:
        """Scores of every token, and gradients of each member's mean loss; the decoder's are written to `into`."""
        members, count, vocabulary, kind = h.shape[0], h.shape[1], w.shape[1], h.device.type
        loss, correct = h.new_empty(h.shape[:2]), torch.empty(h.shape[:2], dtype=torch.bool, device=h.device)
        dh, (dw, db) = torch.empty_like(h), into
        db.zero_()
        members_at_once = max(1, BLOCK[kind] // (count * vocabulary))
        with torch.no_grad():
            for first in range(0, members, members_at_once):
                chosen = slice(first, min(first + members_at_once, members))
                size = chosen.stop - chosen.start
                thin = self._room("w", (size, *w.shape[1:]), w).copy_(w[chosen])
                p = self._room("p", (size, count, vocabulary), h)
                low = h[chosen].to(self.dtype)
                for _, rows in _blocks(1, count, vocabulary, MEMBER_LOGITS[kind], MEMBER_LOGITS[kind]):
                    # each product is narrow; softmax and its sums are taken in the precision of h
                    z = torch.bmm(low[:, rows], thin.transpose(1, 2), out=p[:, rows] if size == 1 else None)
                    loss[chosen, rows], correct[chosen, rows] = _scores_in_place(
                        z, b[chosen], y[rows], db[chosen], False
                    )
                    if size > 1:
                        p[:, rows] = z
                    dh[chosen, rows] = torch.bmm(p[:, rows], thin).to(h.dtype)
                scaled = (h[chosen] / count).to(self.dtype)
                dw[chosen] = torch.bmm(p.transpose(1, 2), scaled, out=self._room("dw", (size, *w.shape[1:]), w))
            add_at(dw, y, h, -1 / count)
            add_at(db, y, db.new_full((1, 1), -1.0).expand(members, count))
            dh.sub_(w[:, y])
        return Scores(loss, correct), _Gradients(dh.div_(count), dw, db.div_(count))

    def _room(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Reused memory if it is large enough: on a CPU new pages cost more than the work in them."""
        size = torch.Size(shape).numel()
        room = self._rooms.get(name)
        if room is None or room.numel() < size:
            room = self._rooms[name] = like.new_empty(size, dtype=self.dtype)
        return room[:size].view(shape)


ROUNDING = 64  # times the float's own step (8e-6 in float32): what of a variant's length may be left unspanned
# on a CPU what stays in a core's own cache, on a GPU few launches
STATES = {"cpu": 330_000, "cuda": 200_000_000}  # floats of hidden states factored at once
TOKENS = {"cpu": 32, "cuda": 1_024}  # tokens of like rank scored at once
LOGITS = {"cpu": 1_200_000, "cuda": 60_000_000}  # logits worked on at once
# directions found before a check whether they suffice, which waits for a GPU
DIRECTIONS_PER_CHECK = {"cpu": 1, "cuda": 8}
PROBE = 64  # the most frequent words; the largest of their logits is subtracted from all before exp
SAFE = (1e-25, 1e30)  # sums of exp outside which a token is scored the plain way


def extend_decoder(weight: Float[Tensor, "V D"], bias: Float[Tensor, " V"]) -> Float[Tensor, "V K"]:
    """The decoder's weights with its biases and a column of ones, so that one product gives logits."""
    return torch.cat([weight, bias[:, None], torch.ones_like(bias)[:, None]], 1)


def _span(
    h: Float[Tensor, "N A D"], max_count: int
) -> tuple[Float[Tensor, "N R D"], Float[Tensor, "N A R"], Int[Tensor, " N"], Bool[Tensor, " N"]]:
    """Up to `max_count` directions whose combinations are each token's variants to ROUNDING steps of the longest one.

    Returns directions and coefficients of each token, how many directions it needs, and whether they suffice.

    Gram-Schmidt with the largest remainder as the next direction. Directions need not be orthogonal to rounding: what
    is subtracted is what is kept, so that basis and shares give back `h` less the remainder that is measured.
    """
    rest, tokens = h.clone(), torch.arange(h.shape[0], device=h.device)
    basis, shares = h.new_zeros(h.shape[0], max_count, h.shape[2]), h.new_zeros(*h.shape[:2], max_count)
    limit = (ROUNDING * torch.finfo(h.dtype).eps) ** 2 * torch.einsum("nad,nad->na", h, h).amax(-1)
    rank = torch.zeros_like(tokens)
    largest, row = torch.einsum("nad,nad->na", rest, rest).max(-1)
    for k in range(max_count):
        lacking = ~(largest <= limit)
        if k % DIRECTIONS_PER_CHECK[h.device.type] == 0 and not bool(lacking.any()):
            break  # directions found beyond that are zeros
        rank += lacking
        q = rest[tokens, row] * (lacking * largest.clamp_min(torch.finfo(h.dtype).tiny).rsqrt())[:, None]
        c = torch.bmm(rest, q[:, :, None])
        rest.baddbmm_(c, q[:, None], alpha=-1)
        basis[:, k], shares[:, :, k] = q, c[..., 0]
        largest, row = torch.einsum("nad,nad->na", rest, rest).max(-1)
    return basis, shares, rank, largest <= limit


def variant_scores(h: Float[Tensor, "A N D"], wide: Float[Tensor, "V K"], y: Int[Tensor, " N"]) -> Scores:
    """Loss and correctness of every token under each of its A hidden states, `wide` being `extend_decoder`'s; no gradient."""
    count, tokens, width = h.shape
    loss, correct = h.new_empty(tokens, count), torch.empty(tokens, count, dtype=torch.bool, device=h.device)
    limit = int(0.9 * count * width / (width + 1.5 * count))  # more directions than this cost more than they save
    room = h.new_empty(LOGITS[h.device.type])
    for chunk in slices(tokens, STATES[h.device.type] // (count * width)):
        states, gold = h[:, chunk].transpose(0, 1).contiguous(), y[chunk]
        basis, shares, rank, enough = _span(states, limit)
        order = torch.argsort(torch.where(enough, rank, limit + 1))
        ranks, spanned = torch.stack([rank[order], enough[order].long()]).cpu()  # all that shapes depend on
        for part in slices(len(order), TOKENS[h.device.type]):
            which, size = order[part], int(ranks[part].max())
            spans = bool(spanned[part].all())
            factors = (basis[which, :size], shares[which, :, :size]) if spans else (states[which], None)
            loss[chunk.start + which], correct[chunk.start + which] = _score(*factors, wide, gold[which], room)
    loss, correct = loss.T, correct.T
    if len(wild := torch.nonzero(~torch.isfinite(loss).all(0))[:, 0]):
        weight, bias = wide[:, :width].contiguous(), wide[:, width].contiguous()
        loss[:, wild], correct[:, wild] = token_scores(h[:, wild].contiguous(), weight[None], bias[None], y[wild])
    return Scores(loss, correct)


def _score(
    basis: Float[Tensor, "N R D"],
    shares: Float[Tensor, "N A R"] | None,
    wide: Float[Tensor, "V K"],
    y: Int[Tensor, " N"],
    room: Float[Tensor, " M"],
) -> tuple[Float[Tensor, "N A"], Bool[Tensor, "N A"]]:
    """Losses (NaN if exp left the SAFE range) and correctness, block by block of words."""
    count = len(y), (basis if shares is None else shares).shape[1]
    left, mix = _extend(basis, shares, basis.new_zeros(len(y)))
    shift = _variants_logits(left, mix, wide[:PROBE], None).amax((1, 2))
    left, mix = _extend(basis, shares, -shift)
    total, best, gold = (basis.new_full(count, fill) for fill in (0.0, -torch.inf, 0.0))
    block = max(1, len(room) // (count[0] * count[1]))
    for words in slices(len(wide), block):
        z = _variants_logits(left, mix, wide[words], room)
        best = torch.maximum(best, z.amax(-1))
        at = (y - words.start).clamp(0, z.shape[-1] - 1)[:, None, None].expand(*count, 1)
        gold = torch.where(((y >= words.start) & (y < words.stop))[:, None], z.gather(-1, at)[..., 0], gold)
        total += z.exp_().sum(-1)
    safe = (total > SAFE[0]) & (total < SAFE[1])
    return torch.where(safe, total.log() - gold, torch.nan), gold >= best


def _extend(
    basis: Float[Tensor, "N R D"], shares: Float[Tensor, "N A R"] | None, shift: Float[Tensor, " N"]
) -> tuple[Float[Tensor, "N S K"], Float[Tensor, "N A S"] | None]:
    """The same with the bias, and the shift of every variant."""
    tokens, rank, width = basis.shape
    left = basis.new_zeros(tokens, rank + (shares is not None), width + 2)
    left[:, :rank, :width] = basis
    columns = slice(None) if shares is None else slice(rank, None)
    left[:, columns, width] = 1
    left[:, columns, width + 1] = shift[:, None]
    return left, None if shares is None else torch.cat([shares, torch.ones_like(shares[:, :, :1])], 2)


def _variants_logits(
    left: Float[Tensor, "N S K"],
    mix: Float[Tensor, "N A S"] | None,
    wide: Float[Tensor, "W K"],
    room: Float[Tensor, " M"] | None,
) -> Float[Tensor, "N A W"]:
    tokens, rank, width = left.shape
    rows = left.reshape(-1, width)
    if mix is None:
        out = None if room is None else room[: len(rows) * len(wide)].view(len(rows), len(wide))
        return torch.mm(rows, wide.T, out=out).view(tokens, rank, -1)
    spanned = torch.mm(rows, wide.T).view(tokens, rank, -1)
    if room is None:
        return torch.bmm(mix, spanned)
    shape = (tokens, mix.shape[1], spanned.shape[2])
    return torch.bmm(mix, spanned, out=room[: shape[0] * shape[1] * shape[2]].view(shape))


def slices(count: int, size: int) -> Iterator[slice]:
    """Slices from 0 to count, without the excluded one, of at most `size`; never less than 1."""
    for start in range(0, count, max(1, size)):
        yield slice(start, min(start + max(1, size), count))
