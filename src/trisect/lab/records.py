"""What a measurement comes to: tables, and what is noted beside them, written as JSON and read back as About."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from trisect.claims import claims_hash
from trisect.core.errors import DamagedFileError, TrisectError
from trisect.core.files import Json, read_json
from trisect.core.finding import About
from trisect.core.machine import versions
from trisect.core.schema import names_of, plain, read
from trisect.lab.command import groups_of
from trisect.lab.experiment import Experiment, Measured
from trisect.lab.inputs import TextSource
from trisect.report.sheet import Document, Sheet, StudyLink, with_links

INVENTED = (
    "The texts are of an invented language ('embedded') that the model has never read: what is measured is not what it does with "
    "its own. For English --corpus sample has some 300 sentences."
)

S = TypeVar("S")
F = TypeVar("F")


# what is noted beside the facts, and what stands for it where it is missing
NOTED = {"command": "", "seconds": 0.0, "notes": [], "versions": {}, "claims_hash": None}


def conclusion(
    experiment: Experiment[S, F], measured: Measured[F], command: str, seconds: float
) -> tuple[About[F], dict[str, pl.DataFrame]]:
    """What is noted beside what was measured, and all of it as tables by name, verdicts among them.

    `command` and `seconds` are those of this call, which count where the measurement has no others.
    """
    about = About(
        experiment.name,
        command if measured.command is None else measured.command,
        seconds if measured.seconds is None else measured.seconds,
        measured.notes,
        versions(*measured.packages),
        None if measured.family is None else claims_hash(measured.family),
        measured.facts,
    )
    return about, dict(measured.tables) | ({} if measured.judge is None else {"claims": measured.judge(about)})


def note_invented(measured: Measured[F], settings: Any) -> Measured[F]:
    """What was measured of a pretrained model, noting first where the texts are of the invented language.

    Sentence pairs of it are what a translator was trained on, and need no note.
    """
    named = [group.texts for group in groups_of(settings) if isinstance(group, TextSource)]
    named += [] if getattr(settings, "attention", "") == "cross" else [getattr(settings, "corpus", None)]
    if not any(isinstance(one, str | Path) and str(one) == "embedded" for one in named):
        return measured
    return replace(measured, notes=tuple(dict.fromkeys((INVENTED, *measured.notes))))


def draw_page(
    experiment: Experiment[S, F],
    tables: Mapping[str, pl.DataFrame],
    about: About[F],
    links: tuple[StudyLink, ...] = (),
) -> Sheet | Document:
    """An experiment's page below its links to others, with a banner where a pretrained model read the invented language."""
    page = with_links(experiment.page(tables, about), links)
    if INVENTED not in about.notes or not isinstance(page, Sheet):
        return page
    return replace(page, links=f'{page.links}<p class="lede notice">{escape(INVENTED)}</p>')


def read_about(experiment: Experiment[S, F], folder: Path) -> About[F]:
    """What was noted beside the tables of a folder; raises DamagedFileError where it cannot be read."""
    path = folder / experiment.record
    todo = f"Delete {path} and call 'trisect {experiment.name}' again."
    return read_about_file(experiment.name, experiment.facts, path, todo)


def read_about_file(name: str, facts: type[F], path: Path, todo: str) -> About[F]:
    """The same from one file."""
    body = read_json(path, todo)
    noted = {key: body.get(key, value) for key, value in NOTED.items()}
    try:
        about = read(About[Any], {"experiment": name, "facts": None, **noted}, path)
        own = read(facts, {key: value for key, value in body.items() if key in names_of(facts)}, path)
    except TrisectError as error:
        raise DamagedFileError(f"{path} is damaged.", f"{error.given} {error.known}", todo) from error
    return replace(about, facts=own)


def record_of(about: About[Any]) -> dict[str, Json]:
    """About as JSON-ready data, the facts among the rest."""
    hashed = {} if about.claims_hash is None else {"claims_hash": about.claims_hash}
    noted = {"command": about.command, "seconds": about.seconds, "notes": list(about.notes)}
    facts: Any = plain(about.facts)
    return facts | noted | {"versions": dict(about.versions)} | hashed
