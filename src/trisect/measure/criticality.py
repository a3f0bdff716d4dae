"""Criticality: how far a site's weights can be rewound before the loss changes, from curves interpolated on a fine grid."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from trisect.core.errors import TrisectError


class Criticality(NamedTuple):
    """`score`: smallest α such that at it and every larger α the loss is within ε of the final one.

    `first`: another interpretation of the paper's equation 1, the smallest α at which the loss is within ε. They differ only
    if the curve is not monotone. `area`: mean over α of the loss difference, in nats; it needs no threshold.
    """

    score: float
    first: float
    area: float


def criticality(
    alphas: Float[np.ndarray, " A"], losses: Float[np.ndarray, " B"], epsilon: float, relative: bool = True
) -> Criticality:
    """Compute `score`, `first` and `area` of one convex-rewinding curve.

    `alphas` rise from 0 (initial weights) to 1 (final weights); `losses` are in nats. `epsilon` is the tolerated loss difference
    relative to the final loss, or if not `relative` an absolute one.
    Source: Chatterji et al. 2019, as in the paper's equation 1 with the sign of the difference corrected (definitions A5).
    """
    if len(alphas) != len(losses) or len(alphas) < 2 or np.any(np.diff(alphas) <= 0):
        raise TrisectError(
            f"A rewinding curve has {len(alphas)} α and {len(losses)} losses.",
            "A curve has at least two points, α rising from 0 to 1.",
            "Evaluate the loss once at each α.",
        )
    difference = losses - losses[-1]
    # a NaN loss is not within the tolerance
    within = difference < epsilon * (losses[-1] if relative else 1.0)
    within[-1] = True  # the final weights, even if their loss is 0
    outside = np.flatnonzero(~within)
    score = alphas[outside[-1] + 1] if len(outside) else alphas[0]
    return Criticality(float(score), float(alphas[np.argmax(within)]), mean_difference(losses, losses[-1]))


def mean_difference(losses: Float[np.ndarray, " A"], final: float) -> float:
    """Mean loss difference from the final weights along a curve, in nats (the area, for evenly spaced points)."""
    return float(np.mean(losses - final))


NODES = (9, 17, 33)  # nested: each set of Chebyshev-Lobatto nodes holds the one before
TOLERANCE = 1e-3  # nats; two interpolants that differ by less agree

Evaluate = Callable[[list[float]], Float[np.ndarray, "C N"]]


class GridCurves(NamedTuple):
    """Channels on the grid, evaluated or interpolated.

    `exact`: which grid points were evaluated; `checks`: for each smooth channel the largest
    difference of the last two interpolants, 0 if all points were evaluated; `nodes`: the number of nodes of the last one, 0
    without interpolation; `evaluations`: the number of evaluated points. The smooth channels are `mix` times their
    values at `points`; the same matrix applies to other losses averaged in the same way.
    """

    values: Float[np.ndarray, "C A"]
    exact: Bool[np.ndarray, " A"]
    checks: Float[np.ndarray, " S"]
    nodes: int
    points: tuple[float, ...]
    mix: Float[np.ndarray, "A N"]

    @property
    def evaluations(self) -> int:
        """The number of evaluated points."""
        return len(self.points)


def exact_curves(evaluate: Evaluate, grid: Float[np.ndarray, " A"], smooth: int) -> GridCurves:
    """Evaluate every grid point; the first `smooth` channels are those that `adaptive_curves` would check."""
    points = tuple(grid.tolist())
    all_points = np.ones(len(grid), dtype=bool)
    return GridCurves(evaluate(list(points)), all_points, np.zeros(smooth), 0, points, np.eye(len(grid)))


def adaptive_curves(
    evaluate: Evaluate, grid: Float[np.ndarray, " A"], smooth: int, epsilon: float, relative: bool = True
) -> GridCurves:
    """Interpolate through 9, then 17, then 33 nested nodes until two agree within TOLERANCE; else evaluate every point.

    The first `smooth` channels are losses: their polynomial interpolants are compared. The other channels (accuracies,
    which move in steps) are interpolated linearly. The grid points on both sides of each crossing of a loss with
    (1 + epsilon) times its value at the end of the grid (not `relative`: with that value and epsilon) are evaluated
    exactly, as are the ends. `grid` runs from 0 to 1. Source of the interpolation: Berrut & Trefethen 2004, equation 5.4.
    """
    evaluated: dict[float, np.ndarray] = {}

    def values_at(points: list[float]) -> Float[np.ndarray, "C N"]:
        new = [x for x in dict.fromkeys(points) if x not in evaluated]
        if new:
            evaluated.update(zip(new, evaluate(new).T, strict=True))
        return np.stack([evaluated[x] for x in points], axis=1)

    values_at(_nodes(NODES[1]))  # the first two sets are always needed, and nested: one evaluation serves both
    nodes, before, checks = _nodes(NODES[0]), values_at(_nodes(NODES[0])), np.full(smooth, np.inf)
    for count in NODES[1:]:
        last, nodes = nodes, _nodes(count)
        values = values_at(nodes)
        gap = values[:smooth] @ _weights(nodes, grid).T - before[:smooth] @ _weights(last, grid).T
        checks, before = np.abs(gap).max(1), values
        if np.all(checks <= TOLERANCE):
            break
    else:
        curves = values_at(grid.tolist())
        mix = (grid[:, None] == np.array(list(evaluated))).astype(float)
        return GridCurves(curves, np.ones(len(grid), dtype=bool), np.zeros(smooth), 0, tuple(evaluated), mix)
    inner = _weights(nodes, grid)
    curves = np.concatenate([before[:smooth] @ inner.T, *(np.interp(grid, nodes, v)[None] for v in before[smooth:])])
    exact, needed = np.zeros(len(grid), dtype=bool), np.isin(grid, nodes)
    while np.any(needed & ~exact):
        points = np.flatnonzero(needed & ~exact)
        curves[:, points] = values_at(grid[points].tolist())
        exact[points] = True
        # grid points next to a crossing of the threshold (1 + epsilon) × last value, or last value + epsilon
        last = curves[:smooth, -1:]
        above = curves[:smooth] - ((1 + epsilon) * last if relative else last + epsilon) >= 0
        turns = np.any(above[:, 1:] != above[:, :-1], axis=0)
        needed = exact | np.append(turns, False) | np.append(False, turns)
    order = list(evaluated)
    mix = np.zeros((len(grid), len(order)))
    mix[:, [order.index(x) for x in nodes]] = inner
    mix[exact] = grid[exact, None] == np.array(order)
    return GridCurves(curves, exact, checks, len(nodes), tuple(order), mix)


def _nodes(count: int) -> list[float]:
    """Chebyshev-Lobatto nodes on [0, 1]; nested sets share the same floats."""
    finest = 0.5 - 0.5 * np.cos(np.pi * np.arange(NODES[-1]) / (NODES[-1] - 1))
    return finest[:: (NODES[-1] - 1) // (count - 1)].tolist()


def _weights(nodes: list[float], at: Float[np.ndarray, " A"]) -> Float[np.ndarray, "A N"]:
    """Barycentric weights: the contribution of each node's value to the interpolant at the points `at`."""
    signs = (-1.0) ** np.arange(len(nodes))
    signs[[0, -1]] *= 0.5
    gaps = at[:, None] - np.array(nodes)
    hits = gaps == 0
    terms = signs / np.where(hits, 1.0, gaps)
    return np.where(hits.any(1, keepdims=True), hits, terms / terms.sum(1, keepdims=True))
