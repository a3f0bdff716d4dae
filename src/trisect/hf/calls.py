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

from trisect.core.errors import ModelError, SiteError
from trisect.core.subject import Parts, Writer
from trisect.core.trace import Address


class Call(NamedTuple):
    """One attention call as the model itself made it: still in its graph, in the shapes of a Trace.

    `module` is the attention module's dotted name, `order` counts the calls of one forward pass from 0. `weights` is
    null where the model's own attention function does not return them; `scale` multiplies q·k, null where unknown.
    `raw` is the output as the model goes on with it. Its scores are a sum of `terms` products of activations, of which q and k
    are one; `fault` says why what was recorded cannot be what attention multiplies by, empty where nothing does.
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
    terms: int = 1
    fault: str = ""


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
    for address in (*(write or {}), *(hold or {})):
        if address not in order:
            given = f"An edit names {tuple(address)}."
            known = f"The model has {', '.join(map(str, addresses[:4]))}{', …' if len(addresses) > 4 else ''}."
            raise SiteError(given, known, "Use one of the model's addresses.")
    written = {order[a]: _fitting(a, w) for a, w in (write or {}).items()}
    return Edits(written, {order[a]: w for a, w in (hold or {}).items()})


def _fitting(address: Address, writer: Writer) -> Writer:
    """The writer, whose q, k and v have to be of the shapes that it was given; raises ModelError where they are not."""

    def write(parts: Parts) -> Parts:
        made: object = writer(parts)
        three = made if isinstance(made, tuple) and len(made) == len(parts) else ()
        if not three or any(not isinstance(t, Tensor) or t.shape != p.shape for t, p in zip(three, parts, strict=True)):
            shapes = [tuple(t.shape) if isinstance(t, Tensor) else type(t).__name__ for t in three]
            given = f"A writer for {address} gave {', '.join(map(str, shapes)) or type(made).__name__}."
            known = f"It was given q, k and v of {', '.join(str(tuple(p.shape)) for p in parts)}."
            raise ModelError(given, known, "Give q, k and v of the same shapes, as Parts(q, k, v).")
        return Parts(*three)

    return write


def held_as(held: Tensor, like: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Held weights where a call's own would be of that shape; raises ModelError where they do not fit."""
    if tuple(held.shape) != shape:
        given = f"Weights of shape {tuple(held.shape)} are to be held."
        raise ModelError(given, f"Those of the call are of {shape}.", "Give weights [B, H, T, S] of the same batch.")
    return held.to(like)


class Calls(list[Call]):
    """Calls in their order; `take` is given each as it is made, and what remains of it is kept."""

    def __init__(self, take: Callable[[Call], Call] | None = None) -> None:
        super().__init__()
        self.take = take

    def append(self, call: Call) -> None:
        """Note a call."""
        super().append(call if self.take is None else self.take(call))


def copied(call: Call) -> Call:
    """A call with copies of its numbers, in their graph: a model may write over what it has used."""
    weights = None if call.weights is None else call.weights.clone()
    return call._replace(
        q=call.q.clone(), k=call.k.clone(), v=call.v.clone(), weights=weights, output=call.output.clone()
    )


def outline(call: Call, pattern: bool = False) -> Call:
    """A call without its numbers: shapes alone, and with `pattern` which weights [B 1 T S] are not 0 in any head."""
    q, k, v, output = (torch.empty(t.shape, device="meta") for t in (call.q, call.k, call.v, call.output))
    seen = call.weights.detach().ne(0).any(1, keepdim=True).cpu() if pattern and call.weights is not None else None
    return Call(call.module, call.order, q, k, v, seen, output, call.scale, None, call.terms, call.fault)


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
