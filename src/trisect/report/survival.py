"""Sentences on whether a claim about attacks survives when the same sites are attacked in another way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import polars as pl

from trisect.claims.controls import CONTROLS, NOT, NOTHING, SURVIVES, UNDECIDED
from trisect.report import format as words
from trisect.report.points import Mean

NAMES = {
    "control": "Control labels",
    "bounded": "Bounded attack",
    "site": "Gradient limited to this projection",
    "bounded+site": "Bounded, gradient limited to this projection",
}
SAID = {
    "control": {
        SURVIVES: "survives: a label drawn by chance does not do as much",
        NOT: "does not survive: a label drawn by chance does as much",
    },
    "bounded": {
        SURVIVES: "survives: an attack whose loss has a floor does it too",
        NOT: "does not survive: an attack whose loss has a floor does not do it",
    },
    "site": {
        SURVIVES: "survives: an attack that trains the site's own projection alone does it too",
        NOT: "does not survive: an attack that trains the site's own projection alone does not do it",
    },
    "bounded+site": {
        SURVIVES: "survives: a bounded attack that trains the site's own projection alone does it too",
        NOT: "does not survive: a bounded attack that trains the site's own projection alone does not do it",
    },
}
OPEN = {UNDECIDED: "undecided at these seeds", NOTHING: "nothing to survive: the attack has no such effect here"}
HEADS = {SURVIVES: "survive", NOT: "do not", UNDECIDED: "undecided", NOTHING: "no such effect to begin with"}
RANK = (NOT, NOTHING, UNDECIDED, SURVIVES)  # the reading of a claim is the first of its parts' in this order


class Survival(NamedTuple):
    """How one claim stands against one control: the reading in words, and a line of numbers for each part."""

    name: str
    said: str
    parts: tuple[str, ...]


def survivals(controls: pl.DataFrame, source: str, claim: str) -> tuple[Survival, ...]:
    """The controls of one claim in words; empty where none was run."""
    rows = controls.filter((pl.col("source") == source) & (pl.col("claim") == claim))
    found = []
    for control in CONTROLS:
        mine = rows.filter(pl.col("control") == control).sort("part").to_dicts()
        if mine:
            said = spelt(control, whole([row["reading"] for row in mine]))
            found.append(Survival(NAMES[control], said, tuple(_numbers(row) for row in mine)))
    return tuple(found)


def whole(readings: Sequence[str]) -> str:
    """The reading of a claim from those of its parts: a claim survives where every part does."""
    return next(reading for reading in RANK if reading in readings)


def spelt(control: str, reading: str) -> str:
    """A reading against one control, in words."""
    return SAID[control].get(reading) or OPEN[reading]


def _numbers(row: Mapping[str, Any]) -> str:
    difference = Mean(row["difference"], row["low"], row["high"], row["n"])
    return (
        f"{row['part']}: {words.number(row['effect'], True)} with the attack, {words.number(row['control_effect'], True)} with "
        f"the control; difference {words.spoken(difference)}. {row['reading'].capitalize()}."
    )


def tally(table: pl.DataFrame) -> dict[str, dict[str, list[str]]]:
    """For each control that was run, the claims by their reading against it."""
    said: dict[str, dict[str, list[str]]] = {}
    for control in CONTROLS:
        readings: dict[str, list[str]] = {}
        for row in table.filter(pl.col("control") == control).iter_rows(named=True):
            readings.setdefault(row["claim"], []).append(row["reading"])
        sorts: dict[str, list[str]] = {}
        for claim in sorted(readings, key=_number):
            sorts.setdefault(whole(readings[claim]), []).append(claim)
        if sorts:
            said[control] = {reading: sorts[reading] for reading in HEADS if reading in sorts}
    return said


def tallied(control: str, sorts: Mapping[str, Sequence[str]]) -> str:
    """Which claims survive one control and which do not, as a sentence."""
    return f"{NAMES[control]}: {'; '.join(f'{HEADS[reading]}: {words.listed(found)}' for reading, found in sorts.items())}."


def _number(claim: str) -> tuple[str, int]:
    letter, _, number = claim.partition("-")
    return letter, int(number)
