"""Made-up tables of a study whose truth is known: runs, metrics and sites with planted effects.

Import it from any test as `from tests.synthetic import study_tables, about`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from trisect import claims
from trisect.core import methods, spec
from trisect.core.tables import SCHEMAS, frame
from trisect.lm.edits import NarrowEdit

INIT = {"train": 6.00, "valid": 6.05}
FINAL = {"train": 3.00, "valid": 3.40}
UNIGRAM = {"train": 5.00, "valid": 5.05}
TOKENS = {"train": 20_000, "valid": 4_000}
EPSILON = 0.01
POINTS = 101
CORPUS = "0123456789abcdef"

Key = tuple[str, str]


def plausible(layers: int, labels: Sequence[str]) -> dict[str, float]:
    """Effects that look like a study's: v matters most, upper layers more than lower ones, freezing does little."""
    effects: dict[str, float] = {}
    for layer in range(1, layers + 1):
        for component, weight in (("q", 0.10), ("k", 0.12), ("v", 0.60)):
            site = f"{component}@{layer}"
            for label in labels:
                effects[f"attack-{label}-{site}/train"] = weight * (0.5 + 0.4 * layer)
                effects[f"attack-{label}-{site}/valid"] = weight * (0.4 * layer - 0.6)
            effects[f"freeze-{site}/train"] = 0.08 / layer
            effects[f"freeze-{site}/valid"] = 0.05 / layer
            effects[f"rewind-{site}"] = weight * layer
            effects[f"midstage-{site}"] = weight * layer
    return effects


def experiment(
    seeds: Sequence[int] = (1, 2, 3), epochs: int = 8, layers: int = 5, labels: Sequence[str] = ("pos", "dep")
) -> spec.Design:
    """The experiment that the made-up tables would come from: {q, k, v} × layers, every label, strength 1."""
    sites = tuple(spec.Site((c,), (layer,)) for layer in range(1, layers + 1) for c in ("q", "k", "v"))
    return spec.Design(
        name="synthetic",
        model=spec.Model(width=40, layers=layers, heads=4, feedforward=40),
        training=spec.Training(epochs=epochs),
        seeds=tuple(seeds),
        attack=spec.Attack(sites=sites, labels=tuple(labels)),
        rewind=spec.Rewind(sites=sites, points=POINTS, epsilon=EPSILON),
        freeze=spec.Freeze(sites=sites),
    )


DECIDING = tuple(spec.Site((c,), (layer,)) for layer in (1, 5) for c in ("q", "k", "v"))


def controlled(experiment: spec.Design) -> spec.Design:
    """The same experiment with controls at six sites on part of speech, ties in all layers, probes and erasure."""
    return replace(
        experiment,
        control=methods.Control(DECIDING, ("pos",)),
        tie=methods.Tie(),
        probe=methods.Probe(DECIDING, ("pos",), ("linear",)),
        erase=methods.Erase(DECIDING, ("pos",), draws=3),
    )


def study_tables(
    seeds: Sequence[int] = (1, 2, 3),
    epochs: int = 8,
    layers: int = 5,
    labels: Sequence[str] = ("pos", "dep"),
    effects: Mapping[str, float] | None = None,
    spread: float = 0.01,
    generator_seed: int = 0,
    whole: spec.Design | None = None,
) -> dict[str, pl.DataFrame]:
    """Tables `runs`, `metrics` and `sites` as a finished study would have written them.

    `effects` in nats; what it does not name is 0, and null means `plausible`. Its keys:
    `attack-LABEL-SITE/SPLIT` and `freeze-SITE/SPLIT` (final loss minus the baseline's), `rewind-SITE` and
    `midstage-SITE` (rise of the loss with the initial weights), `criticality-SITE` (instead of the one that follows
    from the rise), `pace-SLUG` (added to 3, the pace at which a run's loss falls), and `self_only` (cost of cutting
    attention to the token itself; 0.5 when not named).
    `spread` is the standard deviation over seeds of every effect; seeds also share a common shift of 0.1 nats.
    `whole` is another experiment than `experiment` gives: its runs of every kind, with probes and erasure where it has
    them, whose keys are `bits-SLUG-SITE` (bits that a probe of the run SLUG finds there; 1 when not named),
    `erase-SITE` and `random-SITE` (rises). The same tables are made once in a process.
    """
    planted = plausible(layers, labels) if effects is None else effects
    asked = whole or experiment(seeds, epochs, layers, labels)
    return dict(_made(asked, tuple(seeds), layers, tuple(planted.items()), spread, generator_seed))


class _Planted(NamedTuple):
    """Effects by their keys, and how they differ over seeds."""

    effects: Mapping[str, float]
    spread: float
    generator: np.random.Generator

    def draw(self, key: str, default: float = 0.0, spread: float = 1.0) -> float:
        """One seed's value of an effect; `spread` multiplies the usual standard deviation."""
        return self.effects.get(key, default) + spread * self.spread * self.generator.standard_normal()


@lru_cache(maxsize=32)
def _made(
    asked: spec.Design,
    seeds: tuple[int, ...],
    layers: int,
    effects: tuple[tuple[str, float], ...],
    spread: float,
    generator_seed: int,
) -> dict[str, pl.DataFrame]:
    planted, claims_hash = _Planted(dict(effects), spread, np.random.default_rng(generator_seed)), claims.claims_hash()
    runs: list[dict[str, Any]] = []
    metrics, sites = _Columns("metrics"), _Columns("sites")
    shifts = {seed: 0.1 * planted.generator.standard_normal() for seed in seeds}
    for run in asked.runs(CORPUS):
        identity = run.id
        runs.append(_run_row(run, identity, claims_hash))
        slug = run.edit.slug if run.edit else "baseline"
        ends: dict[str, float] = {}
        for split in ("train", "valid"):
            key = f"{slug}/{split}"
            effect = planted.draw(key) if run.edit else planted.effects.get(key, 0.0)
            ends[split] = FINAL[split] + shifts[run.seed] + effect
        pace = 3 + planted.draw(f"pace-{slug}", spread=5)
        _add_metrics(metrics, run, identity, ends, pace)
        if run.edit is None:
            _add_sites(sites, run, identity, ends, layers, planted)
        if asked.probe and slug.partition("-")[0] in ("baseline", "attack"):
            _add_probes(sites, asked.probe, identity, slug, planted)
        if asked.erase and run.edit is None:
            _add_erasure(sites, asked.erase, identity, planted)
    return {"runs": frame("runs", runs), "metrics": metrics.frame(), "sites": sites.frame()}


def about(
    seeds: Sequence[int] = (1, 2, 3),
    epochs: int = 8,
    layers: int = 5,
    labels: Sequence[str] = ("pos", "dep"),
    whole: spec.Design | None = None,
) -> Any:
    """What stands beside the tables of a study: the experiment, the corpus, the device and the versions."""
    classes = {"pos": ["NOUN", "VERB", "DET"], "dep": ["nsubj", "obj", "root"]}
    return {
        "experiment": spec.to_json_data(whole or experiment(seeds, epochs, layers, labels)),
        "corpus": {
            "name": "synthetic",
            "fingerprint": CORPUS,
            "types": 300,
            "splits": dict(TOKENS),
            "labels": {label: classes.get(label, ["one", "two"]) for label in labels},
            "notes": ["These numbers are made up."],
        },
        "device": "cpu",
        "versions": {"trisect": "0.1.0"},
        "command": "trisect study experiment.json --out out",
        "wall_seconds": 12.5,
    }


def with_curve(
    tables: Mapping[str, pl.DataFrame], slug: str, split: str, values: Sequence[float], name: str = "loss_nats"
) -> dict[str, pl.DataFrame]:
    """The same tables with the curve of every run of that slug (`baseline`, `attack-pos-k@1`, …) replaced."""
    metrics = tables["metrics"]
    chosen = pl.col("run").str.starts_with(f"{slug}-s") & (pl.col("split") == split) & (pl.col("name") == name)
    names = metrics.filter(chosen)["run"].unique().sort()
    rows = [
        {"run": run, "epoch": epoch, "split": split, "name": name, "value": float(value)}
        for run in names
        for epoch, value in enumerate(values)
    ]
    return {**tables, "metrics": frame("metrics", [*metrics.filter(~chosen).to_dicts(), *rows])}


def diverged(tables: Mapping[str, pl.DataFrame], run: str, epoch: int) -> dict[str, pl.DataFrame]:
    """The same tables with that run's status "diverged" and no rows of its after `epoch`."""
    mine = pl.col("run") == run
    status = pl.when(mine).then(pl.lit("diverged")).otherwise(pl.col("status")).alias("status")
    return {
        **tables,
        "runs": tables["runs"].with_columns(status),
        "metrics": tables["metrics"].filter(~(mine & (pl.col("epoch") > epoch))),
    }


def _run_row(run: spec.Run, identity: str, claims_hash: str) -> dict[str, Any]:
    edit = run.edit
    return {
        "run": identity,
        "edit": edit.kind if edit else "none",
        "site": str(edit.site) if edit else None,
        "label": edit.setting("label") if edit else None,
        "strength": edit.setting("strength") if edit else None,
        "variant": edit.setting("variant") if edit else None,
        "seed": run.seed,
        "epochs": run.training.epochs,
        "status": "finished",
        "parameters": _parameters(run),
        "corpus": f"synthetic:{run.corpus}",
        "device": "cpu",
        "wall_seconds": 1.5,
        "versions": '{"torch": "9.9.9", "trisect": "0.1.0"}',
        "claims_hash": claims_hash,
    }


def _parameters(run: spec.Run) -> int:
    """As many as that: 1,640 for each matrix with its bias that is there, and what is narrower has its share of four."""
    edit, layers = run.edit, run.model.layers
    if edit is None or edit.kind in ("attack", "freeze"):
        return 112_345
    touched = len(edit.site.layers or range(layers))
    if isinstance(edit, NarrowEdit):
        kept = edit.width * run.model.heads / run.model.width
        return 112_345 - round(touched * 4 * 1_640 * (1 - kept))
    return 112_345 - touched * 1_640 * (len(edit.site.components) - (edit.kind == "tie"))


class _Columns:
    """Rows of one table gathered as columns: each call adds as many rows as `value` has."""

    def __init__(self, name: str) -> None:
        self.schema = SCHEMAS[name]
        self.lists: dict[str, list[Any]] = {column: [] for column in self.schema}

    def add(
        self, fixed: Mapping[str, Any], value: Sequence[float], column: str = "", keys: Sequence[float] = ()
    ) -> None:
        for name, items in self.lists.items():
            if name == "value":
                items.extend(value)
            elif name == column:
                items.extend(keys)
            else:
                items.extend([fixed.get(name)] * len(value))

    def frame(self) -> pl.DataFrame:
        return pl.DataFrame(self.lists, schema=self.schema).sort(list(self.schema), nulls_last=True)


def _add_metrics(table: _Columns, run: spec.Run, identity: str, ends: Mapping[str, float], pace: float) -> None:
    last = run.training.epochs
    curves: dict[Key, np.ndarray] = {}
    progress = (1 - np.exp(-pace * np.arange(last + 1) / last)) / (1 - np.exp(-pace))
    for split, end in ends.items():
        curves[split, "loss_nats"] = INIT[split] + (end - INIT[split]) * progress
        curves[split, "accuracy"] = 0.35 * np.exp(3 - curves[split, "loss_nats"])
    curves["train_running", "loss_nats"] = curves["train", "loss_nats"] + 0.2
    curves["train_running", "accuracy"] = curves["train", "accuracy"] * 0.9
    if run.edit is not None and run.edit.kind == "attack":
        for split in ("train_running", "train", "valid"):
            curves[split, "adversary_loss_nats"] = 1.0 + progress
            curves[split, "adversary_accuracy"] = 0.5 - 0.3 * progress
    for (split, name), values in curves.items():
        first = 1 if split == "train_running" or name.startswith("adversary") else 0
        fixed = {"run": identity, "split": split, "name": name}
        table.add(fixed, values[first:].tolist(), "epoch", range(first, last + 1))


def _add_sites(
    table: _Columns, run: spec.Run, identity: str, ends: Mapping[str, float], layers: int, planted: _Planted
) -> None:
    def add(site: str | None, measure: str, values: np.ndarray | float, at: np.ndarray | None = None) -> None:
        fixed = {"subject": identity, "site": site, "measure": measure, "split": split, "n": TOKENS[split]}
        keys = () if at is None else at.tolist()
        table.add(fixed, np.atleast_1d(values).astype(float).tolist(), "" if at is None else "at", keys)

    def rewound(site: str, kind: str, positions: np.ndarray, kept: np.ndarray) -> np.ndarray:
        rise = planted.draw(f"{kind}-{site}")
        losses = ends[split] + rise * (1 - kept) ** 2
        add(site, f"{kind}_loss_nats", losses, positions)
        add(site, f"{kind}_accuracy", 0.35 * np.exp(3 - losses), positions)
        add(site, f"{kind}_area", float(np.mean(losses - ends[split])))
        return losses

    alphas, epochs = np.linspace(0, 1, POINTS), np.arange(run.training.epochs + 1.0)
    for split in ("train", "valid"):
        add(None, "unigram_loss_nats", UNIGRAM[split])
        add("attn@all", "self_only_loss_nats", ends[split] + planted.draw("self_only", 0.5))
        for site in (f"{component}@{layer}" for layer in range(1, layers + 1) for component in ("q", "k", "v")):
            losses = rewound(site, "rewind", alphas, alphas)
            critical = _criticality(alphas, losses, EPSILON * ends[split])
            if f"criticality-{site}" in planted.effects:
                critical = planted.draw(f"criticality-{site}")
            add(site, "criticality", critical)
            add(site, "criticality_first", critical)
            rewound(site, "midstage", epochs, epochs / run.training.epochs)


def _add_probes(table: _Columns, probe: methods.Probe, identity: str, slug: str, planted: _Planted) -> None:
    for label in probe.labels:
        for site in map(str, probe.sites or ()):
            bits = planted.draw(f"bits-{slug}-{site}", 1.0)
            fixed = {"subject": identity, "site": site, "label": label, "split": "valid", "n": TOKENS["valid"]}
            for kind in probe.kinds:
                table.add(fixed | {"measure": f"probe_{kind}_bits"}, [bits])
                table.add(fixed | {"measure": f"probe_{kind}_accuracy"}, [0.3 + 0.4 * bits])
                table.add(fixed | {"measure": f"probe_{kind}_selectivity"}, [0.2 * bits])
                by_chance = planted.effects.get(f"control-bits-{slug}-{site}", 1.0)
                table.add(fixed | {"measure": f"probe_{kind}_control_bits"}, [by_chance])
            table.add(fixed | {"measure": "probe_majority"}, [0.3])


def _add_erasure(table: _Columns, erase: methods.Erase, identity: str, planted: _Planted) -> None:
    for label in erase.labels:
        for site in map(str, erase.sites):
            fixed = {"subject": identity, "site": site, "label": label, "split": "valid", "n": TOKENS["valid"]}
            rise = planted.draw(f"erase-{site}", 0.1)
            chance = planted.effects.get(f"random-{site}", 0.02) + planted.spread * planted.generator.standard_normal(
                erase.draws
            )
            chance += np.linspace(-1e-4, 1e-4, erase.draws)  # subspaces differ, and leave the mean where it is planted
            table.add(fixed | {"measure": "erase_rise_nats"}, [rise])
            draws = range(1, erase.draws + 1)
            table.add(fixed | {"measure": "erase_random_rise_nats"}, chance.tolist(), "at", draws)
            table.add(fixed | {"measure": "erase_rank", "split": "train"}, [12.0])


def _criticality(alphas: np.ndarray, losses: np.ndarray, epsilon: float) -> float:
    outside = np.flatnonzero(losses - losses[-1] >= epsilon)
    return 0.0 if len(outside) == 0 else float(alphas[outside[-1] + 1])
