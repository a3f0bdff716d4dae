"""Several models: which of them words name, what they are to each other, and what a run over them notes and leaves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trisect.core.errors import SpecError, began
from trisect.core.files import Json
from trisect.core.schema import Group, record, settings_of
from trisect.core.subject import Subject
from trisect.lab.experiment import LayerMeasure, Result
from trisect.lab.inputs import UNITS, ModelSource
from trisect.lab.run_folder import is_study
from trisect.lab.subject import MODEL, at_revision, baselines


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


MODELS, REVISIONS = UNITS


@dataclass(frozen=True)
class SeveralModels:
    """Models as `load` takes them, in their order; `group` is the field of the settings that names them."""

    models: tuple[object, ...]
    kind: str
    group: str
    title: str

    @property
    def words(self) -> tuple[str, ...]:
        """The models on a command line: of what lies on this machine, or in memory, no path."""
        return tuple(map(_word, self.models))


def several_models(settings: Any) -> SeveralModels | None:
    """The models of settings that name more than one; null where they name one, or take no more than that.

    A folder without a model of its own, whose subfolders are models, stands for all of these; with `units` 'models' a study
    stands for its finished baselines. Raises SpecError for units of one model, and for a model that is named twice.
    """
    group = next((one for one in settings_of(type(settings)) if isinstance(one, Group) and _takes_several(one)), None)
    source = None if group is None else getattr(settings, group.name)
    if group is None or not isinstance(source, ModelSource):
        return None
    wanted = getattr(settings, "units", None)
    given = source.model if isinstance(source.model, list | tuple) else (source.model,)
    models = tuple(one for model in given for one in _expanded(model, wanted))
    if len(models) < 2:
        if wanted is not None:
            known = "Units are several models, and one is named."
            raise SpecError(f"--units {wanted} was given.", known, "Name at least two models, or leave it out.")
        return None
    _check_different(models)
    same = _of_one(models)
    if wanted is None and len(given) == 1 and same:
        known = f"{len(models)} models in subfolders of {_short(given[0])} are read as revisions of one model, in their order."
        began(f"{known} If they are models of one recipe, such as seeds, say --units models.")
    kind = wanted or (REVISIONS if same else MODELS)
    return SeveralModels(models, kind, group.name, f"{same or _short(models[0])}-{len(models)}-{kind}")


def _takes_several(group: Group) -> bool:
    return any(one.option.argument and one.option.many == "models" for one in group.fields)


def _expanded(model: Any, units: str | None) -> Iterator[Any]:
    """A model, or the models that a folder holds."""
    if isinstance(model, str | Path) and Path(model).is_dir():
        folder = Path(model)
        if is_study(folder):
            yield from baselines(folder) if units == MODELS else (model,)
            return
        inside = sorted({p.parent.name for p in folder.glob("*/config.json")}, key=_natural)
        if inside and not (folder / "config.json").exists():
            yield from (f"{folder}@{name}" for name in inside)
            return
    yield model


def _natural(name: str) -> list[tuple[int, str]]:
    """A sort key by which step9 comes before step10."""
    return [(int(piece), "") if piece.isdigit() else (-1, piece) for piece in re.split(r"(\d+)", name)]


def _check_different(models: tuple[Any, ...]) -> None:
    """Raise SpecError where a model is named twice; the same weights under two names are met when they are opened."""
    seen: list[Any] = []
    for model in models:
        if any(model is one or (isinstance(model, str | Path) and str(model) == str(one)) for one in seen):
            known = "Every unit counts once: the same model twice would make intervals too narrow."
            raise SpecError(f"{_word(model)} was given twice.", known, "Give every model once.")
        seen.append(model)


def _of_one(models: tuple[Any, ...]) -> str:
    """The model that all of these are revisions of; empty where they are not."""
    found = [at_revision(model) for model in models]
    names = {one.base for one in found if one is not None}
    return _short(names.pop()) if len(names) == 1 and None not in found else ""


def _short(model: Any) -> str:
    """A model's name as part of a folder's."""
    name = (
        model.name
        if isinstance(model, Subject)
        else str(model)
        if isinstance(model, str | Path)
        else type(model).__name__
    )
    return name.rstrip("/").split("/")[-1].replace("@", "-")


def _word(model: Any) -> str:
    if isinstance(model, Subject):
        return model.options[0]
    found = at_revision(model)
    if found is not None:
        return f"{MODEL if Path(found.base).exists() else found.base}@{found.revision}"
    return MODEL if not isinstance(model, str) or Path(model).exists() else model
