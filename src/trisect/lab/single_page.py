"""A single page: what a command that leaves one page signs it with, and what it would write over otherwise."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from trisect.core.errors import DamagedFileError, StudyError
from trisect.lab.run_folder import RunFolder, is_study
from trisect.report.sheet import Document

BEGINS = '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'  # as every page of ours
DEEPEST = 4  # folders below a study's or a run's own that its files lie in
TODO = "Choose another name with --out."


def signed(page: Document, command: str) -> Document:
    """The page with the command that wrote it in its head."""
    assert page.html.startswith(BEGINS), "a page that begins otherwise would not be known again"
    return replace(page, html=page.html.replace(BEGINS, _begins(command), 1))


def _begins(command: str) -> str:
    return f'{BEGINS}<meta name="generator" content="trisect {command}">\n'


def check_page(path: Path, command: str, part: bool = False) -> None:
    """Raise StudyError for a file that this command did not write, and for a place among the files of a study or a run.

    A page that is `part` of a dissection lies among its files.
    """
    place = path.absolute()
    for above in tuple(place.parents)[:DEEPEST]:
        name = place.relative_to(above).as_posix()
        of = _listed(above, name)
        if of:
            given = f"{path} was given for a page of 'trisect {command}'."
            raise StudyError(given, f"It is a file of a run of 'trisect {of}', which lies in {above}.", TODO)
        if (is_study(above) or _run_of(above)) and not part:
            given = f"{path} was given for a page of 'trisect {command}'."
            raise StudyError(
                given, f"A study or a run lies in {above}, and its folder holds its own files alone.", TODO
            )
    if not path.is_file():
        return
    begins = _begins(command).encode()
    with path.open("rb") as file:
        own = file.read(len(begins)) == begins
    if not own:
        known = f"'trisect {command}' did not write it, or a version before 0.2.0 did; it would be written over."
        raise StudyError(f"{path} is there already.", known, "Choose another name with --out, or move it elsewhere.")


def _run_of(folder: Path) -> str:
    """The experiment whose run lies in a folder; empty where there is none of ours."""
    with suppress(DamagedFileError):
        return RunFolder(folder).manifest()["experiment"] if RunFolder(folder).has_run else ""
    return ""


def _listed(folder: Path, name: str) -> str:
    """The experiment whose run in a folder has a file of that name; empty where none has."""
    with suppress(DamagedFileError):
        manifest = RunFolder(folder).manifest() if RunFolder(folder).has_run else None
        return manifest["experiment"] if manifest is not None and name in manifest["files"] else ""
    return ""
