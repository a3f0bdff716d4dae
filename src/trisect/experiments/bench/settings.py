"""Settings and facts of a benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from trisect.core.schema import MAX_RESAMPLES, Option, record
from trisect.lab.inputs import Seeds


@record
class BenchmarkSettings:
    """The methods to score, and the worlds."""

    files: Annotated[
        tuple[str | Path, ...],
        Field(
            description="Python files whose functions (model, texts, site) -> score are scored beside the built-in ones."
        ),
        Option(argument=True, many="paths", metavar="[METHOD.py]..."),
    ] = ()
    functions: Annotated[
        tuple[Any, ...], Field(description="Such functions, in Python."), Option(name="", many="paths")
    ] = ()
    methods: Annotated[
        tuple[str, ...],
        Field(description="Built-in methods, by name."),
        Option(many="words", metavar="NAME", unset="all"),
    ] = ()
    worlds: Annotated[
        tuple[str, ...],
        Field(
            description="Worlds, by name; roles-trained is trained once for each seed, some ten seconds, and cached in XDG_CACHE_HOME "
            "(default ~/.cache)."
        ),
        Option(many="words", metavar="NAME", unset="all others"),
    ] = ()
    seeds: Seeds = (1, 2, 3, 4, 5)
    pairs: Annotated[int, Field(description="Pairs of texts for each property.", ge=2, le=MAX_RESAMPLES)] = 32


@record
class BenchmarkFacts:
    """Seeds, and the number of pairs of texts per property."""

    seeds: tuple[int, ...]
    pairs: int
