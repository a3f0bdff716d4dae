"""Theory's lab: the constructions at several β as a table and figures, beside the page to try them on."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import trisect.theory.parts as parts
from trisect.core.errors import TheoryError
from trisect.core.files import inside, replace_file, write_json
from trisect.lab.live import bar
from trisect.lab.versions import versions
from trisect.theory import CONSTRUCTIONS, Construction

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


@dataclass(frozen=True, eq=False)
class TheoryResult:
    """What a run wrote: its folder, its table `theory`, its page, the results, what was noted, and a line for each."""

    folder: Path
    tables: dict[str, pl.DataFrame]
    report: Path
    results: tuple[Construction, ...]
    notes: tuple[str, ...]
    findings: tuple[str, ...]


def run_theory(
    names: Sequence[str] = (),
    beta: Sequence[float] = (),
    dim: int | None = None,
    keys: int | None = None,
    samples: int | None = None,
    seed: int = 0,
    out: Path = Path("theory"),
    quiet: bool = False,
) -> TheoryResult:
    """Build the named constructions, or all eight, at every `beta`; table, figures and interactive page into `out`.

    What is null, and an empty `beta`, is each construction's own default; what a construction does not have is left out
    for it. All is computed before anything is written. Raises TheoryError for what cannot be built, StudyError where
    `out` cannot be written.
    """
    chosen = _chosen(names)
    if parts.check_whole("seed", seed) < 0:
        raise TheoryError(f"seed {seed} was given.", "Seeds are whole numbers from 0 on.", "Use for example 0.")
    given = {"dim": dim, "keys": keys, "samples": samples}
    asked = [(name, b) for name in chosen for b in beta or (None,)]
    results: list[Construction] = []
    with bar("constructions", quiet) as told:
        for name, b in asked:
            results.append(_build(name, given | {"beta": b}, seed))
            told(len(results), len(asked))
    table = pl.DataFrame([_row(one) for one in results], schema=SCHEMA)
    about = {
        "command": shlex.join(_command(names, beta, given, seed)),
        "seed": seed,
        "settings": [{"name": one.name, **one.settings} for one in results],
        "versions": versions(),
    }
    report = _write(Path(out), table, results, about, quiet)
    return TheoryResult(
        Path(out), {"theory": table}, report, tuple(results), _notes(results, given), tuple(map(say, results))
    )


def say(result: Construction) -> str:
    """One line for a terminal: the construction, its β, its error, and what its law says of it."""
    holds = {"equals": "=", "at most": "≤", "near": "≈"}[result.relation]
    line = f"{result.name}  β {result.settings['beta']:g}: {result.measured} = {result.error:.3g}; law: {holds} {result.expected:.3g}"
    if (v := result.variances) is not None:
        line += f"; variance of c {v.one:.3g} with one head, {v.two:.3g} with two"
    return line


def _chosen(names: Sequence[str]) -> tuple[str, ...]:
    for name in names:
        if name not in CONSTRUCTIONS:
            known = f"There are {', '.join(CONSTRUCTIONS)}."
            raise TheoryError(f"{name!r} is no construction.", known, "Name one of these, or none for all.")
    return tuple(dict.fromkeys(names)) or tuple(CONSTRUCTIONS)


def _build(name: str, given: dict[str, Any], seed: int) -> Construction:
    make = CONSTRUCTIONS[name]
    taken = inspect.signature(make).parameters
    arguments = {k: v for k, v in given.items() if v is not None and k in taken}
    _check_room(name, arguments, {k: taken[k].default for k in ("keys", "dim") if k in taken})
    return make(**arguments, generator=np.random.default_rng([seed, list(CONSTRUCTIONS).index(name)]))


def _check_room(name: str, arguments: dict[str, Any], defaults: dict[str, int]) -> None:
    """Where one of `keys` and `dim` is given and the other's default leaves no room for the keys, say whose default it is."""
    alone = [k for k in defaults if k in arguments]
    if len(defaults) < 2 or len(alone) != 1:
        return
    asked = {k: parts.check_whole(k, arguments.get(k, default)) for k, default in defaults.items()}
    if asked["dim"] >= asked["keys"] or asked[alone[0]] < 2:
        return
    given, other = ("keys", "dim") if alone == ["keys"] else ("dim", "keys")
    raise TheoryError(
        f"{given} {asked[given]} was given, and no {other}.",
        f"{name} has {other} {asked[other]} by default, and R^{asked['dim']} no {asked['keys']} orthogonal keys.",
        f"Give also a dim of {asked['keys']} or more, or fewer keys."
        if other == "dim"
        else f"Give also keys of {asked['dim']} or fewer, or a larger dim.",
    )


def _row(result: Construction) -> dict[str, Any]:
    v, s = result.variances, result.settings
    numbers = ("dim", "keys", "samples")
    return {
        "name": result.name,
        "beta": s["beta"],
        "variance": s.get("variance"),
        **{k: int(s[k]) if k in s else None for k in numbers},
        "measured": result.measured,
        "error": result.error,
        "relation": result.relation,
        "expected": result.expected,
        "variance_one": None if v is None else v.one,
        "variance_one_law": None if v is None else v.one_law,
        "variance_two": None if v is None else v.two,
        "variance_two_law": None if v is None else v.two_law,
        "apart_share": None if result.apart is None else result.apart.share,
        "law": result.law,
        "domain": result.domain,
    }


def _notes(results: Sequence[Construction], given: dict[str, Any]) -> tuple[str, ...]:
    """Which arguments had nothing to act on, and where a law was not met."""
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
    return tuple(dict.fromkeys(notes))


def _command(names: Sequence[str], beta: Sequence[float], given: dict[str, Any], seed: int) -> list[str]:
    said = ["trisect", "theory", *names]
    said += [word for b in beta for word in ("--beta", repr(float(b)))]
    said += [word for name, value in given.items() if value is not None for word in (f"--{name}", f"{value}")]
    return [*said, "--seed", str(seed)]


def _write(
    folder: Path, table: pl.DataFrame, results: Sequence[Construction], about: dict[str, Any], quiet: bool
) -> Path:
    """The table, a figure for each construction at its last β, the settings, and the page."""
    from trisect.experiments.theory.figures import figure
    from trisect.experiments.theory.page import write as write_page
    from trisect.report import render

    replace_file(folder / "tables" / "theory.parquet", lambda scratch: table.write_parquet(scratch))
    last = {one.name: one for one in results}
    with bar("figures", quiet) as told:
        for done, (name, one) in enumerate(last.items(), start=1):
            text = render.svg(figure(one).chart(), name)
            png = render.png(text)
            for ending, content in ((".svg", text.encode()), (".png", png)):
                target = inside(folder, "figures", f"{name}{ending}")
                replace_file(target, lambda scratch, content=content: scratch.write_bytes(content), False)
            told(done, len(last))
    write_json(folder / "theory.json", about)
    return write_page(folder / "theory.html")
