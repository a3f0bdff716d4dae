"""Build constructions by name: arguments that apply, defaults that leave no room, and the draws of a seed."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import trisect.theory.helpers as helpers
from trisect.core.errors import TheoryError, unknown
from trisect.theory import CONSTRUCTIONS, Construction

Given = Mapping[str, float | None]  # arguments by name; None, or not there: the construction's own default


def select_constructions(names: Sequence[str]) -> tuple[str, ...]:
    """The names, each once, or all eight; raises TheoryError for one that is no construction's."""
    for name in names:
        if name not in CONSTRUCTIONS:
            known = f"There are {', '.join(CONSTRUCTIONS)}."
            raise TheoryError(
                unknown("construction", name, CONSTRUCTIONS), known, "Name one of these, or none for all."
            )
    return tuple(dict.fromkeys(names)) or tuple(CONSTRUCTIONS)


def build(name: str, settings: Given, seed: int) -> Construction:
    """The construction of that name with these arguments, as far as it has them; the same seed gives the same draws.

    Raises TheoryError for what cannot be built.
    """
    make = CONSTRUCTIONS[name]
    taken = inspect.signature(make).parameters
    arguments: dict[str, Any] = {k: v for k, v in settings.items() if v is not None and k in taken}
    # where one of `keys` and `dim` is given and the other's default leaves no room for the keys, say whose default it is
    defaults = {k: taken[k].default for k in ("keys", "dim") if k in taken}
    alone = [k for k in defaults if k in arguments]
    if len(defaults) == 2 and len(alone) == 1:
        asked = {k: helpers.check_whole(k, arguments.get(k, default)) for k, default in defaults.items()}
        if asked["dim"] < asked["keys"] and asked[alone[0]] >= 2:
            given, other = ("keys", "dim") if alone == ["keys"] else ("dim", "keys")
            raise TheoryError(
                f"{given} {asked[given]} was given, and no {other}.",
                f"{name} has {other} {asked[other]} by default, and R^{asked['dim']} no {asked['keys']} orthogonal keys.",
                f"Give also a dim of {asked['keys']} or more, or fewer keys."
                if other == "dim"
                else f"Give also keys of {asked['dim']} or fewer, or a larger dim.",
            )
    return make(**arguments, generator=np.random.default_rng([seed, list(CONSTRUCTIONS).index(name)]))
