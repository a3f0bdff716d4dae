"""Error classes: one root and its children, each with what you gave, what there is, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

LONGEST = 60  # characters of a name that are shown
ALIKE = 0.7  # letters in common: tset and test, but not depth and width


class TrisectError(Exception):
    """Root of all errors that bad input can cause; the message has three parts.

    `given` quotes what was given, `known` says what there is, `todo` says what to do next.
    """

    def __init__(self, given: str, known: str, todo: str) -> None:
        super().__init__(given, known, todo)
        self.given, self.known, self.todo = given, known, todo

    def __str__(self) -> str:
        return f"{self.given}\n  {self.known}\n  {self.todo}"


class SiteError(TrisectError):
    """A site is misspelt, empty, or not in the model."""


class SpecError(TrisectError):
    """An experiment, a model, a preset or a machine is stated wrongly."""


class CorpusError(TrisectError):
    """A text, a label column or a pipeline cannot be used."""


class StudyError(TrisectError):
    """A study's folder is in use, belongs to another study, or cannot be written."""


class DamagedFileError(StudyError):
    """A file that trisect wrote no longer holds what was written."""


class ModelError(TrisectError):
    """A model is not there, cannot be loaded, cannot be read, or does not pass the proof."""


class TheoryError(TrisectError):
    """A construction of attention by hand is asked for outside what can be built or computed."""


def check_named(what: str, given: object) -> None:
    """Raise SpecError for an empty name of a folder or model, which would be read as the folder that one is in."""
    if isinstance(given, str) and not given.strip():
        known = "An empty name would mean the folder that you are in."
        raise SpecError(f"The name of {what} is {given!r}.", known, "Write . for that folder, or name another one.")


def unknown(what: str, given: object, there: Iterable[str]) -> str:
    """The first part of an error about a name that is not among those there are, with the closest of them."""
    shown = repr(given)
    if len(shown) > LONGEST:
        shown = f"{shown[:LONGEST]}…"
    return f"Unknown {what} {shown}{or_closest(given, there)}"


def or_closest(given: object, there: Iterable[str]) -> str:
    """The end of a sentence that quotes a name: a full stop, or the closest of the names that there are."""
    close = get_close_matches(given.lower(), list(there), 1, ALIKE) if isinstance(given, str) else []
    return f"; did you mean {close[0]!r}?" if close else "."


def need(ok: bool, given: str, known: str, todo: str) -> None:
    """Raise a SpecError of these three parts unless `ok`."""
    if not ok:
        raise SpecError(given, known, todo)


def shortened(value: object, most: int = LONGEST) -> str:
    """A value as an error quotes it: one that would fill the screen by its beginning."""
    if isinstance(value, int) and abs(value) >= 10**most:  # Python spells no whole number of over 4,300 digits
        return f"a number of over {most} digits"
    said = repr(value)
    return said if len(said) <= most else f"{said[:most]}… ({len(said):,} characters)"
