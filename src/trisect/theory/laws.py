"""Closed forms for random keys: moments of logit-normal weights and of lognormal attention."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import special

from trisect.theory.draws import HALF
from trisect.theory.helpers import A, B, deviations
from trisect.theory.result import Array

MOST = 600.0  # of an exponent
STRETCH = HALF**2  # the variance of γ, the length of k_a along μ_a


class Weight(NamedTuple):
    """Mean and variance of a weight, and of its distance from one half the mean square."""

    mean: float
    variance: float
    from_half: float


def logit_normal(mean: float, spread: float) -> Weight:
    """Moments of σ(y), y ~ N(mean, spread²), by quadrature: Gauss–Legendre between knots, dense where σ rises."""
    if spread == 0:
        w = float(special.expit(mean))
        return Weight(w, 0.0, (w - 0.5) ** 2)
    with np.errstate(over="ignore"):  # of a very small spread; knots beyond ±10 are cut off
        rise = (np.linspace(-40.0, 40.0, 81) - mean) / spread
    knots = np.unique(np.clip(np.concatenate([np.linspace(-10.0, 10.0, 41), rise]), -10.0, 10.0))
    nodes, shares = np.polynomial.legendre.leggauss(8)
    middle, half = (knots[1:] + knots[:-1]) / 2, (knots[1:] - knots[:-1]) / 2
    z = (middle[:, None] + half[:, None] * nodes).ravel()
    mass = (half[:, None] * shares).ravel() * np.exp(-(z**2) / 2)
    mass /= mass.sum()
    w = special.expit(mean + spread * z)
    first = float(mass @ w)
    return Weight(first, float(mass @ (w - first) ** 2), float(mass @ (w - 0.5) ** 2))


def one_head_rms(beta: float, variance: float, values: Float[np.ndarray, "N D"]) -> float:
    """Root mean square of |c − ½(v_a + v_b)| with q = β(μ_a + μ_b) and Σ_i = αI.

    What the others take is that of exact keys. Between a and b the weight's log-odds are y ~ N(0, 4αβ²), so that its
    distance from one half has the mean square E[(σ(y) − ½)²], αβ²/4 while that is small. Noise of this relative size on all
    logits moves c by Σ_i α_i (v_i − c) δ_i to first order. Exact for two keys.
    """
    weights = np.full(len(values), math.exp(-beta))
    weights[[A, B]] = 1.0
    weights /= weights.sum()
    offset = deviations(weights, [A, B]) @ values
    wobble = logit_normal(0.0, 2 * beta * math.sqrt(variance)).from_half
    return math.sqrt(squared(offset) + 8 * wobble * _spread(weights, values))


def two_head_rms(beta: float, variance: float, values: Float[np.ndarray, "N D"]) -> float:
    """Root mean square of |c − ½(v_a + v_b)| with q_1 = βμ_a, q_2 = βμ_b and Σ_i = αI.

    c_1 − v_a = Σ_{i≠a} x_i (v_i − v_a) / (1 + Σ x_i), x_i = exp(−β + β√α(z_i − z_a)ᵀμ_a) lognormal, s² = αβ²: E x_i = e^{−β+s²},
    E x_i² = e^{−2β+4s²}, E x_i x_j = e^{−2β+3s²}. The denominator is taken at α = 0, and its own noise, which counts where
    e^β is not large, to first order. The heads' noises are independent.
    """
    n, noise = len(values), variance * beta**2

    def factor(times: float, halvings: int) -> float:
        return math.exp(min(times * noise - halvings * beta, MOST)) / (1 + (n - 1) * math.exp(-beta)) ** halvings

    means, total, widest = [], 0.0, 0.0
    for wanted in (A, B):
        apart = np.delete(values, wanted, 0) - values[wanted]
        whole, single = squared(apart.sum(0)), squared(apart)
        weights = np.full(n, math.exp(-beta))
        weights[wanted] = 1.0
        weights /= weights.sum()
        first = factor(0, 2) * (single + whole)
        share = _spread(weights, values - values[wanted]) / first if first > 0 else 1.0
        means.append(factor(1, 1) * apart.sum(0))
        total += share * ((factor(4, 2) - factor(3, 2)) * single + (factor(3, 2) - factor(2, 2)) * whole)
        widest += math.sqrt(float((apart**2).sum(1).max())) / 2
    found = math.sqrt(max(0.0, total + squared(means[0] + means[1]))) / 2
    return min(found, widest)  # no output is farther away, also where the law has ended


def _spread(weights: Array, values: Array) -> float:
    """Σ α_i² |v_i − c|²: the variance of c for independent noise of variance 1 on every logit, to first order."""
    return float(weights**2 @ ((values - weights @ values) ** 2).sum(1))


class Stretched(NamedTuple):
    """A head under a stretched k_a as α vanishes: α_a has log-odds N(β − offset, ½β²), and c = α_a v_a + (1 − α_a) rest."""

    mean: float
    spread: float
    rest: Array

    def output(self, value: Array) -> Array:
        """The mean of c, `value` being v_a."""
        w = logit_normal(self.mean, self.spread).mean
        return w * value + (1 - w) * self.rest

    def variance(self, value: Array) -> float:
        """The trace of the covariance of c."""
        return logit_normal(self.mean, self.spread).variance * squared(value - self.rest)


def stretched_one(beta: float, values: Float[np.ndarray, "N D"]) -> Stretched:
    """One head, q = β(μ_a + μ_b): α_a = e^{βγ} / (e^{βγ} + e^β + n − 2), γ ~ N(1, variance ½)."""
    return _stretched(beta, np.r_[beta, np.zeros(len(values) - 2)], values)


def stretched_first(beta: float, values: Float[np.ndarray, "N D"]) -> Stretched:
    """The first of two heads, q_1 = βμ_a: α_a = e^{βγ} / (e^{βγ} + n − 1). The second does not see the stretch."""
    return _stretched(beta, np.zeros(len(values) - 1), values)


def _stretched(beta: float, logits: Array, values: Float[np.ndarray, "N D"]) -> Stretched:
    offset = float(np.logaddexp.reduce(logits))
    return Stretched(beta - offset, HALF * beta, np.exp(logits - offset) @ np.delete(values, A, 0))


def squared(values: Array) -> float:
    """The sum of squares."""
    return float((values**2).sum())
