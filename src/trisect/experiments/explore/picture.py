"""Picture: what the explorer shows of one text in one model, as NumPy arrays and words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float


@dataclass(frozen=True, eq=False)
class Layer:
    """One attention layer on one text; only real positions, no padding.

    `weights` [H T S], `q` [H T E] and `k` [K S E] as they enter the dot product, `norms` [H S] the ‖f_h(x_j)‖ and
    `summed` [T S] the ‖Σ_h a_h f_h(x_j)‖, both null where the layer has no output projection to take them by:
    `lacking` then says why. `scale` multiplies q·k, null where unknown; `plain` tells whether the softmax of scale·q·k
    is the weights, so that nothing else (a position bias, a cap) enters the scores. `v` is what the weights weigh.
    """

    stack: str
    layer: int
    weights: Float[np.ndarray, "H T S"]
    q: Float[np.ndarray, "H T E"]
    k: Float[np.ndarray, "K S E"]
    norms: Float[np.ndarray, "H S"] | None = None
    summed: Float[np.ndarray, "T S"] | None = None
    scale: float | None = None
    plain: bool = True
    lacking: str = ""
    v: Float[np.ndarray, "K S V"] | None = None


@dataclass(frozen=True)
class Words:
    """The tokenizer's pieces along one axis, and which of them the tokenizer added."""

    pieces: tuple[str, ...]
    special: tuple[bool, ...]


@dataclass(frozen=True, eq=False)
class ExplorerPicture:
    """A text read by a model: its layers in the model's order, and what stands at their positions.

    `target` is null where there is one sequence; with two, layers of the stack 'dec' lie within the target and those
    of 'cross' read from source to target. `facts` are pairs of name and value for the foot of the page.
    """

    model: str
    layers: Sequence[Layer]
    source: Words
    target: Words | None = None
    notes: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()

    def sides(self, layer: Layer) -> tuple[int, int]:
        """Which axis a layer's queries and keys are of: 0 the source, 1 the target."""
        if self.target is None:
            return 0, 0
        return int(layer.stack in ("dec", "cross")), int(layer.stack == "dec")
