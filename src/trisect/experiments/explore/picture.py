"""Picture: what the explorer shows of one text in one model, as NumPy arrays and words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from trisect.core.trace import crosses

if TYPE_CHECKING:
    from jaxtyping import Float, UInt8


@dataclass(frozen=True, eq=False)
class Layer:
    """One attention layer on one text; only real positions, no padding.

    `weights` [H T S], `q` [H T E] and `k` [K S E] as they enter the dot product, `norms` [H S] the ‖f_h(x_j)‖ and
    `summed` [T S] the ‖Σ_h a_h f_h(x_j)‖, both None where the layer has no output projection to take them by:
    `lacking` then says why. `scale` multiplies q·k, None where unknown; `plain` tells whether the softmax of scale·q·k
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

    `target` is None where there is one sequence; with two, layers of the stack 'dec' lie within the target and those
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


KINDS = ("special", "itself", "one before", "one after", "others")


def edges(length: int, side: int) -> np.ndarray:
    """Where the squares of a small picture begin along an axis: at most `side` of them, as even as can be."""
    count = min(length, side)
    return np.arange(count) * length // count


def thumbs(maps: Float[np.ndarray, "N T S"], side: int) -> tuple[UInt8[np.ndarray, "N t s"], list[float]]:
    """Each map at most `side` squares wide and high, a square being its largest value, and each map's largest value.

    Pixels are 255·√(largest value of a square / largest of the map).
    """
    small = np.maximum.reduceat(maps, edges(maps.shape[1], side), axis=1)
    small = np.maximum.reduceat(small, edges(maps.shape[2], side), axis=2)
    tops = small.max(axis=(1, 2))
    share = small / np.where(tops > 0, tops, 1)[:, None, None]
    return np.rint(255 * np.sqrt(share)).astype(np.uint8), [float(t) for t in tops]


def is_causal(layer: Layer) -> bool:
    """Whether nothing is ever read from a later position."""
    square = layer.weights.shape[1] == layer.weights.shape[2]
    if not square or crosses(layer.stack) or layer.weights.shape[1] < 2:
        return False
    return not np.triu(layer.weights.max(axis=0), 1).any()


def shares(layer: Layer, keys: Words) -> dict[str, object]:
    """Per head, how the weights and the norms are shared out among KINDS, and how far the two differ.

    Each share is of the sum over all cells: `weights` and `norms` [H][5], those of norms None without norms. `apart` [H] is the mean over
    queries of half the distance |a_ij − n_ij| summed over j, n being the norms made to sum to one: 0 the same, 1 nothing
    in common, None where all norms are 0.
    """
    by_weight = _shared(layer.weights, layer, keys)
    if layer.norms is None:
        return {"weights": by_weight, "norms": None, "apart": None}
    norms = layer.weights * layer.norms[:, None, :]
    rows = norms / np.maximum(norms.sum(axis=2, keepdims=True), 1e-30)
    own = layer.weights / np.maximum(layer.weights.sum(axis=2, keepdims=True), 1e-30)
    apart = np.abs(rows - own).sum(axis=2).mean(axis=1) / 2
    carries = [bool(own.any()) for own in norms]  # a head whose values were taken away has no view by norm
    said = [round(float(a), 4) if some else None for a, some in zip(apart, carries, strict=True)]
    return {"weights": by_weight, "norms": _shared(norms, layer, keys), "apart": said}


def _shared(maps: np.ndarray, layer: Layer, keys: Words) -> list[list[float]]:
    special = np.array(keys.special, dtype=bool)
    sums = maps.sum(axis=(1, 2))
    whole = np.maximum(sums, 1e-30)
    parts = [maps[:, :, special].sum(axis=(1, 2))]
    for offset in (0, -1, 1):
        if crosses(layer.stack):
            parts.append(np.zeros(len(maps)))
            continue
        line = np.diagonal(maps, offset, axis1=1, axis2=2)
        plain = ~(special[: line.shape[1]] if offset <= 0 else special[offset : offset + line.shape[1]])
        parts.append((line * plain).sum(axis=1))
    found = np.stack(parts, axis=1) / whole[:, None]
    rest = np.where(sums[:, None] > 0, np.maximum(1 - found.sum(axis=1, keepdims=True), 0), 0)
    return [[round(float(x), 4) for x in row] for row in np.concatenate([found, rest], axis=1)]


@cache
def _bytes() -> dict[str, int]:
    """The byte behind each character of a byte-level vocabulary: printable ones stand for themselves, others from U+0100."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in set(plain)]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(rest)}


def _decoded(piece: str) -> str:
    """The text of a byte-level piece; bytes that are no whole character are written as ‹e2 80›."""
    if any(c not in _bytes() for c in piece):
        return piece
    raw = bytes(_bytes()[c] for c in piece)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return f"‹{raw.hex(' ')}›"


def readable(pieces: Sequence[str], special: Sequence[bool]) -> tuple[tuple[str, bool], ...]:
    """The pieces as text, by the mark that their tokenizer sets: ## inside a word, Ġ or ▁ before one, or none.

    Beside each stands whether it is glued to the one before: no space stands between them.
    """
    own = [p for p, added in zip(pieces, special, strict=True) if not added]
    opens = next((mark for mark in "Ġ▁" if any(p.startswith(mark) for p in own)), "")
    inner = "" if opens else next((mark for mark in ("##", "@@") if any(mark in p[:2] + p[-2:] for p in own)), "")
    bytewise = opens == "Ġ" or any("Ċ" in p for p in own)
    found: list[tuple[str, bool]] = []
    cut = True
    for i, (piece, added) in enumerate(zip(pieces, special, strict=True)):
        text, glued = piece, i == 0
        if added:
            pass
        elif opens or bytewise:
            begins = piece.startswith(opens) if opens else False
            text = piece[1:] if begins and len(piece) > 1 else piece.replace("▁", " ")
            text = _decoded(text) if bytewise else text
            glued = glued or not (begins or special[i - 1])
        elif inner == "##" and piece.startswith("##") and len(piece) > 2:
            text, glued = piece[2:], True
        elif inner == "@@":
            text, glued = piece.removesuffix("@@") or piece, glued or cut
            cut = piece.endswith("@@")
        if not text.strip():  # as signs, since a piece of white space would be nothing to see or to point at
            text = text.replace("\n", "↵").replace("\t", "⇥").replace("\r", "␍").replace(" ", "␣")
        found.append((text or "∅", glued))
    return tuple(found)
