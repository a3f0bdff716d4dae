"""Attention by hand: eight constructions of q, k and v with their laws, and a solver for given outputs."""

from trisect.theory.constructions import (
    CONSTRUCTIONS,
    Apart,
    Construction,
    Erratum,
    ErrorCurve,
    KeyDraws,
    LogOdds,
    Variances,
    average,
    copying,
    identity_attention,
    key_query_value,
    random_keys_one_head,
    random_keys_two_heads,
    stretched_key_one_head,
    stretched_key_two_heads,
    sweep,
)
from trisect.theory.solver import Solution, solve

__all__ = [
    "CONSTRUCTIONS", "Apart", "Construction", "ErrorCurve", "KeyDraws", "Erratum", "LogOdds", "Solution", "Variances", "average",
    "copying", "identity_attention", "key_query_value", "random_keys_one_head", "random_keys_two_heads", "solve",
    "stretched_key_one_head", "stretched_key_two_heads", "sweep",
]  # fmt: skip
