"""Readers of texts, tried in order: treebanks, WikiText, plain text."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TextIO

from trisect.core.errors import CorpusError, unknown_name
from trisect.core.schema import MAX_CORPUS_BYTES, MAX_CORPUS_LINE_BYTES
from trisect.text.hub import DatasetTexts
from trisect.text.lines import SPLITS, UNKNOWN, XML_FORBIDDEN, open_text

LINE = 1 << 20  # characters read at once: a text without line ends is read in pieces of this size
SplitText = Path | DatasetTexts  # the text of one split: a file, or the rows of a dataset


class Token(NamedTuple):
    """A token as written, the number of words that it stands for (zum: zu dem), and whether a space follows."""

    form: str
    words: int = 1
    spaced: bool = True


@dataclass(frozen=True)
class Paragraph:
    """Words with case, and for each label column a class name per word (None without one).

    `text` is how they are written, for models with a tokenizer of their own: None where that is the words joined by spaces, empty
    for what is no text, such as a heading. `joined` counts the places where it differs from what the file says.
    `heads` is the number of each word's syntactic head among the words, from 1, and 0 for a root; empty where it is not known.
    `article` counts the articles (documents) that texts follow one another in; None where they are not marked.
    `tokens` are what the words are written as; empty where each is a token of its own.
    """

    words: Sequence[str]
    labels: Mapping[str, Sequence[str | None]] = field(default_factory=dict)
    text: str | None = None
    heads: tuple[int, ...] = ()
    article: int | None = None
    tokens: tuple[Token, ...] = ()
    joined: int = 0


@dataclass(frozen=True)
class Reader:
    """Reads one format of text. `files` has the patterns of file names for each split.

    `suits` says whether a folder, or the train rows of a dataset, are of this kind; readers are asked in their order.
    `paragraphs` are the words of a split with labels in `columns` (and others that it meets), and their texts; `unit` says what a
    text is. `hidden` are (lower-cased) words that stand for words left out, so that they carry no label. `notes` speak of the
    words, `label_notes` of the labels that come with them.
    """

    name: str
    files: Mapping[str, tuple[str, ...]]
    suits: Callable[[SplitText], bool]
    paragraphs: Callable[[SplitText], Iterator[Paragraph]]
    unit: str = "A text is a paragraph: its words, joined by spaces."
    columns: tuple[str, ...] = ()
    hidden: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    label_notes: tuple[str, ...] = ()

    def texts(self, part: SplitText) -> Iterator[tuple[str, Paragraph]]:
        """The texts of a split as written, with their paragraphs."""
        for paragraph in self.paragraphs(part):
            if text := " ".join(paragraph.words) if paragraph.text is None else paragraph.text:
                yield text, paragraph

    def candidates(self, folder: Path, split: str) -> list[Path]:
        """Files of a folder with a name of a split."""
        return sorted({path for pattern in self.files[split] for path in folder.glob(pattern) if path.is_file()})

    def find(self, where: Path) -> dict[str, Path]:
        """The file of each split of a folder; a single file is the test split. Raises CorpusError for several files of a split."""
        if where.is_file():
            return {"test": where}
        _need_folder(where)
        by_split = {}
        for split in SPLITS:
            paths = self.candidates(where, split)
            if len(paths) > 1:
                reason = f"Found {', '.join(p.name for p in paths)}."
                raise CorpusError(f"{where} has several {split} files.", reason, "Keep one of them in the folder.")
            if paths:
                by_split[split] = paths[0]
        if not by_split:
            raise missing_split_error(where, "train", self.files["train"], f"name a reader other than '{self.name}'")
        return by_split


def missing_split_error(folder: Path, split: str, patterns: Iterable[str], other: str) -> CorpusError:
    """The error for a folder without a file of a split; `other` is an alternative."""
    names = ", ".join(sorted(path.name for path in folder.iterdir())[:12]) or "nothing"
    reason = f"Looked for {' or '.join(patterns)}; the folder holds {names}."
    return CorpusError(f"{folder} has no {split} split.", reason, f"Add that file, or {other}.")


def _need_folder(folder: Path) -> None:
    """Raise CorpusError if there is no such folder."""
    reason = "A corpus is a folder with a text file for each of train and valid, such as train.txt and valid.txt."
    if folder.is_file():
        todo = "Put it into such a folder, or name its --reader; commands with --text also read texts themselves."
        raise CorpusError(f"{folder} is a file.", reason, todo)
    if not folder.is_dir():
        reason = (
            f"{reason[:-1]}; commands that train nothing also take a single file, with its --reader, such as plain."
        )
        raise CorpusError(f"There is no file or folder {folder}.", reason, "Check the path.")


def join_tokens(tokens: Sequence[Token]) -> str:
    """The text of the tokens."""
    return "".join(token.form + " " * token.spaced for token in tokens).removesuffix(" ")


def lines(part: SplitText) -> Iterator[str]:
    """Lines of a UTF-8 file or of a dataset's rows; longer ones in pieces of 2^20 characters, split at white space.

    Raises CorpusError as `open_text`, and for a piece without white space.
    """
    if isinstance(part, DatasetTexts):
        for text in part.texts():
            yield from _pieces(io.StringIO(text, newline="\n"))
        return
    with open_text(part, MAX_CORPUS_LINE_BYTES, MAX_CORPUS_BYTES) as file:
        yield from _pieces(file)


def _pieces(file: TextIO) -> Iterator[str]:
    rest = ""
    while piece := file.readline(LINE):
        line, rest = rest + piece, ""
        if not line.endswith("\n") and len(piece) == LINE:
            at = max(line.rfind(" "), line.rfind("\t")) + 1
            if not at:
                reason = f"A word has fewer than {LINE:,} characters."
                raise CorpusError(
                    f"The text holds {line[:20]!r}… without white space.", reason, "Give a text of words."
                )
            line, rest = line[:at], line[at:]
        yield line
    if rest:
        yield rest


_SPACED_SIGNS = str.maketrans({c: f" {c} " for c in "'.,()!?"} | {'"': "", ";": " ", ":": " "})
_BREAK = re.compile("<br />", re.IGNORECASE)
_WORD = re.compile(r"['.,()!?]|[^\s'.,()!?;:]+")
BASIC_ENGLISH = (
    "Words are split by the basic_english rules and lower-cased; empty lines are dropped and there is no "
    "end-of-line token."
)

MARKS = re.compile(r"<unk>|@[-,.]@|^ ?= .+ =\s*$", re.MULTILINE)
HEADING = re.compile(r"^ ?(= )+.+( =)+\s*$")
ARTICLE = re.compile(r"^ ?= [^=]+ = *$")
# what WikiText set apart, in the order in which it is joined again
JOINING_RULES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r" @([-,.])@ ", r"\1"),
        (r'(?<!\S)" ([^"]+?) "(?!\S)', r'"\1"'),
        (r"(?<=s) '(?= )(?![^']* '(?!\S))", "'"),  # the players ' club
        (r"(?<!\S)' ([^']+) '(?!\S)", r"'\1'"),
        (r" (?=(?:'(?:s|S|m|d|t|ll|re|ve|em)|n't)(?!\w))", ""),
        (r"(?<![^\s\"'])([(\[{“‘£€]|[A-Z]{0,3}\$) (?=\S)", r"\1"),
        (r"(?<=[\d)]) (?=%)", ""),
        (r" (?=[,.;:!?…)\]}”’]+(?:[\s\"')\]]|$))", ""),
    )
)


def basic_english(line: str) -> list[str]:
    """Words of a line with case; in lower case they are its `basic_english` tokens, one for one.

    ' . , ( ) ! ? stand alone; " is deleted; ; : and <br /> become a space (definitions A1).
    """
    bare = line.replace('"', "")
    return (_BREAK.sub(" ", bare) if "<" in bare else bare).translate(_SPACED_SIGNS).split()


def basic_english_spans(line: str) -> list[tuple[int, int]]:
    """The span of each `basic_english` word of a line: its first character, and the one after its last."""
    places = [i for i, character in enumerate(line) if character != '"']
    bare = _BREAK.sub(" " * len("<br />"), line.replace('"', ""))
    return [(places[match.start()], places[match.end() - 1] + 1) for match in _WORD.finditer(bare)]


def detokenise(line: str) -> tuple[str, int]:
    """A line of WikiText in normal spelling, and the number of places that were joined."""
    joined = 0
    for pattern, replacement in JOINING_RULES:
        line, count = pattern.subn(replacement, line)
        joined += count
    return line, joined


def _paragraphs(part: SplitText) -> Iterator[Paragraph]:
    """Words of each non-empty line, split by the basic_english rules."""
    for line in lines(part):
        if text := line.strip():
            yield Paragraph(basic_english(line), text=text)


def _is_wikitext(where: SplitText) -> bool:
    """Whether a split has WikiText's file name, or a mark or heading of it in the first 2^20 characters."""
    if isinstance(where, Path):
        if not any(WIKITEXT.candidates(where, split) for split in SPLITS):
            return False
        where = next(iter(WIKITEXT.find(where).values()))
        if where.suffix != ".txt":
            return True
    start = ""
    for line in lines(where):
        start += line
        if len(start) >= LINE:
            break
    return MARKS.search(start) is not None


def _wikitext_paragraphs(part: SplitText, join: bool = False) -> Iterator[Paragraph]:
    """Paragraphs of WikiText without headings; those of the first level begin articles."""
    article = None
    for line in lines(part):
        if HEADING.match(line):
            if ARTICLE.match(line):
                article = 0 if article is None else article + 1
            yield Paragraph(basic_english(line), text="")
        elif text := line.strip():
            text, joined = detokenise(text) if join else (text, 0)
            yield Paragraph(basic_english(line), text=text, article=article, joined=joined)


WIKITEXT = Reader(
    "wikitext",
    {s: (f"{s}.txt", f"{s}.tokens", f"wiki.{s}.tokens", f"wiki.{s}.raw") for s in SPLITS},
    _is_wikitext,
    partial(_wikitext_paragraphs, join=True),
    "A text is a paragraph, written as one writes (--reader wikitext-tokens leaves it as published); headings are left out.",
    hidden=frozenset((UNKNOWN,)),
    notes=(BASIC_ENGLISH,),
)
PUBLISHED = replace(
    WIKITEXT,
    name="wikitext-tokens",
    suits=lambda where: False,  # for those who name it
    paragraphs=_wikitext_paragraphs,
    unit="A text is a paragraph as WikiText was published, its marks set apart; headings are left out.",
)
PLAIN = Reader(
    "plain",
    {s: (f"{s}.txt",) for s in SPLITS},
    # any rows of text, and any folder with a file such as train.txt
    lambda where: not isinstance(where, Path) or any(PLAIN.candidates(where, split) for split in SPLITS),
    _paragraphs,
    "A text is a line with words in it, without the white space around it.",
    notes=(BASIC_ENGLISH,),
)


COLUMN_NUMBERS = {"FORM": 1, "UPOS": 3, "XPOS": 4, "FEATS": 5, "DEPREL": 7}  # the columns of a word that are used
MORPH = "morph"  # the column of whole bundles of features, and how those of single features begin
TEXT = re.compile(r"#\s*text\s*=(.*)")
NEW_DOCUMENT = re.compile(r"#\s*newdoc\b")


def _sentences(path: SplitText) -> Iterator[Paragraph]:
    """Sentences with labels, from `# text` lines or joined tokens; raises CorpusError naming the invalid line."""
    text, article, last, end = "", None, 0, 0  # the last word's number, and that of the last one in a range
    rows: list[list[str]] = []
    for number, line in enumerate(chain(lines(path), ("",)), 1):
        line = line.rstrip("\r\n")
        if comment := TEXT.fullmatch(line):
            text = comment[1].strip()
        elif NEW_DOCUMENT.match(line):
            article = 0 if article is None else article + 1
        elif not line.strip():
            if end > last:
                problem = f"{path}, before line {number}: a sentence ends in a range."
                reason = f"Words {last + 1} to {end} of it are not there."
                raise CorpusError(problem, reason, "Add them, or remove the range.")
            if beyond := [row for row in rows if row[6].isdecimal() and int(row[6]) > last]:
                problem = f"{path}, before line {number}: the head of {beyond[0][1][:40]!r} is word {beyond[0][6]}."
                raise CorpusError(problem, f"The sentence has {last} words.", "Correct the head, or write '_'.")
            if rows:
                yield _sentence(rows, text, article, f"{path}, the sentence before line {number}")
            text, rows, last, end = "", [], 0, 0
        elif not line.startswith("#"):
            row = line.split("\t")
            _check_row(row, last, end, f"{path}, line {number}")
            if "." not in row[0]:
                rows.append(row)
                last, end = (last, int(row[0].partition("-")[2])) if "-" in row[0] else (last + 1, end)


def _check_row(cells: list[str], last: int, end: int, where: str) -> None:
    """Raise CorpusError for a row that is no word, range or empty node, or does not follow the rows before it."""

    def wrong(problem: str, reason: str) -> CorpusError:
        return CorpusError(f"{where}: {problem}.", reason, "Correct that line.")

    if len(cells) != 10:
        has = f"{chr(9).join(cells)[:60]!r} has {len(cells)} column{'s'[: len(cells) != 1]}"
        raise wrong(has, "A CoNLL-U word has 10 columns with tabs between them.")
    place = re.fullmatch(r"([0-9]{1,9})(?:([-.])([0-9]{1,9}))?", cells[0])
    if place is None:
        reason = "An id is a number, a range such as 3-4, or an empty node such as 8.1."
        raise wrong(f"{cells[0][:60]!r} is not a word's id", reason)
    number, sign = int(place[1]), place[2]
    if number != last + (sign != ".") or (sign == "-" and (int(place[3]) <= number or last < end)):
        reason = (
            f"Ids run 1, 2, 3 …, and a range stands before its words: after {last or 'the beginning'} comes {last + 1}."
        )
        raise wrong(f"the id is {cells[0]}", reason)
    if sign:
        return
    if empty := [name for name, i in COLUMN_NUMBERS.items() if not cells[i]]:
        raise wrong(f"{empty[0]} is empty", "No column of a CoNLL-U word is empty: what is not known is '_'.")
    features = cells[COLUMN_NUMBERS["FEATS"]]
    if not re.fullmatch(r"_|[^=|]+=[^=|]+(\|[^=|]+=[^=|]+)*", features):
        reason = "Features are written Name=Value with '|' between them, and '_' where there are none."
        raise wrong(f"{features[:60]!r} are no features", reason)
    if not re.fullmatch(r"_|[0-9]{1,9}", cells[6]) or cells[6] == cells[0]:
        reason = "A head is the number of another word of the sentence, 0 for a root, or '_' where it is not known."
        raise wrong(f"the head of word {cells[0]} is {cells[6][:40]!r}", reason)
    if not XML_FORBIDDEN.isdisjoint(features):
        raise wrong(f"{features[:60]!r} holds a control character", "Features name label columns, which pages show.")


def _sentence(rows: list[list[str]], text: str, article: int | None, where: str) -> Paragraph:
    """The words of a sentence; raises CorpusError if they are withheld."""
    words = [row for row in rows if row[0].isdigit()]
    forms = [row[COLUMN_NUMBERS["FORM"]] for row in words]
    if len(forms) > 1 and set(forms) == {"_"}:
        reason = "The treebank is shared without its words, whose rights are others': '_' stands for each of them."
        todo = (
            "Get the text from its owners, put it in with the script in the treebank's own repository, and read that."
        )
        raise CorpusError(f"{where}: every word is '_'.", reason, todo)

    def column(i: int) -> list[str | None]:
        return [None if row[i] == "_" else row[i] for row in words]

    labels = {
        "pos": column(COLUMN_NUMBERS["UPOS"]),
        "tag": column(COLUMN_NUMBERS["XPOS"]),
        "dep": column(COLUMN_NUMBERS["DEPREL"]),
    }
    labels[MORPH] = column(COLUMN_NUMBERS["FEATS"])
    for i, bundle in enumerate(labels[MORPH]):
        for feature in bundle.split("|") if bundle else ():
            name, _, value = feature.partition("=")
            labels.setdefault(f"{MORPH}.{name}", [None] * len(words))[i] = value
    heads = [row[6] for row in words]
    tokens: list[Token] = []  # words, and ranges such as `4-5 zum` in the place of theirs
    end = 0  # of the range that is open
    for row in rows:
        number, _, last = row[0].partition("-")
        if not last and int(number) <= end:
            tokens[-1] = tokens[-1]._replace(words=tokens[-1].words + 1)
        else:
            end = int(last or 0)
            tokens.append(
                Token(
                    row[COLUMN_NUMBERS["FORM"]],
                    0 if last else 1,
                    "SpaceAfter=No" not in map(str.strip, row[9].split("|")),
                )
            )
    numbers = () if "_" in heads else tuple(map(int, heads))
    return Paragraph(forms, labels, text or join_tokens(tokens), numbers, article, tuple(tokens), joined=not text)


CONLLU = Reader(
    "conllu",
    {
        "train": ("train.conllu", "*[-_.]train.conllu"),
        "valid": ("valid.conllu", "dev.conllu", "*[-_.]dev.conllu", "*[-_.]valid.conllu"),
        "test": ("test.conllu", "*[-_.]test.conllu"),
    },
    lambda where: (
        isinstance(where, Path) and any(where.glob("*.conllu") if where.is_dir() else [where.suffix == ".conllu"])
    ),
    _sentences,
    "A text is a sentence of the treebank, as its '# text' line has it.",
    ("pos", "tag", "dep", MORPH),
    notes=("The treebank's own words, lower-cased; ranges of multi-word tokens and empty nodes are left out.",),
    label_notes=(
        "Part of speech (UPOS), fine-grained tag (XPOS), relation and morphology (FEATS) are the treebank's.",
    ),
)


READERS: tuple[Reader, ...] = (CONLLU, WIKITEXT, PLAIN, PUBLISHED)
NAMES = tuple(reader.name for reader in READERS)
HELP = f"{', '.join(NAMES[:-1])} or {NAMES[-1]}"


def find_reader(name: str) -> Reader:
    """The reader of a name; raises CorpusError for an unknown one."""
    for reader in READERS:
        if reader.name == name:
            return reader
    raise CorpusError(unknown_name("reader", name, NAMES), f"Readers are {', '.join(NAMES)}.", "Use one of them.")


def detect_reader(where: SplitText) -> Reader:
    """The first reader that fits a folder, a file, or the train rows of a dataset; raises CorpusError if none does."""
    for reader in READERS:
        if reader.suits(where):
            return reader
    assert isinstance(where, Path), "rows of text suit the last reader"
    _need_folder(where)
    patterns = dict.fromkeys(pattern for reader in READERS for pattern in reader.files["train"])
    raise missing_split_error(where, "train", patterns, "choose another folder")
