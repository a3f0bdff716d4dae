"""Affine maps of a model, quantised or not: modules, weights as [out, in], and random projections for checking every read."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers.pytorch_utils import Conv1D

from trisect.core.errors import reraise_out_of_memory
from trisect.hf.hooks.calls import Arguments, NamedArguments, parts_of, product_of, replace_forwards

DYNAMIC = "torch.ao.nn.quantized.dynamic"
EIGHT_BIT, FOUR_BIT = "Linear8bitLt", ("Linear4bit", "LinearFP4", "LinearNF4")
LEVELS = 127.0


class Quantised(NamedTuple):
    """How a quantised map computes: `rounds` is its rounding of inputs or None, `kind` its coarsest dtype (None: the model's)."""

    words: str
    rounds: Callable[[Float[Tensor, "... in"]], Float[Tensor, "... in"]] | None = None
    kind: torch.dtype | None = None

    def multiplied_input(self, x: Float[Tensor, "... in"]) -> Float[Tensor, "... in"]:
        """x as the weight multiplies it, rounded where the map rounds its input."""
        return x if self.rounds is None else self.rounds(x.detach())


def quantisation_of(module: nn.Module) -> Quantised | None:
    """How a quantised map computes; None if the module is not quantised, or in an unknown way."""
    kinds = [kind.__name__ for kind in type(module).__mro__]
    if type(module).__module__.startswith(DYNAMIC) and kinds[0] == "Linear":
        if getattr(getattr(module, "_packed_params", None), "dtype", None) == torch.qint8:
            # PyTorch's dynamic quantisation: one step size for all numbers of a call
            rounds = lambda x: torch.quantize_per_tensor_dynamic(x.float(), torch.quint8, True).dequantize().to(x.dtype)  # noqa: E731
            return Quantised("8-bit integers, with inputs rounded to 7 bits of each call's range", rounds)
        return Quantised("16-bit numbers", None, torch.float16)
    state: Any = getattr(module, "state", None)
    if EIGHT_BIT in kinds and state is not None:
        limit = float(getattr(state, "threshold", 0.0) or 0.0)
        words = "8-bit integers, with inputs rounded to 8 bits at every position"
        return Quantised(words, lambda x: _by_row(x, limit), torch.float16)
    if any(kind in kinds for kind in FOUR_BIT):
        # bfloat16 if the fast CPU kernel may run, else the compute dtype
        fast = getattr(module, "support_avx512bf16_for_cpu", False)
        return Quantised("4-bit numbers", None, torch.bfloat16 if fast else getattr(module, "compute_dtype", None))
    return None


def share_of(lost: Tensor, total: Tensor) -> float:
    """The largest magnitude of one tensor relative to the largest of another."""
    return float(lost.detach().abs().max()) / float(total.detach().abs().max().clamp_min(torch.finfo(total.dtype).tiny))


def _by_row(x: Tensor, limit: float) -> Tensor:
    """Round as LLM.int8(): one step size per position; columns with a number of at least `limit` are not rounded (0: no limit)."""
    flat = x.reshape(-1, x.shape[-1])
    half = flat.half()
    outliers = half.abs() >= limit if limit > 0 else torch.zeros_like(half, dtype=torch.bool)
    inner = half.masked_fill(outliers, 0)
    step = inner.abs().amax(1, keepdim=True).float().clamp_min(torch.finfo(torch.float32).tiny) / LEVELS
    rounded = ((inner / step).round() * step).to(flat.dtype)
    return torch.where(outliers.any(0), flat, rounded).view_as(x)


PROBES = 64  # columns of the identity that are fed at once
# relative residuals up to these are rounding, in sums over a few thousand terms;
# models in float64 still compute rotary positions and norms in float32
TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}


@dataclass(frozen=True, eq=False)
class Affine:
    """One affine map: y = x weightᵀ + bias; parameter names are None if the weight or bias is computed, not stored."""

    weight: Float[Tensor, "out in"]
    bias: Float[Tensor, " out"] | None
    parameter: str | None
    bias_parameter: str | None
    transposed: bool = False


@dataclass(frozen=True, eq=False)
class MapUse:
    """One use of an affine map in a forward pass: input x [..., in] and output `leaf` [..., out], detached from the graph.

    The rest of the model continues from `leaf`. `calls` counts the attention calls before, `nth` the earlier uses of the map.
    `quantised` says how a quantised map computes; `followed` is false if the model had switched gradients off.
    """

    name: str
    map: Callable[[], Affine]
    x: Tensor
    leaf: Tensor
    calls: int
    nth: int
    quantised: Quantised | None = None
    followed: bool = True

    @functools.cached_property
    def law(self) -> MapLaw:
        """The law of this use."""
        return map_law(self.name, self.nth, self.map())

    @property
    def multiplied_input(self) -> Tensor:
        """x as the weight multiplies it: a quantised map may round it."""
        return self.x if self.quantised is None else self.quantised.multiplied_input(self.x)

    @property
    def allowed(self) -> float:
        """The relative rounding tolerance of a quantised map; 0 where the output's own dtype decides."""
        kind = None if self.quantised is None else self.quantised.kind
        return 0.0 if kind is None else TOLERANCE[kind]

    def rounding_loss(self) -> Tensor:
        """Exact output less the output from rounded input [N... out]; 0 for maps that do not round their input."""
        if self.quantised is None or self.quantised.rounds is None:
            return torch.zeros_like(self.leaf)
        weight = self.map().weight.detach()
        return ((self.x.detach() - self.multiplied_input).to(weight) @ weight.T).to(self.leaf.dtype)


@dataclass(frozen=True, eq=False)
class NormUse:
    """One use of a layer norm: input x and output y; `nth` counts its earlier uses, `traced` is x with its autograd graph."""

    name: str
    module: nn.Module
    x: Tensor
    y: Tensor
    calls: int
    nth: int
    traced: Tensor


@dataclass(eq=False)
class ForwardRecord:
    """Uses of affine maps and norms in a forward pass, in the order of execution."""

    passed: list[MapUse] = field(default_factory=list)
    normed: list[NormUse] = field(default_factory=list)
    uses: defaultdict[str, Iterator[int]] = field(default_factory=lambda: defaultdict(itertools.count))


def is_affine(module: nn.Module) -> bool:
    """Whether a module is an affine map of the last axis: by its class, or because it has in_features and out_features."""
    if isinstance(module, nn.Conv1d):
        return module.kernel_size == (1,) and module.stride == (1,) and module.padding in ((0,), 0, "valid")
    sized = all(isinstance(getattr(module, name, None), int) for name in ("in_features", "out_features"))
    return isinstance(module, (nn.Linear, Conv1D)) or sized


def affine_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The outermost affine modules with their names: a projection with an adapter is one module."""
    outer = None
    for name, module in model.named_modules():  # a module's parts follow it
        if (outer is None or not name.startswith(f"{outer}.")) and is_affine(module):
            outer = name
            yield name, module


def affine_of(name: str, module: nn.Module, width: int, like: Tensor) -> Affine:
    """The map of a module with `width` inputs: from its parameters if they are stored plainly, else from its outputs on 0 and I."""
    parameters = (getattr(module, part, None) for part in ("weight", "bias"))
    weight, bias = (p if isinstance(p, Tensor) else None for p in parameters)
    # names in the state dict; None for a parameter that is computed from others, by weight norm or a mask
    stored = {n for n in ("weight", "bias") if module._parameters.get(n) is not None or n in module._buffers}
    names = f"{name}.weight" if "weight" in stored else None, f"{name}.bias" if "bias" in stored else None
    if list(module.children()) or weight is None or not weight.is_floating_point():
        return _probe_map(module, width, like, weight, names)
    if isinstance(module, Conv1D):
        return Affine(weight.T, bias, *names, transposed=True)
    if isinstance(module, nn.Conv1d):
        dense = torch.block_diag(*weight[..., 0].chunk(module.groups)) if module.groups > 1 else weight[..., 0]
        return Affine(dense, bias, *names)
    if weight.shape[1:] == (width,) and type(module).forward is nn.Linear.forward:
        return Affine(weight, bias, *names)
    return _probe_map(module, width, like, weight, names)


def rows_of(weight: Float[Tensor, "out in"], units: Int[Tensor, "H E"]) -> Float[Tensor, "H E in"]:
    """The rows of a matrix for the given units; a view, without a copy, if they are contiguous."""
    flat = units.flatten()
    first = int(flat[0])
    if torch.equal(flat.cpu(), torch.arange(first, first + len(flat))):
        return weight[first : first + len(flat)].unflatten(0, tuple(units.shape))
    return weight[units]


@torch.no_grad()
def _probe_map(
    module: nn.Module, width: int, like: Tensor, weight: Tensor | None, names: tuple[str | None, str | None]
) -> Affine:
    """The map of a module from its outputs on 0 and I; parameters are named where the stored ones equal the result."""
    identity = torch.eye(width, dtype=like.dtype, device=like.device)
    feed: Callable[[Tensor], Tensor] = lambda x: module(x[:, None])[:, 0]  # noqa: E731
    try:  # some modules require an axis of positions
        module(identity.new_zeros(1, 1, width))
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        reraise_out_of_memory(error)
        feed = module
    zero = feed(identity.new_zeros(1, width))[0]
    columns = torch.cat([feed(part) - zero for part in identity.split(PROBES)])
    probed = columns.T.contiguous()
    shift, bias = zero if zero.any() else None, getattr(module, "bias", None)
    if weight is None or weight.shape != probed.shape or not weight.is_floating_point():
        return Affine(probed, shift, None, None)
    if not torch.allclose(weight.to(probed), probed, rtol=1e-4, atol=1e-5):
        return Affine(probed, shift, None, None)
    has_bias = isinstance(bias, Tensor) and bias.shape == zero.shape
    return Affine(weight, shift, names[0], names[1] if has_bias else None)


def ends_of(module: nn.Module, args: Any, kwargs: NamedArguments, out: Any) -> tuple[Tensor, Tensor] | None:
    """Input and output of an affine module, units last; None if either is not a floating-point tensor."""
    x = args[0] if args else next(iter(kwargs.values()))
    if not isinstance(out, Tensor) or not isinstance(x, Tensor) or not out.is_floating_point() or out.is_nested:
        return None
    return (x.transpose(1, 2), out.transpose(1, 2)) if isinstance(module, nn.Conv1d) else (x, out)


@contextlib.contextmanager
def watch_uses(
    model: nn.Module, names: Collection[str], note: Callable[[str, Tensor, Tensor], object]
) -> Iterator[None]:
    """Call `note` with name, input and output, units last, at every use of the named maps and norms.

    A bare parameter is noted where something is multiplied by it outside any affine module, as in `detach_after_maps`.
    """
    modules, running = dict(model.named_modules()) if names else {}, list[None]()
    bare = set(names) - modules.keys()  # XLNet multiplies by parameters

    def use(name: str, module: nn.Module, args: Arguments, kwargs: NamedArguments, out: Any) -> None:
        with torch._C.DisableTorchFunction():  # operations of the hook are not the model's
            if (ends := ends_of(module, args, kwargs, out)) is not None:
                note(name, *ends)

    def multiply(name: str, _map: Callable[[], Affine], x: Tensor, y: Tensor) -> None:
        if name in bare and not running:
            note(name, x, y)

    with contextlib.ExitStack() as stack:
        for name in modules.keys() & set(names):
            hook = functools.partial(use, name)
            stack.callback(modules[name].register_forward_hook(hook, with_kwargs=True).remove)
        for _, module in affine_modules(model) if bare else ():
            stack.callback(module.register_forward_pre_hook(lambda _m, _a: running.append(None)).remove)
            leave = lambda _m, _a, _o: running.pop()  # noqa: E731
            stack.callback(module.register_forward_hook(leave, always_call=True).remove)
        if bare:
            stack.enter_context(_Parameters(model, multiply))
        yield


class _Parameters(TorchFunctionMode):
    """Notes products with parameters that no affine module owns, as in XLNet and nn.MultiheadAttention."""

    def __init__(self, model: nn.Module, note: Callable[..., Tensor | None]) -> None:
        super().__init__()
        self.names = {id(p): name for name, p in model.named_parameters()}
        self.note = note

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Arguments = (), kwargs: NamedArguments | None = None
    ) -> Any:
        """Run a function of torch; the result of a product with a parameter is detached from its graph."""
        if (parts := parts_of(func)) is not None:
            with self:
                return parts(*args, **(kwargs or {}))
        out = func(*args, **(kwargs or {}))
        if func is F.linear:
            return self._linear(out, *args, **(kwargs or {}))
        product = product_of(func, args, kwargs or {})
        if product is None or id(product.right) not in self.names:
            return out
        shared = [c for c in product.letters[1] if c in product.letters[0]]
        outputs = [c for c in product.letters[1] if c not in product.letters[0]]
        first, second, last = product.letters
        if not outputs or not first.endswith("".join(shared)) or not last.endswith("".join(outputs)):
            return out
        weight = product.right.permute([second.index(c) for c in outputs + shared]).flatten(len(outputs)).flatten(0, -2)
        x, y = product.left.flatten(-len(shared)), out.flatten(-len(outputs))
        noted = self.note(self.names[id(product.right)], lambda: Affine(weight, None, None, None), x, y)
        return out if noted is None else noted.unflatten(-1, out.shape[-len(outputs) :])

    def _linear(self, out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """`F.linear` with a parameter, or with some rows of one, as nn.MultiheadAttention has them."""
        parameter = weight if id(weight) in self.names else getattr(weight, "_base", None)
        if parameter is None or id(parameter) not in self.names:
            return out
        is_whole, name = parameter is weight, self.names[id(parameter)]
        named = name if is_whole else None, self.names.get(id(bias)) if is_whole else None
        noted = self.note(name, lambda: Affine(weight, bias, *named), x, out)
        return out if noted is None else noted


@contextlib.contextmanager
def detach_after_maps(model: nn.Module, calls: Sequence[object]) -> Iterator[ForwardRecord]:
    """Detach the output of every affine map in forward passes, so that gradients reach back to the nearest map only.

    Values do not change. `calls` is the list of attention calls so far; its length is stored with each use.
    """
    record = ForwardRecord()
    depth = [0]

    def note(
        name: str, affine: Callable[[], Affine], x: Tensor, y: Tensor, module: nn.Module | None = None
    ) -> Tensor | None:
        if depth[0]:
            return None
        leaf = y.detach().requires_grad_()
        quantised = None if module is None else quantisation_of(module)
        about = (len(calls), next(record.uses[name]), quantised, torch.is_grad_enabled())
        record.passed.append(MapUse(name, affine, x.clone(), leaf, *about))
        return leaf.clone()

    def enter(_m: nn.Module, _a: Any) -> None:
        depth[0] += 1

    def leave(name: str, module: nn.Module, args: Any, kwargs: NamedArguments, out: Any) -> Any:
        depth[0] -= 1
        ends = ends_of(module, args, kwargs, out)
        if depth[0] or ends is None:
            return None
        x, y = ends
        leaf = note(name, lambda: affine_of(name, module, x.shape[-1], x), x, y, module)
        return leaf.transpose(1, 2) if leaf is not None and isinstance(module, nn.Conv1d) else leaf

    def norm(name: str, module: nn.Module, args: Any, out: Any) -> None:
        if args and isinstance(out, Tensor) and isinstance(args[0], Tensor) and args[0].shape == out.shape:
            x, y = args[0].clone(), out.detach().clone()  # a model may overwrite either
            record.normed.append(NormUse(name, module, x.detach(), y, len(calls), next(record.uses[name]), x))

    with contextlib.ExitStack() as stack:
        for name, module in affine_modules(model):
            stack.callback(module.register_forward_pre_hook(enter).remove)
            hook = lambda m, a, k, o, name=name: leave(name, m, a, k, o)  # noqa: E731
            stack.callback(module.register_forward_hook(hook, with_kwargs=True).remove)
        for name, module in norm_modules(model):
            stack.callback(module.register_forward_hook(lambda m, a, o, name=name: norm(name, m, a, o)).remove)
        stack.enter_context(_Parameters(model, note))
        yield record


@contextlib.contextmanager
def replace_outputs(
    model: nn.Module, values: Mapping[tuple[str, int], Tensor], on_input: Callable[[str, int, Tensor], object]
) -> Iterator[None]:
    """Make the nth uses of maps and norms return given values, whatever their input.

    `values` is indexed by name and n. The map itself is not computed. `on_input` is called with name, n and input, units last, as in
    `detach_after_maps`.
    """
    uses: dict[str, int] = {}

    def take(name: str, x: Tensor) -> Tensor | None:
        nth = uses.get(name, 0)
        value = values.get((name, nth))
        if value is None or value.shape[:-1].numel() != x.shape[:-1].numel():
            return None
        uses[name] = nth + 1
        on_input(name, nth, x)
        return value.clone()  # the model may overwrite it

    def replacement_of(name: str, module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            x, is_transposed = args[0] if args else next(iter(kwargs.values()), None), isinstance(module, nn.Conv1d)
            value = take(name, x.transpose(1, 2) if is_transposed else x) if isinstance(x, Tensor) else None
            if value is None:
                return forward(*args, **kwargs)
            return value.transpose(1, 2) if is_transposed else value

        return run

    modules = dict((*affine_modules(model), *norm_modules(model)))
    bare = {name for name, _ in values} - modules.keys()
    mode = _Parameters(model, lambda n, _map, x, _y: take(n, x) if n in bare else None) if bare else nullcontext()
    with replace_forwards({m: replacement_of(name, m, m.forward) for name, m in modules.items()}), mode:
        yield


def norm_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules without children whose class name contains "norm"."""
    for name, module in model.named_modules():
        if "norm" in type(module).__name__.lower() and not list(module.children()):
            yield name, module


BLOCK = 1 << 18  # numbers that are converted at once
DIRECTIONS = 3  # a single direction may be orthogonal to an error


class MapLaw(NamedTuple):
    """Random projections of one use of an affine map: g, Wᵀg, b·g, and the typical length of y for x of length 1."""

    name: str
    nth: int
    directions: Float[Tensor, "out r"]
    images: Float[Tensor, "in r"]
    shift: Float[Tensor, " r"]
    size: float


class PartLaw(NamedTuple):
    """How q, k or v follow from a map: some units of its output, times `factors`, plus `extra`; `turned` by rotary positions or not.

    `norm` is applied to those units [N H E] first, where there is one.
    """

    map: MapLaw
    units: Int[Tensor, "H E"]
    factors: Float[Tensor, "H E"]
    extra: Float[Tensor, "H E"] | None
    turned: bool
    time_first: bool
    norm: Callable[[Float[Tensor, "N H E"]], Float[Tensor, "N H E"]] | None = None


class OutLaw(NamedTuple):
    """W_O's map; Wᵀg of the columns that attention feeds, as [in r] and by head; the module whose output is the result."""

    map: MapLaw
    images: Float[Tensor, "in r"]
    heads: Float[Tensor, "H E r"]
    owner: str | None
    time_first: bool


Rows = tuple[tuple[str, int], slice]  # units of the nth use of a map


class ForwardLaw(NamedTuple):
    """A feed-forward block: its maps; the input of `last` is the activation of the units `operand`, times the units `gate` if any."""

    maps: tuple[MapLaw, ...]
    activation: str
    operand: Rows
    gate: Rows | None
    last: tuple[str, int]


class CallLaws(NamedTuple):
    """The laws found for one attention call, which every read is checked against.

    `forward` is the feed-forward block that follows; `bare` holds checksums of the parameters that are used without an affine module.
    """

    parts: Mapping[str, PartLaw] = {}
    out: OutLaw | None = None
    bare: Mapping[str, Float[Tensor, " r"]] = {}
    forward: ForwardLaw | None = None


@torch.no_grad()
def map_law(name: str, nth: int, affine: Affine) -> MapLaw:
    """The law of one use of a map."""
    weight = affine.weight.detach()
    kind = torch.float64 if weight.dtype == torch.float64 else torch.float32
    draw = torch.Generator().manual_seed(nth)
    g = torch.randn(weight.shape[0], DIRECTIONS, generator=draw, dtype=kind).to(weight.device)
    images, shift = g.new_zeros(weight.shape[1], DIRECTIONS), g.new_zeros(DIRECTIONS)
    # in blocks, as an output layer has as many rows as the vocabulary; numbers that are converted are to fit a processor's cache
    size = 4096 if weight.dtype == kind else max(1, BLOCK // weight.shape[1])
    for rows, directions in zip(weight.split(size), g.split(size), strict=True):
        images += (directions.T @ rows.to(kind)).T  # four times as fast as rows.T @ directions
    if affine.bias is not None:
        shift = affine.bias.detach().to(kind) @ g
    return MapLaw(name, nth, g, images, shift, float(weight.norm()) / weight.shape[1] ** 0.5)


def out_law(law: MapLaw, columns: Int[Tensor, "H E"], owner: str | None, time_first: bool) -> OutLaw:
    """The law of W_O, given its input units per head."""
    flat = columns.flatten().to(law.images.device)
    images = torch.zeros_like(law.images)
    images[flat] = law.images[flat]
    return OutLaw(law, images, law.images[flat].unflatten(0, tuple(columns.shape)), owner, time_first)


@torch.no_grad()
def checksums_of(model: nn.Module, names: Iterable[str]) -> dict[str, Float[Tensor, " r"]]:
    """Checksums of the named parameters: a few random sums and the norm, which change with the values; names of modules are skipped."""
    parameters, marks = dict(model.named_parameters()), {}
    for name in dict.fromkeys(names):
        parameter = parameters.get(name)
        if parameter is None:
            continue
        flat, draw = parameter.detach().flatten(), torch.Generator().manual_seed(parameter.numel())
        sums = [torch.zeros((), dtype=torch.float64)] * DIRECTIONS
        for part in flat.split(1 << 20):
            numbers = part.double().cpu()
            sums = [s + numbers @ torch.randn(len(part), generator=draw, dtype=torch.float64) for s in sums]
        marks[name] = torch.stack([*sums, flat.double().norm().cpu()])
    return marks
