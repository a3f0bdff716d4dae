"""Experiment and Run: frozen, hashable statements of what is run; Machine: how, which is never part of an id."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from trisect.core.edits import Edit, studied
from trisect.core.errors import SpecError
from trisect.core.files import canonical, digest
from trisect.core.site import Site
from trisect.core.typed import settle

SCHEMA = 1
METHODS = ("attack", "rewind", "freeze")
PAPER_SITES = tuple(Site((c,), (layer,)) for layer in range(1, 6) for c in ("q", "k", "v"))


def _need(ok: bool, given: str, known: str, todo: str) -> None:
    if not ok:
        raise SpecError(given, known, todo)


def _whole(value: Any, name: str, least: int) -> None:
    ok = isinstance(value, int) and not isinstance(value, bool) and value >= least
    _need(ok, f"{name} is {value!r}.", f"It is a whole number, {least} or more.", f"Give {name} as {least} or more.")


@dataclass(frozen=True)
class Model:
    """Shape of the language model (science A2): post-LN encoder layers with a causal mask; widths in floats."""

    width: int = 200
    layers: int = 5
    heads: int = 5
    feedforward: int = 200
    dropout: float = 0.2

    def __post_init__(self) -> None:
        settle(self)
        for name in ("width", "layers", "heads", "feedforward"):
            _whole(getattr(self, name), name, 1)
        _need(
            self.width % self.heads == 0,
            f"{self.heads} heads do not divide a width of {self.width}.",
            "Each head takes an equal slice of the width.",
            f"Use for example {self.heads} heads with a width of {self.heads * max(1, self.width // self.heads)}.",
        )
        _need(
            self.width % 2 == 0, f"width is {self.width}.", "Sinusoidal positions come in pairs.", "Use an even width."
        )
        _need(
            0 <= self.dropout <= 0.99,
            f"dropout is {self.dropout!r}.",
            "It is a share from 0 to 0.99.",
            "Use for example 0.2.",
        )


@dataclass(frozen=True)
class Training:
    """How every run is trained (science A1, A2): windows of `window` rows over `columns` parallel columns.

    `warmup` counts steps, `decay` multiplies the rate after each epoch, `clip` bounds each member's gradient norm.
    `train_sample` is the number of train tokens (whole windows) on which `train` losses are measured; null is all.
    """

    epochs: int = 200
    columns: int = 20
    eval_columns: int = 10
    window: int = 35
    optimizer: str = "sgd"
    rate: float = 5.0
    decay: float = 0.95
    warmup: int = 0
    weight_decay: float = 0.0
    clip: float = 0.5
    train_sample: int | None = 100_000

    def __post_init__(self) -> None:
        settle(self)
        for name in ("epochs", "columns", "eval_columns", "window"):
            _whole(getattr(self, name), name, 1)
        _whole(self.warmup, "warmup", 0)
        known = ("sgd", "adamw")
        _need(
            self.optimizer in known,
            f"optimizer is {self.optimizer!r}.",
            f"There is {' and '.join(known)}.",
            "Use one of them.",
        )
        for name in ("rate", "decay", "clip"):
            value = getattr(self, name)
            _need(
                0 < value < float("inf"),
                f"{name} is {value!r}.",
                "It is a finite number above 0.",
                f"Give such a {name}.",
            )
        _need(
            0 <= self.weight_decay < float("inf"),
            f"weight_decay is {self.weight_decay!r}.",
            "It is 0 or more.",
            "Use for example 0.01.",
        )
        if self.train_sample is not None:
            _whole(self.train_sample, "train_sample", 1)


@dataclass(frozen=True)
class Text:
    """Which text, and how much of it: a token budget per split, and the least count a type needs to be kept.

    `corpus` is 'embedded', a folder, or null where one is still to be named.
    Types seen fewer than `min_count` times in the (cut) train split become <unk>.
    """

    corpus: str | None = "embedded"
    train_tokens: int | None = None
    valid_tokens: int | None = None
    min_count: int = 1

    def __post_init__(self) -> None:
        settle(self)
        for name in ("train_tokens", "valid_tokens"):
            if getattr(self, name) is not None:
                _whole(getattr(self, name), name, 2)
        _whole(self.min_count, "min_count", 1)


@dataclass(frozen=True)
class Attack:
    """Experiment 1 (science A4): every site × label × strength. `epochs` of null means as many as the training has."""

    sites: tuple[Site, ...] = PAPER_SITES
    labels: tuple[str, ...] = ("pos", "dep")
    strengths: tuple[float, ...] = (1.0,)
    epochs: int | None = None

    def __post_init__(self) -> None:
        settle(self)
        if self.epochs is not None:
            _whole(self.epochs, "epochs", 1)
        empty = [n for n in ("sites", "labels", "strengths") if not getattr(self, n)]
        _need(
            not empty,
            f"The attack has no {' and no '.join(empty)}.",
            "It needs at least one of each.",
            "Name some, or leave attack out.",
        )
        for name in ("labels", "strengths"):
            values = getattr(self, name)
            _need(len(set(values)) == len(values), f"{name} are {values}.", "One stands twice.", "Name each once.")


@dataclass(frozen=True)
class Rewind:
    """Experiments 2a and 2b (science A5, A6): convex rewinding at steps of 1/(points − 1), and every stored epoch.

    `epsilon` is the share of the final loss that counts as a drop. `mode` 'adaptive' interpolates the smooth loss
    between as many exact evaluations as its own check asks for, and is exact at the crossings; 'exact' evaluates all.
    `sample_tokens` of each split, in whole rows drawn once by `sample_seed`, stand for all of them: the same rows at
    every point and site, so that each rise of the loss has an interval; null evaluates every row.
    """

    sites: tuple[Site, ...] = PAPER_SITES
    points: int = 101
    epsilon: float = 0.01
    midstage: bool = True
    mode: str = "adaptive"
    sample_tokens: int | None = None
    sample_seed: int = 0

    def __post_init__(self) -> None:
        settle(self)
        known = ("adaptive", "exact")
        _need(self.mode in known, f"mode is {self.mode!r}.", f"There is {' and '.join(known)}.", "Use one of them.")
        _whole(self.points, "points", 2)
        if self.sample_tokens is not None:
            _whole(self.sample_tokens, "sample_tokens", 2)
        _whole(self.sample_seed, "sample_seed", 0)
        _need(
            0 < self.epsilon < 1,
            f"epsilon is {self.epsilon!r}.",
            "It is a share of the final loss.",
            "Use for example 0.01.",
        )
        _need(
            bool(self.sites), "The rewinding has no sites.", "It needs at least one.", "Name some, or leave rewind out."
        )


@dataclass(frozen=True)
class Freeze:
    """Experiment 2c (science A7): each site's weights keep their initial values."""

    sites: tuple[Site, ...] = PAPER_SITES

    def __post_init__(self) -> None:
        settle(self)
        _need(
            bool(self.sites), "The freezing has no sites.", "It needs at least one.", "Name some, or leave freeze out."
        )


@dataclass(frozen=True)
class Experiment:
    """What is done, where, on which text, with which seeds. Leave an intervention out by giving null for it."""

    name: str
    text: Text = Text()
    model: Model = Model()
    training: Training = Training()
    seeds: tuple[int, ...] = (1, 2, 3)
    attack: Attack | None = Attack()
    rewind: Rewind | None = Rewind()
    freeze: Freeze | None = Freeze()

    def __post_init__(self) -> None:
        settle(self)
        _need(
            bool(re.fullmatch(r"[\w.-]+", self.name)),
            f"{self.name!r} is not a name.",
            "Names are letters, digits, '.', '_', '-'.",
            "Rename it.",
        )
        _need(
            len(self.seeds) > 0,
            "There are no seeds.",
            "A study needs at least one.",
            "Give for example seeds 1, 2 and 3.",
        )
        for seed in self.seeds:
            _whole(seed, "seed", 0)
        _need(
            len(set(self.seeds)) == len(self.seeds),
            f"seeds are {self.seeds}.",
            "One of them stands twice.",
            "Name each seed once.",
        )
        _need(max(self.seeds) < 2**63, f"A seed is {max(self.seeds)}.", "Seeds are below 2^63.", "Use a smaller one.")
        last = self.attack.epochs if self.attack and self.attack.epochs else 0
        _need(
            last <= self.training.epochs,
            f"Attacks last {last} epochs and the baseline {self.training.epochs}.",
            "An attack is compared with the baseline at its own last epoch.",
            f"Give the attack at most {self.training.epochs} epochs, or the training more.",
        )

    def resolved(self) -> Experiment:
        """The same experiment with every site counted out against the model; raises SiteError outside it."""
        shape = (self.model.layers, self.model.heads)

        def fit(part: Any, verb: str) -> Any:
            places = (studied(s.resolve(*shape), verb) for s in part.sites) if part else ()
            return part and replace(part, sites=tuple(dict.fromkeys(places)))

        return replace(self, **{verb: fit(getattr(self, verb), verb) for verb in METHODS})

    def runs(self, corpus: str) -> Iterator[Run]:
        """Every run, baselines first within each seed; `corpus` is the fingerprint of the text as cut."""
        whole = self.resolved()
        training = whole.training
        for seed in whole.seeds:
            yield Run(corpus, whole.model, training, seed)
            for site in whole.freeze.sites if whole.freeze else ():
                yield Run(corpus, whole.model, training, seed, Edit("freeze", site))
            if whole.attack:
                short = replace(training, epochs=whole.attack.epochs or training.epochs)
                for label in whole.attack.labels:
                    for strength in whole.attack.strengths:
                        for site in whole.attack.sites:
                            yield Run(corpus, whole.model, short, seed, Edit("attack", site, label, float(strength)))


@dataclass(frozen=True)
class Run:
    """One thing that can be trained, named by its content: text, model, training, seed, and what is edited."""

    corpus: str
    model: Model
    training: Training
    seed: int
    edit: Edit | None = None

    @property
    def id(self) -> str:
        """Readable slug and eight hex digits of the hash of the whole statement, defaults included."""
        slug = self.edit.slug if self.edit else "baseline"
        return f"{slug}-s{self.seed}-{digest(canonical(plain(self)), 4)}"


@dataclass(frozen=True)
class Machine:
    """How runs are run; nothing here enters an id, and only `precision` changes what is measured.

    `workers` of 0 runs everything in this process; null chooses one one-thread worker a core (one in all on a GPU).
    `precision` is of the factors in training's large products (bfloat16 on GPUs only), one for all of a study; evaluation
    is in float32 always.
    `track` names what finished runs are logged to besides: wandb, trackio or tensorboard.
    """

    device: str = "auto"
    workers: int | None = None
    quiet: bool = False
    precision: str = "float32"
    track: str | None = None

    def __post_init__(self) -> None:
        settle(self)
        known = ("auto", "cpu", "cuda")
        _need(
            self.device in known,
            f"{self.device!r} is not a device.",
            f"Devices are {', '.join(known)}.",
            "Use one of them.",
        )
        precisions = ("float32", "bfloat16")
        _need(
            self.precision in precisions,
            f"{self.precision!r} is not a precision.",
            f"There is {' and '.join(precisions)}.",
            "Use one of them.",
        )
        if self.workers is not None:
            _whole(self.workers, "workers", 0)

    def cores(self) -> int:
        """How many processor cores this process may use."""
        return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def plain(value: Any) -> Any:
    """A spec as JSON-ready data: sites as their canonical spelling, the schema number beside a run."""
    if isinstance(value, Site):
        return str(value)
    if isinstance(value, Run):
        return {"schema": SCHEMA, **{f.name: plain(getattr(value, f.name)) for f in fields(value)}}
    if isinstance(value, (Experiment, Attack, Rewind, Freeze, Edit)):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, (Model, Training, Text)):
        return asdict(value)
    if isinstance(value, (tuple, list)):
        return [plain(v) for v in value]
    return value


_PARTS = {"text": Text, "model": Model, "training": Training, "attack": Attack, "rewind": Rewind, "freeze": Freeze}


def read_experiment(data: Any, where: str | Path) -> Experiment:
    """An Experiment from JSON-ready data, as `plain` gives it; raises SpecError naming `where` for what does not fit."""
    known = {f.name for f in fields(Experiment)}
    _need(
        isinstance(data, dict),
        f"{where} does not hold an experiment.",
        "An experiment is a JSON object.",
        f"Its keys are {', '.join(sorted(known))}.",
    )
    _refuse(set(data) - known, known, where)
    values: dict[str, Any] = {"name": "experiment"}
    for key, value in data.items():
        if key in _PARTS and value is not None:
            kind = _PARTS[key]
            names = {f.name for f in fields(kind)}
            _need(
                isinstance(value, dict),
                f"{key} in {where} is {value!r}.",
                "It is a JSON object.",
                f"Its keys are {', '.join(sorted(names))}.",
            )
            _refuse(set(value) - names, names, f"{key} in {where}")
            parts = {k: tuple(v) if isinstance(v, list) else v for k, v in value.items()}
            if isinstance(parts.get("sites"), tuple):
                parts["sites"] = tuple(Site.parse(s) for s in parts["sites"])
            values[key] = kind(**parts)
        else:
            values[key] = tuple(value) if isinstance(value, list) else value
    return Experiment(**values)


def read_run(data: dict[str, Any]) -> Run:
    """The Run that `plain` gave as data."""
    edit = data["edit"] and Edit(**{**data["edit"], "site": Site.parse(data["edit"]["site"])})
    return Run(data["corpus"], Model(**data["model"]), Training(**data["training"]), data["seed"], edit)


def _refuse(unknown: set[str], known: set[str], where: object) -> None:
    _need(
        not unknown,
        f"{where} has {', '.join(sorted(unknown))}.",
        f"Known are {', '.join(sorted(known))}.",
        "Mend or remove the others.",
    )
