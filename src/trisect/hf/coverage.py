"""Which of the two hooks reads a model's attention, and which attention neither of them reads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from trisect.core.errors import ModelError
from trisect.core.memory import pass_memory
from trisect.core.subject import ModelInputs
from trisect.hf.affine import TOLERANCE, is_affine
from trisect.hf.calls import NOTHING, Call, CallHook, Calls, copied
from trisect.hf.interface_hook import eager, record_interface
from trisect.hf.losses import first_tensor
from trisect.hf.opened import eagerly, opened
from trisect.hf.product_hook import IN_PIECES, following, record_products
from trisect.hf.rounding import coarsest
from trisect.hf.windowed import UnreadAttention, find_pieces

SILENT = "it mixes its sequence without a softmax of one product of queries and keys"


class Coverage(NamedTuple):
    """What the better hook saw of one forward pass, what no hook saw, and how far that hook moved the answer.

    `moved` is the largest change of the answer by recording it, in the same implementation (0: bit for bit); `apart`
    that between the implementation which is read and the one which the model came with (PyTorch's fast path among them), as
    a share of the largest.
    """

    hook: CallHook
    words: str
    calls: tuple[Call, ...]
    unread: tuple[UnreadAttention, ...]
    answer: Tensor
    moved: float
    apart: float


@torch.no_grad()
def read_coverage(model: nn.Module, inputs: ModelInputs) -> Coverage:
    """Read one forward pass through both hooks, and keep the one that sees more; the interface where both see the same.

    Raises ModelError where two passes over the same inputs differ by themselves.
    """
    with _running(model) as ran, eagerly():
        own = first_tensor(model(**inputs))
    with following(model, calls=Calls(copied)) as follower:
        followed = first_tensor(model(**inputs))
    # a second pass that differs may be the hook's doing or the model's
    if not _same(own, followed) and not _same(own, first_tensor(model(**inputs))):
        _refuse_nan(model, own)
        given = f"{type(model).__name__} answers the same inputs in two ways."
        raise ModelError(given, "What is recorded would not be what it computes.", "Switch its randomness off.")
    with opened():
        open_own = first_tensor(model(**inputs))
        plain, error = _eagerly(model, inputs)
    calls, taped = Calls(copied), own
    if plain is not None:
        with record_interface(model, NOTHING, calls=calls):
            taped = first_tensor(model(**inputs))
    elif not follower.calls:
        raise _no_eager(model, error) from error
    read = [c.module for c in (*calls, *follower.calls)]
    cut = [s for s in follower.unread if s.words == IN_PIECES and not _among(s.module, read)]
    pieces = find_pieces(model, inputs, cut)
    if pieces:
        with following(model, pieces=pieces, calls=Calls(copied)) as follower:
            followed = first_tensor(model(**inputs))
    by_tape = bool(calls) and len(calls) >= len(follower.calls)
    if plain is not None and len(calls) == len(follower.calls) and not _near(model, plain, own):
        by_tape = not _near(model, open_own, own)  # as it was loaded, where eager attention is another
    chosen, other = (calls, follower.calls) if by_tape else (follower.calls, calls)
    read = [c.module for c in chosen]
    whole = [p.module for p in pieces] + (read if by_tape else [])
    unread = [s for s in follower.unread if not _among(s.module, whole)]
    unread += [UnreadAttention(c.module, "only the other hook sees it") for c in other if not _among(c.module, read)]
    named = read + [s.module for s in unread]
    unread += [UnreadAttention(name, SILENT) for name in ran if not _among(name, named)]
    beside = silent_layers(model, named) if chosen else []
    unread += [s for s in beside if not _among(s.module, [*named, *(u.module for u in unread)])]
    hook, words = (record_interface, "interface") if by_tape else (partial(record_products, pieces=pieces), "product")
    shown = plain if by_tape and plain is not None else open_own
    moved = _change(taped if by_tape else followed, shown)
    apart = _apart(shown, own)
    answer = taped if by_tape else followed
    return Coverage(hook, words, tuple(chosen), tuple(dict.fromkeys(unread)), answer, moved, apart)


def _refuse_nan(model: nn.Module, answer: Tensor) -> None:
    """Raise ModelError for an answer with NaN, which is equal to nothing, itself included."""
    if count := int(answer.isnan().sum()):
        known = (
            f"{count:,} of {answer.numel():,} numbers of its answer are NaN: somewhere in it numbers grow too large."
        )
        todo = "Look at its weights, or read it in a wider precision, such as float64."
        raise ModelError(f"{type(model).__name__} answers with what are no numbers.", known, todo)


def _eagerly(model: nn.Module, inputs: ModelInputs) -> tuple[Tensor, None] | tuple[None, RuntimeError]:
    """The answer with eager attention, which shows its weights; the error where the model has none that runs."""
    try:
        with eager(model):
            return first_tensor(model(**inputs)), None
    except RuntimeError as error:
        pass_memory(error)
        return None, error


def _no_eager(model: nn.Module, error: object) -> ModelError:
    given = f"{type(model).__name__} cannot be computed with eager attention, which shows its weights."
    known = f"The model says: {' '.join(str(error).split())[:200]}"
    return ModelError(given, known, "Choose a model whose eager attention runs.")


def _near(model: nn.Module, answer: Tensor, own: Tensor) -> bool:
    """Whether an answer is the model's own but for rounding."""
    return _apart(answer, own) <= max(TOLERANCE[own.dtype], coarsest(model))


def should_attend(module: nn.Module) -> bool:
    """Whether a module calls itself attention and owns at least three affine maps (or torch's own packed ones)."""
    if isinstance(module, nn.MultiheadAttention):
        return True
    named = "attention" in type(module).__name__.lower() or "attn" in type(module).__name__.lower()
    return named and sum(is_affine(child) for child in module.children()) >= 3


def silent_layers(model: nn.Module, attending: Sequence[str]) -> list[UnreadAttention]:
    """The layers of a hybrid that mix their sequence otherwise: those beside layers that attend, in one list of layers."""
    found, shared = [], {id(model.get_submodule(name)) for name in attending}
    for name, module in model.named_modules():
        layers = {f"{name}.{n}" if name else n: c for n, c in module.named_children()}
        inner = any(part.isdigit() for part in name.split("."))  # the parts of one layer, as T5 lists them
        if inner or not isinstance(module, nn.ModuleList) or len(layers) < 2:
            continue
        loud = {place for place in layers if any(a.startswith(f"{place}.") or a == place for a in attending)}
        loud |= {place for place, layer in layers.items() if not shared.isdisjoint(map(id, layer.modules()))}
        usual = {n for place in loud for n, _ in layers[place].named_children()}
        for place in layers.keys() - loud if loud else ():
            own = [n for n, _ in layers[place].named_children() if n not in usual]
            mixer = f"{place}.{own[0]}" if own else place
            words = f"in it nothing calls softmax on one product of queries and keys ({type(model.get_submodule(mixer)).__name__})"
            found.append(UnreadAttention(mixer, words))
    return sorted(found)


@contextlib.contextmanager
def _running(model: nn.Module) -> Iterator[list[str]]:
    """The names of the modules that should attend and are used in the passes inside."""
    ran: list[str] = []
    with contextlib.ExitStack() as stack:
        for name, module in model.named_modules():
            if should_attend(module):
                hook = lambda _m, _a, name=name: ran.append(name)  # noqa: E731
                stack.callback(module.register_forward_pre_hook(hook).remove)
        yield ran


def _among(name: str, others: Sequence[str]) -> bool:
    """Whether that module is one of the others, inside one, or around one."""
    return any(name == o or name.startswith(f"{o}.") or o.startswith(f"{name}.") or not o for o in others)


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(torch.equal(a, b))


def _apart(a: Tensor, own: Tensor) -> float:
    """How far an answer is from the model's own, as a share of the largest, where the latter is not left at 0.

    PyTorch's fast path leaves padding at 0.
    """
    if a.shape != own.shape or not own.dim():
        return _change(a, own)
    return float((a - own)[own.ne(0)].abs().amax() if own.any() else 0.0) / float(own.abs().max().clamp_min(1e-30))


def _change(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max()) if a.shape == b.shape else float("inf")
