"""The studies that come ready: small ones, the paper's own, what lies beyond it, and worlds with planted roles."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from trisect.core import json_text
from trisect.core.errors import SpecError, unknown
from trisect.core.methods import (
    ALL_LAYERS,
    METHODS,
    PAPER_SITES,
    Ablate,
    Attack,
    Control,
    Erase,
    Freeze,
    Probe,
    Rewind,
    Tie,
)
from trisect.core.site import Site
from trisect.core.spec import Design, Model, Text, Training, read_experiment
from trisect.experiments.study.planted_presets import PLANTED

# Where a control says most for its time: the layers that the source contrasts, and all three components.
DECIDING = tuple(Site((c,), (layer,)) for layer in (1, 5) for c in ("q", "k", "v"))

PRESETS: tuple[Design, ...] = (
    Design(
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
        control=Control(DECIDING, ("pos",)),
        tie=Tie(),
        probe=Probe(DECIDING, ("pos",), ("linear",)),
        erase=Erase(DECIDING, ("pos",), draws=5),
        ablate=Ablate(),
    ),
    Design(
        name="wikitext2-small",
        text=Text(None, train_tokens=100_000, valid_tokens=20_000, min_count=3),
        model=Model(width=100, layers=5, heads=5, feedforward=100, dropout=0.2),
        training=Training(
            epochs=6, optimizer="adamw", rate=1e-3, decay=0.9, warmup=100, weight_decay=0.01, train_sample=14_000
        ),
        seeds=(1, 2, 3, 4, 5),
        control=Control(DECIDING, ("pos",)),
        tie=Tie(),
        probe=Probe(None, ("pos",), ("linear",)),
        erase=Erase(PAPER_SITES, ("pos",)),
        ablate=Ablate(),
    ),
    Design(
        name="paper",
        text=Text(None),
        model=Model(),
        training=Training(epochs=200),
        seeds=(1, 2, 3, 4, 5),
        attack=Attack(epochs=100),
        rewind=Rewind(),
        freeze=Freeze(),
        ablate=Ablate(),
    ),
    Design(
        name="all-layers",
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
        seeds=(1, 2, 3, 4, 5),
        attack=None,
        rewind=Rewind(ALL_LAYERS, points=11, midstage=False),
        freeze=Freeze(ALL_LAYERS),
        tie=Tie(identity=(), narrow=False),
        ablate=Ablate(),
    ),
)


def _beyond() -> tuple[Design, ...]:
    """Every site, label and control that the paper leaves to future work, on the small model; and a sweep of strengths."""
    small = next(one for one in PRESETS if one.name == "wikitext2-small")
    layers, heads = range(1, small.model.layers + 1), range(1, small.model.heads + 1)
    joint = (("q", "k"), ("k", "v"), ("q", "v"), ("q", "k", "v"))
    rest = (
        *(Site(parts, (layer,)) for layer in layers for parts in joint),
        *(Site((c,), None) for c in ("q", "k", "v")),
        *(Site((c,), (layer,)) for layer in layers for c in ("o", "attn", "ffn")),
        *(Site((c,), (layer,), (head,)) for layer in layers for c in ("q", "k", "v") for head in heads),
    )
    everywhere, labels = (*PAPER_SITES, *rest), ("pos", "dep", "tag")
    grid = replace(
        small,
        name="beyond",
        attack=Attack(everywhere, labels),
        rewind=Rewind(everywhere),
        freeze=Freeze(everywhere),
        control=Control(PAPER_SITES, labels),
        tie=Tie(tuple(Site(parts, only) for only in (None, *((n,) for n in layers)) for parts in joint)),
        probe=Probe(None, labels),
        erase=Erase(PAPER_SITES, labels),
    )
    sweep = Attack(PAPER_SITES, ("pos", "dep"), strengths=(0.3, 3.0))
    return grid, replace(only(small, ("attack",)), name="beyond", attack=sweep)


def find_experiment(what: str | Path | Design) -> Design:
    """The first of `find_experiments`: the only one, but for `beyond` and the file of an unevenly extended study."""
    return find_experiments(what)[0]


def is_preset(what: object) -> bool:
    """Whether that is the name of a preset."""
    return isinstance(what, (str, Path)) and str(what) in NAMES


def find_experiments(what: str | Path | Design) -> tuple[Design, ...]:
    """A preset by name, a JSON file's experiment or list of them, or the experiment itself; raises SpecError else.

    Several are what one folder is to hold.
    """
    if isinstance(what, Design):
        return (what,)
    if is_preset(what):
        return SEVERAL.get(str(what)) or tuple(one for one in PRESETS if one.name == str(what))
    path = Path(what)
    if path.suffix == ".json" and path.is_file():
        try:
            data = json_text.read(path)
        except (OSError, ValueError) as error:
            raise SpecError(
                f"{path} is not JSON." if isinstance(error, ValueError) else f"{path} cannot be read.",
                str(error),
                "Correct the file; 'trisect plan quick --json' shows what one looks like.",
            ) from error
        if not isinstance(data, list):
            return (read_experiment(data, path),)
        if data:
            return tuple(read_experiment(one, f"experiment {i} of {path}") for i, one in enumerate(data, 1))
        raise SpecError(f"{path} holds no experiment.", "Its list is empty.", "Give one, or several for one folder.")
    raise SpecError(
        unknown("preset or file", str(what), NAMES),
        f"Presets are {', '.join(NAMES)}.",
        "Use one of them, or write a file; 'trisect plan quick --json' shows what one looks like.",
    )


def only(experiment: Design, methods: tuple[str, ...]) -> Design:
    """The experiment with no interventions but those named; raises SpecError for names that are none."""
    known = (*METHODS, "edits")
    unknown = [m for m in methods if m not in known]
    if unknown or not methods:
        given = ", ".join(map(repr, unknown)) or "an empty list"
        raise SpecError(f"{given} is not an experiment.", f"There are {', '.join(known)}.", "Name some of them.")
    keep = {m: getattr(experiment, m) for m in known if m in methods}
    if missing := [m for m, value in keep.items() if not value]:
        raise SpecError(
            f"{experiment.name} has no {', '.join(missing)}.", "The experiment leaves it out.", "Name what it has."
        )
    return replace(experiment, **{m: keep.get(m) for m in METHODS}, edits=keep.get("edits", ()))


BEYOND = _beyond()
SEVERAL = {of[0].name: of for of in (BEYOND, *PLANTED)}  # what one folder holds, as several statements
NAMES = (*(one.name for one in PRESETS), *SEVERAL)
