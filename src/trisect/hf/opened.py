"""A model as its Python says: without PyTorch's fast path and compiled code, with the parts of its own attention in sight.

Hooks see functions that Python calls. PyTorch's own attention layers go round them in evaluation mode (a fused "fast
path"), and `F.multi_head_attention_forward` hides what it calls from function modes; both compute the same otherwise.
"""

from __future__ import annotations

import contextlib
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
import torch.utils.checkpoint as checkpoints
from torch import Tensor, nn

from trisect.core.errors import ModelError
from trisect.hf.arguments import Arguments, NamedArguments


@contextlib.contextmanager
def opened() -> Iterator[None]:
    """Inside, every operation of a forward pass can be seen; afterwards everything is as it was before."""
    fast = torch.backends.mha.get_fastpath_enabled()
    with eagerly():
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode, without dropout, and every part of it back in its own mode afterwards."""
    before = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        yield
    finally:
        for module, training in before:
            module.training = training


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Inside, activation checkpoints keep what they would compute again: a backward pass is no second forward pass.

    Several threads may be inside; torch's own is back when the last one leaves.
    """
    with _lock:
        now = checkpoints._checkpoint_without_reentrant_generator, checkpoints.CheckpointFunction
        _replaced.append(_replaced[0] if _replaced else now)
        checkpoints._checkpoint_without_reentrant_generator = lambda *_a, **_k: iter((None,))
        checkpoints.CheckpointFunction = _Kept  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        with _lock:
            own = _replaced.pop()
            if not _replaced:
                checkpoints._checkpoint_without_reentrant_generator, checkpoints.CheckpointFunction = own


_lock = threading.Lock()
_replaced: list[tuple[Any, Any]] = []  # torch's own, once for each that is inside


class _Kept:
    """A checkpoint's function without the checkpoint."""

    @staticmethod
    def apply(function: Callable[..., Any], _preserve: bool, *args: Any) -> Any:
        """Run the function."""
        return function(*args)


def eagerly() -> contextlib.AbstractContextManager[None]:
    """Inside, what torch.compile made runs as the Python that it was made from."""
    stance: Any = torch.compiler.set_stance
    return stance("force_eager")


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside what torch.compile or PEFT made of it; adapters inside its projections stay where they are.

    Raises ModelError for adapters that stand before the model (prompts and prefixes), and would be lost.
    """
    while True:
        if isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        elif callable(base := getattr(model, "get_base_model", None)) and hasattr(model, "peft_config"):
            if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
                given = f"{type(model).__name__} puts learned prompts before what it is given."
                known = "Only adapters inside the model (LoRA and its kin) are read."
                raise ModelError(given, known, "Read the model without them: load(model.get_base_model()).")
            inside: Any = base()
            model = inside
        else:
            return model


def rows_of(module: nn.Module, args: Arguments, kwargs: NamedArguments) -> int | None:
    """How many sequences an nn.MultiheadAttention is given at once; null for any other module."""
    query = args[0] if args else kwargs.get("query")
    if not isinstance(module, nn.MultiheadAttention) or not isinstance(query, Tensor):
        return None
    return query.shape[0 if module.batch_first else 1] if query.dim() == 3 else 1


def parts_of(function: Callable[..., Any]) -> Callable[..., Any] | None:
    """A function of the same code whose operations a function mode sees; null for one that hides none."""
    return _ATTEND if function is F.multi_head_attention_forward else None


def _unhidden(function: Any) -> Callable[..., Any]:
    """The same code, which does not ask whether a function mode takes it whole."""
    names = function.__globals__ | {"has_torch_function": lambda _tensors: False}
    made = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


_ATTEND = _unhidden(F.multi_head_attention_forward)
