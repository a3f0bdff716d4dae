"""What a reader of texts is: a name, how its files are found and recognised, its columns, and its paragraphs."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TextIO

from trisect.core.errors import CorpusError
from trisect.core.schema import CORPUS_BYTES, TEXT_LINE_BYTES
from trisect.text.hub import DatasetTexts
from trisect.text.lines import SPLITS, open_text

LINE = 1 << 20  # characters read at once: a text without line ends is read in pieces of this size
SplitText = Path | DatasetTexts  # the text of one split: a file, or the rows of a dataset


class Token(NamedTuple):
    """A token as it is written, how many words it stands for (zum: zu dem), and whether a space follows it."""

    form: str
    words: int = 1
    spaced: bool = True


@dataclass(frozen=True)
class Paragraph:
    """Words with their case kept, and for each label column one class name a word (None where there is none).

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
    """How one kind of text is read. `files` lists, for each split, the patterns that its file's name may have.

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
        """The texts of a split as they are written, with their paragraphs."""
        for one in self.paragraphs(part):
            if text := " ".join(one.words) if one.text is None else one.text:
                yield text, one

    def candidates(self, folder: Path, split: str) -> list[Path]:
        """Every file of a folder whose name is one that a split's may have."""
        return sorted({path for pattern in self.files[split] for path in folder.glob(pattern) if path.is_file()})

    def find(self, where: Path) -> dict[str, Path]:
        """The file of each split of a folder; of a file alone it is the test split. Raises CorpusError where a split has several."""
        if where.is_file():
            return {"test": where}
        need_folder(where)
        found = {}
        for split in SPLITS:
            paths = self.candidates(where, split)
            if len(paths) > 1:
                known = f"Found {', '.join(p.name for p in paths)}."
                raise CorpusError(f"{where} has several {split} files.", known, "Keep one of them in the folder.")
            if paths:
                found[split] = paths[0]
        if not found:
            raise missing_split_error(where, "train", self.files["train"], f"name a reader other than '{self.name}'")
        return found


def missing_split_error(folder: Path, split: str, patterns: Iterable[str], other: str) -> CorpusError:
    """The error of a folder that has no file of a split of any of these patterns; `other` is what else to do."""
    there = ", ".join(sorted(path.name for path in folder.iterdir())[:12]) or "nothing"
    known = f"Looked for {' or '.join(patterns)}; the folder holds {there}."
    return CorpusError(f"{folder} has no {split} split.", known, f"Add that file, or {other}.")


def need_folder(folder: Path) -> None:
    """Raise CorpusError where there is no such folder."""
    known = "A corpus is a folder with a text file for each of train and valid, such as train.txt and valid.txt."
    if folder.is_file():
        todo = "Put it into such a folder, or name its --reader; commands with --text also read texts themselves."
        raise CorpusError(f"{folder} is a file.", known, todo)
    if not folder.is_dir():
        raise CorpusError(f"There is no folder {folder}.", known, "Check the path.")


def join_tokens(tokens: Sequence[Token]) -> str:
    """The text that tokens make up."""
    return "".join(token.form + " " * token.spaced for token in tokens).removesuffix(" ")


def lines(part: SplitText) -> Iterator[str]:
    """The lines of a UTF-8 file or of a dataset's rows; longer ones in pieces of 2^20 characters, broken at white space.

    Raises CorpusError as `open_text`, and for a piece without white space.
    """
    if isinstance(part, DatasetTexts):
        for text in part.texts():
            yield from _pieces(io.StringIO(text, newline="\n"))
        return
    with open_text(part, TEXT_LINE_BYTES, CORPUS_BYTES) as file:
        yield from _pieces(file)


def _pieces(file: TextIO) -> Iterator[str]:
    rest = ""
    while piece := file.readline(LINE):
        line, rest = rest + piece, ""
        if not line.endswith("\n") and len(piece) == LINE:
            at = max(line.rfind(" "), line.rfind("\t")) + 1
            if not at:
                known = f"A word has fewer than {LINE:,} characters."
                raise CorpusError(f"The text holds {line[:20]!r}… without white space.", known, "Give a text of words.")
            line, rest = line[:at], line[at:]
        yield line
    if rest:
        yield rest
