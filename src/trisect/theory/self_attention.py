"""Constructions of self-attention: words that attend to each other, with and without matrices for q, k and v."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.random import Generator

import trisect.theory.helpers as helpers
from trisect.core.errors import TheoryError
from trisect.theory.helpers import attention_weights, deviations
from trisect.theory.result import Array, Construction, Erratum

LETTERS = "abcd"
LEAST = math.sqrt(2)


class WordAttention(NamedTuple):
    """Self-attention over n words: logits k_jᵀq_i [i, j], their softmax, values and outputs, a row for each word."""

    logits: Float[np.ndarray, "N N"]
    weights: Float[np.ndarray, "N N"]
    values: Float[np.ndarray, "N D"]
    outputs: Float[np.ndarray, "N D"]


def self_attention(words: Float[np.ndarray, "N D"], query: Array, key: Array, value: Array) -> WordAttention:
    """v_i = V x_i, k_i = K x_i, q_i = Q x_i, c_i = Σ_j α_ij v_j; matrices [D D]. Raises TheoryError for logits beyond 1e300."""
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused by the softmax
        logits = (words @ query.T) @ (words @ key.T).T
    weights = attention_weights(logits)
    values = words @ value.T
    return WordAttention(logits, weights, values, weights @ values)


def identity_attention(
    *, beta: float = 2.0, dim: int = 16, add_c: float = 0.0, add_d: float = 0.0, generator: Generator | None = None
) -> Construction:
    """Construction 7, (e-i): v = k = q = x with x_1 = u_d + u_b, x_2 = u_a, x_3 = u_c + u_b, and all |u| = β.

    x_2's score with itself wins, so that c_2 ≈ x_2, whatever multiples `add_c` of u_c and `add_d` of u_d are added to x_2: the
    score is ahead by at least ¾β². So c_2 is never near u_b: |c_2 − u_b| / β ≥ √2 α_22 ≥ √2 / (1 + 2e^{−¾β²}).
    `error` is |c_2 − x_2| / β. Raises TheoryError where `dim` is less than 4.
    """
    beta, u = _letters(beta, dim, generator)
    words, identity = _words(u), np.eye(u.shape[1])
    add_c, add_d = helpers.check_number("add_c", add_c), helpers.check_number("add_d", add_d)
    if not (math.isfinite(add_c) and math.isfinite(add_d)):
        given = f"add_c {add_c} and add_d {add_d} were given."
        raise TheoryError(given, "They are multiples of u_c and u_d.", "Use finite numbers, for example 1.")
    words[1] += add_c * u[2] + add_d * u[3]
    found = self_attention(words, identity, identity, identity)
    # in units of u, where the words' scalar products are known exactly
    x = np.array([[0, 1, 0, 1], [1, 0, add_c, add_d], [0, 1, 1, 0]], dtype=float)
    exact = attention_weights(beta**2 * (x @ x[1]))
    return Construction(
        name="identity_attention",
        question="If queries, keys and values are the words themselves, what can a word take from the others?",
        settings={"beta": beta, "dim": u.shape[1], "add_c": add_c, "add_d": add_d},
        inputs={"queries": words[1:2], "keys": words, "values": words, "letters": u},
        logits=found.logits[1],
        weights=found.weights[1],
        predicted=words[1],
        computed=found.outputs[1],
        error=helpers.length(deviations(found.weights[1], [1]) @ words) / beta,
        expected=helpers.length(deviations(exact, [1]) @ x),
        measured="|c_2 − x_2| / β",
        relation="equals",
        law="c_2 ≈ x_2: with x_2 = u_a, error = √10 / (2 + e^{β²}). However much of u_c and u_d is added, the self-score leads by ≥ ¾β²",
        domain="From β = 1 on x_2 has a weight above ½; the formula is exact at every β. Whatever is added of u_c "
        "and u_d, c_2 is never near u_b: |c_2 − u_b| / β ≥ √2 / (1 + 2e^{−¾β²}).",
        errata=_identity_errata(beta),
    )


def distance_from_b(beta: float) -> float:
    """The least that |c_2 − u_b| / β can be in construction 7, whatever is added of u_c and u_d.

    In units of β the part of c_2 − u_b along u_a is α_22 and the one along u_b is −α_22; α_22 ≥ 1 / (1 + 2e^{−¾β²}).
    """
    return LEAST / (1 + 2 * math.exp(-0.75 * beta**2))


def key_query_value(*, beta: float = 1.5, dim: int = 16, generator: Generator | None = None) -> Construction:
    """Construction 8, (e-ii): matrices with c_1 ≈ u_b − u_c and c_2 ≈ u_b, for the words of construction 7.

    V = β⁻²(u_b u_bᵀ − u_c u_cᵀ), K = u_d u_dᵀ + u_c u_cᵀ, Q = u_d u_aᵀ + u_c u_dᵀ; the winning logit is β⁶, all others 0.
    `error` is the larger of |c_1 − (u_b − u_c)| and |c_2 − u_b|, over β. Raises TheoryError where `dim` is less than 4.
    """
    beta, u = _letters(beta, dim, generator)
    words, (query, key, value) = _words(u), matrices(beta, u)
    found = self_attention(words, query, key, value)
    b, c = u[1], u[2]
    sizes = [helpers.length(deviations(found.weights[i], [j]) @ found.values) / beta for i, j in ((0, 2), (1, 0))]
    return Construction(
        name="key_query_value",
        question="Which matrices let two words take parts of the others that plain words cannot?",
        settings={"beta": beta, "dim": u.shape[1]},
        inputs={
            "queries": (words @ query.T)[:2],
            "keys": words @ key.T,
            "values": found.values,
            "words": words,
            "letters": u,
            "Q": query,
            "K": key,
            "V": value,
        },
        logits=found.logits[:2],
        weights=found.weights[:2],
        predicted=np.stack([b - c, b]),
        computed=found.outputs[:2],
        error=max(sizes),
        expected=math.sqrt(5) / 2 * _others(beta),
        measured="larger of |c_1 − (u_b − u_c)| / β and |c_2 − u_b| / β",
        relation="equals",
        law="The winning logit leads by β⁶: error = √5 / (2 + e^{β⁶}), that of c_1; c_2's is √2 / (2 + e^{β⁶})",
        domain="Exact at every β; useful from β ≥ 1 on, where the error is below ½ and falls with e^{−β⁶}. Logits pass 1e300 at β = 1e50.",
        errata=_matrix_errata(beta, u),
    )


def matrices(beta: float, letters: Float[np.ndarray, "4 D"]) -> tuple[Array, Array, Array]:
    """Q, K and V of construction 8, from u_a, u_b, u_c, u_d as rows."""
    a, b, c, d = letters
    with np.errstate(over="ignore"):
        value = (np.outer(b, b) - np.outer(c, c)) / beta**2
        return np.outer(d, a) + np.outer(c, d), np.outer(d, d) + np.outer(c, c), value


def _letters(beta: float, dim: int, generator: Generator | None) -> tuple[float, Float[np.ndarray, "4 D"]]:
    """u_a, u_b, u_c, u_d: orthogonal, each of length β."""
    beta = helpers.check_beta(beta)
    dim = helpers.check_dim(len(LETTERS), dim, "vectors u_a, u_b, u_c, u_d")
    if not 1e-50 <= beta <= 1e150:
        raise TheoryError(
            f"beta {beta:.3g} was given.",
            "Here β is a length, and its powers have to be numbers.",
            "Use 1e-50 to 1e50.",
        )
    return beta, beta * helpers.frame(len(LETTERS), dim, helpers.generator(generator))


def _words(letters: Float[np.ndarray, "4 D"]) -> Float[np.ndarray, "3 D"]:
    a, b, c, d = letters
    return np.stack([d + b, a, c + b])


def _others(beta: float) -> float:
    """The weight that two words with logit 0 take from one with logit β⁶."""
    rest = 2 * math.exp(-(min(beta, 10.0) ** 6))
    return rest / (1 + rest)


def _along(letters: Float[np.ndarray, "4 D"], vector: Array) -> tuple[float, ...]:
    """Coefficients on u_a, u_b, u_c, u_d."""
    return tuple((letters @ vector / (letters[0] @ letters[0])).tolist())


def _identity_errata(beta: float) -> tuple[Erratum, ...]:
    u = beta * np.eye(4)
    words = _words(u)
    words[1] += u[3]
    found = self_attention(words, *[np.eye(4)] * 3)
    return (
        Erratum(
            "Adding u_d or u_c to the second word is said to bring u_d + u_b, or u_c + u_b, into its output.",
            "The output stays near the word itself, with u_d added u_a + u_d: its score with itself is 2β², that with u_d + u_b "
            "only β², and the same goes for u_c.",
            {"weights": tuple(found.weights[1].tolist()), "c_2 along u_a, u_b, u_c, u_d": _along(u, found.outputs[1])},
        ),
    )


def _matrix_errata(beta: float, letters: Float[np.ndarray, "4 D"]) -> tuple[Erratum, ...]:
    words, (query, key, value) = _words(letters), matrices(beta, letters)
    found = {"Q and K swapped": self_attention(words, key, query, value)}
    found["Q = V"] = self_attention(words, value, key, value)
    shown = {
        name: {f"c_{i + 1} along u_a, u_b, u_c, u_d": _along(letters, one.outputs[i]) for i in (0, 1)}
        for name, one in found.items()
    }
    scores = self_attention(words, query, key, value).logits
    return (
        Erratum(
            "The last line sets Q equal to the formula of V.",
            "They are different matrices. With V's formula as Q all scores of words 1 and 2 are 0, and both outputs are ⅔u_b − ⅓u_c.",
            shown["Q = V"],
        ),
        Erratum(
            "K and Q are called interchangeable.",
            "They are not. Swapped, word 1 looks at word 2, whose value is 0, and word 2 at all alike: c_1 = 0, c_2 = ⅔u_b − ⅓u_c.",
            shown["Q and K swapped"],
        ),
        Erratum(
            "For c_1 ≈ v_3 the score of q_1 with k_3 is asked to be much larger than scores of the other query, q_2.",
            "Softmax compares the scores of one query: k_3ᵀq_1 has to exceed k_1ᵀq_1 and k_2ᵀq_1. The same number added to all "
            "scores of q_2 changes no weight, and would change that comparison.",
            {f"k_1ᵀq_{i + 1}, k_2ᵀq_{i + 1}, k_3ᵀq_{i + 1}": tuple(scores[i].tolist()) for i in (0, 1)},
        ),
    )
