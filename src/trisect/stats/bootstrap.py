"""Draws of a recall: names drawn anew for every number, and seeds across them where there are several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import polars as pl
from jaxtyping import Float
from scipy import special

from trisect.stats.intervals import interval
from trisect.stats.percentiles import DRAWS
from trisect.stats.sums import draw_groups
from trisect.stats.tests import ALPHA, number

TOGETHER = 2_000  # draws of a block, which bounds the memory
# a seed's answers, and how often each counts in every draw [R N]; numbers [R] or [R C]
Number: TypeAlias = Callable[[pl.DataFrame, Float[np.ndarray, "R N"]], Float[np.ndarray, "R ..."]]


class Found(NamedTuple):
    """Numbers of one model: the mean over its seeds, the same in every draw, of how many names, with which freedom.

    `groups` is one more than the degrees of freedom: as many as names with one seed, fewer where seeds differ.
    """

    value: Float[np.ndarray, "*S"]
    draws: Float[np.ndarray, "R ..."]
    names: int
    groups: np.ndarray

    def at(self, place: int) -> Found:
        """One of several numbers."""
        return Found(self.value[place], self.draws[:, place], self.names, self.groups[place])

    def row(self) -> dict[str, Any]:
        """Columns value, low, high and n of one number; null where it is no number."""
        low, high = interval(self.draws, int(self.groups))
        low, high = np.minimum(low, self.value), np.maximum(high, self.value)  # at a share of 0 or 1, as is the custom
        return {"value": number(self.value), "low": number(low), "high": number(high), "n": self.names}


class Redrawn:
    """Numbers in draws of names with replacement, crossed with draws of seeds; the same names meet the same draws.

    Of S seeds S − 1 are drawn, since the variance of S drawn from S is too small by the share 1/S. Sources: Owen 2007,
    The Pigeonhole Bootstrap; Rao & Wu 1988, Resampling Inference with Complex Survey Data, section 2.
    """

    def __init__(self, seed: int = 0, draws: int = DRAWS) -> None:
        self.seed, self.draws = seed, draws
        self._times: dict[int, Float[np.ndarray, "R N"]] = {}

    def __call__(self, seeds: Sequence[pl.DataFrame], of: Number) -> Found:
        """`of` each seed's answers, on all of them and in every draw of their names."""
        names = sorted({name for answers in seeds for name in answers["name"].to_list()})
        place = {name: i for i, name in enumerate(names)}
        values, draws = [], []
        for answers in seeds:
            whose = [place[name] for name in answers["name"].to_list()]
            blocks = np.array_split(self._drawn(len(names)), -(-self.draws // TOGETHER))
            values.append(np.asarray(of(answers, np.ones((1, len(whose)))))[0])
            draws.append(np.concatenate([of(answers, block[:, whose]) for block in blocks]))
        share = self._shares(len(seeds)).reshape(-1, len(seeds), *[1] * values[0].ndim)
        drawn = np.where(share > 0, share * np.stack(draws, 1), 0.0).sum(1)
        return Found(np.mean(values, 0), drawn, len(names), _groups(np.array(values), drawn, len(names)))

    def share(self, seeds: Sequence[pl.DataFrame], of: Number, stream: int = 0) -> Found:
        """The same for one share of the names, which is not taken for certain where it is 0 or 1 for all of them.

        There the draws are of Jeffreys' posterior, a Beta distribution: Brown, Cai & DasGupta 2001, Interval Estimation for
        a Binomial Proportion, section 4. Shares that are compared need a `stream` each.
        """
        found = self(seeds, of)
        if float(found.value) not in (0.0, 1.0):
            return found
        right = float(found.value) * found.names
        draw = np.random.default_rng([self.seed, 2, stream])
        return found._replace(draws=draw.beta(right + 0.5, found.names - right + 0.5, self.draws))

    def _drawn(self, names: int) -> Float[np.ndarray, "R N"]:
        if names not in self._times:
            self._times[names] = draw_groups(names, self.seed, self.draws)
        return self._times[names]

    def _shares(self, seeds: int) -> Float[np.ndarray, "R S"]:
        """The share of each seed in every draw."""
        if seeds == 1:
            return np.ones((self.draws, 1))
        draw = np.random.default_rng([self.seed, 1])
        return draw.multinomial(seeds - 1, np.full(seeds, 1 / seeds), size=self.draws) / (seeds - 1)


def jeffreys(share: float, names: int) -> tuple[float, float]:
    """Both ends of Jeffreys' 95 % interval of a share of so many names."""
    right = share * names
    low, high = (float(special.betaincinv(right + 0.5, names - right + 0.5, q)) for q in (ALPHA / 2, 1 - ALPHA / 2))
    return low, high


def _groups(values: Float[np.ndarray, "S ..."], draws: Float[np.ndarray, "R ..."], names: int) -> np.ndarray:
    """One more than the degrees of freedom of a variance made of one over seeds and one over names.

    Source: Satterthwaite 1946, An Approximate Distribution of Estimates of Variance Components, equation 17.
    """
    seeds = len(values)
    if seeds == 1 or names < 2:
        return np.full(draws.shape[1:], names)
    between = values.var(0, ddof=1) / seeds
    within = np.maximum(draws.var(0, ddof=1) - between, 0.0)
    below = between**2 / (seeds - 1) + within**2 / (names - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        freedom = np.where(below > 0, (between + within) ** 2 / below, names - 1)
    return np.clip(np.floor(freedom).astype(int) + 1, 2, names)
