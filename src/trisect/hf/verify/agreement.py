"""Checks that recording a model does not change its output: with a cache, on longer texts, and with quantised weights."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from trisect.core.errors import ModelError, reraise_out_of_memory
from trisect.core.subject import QKV, ModelInputs
from trisect.core.trace import Projections
from trisect.hf.batches import first_tensor
from trisect.hf.files.model_errors import memory_guard
from trisect.hf.hooks.calls import (
    Call,
    CallHook,
    Calls,
    Edits,
    ModelOutput,
    ProductMemo,
    copy_caches,
    copy_call,
    evaluating,
    replace_forwards,
    traceable_forward,
    without_compile,
)
from trisect.hf.locate.affine import TOLERANCE, Quantised, affine_modules, affine_of, ends_of, quantisation_of, share_of

FIRST_READS = 2  # of a kind of inputs, in which laws are checked
CHECKED_SHARE = 1 / 16  # of later reads
LONGER_FACTOR = 4  # factor on the tolerance for longer texts: sums over more positions round more
AT_ONCE = 1 << 17  # numbers of an output that are compared at once
TINY = torch.finfo(torch.float32).tiny
MASKS = ("attention_mask", "decoder_attention_mask")  # these mark padding; other masks mark something else


@dataclass(eq=False)
class Agreement:
    """What was verified on loading: the longest input in positions, the relative rounding error allowed, and the autocast precision.

    With a random generator `draw`, as commands have it, laws are checked in some reads only: `counts` are the reads of each kind of
    inputs, `unchecked_inputs` those of the last read if its laws were not checked.
    """

    longest: int
    allowed: float
    autocast: str = ""
    draw: Random | None = None
    counts: Counter[tuple[object, ...]] = field(default_factory=Counter)
    unchecked_inputs: ModelInputs | None = None

    def should_check_laws(self, inputs: ModelInputs) -> bool:
        """Whether laws are checked in this read: always without `draw`, else in the first reads of each kind of inputs and some later ones.

        Inputs are of one kind if names, types and shapes agree, with lengths up to the next power of two, and padding in the same masks.
        """
        if self.draw is None:
            return True
        tensors = ((name, t) for name, t in sorted(inputs.items()) if isinstance(t, Tensor))
        kind = tuple(
            (name, t.dtype, t.shape[2:], t.shape[-1].bit_length(), "mask" in name and not bool(t.all()))
            for name, t in tensors
        )
        self.counts[kind] += 1
        is_checked = self.counts[kind] <= FIRST_READS or self.draw.random() < CHECKED_SHARE
        self.unchecked_inputs = None if is_checked else inputs
        return is_checked

    def check_autocast(self, name: str, model: nn.Module) -> None:
        """Raise ModelError if the current autocast differs from the one at verification."""
        if (now := autocast_of(model)) == self.autocast:
            return
        words = "inside torch.autocast, in {}"
        here, verified = (words.format(kind) if kind else "outside torch.autocast" for kind in (now, self.autocast))
        problem = f"{name} is run {here}."
        reason = f"It was verified {verified}, where its numbers round differently."
        raise ModelError(problem, reason, "Load it and read it both inside torch.autocast, or both outside.")

    def confirm(
        self, name: str, model: nn.Module, inputs: ModelInputs, calls: Sequence[Call], answer: ModelOutput
    ) -> None:
        """For the longest input so far, run the model without hooks too and compare the outputs; raises ModelError if they differ.

        Reading uses eager attention with hooks. Another implementation of attention, or a model that behaves differently when hooked,
        may compute something else on long texts only.
        """
        masks = [t for name, t in inputs.items() if name in MASKS and isinstance(t, Tensor) and t.dim() == 2]
        length = longest(calls) - min((t.shape[1] - int(t.bool().sum(1).max()) for t in masks), default=0)
        if length <= self.longest:
            return
        with (
            memory_guard(name, "Running", inputs),
            torch.no_grad(),
            evaluating(model),
            copy_caches(model),
            without_compile(),
        ):
            share = relative_error(first_tensor(answer), first_tensor(model(**inputs)), masks)
        if not share <= LONGER_FACTOR * self.allowed:
            reason = f"Over {length} positions the relative difference of the two outputs is {share:.1e}; "
            reason += f"on loading, over {self.longest}, they agreed."
            todo = "Read shorter texts, or find what depends on the length, its attention's implementation or hooks."
            raise ModelError(f"The output of {name} differs while it is read.", reason, todo)
        self.longest = length


def autocast_of(model: nn.Module) -> str:
    """The dtypes of torch.autocast on the model's devices, in words; empty if autocast is off."""
    kinds = sorted({p.device.type for p in model.parameters() if not p.is_meta})
    names = (str(torch.get_autocast_dtype(kind)) for kind in kinds if torch.is_autocast_enabled(kind))
    return " and ".join(dict.fromkeys(name.removeprefix("torch.") for name in names))


def longest(calls: Sequence[Call]) -> int:
    """The largest number of queries or keys in any call."""
    return max((max(call.q.shape[2], call.k.shape[2]) for call in calls), default=0)


def relative_error(answer: Tensor, plain: Tensor, masks: Sequence[Tensor]) -> float:
    """Relative error ‖answer − plain‖ / ‖plain‖ over positions without padding, computed in blocks.

    Infinite if shapes differ, if only one of the two is finite at some place, or if all positions are padding.
    """
    if answer.shape != plain.shape or not plain.numel():
        return float("inf")
    real = torch.ones(plain.shape[:2] if plain.dim() > 2 else plain.shape[:1], dtype=torch.bool, device=plain.device)
    for mask in masks:
        if mask.shape == real.shape:
            real &= mask.bool().to(real.device)
    flat_real, (first, second) = real.flatten(), (t.reshape(real.numel(), -1) for t in (answer, plain))
    error = size = 0.0
    for part in flat_real.nonzero().flatten().split(max(1, AT_ONCE // first.shape[1])):
        values, expected = first[part].float(), second[part].to(first.device).float()
        is_finite = values.isfinite()
        if not torch.equal(is_finite, expected.isfinite()):
            return float("inf")
        error += float((values - expected).masked_fill_(~is_finite, 0).double().square().sum())
        size += float(expected.masked_fill(~is_finite, 0).double().square().sum())
    return (error / max(size, TINY)) ** 0.5 if bool(flat_real.any()) else float("inf")


# tolerances relative to the largest derivative; sums of products round more in half precision
DERIVATIVE_TOLERANCES = {torch.float64: 1e-3, torch.float32: 1e-3}
COARSE = 5e-2


class Response(NamedTuple):
    """Whether the derivatives of attention weights are those of a softmax of `scale` q·k plus any bias.

    `fault` says why the weights cannot be read at all. `sink` is true where rows sum to less than 1 because of a further term in the
    softmax's denominator, as an attention sink adds it.
    """

    scaled: bool = True
    fault: str = ""
    sink: bool = True


def find_response(call: Call, q: Tensor, k: Tensor) -> Response:
    """Compare the derivatives of one head's weights by q and k with those of a softmax; `q` and `k` are zeros added in the graph.

    For weights w and a random r, with ds = w (r − Σ w r), the derivatives of Σ w r are scale · ds k and scale · dsᵀ q. They fail for a
    softcap, which has no single scale; weights that are mixed over heads also depend on the queries of other heads.
    """
    weights = call.weights
    if weights is None or not weights.requires_grad:
        return Response()  # PyTorch's fused attention returns no weights: they were computed separately
    heads, group = weights.shape[1], weights.shape[1] // k.shape[1]
    head, draw = call.order % heads, torch.Generator().manual_seed(call.order)
    direction = torch.zeros_like(weights)
    direction[:, head] = torch.randn(weights[:, head].shape, generator=draw).to(weights)
    gradients = torch.autograd.grad((weights * direction).sum(), (q, k), retain_graph=True, allow_unused=True)
    by_q, by_k = (torch.zeros_like(t) if g is None else g.double() for t, g in zip((q, k), gradients, strict=True))
    tolerance = max(DERIVATIVE_TOLERANCES.get(kind, COARSE) for kind in (call.q.dtype, weights.dtype))
    for name, by_head, index in (("queries", by_q, head), ("keys", by_k, head // group)):
        rest = by_head.abs().amax((0, 2, 3))
        size, rest[index] = float(rest[index]), 0
        if float(rest.max()) > tolerance * size:
            return Response(False, f"the weights of a head depend on {name} of other heads")
    sink = _has_sink(call, k, tolerance, float(by_k.abs().max()))
    if call.scale is None:
        return Response(False, sink=sink)
    w, r = weights.detach()[:, head].double(), direction[:, head].double()
    scores = call.scale * w * (r - (w * r).sum(-1, keepdim=True))
    head_q, head_k = call.q.detach()[:, head].double(), call.k.detach()[:, head // group].double()
    pairs = (by_q[:, head], scores @ head_k), (by_k[:, head // group], scores.transpose(1, 2) @ head_q)
    return Response(all(float((a - b).abs().max()) <= tolerance * float(b.abs().max()) for a, b in pairs), sink=sink)


def _has_sink(call: Call, k: Tensor, tolerance: float, size: float) -> bool:
    """Whether row sums S change with the keys as in a softmax with a sink, dS = S (1 − S) · dscore; after a gate they do not."""
    assert call.weights is not None
    w = call.weights.detach().double()
    sums = w.sum(-1)
    deficit = (1 - sums).clamp_min(0).masked_fill(sums == 0, 0)  # a padded position may attend to nothing at all
    if float(deficit.max()) <= tolerance:
        return True  # rows sum to 1, within rounding
    draw = torch.randn(deficit.shape, generator=torch.Generator().manual_seed(call.order), dtype=torch.float64).to(w)
    (by_keys,) = torch.autograd.grad((call.weights.sum(-1) * draw).sum(), k, retain_graph=True, allow_unused=True)
    gradient = torch.zeros_like(k, dtype=torch.float64) if by_keys is None else by_keys.double()
    if call.scale is None:
        return float(gradient.abs().max()) > tolerance * size * float(deficit.max())
    expected = call.scale * (w * (draw * deficit)[..., None]).transpose(2, 3) @ call.q.detach().double()
    expected = expected.unflatten(1, (k.shape[1], -1)).sum(2)
    return float((gradient - expected).abs().max()) <= 10 * tolerance * float(expected.abs().max())


NOISE = 0.25  # added noise, relative to the size of queries and keys
SMALLEST_WEIGHT = 1e-2  # logarithms are compared for weights above this


@torch.no_grad()
def find_other_scales(
    model: nn.Module, inputs: ModelInputs, hook: CallHook, calls: Sequence[Call], memo: ProductMemo
) -> set[int]:
    """The orders of calls whose weights, by their values, are not a softmax of scale · q·k plus a bias.

    Noise is added to all queries and keys. All values are set to 0, so that each layer's input stays the same. Derivatives alone
    (`find_response`) would miss scores that are rounded with a straight-through gradient.
    """

    def run(step: float) -> list[Call]:
        def write(order: int, parts: QKV) -> QKV:
            draw = torch.Generator().manual_seed(order)
            sizes = (step * t.double().square().mean().sqrt().to(t) for t in parts[:2])
            pairs = zip(parts, sizes, strict=False)
            q, k = (t + size * torch.randn(t.shape, generator=draw).to(t) for t, size in pairs)
            return QKV(q, k, torch.zeros_like(parts.v))

        edits = Edits({call.order: functools.partial(write, call.order) for call in calls})
        with memo.by_rows(), hook(model, edits, calls=Calls(copy_call)) as edited:
            model(**inputs)
        return list(edited)

    def scores(call: Call) -> Tensor:
        assert call.scale is not None
        k = call.k.double().repeat_interleave(call.q.shape[1] // call.k.shape[1], 1)
        return call.scale * call.q.double() @ k.transpose(2, 3)

    unscaled = set[int]()
    try:
        pairs = list(zip(run(0.0), run(NOISE), strict=True))
    except Exception as error:  # q, k and v of some models cannot be replaced
        reraise_out_of_memory(error)
        return unscaled
    for still, stepped in pairs:
        if still.scale is None or still.scale != stepped.scale or still.weights is None or stepped.weights is None:
            continue
        before_weights, after_weights = still.weights.double(), stepped.weights.double()
        is_seen = (before_weights > SMALLEST_WEIGHT) & (after_weights > SMALLEST_WEIGHT)
        is_seen &= is_seen.sum(-1, keepdim=True) > 1
        before, after = scores(still), scores(stepped)
        both = torch.stack([after_weights.log() - before_weights.log(), after - before]).masked_fill(~is_seen, 0)
        both = (both - both.sum(-1, keepdim=True) / is_seen.sum(-1, keepdim=True).clamp_min(1)).masked_fill(~is_seen, 0)
        kinds = [t.dtype for t in (still.q, still.weights)]
        size = 1 / SMALLEST_WEIGHT + float(before.masked_fill(~is_seen, 0).abs().max())
        rounding = 8 * max(torch.finfo(kind).eps for kind in kinds) * size
        tolerance = (
            max(DERIVATIVE_TOLERANCES.get(kind, COARSE) for kind in kinds) * float(both[1].abs().max()) + rounding
        )
        if float((both[0] - both[1]).abs().max()) > tolerance:
            unscaled.add(still.order)
    return unscaled


@contextlib.contextmanager
def copy_saved_tensors(model: nn.Module) -> Iterator[None]:
    """Copy the tensors that autograd saves, so that a model may overwrite them in place, as inference code does."""
    tensors = itertools.chain(model.parameters(), model.buffers())
    stored = {t.untyped_storage().data_ptr() for t in tensors if not t.is_meta}

    def keep(t: Tensor) -> Tensor:
        return t if t.layout != torch.strided or t.untyped_storage().data_ptr() in stored else t.detach().clone()

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        yield


@torch.no_grad()
def check_kv_cache(
    name: str, model: nn.Module, inputs: ModelInputs, calls: Sequence[Call], answer: Tensor, allowed: float
) -> ModelError | None:
    """The error for a model that keeps keys of several calls in one entry of its cache; None for any other model.

    Models are read without a cache. A module that is used twice in a list of layers has one layer index, so that a cache stores the
    keys of both uses in one entry.
    """
    module, times = Counter(call.module for call in calls).most_common(1)[0]
    if times == 1 or "use_cache" not in inspect.signature(model.forward).parameters:
        return None
    with traceable_forward():
        without = first_tensor(model(**{**inputs, "use_cache": False}))
    if relative_error(answer, without, ()) <= LONGER_FACTOR * allowed:
        return None
    problem = f"{name} computes something else with a cache than without."
    reason = f"Its module {module!r} attends {times} times in a pass, and the cache gives each the others' keys too."
    todo = "Give every layer a module of its own, which may share its weights, or set model.config.use_cache to False."
    return ModelError(problem, reason, todo)


def differentiate_quantisation(model: nn.Module) -> contextlib.AbstractContextManager[None]:
    """Give quantised maps the gradient of the linear map by their weights; their outputs stay the same, bit for bit.

    Some of them have no derivative, or a wrong one that PyTorch warns about.
    """
    maps = [module for _, module in affine_modules(model) if quantisation_of(module) is not None]
    return replace_forwards({m: functools.partial(_straight_through, m, m.forward) for m in maps})


def _straight_through(module: nn.Module, forward: Callable[..., Any], x: Tensor) -> Tensor:
    with torch.no_grad():
        out = forward(x.detach())
    if not torch.is_grad_enabled() or not x.requires_grad:
        return out
    weight = affine_of("", module, x.shape[-1], x).weight.detach()
    linear = F.linear(x.to(weight), weight)
    return out + (linear - linear.detach()).to(out)


class Rounding(NamedTuple):
    """Largest change of q, k and v of every call, and of the output, without rounding of inputs; relative to their largest number."""

    parts: tuple[tuple[float, float, float], ...] = ()
    answer: float = 0.0


NO_ROUNDING = Rounding()


@torch.no_grad()
def rounding_of(
    model: nn.Module, inputs: ModelInputs, hook: CallHook, calls: Sequence[Call], answer: Tensor
) -> Rounding:
    """The effect of switching off the rounding of inputs in all quantised maps at once; 0 where no map rounds its input.

    Changes accumulate over layers. `calls` and `answer` were recorded from the unchanged model by `hook`.
    """
    maps = [(name, module) for name, module, kind in _quantised_maps(model) if kind.rounds is not None]
    if not maps:
        return Rounding(((0.0, 0.0, 0.0),) * len(calls))
    probing = False

    def unrounded(name: str, module: nn.Module, args: Any, kwargs: dict[str, Any], out: Any) -> Any:
        """x Wᵀ + b of the unrounded input x."""
        nonlocal probing
        ends = None if probing else ends_of(module, args, kwargs, out)
        if ends is None:
            return None
        probing = True
        affine = affine_of(name, module, ends[0].shape[-1], ends[0])
        probing = False
        product = ends[0].to(affine.weight) @ affine.weight.T
        return (product if affine.bias is None else product + affine.bias).to(out)

    with ExitStack() as stack:
        for name, module in maps:
            hook_of_map = functools.partial(unrounded, name)
            stack.callback(module.register_forward_hook(hook_of_map, with_kwargs=True).remove)
        others = stack.enter_context(hook(model))
        exact = first_tensor(model(**inputs))
    # if the passes make different numbers of calls, compare those that both have
    parts = tuple(
        (share_of(n.q - w.q, w.q), share_of(n.k - w.k, w.k), share_of(n.v - w.v, w.v))
        for w, n in zip(calls, others, strict=False)
    )
    return Rounding(parts, share_of(exact.to(answer) - answer, answer))


def rounding_notes(model: nn.Module, projections: Sequence[Projections], moved: Rounding) -> tuple[str, ...]:
    """Notes on a model with quantised maps: their kinds, and how much rounding of inputs changed q, k, v and the output."""
    kinds = {kind.words: kind for _, _, kind in _quantised_maps(model)}
    if not kinds:
        return ()
    words = f"Maps of it are quantised: {'; '.join(kinds)}. Weights are those that it multiplies by, not those before."
    if any(kind.rounds for kind in kinds.values()):
        q, k, v = (max((part[i] for part in moved.parts), default=0.0) for i in range(3))
        words += (
            " Against a pass in which no map rounds its input, on the example that it was verified with, rounding in all layers "
            f"together moves q by up to {q:.1e} of its largest number in a layer, k by {k:.1e}, v by {v:.1e} and the answer by "
            f"{moved.answer:.1e}."
        )
        if lost := max((p.origins["o"].rounding or 0.0 for p in projections), default=0.0):
            words += f" W_O's own rounding moves what it makes by up to {lost:.1e}: sums of a·v·W_O miss what a layer adds by as much."
    return (words,)


def largest_rounding_tolerance(model: nn.Module) -> float:
    """The largest relative rounding tolerance among a model's quantised maps; 0 if it has none."""
    kinds = (quantised.kind for _, _, quantised in _quantised_maps(model))
    return max((TOLERANCE[kind] for kind in kinds if kind is not None), default=0.0)


def _quantised_maps(model: nn.Module) -> list[tuple[str, nn.Module, Quantised]]:
    kinds = ((name, module, quantisation_of(module)) for name, module in affine_modules(model))
    return [(name, module, kind) for name, module, kind in kinds if kind is not None]


def check_weights(name: str, model: nn.Module) -> None:
    """Raise ModelError for weights made in inference mode, and for wrapper subclasses of tensors such as those of torchao."""
    for key, tensor in model.named_parameters():
        if tensor.is_inference():
            reason = "A model is verified by gradients, and none can be computed through such a tensor."
            todo = "Make or load the model outside torch.inference_mode; reading it inside is fine."
            raise ModelError(f"{key} of {name} was made in inference mode.", reason, todo)
        if is_traceable_wrapper_subclass(tensor):
            kind = type(tensor.data)
            problem = f"{key} of {name} is a {kind.__module__.split('.')[0]} {kind.__name__}."
            todo = "Give the model as it was before, or quantised by torch.ao's quantize_dynamic or bitsandbytes."
            raise ModelError(problem, "Neither the numbers nor the rows of such a tensor can be accessed.", todo)
