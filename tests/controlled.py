"""Made-up studies with controls, ties, probes and erasure whose truth is known, and how to ask for their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from tests.synthetic import about, controlled, experiment, study_tables
from trisect import claims
from trisect.claims.verdicts import judge_controls
from trisect.core.spec import StudyAbout

SEEDS = (1, 2, 3, 4, 5)
ROWS = {"epochs": 2, "layers": 5, "labels": ("pos",)}


def everywhere(slug: str, train: float, valid: float) -> dict[str, float]:
    """Planted loss changes of one run's slug."""
    return {f"{slug}/train": train, f"{slug}/valid": valid}


def made(
    effects: Mapping[str, float], seeds: Sequence[int] = SEEDS, spread: float = 0.002
) -> tuple[dict[str, pl.DataFrame], StudyAbout]:
    """Every table of a controlled study with those effects planted, claims and controls among them, and its description."""
    whole = controlled(experiment(seeds, **ROWS))
    tables = study_tables(seeds, **ROWS, effects=effects, spread=spread, whole=whole)
    described = about(seeds, **ROWS, whole=whole)
    return judged(tables, described), described


def judged(tables: Mapping[str, pl.DataFrame], described: StudyAbout) -> dict[str, pl.DataFrame]:
    """The same tables with claims and controls judged again."""
    return {**tables, "claims": claims.judge(tables, described), "controls": judge_controls(tables, described)}
