"""How the weights of a call move with its q and k: as a softmax of `scale` q·k does, head by head."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from trisect.hf.calls import Call

NEAR = {
    torch.float64: 1e-3,
    torch.float32: 1e-3,
}  # of the largest derivative; in half precision sums of products round more
COARSE = 5e-2


class Response(NamedTuple):
    """Whether weights move as the softmax of `scale` q·k, whatever is added to it, and what forbids to read them at all.

    `sink` says that what rows are short of one stands in the softmax's denominator: that it falls where keys rise.
    """

    scaled: bool = True
    fault: str = ""
    sink: bool = True


def find_response(call: Call, q: Tensor, k: Tensor) -> Response:
    """Derivatives of one head's weights by q and k of a call, `q` and `k` being what was added to them, in their graph.

    With ds = w (r − Σ w r) of weights w and random r, those are scale · ds k and scale · dsᵀ q. A softcap has no one scale;
    weights that are mixed over heads move with the queries of others.
    """
    weights = call.weights
    if weights is None or not weights.requires_grad:
        return Response()  # computed apart, of what PyTorch's own attention makes
    heads, group = weights.shape[1], weights.shape[1] // k.shape[1]
    head, draw = call.order % heads, torch.Generator().manual_seed(call.order)
    mixed = torch.zeros_like(weights)
    mixed[:, head] = torch.randn(weights[:, head].shape, generator=draw).to(weights)
    made = torch.autograd.grad((weights * mixed).sum(), (q, k), retain_graph=True, allow_unused=True)
    by_q, by_k = (torch.zeros_like(t) if g is None else g.double() for t, g in zip((q, k), made, strict=True))
    near = max(NEAR.get(kind, COARSE) for kind in (call.q.dtype, weights.dtype))
    for name, found, own in (("queries", by_q, head), ("keys", by_k, head // group)):
        rest = found.abs().amax((0, 2, 3))
        size, rest[own] = float(rest[own]), 0
        if float(rest.max()) > near * size:
            return Response(False, f"the weights of a head depend on {name} of other heads")
    sink = _absorbs(call, k, near, float(by_k.abs().max()))
    if call.scale is None:
        return Response(False, sink=sink)
    w, r = weights.detach()[:, head].double(), mixed[:, head].double()
    scores = call.scale * w * (r - (w * r).sum(-1, keepdim=True))
    given_q, given_k = call.q.detach()[:, head].double(), call.k.detach()[:, head // group].double()
    pairs = (by_q[:, head], scores @ given_k), (by_k[:, head // group], scores.transpose(1, 2) @ given_q)
    return Response(all(float((a - b).abs().max()) <= near * float(b.abs().max()) for a, b in pairs), sink=sink)


def _absorbs(call: Call, k: Tensor, near: float, size: float) -> bool:
    """Whether rows' sums S move with the keys as those of a softmax with a sink do: dS = S (1 − S) times that of scores.

    A gate behind the softmax stays what it is, whatever the keys are. `size` is the largest derivative of one weight's.
    """
    assert call.weights is not None
    w = call.weights.detach().double()
    sums = w.sum(-1)
    short = (1 - sums).clamp_min(0).masked_fill(sums == 0, 0)  # a padded position may attend to nothing at all
    if float(short.max()) <= near:
        return True  # too little to be seen beside rounding, or nothing
    draw = torch.randn(short.shape, generator=torch.Generator().manual_seed(call.order), dtype=torch.float64).to(w)
    (made,) = torch.autograd.grad((call.weights.sum(-1) * draw).sum(), k, retain_graph=True, allow_unused=True)
    moved = torch.zeros_like(k, dtype=torch.float64) if made is None else made.double()
    if call.scale is None:
        return float(moved.abs().max()) > near * size * float(short.max())
    wanted = call.scale * (w * (draw * short)[..., None]).transpose(2, 3) @ call.q.detach().double()
    wanted = wanted.unflatten(1, (k.shape[1], -1)).sum(2)
    return float((moved - wanted).abs().max()) <= 10 * near * float(wanted.abs().max())


@contextlib.contextmanager
def unspoilt(model: nn.Module) -> Iterator[None]:
    """Inside, what gradients need is copied, so that a model may write over it, as inference code does."""
    own = {
        t.untyped_storage().data_ptr() for t in itertools.chain(model.parameters(), model.buffers()) if not t.is_meta
    }

    def keep(t: Tensor) -> Tensor:
        return t if t.layout != torch.strided or t.untyped_storage().data_ptr() in own else t.detach().clone()

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        yield
