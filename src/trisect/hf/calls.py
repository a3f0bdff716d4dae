"""Records of attention calls: q, k, v, weights and output of one call, and what may be put in its place."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers.cache_utils import Cache

from trisect.core.subject import Writer
from trisect.core.trace import Address


class Call(NamedTuple):
    """One attention call as the model itself made it: still in its graph, in the shapes of a Trace.

    `module` is the attention module's dotted name, `order` counts the calls of one forward pass from 0. `weights` is
    null where the model's own attention function does not return them; `scale` multiplies q·k, null where unknown.
    `raw` is the output as the model goes on with it.
    """

    module: str
    order: int
    q: Float[Tensor, "B H T E"]
    k: Float[Tensor, "B K S E"]
    v: Float[Tensor, "B K S V"]
    weights: Float[Tensor, "B H T S"] | None
    output: Float[Tensor, "B H T V"]
    scale: float | None
    raw: Tensor | None = None


class Edits(NamedTuple):
    """What a hook puts in place of what the model computed, by the order of calls.

    A writer replaces q, k and v of its call; held weights replace the softmax's, so that the output is held @ v.
    """

    write: Mapping[int, Writer] = {}
    hold: Mapping[int, Float[Tensor, "B H T S"]] = {}


NOTHING = Edits()


def edits_at(
    addresses: Sequence[Address],
    write: Mapping[Address, Writer] | None = None,
    hold: Mapping[Address, Float[Tensor, "B H T S"]] | None = None,
) -> Edits:
    """Edits by the order of calls; `addresses` are those of the calls in their order."""
    order = {address: i for i, address in enumerate(addresses)}
    return Edits({order[a]: w for a, w in (write or {}).items()}, {order[a]: w for a, w in (hold or {}).items()})


class Calls(list[Call]):
    """Calls in their order; `take` is given each as it is made, and what remains of it is kept."""

    def __init__(self, take: Callable[[Call], Call] | None = None) -> None:
        super().__init__()
        self.take = take

    def append(self, call: Call) -> None:
        """Note a call."""
        super().append(call if self.take is None else self.take(call))


def outline(call: Call, pattern: bool = False) -> Call:
    """A call without its numbers: shapes alone, and with `pattern` which weights [B 1 T S] are not 0 in any head."""
    q, k, v, output = (torch.empty(t.shape, device="meta") for t in (call.q, call.k, call.v, call.output))
    seen = call.weights.detach().ne(0).any(1, keepdim=True).cpu() if pattern and call.weights is not None else None
    return Call(call.module, call.order, q, k, v, seen, output, call.scale)


@contextmanager
def sparing(model: nn.Module) -> Iterator[None]:
    """Forward passes inside are given copies of caches, which they would write to; the caller's stay as they are."""
    copies = model.register_forward_pre_hook(
        lambda _m, args, kwargs: (args, _spare(kwargs)), with_kwargs=True, prepend=True
    )
    try:
        yield
    finally:
        copies.remove()


def _spare(given: dict[str, Any]) -> dict[str, Any]:
    return {name: copy.deepcopy(value) if isinstance(value, Cache) else value for name, value in given.items()}


@runtime_checkable
class CallHook(Protocol):
    """Records the calls of the forward passes inside it, into a list that may be given."""

    def __call__(
        self, model: nn.Module, edits: Edits = NOTHING, /, *, calls: Calls | None = None
    ) -> AbstractContextManager[Sequence[Call]]:
        """The context in which passes are recorded."""
        ...
