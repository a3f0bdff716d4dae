"""Operands of a matrix product: which axis is batch, head, query, key or width, and how to read and replace them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from trisect.core.subject import Parts, Writer
from trisect.hf.arguments import Arguments, NamedArguments

SDPA = F.scaled_dot_product_attention
SOFTMAX = {torch.softmax, F.softmax, Tensor.softmax}
MATMUL = {torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm}
BADDBMM = {torch.baddbmm, Tensor.baddbmm}
STOPS = {F.linear, F.layer_norm, F.rms_norm, F.embedding, F.conv1d, torch.conv1d, torch.addmm, F.cross_entropy}
TIMES = {"mul", "mul_", "__mul__", "__rmul__", "__imul__", "multiply"}
OVER = {"div", "div_", "__truediv__", "__itruediv__", "true_divide", "divide"}
# functions after which a score is still the same multiple of q·k, or has something added to it
SAME = {
    *("add", "add_", "__add__", "__radd__", "__iadd__", "sub", "__sub__", "masked_fill", "masked_fill_", "where"),
    *("view", "reshape", "transpose", "permute", "contiguous", "to", "float", "type", "type_as", "clone", "unsqueeze"),
    *("squeeze", "flatten", "unflatten", "__getitem__", "detach", "cat", "concat", "half", "bfloat16", "double", "max"),
}
ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")


def tensors_in(given: Iterable[object]) -> list[Tensor]:
    """The tensors in nested lists, tuples and dicts, in their order."""
    found: list[Tensor] = []
    for x in given:
        if isinstance(x, Tensor):
            found.append(x)
        elif isinstance(x, (tuple, list)):
            found += tensors_in(x)
        elif isinstance(x, dict):
            found += tensors_in(x.values())
    return found


def factor_after(func: Callable[..., Any], args: Arguments, factor: float | None) -> float | None:
    """What multiplies q·k after that function, null where it is no longer one number."""
    name = getattr(func, "__name__", "")
    if factor is None or name in SAME:
        return factor
    if (name in TIMES or name in OVER) and len(args) == 2:
        numbers = [x for x in args if isinstance(x, (int, float)) or (isinstance(x, Tensor) and x.numel() == 1)]
        if len(numbers) == 1 and (name in TIMES or numbers[0] is args[1]):
            return factor * float(numbers[0]) if name in TIMES else factor / float(numbers[0])
    return None


@dataclass(frozen=True, eq=False)
class Operand:
    """One tensor of a product: a letter per axis, and the order in which a Trace has them.

    The order has four letters (batch, head, position, position or width), or three where batch and heads are one axis.
    """

    tensor: Tensor
    letters: str
    order: str

    def of(self, tensor: Tensor) -> Operand:
        """Another tensor that lies the same way."""
        return replace(self, tensor=tensor)

    def fits(self, rows: int) -> bool:
        """Whether batch and heads show: one axis of both is as long as the texts, times a count of heads."""
        return len(self.order) == 4 or self.tensor.shape[self.letters.index(self.order[0])] % rows == 0

    def take(self, rows: int) -> Tensor:
        """The tensor as [B H T E]; `rows` is B."""
        found = self.tensor.permute([self.letters.index(c) for c in self.order])
        return found if len(self.order) == 4 else found.unflatten(0, (rows, -1))

    def give(self, canonical: Tensor) -> Tensor:
        """A tensor [B H T E] laid out as this one."""
        found = canonical if len(self.order) == 4 else canonical.flatten(0, 1)
        return found.permute([self.order.index(c) for c in self.letters])


@dataclass(frozen=True, eq=False)
class Product:
    """A product of two tensors, a letter per axis; `call` computes it from two operands."""

    left: Tensor
    right: Tensor
    letters: tuple[str, str, str]
    call: Callable[[Tensor, Tensor], Tensor]
    factor: float = 1.0

    def run(self) -> Tensor:
        """The product as the model asked for it."""
        return self.call(self.left, self.right)

    @property
    def batched(self) -> bool:
        """Whether both operands and the result share an axis, as no projection does."""
        a, b, c = self.letters
        return bool(set(a) & set(b) & set(c))

    @property
    def width(self) -> int:
        """How many products are summed."""
        a, b, out = self.letters
        return prod(n for c, n in zip(a, self.left.shape, strict=True) if c in b and c not in out)

    def _split(self) -> tuple[str, str, str, str] | None:
        """Letters of batch and heads, of left's own axis, of right's own axis, and of the sum; null if not so."""
        a, b, out = self.letters
        batch = "".join(c for c in out if c in a and c in b)
        own = [c for c in out if c in a and c not in b], [c for c in out if c in b and c not in a]
        summed = [c for c in a if c in b and c not in out]
        if len(batch) not in (1, 2) or [len(x) for x in (*own, summed)] != [1, 1, 1]:
            return None
        if len(a) != len(b) or len(out) != len(a) or len(set(a)) != len(a):
            return None
        return batch, own[0][0], own[1][0], summed[0]

    def _roles(self) -> tuple[int, Operand, Operand] | None:
        """Which operand is the query's, the query's, and the key's: the key's axis comes last in the scores."""
        split = self._split()
        if split is None:
            return None
        batch, left, right, summed = split
        ends = Operand(self.left, self.letters[0], batch + left + summed)
        other = Operand(self.right, self.letters[1], batch + right + summed)
        out = self.letters[2]
        return (0, ends, other) if out.index(left) < out.index(right) else (1, other, ends)

    def makes_scores(self, given: Tensor, rows: int) -> bool:
        """Whether this product's result, masked and shaped, can be what the softmax was given."""
        roles = self._roles()
        if roles is None or given.dim() not in (3, 4):
            return False
        _, q, k = roles
        if (len(q.order) == 3 and q.tensor.dim() != 3) or not (q.fits(rows) and k.fits(rows)):
            return False
        one, other = q.take(rows), k.take(rows)
        if one.shape[0] != other.shape[0] or other.shape[1] not in (1, one.shape[1]):
            return False
        # sinks append a column to the scores
        length, keys = one.shape[2], other.shape[2]
        heads = one.shape[0] * one.shape[1]
        return given.shape[-2] == length and keys <= given.shape[-1] <= keys + 1 and given.shape[:-2].numel() == heads

    def query(self, rows: int) -> Tensor:
        """q [B H T E]."""
        roles = self._roles()
        assert roles is not None
        return roles[1].take(rows)

    def key(self, rows: int) -> Tensor:
        """k [B K S E]."""
        roles = self._roles()
        assert roles is not None
        return roles[2].take(rows)

    def with_scores_of(self, q: Tensor, k: Tensor) -> Product:
        """The same product of other queries and keys."""
        roles = self._roles()
        assert roles is not None
        side, first, second = roles
        return self.replaced(side, first.give(q)).replaced(1 - side, second.give(k))

    def replaced(self, side: int, tensor: Tensor) -> Product:
        """The same product with another operand."""
        return replace(self, right=tensor) if side else replace(self, left=tensor)

    def mixing(self, side: int) -> tuple[Operand, Operand, Operand] | None:
        """Weights (the operand at `side`), values and result as operands; null where that is not what it is."""
        split = self._split()
        if split is None:
            return None
        batch, *own, summed = split
        operands = self.left, self.right
        weights = Operand(operands[side], self.letters[side], batch + own[side] + summed)
        values = Operand(operands[1 - side], self.letters[1 - side], batch + summed + own[1 - side])
        return weights, values, Operand(operands[side], self.letters[2], batch + own[side] + own[1 - side])


def product_of(func: Callable[..., Any], args: Arguments, kwargs: NamedArguments) -> Product | None:
    """The product of two tensors that a call of one of torch's functions is; null where it is none."""
    if func is torch.einsum:
        tensors = args[1] if len(args) == 2 and isinstance(args[1], (tuple, list)) else args[1:]
        return _of_einsum(args[0], tuple(tensors)) if len(tensors) == 2 and isinstance(args[0], str) else None
    if func in MATMUL:
        values = [*args, *kwargs.values()]
        if len(values) != 2 or not all(isinstance(x, Tensor) and x.dim() >= 2 for x in values):
            return None
        return Product(values[0], values[1], _letters(*values), lambda a, b: func(a, b))
    if func in BADDBMM:
        given = {**dict(zip(("input", "batch1", "batch2"), args, strict=False)), **kwargs}
        added, a, b = (given.pop(name) for name in ("input", "batch1", "batch2"))
        return Product(a, b, _letters(a, b), lambda a, b: func(added, a, b, **given), float(given.get("alpha", 1.0)))
    return None


def _letters(a: Tensor, b: Tensor) -> tuple[str, str, str]:
    batch = "abcdefgh"[: max(a.dim(), b.dim()) - 2]
    return batch[len(batch) + 2 - a.dim() :] + "tx", batch[len(batch) + 2 - b.dim() :] + "xs", batch + "ts"


def _of_einsum(equation: str, tensors: tuple[Tensor, Tensor]) -> Product | None:
    inputs, _, out = equation.replace(" ", "").partition("->")
    first, _, second = inputs.partition(",")
    if "." in inputs:  # axes without a letter get one
        rest = [t.dim() - len(s.replace("...", "")) for t, s in zip(tensors, (first, second), strict=True)]
        extra = "ABCDEFGH"[: max(rest)]
        first, second = (s.replace("...", extra[len(extra) - n :]) for s, n in zip((first, second), rest, strict=True))
        out = out.replace("...", extra)
    return Product(*tensors, (first, second, out), lambda a, b: torch.einsum(equation, a, b))


class SdpaCall(NamedTuple):
    """One use of torch's own attention: what went in, its weights, and what came out, as it lies and as [B H T E]."""

    parts: Parts
    weights: Tensor
    output: Tensor
    result: Tensor
    scale: float


def use_sdpa(
    args: Arguments, kwargs: NamedArguments, rows: int, writer: Writer | None, held: Tensor | None
) -> SdpaCall:
    """`scaled_dot_product_attention` with q, k, v replaced or weights held; its weights are what it makes of v = I."""
    given: dict[str, Any] = {**dict(zip(ARGUMENTS, args, strict=False)), **kwargs}
    merged = given["query"].dim() == 3

    def split(t: Tensor) -> Tensor:
        return t.unflatten(0, (rows, -1)) if merged else t

    parts = Parts(*(split(given[name]) for name in ARGUMENTS[:3]))
    if writer is not None:
        parts = writer(parts)
        given |= {n: t.flatten(0, 1) if merged else t for n, t in zip(ARGUMENTS[:3], parts, strict=True)}
    value = given["value"]
    if held is None:
        eye = torch.eye(value.shape[-2], dtype=value.dtype, device=value.device).expand(*value.shape[:-1], -1)
        with torch.no_grad():  # a checkpointed layer counts what its graph keeps
            weights = split(SDPA(**{**given, "value": eye, "dropout_p": 0.0}))
        result = SDPA(**given)
    else:
        weights = held.to(value)
        heads = parts.v.repeat_interleave(weights.shape[1] // parts.v.shape[1], 1)
        result = weights @ heads
        result = result.flatten(0, 1) if merged else result
    scale = given.get("scale")
    return SdpaCall(parts, weights, split(result), result, parts.q.shape[-1] ** -0.5 if scale is None else scale)
