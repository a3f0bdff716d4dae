"""Whether an error says that memory does not suffice: Python's own, and what allocators of other libraries say in words."""

from __future__ import annotations

_WORDS = ("can't allocate memory", "out of memory", "bad allocation", "not enough memory", "failed to allocate")


def lacks_memory(error: BaseException) -> bool:
    """Whether memory did not suffice; libraries of compiled code raise a RuntimeError that only its words tell from others."""
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _WORDS)


def pass_memory(error: BaseException) -> None:
    """Raise an error again where it says that memory did not suffice: it says nothing of what was tried."""
    if lacks_memory(error):
        raise error
