"""Bitexts: sentence pairs of two languages, with gold word alignments if available."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import PlainSerializer

from trisect.core.errors import CorpusError
from trisect.core.files import digest, replace_file
from trisect.core.schema import MAX_LINE_BYTES, MAX_TEXT_BYTES
from trisect.text.lines import open_text, read_lines

Link = tuple[int, int]
LinkSet = frozenset[Link]

PATTERN = re.compile(r"([0-9]+)([-p])([0-9]+)")
LONGEST_NUMBER = 9  # digits; no sentence has so many words
SIDES = ("source", "target")
TALP = ".talp"
FORM = "A line has links such as 3-4, a sure one, and 3p4, a possible one, with spaces between."
LINK_ADVICE = "Check that the links and the sentences, source first, belong together."
BASE_ADVICE = "Give --base 0 or --base 1."


# a link of a file: its line, its text, the words that it joins, and whether it is sure
_Mark = tuple[int, str, Link, bool]


def read_links(
    path: Path, lengths: Sequence[Link], base: int | None = None, ids: Sequence[str] = ()
) -> tuple[tuple[tuple[LinkSet, LinkSet], ...], int, str]:
    """Read the links of sentence pairs with these numbers of words (source, target), each line bare or behind its ID and a tab.

    Returns sure and possible links (these include the sure ones) of each sentence from 0, what the first word counts as in the file, and a
    note on how that is known. Raises CorpusError for a malformed link, one outside its sentence, and what contradicts itself.
    """
    if base not in (None, 0, 1):
        raise CorpusError(f"A base of {base}.", "The first word counts as 0 or as 1.", BASE_ADVICE)
    lines, own_ids = _without_ids(read_lines(path))
    if len(lines) != len(lengths):
        problem = f"{path} has {_plural(len(lines), 'line')}."
        reason = f"There are {_plural(len(lengths), 'sentence pair')}, and a line of links for each."
        raise CorpusError(
            problem, reason, "Give the links of these very sentences, an empty line where there are none."
        )
    if ids and own_ids:
        _check_ids(path, own_ids, ids)
    elif own_ids:  # the sentences have no IDs
        sizes = [(len(text), text) for text in (number.lstrip("0") for number in own_ids)]
        for number, (before, here) in enumerate(pairwise(sizes), start=2):
            if here <= before:
                this, other = (own_ids[n][:LONGEST_NUMBER] for n in (number - 1, number - 2))
                reason = f"The ID {this} stands there, after {other}, and the sentences have no IDs to find it by."
                todo = "Give the links in the order of the sentences, or sentences with their IDs."
                raise CorpusError(f"{path}, line {number}, is out of order.", reason, todo)
    marks: list[_Mark] = []
    for number, line in enumerate(lines, start=1):
        for text in _words(line):
            match = PATTERN.fullmatch(text)
            if match is None or max(len(match[1]), len(match[3])) > LONGEST_NUMBER:
                raise CorpusError(f"{path}, line {number}: {text[:40]!r} is no link.", FORM, "Correct that line.")
            marks.append((number, text, (int(match[1]), int(match[3])), match[2] == "-"))
    first, evidence = _detect_base(path, marks, lengths, base)
    sure: list[set[Link]] = [set() for _ in lengths]
    possible: list[set[Link]] = [set() for _ in lengths]
    for number, _, ends, is_sure in marks:
        link = ends[0] - first, ends[1] - first
        possible[number - 1].add(link)
        if is_sure:
            sure[number - 1].add(link)
    sentences = tuple((frozenset(s), frozenset(p)) for s, p in zip(sure, possible, strict=True))
    return sentences, first, f"{path.name} counts words from {first}: {evidence}."


def _detect_base(path: Path, marks: Sequence[_Mark], lengths: Sequence[Link], base: int | None) -> tuple[int, str]:
    """The number of the first word (0 or 1), and the evidence; a link that is outside its sentence in both cases is an error."""
    ends = [(*mark[:2], SIDES[i], mark[2][i], lengths[mark[0] - 1][i]) for mark in marks for i in (0, 1)]
    for line, text, side, index, words in ends:
        if index > words:
            problem = f"{path}, line {line}: {text} links {side} word {index}."
            reason = f"The {side} sentence of that line has {_plural(words, 'word')}."
            raise CorpusError(problem, reason, LINK_ADVICE)
    zero = next((end for end in ends if end[3] == 0), None)
    last = next((end for end in ends if end[3] == end[4]), None)  # can only be the last word, counted from 1
    if zero and last:
        line, text, side, _, words = last
        problem = f"{path} counts from 0 in line {zero[0]} ({zero[1]}) and from 1 in line {line} ({text})."
        reason = f"The {side} of line {line} has {_plural(words, 'word')}: its last, from 0, is {words - 1}."
        raise CorpusError(problem, reason, LINK_ADVICE)
    if first := zero or last:
        shown, sign = (0, "an index 0") if zero else (1, "an index as large as the sentence")
        if base not in (None, shown):
            problem = f"{path} was said to count from {base}."
            reason = f"{first[1]} in line {first[0]} shows that it counts from {shown}."
            raise CorpusError(problem, reason, f"Leave --base out, or give --base {shown}.")
        return shown, f"line {first[0]} has {sign} ({first[1]})"
    if base is not None:
        return base, "so it was said, and nothing in it says otherwise"
    if not marks or path.suffix == TALP:
        return 1, "so the form says, and nothing in it says otherwise" if marks else "it has no links"
    reason = "No index is 0, and none is as large as its sentence has words."
    raise CorpusError(f"{path} does not show whether its first word counts as 0 or as 1.", reason, BASE_ADVICE)


def _format_links(links: Iterable[Link], possible: Iterable[Link] = (), base: int = 0) -> str:
    """A line of links: sure ones as 3-4, merely possible ones as 3p4, sorted; the first word has number `base`."""
    sure = set(links)
    rows = sorted({(link, "-") for link in sure} | {(link, "p") for link in set(possible) - sure})
    return " ".join(f"{source + base}{kind}{target + base}" for (source, target), kind in rows)


def write_links(path: Path, rows: Iterable[tuple[Iterable[Link], Iterable[Link]]], base: int) -> None:
    """Write pairs of sure and possible links atomically, a line per sentence pair."""
    write_lines(path, (_format_links(sure, possible, base) for sure, possible in rows))


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines to a text file atomically."""
    text = "".join(f"{line}\n" for line in lines)
    replace_file(path, lambda scratch: scratch.write_text(text, encoding="utf-8"))


def _plural(count: int, word: str) -> str:
    """A number with its noun: '1 line', '2 lines'."""
    return f"{count:,} {word}{'s' * (count != 1)}"


TRAIN, TEST = "train", "test"
TRIAL = ("trial", "valid", "dev")  # what the middle split is called by those who share bitexts
GOLD = (TALP, ".pharaoh", ".align", ".links", ".gold")
OTHER_SUFFIXES = (*GOLD, ".md", ".txt", ".json")


class SentencePair(NamedTuple):
    """A sentence and its translation as words; gold links from 0, `possible` including `sure`, None without gold."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    sure: Annotated[LinkSet, PlainSerializer(sorted)] | None = None
    possible: Annotated[LinkSet, PlainSerializer(sorted)] | None = None

    @property
    def sides(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The words of both sentences."""
        return self.source, self.target

    @property
    def longest(self) -> int:
        """The number of words of the longer side."""
        return max(map(len, self.sides))


class Pairs(NamedTuple):
    """Sentence pairs of two files, and notes on their links."""

    pairs: tuple[SentencePair, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Bitext:
    """Train pairs, trial pairs and test pairs, with a fingerprint of all."""

    name: str
    train: tuple[SentencePair, ...]
    valid: tuple[SentencePair, ...]
    test: tuple[SentencePair, ...]
    notes: tuple[str, ...] = ()
    fingerprint: str = ""

    def training_pairs(self, longest: int) -> tuple[SentencePair, ...]:
        """Distinct train pairs of at most so many words a side that are not in valid or test."""
        scored = {pair.sides for pair in (*self.valid, *self.test)}
        once = {pair.sides: pair for pair in reversed(self.train) if pair.longest <= longest}
        in_order = dict.fromkeys(pair.sides for pair in self.train)
        return tuple(once[words] for words in in_order if words in once and words not in scored)


def read_pairs(
    source: str | Path, target: str | Path, gold: str | Path | None = None, base: int | None = None
) -> Pairs:
    """Read two parallel files, and a file of links from source to target (see `read_links`).

    One file given twice has `source ||| target` in each line; lines of all files may begin with the pair's ID and a tab. Words stand apart
    by spaces or tabs. Raises CorpusError for unequal numbers of lines, IDs of one side, an empty sentence, and links that do not fit.
    """
    if base is not None and gold is None:
        problem = f"A base of {base} was given, and no gold links."
        raise CorpusError(
            problem, "It is the number of the first word in gold links.", "Leave --base out, or give --gold."
        )
    paths = (Path(source), Path(target))
    rows = [read_lines(path) for path in dict.fromkeys(paths)]
    lines: Sequence[Sequence[str]] = [*rows, *rows][:2]
    notes = list[str]()
    shared: Sequence[str] = ()
    if len(rows) == 1 and any(SEPARATOR.search(line) for line in rows[0]):
        bare, shared = _without_ids(rows[0])
        divided = [SEPARATOR.split(line) for line in bare]
        if wrong := next(((n, len(parts) - 1) for n, parts in enumerate(divided, start=1) if len(parts) != 2), None):
            reason = f"The sign ||| stands {_plural(wrong[1], 'time')} in it, and a line is source ||| target."
            raise CorpusError(f"{paths[0]}, line {wrong[0]}, is no pair.", reason, "Correct that line.")
        lines = list(zip(*divided, strict=True))
        notes.append(f"{paths[0].name} has source ||| target in each line.")
    (bare, ids), (translated, others) = map(_without_ids, lines)
    if shared:  # an ID before the source is of both sides
        bare, ids, others = lines[0], shared, others or shared
    if ids and others:
        _check_ids(paths[1], others, ids)
        lines = [bare, translated]
        names = " and ".join(dict.fromkeys(path.name for path in paths))
        notes.append(f"Lines of {names} begin with the pair's ID, which is no word of it.")
    elif (ids or others) and all(lines):
        side = 0 if ids else 1
        problem = f"{paths[side]}, line 1: its {SIDES[side]} begins with {(ids or others)[0][:LONGEST_NUMBER]} and a tab, as with an ID."
        reason = f"So it does in every line; the {SIDES[1 - side]} does not ({paths[1 - side]})."
        todo = "Give IDs to both or to neither; where the number is a word, put a space for the tab."
        raise CorpusError(problem, reason, todo)
    sides = [[tuple(_words(line)) for line in side] for side in lines]
    if len(sides[0]) != len(sides[1]):
        problem = " and ".join(f"{p} has {_plural(len(side), 'line')}" for p, side in zip(paths, sides, strict=True))
        longer, first = int(len(sides[0]) < len(sides[1])), min(map(len, sides)) + 1
        reason = f"Line n of one is the translation of line n of the other; line {first} of {paths[longer]} has none."
        raise CorpusError(f"{problem}.", reason, "Give files with as many lines.")
    _check_sentences(paths, sides)
    if gold is None:
        return Pairs(tuple(SentencePair(*both) for both in zip(*sides, strict=True)), tuple(notes))
    lengths = [(len(s), len(t)) for s, t in zip(*sides, strict=True)]
    sentences, _, note = read_links(Path(gold), lengths, base, ids)
    if not any(possible for _, possible in sentences):
        todo = "Give the links that somebody made, or leave them out."
        raise CorpusError(f"{gold} holds no link, so that it is no gold.", FORM, todo)
    pairs = (SentencePair(s, t, *links) for s, t, links in zip(*sides, sentences, strict=True))
    return Pairs(tuple(pairs), (*notes, note))


def _check_sentences(paths: Sequence[Path], sides: Sequence[Sequence[tuple[str, ...]]]) -> None:
    """Raise CorpusError for files without a sentence, or with a sentence without a word."""
    if not sides[0]:
        raise CorpusError(f"{paths[0]} is empty.", "It has no sentence.", "Give at least one sentence pair.")
    for path, side in zip(paths, sides, strict=True):
        for number, words in enumerate(side, start=1):
            if not any(map(str.strip, words)):
                todo = "Leave that line out of both files, and out of the links."
                raise CorpusError(f"{path}, line {number}, is empty.", "A sentence has at least one word.", todo)


# a text, and where its source words and its target words stand
SpannedText = tuple[str, tuple[Link, ...], tuple[Link, ...]]


def read_texts(
    path: str | Path, marker: str | None, spans: str | Path | None = None, word: str = r"\S+"
) -> tuple[SpannedText, ...]:
    """Read texts, one per line, each with a source and a target: before and after the `marker`, or as in the file `spans`.

    A line of `spans` has the source's and the target's characters as 0-12 15-30, counted from 0, the end left out. Words are what
    the regular expression `word` finds in both; each is (start, end) in the text. Raises CorpusError for a line without the marker
    or with several, spans outside the line, and a side without a word.
    """
    try:
        pattern = re.compile(word)
    except re.error as error:
        reason = f"It is no regular expression: {error}."
        raise CorpusError(f"Words are to be {word[:60]!r}.", reason, r"Give one such as \S+ or [A-Za-z]+.") from error
    lines, places = read_lines(Path(path)), None if spans is None else read_lines(Path(spans))
    if places is not None and len(places) != len(lines):
        problem = f"{spans} has {_plural(len(places), 'line')}, {path} {_plural(len(lines), 'text')}."
        raise CorpusError(problem, "A line of spans is of one text.", "Give a line of spans for each text.")
    placed = list[SpannedText]()
    for number, line in enumerate(lines, start=1):
        if places is not None:
            form = re.fullmatch(r"([0-9]{1,9})-([0-9]{1,9})\s+([0-9]{1,9})-([0-9]{1,9})", places[number - 1].strip())
            ends = (*map(int, form.groups()),) if form else ()
            if not ends or ends[0] >= ends[1] or ends[2] >= ends[3] or max(ends) > len(line):
                problem = f"{spans}, line {number}, is {places[number - 1][:40]!r}."
                reason = f"Spans are two such as 0-12 15-30, and text {number} has {_plural(len(line), 'character')}."
                raise CorpusError(problem, reason, "Correct that line.")
        else:
            count = line.count(marker) if marker else 0
            if not marker or count != 1:
                reason = (
                    f"The marker {marker!r} stands {_plural(count, 'time')} in it; source and target are apart by one."
                )
                raise CorpusError(f"{path}, line {number}, is {line[:60]!r}.", reason, "Give one --marker, or --spans.")
            place = line.index(marker)
            ends = (0, place, place + len(marker), len(line))
        sides = [
            tuple(match.span() for match in pattern.finditer(line, start, end) if match.group())
            for start, end in (ends[:2], ends[2:])
        ]
        for side, words in zip(SIDES, sides, strict=True):
            if not words:
                reason = f"Words are what {word!r} finds."
                raise CorpusError(f"{path}, line {number}: its {side} has no word.", reason, "Correct it, or --word.")
        placed.append((line, sides[0], sides[1]))
    if not placed:
        raise CorpusError(f"{path} is empty.", "It has no text.", "Give at least one text.")
    return tuple(placed)


SEPARATOR = re.compile(r"(?:^|[ \t])\|\|\|(?:[ \t]|$)")  # between the sides of a pair that share a line


def _without_ids(lines: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Lines without the number and tab at the start of all of them, and the numbers; else the lines, and None."""
    if not lines or not all(re.match(r"[0-9]+\t", line) for line in lines):
        return lines, ()
    ids, rest = zip(*(line.split("\t", 1) for line in lines), strict=True)
    return rest, ids


def _check_ids(path: Path, own_ids: Sequence[str], ids: Sequence[str]) -> None:
    """Raise CorpusError for the first line of a file whose ID differs from the source's."""
    for number, (this, other) in enumerate(zip(own_ids, ids, strict=False), start=1):
        if this != other:
            reason = f"It begins with the ID {this[:LONGEST_NUMBER]}, the source's with {other[:LONGEST_NUMBER]}."
            raise CorpusError(f"{path}, line {number}, is of another pair.", reason, LINK_ADVICE)


def _words(line: str) -> list[str]:
    """Words separated by spaces or tabs; other white space, such as no-break spaces, belongs to words."""
    return [word for word in line.replace("\t", " ").split(" ") if word]


def open_bitext(where: str | Path | Sequence[str | Path]) -> Bitext:
    """Open a folder with train.en and train.fr, say, and valid and test pairs of the same languages; or two training files.

    One file, and a folder with one train file, has source ||| target in each line. The middle split may be called trial, valid or dev,
    links are SPLIT.talp or SPLIT.pharaoh. Raises CorpusError.
    """
    if isinstance(where, (str, Path)) and Path(where).is_file():
        where = (where, where)
    if not isinstance(where, (str, Path)):
        paths = [Path(path) for path in where]
        if len(paths) != len(SIDES):
            problem = f"{_plural(len(paths), 'file')} to learn from."
            raise CorpusError(problem, "A bitext has two, source and target.", "Give two files, or a folder.")
        train = read_pairs(paths[0], paths[1])
        if paths[0] == paths[1] and not any("source ||| target" in note for note in train.notes):
            reason = "No line has the sign ||| between spaces, so that each would be its own translation."
            raise CorpusError(
                f"{paths[0]} is one file.", reason, "Write source ||| target in each line, or give two files."
            )
        names = " and ".join(dict.fromkeys(path.name for path in paths))
        return make_bitext(names, {TRAIN: train.pairs}, train.notes)
    folder = Path(where)
    files = sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []
    ends = _endings(folder)
    if len(ends) != len(SIDES):
        reason = f"It holds {', '.join(files[:8])}." if files else "It is empty or not there."
        todo = "Give a folder with two files such as train.en and train.fr, or the two files themselves."
        raise CorpusError(f"{folder} has {_plural(len(ends), 'train file')}.", reason, todo)
    source, target = ends
    splits, notes = {}, [f"Source is {source!r}, target {target!r}."] if source != target else []
    trial = next((name for name in TRIAL if f"{name}.{source}" in files), TRIAL[0])
    for split, name in ((TRAIN, TRAIN), ("valid", trial), (TEST, TEST)):
        if split == TRAIN or f"{name}.{source}" in files:
            gold = next((folder / f"{name}{end}" for end in GOLD if f"{name}{end}" in files), None)
            pairs = read_pairs(folder / f"{name}.{source}", folder / f"{name}.{target}", gold)
            splits[split] = pairs.pairs
            notes += pairs.notes
    return make_bitext(folder.resolve().name, splits, notes)


def make_bitext(name: str, splits: Mapping[str, Sequence[SentencePair]], notes: Iterable[str]) -> Bitext:
    """A Bitext of the splits train, valid and test, with its fingerprint."""

    def line(pair: SentencePair) -> str:  # which no other pair has
        links = "" if pair.sure is None else _format_links(pair.sure, pair.possible or ())
        return f"{' '.join(pair.source)}\t{' '.join(pair.target)}\t{links}"

    train, valid, test = (tuple(splits.get(split, ())) for split in (TRAIN, "valid", TEST))
    marks = "\n\n".join("\n".join(map(line, part)) for part in (train, valid, test))
    return Bitext(name, train, valid, test, tuple(notes), digest(marks, 8))


def is_bitext(where: str | Path) -> bool:
    """Whether a folder has two training files, such as train.en and train.fr, or one with source ||| target in each line."""
    return len(_endings(Path(where))) == len(SIDES)


def _endings(folder: Path) -> list[str]:
    """The endings of a folder's train files; twice the same for one file with both sides."""
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    ends = [name.removeprefix(f"{TRAIN}.") for name in names if name.startswith(f"{TRAIN}.")]
    languages = [end for end in ends if f".{end}" not in OTHER_SUFFIXES]
    if len(ends) == 1 and f".{ends[0]}" not in GOLD and (folder / f"{TRAIN}.{ends[0]}").is_file():
        with open_text(folder / f"{TRAIN}.{ends[0]}", MAX_LINE_BYTES, MAX_TEXT_BYTES) as file:
            return ends * 2 if SEPARATOR.search(file.readline()) else languages
    return languages
