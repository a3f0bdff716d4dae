"""Smooth curves on a fine grid from few evaluations, with a check of their own and exact where they cross a level."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

NODES = (9, 17, 33)  # nested: each set of Chebyshev-Lobatto nodes holds the one before
TOLERANCE = 1e-3  # nats; two interpolants that differ by less are taken as agreeing

Evaluate = Callable[[list[float]], Float[np.ndarray, "C N"]]


class Curves(NamedTuple):
    """Channels on the grid; which grid points were evaluated rather than interpolated; the largest disagreement (in
    the smooth channels) of the last two interpolants, 0 where all was evaluated; and how many evaluations it took.
    """

    values: Float[np.ndarray, "C A"]
    exact: Bool[np.ndarray, " A"]
    check: float
    evaluations: int


def exact_curves(evaluate: Evaluate, grid: Float[np.ndarray, " A"]) -> Curves:
    """Every grid point evaluated."""
    return Curves(evaluate(grid.tolist()), np.ones(len(grid), dtype=bool), 0.0, len(grid))


def adaptive_curves(evaluate: Evaluate, grid: Float[np.ndarray, " A"], smooth: int, epsilon: float) -> Curves:
    """Interpolate through 9, then 17, then 33 nested nodes until two agree within TOLERANCE; else evaluate every point.

    The first `smooth` channels are losses: their polynomial interpolants are compared. The other channels (accuracies,
    which move in steps) are interpolated linearly. The grid points on both sides of each crossing of a loss with
    (1 + epsilon) times its value at the end of the grid are evaluated exactly, as are the ends. `grid` runs from 0
    to 1. Source of the interpolation: Berrut & Trefethen 2004, equation 5.4.
    """
    known: dict[float, np.ndarray] = {}

    def learn(points: list[float]) -> None:
        new = [x for x in points if x not in known]
        if new:
            known.update(zip(new, evaluate(new).T, strict=True))

    before, check = None, np.inf
    for count in NODES:
        nodes = _nodes(count)
        learn(nodes)
        values = np.stack([known[x] for x in nodes], axis=1)
        smooth_part = np.stack([_barycentric(np.array(nodes), v, grid) for v in values[:smooth]])
        if before is not None:
            check = float(np.max(np.abs(smooth_part - before)))
        before = smooth_part
        if check <= TOLERANCE:
            break
    else:
        return exact_curves(evaluate, grid)._replace(evaluations=len(known) + len(grid))
    steps = (
        np.stack([np.interp(grid, nodes, v) for v in values[smooth:]])
        if len(values) > smooth
        else values[:0, : len(grid)]
    )
    found = np.concatenate([smooth_part, steps.reshape(-1, len(grid))])
    exact = np.zeros(len(grid), dtype=bool)
    wanted = np.isin(grid, nodes)
    while np.any(wanted & ~exact):
        points = np.flatnonzero(wanted & ~exact)
        learn(grid[points].tolist())
        found[:, points] = np.stack([known[x] for x in grid[points].tolist()], axis=1)
        exact[points] = True
        wanted = exact | _crossings(found[:smooth], epsilon)
    return Curves(found, exact, check, len(known))


def _nodes(count: int) -> list[float]:
    """Chebyshev-Lobatto nodes on [0, 1]; the same floats in every set that holds them."""
    finest = 0.5 - 0.5 * np.cos(np.pi * np.arange(NODES[-1]) / (NODES[-1] - 1))
    return finest[:: (NODES[-1] - 1) // (count - 1)].tolist()


def _barycentric(
    nodes: Float[np.ndarray, " N"], values: Float[np.ndarray, " N"], at: Float[np.ndarray, " A"]
) -> Float[np.ndarray, " A"]:
    weights = (-1.0) ** np.arange(len(nodes))
    weights[[0, -1]] *= 0.5
    gaps = at[:, None] - nodes
    hits = gaps == 0
    terms = weights / np.where(hits, 1.0, gaps)
    smooth = (terms @ values) / terms.sum(axis=1)
    return np.where(hits.any(axis=1), values[np.argmax(hits, axis=1)], smooth)


def _crossings(losses: Float[np.ndarray, "C A"], epsilon: float) -> Bool[np.ndarray, " A"]:
    """Grid points beside which a loss passes (1 + epsilon) times its last value."""
    above = losses - (1 + epsilon) * losses[:, -1:] >= 0
    turns = np.any(above[:, 1:] != above[:, :-1], axis=0)
    return np.concatenate([turns, [False]]) | np.concatenate([[False], turns])
