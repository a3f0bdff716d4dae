"""Decoder and cross-entropy in one, a block of rows at a time, so that the logits are never held whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

# logits held at once: on a CPU 17 MB in float32, about what stays in a cache; on a GPU 2 GB
BLOCK = {"cpu": 4_200_000, "cuda": 500_000_000}
# those of one member in training, whose three products gain more from many rows than from a cache
TALL = {"cpu": 10_500_000, "cuda": 500_000_000}
FEW = {"cpu": 300_000, "cuda": 500_000_000}  # logits that softmax and sums go over at once: a core's own cache


class Scores(NamedTuple):
    """Cross-entropy in nats per token, and whether no word was likelier than the gold word."""

    loss: Float[Tensor, "F N"]
    correct: Bool[Tensor, "F N"]


class Gradients(NamedTuple):
    """Of each member's mean loss, with respect to hidden states, decoder weights and decoder biases."""

    hidden: Float[Tensor, "F N D"]
    weight: Float[Tensor, "F V D"]
    bias: Float[Tensor, "F V"]


def workspace(rows: int, vocabulary: int, like: Tensor) -> Float[Tensor, " S"]:
    """Room for one block of logits, to be handed to every call: on a CPU fresh pages cost more than the sums in them."""
    most = max(BLOCK[like.device.type], TALL[like.device.type])
    return like.new_empty(max(min(most, rows * vocabulary), vocabulary))


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
        most = BLOCK[h.device.type]
        for members, rows in blocks(h.shape[0], h.shape[1], w.shape[1], most, most):
            own = slice(None) if w.shape[0] == 1 else members
            z = _logits(h[members, rows], w[own], b[own], work)
            loss[members, rows], correct[members, rows] = _softmax(z, y[rows])
    return Scores(loss, correct)


def loss_and_gradients(
    h: Float[Tensor, "F N D"],
    w: Float[Tensor, "F V D"],
    b: Float[Tensor, "F V"],
    y: Int[Tensor, " N"],
    into: tuple[Float[Tensor, "F V D"], Float[Tensor, "F V"]] | None = None,
    work: Float[Tensor, " S"] | None = None,
) -> tuple[Scores, Gradients]:
    """Scores of every token, and the gradients of each member's mean loss, formed while a block is at hand.

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
        for members, rows in blocks(h.shape[0], count, w.shape[1], BLOCK[kind], TALL[kind]):
            z = _room(h[members, rows], w.shape[1], work)
            torch.bmm(h[members, rows], w[members].transpose(1, 2), out=z)
            loss[members, rows], correct[members, rows] = scores_in_place(z, b[members], y[rows], db[members], True)
            _multiply(z, w[members], dh[members, rows], False)
            _multiply(z.transpose(1, 2), scaled[members, rows], dw[members], rows.start > 0)
    return Scores(loss, correct), Gradients(dh.div_(count), dw, db.div_(count))


def scores_in_place(
    z: Float[Tensor, "F N V"], b: Float[Tensor, "F V"], y: Int[Tensor, " N"], db: Float[Tensor, "F V"], gold: bool
) -> Scores:
    """Scores of products that lack their biases; they become p, or with `gold` p - onehot(y), in place.

    The sums of that over rows are added to `db`. A few rows at a time, so that every pass over them but the first finds them in cache;
    products narrower than the biases are widened, and p narrowed again, within the same rows.
    """
    loss, correct = b.new_empty(z.shape[:2]), torch.empty(z.shape[:2], dtype=torch.bool, device=z.device)
    most, wide = FEW[z.device.type], None
    for members, rows in blocks(z.shape[0], z.shape[1], z.shape[2], most, most):
        few = z[members, rows]
        if z.dtype != b.dtype:
            wide = b.new_empty(few.numel()) if wide is None else wide  # the first block is the largest
            few = wide[: few.numel()].view(few.shape).copy_(few)
        few.add_(b[members, None])
        loss[members, rows], correct[members, rows] = _softmax(few, y[rows])
        if gold:
            at = y[rows].expand(few.shape[0], -1)[..., None]
            few.scatter_add_(-1, at, few.new_full((1, 1, 1), -1.0).expand(at.shape))
        db[members] += few.sum(1)
        if z.dtype != b.dtype:
            z[members, rows] = few
    return Scores(loss, correct)


def _multiply(a: Float[Tensor, "F I J"], b: Float[Tensor, "F J K"], into: Float[Tensor, "F I K"], add: bool) -> None:
    """into = a b, or is increased by it."""
    if add:
        into.baddbmm_(a, b)
    else:
        torch.bmm(a, b, out=into)


def _softmax(z: Float[Tensor, "F N V"], y: Int[Tensor, " N"]) -> Scores:
    """Scores of a block of logits, which become probabilities in place.

    log of the sum of exp(z) = max z - log(max p), which stays finite where the gold word's own p underflows.
    """
    top = z.amax(-1)
    chosen = z.gather(-1, y.expand(z.shape[0], -1)[..., None])[..., 0]
    torch.softmax(z, -1, out=z)
    return Scores(top - z.amax(-1).log_() - chosen, chosen == top)


def _logits(
    h: Float[Tensor, "F N D"], w: Float[Tensor, "G V D"], b: Float[Tensor, "G V"], work: Float[Tensor, " S"] | None
) -> Float[Tensor, "F N V"]:
    z = _room(h, w.shape[1], work)
    if w.shape[0] == 1:
        torch.addmm(b[0], h.reshape(-1, h.shape[2]), w[0].t(), out=z.view(-1, w.shape[1]))
        return z
    return torch.baddbmm(b[:, None], h, w.transpose(1, 2), out=z)


def _room(h: Float[Tensor, "F N D"], vocabulary: int, work: Float[Tensor, " S"] | None) -> Float[Tensor, "F N V"]:
    """Where the logits of those states go."""
    count = h.shape[0] * h.shape[1] * vocabulary
    return (h.new_empty(count) if work is None else work[:count]).view(h.shape[0], h.shape[1], vocabulary)


def blocks(members: int, rows: int, vocabulary: int, most: int, tall: int) -> Iterator[tuple[slice, slice]]:
    """Member and row slices whose logits fit a block; rows are only cut when one member alone does not fit `tall`."""
    together = max(1, most // (rows * vocabulary))
    # even heights: a thin last block costs as much as a full one
    height = min(-(-rows // -(-rows * vocabulary // tall)), max(1, tall // vocabulary))
    for f in range(0, members, together):
        for r in range(0, rows, height):
            yield slice(f, min(f + together, members)), slice(r, min(r + height, rows))
