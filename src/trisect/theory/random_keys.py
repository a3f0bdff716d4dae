"""Constructions with random keys, of small variance or stretched along one mean, for one head and for two."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.random import Generator
from scipy import special

import trisect.theory.helpers as helpers
import trisect.theory.laws as laws
from trisect.theory.draws import KeyDraws, blocks, check_draws, scores
from trisect.theory.helpers import A, B, attention_weights, deviations
from trisect.theory.result import Apart, Array, Construction, Erratum, LogOdds, Variances

MEANS = "Keys k_i ~ N(μ_i, αI) around orthonormal means"
STRETCHED = "Σ_a = αI + ½ μ_a μ_aᵀ, Σ_i = αI for every other i"


class Sampled(NamedTuple):
    """Sums over samples for one head and for two: what constructions 3 to 6 report from."""

    weights: Float[np.ndarray, "3 N"]  # means: the one head, the first, the second
    rms: tuple[float, float]  # of |c − ½(v_a + v_b)|
    variance: tuple[float, float]
    kept: tuple[float, float]  # variance without the samples set apart
    odds: Float[np.ndarray, "2 S"]  # log-odds of a: the one head, the first of two
    negative: Array  # positions of samples with q_1ᵀk_a < 0


class Setup(NamedTuple):
    """Checked arguments and drawn inputs."""

    beta: float
    variance: float
    samples: int
    means: Float[np.ndarray, "N D"]
    values: Float[np.ndarray, "N D"]
    sampled: Sampled

    @property
    def queries(self) -> Float[np.ndarray, "2 D"]:
        """q_1 = βμ_a and q_2 = βμ_b; the one head's is their sum."""
        return self.beta * self.means[[A, B]]


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
    Raises TheoryError for arguments outside the domain.
    """
    made = _set_up(beta, dim, keys, variance, samples, values, draws, generator, stretched=False)
    odds = LogOdds("a against b", made.sampled.odds[0], 0.0, 2 * made.beta * math.sqrt(variance))
    return replace(
        _frame("random_keys_one_head", made, heads=1),
        question="Does the query for a mean of two still work when the keys are noisy?",
        error=made.sampled.rms[0],
        expected=laws.one_head_rms(made.beta, variance, made.values),
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
    made = _set_up(beta, dim, keys, variance, samples, values, draws, generator, stretched=False)
    odds = LogOdds("a against b, head 1", made.sampled.odds[1], made.beta, made.beta * math.sqrt(2 * variance))
    return replace(
        _frame("random_keys_two_heads", made, heads=2),
        question="Do two heads, one for each value, bear noisy keys better?",
        error=made.sampled.rms[1],
        expected=laws.two_head_rms(made.beta, variance, made.values),
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
    made = _set_up(beta, dim, keys, variance, samples, values, draws, generator, stretched=True)
    form = laws.stretched_one(made.beta, made.values)
    odds = LogOdds("a against all others", made.sampled.odds[0], form.mean, form.spread)
    return replace(
        _frame("stretched_key_one_head", made, heads=1),
        question="What does one head return when one key keeps its direction, but not its length?",
        predicted=form.output(made.values[A]),
        error=odds.distance,
        expected=odds.bound,
        measured="Kolmogorov–Smirnov distance of α_a",
        relation="at most",
        law="α_a = e^{βγ} / (e^{βγ} + e^β + n − 2), γ ~ N(1, ½); two keys: σ(β(γ − 1)). Its log-odds are N(β − log(e^β + n − 2), ½β²)",
        domain=f"{STRETCHED}. Exact for α = 0, and a limit as α → 0 (√α ≪ 1), at any β. "
        "Bound: the distance that samples of the law pass once in 1,000.",
        errata=(
            Erratum(
                "The covariance of the other keys is written with the index of a.",
                "It is Σ_i = αI for every i other than a; Σ_a alone is stretched.",
                {"variance along μ_a: Σ_a, Σ_i": (variance + laws.STRETCH, variance)},
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
    made = _set_up(beta, dim, keys, variance, samples, values, draws, generator, stretched=True)
    sampled, v = made.sampled, made.values[A]
    one, first = laws.stretched_one(made.beta, made.values), laws.stretched_first(made.beta, made.values)
    odds = LogOdds("a against all others, head 1", sampled.odds[1], first.mean, first.spread)
    second = laws.stretched_first(made.beta, made.values[[B, A, *range(2, keys)]])  # head 2 is head 1 unstretched
    w = float(special.expit(second.mean))
    steady = w * made.values[B] + (1 - w) * second.rest
    law_share = special.ndtr(-1 / math.sqrt(laws.STRETCH + variance))
    return replace(
        _frame("stretched_key_two_heads", made, heads=2),
        question="Does a second head calm what a stretched key does to the output?",
        predicted=(first.output(v) + steady) / 2,
        error=odds.distance,
        expected=odds.bound,
        measured="Kolmogorov–Smirnov distance of head 1's α_a",
        relation="at most",
        law="α_a = e^{βγ} / (e^{βγ} + n − 1) in head 1, γ ~ N(1, ½); α_b = e^β / (e^β + n − 1) in head 2. The variance of c is ¼ of c_1's",
        domain=f"{STRETCHED}. Exact for α = 0, and a limit as α → 0 (√α ≪ 1), at any β. "
        "For orthonormal values two heads vary less than one at every "
        "β; for v_a and v_b that nearly coincide, others being elsewhere, it can turn round. Samples with q_1ᵀk_a < 0 "
        "(7.9 %) are counted apart.",
        errata=(
            Erratum(
                "The second output is said to look like k, without much variation.",
                "It looks like v_b: an output is a mean of values, not of keys.",
                {"mean weight of head 2 on b": (float(sampled.weights[2, B]),)},
            ),
        ),
        odds=odds,
        variances=Variances(*sampled.variance, *sampled.kept, one.variance(v), first.variance(v) / 4),
        apart=Apart(sampled.negative, len(sampled.negative) / made.samples, float(law_share)),
    )


def _set_up(
    beta: float,
    dim: int,
    keys: int,
    variance: float,
    samples: int,
    values: Float[np.ndarray, "N D"] | None,
    draws: KeyDraws | None,
    generator: Generator | None,
    stretched: bool,
) -> Setup:
    beta = helpers.check_beta(beta)
    keys, dim = helpers.check_keys(keys, dim)
    variance = helpers.check_number("variance", variance)
    samples = check_draws(draws, samples, keys, variance)
    draw = helpers.generator(generator)
    means = helpers.frame(keys, dim, draw)
    vectors = helpers.given_values(values, keys, dim, draw)
    sampled = _sample(beta, variance, samples, vectors, draws, draw, stretched)
    return Setup(beta, variance, samples, means, vectors, sampled)


def _sample(
    beta: float,
    variance: float,
    samples: int,
    values: Float[np.ndarray, "N D"],
    draws: KeyDraws | None,
    draw: Generator,
    stretched: bool,
) -> Sampled:
    """Go over all samples a block at a time; c itself is never kept, only its sums."""
    n, dim = values.shape
    weights, odds, negative = np.zeros((3, n)), np.empty((2, samples)), []
    first, second = np.zeros((2, 2, dim)), np.zeros((2, 2))  # sums of c − ½(v_a + v_b) and of its square, all and kept
    start = 0
    for block in blocks(draws, samples, n, variance, draw):
        logits = scores(block, beta, variance, stretched)
        found = [attention_weights(one) for one in logits]
        off = [deviations(w, t) for w, t in zip(found, ([A, B], [A], [B]), strict=True)]
        apart = logits.first[:, A] < 0
        here = slice(start, start + len(apart))
        for head, one in enumerate((logits.one, logits.first)):
            rest = special.logsumexp(np.delete(one, A, 1), axis=1) if stretched else one[:, B]
            odds[head, here] = one[:, A] - rest
        for which, c in enumerate((off[0] @ values, (off[1] + off[2]) / 2 @ values)):
            for kept, chosen in enumerate((c, c[~apart])):
                first[which, kept] += chosen.sum(0)
                second[which, kept] += laws.squared(chosen)
        weights += [w.sum(0) for w in found]
        negative.append(np.flatnonzero(apart) + start)
        start = here.stop
    positions = np.concatenate(negative)
    counts = np.array([samples, max(1, samples - len(positions))])
    spread = second / counts - ((first / counts[:, None]) ** 2).sum(-1)
    rms = np.sqrt(second[:, 0] / samples)
    (one, one_kept), (two, two_kept) = np.maximum(spread, 0.0).tolist()
    return Sampled(weights / samples, (rms[0], rms[1]), (one, two), (one_kept, two_kept), odds, positions)


def _frame(name: str, made: Setup, heads: int) -> Construction:
    """What constructions 3 to 6 have in common."""
    queries = made.queries if heads == 2 else made.queries.sum(0, keepdims=True)
    weights = made.sampled.weights[1:] if heads == 2 else made.sampled.weights[0]
    n, dim = made.values.shape
    logits = made.means @ queries.T
    return Construction(
        name=name,
        question="",
        settings={"beta": made.beta, "dim": dim, "keys": n, "variance": made.variance, "samples": made.samples},
        inputs={"queries": queries, "keys": made.means, "values": made.values},
        logits=logits.T if heads == 2 else logits[:, 0],
        weights=weights,
        predicted=(made.values[A] + made.values[B]) / 2,
        computed=(weights.mean(0) if heads == 2 else weights) @ made.values,
        error=math.nan,
        expected=math.nan,
        measured="root mean square of |c − ½(v_a + v_b)| over samples",
        relation="near",
        law="",
        domain="",
    )
