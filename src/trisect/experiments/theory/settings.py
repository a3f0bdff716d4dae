"""Settings and facts of attention worked by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from trisect.core.schema import MAX_INT, Option, record
from trisect.lab.inputs import Seed


@record
class TheorySettings:
    """Settings: constructions by name, or all eight, at every `beta`; None is each construction's default."""

    names: Annotated[
        tuple[str, ...],
        Field(description="Constructions of trisect.theory; none: all eight."),
        Option(argument=True, many="words", metavar="[NAME]..."),
    ] = ()
    beta: Annotated[
        tuple[float, ...],
        Field(description="How sharp the query is: values separated by commas."),
        Option(many="commas", metavar="BETA"),
    ] = ()
    dim: Annotated[int, Field(description="Dimensions of keys and values.", le=MAX_INT)] | None = None
    keys: Annotated[int, Field(description="How many keys there are.", le=MAX_INT)] | None = None
    samples: Annotated[int, Field(description="Draws of random keys.", le=MAX_INT)] | None = None
    seed: Seed = 0


@record
class TheoryFacts:
    """Facts: the seed, and for each row of the table the construction's name and arguments, from which it can be rebuilt."""

    seed: int
    settings: tuple[Mapping[str, str | int | float], ...]
