"""CoNLL-U treebanks: sentences whose words carry part of speech, tag, relation, head and morphology."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from trisect.core.errors import CorpusError
from trisect.text.corpus import UNSHOWN
from trisect.text.readers.base import Paragraph, RawText, Reader, SplitText, Token, join_tokens, lines

READ = {"FORM": 1, "UPOS": 3, "XPOS": 4, "FEATS": 5, "DEPREL": 7}  # the columns of a word that are used
MORPH = "morph"  # the column of whole bundles of features, and how those of single features begin
TEXT = re.compile(r"#\s*text\s*=(.*)")
ARTICLE = "# newdoc"


def _suits(where: SplitText) -> bool:
    """Whether a folder has files that end in .conllu."""
    return isinstance(where, Path) and any(where.glob("*.conllu"))


def _paragraphs(path: SplitText) -> Iterator[Paragraph]:
    """Sentences with part of speech, tag, relation and morphology; raises CorpusError naming the line that is none."""
    rows: list[list[str]] = []
    for number, line in enumerate(lines(path), 1):
        line = line.rstrip("\r\n")
        if not line.strip():
            if rows:
                yield _sentence(rows)
            rows = []
        elif not line.startswith("#") and _check_line(line, f"{path}, line {number}"):
            rows.append(line.split("\t"))
    if rows:
        yield _sentence(rows)


def _check_line(line: str, where: str) -> bool:
    """Whether a line is a word, and no range and no empty node; raises CorpusError where it is none of them."""

    def wrong(what: str, known: str) -> CorpusError:
        return CorpusError(f"{where}: {what}.", known, "Correct that line.")

    cells = line.split("\t")
    if len(cells) != 10:
        has = f"{line[:60]!r} has {len(cells)} column{'s'[: len(cells) != 1]}"
        raise wrong(has, "A CoNLL-U word has 10 columns with tabs between them.")
    if not re.fullmatch(r"[0-9]+([-.][0-9]+)?", cells[0]):
        known = "An id is a number, a range such as 3-4, or an empty node such as 8.1."
        raise wrong(f"{cells[0]!r} is not a word's id", known)
    if not cells[0].isdigit():
        return False
    if empty := [name for name, i in READ.items() if not cells[i]]:
        raise wrong(f"{empty[0]} is empty", "No column of a CoNLL-U word is empty: what is not known is '_'.")
    features = cells[READ["FEATS"]]
    if not re.fullmatch(r"_|[^=|]+=[^=|]+(\|[^=|]+=[^=|]+)*", features):
        known = "Features are written Name=Value with '|' between them, and '_' where there are none."
        raise wrong(f"{features[:60]!r} are no features", known)
    if not UNSHOWN.isdisjoint(features):
        raise wrong(f"{features[:60]!r} holds a control character", "Features name label columns, which pages show.")
    return True


def _sentence(rows: list[list[str]]) -> Paragraph:
    def column(i: int) -> list[str | None]:
        return [None if row[i] == "_" else row[i] for row in rows]

    labels = {"pos": column(READ["UPOS"]), "tag": column(READ["XPOS"]), "dep": column(READ["DEPREL"])}
    labels[MORPH] = column(READ["FEATS"])
    for i, bundle in enumerate(labels[MORPH]):
        for feature in bundle.split("|") if bundle else ():
            name, _, value = feature.partition("=")
            labels.setdefault(f"{MORPH}.{name}", [None] * len(rows))[i] = value
    return Paragraph([row[READ["FORM"]] for row in rows], labels)


def _texts(part: SplitText) -> Iterator[RawText]:
    """Sentences with words, as their `# text` lines have them or their tokens joined; articles begin at `# newdoc` lines."""
    text, article = "", None
    rows: list[list[str]] = []
    for line in chain(lines(part), ("",)):
        line = line.rstrip("\r\n")
        if said := TEXT.fullmatch(line):
            text = said[1].strip()
        elif line.startswith(ARTICLE):
            article = 0 if article is None else article + 1
        elif not line.strip():
            if words := [row for row in rows if row[0].isdigit()]:
                tokens, heads = _tokens(rows), [word[6] for word in words]
                known = all(h.isdigit() and int(h) <= len(heads) for h in heads)
                yield RawText(text or join_tokens(tokens), tuple(map(int, heads)) if known else (), article, tokens)
            text, rows = "", []
        elif not line.startswith("#"):
            cells = line.split("\t")
            if len(cells) == 10 and re.fullmatch(r"[0-9]+(-[0-9]+)?", cells[0]):
                rows.append(cells)


def _tokens(rows: list[list[str]]) -> tuple[Token, ...]:
    """Words, and ranges such as `4-5 zum` in the place of theirs."""
    tokens: list[Token] = []
    end = 0  # of the range that is open
    for row in rows:
        number, _, last = row[0].partition("-")
        if not last and int(number) <= end:
            tokens[-1] = tokens[-1]._replace(words=tokens[-1].words + 1)
        else:
            end = int(last or 0)
            tokens.append(Token(row[READ["FORM"]], 0 if last else 1, "SpaceAfter=No" not in row[9].split("|")))
    return tuple(tokens)


CONLLU = Reader(
    "conllu",
    {
        "train": ("train.conllu", "*[-_.]train.conllu"),
        "valid": ("valid.conllu", "dev.conllu", "*[-_.]dev.conllu", "*[-_.]valid.conllu"),
        "test": ("test.conllu", "*[-_.]test.conllu"),
    },
    _suits,
    _paragraphs,
    _texts,
    "A text is a sentence of the treebank, as its '# text' line has it.",
    ("pos", "tag", "dep", MORPH),
    notes=("The treebank's own words, lower-cased; ranges of multi-word tokens and empty nodes are left out.",),
    label_notes=(
        "Part of speech (UPOS), fine-grained tag (XPOS), relation and morphology (FEATS) are the treebank's.",
    ),
)
