"""Certificates: proofs that no matrices Q, K and V give the wanted outputs, each with how far they have to miss."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from trisect.theory.result import Array

SURE = 1e-9  # of the largest wanted number: what a bound has to exceed, far above the rounding in it
LARGEST_TABLE = 64  # words or dimensions up to which a rank is computed exactly


class Certificate(NamedTuple):
    """A proof that wanted outputs are out of reach: in words, and how far the worst output has to stay away."""

    proof: str
    bound: float


def certificate(words: Float[np.ndarray, "N D"], wanted: Float[np.ndarray, "N M"]) -> Certificate | None:
    """The proof with the largest bound, or null where none holds; rows of NaN in `wanted` ask for nothing.

    Equal words have equal outputs. A zero word scores 0 with all, so that its output is V times the mean word whatever Q
    and K are. All outputs lie in the span of V x_1 … V x_N, whose dimension is at most that of the words' span. The words
    are taken as the exact numbers that they are: words that are dependent but for rounding are not dependent.
    """
    asked = np.asarray(np.isfinite(wanted).all(1))
    scale = float(np.abs(wanted[asked]).max(initial=0.0))
    rank = exact_rank(words) if max(words.shape) <= LARGEST_TABLE else None
    found = [_equal(words, wanted, asked), _zero(words, wanted, asked, rank), _rank(wanted, asked, rank)]
    kept = [one for one in found if one is not None and one.bound > SURE * scale]
    return max(kept, key=lambda one: one.bound, default=None)


def exact_rank(table: Float[np.ndarray, "N D"]) -> int:
    """The rank of a table of floats as the exact numbers that they are, by elimination in whole numbers (Bareiss 1968)."""
    rows = []
    for row in table.tolist():
        ratios = [value.as_integer_ratio() for value in row]
        common = max(below for _, below in ratios)  # all are powers of two
        rows.append([above * (common // below) for above, below in ratios])
    rank, last = 0, 1
    for column in range(table.shape[1]):
        pivot = next((i for i in range(rank, len(rows)) if rows[i][column]), None)
        if pivot is None:
            continue
        rows[rank], rows[pivot] = rows[pivot], rows[rank]
        head = rows[rank]
        for i in range(rank + 1, len(rows)):
            first = rows[i][column]
            rows[i] = [(head[column] * x - first * y) // last for x, y in zip(rows[i], head, strict=True)]
        last, rank = head[column], rank + 1
    return rank


def _equal(words: Array, wanted: Array, asked: Array) -> Certificate | None:
    """Of all pairs of equal words, the one whose wants are farthest apart."""
    best: Certificate | None = None
    places = np.flatnonzero(asked)
    for n, i in enumerate(places):
        for j in places[n + 1 :]:
            bound = float(np.linalg.norm(wanted[i] - wanted[j])) / 2
            if np.array_equal(words[i], words[j]) and bound > (best.bound if best else 0.0):
                best = Certificate(
                    f"Words {i + 1} and {j + 1} are equal, so that their queries are, and with them their weights and their "
                    "outputs, whatever Q, K and V are. Different outputs are wanted: one of them is missed by at least "
                    "half their distance.",
                    bound,
                )
    return best


def _zero(words: Array, wanted: Array, asked: Array, rank: int | None) -> Certificate | None:
    """What follows from c_0 = V x̄ for a zero word, x̄ being the mean word."""
    zeros = np.flatnonzero(~words.any(1) & asked)
    if not len(zeros):
        return None
    place = zeros[0]
    said = (
        f"Word {place + 1} is zero, so that its query is, all its weights are 1/n, and its output is V x̄, x̄ the mean of all "
        "words, whatever Q and K are. "
    )
    if not any(math.fsum(column) for column in words.T.tolist()):  # fsum is 0 where the exact sum is
        return Certificate(said + "Here x̄ = 0, and so is that output.", float(np.linalg.norm(wanted[place])))
    if rank == 1:
        return _on_a_line(said, words, wanted, asked, place)
    if rank is not None and not wanted[place].any():
        return _zero_wanted(said, words, wanted, asked, rank)
    return None


def _on_a_line(said: str, words: Array, wanted: Array, asked: Array, place: int) -> Certificate:
    """With x_i = s_i x̄, c_i = t_i V x̄ and t_i between the ends of s: |t_i y_0 − y_i| ≤ r (1 + |t_i|) for a worst miss r."""
    mean, target = words.mean(0), wanted[place]
    shares = words @ mean / (mean @ mean)
    square = float(target @ target)
    bound = 0.0
    for want in wanted[asked]:
        nearest = float(np.clip(want @ target / square, shares.min(), shares.max())) if square else 0.0
        bound = max(bound, float(np.linalg.norm(nearest * target - want)) / (1 + float(np.abs(shares).max())))
    return Certificate(
        said
        + "All words lie on one line, so that every output is V x̄ times a number between the least and the largest "
        "x_i / x̄.",
        bound,
    )


def _zero_wanted(said: str, words: Array, wanted: Array, asked: Array, rank: int) -> Certificate:
    """V x̄ = 0 costs V a dimension.

    With c_0 missed by e, V x_j = s_j e + V (x_j less its part s_j x̄): the outputs are t eᵀ, |t| ≤ max |s_j|, and a table of
    rank one less, so that a worst miss r has r (1 + max |s_j|) ≥ the distance from such tables.
    """
    mean = words.mean(0)
    factor = 1 + float(np.abs(words @ mean).max() / (mean @ mean))
    return Certificate(
        said
        + "That output is wanted to be 0, so that V takes one dimension less than the words span, and so do all outputs.",
        _out_of_rank(wanted[asked], rank - 1) / factor,
    )


def _rank(wanted: Array, asked: Array, rank: int | None) -> Certificate | None:
    """Wanted outputs of a larger rank than the words."""
    if rank is None:
        return None
    return Certificate(
        f"The words span a space of dimension {rank}, and every output is a mean of the values V x_i, which span no more. "
        "The wanted outputs do.",
        _out_of_rank(wanted[asked], rank),
    )


def _out_of_rank(wanted: Array, rank: int) -> float:
    """How far the worst row is at least from every table of that rank (Eckart & Young 1936, spread over the rows)."""
    if not len(wanted):
        return 0.0
    values = np.linalg.svd(wanted, compute_uv=False)
    return float(np.sqrt((values[rank:] ** 2).sum() / len(wanted)))
