"""Constructions with fixed keys: attention that copies one value, and attention that averages two."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float
from numpy.random import Generator

import trisect.theory.helpers as helpers
from trisect.core.errors import TheoryError
from trisect.theory.helpers import A, B, attention_weights, deviations
from trisect.theory.result import Construction, Erratum


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
    beta = helpers.check_beta(beta)
    (keys, dim), target = helpers.check_keys(keys, dim), helpers.check_whole("target", target)
    if not 1 <= target <= keys:
        raise TheoryError(f"target {target} was given.", f"There are {keys} keys.", f"Use a number from 1 to {keys}.")
    draw, j = helpers.generator(generator), target - 1
    frame = helpers.frame(keys, dim, draw)
    vectors = helpers.given_values(values, keys, dim, draw)
    query = beta * frame[j]
    logits = frame @ query
    weights = attention_weights(logits)
    gap = logits[j] - np.delete(logits, j).max()
    widest = np.linalg.norm(vectors - vectors[j], axis=1).max()
    return Construction(
        name="copying",
        question="Which query and keys make attention hand over one value as it is?",
        settings={"beta": beta, "dim": dim, "keys": keys, "target": target},
        inputs={"queries": query[None], "keys": frame, "values": vectors},
        logits=logits,
        weights=weights,
        predicted=vectors[j],
        computed=weights @ vectors,
        error=helpers.length(deviations(weights, [j]) @ vectors),
        expected=float(copying_bound(gap, keys) * widest),
        measured="|c − v_j|",
        relation="at most",
        law="|c − v_j| ≤ (n − 1) / (n − 1 + e^gap) · max |v_i − v_j|; gap: the logit of j less the largest other, here β",
        domain="Any query, keys and values; equality for n = 2, or where all other v_i coincide and all other logits are the same.",
        errata=_copying_errata(),
    )


def copying_bound(gap: float, keys: int) -> float:
    """The largest weight that n − 1 other keys can have together when the target's logit is ahead by `gap`."""
    return float((keys - 1) * np.exp(-gap) / (1 + (keys - 1) * np.exp(-gap)))


def _copying_errata() -> tuple[Erratum, ...]:
    ahead = attention_weights(np.array([1.1, 0.0]))
    shifted = [attention_weights(np.array([10.0, 0.0]) + shift) for shift in (0.0, 1000.0, -1000.0)]
    return (
        Erratum(
            "The dot product with k_j has to exceed the sum of the other keys' exponentials.",
            "That compares a logit with exponentials. What counts is exp(k_jᵀq) against that sum: logits 1.1 and 0 fulfil "
            "the sentence (1.1 > e^0), and the weight is 0.75, not near 1.",
            {"logits": (1.1, 0.0), "weights": tuple(ahead.tolist())},
        ),
        Erratum(
            "The other keys' dot products with q have to go to −∞.",
            "Only gaps matter: the same number added to all logits changes no weight.",
            {
                f"weights, logits {10 + s:g} and {s:g}": tuple(w.tolist())
                for s, w in zip((0, 1000, -1000), shifted, strict=True)
            },
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
    beta = helpers.check_beta(beta)
    keys, dim = helpers.check_keys(keys, dim)
    draw = helpers.generator(generator)
    frame = helpers.frame(keys, dim, draw)
    vectors = helpers.given_values(values, keys, dim, draw)
    query = beta * (frame[A] + frame[B])
    logits = frame @ query
    weights = attention_weights(logits)
    return Construction(
        name="average",
        question="Which query makes attention return the mean of two values?",
        settings={"beta": beta, "dim": dim, "keys": keys},
        inputs={"queries": query[None], "keys": frame, "values": vectors},
        logits=logits,
        weights=weights,
        predicted=(vectors[A] + vectors[B]) / 2,
        computed=weights @ vectors,
        error=helpers.length(deviations(weights, [A, B]) @ vectors),
        expected=helpers.length(average_offset(beta, vectors)),
        measured="|c − ½(v_a + v_b)|",
        relation="equals",
        law="α_a = α_b = e^β / (n − 2 + 2e^β); error = (n − 2) / (n − 2 + 2e^β) · |mean of the other values − ½(v_a + v_b)|",
        domain="Orthonormal keys, any values, β up to about 1e14; exact, down to rounding of the two logits (β times 1e-16), which "
        "beyond that decides between a and b. With two keys the law's error is 0 at every β.",
        errata=_average_errata(),
    )


def _average_errata() -> tuple[Erratum, ...]:
    return (
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


def average_offset(beta: float, values: Float[np.ndarray, "N D"]) -> Float[np.ndarray, " D"]:
    """c − ½(v_a + v_b) of construction 2: what the other keys' weight adds."""
    others = len(values) - 2
    if others == 0:
        return np.zeros(values.shape[1])
    weight = others * np.exp(-beta) / (2 + others * np.exp(-beta))
    return weight * (values[2:].mean(0) - (values[A] + values[B]) / 2)
