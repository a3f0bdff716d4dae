"""Word alignment files (Pharaoh, .talp): links of words, one sentence a line, counted from 0 or from 1."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from trisect.core.bounds import LINE_BYTES
from trisect.core.errors import CorpusError
from trisect.core.files import replace_file
from trisect.text.long_lines import check_lines

Link = tuple[int, int]
LinkSet = frozenset[Link]

PATTERN = re.compile(r"([0-9]+)([-p])([0-9]+)")
LONGEST_NUMBER = 9  # digits; no sentence has so many words
SIDES = ("source", "target")
TALP = ".talp"
FORM = "A line has links such as 3-4, a sure one, and 3p4, a possible one, with spaces between."
TOGETHER = "Check that the links and the sentences, source first, belong together."
ASK = "Give --base 0 or --base 1."


class GoldLinks(NamedTuple):
    """The gold links of a sentence pair, (source, target), counted from 0; `possible` includes `sure`."""

    sure: LinkSet
    possible: LinkSet


class LinkFile(NamedTuple):
    """The links of a file, sentence by sentence, and what its first word counts as there: 0 or 1."""

    sentences: tuple[GoldLinks, ...]
    base: int
    note: str


class _Mark(NamedTuple):
    """One link as the file has it, and where it stands."""

    line: int
    text: str
    ends: Link
    sure: bool


def read_links(path: Path, lengths: Sequence[Link], base: int | None = None) -> LinkFile:
    """Read the links of sentence pairs with these numbers of words (source, target).

    Whether a file counts from 0 or from 1 shows in it: an index 0, or one as large as its sentence has words. Where
    neither is met a .talp file counts from 1, as its form says, and of others `base` has to be given. Raises
    CorpusError for a malformed link, one outside its sentence, another number of lines, and what contradicts itself.
    """
    if base not in (None, 0, 1):
        raise CorpusError(f"A base of {base}.", "The first word counts as 0 or as 1.", ASK)
    lines = read_lines(path)
    if len(lines) != len(lengths):
        given = f"{path} has {plural(len(lines), 'line')}."
        known = f"There are {plural(len(lengths), 'sentence pair')}, and a line of links for each."
        raise CorpusError(given, known, "Give the links of these very sentences, an empty line where there are none.")
    marks = [mark for number, line in enumerate(lines, start=1) for mark in _marks(path, number, line)]
    found, words = _detect(path, marks, lengths, base)
    sure: list[set[Link]] = [set() for _ in lengths]
    possible: list[set[Link]] = [set() for _ in lengths]
    for mark in marks:
        source, target = mark.ends[0] - found, mark.ends[1] - found
        possible[mark.line - 1].add((source, target))
        if mark.sure:
            sure[mark.line - 1].add((source, target))
    sentences = tuple(GoldLinks(frozenset(s), frozenset(p)) for s, p in zip(sure, possible, strict=True))
    return LinkFile(sentences, found, f"{path.name} counts words from {found}: {words}.")


def format_links(links: Iterable[Link], possible: Iterable[Link] = (), base: int = 0) -> str:
    """A line of links: sure ones as 3-4, those that are only possible as 3p4, sorted; the first word counts as `base`."""
    sure = set(links)
    rows = sorted({(link, "-") for link in sure} | {(link, "p") for link in set(possible) - sure})
    return " ".join(f"{source + base}{kind}{target + base}" for (source, target), kind in rows)


def write_links(path: Path, rows: Iterable[tuple[Iterable[Link], Iterable[Link]]], base: int) -> None:
    """Write pairs of sure and possible links, a line a sentence pair, whole or not at all."""
    write_lines(path, (format_links(sure, possible, base) for sure, possible in rows))


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a text file of these lines, whole or not at all."""
    text = "".join(f"{line}\n" for line in lines)
    replace_file(path, lambda scratch: scratch.write_text(text, encoding="utf-8"))


def plural(count: int, word: str) -> str:
    """A number with what is counted: '1 line', '2 lines'."""
    return f"{count:,} {word}{'s' * (count != 1)}"


def read_lines(path: Path) -> list[str]:
    """The lines of a file, without their ends; raises CorpusError where it is missing or not UTF-8."""
    try:
        check_lines(path, LINE_BYTES)
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        here = sorted(p.name for p in path.parent.iterdir())[:8] if path.parent.is_dir() else []
        known = f"{path.parent} holds {', '.join(here)}." if here else f"{path.parent} is empty or not there."
        raise CorpusError(f"There is no file {path}.", known, "Give a file that is there.") from None
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        raise CorpusError(
            f"{path}, line {line}, is not UTF-8.", f"Byte {error.start} is none.", "Save it as UTF-8."
        ) from None
    except OSError as error:
        raise CorpusError(f"{path} cannot be read.", f"The system says: {error}", "Give a file.") from None
    # only a line feed ends a line: others (U+2028 ...) stand inside sentences of crawled text
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines[:-1] if lines[-1] == "" else lines


def _marks(path: Path, number: int, line: str) -> list[_Mark]:
    found = []
    for text in line.split():
        match = PATTERN.fullmatch(text)
        if match is None or max(len(match[1]), len(match[3])) > LONGEST_NUMBER:
            raise CorpusError(f"{path}, line {number}: {text[:40]!r} is no link.", FORM, "Correct that line.")
        found.append(_Mark(number, text, (int(match[1]), int(match[3])), match[2] == "-"))
    return found


def _detect(path: Path, marks: Sequence[_Mark], lengths: Sequence[Link], base: int | None) -> tuple[int, str]:
    """What the first word counts as, and the sign of it; a link outside its sentence is an error by either count."""
    from_zero = next((mark for mark in marks if 0 in mark.ends), None)
    from_one = next((mark for mark in marks if any(_ends(mark, lengths))), None)
    for mark in marks:
        for side in (0, 1):
            if mark.ends[side] > lengths[mark.line - 1][side]:
                raise _outside(path, mark, side, lengths)
    if from_zero and from_one:
        raise _contradicted(path, from_zero, from_one, lengths)
    shown = 0 if from_zero else 1 if from_one else None
    first = from_zero or from_one
    if base is not None and shown is not None and base != shown and first is not None:
        given = f"{path} was said to count from {base}."
        known = f"{first.text} in line {first.line} shows that it counts from {shown}."
        raise CorpusError(given, known, f"Leave --base out, or give --base {shown}.")
    if first is not None and shown is not None:
        sign = "an index 0" if shown == 0 else "an index as large as the sentence"
        return shown, f"line {first.line} has {sign} ({first.text})"
    if base is not None:
        return base, "so it was said, and nothing in it says otherwise"
    if not marks or path.suffix == TALP:
        return 1, "so the form says, and nothing in it says otherwise" if marks else "it has no links"
    known = "No index is 0, and none is as large as its sentence has words."
    raise CorpusError(f"{path} does not show whether its first word counts as 0 or as 1.", known, ASK)


def _ends(mark: _Mark, lengths: Sequence[Link]) -> list[bool]:
    """On which side the index is the number of words, so that it can only be the last word counted from 1."""
    return [index == most for index, most in zip(mark.ends, lengths[mark.line - 1], strict=True)]


def _contradicted(path: Path, from_zero: _Mark, from_one: _Mark, lengths: Sequence[Link]) -> CorpusError:
    zero, one = (f"in line {mark.line} ({mark.text})" for mark in (from_zero, from_one))
    side = _ends(from_one, lengths).index(True)
    words = lengths[from_one.line - 1][side]
    known = (
        f"An index 0 is a first word counted from 0; the {SIDES[side]} of line {from_one.line} has "
        f"{plural(words, 'word')}, so that its last, from 0, is {words - 1}."
    )
    return CorpusError(f"{path} counts from 0 {zero} and from 1 {one}.", known, TOGETHER)


def _outside(path: Path, mark: _Mark, side: int, lengths: Sequence[Link]) -> CorpusError:
    given = f"{path}, line {mark.line}: {mark.text} links {SIDES[side]} word {mark.ends[side]}."
    known = f"The {SIDES[side]} sentence of that line has {plural(lengths[mark.line - 1][side], 'word')}."
    return CorpusError(given, known, TOGETHER)
