"""A recall without a model: answers with a planted accuracy and confidence, and the tables that a recall writes of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import polars as pl

from trisect.core.finding import About
from trisect.core.tables import frame
from trisect.experiments.recall.rows import judge, measure_rows, neighbours
from trisect.experiments.recall.settings import RecallFacts, Reference

PLACES = ("Adona", "Bering", "Culf", "Dach")
FAMILIES = ("Ando", "Beck", "Cera", "Dorn", "Elm")
RIGHT = {"plain": 0.05, "pretrained": 0.6, "left-out": 0.4}
BOTH, READ, TAUGHT, NEITHER = "pretraining and fine-tuning", "pretraining only", "fine-tuning only", "neither"
DRAWS = 1_000  # a tenth of the usual, which is fine enough for words
SPLITS = {"train": 20, "valid": 60, "test": 6, "invented": 20}


def answers(seeds: tuple[int, ...] = (0,), models: tuple[str, ...] = tuple(RIGHT)) -> pl.DataFrame:
    """A row per question and model; of the valid names every fourth was left out of a second pretraining."""
    draw = np.random.default_rng(3)
    splits = [(split, i) for split, count in SPLITS.items() for i in range(count)]
    return frame("answers", [_row(m, seed, *which, draw) for m, seed, which in product(models, seeds, splits)])


def _row(model: str, seed: int, split: str, i: int, draw: np.random.Generator) -> dict[str, Any]:
    category = {"train": BOTH, "valid": READ, "test": READ, "invented": NEITHER}[split]
    if model == "left-out" and split == "valid" and i % 4 == 0:
        category = NEITHER
    if model == "plain":
        category = {"train": TAUGHT}.get(split, NEITHER)
    family = i % 5
    gold = PLACES[family % 4 if draw.random() < 0.7 else i % 4] if split in ("train", "valid") else None
    right = gold is not None and (split == "train" or draw.random() < RIGHT[model])
    guess = PLACES[family % 4 if draw.random() < 0.6 else (i + 1) % 4]
    answer = gold if right and gold is not None else guess
    sure = math.log(0.8 if right else 0.5) * (0.1 + 2 * draw.random())
    name = f"{split.title()}{i} <b>{FAMILIES[family]}</b>"
    return {
        "model": model,
        "seed": seed,
        "name": name,
        "split": split,
        "category": category,
        "question": f"Where was {name} born?",
        "gold": gold,
        "answer": answer,
        "correct": None if gold is None else answer == gold,
        "log_probability": sure,
        "mean_log_probability": sure / (1 + len(answer)),
        "entropy": -sure / 3,
        "margin": 1.0 + sure,
        "known_place": True,
        "place_count": 5,
        "nearest": None if split == "train" else f"Train{family} <b>{FAMILIES[family]}</b>",
        "nearest_place": None if split == "train" else PLACES[family % 4],
    }


def measures(of: pl.DataFrame) -> pl.DataFrame:
    """The rows that the answers give, and what survives an edit, which is made up."""
    asked = sorted(set(of["name"].to_list()))
    known = {row["name"]: row["gold"] for row in of.filter(split="train").to_dicts()}
    rows = measure_rows(of, neighbours(asked, known), draws=DRAWS)
    row = {
        "subject": "left-out" if "left-out" in of["model"] else "pretrained",
        "stack": "plain",
        "measure": "survival",
    }
    values = (("retrieved", 0.2), ("made up", 0.7), ("wrong", 0.6))
    for layer, component, (group, value) in product((1, 2), "qkv", values):
        place = {"layer": layer, "component": component, "group": group}
        rows.append(row | place | {"value": value, "low": value - 0.1, "high": value + 0.1, "n": 20})
    return frame("measures", rows)


def tables(seeds: tuple[int, ...] = (0,), models: tuple[str, ...] = tuple(RIGHT)) -> dict[str, pl.DataFrame]:
    """The tables of a recall that its page reads."""
    found = answers(seeds, models)
    return {
        "answers": found,
        "measures": measures(found),
        "claims": judge(found, {"subject": "m"}, draws=DRAWS),
    }


def about(
    references: Sequence[Reference] = (),
    notes: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    part: str = "",
    seconds: float = 0.0,
) -> About[RecallFacts]:
    """What stands beside the tables."""
    facts = RecallFacts("a world <script>alert(1)</script>", settings or {}, part, tuple(references))
    made = {"trisect": "0", "python": "3"}
    return About("recall", "trisect recall --seeds 1", seconds, tuple(notes), made, None, facts)
