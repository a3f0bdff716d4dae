"""CoNLL-U treebanks: sentences whose words carry part of speech, tag, relation, head and morphology."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from trisect.core.errors import CorpusError
from trisect.text.lines import UNSHOWN
from trisect.text.readers.base import Paragraph, Reader, SplitText, Token, join_tokens, lines

READ = {"FORM": 1, "UPOS": 3, "XPOS": 4, "FEATS": 5, "DEPREL": 7}  # the columns of a word that are used
MORPH = "morph"  # the column of whole bundles of features, and how those of single features begin
TEXT = re.compile(r"#\s*text\s*=(.*)")
ARTICLE = re.compile(r"#\s*newdoc\b")


def _paragraphs(path: SplitText) -> Iterator[Paragraph]:
    """Sentences with labels, as their `# text` lines have them or their tokens joined; raises CorpusError naming the wrong line."""
    text, article, last, end = "", None, 0, 0  # the last word's number, and that of the last one in a range
    rows: list[list[str]] = []
    for number, line in enumerate(chain(lines(path), ("",)), 1):
        line = line.rstrip("\r\n")
        if comment := TEXT.fullmatch(line):
            text = comment[1].strip()
        elif ARTICLE.match(line):
            article = 0 if article is None else article + 1
        elif not line.strip():
            if end > last:
                given = f"{path}, before line {number}: a sentence ends in a range."
                known = f"Words {last + 1} to {end} of it are not there."
                raise CorpusError(given, known, "Add them, or remove the range.")
            if beyond := [row for row in rows if row[6].isdecimal() and int(row[6]) > last]:
                given = f"{path}, before line {number}: the head of {beyond[0][1][:40]!r} is word {beyond[0][6]}."
                raise CorpusError(given, f"The sentence has {last} words.", "Correct the head, or write '_'.")
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
    """Raise CorpusError for what is no word, no range of words and no empty node, or does not follow on the rows before it."""

    def wrong(what: str, known: str) -> CorpusError:
        return CorpusError(f"{where}: {what}.", known, "Correct that line.")

    if len(cells) != 10:
        has = f"{chr(9).join(cells)[:60]!r} has {len(cells)} column{'s'[: len(cells) != 1]}"
        raise wrong(has, "A CoNLL-U word has 10 columns with tabs between them.")
    place = re.fullmatch(r"([0-9]{1,9})(?:([-.])([0-9]{1,9}))?", cells[0])
    if place is None:
        known = "An id is a number, a range such as 3-4, or an empty node such as 8.1."
        raise wrong(f"{cells[0][:60]!r} is not a word's id", known)
    number, sign = int(place[1]), place[2]
    if number != last + (sign != ".") or (sign == "-" and (int(place[3]) <= number or last < end)):
        known = (
            f"Ids run 1, 2, 3 …, and a range stands before its words: after {last or 'the beginning'} comes {last + 1}."
        )
        raise wrong(f"the id is {cells[0]}", known)
    if sign:
        return
    if empty := [name for name, i in READ.items() if not cells[i]]:
        raise wrong(f"{empty[0]} is empty", "No column of a CoNLL-U word is empty: what is not known is '_'.")
    features = cells[READ["FEATS"]]
    if not re.fullmatch(r"_|[^=|]+=[^=|]+(\|[^=|]+=[^=|]+)*", features):
        known = "Features are written Name=Value with '|' between them, and '_' where there are none."
        raise wrong(f"{features[:60]!r} are no features", known)
    if not re.fullmatch(r"_|[0-9]{1,9}", cells[6]) or cells[6] == cells[0]:
        known = "A head is the number of another word of the sentence, 0 for a root, or '_' where it is not known."
        raise wrong(f"the head of word {cells[0]} is {cells[6][:40]!r}", known)
    if not UNSHOWN.isdisjoint(features):
        raise wrong(f"{features[:60]!r} holds a control character", "Features name label columns, which pages show.")


def _sentence(rows: list[list[str]], text: str, article: int | None, where: str) -> Paragraph:
    """The words of a sentence; raises CorpusError where they are withheld."""
    words = [row for row in rows if row[0].isdigit()]
    forms = [row[READ["FORM"]] for row in words]
    if len(forms) > 1 and set(forms) == {"_"}:
        known = "The treebank is shared without its words, whose rights are others': '_' stands for each of them."
        todo = (
            "Get the text from its owners, put it in with the script in the treebank's own repository, and read that."
        )
        raise CorpusError(f"{where}: every word is '_'.", known, todo)

    def column(i: int) -> list[str | None]:
        return [None if row[i] == "_" else row[i] for row in words]

    labels = {"pos": column(READ["UPOS"]), "tag": column(READ["XPOS"]), "dep": column(READ["DEPREL"])}
    labels[MORPH] = column(READ["FEATS"])
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
            tokens.append(Token(row[READ["FORM"]], 0 if last else 1, "SpaceAfter=No" not in row[9].split("|")))
    text = text or join_tokens(tokens)
    return Paragraph(forms, labels, text, () if "_" in heads else tuple(map(int, heads)), article, tuple(tokens))


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
    _paragraphs,
    "A text is a sentence of the treebank, as its '# text' line has it.",
    ("pos", "tag", "dep", MORPH),
    notes=("The treebank's own words, lower-cased; ranges of multi-word tokens and empty nodes are left out.",),
    label_notes=(
        "Part of speech (UPOS), fine-grained tag (XPOS), relation and morphology (FEATS) are the treebank's.",
    ),
)
