"""Theory: attention by hand, eight constructions with their laws, and a solver for wanted outputs."""

from trisect.theory.certain import average, copying
from trisect.theory.chance import (
    random_keys_one_head,
    random_keys_two_heads,
    stretched_key_one_head,
    stretched_key_two_heads,
)
from trisect.theory.draws import Draws
from trisect.theory.result import Apart, Construction, Erratum, LogOdds, Variances
from trisect.theory.solver import Solution, solve
from trisect.theory.sweep import CONSTRUCTIONS, Curve, sweep
from trisect.theory.words import identity_attention, key_query_value

__all__ = [
    "CONSTRUCTIONS", "Apart", "Construction", "Curve", "Draws", "Erratum", "LogOdds", "Solution", "Variances", "average",
    "copying", "identity_attention", "key_query_value", "random_keys_one_head", "random_keys_two_heads", "solve",
    "stretched_key_one_head", "stretched_key_two_heads", "sweep",
]  # fmt: skip
