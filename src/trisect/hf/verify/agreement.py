"""Whether a model answers read as it does unread: with a cache, over longer texts, and within what quantisation rounds."""

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
from trisect.core.subject import ModelInputs, Parts
from trisect.core.trace import Projections
from trisect.hf.batches import first_tensor
from trisect.hf.files.model_errors import memory_guard
from trisect.hf.hooks.calls import (
    Call,
    CallHook,
    Calls,
    Edits,
    ModelOutput,
    copy_caches,
    copy_call,
    evaluating,
    replace_forwards,
    traceable_forward,
    without_compile,
)
from trisect.hf.locate.affine import TOLERANCE, Quantised, affine_modules, affine_of, ends_of, quantisation_of, share_of

FIRST, SHARE = 2, 1 / 16  # reads of a kind of inputs in which laws are looked at, and the share of later ones
LOOSE = 4  # sums over more positions round more
AT_ONCE = 1 << 17  # numbers of an answer that are compared at once
TINY = torch.finfo(torch.float32).tiny
MASKS = ("attention_mask", "decoder_attention_mask")  # which say what is padding; others say something else


@dataclass(eq=False)
class Agreement:
    """Over how many positions the two answers were compared, what share of an answer's length is rounding, and under which autocast.

    With a `draw`, inside a command, laws are looked at in some reads: `counts` are those of each kind of inputs, `left` what was read
    last without a look.
    """

    longest: int
    allowed: float
    autocast: str = ""
    draw: Random | None = None
    counts: Counter[tuple[object, ...]] = field(default_factory=Counter)
    left: ModelInputs | None = None

    def is_looked_at(self, inputs: ModelInputs) -> bool:
        """Whether the laws are looked at in this read: in every one, but inside a command in the first of a kind and some at random.

        A kind is one of names, types and shapes of inputs, of lengths up to the next power of two, and of masks with and without padding.
        """
        if self.draw is None:
            return True
        tensors = ((name, t) for name, t in sorted(inputs.items()) if isinstance(t, Tensor))
        kind = tuple(
            (name, t.dtype, t.shape[2:], t.shape[-1].bit_length(), "mask" in name and not bool(t.all()))
            for name, t in tensors
        )
        self.counts[kind] += 1
        looks = self.counts[kind] <= FIRST or self.draw.random() < SHARE
        self.left = None if looks else inputs
        return looks

    def check_autocast(self, name: str, model: nn.Module) -> None:
        """Raise ModelError where a pass would be under another autocast than the verification was."""
        if (now := autocast_of(model)) == self.autocast:
            return
        words = "inside torch.autocast, in {}"
        here, verified = (words.format(kind) if kind else "outside torch.autocast" for kind in (now, self.autocast))
        problem = f"{name} is run {here}."
        reason = f"It was verified {verified}: its numbers round otherwise there."
        raise ModelError(problem, reason, "Load it and read it both inside torch.autocast, or both outside.")

    def confirm(
        self, name: str, model: nn.Module, inputs: ModelInputs, calls: Sequence[Call], answer: ModelOutput
    ) -> None:
        """Run the model by itself where its attention saw more positions than ever before, and compare; raises ModelError.

        What is read is its eager attention, with hooks in place: another implementation, or a model that looks for hooks,
        may compute something else as soon as a text is long.
        """
        masks = [t for name, t in inputs.items() if name in MASKS and isinstance(t, Tensor) and t.dim() == 2]
        length = longest(calls) - min((t.shape[1] - int(t.bool().sum(1).max()) for t in masks), default=0)
        if length <= self.longest:
            return
        with ExitStack() as around:
            quiet = (torch.no_grad(), evaluating(model), copy_caches(model), without_compile())
            for context in (memory_guard(name, "Running", inputs), *quiet):
                around.enter_context(context)
            plain = first_tensor(model(**inputs))
            share = apart(first_tensor(answer), plain, masks)
        if not share <= LOOSE * self.allowed:
            reason = f"Over {length} positions the two answers are apart by a share of {share:.1e}; "
            reason += f"on loading, over {self.longest}, they agreed."
            todo = "Read shorter texts, or find what depends on the length, its attention's implementation or hooks."
            raise ModelError(f"{name} does not answer the same while it is read.", reason, todo)
        self.longest = length


def autocast_of(model: nn.Module) -> str:
    """The precisions of torch.autocast in which a model's operations are, by its devices; empty where it is off."""
    kinds = sorted({p.device.type for p in model.parameters() if not p.is_meta})
    names = (str(torch.get_autocast_dtype(kind)) for kind in kinds if torch.is_autocast_enabled(kind))
    return " and ".join(dict.fromkeys(name.removeprefix("torch.") for name in names))


def longest(calls: Sequence[Call]) -> int:
    """The most positions that any call asks from or sees."""
    return max((max(call.q.shape[2], call.k.shape[2]) for call in calls), default=0)


def apart(answer: Tensor, plain: Tensor, masks: Sequence[Tensor]) -> float:
    """How long the difference of two answers is, beside the answer, where no padding stands; a part at a time.

    Infinite where they are of other shapes, where one holds numbers and the other none, and where only padding stands.
    """
    if answer.shape != plain.shape or not plain.numel():
        return float("inf")
    real = torch.ones(plain.shape[:2] if plain.dim() > 2 else plain.shape[:1], dtype=torch.bool, device=plain.device)
    for mask in masks:
        if mask.shape == real.shape:
            real &= mask.bool().to(real.device)
    places, (first, second) = real.flatten(), (t.reshape(real.numel(), -1) for t in (answer, plain))
    off = size = 0.0
    for part in places.nonzero().flatten().split(max(1, AT_ONCE // first.shape[1])):
        here, expected = first[part].float(), second[part].to(first.device).float()
        is_finite = here.isfinite()
        if not torch.equal(is_finite, expected.isfinite()):
            return float("inf")
        off += float((here - expected).masked_fill_(~is_finite, 0).double().square().sum())
        size += float(expected.masked_fill(~is_finite, 0).double().square().sum())
    return (off / max(size, TINY)) ** 0.5 if bool(places.any()) else float("inf")


# of the largest derivative; in half precision sums of products round more
NEAR = {torch.float64: 1e-3, torch.float32: 1e-3}
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
    gradients = torch.autograd.grad((weights * mixed).sum(), (q, k), retain_graph=True, allow_unused=True)
    by_q, by_k = (torch.zeros_like(t) if g is None else g.double() for t, g in zip((q, k), gradients, strict=True))
    near = max(NEAR.get(kind, COARSE) for kind in (call.q.dtype, weights.dtype))
    for name, by_head, index in (("queries", by_q, head), ("keys", by_k, head // group)):
        rest = by_head.abs().amax((0, 2, 3))
        size, rest[index] = float(rest[index]), 0
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
    """Whether rows' sums S move with keys as those of a softmax with a sink do, dS = S (1 − S) times scores'; a gate behind does not."""
    assert call.weights is not None
    w = call.weights.detach().double()
    sums = w.sum(-1)
    short = (1 - sums).clamp_min(0).masked_fill(sums == 0, 0)  # a padded position may attend to nothing at all
    if float(short.max()) <= near:
        return True  # too little to be seen beside rounding, or nothing
    draw = torch.randn(short.shape, generator=torch.Generator().manual_seed(call.order), dtype=torch.float64).to(w)
    (by_keys,) = torch.autograd.grad((call.weights.sum(-1) * draw).sum(), k, retain_graph=True, allow_unused=True)
    moved = torch.zeros_like(k, dtype=torch.float64) if by_keys is None else by_keys.double()
    if call.scale is None:
        return float(moved.abs().max()) > near * size * float(short.max())
    expected = call.scale * (w * (draw * short)[..., None]).transpose(2, 3) @ call.q.detach().double()
    expected = expected.unflatten(1, (k.shape[1], -1)).sum(2)
    return float((moved - expected).abs().max()) <= 10 * near * float(expected.abs().max())


STEP = 0.25  # of the size of queries and keys
SEEN = 1e-2  # weights whose logarithms are compared


@torch.no_grad()
def find_other_scales(model: nn.Module, inputs: ModelInputs, hook: CallHook, calls: Sequence[Call]) -> set[int]:
    """Calls whose weights are not, by their values, a softmax of scale · q·k with something added, by their order.

    A little is added to all queries and keys, with values of 0, so that every layer is given the same. A derivative alone would not
    say that scores are rounded "straight through".
    """

    def run(step: float) -> list[Call]:
        def write(order: int, parts: Parts) -> Parts:
            draw = torch.Generator().manual_seed(order)
            sizes = (step * t.double().square().mean().sqrt().to(t) for t in parts[:2])
            pairs = zip(parts, sizes, strict=False)
            q, k = (t + size * torch.randn(t.shape, generator=draw).to(t) for t, size in pairs)
            return Parts(q, k, torch.zeros_like(parts.v))

        edits = Edits({call.order: functools.partial(write, call.order) for call in calls})
        with hook(model, edits, calls=Calls(copy_call)) as edited:
            model(**inputs)
        return list(edited)

    def scores(call: Call) -> Tensor:
        assert call.scale is not None
        k = call.k.double().repeat_interleave(call.q.shape[1] // call.k.shape[1], 1)
        return call.scale * call.q.double() @ k.transpose(2, 3)

    unscaled = set[int]()
    try:
        pairs = list(zip(run(0.0), run(STEP), strict=True))
    except Exception as error:  # of some nothing can be replaced
        reraise_out_of_memory(error)
        return unscaled
    for still, stepped in pairs:
        if still.scale is None or still.scale != stepped.scale or still.weights is None or stepped.weights is None:
            continue
        was, now = still.weights.double(), stepped.weights.double()
        is_seen = (was > SEEN) & (now > SEEN)
        is_seen &= is_seen.sum(-1, keepdim=True) > 1
        before, after = scores(still), scores(stepped)
        both = torch.stack([now.log() - was.log(), after - before]).masked_fill(~is_seen, 0)
        both = (both - both.sum(-1, keepdim=True) / is_seen.sum(-1, keepdim=True).clamp_min(1)).masked_fill(~is_seen, 0)
        kinds = [t.dtype for t in (still.q, still.weights)]
        size = 1 / SEEN + float(before.masked_fill(~is_seen, 0).abs().max())
        rounding = 8 * max(torch.finfo(kind).eps for kind in kinds) * size
        most = max(NEAR.get(kind, COARSE) for kind in kinds) * float(both[1].abs().max()) + rounding
        if float((both[0] - both[1]).abs().max()) > most:
            unscaled.add(still.order)
    return unscaled


@contextlib.contextmanager
def copy_saved_tensors(model: nn.Module) -> Iterator[None]:
    """Inside, what gradients need is copied, so that a model may write over it, as inference code does."""
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
    """Why a model is refused that keeps keys of several calls in one place of its cache; None where it does not.

    Reads leave caches out. A module that stands at two places of a list of layers has one number there, by which a cache
    knows it, so that it is given keys of both.
    """
    module, times = Counter(call.module for call in calls).most_common(1)[0]
    if times == 1 or "use_cache" not in inspect.signature(model.forward).parameters:
        return None
    with traceable_forward():
        without = first_tensor(model(**{**inputs, "use_cache": False}))
    if apart(answer, without, ()) <= LOOSE * allowed:
        return None
    problem = f"{name} computes something else with a cache than without."
    reason = f"Its module {module!r} attends {times} times in a pass, and the cache gives each the others' keys too."
    todo = "Give every layer a module of its own, which may share its weights, or set model.config.use_cache to False."
    return ModelError(problem, reason, todo)


def differentiate_quantisation(model: nn.Module) -> contextlib.AbstractContextManager[None]:
    """Inside, gradients pass quantised maps as those of their weights; what they make stays the same, bit for bit.

    Of some there is no derivative, or a wrong one that PyTorch warns of.
    """
    maps = [module for _, module in affine_modules(model) if quantisation_of(module) is not None]
    return replace_forwards({m: functools.partial(_straight, m, m.forward) for m in maps})


def _straight(module: nn.Module, forward: Callable[..., Any], x: Tensor) -> Tensor:
    with torch.no_grad():
        out = forward(x.detach())
    if not torch.is_grad_enabled() or not x.requires_grad:
        return out
    weight = affine_of("", module, x.shape[-1], x).weight.detach()
    linear = F.linear(x.to(weight), weight)
    return out + (linear - linear.detach()).to(out)


class Rounding(NamedTuple):
    """By what share of their largest number q, k and v of every call, and the answer, move when no map rounds its input."""

    parts: tuple[tuple[float, float, float], ...] = ()
    answer: float = 0.0


NO_ROUNDING = Rounding()


@torch.no_grad()
def rounding_of(
    model: nn.Module, inputs: ModelInputs, hook: CallHook, calls: Sequence[Call], answer: Tensor
) -> Rounding:
    """What rounding moves, in all maps at once: a layer's q, k and v move with what those below it add; 0 where none rounds.

    `calls` and `answer` are those of the model as it is, `hook` is what recorded them.
    """
    maps = [(name, module) for name, module, kind in _quantised_maps(model) if kind.rounds is not None]
    if not maps:
        return Rounding(((0.0, 0.0, 0.0),) * len(calls))
    probing = False

    def unrounded(name: str, module: nn.Module, args: Any, kwargs: dict[str, Any], out: Any) -> Any:
        """x Wᵀ + b of x itself."""
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
            remake = functools.partial(unrounded, name)
            stack.callback(module.register_forward_hook(remake, with_kwargs=True).remove)
        others = stack.enter_context(hook(model))
        exact = first_tensor(model(**inputs))
    both = zip(calls, others, strict=False)  # a pass that makes more or fewer calls moves what both have
    pairs = [((was.q, new.q), (was.k, new.k), (was.v, new.v)) for was, new in both]
    shares = [[share_of(n.detach() - w.detach(), w.detach()) for w, n in parts] for parts in pairs]
    return Rounding(tuple((q, k, v) for q, k, v in shares), share_of(exact.to(answer) - answer, answer))


def rounding_notes(model: nn.Module, projections: Sequence[Projections], moved: Rounding) -> tuple[str, ...]:
    """What is said of a model with quantised maps: of which kinds they are, and by how much their rounding moved what was seen."""
    kinds = {kind.words: kind for _, _, kind in _quantised_maps(model)}
    if not kinds:
        return ()
    words = f"Maps of it are quantised: {'; '.join(kinds)}. Weights are those that it multiplies by, not those before."
    if any(kind.rounds for kind in kinds.values()):
        q, k, v = (max((of[i] for of in moved.parts), default=0.0) for i in range(3))
        words += (
            " Against a pass in which no map rounds its input, on the example that it was verified with, rounding in all layers "
            f"together moves q by up to {q:.1e} of its largest number in a layer, k by {k:.1e}, v by {v:.1e} and the answer by "
            f"{moved.answer:.1e}."
        )
        if lost := max((p.origins["o"].rounding or 0.0 for p in projections), default=0.0):
            words += f" W_O's own rounding moves what it makes by up to {lost:.1e}: sums of a·v·W_O miss what a layer adds by as much."
    return (words,)


def coarsest(model: nn.Module) -> float:
    """What share of the largest value is rounding in the coarsest of a model's quantised maps; 0 without any."""
    return max(
        (TOLERANCE[quantised.kind] for _, _, quantised in _quantised_maps(model) if quantised.kind is not None),
        default=0.0,
    )


def _quantised_maps(model: nn.Module) -> list[tuple[str, nn.Module, Quantised]]:
    return [
        (name, module, kind) for name, module in affine_modules(model) if (kind := quantisation_of(module)) is not None
    ]


def check_weights(name: str, model: nn.Module) -> None:
    """Raise ModelError for weights without gradients, and for those that are no plain tensors, as torchao has them."""
    for key, tensor in model.named_parameters():
        if tensor.is_inference():
            reason = "No gradient can be followed through it, by which a model is verified."
            todo = "Make or load the model outside torch.inference_mode; reading inside is no matter."
            raise ModelError(f"{key} of {name} was made in inference mode.", reason, todo)
        if is_traceable_wrapper_subclass(tensor):
            kind = type(tensor.data)
            problem = f"{key} of {name} is a {kind.__module__.split('.')[0]} {kind.__name__}."
            todo = "Give the model as it was before, or quantised by torch.ao's quantize_dynamic or bitsandbytes."
            raise ModelError(problem, "A tensor of that kind gives away neither its numbers nor its rows.", todo)
