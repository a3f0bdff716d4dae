"""Random draws behind random keys, made in blocks, and the softmax of their logits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.random import Generator

from trisect.core.errors import TheoryError
from trisect.theory.helpers import A, B, check_whole

BLOCK = 1 << 18  # numbers drawn together, so that memory does not grow with samples times keys
LARGEST_SAMPLE = 10**8  # samples, of which two numbers each are kept
HALF = math.sqrt(0.5)  # the standard deviation of the stretch of k_a


class KeyDraws(NamedTuple):
    """Standard normal numbers behind S samples of N keys.

    k_i = μ_i + √α z_i, and k_a also has √½ g μ_a. `stretch` is g; `along` are z_iᵀμ_a and z_iᵀμ_b, all of z_i that a query
    in the plane of μ_a and μ_b ever meets: being orthonormal directions they are independent standard normals.
    """

    stretch: Float[np.ndarray, " S"]
    along: Float[np.ndarray, "S N 2"]


class KeyLogits(NamedTuple):
    """Logits of a block of samples: of the one head q = β(μ_a + μ_b), and of the two, q_1 = βμ_a and q_2 = βμ_b."""

    one: Float[np.ndarray, "S N"]
    first: Float[np.ndarray, "S N"]
    second: Float[np.ndarray, "S N"]


def blocks(draws: KeyDraws | None, samples: int, keys: int, variance: float, draw: Generator) -> Iterator[KeyDraws]:
    """The draws given, or new ones, a block at a time; noise that α = 0 would wipe out is not drawn."""
    size = max(1, BLOCK // (2 * keys))
    for start in range(0, samples, size):
        count = min(size, samples - start)
        if draws is not None:
            yield KeyDraws(draws.stretch[start : start + count], draws.along[start : start + count])
        else:
            shape = (count, keys, 2)
            yield KeyDraws(draw.standard_normal(count), draw.standard_normal(shape) if variance else np.zeros(shape))


def check_draws(draws: KeyDraws | None, samples: int, keys: int, variance: float) -> int:
    """How many samples there are; refuses a number below 2 or too large for memory, a negative α, and draws of another shape."""
    if not (math.isfinite(variance) and variance >= 0):
        raise TheoryError(f"variance {variance} was given.", "It is α, 0 or more.", "Use for example 1e-4.")
    if draws is not None:
        samples = len(draws.stretch)
        if draws.stretch.shape != (samples,) or draws.along.shape != (samples, keys, 2):
            raise TheoryError(
                f"Draws of shapes {draws.stretch.shape} and {draws.along.shape} were given.",
                f"There are {keys} keys.",
                f"Give shapes (S,) and (S, {keys}, 2).",
            )
    samples = check_whole("samples", samples)
    if samples > LARGEST_SAMPLE:
        known = f"Two numbers of each are kept; up to {LARGEST_SAMPLE:,} samples are computed."
        raise TheoryError(f"samples {samples} was given.", known, "Use for example 100000.")
    if samples < 2:
        raise TheoryError(f"samples {samples} was given.", "A spread needs 2 or more.", "Use for example 100000.")
    return samples


def scores(draws: KeyDraws, beta: float, variance: float, stretched: bool) -> KeyLogits:
    """Every logit k_iᵀq of these samples, for one head and for two."""
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused by the softmax
        found = beta * math.sqrt(variance) * draws.along
        found[:, A, 0] += beta
        found[:, B, 1] += beta
        if stretched:
            found[:, A, 0] += beta * HALF * draws.stretch
        first, second = found[..., 0], found[..., 1]
        return KeyLogits(first + second, first, second)
