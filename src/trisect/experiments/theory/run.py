"""Attention worked by hand: the constructions at several β as a table, each beside its law."""

from __future__ import annotations

from typing import Any

import polars as pl

from trisect.experiments.theory.page import Given, build, select_constructions
from trisect.experiments.theory.settings import TheoryFacts, TheorySettings
from trisect.lab.experiment import Measured, RunContext
from trisect.theory import Construction

SCHEMA = {
    "name": pl.String,
    "beta": pl.Float64,
    "dim": pl.Int64,
    "keys": pl.Int64,
    "variance": pl.Float64,
    "samples": pl.Int64,
    "measured": pl.String,
    "error": pl.Float64,
    "relation": pl.String,
    "expected": pl.Float64,
    "variance_one": pl.Float64,
    "variance_one_law": pl.Float64,
    "variance_two": pl.Float64,
    "variance_two_law": pl.Float64,
    "apart_share": pl.Float64,
    "law": pl.String,
    "domain": pl.String,
}


def measure(settings: TheorySettings, context: RunContext) -> Measured[TheoryFacts]:
    """The named constructions, or all eight, at every `beta`: what was computed beside what the law gives for it.

    What a construction does not have is left out for it. Raises TheoryError for what cannot be built.
    """
    given: Given = {"dim": settings.dim, "keys": settings.keys, "samples": settings.samples}
    asked = [(name, beta) for name in select_constructions(settings.names) for beta in settings.beta or (None,)]
    results: list[Construction] = []
    with context.progress("constructions") as step:
        for name, beta in asked:
            results.append(build(name, {**given, "beta": beta}, settings.seed))
            step(len(results), len(asked))
    notes = [
        f"{name} does not apply to {', '.join(left)}."
        for name, value in given.items()
        if value is not None and (left := dict.fromkeys(one.name for one in results if name not in one.settings))
    ]
    notes += [
        f"{one.name} at β {one.settings['beta']:g}: the error {one.error:.3g} passes the bound {one.expected:.3g}."
        for one in results
        if one.relation == "at most" and one.error > one.expected
    ]
    facts = TheoryFacts(settings.seed, tuple({"name": one.name, **one.settings} for one in results))
    rows: list[dict[str, Any]] = []
    for one in results:
        v, given_to = one.variances, one.settings
        row = {name: getattr(one, name, None) for name in SCHEMA} | {
            name: given_to.get(name) for name in ("beta", "variance")
        }
        row |= {name: int(given_to[name]) if name in given_to else None for name in ("dim", "keys", "samples")}
        row |= {
            f"variance_{name}": None if v is None else getattr(v, name) for name in ("one", "one_law", "two", "two_law")
        }
        rows.append(row | {"apart_share": None if one.apart is None else one.apart.share})
    table = pl.DataFrame(rows, schema=SCHEMA)
    return Measured({"theory": table}, facts, tuple(dict.fromkeys(notes)), packages=())
