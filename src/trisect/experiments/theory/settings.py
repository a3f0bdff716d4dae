"""What a run of attention worked by hand is asked, and what it notes of itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from trisect.core.schema import WHOLE, Option, record
from trisect.lab.inputs import Seed


@record
class TheorySettings:
    """Constructions by name, or all eight, at every `beta`; what is None is each construction's own default."""

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
    dim: Annotated[int, Field(description="Dimensions of keys and values.", le=WHOLE)] | None = None
    keys: Annotated[int, Field(description="How many keys there are.", le=WHOLE)] | None = None
    samples: Annotated[int, Field(description="Draws of random keys.", le=WHOLE)] | None = None
    seed: Seed = 0


@record
class TheoryFacts:
    """The seed, and for each row of the table the construction's name with all its arguments: they give it again."""

    seed: int
    settings: tuple[Mapping[str, str | int | float], ...]
