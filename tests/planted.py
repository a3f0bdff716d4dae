"""Studies in which each of the first fourteen claims is true, or turned round, and how to ask for one claim's rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import polars as pl

from tests.synthetic import FINAL, INIT, about, study_tables
from trisect import claims

SEEDS = (1, 2, 3, 4, 5, 6)
LAYERS = range(1, 6)
SITES = tuple(f"{c}@{layer}" for layer in LAYERS for c in "qkv")
TO_INIT = {split: INIT[split] - FINAL[split] for split in INIT}
ORDER = [f"A-{number}" for number in range(1, 16)]


def attack(label: str, sites: Iterable[str], train: float | None, valid: float | None) -> dict[str, float]:
    """Planted loss changes of attacks on `sites`; None is all the way to initialisation."""
    sizes = {
        "train": TO_INIT["train"] if train is None else train,
        "valid": TO_INIT["valid"] if valid is None else valid,
    }
    return {f"attack-{label}-{site}/{split}": size for site in sites for split, size in sizes.items()}


def freeze(sites: Iterable[str], train: float, valid: float) -> dict[str, float]:
    return {f"freeze-{site}/{split}": size for site in sites for split, size in (("train", train), ("valid", valid))}


def every(component: str) -> list[str]:
    return [site for site in SITES if site[0] == component]


def ladder(kind: str, base: float = 0.0, step: float = 0.1, of_v: float = 0.3) -> dict[str, float]:
    return {f"{kind}-{site}": base + step * int(site[2]) + (of_v if site[0] == "v" else 0.0) for site in SITES}


def rises(big: float, others: float) -> dict[str, float]:
    return {f"rewind-{site}": big if site in ("v@2", "v@3", "v@4", "v@5") else others for site in SITES}


def first_layer(frozen: float, others_frozen: float, rewound: float, others_rewound: float) -> dict[str, float]:
    planted: dict[str, float] = {}
    for site in SITES:
        planted |= freeze([site], *([frozen if site[2] == "1" else others_frozen] * 2))
        planted[f"rewind-{site}"] = rewound if site[2] == "1" else others_rewound
    return planted


def apart(alone: str) -> dict[str, float]:
    """Attack curves where the component `alone` differs from the other two, in height and in pace."""
    planted: dict[str, float] = {}
    for label in ("pos", "dep"):
        planted |= attack(label, every(alone), 1.0, 1.0)
        planted |= {f"pace-attack-{label}-{site}": 5.0 for site in every(alone)}
    return planted


TRUTHS = {
    "A-1": attack("pos", ["k@1"], -0.3, 0.3),
    "A-2": attack("pos", ["k@2", "k@3"], 0.3, -0.3),
    "A-3": attack("pos", ["k@4", "k@5"], None, None),
    "A-4": attack("pos", every("q"), 0.3, -0.3),
    "A-5": attack("pos", ["v@2", "v@3", "v@4", "v@5"], None, None) | attack("pos", ["v@1"], 0.3, 0.0),
    "A-6": attack("dep", ["k@3", "k@4", "k@5"], None, None) | attack("dep", ["k@1", "k@2"], 0.3, -0.3),
    "A-7": attack("dep", every("q"), 0.3, 0.0) | attack("pos", every("k"), 0.3, 0.0),
    "A-8": attack("dep", every("v"), None, None),
    "A-9": apart("v"),
    "A-10": rises(0.3, 0.005),
    "A-11": ladder("rewind") | ladder("criticality"),
    "A-12": ladder("midstage") | rises(0.3, 0.005),  # put back to initialisation, some site moves the loss
    "A-13": freeze(["k@1", "q@1"], -0.3, 0.3) | freeze(["v@1"], 0.3, 0.3) | rises(0.3, 0.005),
    "A-14": first_layer(0.3, 0.05, 0.05, 0.5),
}
TURNED = {
    "A-7": attack("dep", every("q"), -0.3, 0.0) | attack("pos", every("k"), 0.3, 0.0),
    "A-9": apart("q"),
    "A-11": ladder("rewind", 1.0, -0.1, -0.3) | ladder("criticality", 0.9, -0.1, -0.3),
    "A-14": first_layer(0.05, 0.3, 0.5, 0.05),
}


def planted(
    effects: Mapping[str, float],
    seeds: tuple[int, ...] = SEEDS,
    spread: float = 0.004,
    epochs: int = 4,
    layers: int = 5,
) -> dict[str, pl.DataFrame]:
    return study_tables(seeds, epochs, layers, effects=effects, spread=spread)


def judged(tables: Mapping[str, pl.DataFrame], seeds: tuple[int, ...] = SEEDS) -> pl.DataFrame:
    return claims.judge(tables, about(seeds))


def whole(table: pl.DataFrame, claim: str) -> dict[str, Any]:
    return table.filter(pl.col("part").is_null(), claim=claim).row(0, named=True)


def parts(table: pl.DataFrame, claim: str) -> pl.DataFrame:
    return table.filter(pl.col("part").is_not_null(), claim=claim)


def without(tables: Mapping[str, pl.DataFrame], slug: str) -> dict[str, pl.DataFrame]:
    gone = tables["runs"].filter(pl.col("run").str.starts_with(slug))["run"].implode()
    return {**tables, **{name: tables[name].filter(~pl.col("run").is_in(gone)) for name in ("runs", "metrics")}}
