"""Bitext: sentence pairs of two languages, with gold word alignments where there are some."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

from typing_extensions import TypedDict

from trisect.core.errors import CorpusError
from trisect.core.files import digest
from trisect.text.alignment_files import (
    FORM,
    SIDES,
    TALP,
    LinkFile,
    LinkSet,
    format_links,
    plural,
    read_lines,
    read_links,
)

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
