"""The result of a construction of attention by hand: matrices, law, where the law ends, and the source's errors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import special

Array = np.ndarray
CHANCE = 0.001  # the share of draws from the law itself whose distance exceeds the bound of `LogOdds`


class Erratum(NamedTuple):
    """An error of the source: what it says (in our words), what is right, and numbers that show it."""

    claim: str
    right: str
    shown: Mapping[str, tuple[float, ...]]


class LogOdds(NamedTuple):
    """Samples of a weight's log-odds, log(w / (1 − w)), beside the normal law that they should have.

    `of` says which weight. Log-odds keep what a weight rounds away near 0 and 1. `law_mean` and `law_spread` (standard
    deviation) are those of the closed form; the weight itself is then logit-normal.
    """

    of: str
    samples: Float[np.ndarray, " S"]
    law_mean: float
    law_spread: float

    @property
    def weights(self) -> Float[np.ndarray, " S"]:
        """The weights, sample by sample."""
        return special.expit(self.samples)

    @property
    def distance(self) -> float:
        """Kolmogorov–Smirnov: the largest gap between the shares of samples below a weight and the law's."""
        share = special.ndtr((np.sort(self.samples) - self.law_mean) / self.law_spread)
        steps = np.arange(len(share) + 1) / len(share)
        return float(max((steps[1:] - share).max(), (share - steps[:-1]).max()))

    @property
    def bound(self) -> float:
        """The distance that samples of the law itself exceed with a chance of 1 in 1,000 (asymptotic)."""
        return float(special.kolmogi(CHANCE)) / math.sqrt(len(self.samples))

    def cdf(self, weight: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """The law's share of samples whose weight is at most this; weights in [0, 1]."""
        return special.ndtr((special.logit(weight) - self.law_mean) / self.law_spread)

    def density(self, weight: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """The law's density at these weights, in (0, 1)."""
        z = (special.logit(weight) - self.law_mean) / self.law_spread
        return np.exp(-(z**2) / 2) / (math.sqrt(2 * math.pi) * self.law_spread * weight * (1 - weight))


class Variances(NamedTuple):
    """How much c varies over samples (trace of its covariance) with one head and with two, on the same keys.

    `one`, `two` are computed over all samples, `one_kept`, `two_kept` without those set apart, and `one_law`, `two_law`
    are the closed forms for vanishing α over all samples.
    """

    one: float
    two: float
    one_kept: float
    two_kept: float
    one_law: float
    two_law: float


class Apart(NamedTuple):
    """Samples counted and shown apart, those with q_1ᵀk_a < 0: which they are, their share, and the law's share."""

    samples: Array
    share: float
    law_share: float


@dataclass(frozen=True, eq=False)
class Construction:
    """One construction, built and computed.

    `settings` are its arguments (beta, dim, keys, variance, samples: those that apply). `inputs` are arrays by name: queries
    [heads D], keys [N D] (means, where keys are drawn), values [N D], and matrices where it has them. `logits` and `weights`
    are [N], or [heads N]; `weights` are means over samples where keys are drawn, and `logits` then those of the mean keys.
    `predicted` and `computed` are output vectors [D], or a row for each wanted one; where keys are drawn, `computed` is the
    mean over samples. `error` is measured as `measured` says, and `expected` is what the law gives for it: the error
    itself where `relation` is "equals" or "near", a bound where it is "at most". `domain` says where that holds.
    Where keys are drawn: `odds` of the weight against its law, from construction 6 also `variances` and `apart`.
    Arrays and mappings are read-only.
    """

    name: str
    question: str
    settings: Mapping[str, float]
    inputs: Mapping[str, Array]
    logits: Array
    weights: Array
    predicted: Array
    computed: Array
    error: float
    expected: float
    measured: str
    relation: str
    law: str
    domain: str
    errata: tuple[Erratum, ...] = ()
    odds: LogOdds | None = field(default=None, repr=False)
    variances: Variances | None = None
    apart: Apart | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in ("settings", "inputs"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))
        samples = [part.samples for part in (self.odds, self.apart) if part is not None]
        for array in (*self.inputs.values(), self.logits, self.weights, self.predicted, self.computed, *samples):
            array.setflags(write=False)
