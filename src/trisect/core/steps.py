"""Steps of work that take a while, such as loading and verifying a model: said as they begin, to whoever shows progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_LISTENER: ContextVar[Callable[[str], object] | None] = ContextVar("listener", default=None)


def began(words: str) -> None:
    """A step begins; nothing happens where nobody shows progress."""
    if (show := _LISTENER.get()) is not None:
        show(words)


@contextmanager
def shown_by(show: Callable[[str], object]) -> Iterator[None]:
    """While the context lasts, `show` is called with the words of every step that begins."""
    token = _LISTENER.set(show)
    try:
        yield
    finally:
        _LISTENER.reset(token)
