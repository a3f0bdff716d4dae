"""Studies at the door: training studies, their corpora and claims, and all four sources at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trisect.core.errors import StudyError
from trisect.core.spec import Machine
from trisect.door.given import as_seeds, free_place
from trisect.experiments.study.result import Study
from trisect.text.corpus import Corpus
from trisect.text.readers import open_corpus

if TYPE_CHECKING:
    from trisect.claims import ListedPart


def render(out: str | Path) -> Study:
    """Make tables, figures and report of a study anew from its finished runs; trains nothing."""
    from trisect.experiments.study.run import render_report

    done = render_report(Path(out))
    assert isinstance(done, Study)
    return done


def check(out: str | Path) -> list[StudyError]:
    """Read all that a study reads back; an error for each damaged file, saying what to delete. Changes nothing."""
    from trisect.experiments.study.check import check_study

    return check_study(Path(out))


def list_claims() -> list[ListedPart]:
    """Every claim, part, margin and reason, as fixed before any data."""
    from trisect import claims
    from trisect.report.notebook import Listing

    return Listing(claims.listing())


def corpus(where: str | Path = "embedded", reader: str | None = None) -> Corpus:
    """A text as numbers: 'embedded', a corpus folder, or a raw folder read by `reader` (found out when null)."""
    return open_corpus(where, reader)


def annotate(
    source: str | Path,
    pipeline: str | Path,
    out: str | Path,
    reader: str | None = None,
    placeholder: str = "Unk",
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    columns: Sequence[str] | None = None,
) -> Corpus:
    """Label every token of a raw text with what a spaCy pipeline says of it, and keep the result in `out`.

    `columns` are some of pos (part of speech), tag (fine-grained), dep (relation) and ent (entity type, 'O' outside);
    null is pos and dep, and tag and ent where the pipeline sets them. Goes on where it stopped when called again.
    Needs the extra `trisect[annotate]`.
    """
    from trisect.text.annotate import annotate as label

    return label(source, pipeline, Path(out), reader, placeholder, workers, progress, columns)


def is_study(where: str | Path) -> bool:
    """Whether a folder is a study's; anything else is taken for a model."""
    from trisect.lab.folder import is_study as found

    return found(Path(where))


def dissect(
    out: str | Path = "study",
    seeds: int | Sequence[int] | None = None,
    device: str = "auto",
    workers: int | None = None,
    quiet: bool = False,
) -> Any:
    """Ask all four sources on embedded data, and answer on one page; goes on where it stopped.

    `seeds` are those of the training study.
    """
    from trisect.experiments.dissect.run import run_dissect

    return run_dissect(free_place(out), as_seeds(seeds), Machine(device, workers, quiet))
