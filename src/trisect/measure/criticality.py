"""Criticality and rewind area: how far a site's weights can be rewound before the loss moves (science A5, A6)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from trisect.core.errors import TrisectError


class Criticality(NamedTuple):
    """`score`: smallest α such that at it and every larger α the loss is within ε of the final one.

    `first`: the other reading of the paper's equation 1, the smallest α that is within ε at all. They differ only
    where the curve is not monotone. `area`: mean over α of the loss difference, in nats; it needs no threshold.
    """

    score: float
    first: float
    area: float


def criticality(
    alphas: Float[np.ndarray, " A"], losses: Float[np.ndarray, " B"], epsilon: float, share: bool = True
) -> Criticality:
    """Both readings of criticality, and the area, of one convex-rewinding curve.

    `alphas` rise from 0 (initial weights) to 1 (final weights); `losses` are in nats; `epsilon` is the share of the
    final loss that counts as a drop, or without `share` a number of its unit, where the final one is 0.
    Source: Chatterji et al. 2019, as used in the paper's equation 1 with the difference the right way round (science A5).
    """
    if len(alphas) != len(losses) or len(alphas) < 2 or np.any(np.diff(alphas) <= 0):
        raise TrisectError(
            f"A rewinding curve has {len(alphas)} α and {len(losses)} losses.",
            "A curve has at least two points, α rising from 0 to 1.",
            "Evaluate the loss once at each α.",
        )
    difference = losses - losses[-1]
    # a loss that is not a number is not within anything, so it counts as a drop
    within = difference < epsilon * (losses[-1] if share else 1.0)
    within[-1] = True  # the final weights are themselves, also where their loss is 0
    outside = np.flatnonzero(~within)
    score = alphas[outside[-1] + 1] if len(outside) else alphas[0]
    return Criticality(float(score), float(alphas[np.argmax(within)]), mean_difference(losses, losses[-1]))


def mean_difference(losses: Float[np.ndarray, " A"], final: float) -> float:
    """Mean loss difference to the final weights along a curve, in nats (the area, for evenly spaced points)."""
    return float(np.mean(losses - final))
