"""Heads: what the explorer says of every head before it is opened: small pictures, shares, and how far the views differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from typing_extensions import TypedDict

from trisect.core.trace import crosses
from trisect.experiments.explore.picture import Layer, Words

if TYPE_CHECKING:
    from jaxtyping import Float, UInt8

KINDS = ("special", "itself", "one before", "one after", "others")


class Thumbs(NamedTuple):
    """Small pictures of maps, 255·√(largest value of a square / largest of the map), and each map's largest value."""

    pixels: UInt8[np.ndarray, "N t s"]
    tops: list[float]


def edges(length: int, side: int) -> np.ndarray:
    """Where the squares of a small picture begin along an axis: at most `side` of them, as even as can be."""
    count = min(length, side)
    return np.arange(count) * length // count


def thumbs(maps: Float[np.ndarray, "N T S"], side: int) -> Thumbs:
    """Each map at most `side` squares wide and high, a square being its largest value."""
    small = np.maximum.reduceat(maps, edges(maps.shape[1], side), axis=1)
    small = np.maximum.reduceat(small, edges(maps.shape[2], side), axis=2)
    tops = small.max(axis=(1, 2))
    share = small / np.where(tops > 0, tops, 1)[:, None, None]
    return Thumbs(np.rint(255 * np.sqrt(share)).astype(np.uint8), [float(t) for t in tops])


def is_causal(layer: Layer) -> bool:
    """Whether nothing is ever read from a later position."""
    square = layer.weights.shape[1] == layer.weights.shape[2]
    if not square or crosses(layer.stack) or layer.weights.shape[1] < 2:
        return False
    return not np.triu(layer.weights.max(axis=0), 1).any()


class HeadShares(TypedDict):
    """Shares of each head among KINDS, by weight and by norm, and how far the two are apart; null without norms."""

    weights: list[list[float]]
    norms: list[list[float]] | None
    apart: list[float | None] | None


def shares(layer: Layer, keys: Words) -> HeadShares:
    """Per head, how the weights and the norms are shared out among KINDS, and how far the two differ.

    Each share is of the sum over all cells; [H][5], those of norms null without norms. `apart` [H] is the mean over
    queries of half the distance |a_ij − n_ij| summed over j, n being the norms made to sum to one: 0 the same, 1 nothing
    in common, null where all norms are 0.
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
