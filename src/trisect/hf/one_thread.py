"""One thread at a time runs a model that is recorded, so that no thread gets another's recordings."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

# one for all models: they may share modules and configurations, and what is switched (PyTorch's fast path, torch.compile,
# the attention interface, the generator of random numbers) is the process's
RECORDING = threading.RLock()


def alone(function: Callable[P, R]) -> Callable[P, R]:
    """The function, run by one thread at a time; other threads wait, and it may call others of its kind."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with RECORDING:
            return function(*args, **kwargs)

    return run
