"""Records of attention calls, the operands of matrix products, and models whose forward pass can be followed."""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import threading
import types
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeAlias, TypeVar, cast, runtime_checkable

import torch
import torch.nn.functional as F
import torch.utils.checkpoint as checkpoints
from jaxtyping import Float
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.overrides import _get_current_function_mode_stack, handle_torch_function, has_torch_function
from transformers.cache_utils import Cache
from transformers.pytorch_utils import Conv1D

from trisect.core.errors import ModelError, SiteError
from trisect.core.subject import QKV, Writer
from trisect.core.trace import Address


class Call(NamedTuple):
    """One recorded attention call: tensors in the model's autograd graph, in the shapes of a Trace.

    `module` is the attention module's dotted name, `order` counts the calls of one forward pass from 0. `weights` is
    None if the model's attention function does not return them; `scale` multiplies q·k, None if unknown.
    `raw` is the output in the model's own layout. The scores are a sum of `terms` products of activations, of which q and k
    are one; `fault` says why the recorded weights cannot be those that multiply v, empty if they can.
    """

    module: str
    order: int
    q: Float[Tensor, "B H T E"]
    k: Float[Tensor, "B K S E"]
    v: Float[Tensor, "B K S V"]
    weights: Float[Tensor, "B H T S"] | None
    output: Float[Tensor, "B H T V"]
    scale: float | None
    raw: Tensor | None = None
    terms: int = 1
    fault: str = ""


class Edits(NamedTuple):
    """Edits that a hook makes, by the order of calls.

    A writer replaces q, k and v of its call; held weights replace the softmax's, so that the output is held @ v.
    """

    write: Mapping[int, Writer] = {}
    hold: Mapping[int, Float[Tensor, "B H T S"]] = {}


NO_EDITS = Edits()


def edits_at(
    addresses: Sequence[Address],
    write: Mapping[Address, Writer] | None = None,
    hold: Mapping[Address, Float[Tensor, "B H T S"]] | None = None,
) -> Edits:
    """Index edits by the order of calls; `addresses` lists the calls' addresses in that order."""
    order = {address: i for i, address in enumerate(addresses)}
    for address in (*(write or {}), *(hold or {})):
        if address not in order:
            problem = f"An edit names {tuple(address)}."
            reason = f"The model has {', '.join(map(str, addresses[:4]))}{', …' if len(addresses) > 4 else ''}."
            raise SiteError(problem, reason, "Use one of the model's addresses.")
    written = {order[a]: functools.partial(_write, a, writer) for a, writer in (write or {}).items()}
    return Edits(written, {order[a]: w for a, w in (hold or {}).items()})


def _write(address: Address, writer: Writer, parts: QKV) -> QKV:
    """Apply a writer to q, k and v; raises ModelError if it returns other shapes."""
    result: object = writer(parts)
    three = result if isinstance(result, tuple) and len(result) == len(parts) else ()
    if not three or any(not isinstance(t, Tensor) or t.shape != p.shape for t, p in zip(three, parts, strict=True)):
        shapes = [tuple(t.shape) if isinstance(t, Tensor) else type(t).__name__ for t in three]
        problem = f"A writer for {address} returned {', '.join(map(str, shapes)) or type(result).__name__}."
        reason = f"Its q, k and v were of {', '.join(str(tuple(p.shape)) for p in parts)}."
        raise ModelError(problem, reason, "Return q, k and v of the same shapes, as Parts(q, k, v).")
    return QKV(*three)


def weights_to_hold(weights: Tensor, like: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Convert held weights to a call's dtype and device; raises ModelError if their shape is not the call's `shape`."""
    if tuple(weights.shape) != shape:
        problem = f"Weights of shape {tuple(weights.shape)} are to be held."
        raise ModelError(problem, f"Those of the call are of {shape}.", "Give weights [B, H, T, S] of the same batch.")
    return weights.to(like)


class Calls(list[Call]):
    """Calls in order; `take` is applied to each new call, and its result is stored; faults are recorded if `looks`."""

    def __init__(self, take: Callable[[Call], Call] | None = None, looks: bool = True) -> None:
        super().__init__()
        self.take, self.looks, self.is_writing = take, looks, False

    def guard(self, edits: Edits) -> Edits:
        """The same edits; `is_writing` is true while one of their functions runs."""
        write = {order: functools.partial(self._write, writer) for order, writer in edits.write.items()}
        return edits._replace(write=write)

    def _write(self, writer: Writer, parts: QKV) -> QKV:
        self.is_writing = True
        try:
            return writer(parts)
        finally:
            self.is_writing = False

    def append(self, call: Call) -> None:
        """Add a call."""
        super().append(call if self.take is None else self.take(call))

    def order(self, _module: str) -> int:
        """The index of a module's next call among the calls of a full pass."""
        return len(self)

    def at_orders(self, write: Mapping[int, Writer], _rehearsed: Sequence[Call]) -> Mapping[int, Writer]:
        """Writers by the order of a pass's own calls, as a rehearsal made them; here both orders are the same."""
        return write


def check_not_nested(is_running: bool) -> None:
    """Raise ModelError for a pass inside another of the same model, which a function of an edit would make: calls are counted."""
    if is_running:
        problem, reason = "A function of an edit runs the edited model.", "Its sites are counted in one pass at a time."
        raise ModelError(problem, reason, "Run the model before, or a copy of it.")


def copy_call(call: Call) -> Call:
    """Clone a call's tensors, in their graph: a model may overwrite them."""
    tensors = {name: getattr(call, name) for name in ("q", "k", "v", "weights", "output")}
    return call._replace(**{name: t.clone() for name, t in tensors.items() if t is not None})


def outline(call: Call, pattern: bool = False) -> Call:
    """A call with shapes only, on the meta device; with `pattern`, which weights [B 1 T S] are nonzero in any head."""
    q, k, v, output = (torch.empty(t.shape, device="meta") for t in (call.q, call.k, call.v, call.output))
    seen = call.weights.detach().ne(0).any(1, keepdim=True).cpu() if pattern and call.weights is not None else None
    return Call(call.module, call.order, q, k, v, seen, output, call.scale, None, call.terms, call.fault)


@contextmanager
def copy_caches(model: nn.Module) -> Iterator[None]:
    """Give forward passes inside copies of caches, so that the caller's caches stay unchanged."""

    def copy_arguments(_m: nn.Module, args: Arguments, kwargs: NamedArguments) -> tuple[Arguments, NamedArguments]:
        return args, {n: copy.deepcopy(value) if isinstance(value, Cache) else value for n, value in kwargs.items()}

    with model.register_forward_pre_hook(copy_arguments, with_kwargs=True, prepend=True):
        yield


@runtime_checkable
class CallHook(Protocol):
    """Records the attention calls of forward passes inside its context, in `calls` if given."""

    def __call__(
        self, model: nn.Module, edits: Edits = NO_EDITS, /, *, calls: Calls | None = None
    ) -> AbstractContextManager[Sequence[Call]]:
        """The context in which passes are recorded."""
        ...


P = ParamSpec("P")
R = TypeVar("R")

# one lock for all models: they may share modules and configurations, and the settings that are switched (PyTorch's fast path,
# torch.compile, the attention interface, the global random generator) belong to the process
RECORDING = threading.RLock()


def synchronized(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: run a function under the process-wide recording lock, which is reentrant."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with RECORDING:
            return function(*args, **kwargs)

    return run


Arguments: TypeAlias = tuple[Any, ...]
NamedArguments: TypeAlias = dict[str, Any]
ModelOutput: TypeAlias = Any  # of any class: each model has its own


def check_model(model: object) -> None:
    """Raise ModelError for an object that cannot be a model."""
    if not isinstance(model, (str, Path, nn.Module)):
        reason = "A model is a folder, a name on a hub, or a PyTorch module."
        raise ModelError(f"{type(model).__name__} was given as a model.", reason, "Give one of these.")


def check_readable(texts: object) -> None:
    """Raise ModelError for an object that is neither a text nor several."""
    if not isinstance(texts, Iterable):
        reason = "A model reads a text, several of them, or its own inputs."
        raise ModelError(f"{type(texts).__name__} was given to be read.", reason, "Give one of these.")


def check_inputs(inputs: object) -> None:
    """Raise ModelError for an object that is no mapping of input names to tensors."""
    if not isinstance(inputs, Mapping):
        problem = f"The inputs are a {type(inputs).__name__}."
        raise ModelError(problem, "A model's own inputs are given by name.", "Give a dict: {'input_ids': ...}.")
    if not any(isinstance(t, Tensor) for t in inputs.values()):
        reason = f"It holds {', '.join(map(repr, inputs)) or 'nothing'}."
        raise ModelError("The inputs hold no tensor.", reason, "Give the arguments of the model's forward, as tensors.")
    if nested := [name for name, t in inputs.items() if isinstance(t, Tensor) and t.is_nested]:
        problem = f"The input {nested[0]!r} is a nested tensor."
        todo = "Pad it, with a mask: torch.nested.to_padded_tensor(tensor, 0)."
        raise ModelError(problem, "Every row of the inputs needs the same number of positions.", todo)


def multiply_rows(x: Tensor, weight: Tensor, multiply: Callable[[Tensor], Tensor]) -> Tensor:
    """`multiply(x)`, a product with a weight, as one operation for every TorchFunctionMode."""
    if has_torch_function((x,)):
        return handle_torch_function(multiply_rows, (x,), x, weight, multiply)
    return multiply(x)


SDPA = F.scaled_dot_product_attention
SOFTMAX = {torch.softmax, F.softmax, Tensor.softmax}
MATMUL = {torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm}
BADDBMM = {torch.baddbmm, Tensor.baddbmm}
STOPS = {
    F.linear,
    F.layer_norm,
    F.rms_norm,
    F.embedding,
    F.conv1d,
    torch.conv1d,
    torch.addmm,
    F.cross_entropy,
    multiply_rows,
}
TIMES = {"mul", "mul_", "__mul__", "__rmul__", "__imul__", "multiply"}
DIVISIONS = {"div", "div_", "__truediv__", "__itruediv__", "true_divide", "divide"}
# functions that keep a score's factor of q·k: they reshape, cast, mask or add
FACTOR_PRESERVING = {
    *("add", "add_", "__add__", "__radd__", "__iadd__", "sub", "__sub__", "masked_fill", "masked_fill_", "where"),
    *("view", "reshape", "transpose", "permute", "contiguous", "to", "float", "type", "type_as", "clone", "unsqueeze"),
    *("squeeze", "flatten", "unflatten", "__getitem__", "detach", "cat", "concat", "half", "bfloat16", "double", "max"),
}
ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")


def tensors_in(values: Iterable[object]) -> list[Tensor]:
    """The tensors in nested lists, tuples and dicts, in order."""
    tensors: list[Tensor] = []
    for x in values:
        if isinstance(x, Tensor):
            tensors.append(x)
        elif isinstance(x, (tuple, list)):
            tensors += tensors_in(x)
        elif isinstance(x, dict):
            tensors += tensors_in(x.values())
    return tensors


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Apply `change` to every tensor of a value, in nested tuples and lists."""
    if isinstance(value, Tensor):
        return change(value)
    return type(value)(map_tensors(item, change) for item in value) if isinstance(value, tuple | list) else value


def gradients_of(t: Tensor, leaves: Sequence[Tensor], positive: bool = False) -> tuple[Tensor | None, ...]:
    """Gradients of a randomly weighted sum of t with respect to some leaves; random weights keep gradients from cancelling.

    `positive` draws the weights from 1 to 2, else from a normal distribution. None for a leaf that t does not depend on.
    """
    if not t.requires_grad or not leaves:
        return (None,) * len(leaves)
    draw = torch.Generator().manual_seed(0)
    mixed = 1 + torch.rand(t.shape, generator=draw) if positive else torch.randn(t.shape, generator=draw)
    return torch.autograd.grad((t * mixed.to(t)).sum(), list(leaves), retain_graph=True, allow_unused=True)


def factor_after(func: Callable[..., Any], args: Arguments, factor: float | None) -> float | None:
    """The factor of q·k after that function; None if it is no longer one number."""
    name = getattr(func, "__name__", "")
    if factor is None or name in FACTOR_PRESERVING:
        return factor
    if (name in TIMES or name in DIVISIONS) and len(args) == 2:
        numbers = [x for x in args if isinstance(x, (int, float)) or (isinstance(x, Tensor) and x.numel() == 1)]
        if len(numbers) == 1 and (name in TIMES or numbers[0] is args[1]):
            return factor * float(numbers[0]) if name in TIMES else factor / float(numbers[0])
    return None


@dataclass(frozen=True, eq=False)
class Operand:
    """One tensor of a product: a letter per axis as in einsum, and the order of axes in a Trace.

    The order has four letters (batch, head, position, position or width), or three if batch and heads are one axis.
    """

    tensor: Tensor
    letters: str
    order: str

    def of(self, tensor: Tensor) -> Operand:
        """This operand with another tensor of the same layout."""
        return replace(self, tensor=tensor)

    def fits(self, rows: int) -> bool:
        """Whether batch and heads can be distinguished: they are two axes, or one whose length is a multiple of `rows`."""
        return len(self.order) == 4 or self.tensor.shape[self.letters.index(self.order[0])] % rows == 0

    def take(self, rows: int) -> Tensor:
        """The tensor as [B H T E]; `rows` is B."""
        view = self.tensor.permute([self.letters.index(c) for c in self.order])
        return view if len(self.order) == 4 else view.unflatten(0, (rows, -1))

    def give(self, canonical: Tensor) -> Tensor:
        """A tensor [B H T E] in this operand's layout."""
        t = canonical if len(self.order) == 4 else canonical.flatten(0, 1)
        return t.permute([self.order.index(c) for c in self.letters])


@dataclass(frozen=True, eq=False)
class Product:
    """A product of two tensors with einsum letters of left, right and result; `call` computes it from two operands."""

    left: Tensor
    right: Tensor
    letters: tuple[str, str, str]
    call: Callable[[Tensor, Tensor], Tensor]
    factor: float = 1.0

    @property
    def shares_axis(self) -> bool:
        """Whether both operands and the result share an axis (batch or heads), which excludes projections."""
        a, b, c = self.letters
        return bool(set(a) & set(b) & set(c))

    @property
    def width(self) -> int:
        """Length of the summed axes."""
        a, b, out = self.letters
        return math.prod(n for c, n in zip(a, self.left.shape, strict=True) if c in b and c not in out)

    def _split(self) -> tuple[str, str, str, str] | None:
        """Letters of batch and heads, of left's own axis, of right's own axis, and of the sum; None for other products."""
        a, b, out = self.letters
        batch = "".join(c for c in out if c in a and c in b)
        ends = [c for c in out if c in a and c not in b], [c for c in out if c in b and c not in a]
        summed = [c for c in a if c in b and c not in out]
        if len(batch) not in (1, 2) or [len(x) for x in (*ends, summed)] != [1, 1, 1]:
            return None
        if len(a) != len(b) or len(out) != len(a) or len(set(a)) != len(a):
            return None
        return batch, ends[0][0], ends[1][0], summed[0]

    def _roles(self) -> tuple[int, Operand, Operand] | None:
        """The side of the query (0 left, 1 right), the query operand and the key operand: the key's axis is last in the scores."""
        split = self._split()
        if split is None:
            return None
        batch, left, right, summed = split
        ends = Operand(self.left, self.letters[0], batch + left + summed)
        other = Operand(self.right, self.letters[1], batch + right + summed)
        out = self.letters[2]
        return (0, ends, other) if out.index(left) < out.index(right) else (1, other, ends)

    def makes_scores(self, scores: Tensor, rows: int) -> bool:
        """Whether this product's result, after masking and reshaping, can be the softmax's input `scores`."""
        roles = self._roles()
        if roles is None or scores.dim() not in (3, 4):
            return False
        _, q, k = roles
        if (len(q.order) == 3 and q.tensor.dim() != 3) or not (q.fits(rows) and k.fits(rows)):
            return False
        asking, seen = q.take(rows), k.take(rows)
        if asking.shape[0] != seen.shape[0] or seen.shape[1] not in (1, asking.shape[1]):
            return False
        # sinks append a column to the scores
        length, keys = asking.shape[2], seen.shape[2]
        heads = asking.shape[0] * asking.shape[1]
        fits = scores.shape[-2] == length and scores.shape[:-2].numel() == heads
        return fits and keys <= scores.shape[-1] <= keys + 1

    def parts(self, rows: int) -> tuple[Tensor, Tensor]:
        """q [B H T E] and k [B K S E]."""
        roles = self._roles()
        assert roles is not None
        return roles[1].take(rows), roles[2].take(rows)

    def with_scores_of(self, q: Tensor, k: Tensor) -> Product:
        """The same product with other queries and keys."""
        roles = self._roles()
        assert roles is not None
        side, first, second = roles
        return self.replace_operand(side, first.give(q)).replace_operand(1 - side, second.give(k))

    def replace_operand(self, side: int, tensor: Tensor) -> Product:
        """The same product with another operand."""
        return replace(self, right=tensor) if side else replace(self, left=tensor)

    def mixing(self, side: int) -> tuple[Operand, Operand, Operand] | None:
        """Weights (the operand at `side`), values and result as operands; None if the product is not weights times values."""
        split = self._split()
        if split is None:
            return None
        batch, *ends, summed = split
        operands = self.left, self.right
        weights = Operand(operands[side], self.letters[side], batch + ends[side] + summed)
        values = Operand(operands[1 - side], self.letters[1 - side], batch + summed + ends[1 - side])
        return weights, values, Operand(operands[side], self.letters[2], batch + ends[side] + ends[1 - side])


def product_of(func: Callable[..., Any], args: Arguments, kwargs: NamedArguments) -> Product | None:
    """The product of two tensors that a call of a torch function computes; None for other functions and for nested tensors."""
    if func is torch.einsum:
        tensors = args[1] if len(args) == 2 and isinstance(args[1], (tuple, list)) else args[1:]
        equation = args[0]
        if len(tensors) != 2 or not isinstance(equation, str):
            return None
        inputs, _, out = equation.replace(" ", "").partition("->")
        first, _, second = inputs.partition(",")
        if "." in inputs:  # axes without a letter get one
            rest = [t.dim() - len(s.replace("...", "")) for t, s in zip(tensors, (first, second), strict=True)]
            extra = "ABCDEFGH"[: max(rest)]
            ends = (extra[len(extra) - n :] for n in rest)
            first, second = (s.replace("...", end) for s, end in zip((first, second), ends, strict=True))
            out = out.replace("...", extra)
        return Product(tensors[0], tensors[1], (first, second, out), lambda a, b: torch.einsum(equation, a, b))
    if func in MATMUL:
        values = [*args, *kwargs.values()]
        if len(values) != 2 or not all(isinstance(x, Tensor) and x.dim() >= 2 and not x.is_nested for x in values):
            return None
        return Product(values[0], values[1], _letters(*values), lambda a, b: func(a, b))
    if func in BADDBMM:
        named = {**dict(zip(("input", "batch1", "batch2"), args, strict=False)), **kwargs}
        added, a, b = (named.pop(name) for name in ("input", "batch1", "batch2"))
        return Product(a, b, _letters(a, b), lambda a, b: func(added, a, b, **named), float(named.get("alpha", 1.0)))
    return None


def _letters(a: Tensor, b: Tensor) -> tuple[str, str, str]:
    batch = "abcdefgh"[: max(a.dim(), b.dim()) - 2]
    return batch[len(batch) + 2 - a.dim() :] + "tx", batch[len(batch) + 2 - b.dim() :] + "xs", batch + "ts"


def use_sdpa(
    args: Arguments, kwargs: NamedArguments, rows: int, writer: Writer | None, hold: Tensor | None
) -> tuple[QKV, Tensor, Tensor, float, Tensor]:
    """Run `scaled_dot_product_attention` with q, k, v replaced or weights held; its weights are its output for v = I.

    Returns parts, weights, output, scale and raw output, as in a Call.
    """
    named: dict[str, Any] = {**dict(zip(ARGUMENTS, args, strict=False)), **kwargs}
    merged = named["query"].dim() == 3

    def split(t: Tensor) -> Tensor:
        return t.unflatten(0, (rows, -1)) if merged else t

    parts = QKV(*(split(named[name]) for name in ARGUMENTS[:3]))
    if writer is not None:
        parts = writer(parts)
        named |= {n: t.flatten(0, 1) if merged else t for n, t in zip(ARGUMENTS[:3], parts, strict=True)}
    value = named["value"]
    if hold is None:
        eye = torch.eye(value.shape[-2], dtype=value.dtype, device=value.device).expand(*value.shape[:-1], -1)
        with torch.no_grad():  # a checkpointed layer counts the tensors that its graph saves
            weights = split(SDPA(**{**named, "value": eye, "dropout_p": 0.0}))
        result = SDPA(**named)
    else:
        weights = hold.to(value)
        heads = parts.v.repeat_interleave(weights.shape[1] // parts.v.shape[1], 1)
        result = weights @ heads
        result = result.flatten(0, 1) if merged else result
    scale = named.get("scale")
    return parts, weights, split(result), float(parts.q.shape[-1] ** -0.5 if scale is None else scale), result


@contextlib.contextmanager
def traceable_forward() -> Iterator[None]:
    """Switch off torch.compile and PyTorch's fast path inside, so that every operation of a forward pass can be recorded."""
    fast = torch.backends.mha.get_fastpath_enabled()
    with without_compile():
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)


@contextlib.contextmanager
def replace_forwards(forwards: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Replace the forward methods of modules inside; restore them afterwards."""
    before = {module: module.__dict__.get("forward") for module in forwards}
    try:
        for module, forward in forwards.items():
            module.forward = forward
        yield
    finally:
        for module, previous in before.items():
            module.__dict__.pop("forward", None)
            if previous is not None:
                module.forward = previous


class _StoredProduct(torch.autograd.Function):
    """A product of x and a weight [in, out] whose value is known; its gradient with respect to x is computed where it is not 0."""

    @staticmethod
    def forward(ctx: Any, _x: Tensor, weight: Tensor, value: Tensor) -> Tensor:
        """Return a copy of the value: what is returned as it is counts as a view."""
        ctx.save_for_backward(weight)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None]:
        """The gradient with respect to x; verification asks for none with respect to the weight."""
        if not ctx.needs_input_grad[0]:
            return None, None, None
        with torch._C.DisableTorchFunction():  # these operations are not the model's
            (weight,), flat = ctx.saved_tensors, gradients[0].flatten(0, -2)
            rows, units = (flat.ne(0).any(axis).nonzero().flatten() for axis in (1, 0))
            by_x = flat.new_zeros(len(flat), len(weight))
            if len(rows):
                span = slice(int(units[0]), int(units[-1]) + 1)
                by_x[rows] = flat[rows, span] @ weight[:, span].T
            return by_x.unflatten(0, gradients[0].shape[:-1]), None, None


SAMPLED_WEIGHTS = 16  # of a parameter


class ProductMemo:
    """Computes a product with a parameter once: a later pass with the same input gets it from memory, bit for bit.

    Inside `by_rows` that holds for each row of an input, whatever the others are. Only plain linear maps on the CPU outside autocast
    take part. Stored are at most a twentieth of the model's bytes, or 32 MiB, in all passes; then products are computed each time.
    Of weights that a model changes uncounted, through `.data`, SAMPLED_WEIGHTS are looked at.
    """

    def __init__(self, model: nn.Module) -> None:
        self._free_bytes = max(1 << 25, sum(p.nbytes for p in model.parameters()) // 20)
        self._products = defaultdict[object, list[tuple[object, Tensor, Tensor]]](list)
        self._rows: dict[object, dict[bytes, Tensor]] = {}
        self._parameters: dict[object, Sequence[Tensor]] = {}  # so that no other parameter gets their address
        self._thread = threading.get_ident()
        self._is_used, self._is_by_row = True, False
        kinds = (nn.Linear.forward, Conv1D.forward)
        plain = [m for m in model.modules() if type(m).forward in kinds and "forward" not in m.__dict__]
        self.forwards = {m: functools.partial(self._forward, m, m.forward) for m in plain}

    def close(self) -> None:
        """Forget everything, also the model."""
        for stored in (self._products, self._rows, self._parameters, self.forwards):
            stored.clear()

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Compute everything inside."""
        was_used, self._is_used = self._is_used, False
        try:
            yield
        finally:
            self._is_used = was_used

    @contextmanager
    def by_rows(self) -> Iterator[None]:
        """Look for each row of an input inside."""
        self._is_by_row = True
        try:
            yield
        finally:
            self._is_by_row = False

    def _forward(self, module: Any, forward: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> Tensor:
        x, parameters = (*args, *kwargs.values())[0], [p for p in (module.weight, module.bias) if p is not None]
        if (
            not (self._is_used and threading.get_ident() == self._thread and type(x) is Tensor)
            or is_functorch_wrapped_tensor(x)
            or x.is_nested
            or x.layout != torch.strided
            or x.dim() < 2
            or not x.numel()
            or torch.is_autocast_enabled("cpu")
            or torch.compiler.is_compiling()
            or {type(p) for p in parameters} != {nn.Parameter}
            or {(t.device.type, t.dtype) for t in (x, *parameters)} != {("cpu", x.dtype)}
            # a mode of the model's own has to see the function that the model calls
            or not all(type(mode).__module__.startswith("trisect.") for mode in _get_current_function_mode_stack())
        ):
            return forward(*args, **kwargs)
        weight = module.weight if isinstance(module, Conv1D) else module.weight.T
        key = type(module).forward, *map(_parameter_key, parameters)
        return multiply_rows(x, weight, functools.partial(self._multiply, forward, key, parameters, weight))

    def _multiply(
        self,
        forward: Callable[[Tensor], Tensor],
        key: object,
        parameters: Sequence[Tensor],
        weight: Tensor,
        x: Tensor,
    ) -> Tensor:
        bits, products = x.detach().contiguous().view(torch.uint8), self._products.get(key, [])
        if self._is_by_row and (products or self._free_bytes > 0):
            value = self._from_rows(forward, key, parameters, bits, x)
        else:
            layout = x.shape, x.stride()
            alike = (value for other, before, value in products if other == layout and torch.equal(before, bits))
            if (value := next(alike, None)) is None:
                out = forward(x)
                if self._has_room(key, parameters, x.nbytes + out.nbytes):
                    self._products[key].append((layout, bits.clone(), out.detach().clone()))
                return out
        if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
            return cast(Tensor, _StoredProduct.apply(x, weight, value))
        return value.clone()

    def _has_room(self, key: object, parameters: Sequence[Tensor], size: int) -> bool:
        if self._free_bytes <= 0:
            return False
        if key not in self._parameters:
            self._parameters[key] = [p.detach() for p in parameters]
            if len(self._parameters) > len(self.forwards):  # the model has put others in the place of some
                size += sum(p.nbytes for p in parameters)
        self._free_bytes -= size
        return True

    @torch.no_grad()
    def _from_rows(
        self, forward: Callable[[Tensor], Tensor], key: object, parameters: Sequence[Tensor], bits: Tensor, x: Tensor
    ) -> Tensor:
        if key not in self._rows:
            pairs = (pair for _, before, value in self._products.get(key, ()) for pair in _by_bits(before, value))
            self._rows[key] = dict(reversed(list(pairs)))  # the first value of a row counts
        stored = self._rows[key]
        rows = [row for row, _ in _by_bits(bits, x)]
        missing = {row: n for n, row in enumerate(rows) if row not in stored}
        products, fresh = {row: stored[row] for row in rows if row in stored}, dict[bytes, Tensor]()
        if len(missing) == len(rows):
            fresh = dict(_by_bits(bits, forward(x)))
        elif missing:
            fresh = dict(zip(missing, forward(x.flatten(0, -2)[list(missing.values())]), strict=True))
        if fresh and self._has_room(key, parameters, sum(map(len, fresh)) + sum(t.nbytes for t in fresh.values())):
            stored.update(fresh)
        products |= fresh
        return torch.stack([products[row] for row in rows]).unflatten(0, x.shape[:-1])


def _parameter_key(p: Tensor) -> tuple[object, ...]:
    with torch._C.DisableTorchFunction():  # these operations are not the model's
        numbers = p.detach().diagonal() if p.dim() > 1 else p.detach()
        step = 1 + len(numbers) // SAMPLED_WEIGHTS
        return p.data_ptr(), p._version, p.shape, p.stride(), *numbers[::step].tolist()


def _by_bits(bits: Tensor, values: Tensor) -> Iterator[tuple[bytes, Tensor]]:
    """The rows of some values, by the bits of the rows that they are made from."""
    keys = (row.tobytes() for row in bits.flatten(0, -2).numpy())
    return zip(keys, values.flatten(0, -2).unbind(), strict=True)


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model in evaluation mode inside; restore every module's own mode afterwards."""
    before = [(module, module.training) for module in model.modules()]
    try:
        if any(training for _, training in before):
            model.eval()
        yield
    finally:
        for module, training in before:
            if module.training is not training:  # nn.Module.__setattr__ is slow
                module.training = training


@contextlib.contextmanager
def without_recompute() -> Iterator[None]:
    """Make activation checkpoints store activations inside, so that a backward pass runs no second forward pass.

    To be entered under the recording lock, since the functions replaced are torch's own.
    """
    originals = checkpoints._checkpoint_without_reentrant_generator, checkpoints.CheckpointFunction
    checkpoints._checkpoint_without_reentrant_generator = lambda *_a, **_k: iter((None,))
    plain: Any = types.SimpleNamespace(apply=lambda function, _preserve, *args: function(*args))
    checkpoints.CheckpointFunction = plain
    try:
        yield
    finally:
        checkpoints._checkpoint_without_reentrant_generator, checkpoints.CheckpointFunction = originals


_lock = threading.Lock()
_stances: list[Any] = []  # the stance of the outermost `without_compile`, once per open one


@contextlib.contextmanager
def without_compile() -> Iterator[None]:
    """Run compiled functions eagerly inside.

    Several threads may be inside; compiled code is used again when the last one leaves.
    """
    stance: Any = torch.compiler.set_stance
    with _lock:
        _stances.append(_stances[0] if _stances else stance("force_eager"))
    try:
        yield
    finally:
        with _lock:
            first = _stances.pop()
            if not _stances:
                first.__exit__(None, None, None)


def unwrap_model(model: nn.Module) -> nn.Module:
    """The model inside a wrapper of torch.compile or PEFT; adapters inside its projections (LoRA) stay.

    Raises ModelError for prompts and prefixes, which would be lost.
    """
    while True:
        if isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        elif callable(base := getattr(model, "get_base_model", None)) and hasattr(model, "peft_config"):
            if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
                problem = f"{type(model).__name__} puts learned prompts before its inputs."
                reason = "Only adapters inside the model, such as LoRA, are read."
                raise ModelError(problem, reason, "Read the model without them: load(model.get_base_model()).")
            inside: Any = base()
            model = inside
        else:
            return model


def parts_of(function: Callable[..., Any]) -> Callable[..., Any] | None:
    """For `multi_head_attention_forward` a copy whose operations a TorchFunctionMode sees; None for other functions."""
    return _ATTEND if function is F.multi_head_attention_forward else None


# the same code without dispatch of the whole function to a TorchFunctionMode
_HIDDEN: Any = F.multi_head_attention_forward
_ATTEND = types.FunctionType(
    _HIDDEN.__code__,
    _HIDDEN.__globals__ | {"has_torch_function": lambda _tensors: False},
    _HIDDEN.__name__,
    _HIDDEN.__defaults__,
)
_ATTEND.__kwdefaults__ = _HIDDEN.__kwdefaults__
