"""What a run over several models notes of itself, and what it leaves."""

from __future__ import annotations

from dataclasses import field

from trisect.core.json_text import Json
from trisect.core.schema import record
from trisect.lab.experiment import LayerMeasure, Result


@record
class UnitFacts:
    """One of several models: its name in rows, its weights, its own page, and what was found in it, in words."""

    name: str
    fingerprint: str
    page: str
    findings: tuple[str, ...]
    facts: tuple[tuple[str, str], ...] = ()


@record
class UnitsFacts:
    """Several models in their order, and what they are to each other: models of one recipe, or revisions of one model."""

    units: str
    what: str
    models: tuple[UnitFacts, ...]
    by_layer: tuple[LayerMeasure, ...] = field(default=())

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
