"""What a run over several models notes of itself, and what it leaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trisect.core.json_text import Json
from trisect.lab.experiment import LayerMeasure, Result


@dataclass(frozen=True)
class UnitFacts:
    """One of several models: its name in rows, its weights, its own page, and what was found in it, in words."""

    name: str
    fingerprint: str
    page: str
    findings: tuple[str, ...]
    facts: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, given: UnitFacts | Mapping[str, object]) -> UnitFacts:
        """From what a record holds of it."""
        if isinstance(given, UnitFacts):
            return given
        own: dict[str, Any] = dict(given)
        facts = tuple((str(name), str(value)) for name, value in own.get("facts", ()))
        return cls(**{**own, "findings": tuple(own["findings"]), "facts": facts})


@dataclass(frozen=True)
class UnitsFacts:
    """Several models in their order, and what they are to each other: models of one recipe, or revisions of one model."""

    units: str
    what: str
    models: tuple[UnitFacts, ...]
    by_layer: tuple[LayerMeasure, ...] = field(default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "models", tuple(map(UnitFacts.of, self.models)))
        object.__setattr__(self, "by_layer", tuple(LayerMeasure(*one) for one in self.by_layer))

    @property
    def names(self) -> tuple[str, ...]:
        """The models by name, in their order."""
        return tuple(model.name for model in self.models)


class UnitsResult(Result[UnitsFacts]):
    """What a run over several models left; `tables` have a column `model`."""

    def data(self) -> dict[str, Json]:
        """The result as JSON-ready data, each model's own page and findings among the rest."""
        models: list[Json] = [
            {
                "model": one.name,
                "fingerprint": one.fingerprint,
                "report": str((self.folder / one.page).resolve()),
                "findings": list(one.findings),
            }
            for one in self.about.facts.models
        ]
        return {**super().data(), "units": self.about.facts.units, "models": models}
