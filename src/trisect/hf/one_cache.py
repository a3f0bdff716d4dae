"""Whether a model computes the same with a cache as without, where one module attends several times in a pass."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trisect.core.errors import ModelError
from trisect.core.subject import ModelInputs
from trisect.hf.agreement import LOOSE, apart
from trisect.hf.calls import Call
from trisect.hf.losses import first_tensor
from trisect.hf.opened import opened


@torch.no_grad()
def cached_otherwise(
    name: str, model: nn.Module, inputs: ModelInputs, calls: Sequence[Call], answer: Tensor, allowed: float
) -> ModelError | None:
    """Why a model is refused that keeps keys of several calls in one place of its cache; null where it does not.

    Reads leave caches out. A module that stands at two places of a list of layers has one number there, by which a cache
    knows it, so that it is given keys of both.
    """
    module, times = Counter(call.module for call in calls).most_common(1)[0]
    if times == 1 or "use_cache" not in inspect.signature(model.forward).parameters:
        return None
    with opened():
        without = first_tensor(model(**{**inputs, "use_cache": False}))
    if apart(answer, without, ()) <= LOOSE * allowed:
        return None
    given = f"{name} computes something else with a cache than without."
    known = (
        f"Its module {module!r} attends {times} times in a pass, and the cache gives each the keys of the others too."
    )
    todo = "Give every layer a module of its own, which may share its weights, or set model.config.use_cache to False."
    return ModelError(given, known, todo)
