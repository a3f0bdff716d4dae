"""Compute constructions at several β as a table, each beside its law."""

from __future__ import annotations

from typing import Any

import polars as pl

from trisect.core.errors import TheoryError, unknown_name
from trisect.experiments.theory.page import build
from trisect.experiments.theory.settings import TheoryFacts, TheorySettings
from trisect.lab.experiment import Measured, RunContext
from trisect.theory import CONSTRUCTIONS, Construction

SCHEMA = {
    "name": pl.String,
    "beta": pl.Float64,
    **dict.fromkeys(("dim", "keys"), pl.Int64),
    "variance": pl.Float64,
    "samples": pl.Int64,
    "measured": pl.String,
    "error": pl.Float64,
    "relation": pl.String,
    "expected": pl.Float64,
    **dict.fromkeys(("variance_one", "variance_one_law", "variance_two", "variance_two_law"), pl.Float64),
    "apart_share": pl.Float64,
    **dict.fromkeys(("law", "domain"), pl.String),
}


def measure(settings: TheorySettings, context: RunContext) -> Measured[TheoryFacts]:
    """Compute the named constructions, or all eight, at every `beta`, with the values of their laws.

    What a construction does not have is left out for it. Raises TheoryError for what cannot be built.
    """
    if unknown := [name for name in settings.names if name not in CONSTRUCTIONS]:
        problem = unknown_name("construction", unknown[0], CONSTRUCTIONS)
        raise TheoryError(problem, f"There are {', '.join(CONSTRUCTIONS)}.", "Name one of these, or none for all.")
    names = tuple(dict.fromkeys(settings.names)) or tuple(CONSTRUCTIONS)
    shape = {"dim": settings.dim, "keys": settings.keys, "samples": settings.samples}
    plan = [(name, beta) for name in names for beta in settings.beta or (None,)]
    results: list[Construction] = []
    with context.progress("constructions") as step:
        for name, beta in plan:
            results.append(build(name, {**shape, "beta": beta}, settings.seed))
            step(len(results), len(plan))
    notes = [
        f"{name} does not apply to {', '.join(left)}."
        for name, value in shape.items()
        if value is not None and (left := dict.fromkeys(r.name for r in results if name not in r.settings))
    ]
    rows = list[dict[str, Any]]()
    for result in results:
        if result.relation == "at most" and result.error > result.expected:
            where = f"{result.name} at β {result.settings['beta']:g}"
            notes.append(f"{where}: the error {result.error:.3g} passes the bound {result.expected:.3g}.")
        row = {name: getattr(result, name, None) for name in SCHEMA}
        row |= {name: result.settings.get(name) for name in ("beta", "variance", "dim", "keys", "samples")}
        for name in ("one", "one_law", "two", "two_law"):
            row[f"variance_{name}"] = None if result.variances is None else getattr(result.variances, name)
        rows.append(row | {"apart_share": None if result.apart is None else result.apart.share})
    facts = TheoryFacts(settings.seed, tuple({"name": result.name, **result.settings} for result in results))
    table = pl.DataFrame(rows, schema=SCHEMA)
    return Measured({"theory": table}, facts, tuple(dict.fromkeys(notes)), packages=())
