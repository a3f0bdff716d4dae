"""Constructions of attention by hand, and what one returns: fixed keys, random keys, and words that attend to each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.random import Generator
from scipy import special

import trisect.theory.helpers as helpers
from trisect.core.errors import TheoryError
from trisect.theory.helpers import A, Array, B, attention_weights, check_whole, deviations

CHANCE = 0.001  # the share of draws from the law itself whose distance exceeds the bound of `LogOdds`


class Erratum(NamedTuple):
    """An error of the source: its statement (in our words), the correct one, and numbers that show it."""

    claim: str
    right: str
    shown: Mapping[str, tuple[float, ...]]


class LogOdds(NamedTuple):
    """Samples of a weight's log-odds, log(w / (1 − w)), and the normal law for them.

    `name` says which weight it is. Log-odds keep what a weight rounds away near 0 and 1. `law_mean` and `law_spread` (standard
    deviation) are those of the closed form; the weight itself is then logit-normal.
    """

    name: str
    samples: Float[np.ndarray, " S"]
    law_mean: float
    law_spread: float

    @property
    def weights(self) -> Float[np.ndarray, " S"]:
        """The weights of all samples."""
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


class Variances(NamedTuple):
    """Variances of c over samples (trace of its covariance) with one head and with two, on the same keys.

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
    """Samples counted and shown separately (q_1ᵀk_a < 0): their indices, their share, and the law's share."""

    samples: Array
    share: float
    law_share: float


@dataclass(frozen=True, eq=False)
class Construction:
    """A construction with its results.

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


def copying(
    *,
    beta: float = 10.0,
    dim: int = 16,
    keys: int = 8,
    target: int = 1,
    values: Float[np.ndarray, "N D"] | None = None,
    generator: Generator | None = None,
) -> Construction:
    """Construction 1, (a): orthonormal keys and q = β k_j, so that c ≈ v_j; j is `target`, counted from 1.

    With the logit gap g = k_jᵀq − max_{i≠j} k_iᵀq (here β): |c − v_j| ≤ (n − 1) / (n − 1 + e^g) · max_i |v_i − v_j|.
    Raises TheoryError where `dim` has no room for the keys, or the target is none of them.
    """
    beta, frame, vectors, _ = helpers.fixed_keys(beta, dim, keys, values, generator)
    (keys, dim), target = frame.shape, helpers.check_whole("target", target)
    if not 1 <= target <= keys:
        raise TheoryError(f"target {target} was given.", f"There are {keys} keys.", f"Use a number from 1 to {keys}.")
    j = target - 1
    query = beta * frame[j]
    logits = frame @ query
    weights = attention_weights(logits)
    gap = logits[j] - np.delete(logits, j).max()
    # the largest weight that n − 1 other keys can have together, times the largest distance
    others = float((keys - 1) * np.exp(-gap) / (1 + (keys - 1) * np.exp(-gap)))
    widest = np.linalg.norm(vectors - vectors[j], axis=1).max()
    return Construction(
        name="copying",
        question="Which query and keys make attention pass on one value as it is?",
        settings={"beta": beta, "dim": dim, "keys": keys, "target": target},
        inputs={"queries": query[None], "keys": frame, "values": vectors},
        logits=logits,
        weights=weights,
        predicted=vectors[j],
        computed=weights @ vectors,
        error=helpers.length(deviations(weights, [j]) @ vectors),
        expected=float(others * widest),
        measured="|c − v_j|",
        relation="at most",
        law="|c − v_j| ≤ (n − 1) / (n − 1 + e^gap) · max |v_i − v_j|; gap: the logit of j less the largest other, here β",
        domain="Any query, keys and values; equality for n = 2, or where all other v_i coincide and all other logits are the same.",
        errata=COPYING_ERRATA,
    )


_SHIFTS = {s: tuple(attention_weights(np.array([10.0, 0.0]) + s).tolist()) for s in (0.0, 1000.0, -1000.0)}
COPYING_ERRATA = (
    Erratum(
        "The dot product with k_j has to exceed the sum of the other keys' exponentials.",
        "That compares a logit with exponentials. What counts is exp(k_jᵀq) against that sum: logits 1.1 and 0 fulfil "
        "the sentence (1.1 > e^0), and the weight is 0.75, not near 1.",
        {"logits": (1.1, 0.0), "weights": tuple(attention_weights(np.array([1.1, 0.0])).tolist())},
    ),
    Erratum(
        "The other keys' dot products with q have to go to −∞.",
        "Only gaps matter: the same number added to all logits changes no weight.",
        {f"weights, logits {10 + shift:g} and {shift:g}": weights for shift, weights in _SHIFTS.items()},
    ),
)


def average(
    *,
    beta: float = 10.0,
    dim: int = 16,
    keys: int = 8,
    values: Float[np.ndarray, "N D"] | None = None,
    generator: Generator | None = None,
) -> Construction:
    """Construction 2, (b): orthonormal keys and q = β(k_a + k_b), so that c ≈ ½(v_a + v_b); a and b are keys 1 and 2.

    α_a = α_b = e^β / (n − 2 + 2e^β), and |c − ½(v_a + v_b)| is the weight on the others times the distance of their mean.
    Raises TheoryError where `dim` has no room for the keys.
    """
    beta, frame, vectors, _ = helpers.fixed_keys(beta, dim, keys, values, generator)
    keys, dim = frame.shape
    query = beta * (frame[A] + frame[B])
    logits = frame @ query
    weights = attention_weights(logits)
    middle, others = (vectors[A] + vectors[B]) / 2, (keys - 2) * np.exp(-beta)
    offset = others / (2 + others) * (vectors[2:].mean(0) - middle) if others else 0 * middle
    return Construction(
        name="average",
        question="Which query makes attention return the mean of two values?",
        settings={"beta": beta, "dim": dim, "keys": keys},
        inputs={"queries": query[None], "keys": frame, "values": vectors},
        logits=logits,
        weights=weights,
        predicted=middle,
        computed=weights @ vectors,
        error=helpers.length(deviations(weights, [A, B]) @ vectors),
        expected=helpers.length(offset),
        measured="|c − ½(v_a + v_b)|",
        relation="equals",
        law="α_a = α_b = e^β / (n − 2 + 2e^β); error = (n − 2) / (n − 2 + 2e^β) · |mean of the other values − ½(v_a + v_b)|",
        domain="Orthonormal keys, any values, β up to about 1e14; exact, down to rounding of the two logits (β times 1e-16), which "
        "beyond that decides between a and b. With two keys the law's error is 0 at every β.",
        errata=AVERAGE_ERRATA,
    )


AVERAGE_ERRATA = (
    Erratum(
        "The numerator of α_a, e^{β + βk_aᵀk_b}, is said to be e^β since β is any large number.",
        "It is e^β because k_a and k_b are orthogonal, at any β. With k_aᵀk_b = 0.1 it is e^{0.1β} times as large, and a "
        "larger β makes that worse.",
        {
            f"e^{{β + βk_aᵀk_b}} / e^β at β = 1, 10, 100, k_aᵀk_b = {between:g}": tuple(
                math.exp(beta * between) for beta in (1.0, 10.0, 100.0)
            )
            for between in (0.0, 0.1)
        },
    ),
)


class _WordAttention(NamedTuple):
    """Self-attention over n words: logits k_jᵀq_i [i, j], their softmax, values and outputs, a row for each word."""

    logits: Float[np.ndarray, "N N"]
    weights: Float[np.ndarray, "N N"]
    values: Float[np.ndarray, "N D"]
    outputs: Float[np.ndarray, "N D"]


def self_attention(words: Float[np.ndarray, "N D"], query: Array, key: Array, value: Array) -> _WordAttention:
    """v_i = V x_i, k_i = K x_i, q_i = Q x_i, c_i = Σ_j α_ij v_j; matrices [D D]. Raises TheoryError for logits beyond 1e300."""
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused by the softmax
        logits = (words @ query.T) @ (words @ key.T).T
    weights = attention_weights(logits)
    values = words @ value.T
    return _WordAttention(logits, weights, values, weights @ values)


def identity_attention(
    *, beta: float = 2.0, dim: int = 16, add_c: float = 0.0, add_d: float = 0.0, generator: Generator | None = None
) -> Construction:
    """Construction 7, (e-i): v = k = q = x with x_1 = u_d + u_b, x_2 = u_a, x_3 = u_c + u_b, and all |u| = β.

    x_2's score with itself wins, so that c_2 ≈ x_2, whatever multiples `add_c` of u_c and `add_d` of u_d are added to x_2: the
    score is ahead by at least ¾β². So c_2 is never near u_b: |c_2 − u_b| / β ≥ √2 α_22 ≥ √2 / (1 + 2e^{−¾β²}).
    `error` is |c_2 − x_2| / β. Raises TheoryError where `dim` is less than 4.
    """
    beta, u, words = _letters(beta, dim, generator)
    identity = np.eye(u.shape[1])
    add_c, add_d = helpers.check_number("add_c", add_c), helpers.check_number("add_d", add_d)
    if not (math.isfinite(add_c) and math.isfinite(add_d)):
        numbers = f"add_c {add_c} and add_d {add_d} were given."
        raise TheoryError(numbers, "They are multiples of u_c and u_d.", "Use finite numbers, for example 1.")
    words[1] += add_c * u[2] + add_d * u[3]
    attention = self_attention(words, identity, identity, identity)
    # in units of u, where the words' scalar products are known exactly
    x = np.array([[0, 1, 0, 1], [1, 0, add_c, add_d], [0, 1, 1, 0]], dtype=float)
    exact = attention_weights(beta**2 * (x @ x[1]))
    axes = beta * np.eye(4)
    with_d = self_attention(axes[[3, 0, 2]] + axes[[1, 3, 1]], *[np.eye(4)] * 3)
    shown = {
        "weights": tuple(with_d.weights[1].tolist()),
        "c_2 along u_a, u_b, u_c, u_d": _along(axes, with_d.outputs[1]),
    }
    erratum = Erratum(
        "Adding u_d or u_c to the second word is said to bring u_d + u_b, or u_c + u_b, into its output.",
        "The output stays near the word itself, with u_d added u_a + u_d: its score with itself is 2β², that with u_d + u_b "
        "only β², and the same goes for u_c.",
        shown,
    )
    return Construction(
        name="identity_attention",
        question="If queries, keys and values are the words themselves, what can a word take from the others?",
        settings={"beta": beta, "dim": u.shape[1], "add_c": add_c, "add_d": add_d},
        inputs={"queries": words[1:2], "keys": words, "values": words, "letters": u},
        logits=attention.logits[1],
        weights=attention.weights[1],
        predicted=words[1],
        computed=attention.outputs[1],
        error=helpers.length(deviations(attention.weights[1], [1]) @ words) / beta,
        expected=helpers.length(deviations(exact, [1]) @ x),
        measured="|c_2 − x_2| / β",
        relation="equals",
        law="c_2 ≈ x_2: with x_2 = u_a, error = √10 / (2 + e^{β²}). However much of u_c and u_d is added, the self-score leads by ≥ ¾β²",
        domain="From β = 1 on x_2 has a weight above ½; the formula is exact at every β. Whatever is added of u_c "
        "and u_d, c_2 is never near u_b: |c_2 − u_b| / β ≥ √2 / (1 + 2e^{−¾β²}).",
        errata=(erratum,),
    )


def key_query_value(*, beta: float = 1.5, dim: int = 16, generator: Generator | None = None) -> Construction:
    """Construction 8, (e-ii): matrices with c_1 ≈ u_b − u_c and c_2 ≈ u_b, for the words of construction 7.

    V = β⁻²(u_b u_bᵀ − u_c u_cᵀ), K = u_d u_dᵀ + u_c u_cᵀ, Q = u_d u_aᵀ + u_c u_dᵀ; the winning logit is β⁶, all others 0.
    `error` is the larger of |c_1 − (u_b − u_c)| and |c_2 − u_b|, over β. Raises TheoryError where `dim` is less than 4.
    """
    beta, u, words = _letters(beta, dim, generator)
    a, b, c, d = u
    with np.errstate(over="ignore"):
        query, key = np.outer(d, a) + np.outer(c, d), np.outer(d, d) + np.outer(c, c)
        value = (np.outer(b, b) - np.outer(c, c)) / beta**2
    logits, weights, values, outputs = self_attention(words, query, key, value)
    sizes = [helpers.length(deviations(weights[i], [j]) @ values) / beta for i, j in ((0, 2), (1, 0))]
    others = self_attention(words, value, key, value).outputs, self_attention(words, key, query, value).outputs
    equated, swapped = ({f"c_{i + 1} along u_a, u_b, u_c, u_d": _along(u, rows[i]) for i in (0, 1)} for rows in others)
    rest = 2 * math.exp(-(min(beta, 10.0) ** 6))  # of two words with logit 0, beside one with logit β⁶
    return Construction(
        name="key_query_value",
        question="Which matrices let two words take parts of the others that plain words cannot?",
        settings={"beta": beta, "dim": u.shape[1]},
        inputs={
            "queries": (words @ query.T)[:2],
            "keys": words @ key.T,
            "values": values,
            "words": words,
            "letters": u,
            "Q": query,
            "K": key,
            "V": value,
        },
        logits=logits[:2],
        weights=weights[:2],
        predicted=np.stack([b - c, b]),
        computed=outputs[:2],
        error=max(sizes),
        expected=math.sqrt(5) / 2 * rest / (1 + rest),
        measured="larger of |c_1 − (u_b − u_c)| / β and |c_2 − u_b| / β",
        relation="equals",
        law="The winning logit leads by β⁶: error = √5 / (2 + e^{β⁶}), that of c_1; c_2's is √2 / (2 + e^{β⁶})",
        domain="Exact at every β; useful from β ≥ 1 on, where the error is below ½ and falls with e^{−β⁶}. Logits pass 1e300 at β = 1e50.",
        errata=(
            Erratum(
                "The last line sets Q equal to the formula of V.",
                "They are different matrices. With V's formula as Q all scores of words 1 and 2 are 0, and both outputs are ⅔u_b − ⅓u_c.",
                equated,
            ),
            Erratum(
                "K and Q are called interchangeable.",
                "They are not. Swapped, word 1 looks at word 2, whose value is 0, and word 2 at all alike: c_1 = 0, c_2 = ⅔u_b − ⅓u_c.",
                swapped,
            ),
            Erratum(
                "For c_1 ≈ v_3 the score of q_1 with k_3 is asked to be much larger than scores of the other query, q_2.",
                "Softmax compares the scores of one query: k_3ᵀq_1 has to exceed k_1ᵀq_1 and k_2ᵀq_1. The same number added to all "
                "scores of q_2 changes no weight, and would change that comparison.",
                {f"k_1ᵀq_{i + 1}, k_2ᵀq_{i + 1}, k_3ᵀq_{i + 1}": tuple(logits[i].tolist()) for i in (0, 1)},
            ),
        ),
    )


def _letters(
    beta: float, dim: int, generator: Generator | None
) -> tuple[float, Float[np.ndarray, "4 D"], Float[np.ndarray, "3 D"]]:
    """β; u_a, u_b, u_c, u_d, orthogonal and each of length β; and the words u_d + u_b, u_a and u_c + u_b."""
    beta, dim = helpers.check_beta(beta), helpers.check_dim(4, dim, "vectors u_a, u_b, u_c, u_d")
    if not 1e-50 <= beta <= 1e150:
        powers = "Here β is a length, and its powers have to be numbers."
        raise TheoryError(f"beta {beta:.3g} was given.", powers, "Use 1e-50 to 1e50.")
    a, b, c, d = letters = beta * helpers.frame(4, dim, generator or np.random.default_rng(0))
    return beta, letters, np.stack([d + b, a, c + b])


def _along(letters: Float[np.ndarray, "4 D"], vector: Array) -> tuple[float, ...]:
    """Coefficients on u_a, u_b, u_c, u_d."""
    return tuple((letters @ vector / (letters[0] @ letters[0])).tolist())


BLOCK = 1 << 18  # numbers drawn together, so that memory does not grow with samples times keys
LARGEST_SAMPLE = 10**8  # samples, of which two numbers each are kept
HALF = math.sqrt(0.5)  # the standard deviation of the stretch of k_a
MAX_EXPONENT = 600.0  # of an exponent


class KeyDraws(NamedTuple):
    """Standard normal numbers behind S samples of N keys.

    k_i = μ_i + √α z_i, and k_a also has √½ g μ_a. `stretch` is g; `along` are z_iᵀμ_a and z_iᵀμ_b, all of z_i that a query
    in the plane of μ_a and μ_b ever meets: being orthonormal directions they are independent standard normals.
    """

    stretch: Float[np.ndarray, " S"]
    along: Float[np.ndarray, "S N 2"]


def _logit_normal(mean: float, spread: float) -> tuple[float, float, float]:
    """Mean and variance of σ(y), y ~ N(mean, spread²), and the mean square of σ(y) − ½, by quadrature.

    Gauss–Legendre between knots, dense where σ rises.
    """
    if spread == 0:
        w = float(special.expit(mean))
        return w, 0.0, (w - 0.5) ** 2
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
    return first, float(mass @ (w - first) ** 2), float(mass @ (w - 0.5) ** 2)


def _square_sum(values: Array) -> float:
    return float((values**2).sum())


def _spread(weights: Array, values: Array) -> float:
    """Σ α_i² |v_i − c|²: the variance of c for independent noise of variance 1 on every logit, to first order."""
    return float(weights**2 @ ((values - weights @ values) ** 2).sum(1))


def _ahead(count: int, beta: float, places: Sequence[int]) -> Float[np.ndarray, " N"]:
    """Weights with the logits of these positions at β and all others at 0."""
    weights = np.full(count, math.exp(-beta))
    weights[list(places)] = 1.0
    return weights / weights.sum()


def _two_head_rms(beta: float, variance: float, values: Float[np.ndarray, "N D"]) -> float:
    """Root mean square of |c − ½(v_a + v_b)| with q_1 = βμ_a, q_2 = βμ_b and Σ_i = αI.

    c_1 − v_a = Σ_{i≠a} x_i (v_i − v_a) / (1 + Σ x_i), x_i = exp(−β + β√α(z_i − z_a)ᵀμ_a) lognormal, s² = αβ²: E x_i = e^{−β+s²},
    E x_i² = e^{−2β+4s²}, E x_i x_j = e^{−2β+3s²}. The denominator is taken at α = 0, and its own noise, which counts where
    e^β is not large, to first order. The heads' noises are independent.
    """
    n, noise = len(values), variance * beta**2

    def factor(times: float, halvings: int) -> float:
        return (
            math.exp(min(times * noise - halvings * beta, MAX_EXPONENT)) / (1 + (n - 1) * math.exp(-beta)) ** halvings
        )

    means, total, widest = [], 0.0, 0.0
    for target in (A, B):
        offsets = np.delete(values, target, 0) - values[target]
        summed, single = _square_sum(offsets.sum(0)), _square_sum(offsets)
        first = factor(0, 2) * (single + summed)
        share = _spread(_ahead(n, beta, (target,)), values - values[target]) / first if first > 0 else 1.0
        means.append(factor(1, 1) * offsets.sum(0))
        total += share * ((factor(4, 2) - factor(3, 2)) * single + (factor(3, 2) - factor(2, 2)) * summed)
        widest += math.sqrt(float((offsets**2).sum(1).max())) / 2
    rms = math.sqrt(max(0.0, total + _square_sum(means[0] + means[1]))) / 2
    return min(rms, widest)  # no output is farther away, also where the law has ended


def _stretched_head(
    beta: float, values: Float[np.ndarray, "N D"], alone: bool, spread: float
) -> tuple[float, Array, float]:
    """A head under a stretched k_a as α vanishes: the mean log-odds of α_a, and the mean of c and the trace of its covariance.

    The one head, q = β(μ_a + μ_b), or the first of two, q_1 = βμ_a, with γ ~ N(1, (spread / β)²):
    α_a = e^{βγ} / (e^{βγ} + e^β + n − 2), or e^{βγ} / (e^{βγ} + n − 1), and c = α_a v_a + (1 − α_a) times the others' mean.
    """
    logits = np.zeros(len(values) - 1)
    logits[0] = beta * alone
    offset = float(np.logaddexp.reduce(logits))
    rest = np.exp(logits - offset) @ np.delete(values, A, 0)
    w, variance, _ = _logit_normal(beta - offset, spread)
    return beta - offset, w * values[A] + (1 - w) * rest, variance * _square_sum(values[A] - rest)


MEANS = "Keys k_i ~ N(μ_i, αI) around orthonormal means"
STRETCH_NOTE = (
    "Σ_a = αI + ½ μ_a μ_aᵀ, Σ_i = αI for every other i. Exact for α = 0, and a limit as α → 0 (√α ≪ 1), at any β. "
)


def random_keys_one_head(
    *,
    beta: float = 10.0,
    dim: int = 16,
    keys: int = 8,
    variance: float = 1e-4,
    samples: int = 100_000,
    values: Float[np.ndarray, "N D"] | None = None,
    draws: KeyDraws | None = None,
    generator: Generator | None = None,
) -> Construction:
    """Construction 3, (c-i): k_i ~ N(μ_i, αI), q = β(μ_a + μ_b); α is `variance`.

    The root mean square error falls with e^{−β}, then rises with ½β√α|v_a − v_b|: a large β multiplies the keys' noise.
    The law: what the others take is that of exact keys. Between a and b the weight's log-odds are y ~ N(0, 4αβ²), so that its
    distance from one half has the mean square E[(σ(y) − ½)²], αβ²/4 while that is small. Noise of this relative size on all
    logits moves c by Σ_i α_i (v_i − c) δ_i to first order. Exact for two keys. Raises TheoryError for arguments outside the domain.
    """
    keyed = _RandomKeys(beta, dim, keys, variance, samples, values, draws, generator, stretched=False)
    odds = LogOdds("a against b", keyed.odds[0], 0.0, 2 * keyed.beta * math.sqrt(variance))
    weights = _ahead(len(keyed.values), keyed.beta, (A, B))
    exact = _square_sum(deviations(weights, [A, B]) @ keyed.values)
    noise = 8 * _logit_normal(0.0, odds.law_spread)[2] * _spread(weights, keyed.values)
    return replace(
        keyed.construction("random_keys_one_head", heads=1),
        question="Does the query for a mean of two still work when the keys are noisy?",
        error=keyed.rms[0],
        expected=math.sqrt(exact + noise),
        law="error² = (that of exact keys, e^{−β})² + 8 E[(σ(y) − ½)²] Σ α_i²|v_i − c|², y ~ N(0, 4αβ²); for large β the second "
        "is near (½β√α|v_a − v_b|)² while β√α ≪ 1",
        domain=f"{MEANS}, √α ≪ 1. At a fixed α it falls in β, has its least where e^{{−β}} meets β√α, and then rises: the drawback "
        "of one head.",
        odds=odds if variance else None,
    )


def random_keys_two_heads(
    *,
    beta: float = 10.0,
    dim: int = 16,
    keys: int = 8,
    variance: float = 1e-4,
    samples: int = 100_000,
    values: Float[np.ndarray, "N D"] | None = None,
    draws: KeyDraws | None = None,
    generator: Generator | None = None,
) -> Construction:
    """Construction 5, (d-i): q_1 = βμ_a, q_2 = βμ_b, c = ½(c_1 + c_2), keys as in construction 3.

    The root mean square error falls with e^{−β}: noise of size β√α only changes how much less than 1 a weight is.
    Raises TheoryError for arguments outside the domain.
    """
    keyed = _RandomKeys(beta, dim, keys, variance, samples, values, draws, generator, stretched=False)
    odds = LogOdds("a against b, head 1", keyed.odds[1], keyed.beta, keyed.beta * math.sqrt(2 * variance))
    return replace(
        keyed.construction("random_keys_two_heads", heads=2),
        question="Do two heads, one for each value, bear noisy keys better?",
        error=keyed.rms[1],
        expected=_two_head_rms(keyed.beta, variance, keyed.values),
        law="error = e^{−β} / (1 + (n − 1)e^{−β}) times a constant of the values, and for α > 0 factors between e^{αβ²} and e^{2αβ²}",
        domain=f"{MEANS}. Exact for α = 0; for α > 0 where αβ ≪ ¼, and either β√α ≪ 1 or e^β ≫ n. It falls in β while √α ≪ 1; past "
        "that it rests on the rare samples (a share near Φ(−1/√(2α)) for each other key) in which another key wins.",
        odds=odds if variance else None,
    )


def stretched_key_one_head(
    *,
    beta: float = 10.0,
    dim: int = 16,
    keys: int = 8,
    variance: float = 0.0,
    samples: int = 100_000,
    values: Float[np.ndarray, "N D"] | None = None,
    draws: KeyDraws | None = None,
    generator: Generator | None = None,
) -> Construction:
    """Construction 4, (c-ii): Σ_a = αI + ½μ_aμ_aᵀ, one head with q = β(μ_a + μ_b).

    α_a = e^{βγ} / (e^{βγ} + e^β + n − 2), γ ~ N(1, variance ½): c swings between v_a and v_b. `error` is the
    Kolmogorov–Smirnov distance of the samples of α_a from that law. Raises TheoryError for arguments outside the domain.
    """
    keyed = _RandomKeys(beta, dim, keys, variance, samples, values, draws, generator, stretched=True)
    mean, output, _ = _stretched_head(keyed.beta, keyed.values, True, HALF * keyed.beta)
    odds = LogOdds("a against all others", keyed.odds[0], mean, HALF * keyed.beta)
    return replace(
        keyed.construction("stretched_key_one_head", heads=1),
        question="What does one head return when one key keeps its direction, but not its length?",
        predicted=output,
        error=odds.distance,
        expected=odds.bound,
        measured="Kolmogorov–Smirnov distance of α_a",
        relation="at most",
        law="α_a = e^{βγ} / (e^{βγ} + e^β + n − 2), γ ~ N(1, ½); two keys: σ(β(γ − 1)). Its log-odds are N(β − log(e^β + n − 2), ½β²)",
        domain=f"{STRETCH_NOTE}Bound: the distance that samples of the law pass once in 1,000.",
        errata=(
            Erratum(
                "The covariance of the other keys is written with the index of a.",
                "It is Σ_i = αI for every i other than a; Σ_a alone is stretched.",
                {"variance along μ_a: Σ_a, Σ_i": (variance + HALF**2, variance)},
            ),
        ),
        odds=odds,
    )


def stretched_key_two_heads(
    *,
    beta: float = 10.0,
    dim: int = 16,
    keys: int = 8,
    variance: float = 0.0,
    samples: int = 100_000,
    values: Float[np.ndarray, "N D"] | None = None,
    draws: KeyDraws | None = None,
    generator: Generator | None = None,
) -> Construction:
    """Construction 6, (d-ii): keys as in construction 4, heads as in construction 5.

    Only head 1 sees the stretch: α_a = e^{βγ} / (e^{βγ} + n − 1). `variances` compares c with that of one head on the same
    keys; `apart` are the samples with q_1ᵀk_a < 0, a share of Φ(−√2). `error` is the Kolmogorov–Smirnov distance of
    head 1's α_a from its law. Raises TheoryError for arguments outside the domain.
    """
    keyed = _RandomKeys(beta, dim, keys, variance, samples, values, draws, generator, stretched=True)
    spread = HALF * keyed.beta
    single = _stretched_head(keyed.beta, keyed.values, True, spread)[2]
    mean, first, two = _stretched_head(keyed.beta, keyed.values, False, spread)
    odds = LogOdds("a against all others, head 1", keyed.odds[1], mean, spread)
    # head 2 is head 1 unstretched
    second = _stretched_head(keyed.beta, keyed.values[[B, A, *range(2, keys)]], False, 0.0)[1]
    law_share = float(special.ndtr(-1 / math.sqrt(HALF**2 + variance)))
    return replace(
        keyed.construction("stretched_key_two_heads", heads=2),
        question="Does a second head calm what a stretched key does to the output?",
        predicted=(first + second) / 2,
        error=odds.distance,
        expected=odds.bound,
        measured="Kolmogorov–Smirnov distance of head 1's α_a",
        relation="at most",
        law="α_a = e^{βγ} / (e^{βγ} + n − 1) in head 1, γ ~ N(1, ½); α_b = e^β / (e^β + n − 1) in head 2. The variance of c is ¼ of c_1's",
        domain=f"{STRETCH_NOTE}For orthonormal values two heads vary less than one at every "
        "β; for v_a and v_b that nearly coincide, others being elsewhere, it can turn round. Samples with q_1ᵀk_a < 0 "
        "(7.9 %) are counted apart.",
        errata=(
            Erratum(
                "The second output is said to look like k, without much variation.",
                "It looks like v_b: an output is a mean of values, not of keys.",
                {"mean weight of head 2 on b": (float(keyed.weights[2, B]),)},
            ),
        ),
        odds=odds,
        variances=Variances(*keyed.variances, single, two / 4),
        apart=Apart(keyed.negative, len(keyed.negative) / keyed.samples, law_share),
    )


class _RandomKeys:
    """Constructions 3 to 6: checked arguments, drawn inputs, and sums over samples for one head and for two.

    `weights` [3 N] are means over samples: of the one head, the first, the second. For one head and for two `rms` is of
    |c − ½(v_a + v_b)|, and `variances` are over all samples, then without those set apart. `odds` [2 S] are log-odds of a:
    of the one head and of the first; `negative` the positions of samples with q_1ᵀk_a < 0.
    """

    def __init__(
        self,
        beta: float,
        dim: int,
        keys: int,
        variance: float,
        samples: int,
        values: Float[np.ndarray, "N D"] | None,
        draws: KeyDraws | None,
        generator: Generator | None,
        stretched: bool,
    ) -> None:
        self.beta, self.means, self.values, draw = helpers.fixed_keys(beta, dim, keys, values, generator)
        keys = len(self.means)
        self.variance = variance = helpers.check_number("variance", variance)
        if not (math.isfinite(variance) and variance >= 0):
            raise TheoryError(f"variance {variance} was given.", "It is α, 0 or more.", "Use for example 1e-4.")
        if draws is not None:
            samples = len(draws.stretch)
            if draws.stretch.shape != (samples,) or draws.along.shape != (samples, keys, 2):
                shapes = f"Draws of shapes {draws.stretch.shape} and {draws.along.shape} were given."
                raise TheoryError(shapes, f"There are {keys} keys.", f"Give shapes (S,) and (S, {keys}, 2).")
        self.samples = check_whole("samples", samples)
        if not 2 <= self.samples <= LARGEST_SAMPLE:
            reason = f"Two numbers of each are kept; up to {LARGEST_SAMPLE:,} samples are computed."
            reason = reason if self.samples > 2 else "A spread needs 2 or more."
            raise TheoryError(f"samples {samples} was given.", reason, "Use for example 100000.")
        self._add_samples(draws, draw, stretched)

    def _add_samples(self, draws: KeyDraws | None, draw: Generator, stretched: bool) -> None:
        """Process all samples in blocks; of c only sums are kept: over all samples, and without the separate ones."""
        n, dim = self.values.shape
        self.weights, self.odds, negative = np.zeros((3, n)), np.empty((2, self.samples)), []
        first, second = np.zeros((2, 2, dim)), np.zeros((2, 2))  # sums of c − ½(v_a + v_b) and of its square
        size = max(1, BLOCK // (2 * n))
        for start in range(0, self.samples, size):
            here = slice(start, min(start + size, self.samples))
            logits = self._logits(draws, here, draw, stretched)
            weights = [attention_weights(scores) for scores in logits]
            off = [deviations(w, t) for w, t in zip(weights, ([A, B], [A], [B]), strict=True)]
            is_negative = logits[1][:, A] < 0
            for head, scores in enumerate(logits[:2]):
                rest = special.logsumexp(np.delete(scores, A, 1), axis=1) if stretched else scores[:, B]
                self.odds[head, here] = scores[:, A] - rest
            for heads, c in enumerate((off[0] @ self.values, (off[1] + off[2]) / 2 @ self.values)):
                for part, chosen in enumerate((c, c[~is_negative])):
                    first[heads, part] += chosen.sum(0)
                    second[heads, part] += _square_sum(chosen)
            self.weights += [w.sum(0) for w in weights]
            negative.append(np.flatnonzero(is_negative) + start)
        self.negative = np.concatenate(negative)
        self.weights /= self.samples
        counts = np.array([self.samples, max(1, self.samples - len(self.negative))])
        spread = second / counts - ((first / counts[:, None]) ** 2).sum(-1)
        self.rms: list[float] = np.sqrt(second[:, 0] / self.samples).tolist()
        first_head, both, first_kept, both_kept = np.maximum(spread, 0.0).T.ravel().tolist()
        self.variances = (first_head, both, first_kept, both_kept)

    def _logits(
        self, draws: KeyDraws | None, here: slice, draw: Generator, stretched: bool
    ) -> tuple[Float[np.ndarray, "S N"], Float[np.ndarray, "S N"], Float[np.ndarray, "S N"]]:
        """Logits k_iᵀq of some samples: for the single head q = β(μ_a + μ_b), and for both, q_1 = βμ_a and q_2 = βμ_b.

        New draws are made where there are none; noise that α = 0 would wipe out is not drawn.
        """
        if draws is None:
            count, shape = here.stop - here.start, (here.stop - here.start, len(self.values), 2)
            stretch = draw.standard_normal(count)
            along = draw.standard_normal(shape) if self.variance else np.zeros(shape)
        else:
            stretch, along = draws.stretch[here], draws.along[here]
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused by the softmax
            parts = self.beta * math.sqrt(self.variance) * along
            parts[:, A, 0] += self.beta
            parts[:, B, 1] += self.beta
            if stretched:
                parts[:, A, 0] += self.beta * HALF * stretch
            return parts[..., 0] + parts[..., 1], parts[..., 0], parts[..., 1]

    def construction(self, name: str, heads: int) -> Construction:
        """The common parts of constructions 3 to 6."""
        queries, weights = self.beta * self.means[[A, B]], self.weights[1:]
        if heads == 1:
            queries, weights = queries.sum(0, keepdims=True), self.weights[0]
        n, dim = self.values.shape
        logits = (self.means @ queries.T).T
        settings = {"beta": self.beta, "dim": dim, "keys": n, "variance": self.variance, "samples": self.samples}
        return Construction(
            name=name,
            question="",
            settings=settings,
            inputs={"queries": queries, "keys": self.means, "values": self.values},
            logits=logits if heads == 2 else logits[0],
            weights=weights,
            predicted=(self.values[A] + self.values[B]) / 2,
            computed=(weights.mean(0) if heads == 2 else weights) @ self.values,
            error=math.nan,
            expected=math.nan,
            measured="root mean square of |c − ½(v_a + v_b)| over samples",
            relation="near",
            law="",
            domain="",
        )


CONSTRUCTIONS: Mapping[str, Callable[..., Construction]] = {
    make.__name__: make
    for make in (
        copying,
        average,
        random_keys_one_head,
        stretched_key_one_head,
        random_keys_two_heads,
        stretched_key_two_heads,
        identity_attention,
        key_query_value,
    )
}
SPANS = {"identity_attention": (0.5, 5.0), "key_query_value": (0.5, 1.9)}  # of β; beyond, errors are too small to draw
SPAN, POINTS, SAMPLES = (0.5, 50.0), 25, 5_000


class ErrorCurve(NamedTuple):
    """A construction at several β: errors, their law, and the variances of construction 6."""

    beta: Array
    error: Array
    expected: Array
    variances: Float[np.ndarray, "4 P"] | None  # one head, two heads, the law of one, the law of two


def sweep(result: Construction, betas: Sequence[float] | None = None) -> ErrorCurve:
    """The construction at other β, with other arguments as in `result`, but at most 5,000 samples, drawn from seed 0.

    Without `betas`, 25 of them over the span in which the law shows.
    """
    low, high = SPANS.get(result.name, SPAN)
    grid = np.geomspace(low, high, POINTS) if betas is None else np.asarray(betas, dtype=float)
    settings: dict[str, Any] = {k: v for k, v in result.settings.items() if k != "beta"}
    if "samples" in settings:
        settings["samples"] = min(int(settings["samples"]), SAMPLES)
    if "keys" in settings:
        settings["values"] = result.inputs["values"]
    results = [CONSTRUCTIONS[result.name](beta=float(b), **settings) for b in grid]
    error, expected = (np.array([getattr(at, name) for at in results]) for name in ("error", "expected"))
    rows = [(v.one, v.two, v.one_law, v.two_law) for at in results if (v := at.variances)]
    return ErrorCurve(grid, error, expected, np.array(rows).T if rows else None)
