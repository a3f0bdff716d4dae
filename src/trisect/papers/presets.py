"""The studies that come ready: quick, wikitext2-small, and the paper's own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from trisect.core.errors import SpecError
from trisect.core.spec import METHODS, Attack, Experiment, Freeze, Model, Rewind, Text, Training, read_experiment

PRESETS: tuple[Experiment, ...] = (
    Experiment(
        name="quick",
        text=Text("embedded", train_tokens=24_000, valid_tokens=4_000),
        model=Model(width=40, layers=5, heads=5, feedforward=40, dropout=0.1),
        training=Training(
            epochs=5,
            window=16,
            optimizer="adamw",
            rate=5e-3,
            decay=0.7,
            warmup=40,
            weight_decay=0.01,
            train_sample=3_200,
        ),
        seeds=(1, 2, 3),
    ),
    Experiment(
        name="wikitext2-small",
        text=Text(None, train_tokens=100_000, valid_tokens=20_000, min_count=3),
        model=Model(width=100, layers=5, heads=5, feedforward=100, dropout=0.2),
        training=Training(
            epochs=6, optimizer="adamw", rate=1e-3, decay=0.9, warmup=100, weight_decay=0.01, train_sample=14_000
        ),
        seeds=(1, 2, 3, 4, 5),
    ),
    Experiment(
        name="paper",
        text=Text(None),
        model=Model(),
        training=Training(epochs=200),
        seeds=(1, 2, 3, 4, 5),
        attack=Attack(epochs=100),
        rewind=Rewind(),
        freeze=Freeze(),
    ),
)


def find_experiment(what: str | Path | Experiment) -> Experiment:
    """The first of `find_experiments`, which is the only one but for the file of an unevenly extended study."""
    return find_experiments(what)[0]


def find_experiments(what: str | Path | Experiment) -> tuple[Experiment, ...]:
    """A preset by name, a JSON file's experiment or list of them, or the experiment itself; raises SpecError else."""
    if isinstance(what, Experiment):
        return (what,)
    names = {e.name: e for e in PRESETS}
    if str(what) in names:
        return (names[str(what)],)
    path = Path(what)
    if path.suffix == ".json" and path.is_file():
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise SpecError(
                f"{path} is not JSON." if isinstance(error, ValueError) else f"{path} cannot be read.",
                str(error),
                "Mend the file; 'trisect plan quick --json' shows what one looks like.",
            ) from error
        if not isinstance(data, list):
            return (read_experiment(data, path),)
        if data:
            return tuple(read_experiment(one, f"experiment {i} of {path}") for i, one in enumerate(data, 1))
        raise SpecError(f"{path} holds no experiment.", "Its list is empty.", "Give one, or several for one folder.")
    raise SpecError(
        f"{str(what)!r} is neither a preset nor a JSON file with an experiment.",
        f"Presets are {', '.join(names)}.",
        "Use one of them, or write a file; 'trisect plan quick --json' shows what one looks like.",
    )


def only(experiment: Experiment, methods: tuple[str, ...]) -> Experiment:
    """The experiment with no interventions but those named; raises SpecError for names that are none."""
    unknown = [m for m in methods if m not in METHODS]
    if unknown or not methods:
        given = ", ".join(map(repr, unknown)) or "an empty list"
        raise SpecError(f"{given} is not an experiment.", f"There are {', '.join(METHODS)}.", "Name some of them.")
    keep = {m: getattr(experiment, m) for m in METHODS if m in methods}
    if missing := [m for m, value in keep.items() if value is None]:
        raise SpecError(
            f"{experiment.name} has no {', '.join(missing)}.", "The experiment leaves it out.", "Name what it has."
        )
    return replace(experiment, **{m: keep.get(m) for m in METHODS})
