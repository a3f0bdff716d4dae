"""Bitext: sentence pairs of two languages, with gold word alignments where there are some."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

from typing_extensions import TypedDict

from trisect.core.errors import CorpusError
from trisect.core.files import digest, replace_file
from trisect.core.schema import LINE_BYTES
from trisect.text.corpus import check_lines

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


TRAIN, TEST = "train", "test"
TRIAL = ("trial", "valid", "dev")  # what the middle split is called by those who share bitexts
GOLD = (TALP, ".pharaoh", ".align", ".links", ".gold")
OTHERS = (*GOLD, ".md", ".txt", ".json")


class SentencePair(NamedTuple):
    """A sentence and its translation as words; gold links (source, target) from 0, null where nobody made any.

    `possible` includes `sure`.
    """

    source: tuple[str, ...]
    target: tuple[str, ...]
    sure: LinkSet | None = None
    possible: LinkSet | None = None

    @property
    def sides(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The words of both sentences."""
        return self.source, self.target

    @property
    def longest(self) -> int:
        """Words of the longer side."""
        return max(len(self.source), len(self.target))


class Pairs(NamedTuple):
    """Sentence pairs of two files, and what was found out about their links."""

    pairs: tuple[SentencePair, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Bitext:
    """Pairs to learn from, pairs to choose by (a trial set) and pairs to score, with a fingerprint of them all."""

    name: str
    train: tuple[SentencePair, ...]
    valid: tuple[SentencePair, ...]
    test: tuple[SentencePair, ...]
    notes: tuple[str, ...] = ()
    fingerprint: str = ""

    def training_pairs(self, longest: int) -> tuple[SentencePair, ...]:
        """The train pairs of at most so many words a side, each once, and none that is in valid or test."""
        scored = {pair.sides for pair in (*self.valid, *self.test)}
        once = {pair.sides: pair for pair in reversed(self.train) if pair.longest <= longest}
        kept = dict.fromkeys(pair.sides for pair in self.train)
        return tuple(once[words] for words in kept if words in once and words not in scored)


def read_pairs(
    source: str | Path, target: str | Path, gold: str | Path | None = None, base: int | None = None
) -> Pairs:
    """Read two files, line n of one the translation of line n of the other, and a file of links from source to target.

    Words stand apart by spaces or tabs. `base` says what the first word counts as in the links (0 or 1), where that does not
    show (text.alignment_files.read_links). Raises CorpusError for sides with different numbers of lines, an empty sentence, and
    links that do not fit.
    """
    if base is not None and gold is None:
        known = "It says from what the links of a gold file count."
        raise CorpusError(f"A base of {base} was given, and no gold links.", known, "Leave --base out, or give --gold.")
    paths = (Path(source), Path(target))
    sides = [[split_words(line) for line in read_lines(path)] for path in paths]
    if len(sides[0]) != len(sides[1]):
        given = " and ".join(f"{path} has {plural(len(side), 'line')}" for path, side in zip(paths, sides, strict=True))
        longer = 0 if len(sides[0]) > len(sides[1]) else 1
        first = min(len(sides[0]), len(sides[1])) + 1
        known = f"Line n of one is the translation of line n of the other; line {first} of {paths[longer]} has none."
        raise CorpusError(f"{given}.", known, "Give files with as many lines.")
    if not sides[0]:
        raise CorpusError(f"{paths[0]} is empty.", "It has no sentence.", "Give at least one sentence pair.")
    for path, side in zip(paths, sides, strict=True):
        for number, words in enumerate(side, start=1):
            if not any(map(str.strip, words)):
                known = "A sentence has at least one word."
                todo = "Leave that line out of both files, and out of the links."
                raise CorpusError(f"{path}, line {number}, is empty.", known, todo)
    if gold is None:
        return Pairs(tuple(SentencePair(*both) for both in zip(*sides, strict=True)), ())
    found = read_links(Path(gold), [(len(s), len(t)) for s, t in zip(*sides, strict=True)], base)
    if not any(links.possible for links in found.sentences):
        todo = "Give the links that somebody made, or leave them out."
        raise CorpusError(f"{gold} holds no link, so that it is no gold.", FORM, todo)
    return Pairs(tuple(_with(found, *sides)), (found.note,))


def split_words(line: str) -> tuple[str, ...]:
    """The words of a line: what is between spaces and tabs; other white space, such as the no-break space, is part of a word."""
    return tuple(word for word in line.replace("\t", " ").split(" ") if word)


def open_bitext(
    where: str | Path | Sequence[str | Path], languages: tuple[str, str] | None = None, base: int | None = None
) -> Bitext:
    """A folder with train.en and train.fr, say, and valid and test pairs of the same languages; or two files to learn from.

    The middle split may be called trial, valid or dev. Links of a split are SPLIT.talp or SPLIT.pharaoh. `languages` are
    the endings of source and target; without it they are those of the train files, in alphabetical order. Raises
    CorpusError where the train files are missing, or more than two.
    """
    if isinstance(where, (str, Path)):
        return _open_folder(Path(where), languages, base)
    paths = [Path(path) for path in where]
    if len(paths) != len(SIDES):
        given = f"{plural(len(paths), 'file')} to learn from."
        raise CorpusError(given, "A bitext has two, source and target.", "Give two files, or a folder.")
    found = read_pairs(paths[0], paths[1])
    return assemble(f"{paths[0].name} and {paths[1].name}", {TRAIN: found.pairs}, found.notes)


def assemble(name: str, splits: Mapping[str, Sequence[SentencePair]], notes: Iterable[str]) -> Bitext:
    """A Bitext of the splits train, valid and test, with its fingerprint."""
    train, valid, test = (tuple(splits.get(split, ())) for split in (TRAIN, "valid", TEST))
    marks = "\n\n".join("\n".join(map(_mark, part)) for part in (train, valid, test))
    return Bitext(name, train, valid, test, tuple(notes), digest(marks, 8))


PairData: TypeAlias = tuple[list[str], list[str], list[list[int]] | None, list[list[int]] | None]


class BitextData(TypedDict):
    """A Bitext as JSON: a pair is its two lists of words, then its sure and its possible links or null."""

    name: str
    notes: list[str]
    fingerprint: str
    train: list[PairData]
    valid: list[PairData]
    test: list[PairData]


def bitext_data(bitext: Bitext) -> BitextData:
    """As JSON-ready data."""
    train, valid, test = ([_data(pair) for pair in part] for part in (bitext.train, bitext.valid, bitext.test))
    return BitextData(
        name=bitext.name, notes=list(bitext.notes), fingerprint=bitext.fingerprint, train=train, valid=valid, test=test
    )


def read_bitext(data: BitextData) -> Bitext:
    """The Bitext that travelled as JSON, made by `bitext_data`."""
    train, valid, test = (tuple(map(_pair, part)) for part in (data["train"], data["valid"], data["test"]))
    return Bitext(data["name"], train, valid, test, tuple(data["notes"]), data["fingerprint"])


def _open_folder(folder: Path, languages: tuple[str, str] | None, base: int | None) -> Bitext:
    here = sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []
    both = languages or _languages(folder, here)
    splits, notes = {}, [f"Source is {both[0]!r}, target {both[1]!r}."]
    trial = next((name for name in TRIAL if f"{name}.{both[0]}" in here), TRIAL[0])
    for split, name in ((TRAIN, TRAIN), ("valid", trial), (TEST, TEST)):
        if split == TRAIN or f"{name}.{both[0]}" in here:
            gold = next((folder / f"{name}{end}" for end in GOLD if f"{name}{end}" in here), None)
            found = read_pairs(folder / f"{name}.{both[0]}", folder / f"{name}.{both[1]}", gold, base)
            splits[split] = found.pairs
            notes += found.notes
    return assemble(folder.resolve().name, splits, notes)


def is_bitext(where: str | Path) -> bool:
    """Whether a folder holds two files to learn from, such as train.en and train.fr."""
    folder = Path(where)
    return folder.is_dir() and len(_endings(path.name for path in folder.iterdir())) == len(SIDES)


def _endings(names: Iterable[str]) -> list[str]:
    """What the names of train files end in."""
    ends = [name.removeprefix(f"{TRAIN}.") for name in names if name.startswith(f"{TRAIN}.")]
    return [end for end in ends if f".{end}" not in OTHERS]


def _languages(folder: Path, here: Sequence[str]) -> tuple[str, str]:
    """The endings of the two train files."""
    ends = _endings(here)
    if len(ends) != len(SIDES):
        known = f"It holds {', '.join(here[:8])}." if here else "It is empty or not there."
        todo = "Give a folder with two files such as train.en and train.fr, or the two files themselves."
        raise CorpusError(f"{folder} has {plural(len(ends), 'train file')}.", known, todo)
    return ends[0], ends[1]


def _with(
    gold: LinkFile, sources: Sequence[tuple[str, ...]], targets: Sequence[tuple[str, ...]]
) -> Iterable[SentencePair]:
    for source, target, linked in zip(sources, targets, gold.sentences, strict=True):
        yield SentencePair(source, target, linked.sure, linked.possible)


def _mark(pair: SentencePair) -> str:
    """A pair as one line, which no other pair has."""
    links = "" if pair.sure is None else format_links(pair.sure, pair.possible or ())
    return f"{' '.join(pair.source)}\t{' '.join(pair.target)}\t{links}"


def _data(pair: SentencePair) -> PairData:
    sure, possible = (None if some is None else sorted(map(list, some)) for some in (pair.sure, pair.possible))
    return list(pair.source), list(pair.target), sure, possible


def _pair(row: PairData) -> SentencePair:
    links = [None if some is None else frozenset((int(s), int(t)) for s, t in some) for some in row[2:]]
    return SentencePair(tuple(row[0]), tuple(row[1]), *links)
