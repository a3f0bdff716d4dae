"""Design and Run: frozen, hashable statements of experiments, and the records that a study stores as JSON.

Machine settings (core.machine) are not part of ids.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cached_property, reduce
from itertools import product
from operator import not_
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import TypedDict

from trisect.core import schema
from trisect.core.edits import AnyEdit, Edit, check_site, make_edit
from trisect.core.errors import require, shorten
from trisect.core.files import canonical, digest
from trisect.core.machine import PRECISIONS
from trisect.core.methods import METHODS, Ablate, Attack, Control, Erase, Freeze, Interchange, Probe, Rewind, Tie
from trisect.core.schema import MAX_FLEET, Each, Many, Some, one_of, record, to_json_data
from trisect.core.site import Site

SCHEMA: Literal[1] = 1
OmittedIfEmpty = Field(exclude_if=not_)  # left out of JSON, so that ids from before such a field stay the same


@record
class Model:
    """Sizes of the language model (definitions A2): post-LN encoder layers with a causal mask.

    In the layers of `idle` the attention block adds nothing, in training and evaluation.
    """

    width: Annotated[int, Field(ge=1, le=schema.MODEL_BOUNDS["width"])] = 200
    layers: Annotated[int, Field(ge=1, le=schema.MODEL_BOUNDS["layers"])] = 5
    heads: Annotated[int, Field(ge=1, le=schema.MODEL_BOUNDS["heads"])] = 5
    feedforward: Annotated[int, Field(ge=1, le=schema.MODEL_BOUNDS["feedforward"])] = 200
    dropout: Annotated[float, Field(ge=0, le=0.99)] = 0.2
    idle: Annotated[Many[int], OmittedIfEmpty] = ()

    def __post_init__(self) -> None:
        require(
            self.width % self.heads == 0,
            f"{self.heads} heads do not divide a width of {self.width}.",
            "Each head takes an equal slice of the width.",
            f"Use for example {self.heads} heads with a width of {self.heads * max(1, self.width // self.heads)}.",
        )
        require(
            self.width % 2 == 0, f"width is {self.width}.", "Sinusoidal positions come in pairs.", "Use an even width."
        )
        ok = tuple(sorted(set(self.idle) & set(range(1, self.layers + 1)))) == self.idle
        reason = f"It has distinct layers from 1 to {self.layers}, in ascending order."
        require(ok, f"idle is {list(self.idle)}.", reason, "Leave it out, or give such layers.")


@record
class Training:
    """Training of all runs (definitions A1, A2): windows of `window` rows over `columns` parallel columns.

    `warmup` counts steps, `decay` multiplies the rate after each epoch, `clip` bounds each member's gradient norm.
    `train_sample` is the number of train tokens (whole windows) on which `train` losses are measured; None is all.
    """

    epochs: Annotated[int, Field(ge=1, le=schema.TRAINING_BOUNDS["epochs"])] = 200
    columns: Annotated[int, Field(ge=1, le=schema.TRAINING_BOUNDS["columns"])] = 20
    eval_columns: Annotated[int, Field(ge=1, le=schema.TRAINING_BOUNDS["eval_columns"])] = 10
    window: Annotated[int, Field(ge=1, le=schema.TRAINING_BOUNDS["window"])] = 35
    optimizer: Annotated[str, one_of("sgd", "adamw")] = "sgd"
    rate: Annotated[float, Field(gt=0)] = 5.0
    decay: Annotated[float, Field(gt=0)] = 0.95
    warmup: Annotated[int, Field(ge=0, le=schema.MAX_INT)] = 0
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    clip: Annotated[float, Field(gt=0)] = 0.5
    train_sample: Annotated[int | None, Field(ge=1, le=schema.MAX_INT)] = 100_000


@record
class Text:
    """The text, its number of tokens per split, and the least count of a type that is kept.

    `corpus` is 'embedded', another built-in text, a folder, or None if the user has to name one.
    Types seen fewer than `min_count` times in the (cut) train split become <unk>.
    """

    corpus: str | None = "embedded"
    train_tokens: Annotated[int | None, Field(ge=2, le=schema.MAX_INT)] = None
    valid_tokens: Annotated[int | None, Field(ge=2, le=schema.MAX_INT)] = None
    min_count: Annotated[int, Field(ge=1, le=schema.MAX_INT)] = 1


@record
class Design:
    """Interventions, sites, text and seeds of an experiment. None leaves an intervention out.

    `edits` are further edits, of any registered kind, each with one run per seed.
    """

    name: str
    text: Text = Text()
    model: Model = Model()
    training: Training = Training()
    seeds: Each[Annotated[int, Field(ge=0, le=schema.MAX_SEED)]] = (1, 2, 3)
    attack: Attack | None = Attack()
    rewind: Rewind | None = Rewind()
    freeze: Freeze | None = Freeze()
    control: Control | None = None
    tie: Tie | None = None
    probe: Probe | None = None
    erase: Erase | None = None
    edits: Annotated[Many[AnyEdit], OmittedIfEmpty] = ()
    ablate: Annotated[Ablate | None, OmittedIfEmpty] = None
    interchange: Annotated[Interchange | None, OmittedIfEmpty] = None

    def __post_init__(self) -> None:
        require(
            bool(re.fullmatch(r"[\w.-]+", self.name)) and len(self.name) <= schema.MAX_NAME,
            f"{shorten(self.name)} is not a name.",
            f"Names are up to {schema.MAX_NAME} letters, digits, '.', '_', '-'.",
            "Rename it.",
        )
        last = self.attack.epochs if self.attack and self.attack.epochs else 0
        require(
            last <= self.training.epochs,
            f"Attacks last {last} epochs and the baseline {self.training.epochs}.",
            "An attack is compared with the baseline at its own last epoch.",
            f"Give the attack at most {self.training.epochs} epochs, or the training more.",
        )

    def resolved(self) -> Design:
        """The same experiment with all sites resolved in the model; raises SiteError for sites outside it."""
        shape = (self.model.layers, self.model.heads)

        def fit(sites: tuple[Site, ...], method: str) -> tuple[Site, ...]:
            return tuple(dict.fromkeys(check_site(s.resolve(*shape), method) for s in sites))

        parts: dict[str, Any] = {}
        for method in METHODS:
            part = getattr(self, method)
            if part is not None and part.sites is not None:
                parts[method] = replace(part, sites=fit(part.sites, method))
        if self.tie:
            parts["tie"] = replace(parts["tie"], identity=fit(self.tie.identity, "identity"))
        edits = tuple(dict.fromkeys(replace(e, site=e.site.resolve(*shape)) for e in self.edits))
        return replace(self, **parts, edits=edits)

    def runs(self, corpus: str) -> Iterator[Run]:
        """All runs, baselines first within each seed; `corpus` is the fingerprint of the cut text.

        Edits without a label come before attacks and their controls, of which those of one label follow one another.
        """
        fitted = self.resolved()
        edits = [make_edit("freeze", site) for site in (fitted.freeze.sites if fitted.freeze else ())]
        if fitted.tie:
            fewer = [make_edit("tie", site) for site in fitted.tie.sites]
            fewer += [make_edit("identity", site) for site in fitted.tie.identity]
            edits += [*fewer, *(narrow_heads(fitted.model, edit) for edit in fewer if fitted.tie.narrow)]
        if fitted.attack:
            for label, strength, site in product(fitted.attack.labels, fitted.attack.strengths, fitted.attack.sites):
                edits.append(make_edit("attack", site, {"label": label, "strength": strength}))
        if fitted.control:
            for label, variant, site in product(fitted.control.labels, fitted.control.variants, fitted.control.sites):
                settings = {"label": label, "strength": fitted.control.strength, "variant": variant}
                edits.append(make_edit("attack", site, settings))
        last = fitted.attack.epochs if fitted.attack and fitted.attack.epochs else fitted.training.epochs
        short = replace(fitted.training, epochs=last)
        for seed in fitted.seeds:
            yield Run(corpus, fitted.model, fitted.training, seed)
            for edit in dict.fromkeys((*edits, *fitted.edits)):
                training = fitted.training if edit.column is None else short
                yield Run(corpus, fitted.model, training, seed, edit)


def narrow_heads(model: Model, edit: Edit) -> Edit:
    """Separate matrices of narrower heads with nearly as many parameters as a tie or an identity.

    Per layer, attention of D x D matrices and biases has 4D² + 4D parameters, each matrix saved takes D² + D of them,
    and heads of E' dimensions (H of them) have 4DHE' + 3HE' + D.
    """
    site, wide, heads = edit.site, model.width, model.heads
    saved = len(site.components) - {"tie": 1, "identity": 0}[edit.kind]  # no other kind saves a matrix
    share = len(site.heads) / heads if site.heads else 1.0
    left = 4 * wide * wide + 4 * wide - saved * share * (wide * wide + wide)
    width = round((left - wide) / ((4 * wide + 3) * heads))
    return make_edit("narrow", Site(("q", "k", "v"), site.layers), {"width": max(1, min(width, wide // heads))})


@record
class Run:
    """A trained model, identified by its content: text, model, training, seed, and edit."""

    corpus: str
    model: Model
    training: Training
    seed: int
    edit: AnyEdit | None = None
    schema: Literal[1] = SCHEMA

    @property
    def id(self) -> str:
        """A readable name with eight hex digits of the hash of the whole statement, defaults included."""
        slug = self.edit.slug if self.edit else "baseline"
        return f"{slug}-s{self.seed}-{digest(canonical(to_json_data(self)), 4)}"


def read_experiment(data: object, where: str | Path) -> Design:
    """Read a Design from the JSON-ready data of `plain`; raises SpecError naming `where`."""
    return schema.read(Design, {"name": "experiment", **data} if isinstance(data, dict) else data, where)


# fields of methods in which the designs of one study may differ
MERGEABLE = ("sites", "labels", "strengths", "variants", "identity", "midstage")


@record
class Ledger:
    """The requests of all calls of a study, and the runs that are trained side by side.

    `corpus` is the fingerprint of its text as cut, `fleet` how many runs are trained side by side at most, `step` the
    revision of the training step.
    """

    corpus: str
    asked: Some[Design]
    fleets: Many[Many[str]]
    fleet: Annotated[int, Field(ge=1, le=MAX_FLEET)]
    precision: Annotated[str, one_of(*PRECISIONS)]
    step: Annotated[int, Field(ge=1)]

    def __post_init__(self) -> None:
        joint = self.asked[0]
        for design in self.asked[1:]:
            differ = differences(joint, design)
            require(
                not differ,
                f"Its designs differ in {'; '.join(differ)}.",
                "Designs of one study share these.",
                "Make two studies.",
            )
            joint = union(joint, design)
        trained = sorted(run for fleet in self.fleets for run in fleet)
        odd = sorted({*trained} ^ self.runs.keys())
        reason = f"{odd[0]} is only in one of them." if odd else "A run is in two fleets."
        require(
            trained == sorted(self.runs), "Its fleets are not the runs of its designs.", reason, "Make another study."
        )

    @cached_property
    def runs(self) -> dict[str, Run]:
        """All requested runs, by id."""
        return {run.id: run for design in self.asked for run in design.runs(self.corpus)}

    @cached_property
    def experiment(self) -> Design:
        """All requests as one design."""
        return reduce(union, self.asked)


def differences(earlier: Design, later: Design) -> list[str]:
    """Why two designs cannot belong to one study: differences in anything but runs, evaluations and text."""
    differing = []
    for name in ("model", "training", *(name for name in METHODS if name not in ("control", "tie"))):
        a, b = getattr(earlier, name), getattr(later, name)
        for field in fields(a) if a is not None and b is not None else ():
            old, new = getattr(a, field.name), getattr(b, field.name)
            if (name, field.name) == ("attack", "epochs"):
                old, new = old or earlier.training.epochs, new or later.training.epochs
            unused = (name, field.name) == ("rewind", "sample_seed") and getattr(a, "sample_tokens", None) is None
            is_open = field.name in MERGEABLE and (name, field.name) != ("probe", "sites")
            if old != new and not unused and not is_open:
                differing.append(f"{name}.{field.name} (there {old!r}, here {new!r})")
    return differing


def union(old: Design, new: Design) -> Design:
    """The union of two designs of one study; lists keep their order, new members last."""
    parts: dict[str, Any] = {}
    for name in METHODS:
        a, b = getattr(old, name), getattr(new, name)
        parts[name] = b if a is None else a
        if a is not None and b is not None:
            pairs = {item.name: (getattr(a, item.name), getattr(b, item.name)) for item in fields(a)}
            joined = {
                field: tuple(dict.fromkeys((*x, *y))) if isinstance(x, tuple) and isinstance(y, tuple) else x or y
                for field, (x, y) in pairs.items()
            }
            parts[name] = replace(a, **joined)
    edits, seeds = tuple(dict.fromkeys((*old.edits, *new.edits))), tuple(sorted({*old.seeds, *new.seeds}))
    return replace(new, name=old.name, seeds=seeds, edits=edits, **parts)


@record
class FinishedRun:
    """Content of a finished run's file; `metrics` are rows of epoch, split, name and value.

    `numerics`, `products` and `processor` identify the floating-point arithmetic; `recorded` is whether the passes were replayed
    as a CUDA graph.
    """

    spec: Run
    status: str
    diverged_step: int | None
    parameters: int
    versions: dict[str, str]
    claims_hash: str
    revision: int
    device: str
    precision: str
    products: str
    numerics: str
    processor: str
    recorded: bool
    wall_seconds: float
    metrics: tuple[tuple[int, str, str, float | None], ...]


class CorpusData(TypedDict, total=False):
    """The record of a study's text: tokens of each split, class names of each label column."""

    name: str
    fingerprint: str
    types: int
    splits: dict[str, int]
    labels: dict[str, list[str]]
    notes: list[str]


class StudyAbout(TypedDict, total=False):
    """The record beside a study's tables; the experiment is a Design as JSON, seconds are of all calls."""

    corpus: CorpusData
    experiment: Any
    device: str
    precision: str
    wall_seconds: float
    command: str
    versions: dict[str, str]
