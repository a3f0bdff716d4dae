"""Read designs and runs from JSON, as `plain` gives them and people write them; what does not fit is refused by name."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from trisect.core.edits import read_edit
from trisect.core.errors import SpecError
from trisect.core.methods import Ablate, Attack, Control, Erase, Freeze, Interchange, Probe, Rewind, Tie
from trisect.core.site import Site
from trisect.core.spec import Design, Model, Run, Text, Training
from trisect.core.study_data import RunData
from trisect.core.typecheck import filled, need

_PARTS = {
    "text": Text,
    "model": Model,
    "training": Training,
    "attack": Attack,
    "rewind": Rewind,
    "freeze": Freeze,
    "control": Control,
    "tie": Tie,
    "probe": Probe,
    "erase": Erase,
    "ablate": Ablate,
    "interchange": Interchange,
}


def read_experiment(data: object, where: str | Path) -> Design:
    """A Design from JSON-ready data, as `plain` gives it; raises SpecError naming `where` for what does not fit."""
    known = {f.name for f in fields(Design)}
    if not isinstance(data, dict):
        todo = f"Its keys are {', '.join(sorted(known))}."
        raise SpecError(f"{where} does not hold an experiment.", "An experiment is a JSON object.", todo)
    _refuse(set(data) - known, known, where)
    values: dict[str, Any] = {"name": "experiment"}
    for key, value in data.items():
        if key in _PARTS and value is not None:
            kind = _PARTS[key]
            names = {f.name for f in fields(kind)}
            need(
                isinstance(value, dict),
                f"{key} in {where} is {value!r}.",
                "It is a JSON object.",
                f"Its keys are {', '.join(sorted(names))}.",
            )
            _refuse(set(value) - names, names, f"{key} in {where}")
            parts = {k: tuple(v) if isinstance(v, list) else v for k, v in value.items()}
            for name in ("sites", "identity"):
                if isinstance(parts.get(name), tuple):
                    parts[name] = tuple(Site.parse(s) for s in parts[name])
            values[key] = kind(**parts)
        elif key == "edits":
            given = f"edits in {where} is {value!r}."
            need(
                isinstance(value, list), given, "It is a list of JSON objects.", "Give a list, each with kind and site."
            )
            values[key] = tuple(read_edit(one, f"edit {i} of {where}") for i, one in enumerate(value or (), 1))
        else:
            values[key] = tuple(value) if isinstance(value, list) else value
    return Design(**values)


def read_run(data: RunData) -> Run:
    """The Run that `plain` gave as data."""
    edit = read_edit(data["edit"], "the run") if data["edit"] is not None else None
    return Run(data["corpus"], filled(Model, data["model"]), filled(Training, data["training"]), data["seed"], edit)


def _refuse(unknown: set[str], known: set[str], where: object) -> None:
    need(
        not unknown,
        f"{where} has {', '.join(sorted(unknown))}.",
        f"Known are {', '.join(sorted(known))}.",
        "Correct or remove the others.",
    )
