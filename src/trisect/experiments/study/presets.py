"""Predefined studies: small ones, the paper's own, extensions of it, and synthetic tasks with known roles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

from trisect.core import files
from trisect.core.errors import SpecError, check_accessible, unknown_name
from trisect.core.methods import (
    ALL_LAYERS,
    METHODS,
    PAPER_SITES,
    Ablate,
    Attack,
    Control,
    Erase,
    Freeze,
    Interchange,
    Probe,
    Rewind,
    Tie,
)
from trisect.core.site import Site
from trisect.core.spec import Design, Model, Text, Training, read_experiment

STRENGTHS = (1.0, 0.1, 0.3)  # the first is that of the verdicts
TRAINING = Training(
    epochs=5,
    columns=64,
    eval_columns=100,
    optimizer="adamw",
    rate=5e-3,
    decay=0.7,
    warmup=50,
    weight_decay=0.01,
    train_sample=6_144,
)


def _sites(names: str) -> tuple[Site, ...]:
    return tuple(map(Site.parse, names.split()))


def _world(
    name: str, window: int, model: Model, grids: Sequence[tuple[str, str]], variants: tuple[str, ...]
) -> tuple[Design, ...]:
    """A statement for each grid: sites, and the label columns for each.

    The first also has the methods without a label, at every layer.
    """
    training, text = replace(TRAINING, window=window), Text(name)
    base = Design(name, text, model, training, (1, 2, 3, 4, 5), attack=None, rewind=None, freeze=None)
    layer_sites = tuple(Site((c,), (layer,)) for layer in range(1, model.layers + 1) for c in "qkv")
    shown_layers = tuple(layer for layer in range(1, model.layers + 1) if layer == 2 or layer in model.idle)
    pairs = tuple(Site(pair, (layer,)) for layer in shown_layers for pair in combinations("qkv", 2))
    read = tuple(dict.fromkeys(site for names, _ in grids for site in _sites(names)))
    designs = []
    for names, columns in grids:
        sites, labels = _sites(names), tuple(columns.split())
        attack, control = Attack(sites, labels, STRENGTHS), Control(sites, labels, variants)
        probe, erase = Probe(read, labels, ("linear",)), Erase(sites, labels)
        designs.append(replace(base, attack=attack, control=control, probe=probe, erase=erase))
    designs[0] = replace(
        designs[0],
        rewind=Rewind(layer_sites, points=11, midstage=False),
        freeze=Freeze(layer_sites),
        tie=Tie(pairs, (), narrow=False),
        ablate=Ablate(layer_sites),
        interchange=Interchange(layer_sites),
    )
    return tuple(designs)


def _brief(designs: tuple[Design, ...]) -> tuple[Design, ...]:
    """The same in two minutes: interventions without training on all seeds, attacks on two of them with strength 1."""
    short = [replace(d, name=f"{d.name}-quick", training=replace(d.training, epochs=4)) for d in designs]
    trained = replace(short[0], attack=None, control=None, tie=None, probe=None)
    erased = replace(short[1], attack=None, control=None, probe=None)
    bare = dict.fromkeys(("rewind", "freeze", "tie", "probe", "erase", "ablate", "interchange"))
    attacked = (
        replace(
            d,
            seeds=(1, 2),
            attack=d.attack and replace(d.attack, strengths=(1.0,)),
            control=d.control and replace(d.control, variants=("bounded+site",)),
            **bare,
        )
        for d in short
    )
    return (trained, erased, *attacked)


# Items with attributes, and a question: labels of questions for queries, of items for keys and values.
ROLES = _world(
    "roles",
    6,
    Model(width=32, layers=2, heads=1, feedforward=32, dropout=0.0, idle=(1,)),
    [("q@2", "question.a question.b question.c"), ("k@2 v@2", "item.a item.b item.c")],
    ("bounded", "site", "bounded+site", "control"),
)
# What came after this key before? A label is the word itself, so that a control label, which every word draws by chance,
# would be no other.
INDUCTION = _world(
    "induction",
    10,
    Model(width=32, layers=3, heads=1, feedforward=32, dropout=0.0, idle=(3,)),
    [("q@2", "question.own question.before"), ("k@2 v@2", "value.own value.before"), ("v@1", "key.own value.own")],
    ("bounded", "site", "bounded+site"),
)
PLANTED = (ROLES, _brief(ROLES), INDUCTION)

QUICK = Design(
    name="quick",
    text=Text("embedded", train_tokens=24_000, valid_tokens=4_000),
    model=Model(width=40, layers=5, heads=5, feedforward=40, dropout=0.1),
    training=replace(TRAINING, columns=20, eval_columns=10, window=16, warmup=40, train_sample=3_200),
    seeds=(1, 2, 3),
)
# Where a control says most for its time: the layers that the source contrasts, and all three components.
CONTROL_SITES = tuple(Site((c,), (layer,)) for layer in (1, 5) for c in ("q", "k", "v"))

PRESETS: tuple[Design, ...] = (
    replace(
        QUICK,
        control=Control(CONTROL_SITES, ("pos",)),
        tie=Tie(),
        probe=Probe(CONTROL_SITES, ("pos",), ("linear",)),
        erase=Erase(CONTROL_SITES, ("pos",), draws=5),
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
        control=Control(CONTROL_SITES, ("pos",)),
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
    replace(
        QUICK,
        name="all-layers",
        seeds=(1, 2, 3, 4, 5),
        attack=None,
        rewind=Rewind(ALL_LAYERS, points=11, midstage=False),
        freeze=Freeze(ALL_LAYERS),
        tie=Tie(identity=(), narrow=False),
        ablate=Ablate(),
    ),
)


def _beyond() -> tuple[Design, ...]:
    """Every site, label and control that the paper leaves to future work, on the small model; and a range of strengths."""
    small = next(preset for preset in PRESETS if preset.name == "wikitext2-small")
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
    return grid, replace(only((small,), ("attack",))[0], name="beyond", attack=sweep)


def is_preset(what: object) -> bool:
    """Whether a preset has that name."""
    return isinstance(what, (str, Path)) and str(what) in NAMES


def find_experiments(what: str | Path | Design) -> tuple[Design, ...]:
    """A preset by name, the experiments in a JSON file (for one folder), or the experiment itself; raises SpecError."""
    if isinstance(what, Design):
        return (what,)
    if is_preset(what):
        return PRESET_GROUPS.get(str(what)) or tuple(preset for preset in PRESETS if preset.name == str(what))
    path = Path(what)
    check_accessible(path)
    if path.suffix == ".json" and path.is_file():
        try:
            data = files.read_strict(path)
        except (OSError, ValueError) as error:
            raise SpecError(
                f"{path} is not JSON." if isinstance(error, ValueError) else f"{path} cannot be read.",
                str(error),
                "Correct the file; 'trisect plan quick --json' shows what one looks like.",
            ) from error
        if not isinstance(data, list):
            return (read_experiment(data, path),)
        if data:
            return tuple(read_experiment(part, f"experiment {i} of {path}") for i, part in enumerate(data, 1))
        raise SpecError(f"{path} holds no experiment.", "Its list is empty.", "Give one, or several for one folder.")
    raise SpecError(
        unknown_name("preset or file", str(what), NAMES),
        f"Presets are {', '.join(NAMES)}.",
        "Use one of them, or write a file; 'trisect plan quick --json' shows what one looks like.",
    )


def only(experiments: tuple[Design, ...], methods: tuple[str, ...]) -> tuple[Design, ...]:
    """Experiments with the named interventions alone; those that would have none are left out.

    Raises SpecError for names that are none, and for what no experiment has.
    """
    every = (*METHODS, "edits")
    strange = [m for m in methods if m not in every]
    if strange or not methods:
        names = ", ".join(map(repr, strange)) or "an empty list"
        raise SpecError(f"{names} is not an experiment.", f"There are {', '.join(every)}.", "Name some of them.")
    if missing := [m for m in methods if not any(getattr(design, m) for design in experiments)]:
        lacks = f"{experiments[0].name} has no {', '.join(missing)}."
        raise SpecError(lacks, "The experiment leaves it out.", "Name what it has.")
    others: dict[str, object] = {m: () if m == "edits" else None for m in every if m not in methods}
    return tuple(replace(design, **others) for design in experiments if any(getattr(design, m) for m in methods))


BEYOND = _beyond()
PRESET_GROUPS = {group[0].name: group for group in (BEYOND, *PLANTED)}  # what one folder holds, as several statements
NAMES = (*(preset.name for preset in PRESETS), *PRESET_GROUPS)
