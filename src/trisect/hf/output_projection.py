"""The output projection W_O of an attention call, found by the values that enter it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from trisect.core.trace import Origin
from trisect.hf.affine import Affine, Passed, PassRecord
from trisect.hf.calls import Call


class Output(NamedTuple):
    """W_O of one call: where it comes from, [H E D], b_O [D], and the use of it."""

    origin: Origin
    weight: Tensor | None = None
    bias: Tensor | None = None
    passed: Passed | None = None


def find_output(call: Call, record: PassRecord, sources: Sequence[Passed], allowed: float) -> Output:
    """The first affine map after a call that its output enters, as it is; else what lies between.

    `sources` are the maps that q, k and v come from. The residual compares Σ_h weights v W_O + b_O with what the map
    gave, as a share of the largest value.
    """
    after = [p for p in record.passed if p.calls > call.order]
    for passed in after:
        columns = _columns(call.output.detach(), passed.x.detach())
        if columns is not None:
            return _checked(call, passed, columns, allowed)
        if _depends(passed, sources):
            return Output(_between(call, record, passed, sources), passed=passed)
    return Output(Origin("unknown", "the output enters no affine map of this model"))


def _columns(output: Tensor, x: Tensor) -> Tensor | None:
    """Which input unit of x each (head, dimension) of output [B H T E] is, bit for bit; null where one is not there."""
    rows, heads, length, width = output.shape
    if x.shape[:-1].numel() != rows * length or x.dtype != output.dtype:
        return None
    for dims in ((0, 2, 1, 3), (2, 0, 1, 3)):
        flat = output.permute(dims).reshape(rows * length, heads * width)
        given = x.reshape(rows * length, -1)
        if given.shape == flat.shape and torch.equal(given, flat):
            return torch.arange(heads * width).view(heads, width)
        place = {column.tobytes(): i for i, column in enumerate(_bytes(given))}
        found = [place.get(column.tobytes(), -1) for column in _bytes(flat)]
        if min(found) >= 0 and len(set(found)) == len(found):
            return torch.tensor(found).view(heads, width)
    return None


def _bytes(flat: Tensor):  # noqa: ANN202 - NumPy rows
    return flat.T.contiguous().cpu().view(torch.uint8).numpy()


def _depends(passed: Passed, sources: Sequence[Passed]) -> bool:
    leaves = [s.leaf for s in sources]
    if not passed.x.requires_grad or not leaves:
        return False
    found = torch.autograd.grad(passed.x.sum(), leaves, retain_graph=True, allow_unused=True)
    return any(g is not None for g in found)


def _checked(call: Call, passed: Passed, columns: Tensor, allowed: float) -> Output:
    affine, flat = passed.map(), columns.flatten()
    weight = affine.weight[:, flat].detach().T.reshape(*columns.shape, -1)
    made = _summed(call, weight)
    x, y = passed.x.detach(), passed.leaf.detach().reshape(-1, weight.shape[-1])
    words = f"columns of {passed.name}"
    others = _others(affine, flat)
    if len(others):
        beside = x.reshape(-1, x.shape[-1])[:, others] @ affine.weight[:, others].detach().T
        made = made + beside[_order(call, x)].view(made.shape)
        words += f", whose other {len(others)} inputs are not attention's"
    made = made if affine.bias is None else made + affine.bias.detach()
    size = float(y.abs().max().clamp_min(torch.finfo(y.dtype).tiny))
    off = min(float((made.reshape(-1, y.shape[-1]) - y[order]).abs().max()) for order in _orders(call)) / size
    origin = Origin("rows", words, affine.parameter, affine.bias_parameter, columns, affine.transposed, 1.0, off)
    if not off <= allowed:
        words = f"the output enters {passed.name}, but recomputed from it that is off by {off:.1e}"
        return Output(Origin("unknown", words, residual=off), passed=passed)
    return Output(origin, weight, affine.bias, passed)


def _others(affine: Affine, flat: Tensor) -> Tensor:
    mask = torch.ones(affine.weight.shape[1], dtype=torch.bool)
    mask[flat] = False
    return mask.nonzero().flatten()


def _orders(call: Call) -> tuple[Tensor, Tensor]:
    """Where row (b, t) of a batch stands in what is stored batch first, and time first."""
    rows, _, length, _ = call.output.shape
    number = torch.arange(rows * length)
    return number, number.view(length, rows).T.flatten()


def _order(call: Call, x: Tensor) -> Tensor:
    return _orders(call)[0 if x.shape[0] == len(call.output) or x.dim() == 2 else 1]


def _summed(call: Call, weight: Tensor) -> Tensor:
    """Σ_h weights_h v_h W_O[h] as [B T D], with the weights where the hook has them."""
    mixed = call.output.detach()
    if call.weights is not None:
        v = call.v.detach()
        mixed = call.weights.detach() @ v.repeat_interleave(call.weights.shape[1] // v.shape[1], 1)
    return torch.einsum("bhte,hed->btd", mixed.to(weight), weight)


def _between(call: Call, record: PassRecord, passed: Passed, sources: Sequence[Passed]) -> Origin:
    """What lies between attention's output and the map that it enters."""
    for norm in record.normed:
        if norm.calls == call.order + 1 and _columns(call.output.detach(), norm.x) is not None:
            return Origin("normed", f"the output is normed before it enters {passed.name}")
    used = {id(s.leaf) for s in sources}
    near = [p for p in record.passed if p.calls <= call.order + 1 and p.leaf is not passed.leaf]
    grads = torch.autograd.grad(passed.x.sum(), [p.leaf for p in near], retain_graph=True, allow_unused=True)
    reached = {p.name for p, g in zip(near, grads, strict=True) if g is not None and id(p.leaf) not in used}
    query = {p.name for p in sources if p.leaf.shape[-1] > call.q.shape[1] * call.q.shape[3]}
    names = sorted(reached | query)
    if names:
        return Origin(
            "gated", f"the output is multiplied by what {', '.join(names)} makes before it enters {passed.name}"
        )
    return Origin("unknown", f"the output is changed before it enters {passed.name}")
