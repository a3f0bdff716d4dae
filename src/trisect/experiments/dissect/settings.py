"""Settings and facts of a dissection: findings, claims and pages of each part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from trisect.core.edits import SettingValue
from trisect.core.finding import Finding
from trisect.core.schema import Option, record
from trisect.core.spec import Design
from trisect.lab.inputs import Workers

RECORD = "dissect.json"


@record
class DissectSettings:
    """Settings of a dissection: the experiments of all four sources at a small size; in Python also other studies or recipes.

    `model` is a pretrained model to profile; without it, one that was trained here is profiled. `corpus` is the text for the models
    that learn to look up.
    """

    seeds: (
        Annotated[
            tuple[int, ...],
            Field(description="Seeds of the training study: how many, or which, as in 1,2,7 or 3-6."),
            Option(many="seeds", metavar="SEEDS", unset="5 seeds"),
        ]
        | None
    ) = None
    machine: Workers = field(default_factory=Workers)
    model: Annotated[
        Any | None,
        Field(description="A pretrained model to profile: a folder or a name on a hub."),
        Option(metavar="MODEL", unset="none"),
    ] = None
    corpus: Annotated[
        str | Path,
        Field(
            description="The text for the models that learn to look up: a raw folder with a train and a valid split, hf:NAME[:CONFIG], or "
            "'embedded'."
        ),
        Option(metavar="CORPUS"),
    ] = "embedded"
    lookup: Annotated[
        Mapping[str, SettingValue] | None,
        Field(description="Other values for settings of the look-up models' recipe."),
        Option(name="", many="pairs"),
    ] = None
    study: Annotated[
        str | Path | Design,
        Field(description="The training study: a preset, a JSON file, or a Design."),
        Option(name=""),
    ] = "all-layers"
    roles: Annotated[
        str | Path | Design,
        Field(description="The study of known roles: a preset, a JSON file, or a Design."),
        Option(name=""),
    ] = "roles-quick"
    recall: Annotated[
        Mapping[str, SettingValue] | None,
        Field(description="Other values for settings of recall's recipe."),
        Option(name="", many="pairs"),
    ] = None
    translation: Annotated[
        Mapping[str, SettingValue] | None,
        Field(description="Other values for settings of the translation models' recipe."),
        Option(name="", many="pairs"),
    ] = None


@record
class PartFacts:
    """A finished part: its question, findings, claims, and pages."""

    name: str
    title: str
    question: str
    findings: tuple[Finding, ...]
    claims: tuple[str, ...]
    pages: Mapping[str, str]


@record
class DissectFacts:
    """Every part in order, how many models were trained for them, and the pages of the explorer and the tutorial; `lookup` describes
    the models that look up, and their text.
    """

    parts: tuple[PartFacts, ...]
    models: str
    explorer: str | None = None
    tutorial: str | None = None
    lookup: str = ""
