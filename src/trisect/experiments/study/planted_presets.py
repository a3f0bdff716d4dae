"""The studies of worlds with planted roles (science F2): every method at the sites that carry something, and at an idle layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

from trisect.core.methods import Ablate, Attack, Control, Erase, Freeze, Interchange, Probe, Rewind, Tie
from trisect.core.site import Site
from trisect.core.spec import Design, Model, Text, Training

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


class Grid(NamedTuple):
    """Sites, and the label columns that each of them is asked about."""

    sites: tuple[Site, ...]
    labels: tuple[str, ...]


def _sites(layer: int, components: str = "qkv") -> tuple[Site, ...]:
    return tuple(Site((c,), (layer,)) for c in components)


def _study(base: Design, grids: Sequence[Grid], variants: tuple[str, ...]) -> tuple[Design, ...]:
    """A statement for each grid; the first also has the methods without a label, at every layer."""
    layers = range(1, base.model.layers + 1)
    every = tuple(site for layer in layers for site in _sites(layer))
    shown_layers = tuple(layer for layer in layers if layer == 2 or layer in base.model.idle)
    read = tuple(dict.fromkeys(site for grid in grids for site in grid.sites))
    pairs = tuple(Site(pair, (layer,)) for layer in shown_layers for pair in combinations("qkv", 2))
    asked = [
        replace(
            base,
            attack=Attack(*grid, STRENGTHS),
            control=Control(*grid, variants),
            probe=Probe(read, grid.labels, ("linear",)),
            erase=Erase(*grid),
        )
        for grid in grids
    ]
    asked[0] = replace(
        asked[0],
        rewind=Rewind(every, points=11, midstage=False),
        freeze=Freeze(every),
        tie=Tie(pairs, (), narrow=False),
        ablate=Ablate(every),
        interchange=Interchange(every),
    )
    return tuple(asked)


def _world(name: str, window: int, model: Model, text: Text) -> Design:
    return Design(
        name=name,
        text=text,
        model=model,
        training=replace(TRAINING, window=window),
        seeds=(1, 2, 3, 4, 5),
        attack=None,
        rewind=None,
        freeze=None,
    )


def _roles() -> tuple[Design, ...]:
    """Items with attributes, and a question: labels of questions for queries, of items for keys and values."""
    question, item = (tuple(f"{of}.{name}" for name in "abc") for of in ("question", "item"))
    model = Model(width=32, layers=2, heads=1, feedforward=32, dropout=0.0, idle=(1,))
    grids = Grid(_sites(2, "q"), question), Grid(_sites(2, "kv"), item)
    return _study(_world("roles", 6, model, Text("roles")), grids, ("bounded", "site", "bounded+site", "control"))


def _induction() -> tuple[Design, ...]:
    """What came after this key before? A label is the word itself, so that a control label, which every word draws by
    chance, would be no other.
    """
    question, value = (tuple(f"{of}.{name}" for name in ("own", "before")) for of in ("question", "value"))
    model = Model(width=32, layers=3, heads=1, feedforward=32, dropout=0.0, idle=(3,))
    first = Grid(_sites(1, "v"), ("key.own", "value.own"))
    grids = Grid(_sites(2, "q"), question), Grid(_sites(2, "kv"), value), first
    return _study(_world("induction", 10, model, Text("induction")), grids, ("bounded", "site", "bounded+site"))


def _brief(designs: tuple[Design, ...]) -> tuple[Design, ...]:
    """The same in two minutes: what needs no further training with all seeds, attacks with two of them and the strength 1."""
    whole = [replace(one, name=f"{one.name}-quick", training=replace(one.training, epochs=4)) for one in designs]
    first, second = whole
    trained = replace(first, attack=None, control=None, tie=None, probe=None)
    erased = replace(second, attack=None, control=None, probe=None)
    bare = {
        "rewind": None,
        "freeze": None,
        "tie": None,
        "probe": None,
        "erase": None,
        "ablate": None,
        "interchange": None,
    }
    attacked = (
        replace(
            one,
            seeds=(1, 2),
            attack=one.attack and replace(one.attack, strengths=(1.0,)),
            control=one.control and replace(one.control, variants=("bounded+site",)),
            **bare,
        )
        for one in whole
    )
    return (trained, erased, *attacked)


ROLES, INDUCTION = _roles(), _induction()
PLANTED = (ROLES, _brief(ROLES), INDUCTION)
