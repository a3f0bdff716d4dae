"""One of several models: measured as if it were alone, with a page of its own, kept as files and read back."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
from typing_extensions import TypedDict

from trisect.claims import claims_hash
from trisect.core.files import read_record, write_json
from trisect.core.finding import About, Finding
from trisect.core.subject import Subject
from trisect.core.tables import write_table
from trisect.lab.command import command
from trisect.lab.experiment import Bench, Experiment, Measured, Replicates
from trisect.lab.records import read_about, record_of
from trisect.lab.run_folder import AGAIN, read_tables
from trisect.lab.units.settings import UnitFacts
from trisect.lab.versions import versions
from trisect.report.sheet import write_page

UNIT = "unit.json"  # beside one model's tables, record and page
SHOWN = ("texts", "tokens", "words", "pairs")  # facts that models are compared by


class UnitData(TypedDict):
    """What stands beside one model's tables and record; `made_on` is the processor and how many threads, or the GPU."""

    subject: str
    fingerprint: str
    family: str | None
    packages: list[str]
    page: str
    made_on: str


class UnitMeasured(NamedTuple):
    """What one model gave; `replicates` only where it was measured just now and not read back."""

    facts: UnitFacts
    tables: Mapping[str, pl.DataFrame]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    family: str | None
    packages: tuple[str, ...]
    replicates: Mapping[tuple[str | float | int | bool | None, ...], Replicates]


class _Judged(NamedTuple):
    measured: Measured[Any]
    about: About[Any]
    tables: Mapping[str, pl.DataFrame]
    findings: tuple[Finding, ...]
    page: Path


def measure_unit(one: Experiment[Any, Any], settings: Any, bench: Bench, place: str, subject: Subject) -> UnitMeasured:
    """One model as an experiment measures it, with its own page, at `place` in the folder of the bench."""
    own = Bench(bench.folder / place, bench.machine, (subject,), bench.given_texts, show=bench.show)
    done = _measured(one, settings, own)
    facts = _unit_facts(subject.name, subject.fingerprint, f"{place}/{done.page.name}", done.about, done.findings)
    family, packages = done.measured.family, done.measured.packages
    return UnitMeasured(facts, done.tables, done.findings, done.about.notes, family, packages, done.measured.replicates)


def write_unit(one: Experiment[Any, Any], settings: Any, bench: Bench, made_on: str) -> None:
    """Measure the model of a bench and leave all of it in its folder, for `read_unit`."""
    done, folder, subject = _measured(one, settings, bench), bench.folder, bench.subject
    for name, table in done.tables.items():
        write_table(folder / "tables", name, table)
    write_json(folder / one.record, record_of(done.about))
    kept: UnitData = {
        "subject": subject.name,
        "fingerprint": subject.fingerprint,
        "family": done.measured.family,
        "packages": list(done.measured.packages),
        "page": done.page.name,
        "made_on": made_on,
    }
    write_json(folder / UNIT, kept)


def read_unit_data(folder: Path) -> UnitData:
    """What stands beside the tables of a unit's folder; raises DamagedFileError where it cannot be read."""
    return read_record(folder / UNIT, AGAIN, UnitData)


def read_unit(one: Experiment[Any, Any], folder: Path, place: str) -> UnitMeasured:
    """What `write_unit` left in a folder; its page will lie at `place`."""
    about, tables, kept = read_about(one, folder), read_tables(folder), read_unit_data(folder)
    found = tuple(one.findings(tables, about))
    facts = _unit_facts(kept["subject"], kept["fingerprint"], f"{place}/{kept['page']}", about, found)
    return UnitMeasured(facts, tables, found, about.notes, kept["family"], tuple(kept["packages"]), {})


def notes_by_model(done: Sequence[UnitMeasured]) -> tuple[str, ...]:
    """What all models' notes say, then what some say, with their names."""
    shared = [note for note in done[0].notes if all(note in of.notes for of in done)]
    own = [f"{of.facts.name}: {note}" for of in done for note in of.notes if note not in shared]
    return tuple(dict.fromkeys((*shared, *own)))


def _measured(one: Experiment[Any, Any], settings: Any, bench: Bench) -> _Judged:
    began = time.monotonic()
    bench.folder.mkdir(parents=True, exist_ok=True)
    measured = one.measure(settings, bench)
    words = measured.command
    about = About(
        one.name,
        command(one.name, settings, bench.subjects, bench.given_texts) if words is None else words,
        time.monotonic() - began if measured.seconds is None else measured.seconds,
        measured.notes,
        versions(*measured.packages),
        None if measured.family is None else claims_hash(measured.family),
        measured.facts,
    )
    tables = dict(measured.tables) | ({} if measured.judge is None else {"claims": measured.judge(about)})
    found = tuple(one.findings(tables, about))
    return _Judged(measured, about, tables, found, write_page(bench.folder, one.page(tables, about)))


def _unit_facts(name: str, mark: str, page: str, about: About[Any], found: Sequence[Finding]) -> UnitFacts:
    return UnitFacts(name, mark, page, tuple(map(str, found)), tuple(_facts(about.facts)))


def _facts(facts: Any) -> Iterator[tuple[str, str]]:
    """What a model's own facts say that models are compared by."""
    assert is_dataclass(facts)
    for name in SHOWN:
        value = getattr(facts, name, None)
        if value is not None:
            yield name, f"{value:,}"
