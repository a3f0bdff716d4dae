"""Decoder and cross-entropy with narrow factors (bfloat16): what the gold words contribute keeps full precision."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from trisect.lm.loss import BLOCK, TALL, Gradients, Scores, blocks, scores_in_place
from trisect.lm.repeats import add_at


class NarrowDecoder:
    """`loss_and_gradients` with narrower factors in its three products; it keeps room for them from step to step.

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
    ) -> tuple[Scores, Gradients]:
        """Scores of every token, and gradients of each member's mean loss; those of the decoder go into `into`."""
        members, count, vocabulary, kind = h.shape[0], h.shape[1], w.shape[1], h.device.type
        loss, correct = h.new_empty(h.shape[:2]), torch.empty(h.shape[:2], dtype=torch.bool, device=h.device)
        dh, (dw, db) = torch.empty_like(h), into
        db.zero_()
        together = max(1, BLOCK[kind] // (count * vocabulary))
        with torch.no_grad():
            for first in range(0, members, together):
                own = slice(first, min(first + together, members))
                size = own.stop - own.start
                thin = self._room("w", (size, *w.shape[1:]), w).copy_(w[own])
                p = self._room("p", (size, count, vocabulary), h)
                low = h[own].to(self.dtype)
                for _, rows in blocks(1, count, vocabulary, TALL[kind], TALL[kind]):
                    # each product is narrow; softmax and its sums are taken in the precision of h
                    z = torch.bmm(low[:, rows], thin.transpose(1, 2), out=p[:, rows] if size == 1 else None)
                    loss[own, rows], correct[own, rows] = scores_in_place(z, b[own], y[rows], db[own], False)
                    if size > 1:
                        p[:, rows] = z
                    dh[own, rows] = torch.bmm(p[:, rows], thin).to(h.dtype)
                scaled = (h[own] / count).to(self.dtype)
                dw[own] = torch.bmm(p.transpose(1, 2), scaled, out=self._room("dw", (size, *w.shape[1:]), w))
            add_at(dw, y, h, -1 / count)
            add_at(db, y, db.new_full((1, 1), -1.0).expand(members, count))
            dh.sub_(w[:, y])
        return Scores(loss, correct), Gradients(dh.div_(count), dw, db.div_(count))

    def _room(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Room that was used before where it is large enough: on a CPU fresh pages cost more than what is done in them."""
        wanted = torch.Size(shape).numel()
        kept = self._rooms.get(name)
        if kept is None or kept.numel() < wanted:
            kept = self._rooms[name] = like.new_empty(wanted, dtype=self.dtype)
        return kept[:wanted].view(shape)
