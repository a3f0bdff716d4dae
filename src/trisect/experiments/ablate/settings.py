"""Settings and facts of an ablation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any

from pydantic import Field

from trisect.core.errors import SpecError, shorten
from trisect.core.finding import Json, ReadFacts
from trisect.core.schema import Option, record
from trisect.lab.inputs import BatchSize, Models, ModelWorkers, Per, Seed, Sites, TextSource, Units

REPLACEMENTS = ("zero", "mean", "resample")


@record
class AblateSettings:
    """Settings of an ablation: the sites, the replacements and the texts."""

    source: Models
    read: TextSource
    edits: (
        Annotated[
            Mapping[str, Any],
            Field(description="By site a function, as for trisect.edit, or a way of --how; in place of both."),
            Option(name=""),
        ]
        | None
    ) = None
    sites: Sites | None = None
    how: Annotated[
        str,
        Field(description="zero, mean (over all tokens of the texts) or resample (from another text, place by place)."),
        Option(choices=REPLACEMENTS, metavar="HOW"),
    ] = "mean"
    per: Per = "layer"
    hold: Annotated[
        bool,
        Field(
            description="pattern: keep all attention weights of the unedited pass, except in a layer whose q or k is replaced."
        ),
        Option(value="pattern", metavar="WHAT"),
    ] = False
    batch: BatchSize = 8
    seed: Seed = 0
    units: Units | None = None
    machine: ModelWorkers = field(default_factory=ModelWorkers)

    def __post_init__(self) -> None:
        """Raise SpecError for an empty mapping of edits, and for sites or `how` beside edits."""
        if self.edits is None:
            return
        if not self.edits or self.sites is not None or self.how != "mean":
            problem = "edits was given with sites or how." if self.edits else "edits is empty."
            raise SpecError(problem, "It says for each site what is done there.", 'Give for example {"v@3": fn} alone.')
        for site, how in self.edits.items():
            if not callable(how) and how not in REPLACEMENTS:
                ways = f"There are {', '.join(REPLACEMENTS)}, and functions of a tensor and of where it is."
                raise SpecError(f"{site} is to be edited by {shorten(how)}.", ways, "Use one of them.")


@record
class AblateFacts(ReadFacts):
    """Facts of an ablation; `sites` is None for q, k and v of every layer, `how` may name functions.

    `compared` is what paired differences over texts say of q, k and v, as data of a Comparison.
    """

    sites: tuple[str, ...] | None
    how: str
    per: str
    hold: bool
    seed: int
    batch: int
    compared: Mapping[str, Json] | None = None
