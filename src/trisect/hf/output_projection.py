"""The output projection W_O of an attention call, found by the values that enter it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from trisect.core.trace import Origin
from trisect.hf.affine import Affine, Passed, PassRecord, rows_of
from trisect.hf.calls import Call
from trisect.hf.operands import tensors_in
from trisect.hf.quantised import share_of
from trisect.hf.sketches import OutLaw, map_law, out_law

UNFOLLOWED = "gradients off, by which its map would be found"


class Output(NamedTuple):
    """W_O of one call: where it comes from, [H E D], b_O [D], the use of it, and its law on every read."""

    origin: Origin
    weight: Tensor | None = None
    bias: Tensor | None = None
    passed: Passed | None = None
    law: OutLaw | None = None


class Left(NamedTuple):
    """What a module gave on: its tensors of numbers, and how many uses of affine maps came before that."""

    name: str
    made: tuple[Tensor, ...]
    uses: int


@contextlib.contextmanager
def leaving(model: nn.Module, record: PassRecord) -> Iterator[list[Left]]:
    """What every module with parts gives on in the passes inside, in the order in which they end."""
    left: list[Left] = []

    def note(name: str, out: Any) -> None:
        made = tuple(t.clone() for t in tensors_in((out,)) if t.is_floating_point())
        if made:
            left.append(Left(name, made, len(record.passed)))

    with contextlib.ExitStack() as stack:
        for name, module in model.named_modules():
            if list(module.children()):
                stack.callback(module.register_forward_hook(lambda _m, _a, out, name=name: note(name, out)).remove)
        yield left


def find_consumers(calls: Sequence[Call], record: PassRecord) -> tuple[tuple[Passed, ...], ...]:
    """For every call the affine maps that its output enters, whatever happens to it on the way, with no other map between."""
    found: list[list[Passed]] = [[] for _ in calls]
    for passed in record.passed:
        before = [
            i for i, c in enumerate(calls) if c.order < passed.calls and c.raw is not None and c.raw.requires_grad
        ]
        if not passed.x.requires_grad or not before:
            continue
        draw = torch.Generator().manual_seed(0)
        mixed = torch.randn(passed.x.shape, generator=draw).to(passed.x)  # a plain sum is blind behind a norm
        raws = [raw for i in before if (raw := calls[i].raw) is not None]
        made = torch.autograd.grad((passed.x * mixed).sum(), raws, retain_graph=True, allow_unused=True)
        for i, gradient in zip(before, made, strict=True):
            if gradient is not None and bool(gradient.any()):
                found[i].append(passed)
    return tuple(tuple(own) for own in found)


def find_output(
    call: Call,
    record: PassRecord,
    sources: Sequence[Passed],
    consumers: Sequence[Passed],
    left: Sequence[Left],
    allowed: float,
) -> Output:
    """The one affine map that a call's output enters, as it is; else what lies between, or that there is no such map.

    `sources` are the maps that q, k and v come from, `consumers` those that the output enters. The residual compares
    Σ_h weights v W_O + b_O with what the map gave, as a share of the largest value.
    """
    names = list(dict.fromkeys(p.name for p in consumers))
    if not names:
        later = next((p for p in record.passed if p.calls > call.order), None)
        found = "enters no affine map of this model"
        found = found if later is None or later.followed else f"goes on where the model switches {UNFOLLOWED}"
        return Output(Origin("unknown", f"the output {found}"))
    if len(names) > 1:
        shown = f"{', '.join(names[:3])} and {len(names) - 3} more" if len(names) > 4 else " and ".join(names)
        words = f"the output enters {shown}, so that no one map is W_O"
        return Output(Origin("mixed", words), passed=consumers[0])
    if (uses := len({(p.name, p.nth) for p in consumers})) > 1:
        words = f"the output enters {names[0]} {uses} times, so that no one use of it is W_O"
        return Output(Origin("mixed", words), passed=consumers[0])
    passed = consumers[0]
    columns = _columns(call.output.detach(), passed.x.detach())
    if columns is None:
        return Output(_between(call, record, passed, sources), passed=passed)
    found = _checked(call, passed, columns, allowed)
    if found.weight is None:
        return found
    owner = _common(call.module, passed.name)
    made = _left_by(owner, passed, record, left)
    if made is not None and _changed(made, passed, allowed) and not _normed_after(record, passed, made, allowed):
        words = f"what {passed.name} makes of the output is not what {owner or 'the model'} adds: it is changed before it leaves"
        return Output(Origin("mixed", words), passed=passed)
    if made is not None and (next_map := _entered(record, passed, made, owner)) is not None:
        words = f"what {passed.name} makes of the output enters {next_map} before it leaves {owner}, so that neither alone is W_O"
        return Output(Origin("mixed", words), passed=passed)
    same = made is not None and made.shape == passed.leaf.shape and torch.equal(made.detach(), passed.leaf.detach())
    law = map_law(passed.name, passed.nth, passed.map())
    time_first = not torch.equal(
        _flat(call.output.detach(), False), passed.x.detach().reshape(-1, passed.x.shape[-1])[:, columns.flatten()]
    )
    return found._replace(law=out_law(law, columns, owner if same and owner else None, time_first))


def _left_by(owner: str, passed: Passed, record: PassRecord, left: Sequence[Left]) -> Tensor | None:
    """What a module gave on after that use of a map inside it: of several tensors the one that its result is in."""
    index = next(i for i, p in enumerate(record.passed) if p is passed)
    made = next((one.made for one in left if one.name == owner and one.uses > index), ())
    alike = (t for t in made if t.numel() == passed.leaf.numel() and _reaches(t, passed))
    return next(alike, made[0] if made else None)


def _entered(record: PassRecord, passed: Passed, made: Tensor, owner: str) -> str | None:
    """The map of the same module that takes in what a use made, as it is, where nothing of that leaves the module otherwise."""
    if not owner or _reaches(made, passed):
        return None
    later = (p for p in record.passed if p is not passed and p.calls == passed.calls and p.name.startswith(f"{owner}."))
    return next((p.name for p in later if _same(p.x.detach(), passed.leaf)), None)


def _changed(made: Tensor, passed: Passed, allowed: float) -> bool:
    """Whether a tensor that has a use's result in it has more of it than a sum."""
    if not made.requires_grad:
        return False
    draw = torch.Generator().manual_seed(0)
    mixed = torch.randn(made.shape, generator=draw).to(made)
    (gradient,) = torch.autograd.grad((made * mixed).sum(), passed.leaf, retain_graph=True, allow_unused=True)
    if gradient is None or gradient.numel() != mixed.numel():
        return False
    both = [gradient.reshape(mixed.shape)]
    if mixed.dim() == 3:  # time first on one side of it
        rows, length, width = mixed.shape
        both.append(gradient.reshape(length, rows, width).transpose(0, 1))
    off = min(float((g - mixed).abs().max()) for g in both)
    return off > allowed * float(mixed.abs().max())


def _normed_after(record: PassRecord, passed: Passed, made: Tensor, allowed: float) -> bool:
    """Whether what leaves is a norm of what was made and something besides: the block is LN(x + attention(x))."""
    for norm in record.normed:
        if norm.calls != passed.calls or norm.given.numel() != passed.leaf.numel() or not _same(norm.y, made):
            continue
        alone = _same(norm.x, passed.leaf.detach())
        if not alone and _reaches(norm.given, passed) and not _changed(norm.given, passed, allowed):
            return True
    return False


def _same(one: Tensor, other: Tensor) -> bool:
    return one.numel() == other.numel() and torch.equal(one.flatten(), other.detach().flatten())


def _reaches(made: Tensor, passed: Passed) -> bool:
    if not made.requires_grad:
        return False
    (gradient,) = torch.autograd.grad(made.sum(), passed.leaf, retain_graph=True, allow_unused=True)
    return gradient is not None


def _common(module: str, other: str) -> str:
    """The innermost module that holds both."""
    pairs = zip(module.split("."), other.split("."), strict=False)
    return ".".join(a for a, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _columns(output: Tensor, x: Tensor) -> Tensor | None:
    """Which input unit of x each (head, dimension) of output [B H T E] is, bit for bit; null where one is not there."""
    rows, heads, length, width = output.shape
    if x.shape[:-1].numel() != rows * length or x.dtype != output.dtype:
        return None
    for time_first in (False, True):
        flat = _flat(output, time_first)
        given = x.reshape(rows * length, -1)
        if given.shape == flat.shape and torch.equal(given, flat):
            return torch.arange(heads * width).view(heads, width)
        place = {column.tobytes(): i for i, column in enumerate(_bytes(given))}
        found = [place.get(column.tobytes(), -1) for column in _bytes(flat)]
        if min(found) >= 0 and len(set(found)) == len(found):
            return torch.tensor(found).view(heads, width)
    return None


def _flat(output: Tensor, time_first: bool) -> Tensor:
    rows, heads, length, width = output.shape
    return output.permute((2, 0, 1, 3) if time_first else (0, 2, 1, 3)).reshape(rows * length, heads * width)


def _bytes(flat: Tensor):  # noqa: ANN202 - NumPy rows
    return flat.T.contiguous().cpu().view(torch.uint8).numpy()


def _checked(call: Call, passed: Passed, columns: Tensor, allowed: float) -> Output:
    affine, flat = passed.map(), columns.flatten()
    weight = rows_of(affine.weight.detach().T, columns)
    made = _summed(call, weight)
    x, y = passed.x.detach(), passed.leaf.detach().reshape(-1, weight.shape[-1])
    words = f"columns of {passed.name}"
    others = _others(affine, flat)
    if len(others):
        beside = x.reshape(-1, x.shape[-1])[:, others] @ affine.weight[:, others].detach().T
        made = made + beside[_order(call, x)].view(made.shape)
        words += f", whose other {len(others)} inputs are not attention's"
    made = made if affine.bias is None else made + affine.bias.detach()
    rounding = None
    if passed.quantised is not None:
        lost, words = passed.rounded_off(), f"{words}, of {passed.quantised.words}"
        rounding, y = share_of(lost, y), y + lost.reshape(y.shape)  # as it would be made of what enters, unrounded
    size = float(y.abs().max().clamp_min(torch.finfo(y.dtype).tiny))
    off = min(float((made.reshape(-1, y.shape[-1]) - y[order]).abs().max()) for order in _orders(call)) / size
    origin = Origin(
        "rows", words, affine.parameter, affine.bias_parameter, columns, affine.transposed, 1.0, off, rounding
    )
    if not off <= max(allowed, passed.allowed):
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
    made = passed.x.sum()
    grads = (
        torch.autograd.grad(made, [p.leaf for p in near], retain_graph=True, allow_unused=True)
        if near and made.requires_grad
        else [None] * len(near)
    )
    reached = {p.name for p, g in zip(near, grads, strict=True) if g is not None and id(p.leaf) not in used}
    query = {p.name for p in sources if p.leaf.shape[-1] > call.q.shape[1] * call.q.shape[3]}
    names = sorted(reached | query)
    if names:
        return Origin(
            "gated", f"the output is multiplied by what {', '.join(names)} makes before it enters {passed.name}"
        )
    return Origin("unknown", f"the output is changed before it enters {passed.name}")
