"""Records of attention calls: q, k, v, weights and output of one call, and what may be put in its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from trisect.core.subject import Writer


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
CallHook = Callable[
    [nn.Module, Edits], AbstractContextManager[Sequence[Call]]
]  # records the calls of the passes inside it
