"""Certificates that no matrices Q, K and V give the wanted outputs, each with how far they have to miss."""

from __future__ import annotations

import math
import sys
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

import trisect.theory.helpers as helpers
from trisect.theory.result import Array

SURE = 1e-9  # of the largest wanted number: what a bound that is itself rounded has to exceed
WORK = 1e8  # steps of elimination times bits of its numbers, up to which a rank is counted exactly
MOST = sys.float_info.max


class Certificate(NamedTuple):
    """A proof that wanted outputs are out of reach: in words, and how far the worst output has to stay away."""

    proof: str
    bound: float


def certificate(words: Float[np.ndarray, "N D"], wanted: Float[np.ndarray, "N M"]) -> Certificate | None:
    """The proof with the largest bound, or null where none holds; rows of NaN in `wanted` ask for nothing.

    Equal words have equal outputs: any difference of their wants, however small, is a proof. A zero word scores 0 with all,
    so that its output is V times the mean word whatever Q and K are. All outputs lie in the span of V x_1 … V x_N, whose
    dimension is at most that of the words' span. The words are taken as the exact numbers that they are: words that are
    dependent but for rounding are not dependent.
    """
    asked = np.asarray(np.isfinite(wanted).all(1))
    power = helpers.power_of(wanted[asked])
    scaled = np.ldexp(wanted, -power)  # of size 1, so that no square is too small or too large
    size = float(np.abs(scaled[asked]).max(initial=0.0))
    rank = rank_bound(words)
    rounded = [_zero(words, scaled, asked, rank), _rank(scaled, asked, rank)]
    found = [one._replace(bound=_grown(one.bound, power)) for one in rounded if one and one.bound > SURE * size]
    equal = _equal(words, wanted, asked)
    return max(found if equal is None else [equal, *found], key=lambda one: one.bound, default=None)


def rank_bound(words: Float[np.ndarray, "N D"]) -> int:
    """The words' rank: exactly, or where counting it would take too long, a number that it does not exceed.

    Counted in float64 where that finds it full, else in whole numbers, up to a bounded amount of work.
    """
    table = np.unique(words[words.any(1)][:, words.any(0)], axis=0)
    if not table.size:
        return 0
    full = min(table.shape)
    scaled, down, across = helpers.balanced(table)
    faithful = np.array_equal(np.ldexp(np.ldexp(scaled, across), down[:, None]), table)
    if faithful and np.linalg.matrix_rank(scaled) == full:
        return full
    rows = _whole(table)
    bits = sum(max(abs(value).bit_length() for value in row) for row in rows)
    return _eliminated(rows) if bits * table.size * full <= WORK else full


def exact_rank(table: Float[np.ndarray, "N D"]) -> int:
    """The rank of a table of floats as the exact numbers that they are, whatever the work."""
    return _eliminated(_whole(table))


def _whole(table: Array) -> list[list[int]]:
    """Each row times a number that makes it whole, as small as possible."""
    rows = []
    for row in table.tolist():
        ratios = [value.as_integer_ratio() for value in row]
        common = max(below for _, below in ratios)  # all are powers of two
        whole = [above * (common // below) for above, below in ratios]
        shared = math.gcd(*whole) or 1
        rows.append([value // shared for value in whole])
    return rows


def _eliminated(rows: list[list[int]]) -> int:
    """The rank, by elimination in whole numbers (Bareiss 1968)."""
    rank, last = 0, 1
    for column in range(len(rows[0])):
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
    """Of all pairs of equal words with unequal wants, the one whose wants are farthest apart."""
    best: Certificate | None = None
    places = np.flatnonzero(asked)
    for n, i in enumerate(places):
        for j in places[n + 1 :]:
            if not np.array_equal(words[i], words[j]) or np.array_equal(wanted[i], wanted[j]):
                continue
            bound = min(helpers.length(wanted[i] / 2 - wanted[j] / 2), MOST)
            if best is None or bound > best.bound:
                best = Certificate(
                    f"Words {i + 1} and {j + 1} are equal, so that their queries are, and with them their weights and their "
                    "outputs, whatever Q, K and V are. Different outputs are wanted: one of them is missed by at least "
                    "half their distance.",
                    bound,
                )
    return best


def _zero(words: Array, wanted: Array, asked: Array, rank: int) -> Certificate | None:
    """What follows from c_0 = V x̄ for a zero word, x̄ being the mean word."""
    zeros = np.flatnonzero(~words.any(1) & asked)
    if not len(zeros):
        return None
    place = zeros[0]
    said = (
        f"Word {place + 1} is zero, so that its query is, all its weights are 1/n, and its output is V x̄, x̄ the mean of all "
        "words, whatever Q and K are. "
    )
    sums = [sum(map(Fraction, column)) for column in words.T.tolist()]
    if not any(sums):
        return Certificate(said + "Here x̄ = 0, and so is that output.", helpers.length(wanted[place]))
    shares = _shares(words, sums)
    if rank == 1:
        return _on_a_line(said, shares, wanted, asked, place)
    if not wanted[place].any():
        return _zero_wanted(said, shares, wanted, asked, rank)
    return None


def _shares(words: Array, sums: list[Fraction | int]) -> Float[np.ndarray, " N"]:
    """s_i with s_i x̄ the part of x_i along x̄; the sums are exact, since little may be left of large words."""
    most = max(map(abs, sums))
    along = np.array([float(Fraction(one) / most) for one in sums])
    power = helpers.power_of(words)
    mean = float(Fraction(most) / len(words) / Fraction(2) ** power)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):  # what overflows proves nothing
        return np.nan_to_num(np.ldexp(words, -power) @ along / (along @ along) / mean, nan=0.0)


def _on_a_line(said: str, shares: Array, wanted: Array, asked: Array, place: int) -> Certificate:
    """With x_i = s_i x̄, c_i = t_i V x̄ and t_i between the ends of s: |t_i y_0 − y_i| ≤ r (1 + |t_i|) for a worst miss r."""
    target = wanted[place]
    square = float(target @ target)
    bound = 0.0
    for want in wanted[asked]:
        nearest = float(np.clip(want @ target / square, shares.min(), shares.max())) if square else 0.0
        bound = max(bound, helpers.length(nearest * target - want) / (1 + float(np.abs(shares).max())))
    return Certificate(
        said
        + "All words lie on one line, so that every output is V x̄ times a number between the least and the largest "
        "x_i / x̄.",
        bound,
    )


def _zero_wanted(said: str, shares: Array, wanted: Array, asked: Array, rank: int) -> Certificate:
    """V x̄ = 0 costs V a dimension.

    With c_0 missed by e, V x_j = s_j e + V (x_j less its part s_j x̄): the outputs are t eᵀ, |t| ≤ max |s_j|, and a table of
    rank one less, so that a worst miss r has r (1 + max |s_j|) ≥ the distance from such tables.
    """
    factor = 1 + float(np.abs(shares).max())
    return Certificate(
        said
        + "That output is wanted to be 0, so that V takes one dimension less than the words span, and so do all outputs.",
        _out_of_rank(wanted[asked], rank - 1) / factor,
    )


def _rank(wanted: Array, asked: Array, rank: int) -> Certificate:
    """Wanted outputs of a larger rank than the words."""
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


def _grown(bound: float, power: int) -> float:
    """bound · 2^power, or the largest float where it is more."""
    return MOST if bound and math.frexp(bound)[1] + power > sys.float_info.max_exp else math.ldexp(bound, power)
