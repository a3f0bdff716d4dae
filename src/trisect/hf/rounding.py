"""Quantised models while they are verified: gradients through their maps, and by how much rounding moves what they compute."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from trisect.core.errors import ModelError
from trisect.core.subject import ModelInputs
from trisect.core.trace import Projections
from trisect.hf.affine import TOLERANCE, affine_modules, affine_of, ends_of
from trisect.hf.calls import Call, CallHook
from trisect.hf.losses import first_tensor
from trisect.hf.quantised import Quantised, quantised, share_of


@contextlib.contextmanager
def derived(model: nn.Module) -> Iterator[None]:
    """Inside, gradients pass quantised maps as those of their weights; what they make stays the same, bit for bit.

    Of some there is no derivative, or a wrong one that PyTorch warns of.
    """
    before = [(m, m.__dict__.get("forward")) for _, m in affine_modules(model) if quantised(m) is not None]
    try:
        for module, _ in before:
            module.forward = _straight(module, module.forward)
        yield
    finally:
        for module, forward in before:
            if forward is None:
                module.__dict__.pop("forward", None)
            else:
                module.forward = forward


def _straight(module: nn.Module, forward: Callable[..., Any]) -> Callable[[Tensor], Tensor]:
    def made(x: Tensor) -> Tensor:
        with torch.no_grad():
            out = forward(x.detach())
        if not torch.is_grad_enabled() or not x.requires_grad:
            return out
        weight = affine_of("", module, x.shape[-1], x).weight.detach()
        linear = F.linear(x.to(weight), weight)
        return out + (linear - linear.detach()).to(out)

    return made


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
    maps = [(name, module) for name, module, own in _found(model) if own.rounds is not None]
    if not maps:
        return Rounding(((0.0, 0.0, 0.0),) * len(calls))
    with _unrounded(maps), hook(model) as others:
        made = first_tensor(model(**inputs))
    both = zip(calls, others, strict=False)  # a pass that makes more or fewer calls moves what both have
    shares = [[share_of(n - w, w) for n, w in zip(_parts(new), _parts(was), strict=True)] for was, new in both]
    return Rounding(tuple((q, k, v) for q, k, v in shares), share_of(made.to(answer) - answer, answer))


def _parts(call: Call) -> tuple[Tensor, Tensor, Tensor]:
    return call.q.detach(), call.k.detach(), call.v.detach()


@contextlib.contextmanager
def _unrounded(maps: Sequence[tuple[str, nn.Module]]) -> Iterator[None]:
    """Inside, those maps make x Wᵀ + b of x itself."""
    probing = False

    def hook(name: str, module: nn.Module, args: Any, kwargs: dict[str, Any], out: Any) -> Any:
        nonlocal probing
        ends = None if probing else ends_of(module, args, kwargs, out)
        if ends is None:
            return None
        probing = True
        affine = affine_of(name, module, ends[0].shape[-1], ends[0])
        probing = False
        made = ends[0].to(affine.weight) @ affine.weight.T
        return (made if affine.bias is None else made + affine.bias).to(out)

    with contextlib.ExitStack() as stack:
        for name, module in maps:
            one = lambda m, a, k, o, name=name: hook(name, m, a, k, o)  # noqa: E731
            stack.callback(module.register_forward_hook(one, with_kwargs=True).remove)
        yield


def said_of_rounding(model: nn.Module, projections: Sequence[Projections], moved: Rounding) -> tuple[str, ...]:
    """What is said of a model with quantised maps: of which kinds they are, and by how much their rounding moved what was seen."""
    kinds = {own.words: own for _, _, own in _found(model)}
    if not kinds:
        return ()
    said = f"Maps of it are quantised: {'; '.join(kinds)}. Weights are those that it multiplies by, not those before."
    if not any(own.rounds for own in kinds.values()):
        return (said,)
    q, k, v = (max((of[i] for of in moved.parts), default=0.0) for i in range(3))
    lost = max((p.origins["o"].rounding or 0.0 for p in projections), default=0.0)
    said += (
        " Against a pass in which no map rounds its input, on the example that it was verified with, rounding in all layers together moves "
        f"q by up to {q:.1e} of its largest number in a layer, k by {k:.1e}, v by {v:.1e} and the answer by {moved.answer:.1e}."
    )
    if lost:
        said += f" W_O's own rounding moves what it makes by up to {lost:.1e}: sums of a·v·W_O miss what a layer adds by as much."
    return (said,)


def coarsest(model: nn.Module) -> float:
    """What share of the largest value is rounding in the coarsest of a model's quantised maps; 0 without any."""
    return max((TOLERANCE[own.kind] for _, _, own in _found(model) if own.kind is not None), default=0.0)


def _found(model: nn.Module) -> list[tuple[str, nn.Module, Quantised]]:
    return [(name, module, own) for name, module in affine_modules(model) if (own := quantised(module)) is not None]


def check_weights(name: str, model: nn.Module) -> None:
    """Raise ModelError for weights without gradients, and for those that are no plain tensors, as torchao has them."""
    for key, tensor in model.named_parameters():
        if tensor.is_inference():
            known = "No gradient can be followed through it, by which a model is verified."
            todo = "Make or load the model outside torch.inference_mode; reading inside is no matter."
            raise ModelError(f"{key} of {name} was made in inference mode.", known, todo)
        if is_traceable_wrapper_subclass(tensor):
            kind = type(tensor.data)
            given = f"{key} of {name} is a {kind.__module__.split('.')[0]} {kind.__name__}."
            todo = "Give the model as it was before, or quantised by torch.ao's quantize_dynamic or bitsandbytes."
            raise ModelError(given, "A tensor of that kind gives away neither its numbers nor its rows.", todo)
