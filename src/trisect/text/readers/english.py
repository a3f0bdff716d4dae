"""Texts of lines, split into words by the basic_english rules: WikiText with its marks, and plain text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from trisect.text.corpus import SPLITS, UNKNOWN
from trisect.text.readers.base import LINE, Paragraph, RawText, Reader, SplitText, lines

_APART = str.maketrans({c: f" {c} " for c in "'.,()!?"} | {'"': "", ";": " ", ":": " "})
_BREAK = re.compile("<br />", re.IGNORECASE)
_WORD = re.compile(r"['.,()!?]|[^\s'.,()!?;:]+")
BASIC_ENGLISH = (
    "Words are split by the basic_english rules and lower-cased; empty lines are dropped and there is no "
    "end-of-line token."
)

MARKS = re.compile(r"<unk>|@[-,.]@|^ ?= .+ =\s*$", re.MULTILINE)
HEADING = re.compile(r"^ ?(= )+.+( =)+\s*$")
ARTICLE = re.compile(r"^ ?= [^=]+ = *$")
JOINED = re.compile(r" @([-,.])@ ")


def basic_english(line: str) -> list[str]:
    """Words of a line with their case kept; lower-casing each gives the `basic_english` tokens, one for one.

    ' . , ( ) ! ? stand alone; " is deleted; ; : and <br /> become a space (definitions A1).
    """
    bare = line.replace('"', "")
    return (_BREAK.sub(" ", bare) if "<" in bare else bare).translate(_APART).split()


def basic_english_spans(line: str) -> list[tuple[int, int]]:
    """Where in a line each of its `basic_english` words stands: its first character, and the one after its last."""
    kept = [i for i, character in enumerate(line) if character != '"']
    bare = _BREAK.sub(" " * len("<br />"), line.replace('"', ""))
    return [(kept[found.start()], kept[found.end() - 1] + 1) for found in _WORD.finditer(bare)]


def _paragraphs(part: SplitText) -> Iterator[Paragraph]:
    """The words of every line that has some, split by the basic_english rules."""
    for line in lines(part):
        if words := basic_english(line):
            yield Paragraph(words)


def _is_wikitext(where: SplitText) -> bool:
    """Whether train has a name that only WikiText has, or its first 2^20 characters hold an <unk>, an @-@, @,@ or @.@, or a
    ` = Heading = ` line.
    """
    if isinstance(where, Path):
        if not WIKITEXT.candidates(where, "train"):
            return False
        where = WIKITEXT.find(where)["train"]
        if where.suffix != ".txt":
            return True
    start = ""
    for line in lines(where):
        start += line
        if len(start) >= LINE:
            break
    return MARKS.search(start) is not None


def _wikitext(part: SplitText) -> Iterator[RawText]:
    """Paragraphs without headings, those of the first level counted as articles; marks between words joined again."""
    article = None
    for line in lines(part):
        if HEADING.match(line):
            if ARTICLE.match(line):
                article = 0 if article is None else article + 1
        elif line.strip():
            yield RawText(JOINED.sub(r"\1", line.strip()), (), article)


WIKITEXT = Reader(
    "wikitext",
    {s: (f"{s}.txt", f"{s}.tokens", f"wiki.{s}.tokens", f"wiki.{s}.raw") for s in SPLITS},
    _is_wikitext,
    _paragraphs,
    _wikitext,
    "A text is a paragraph; headings are left out, and '@-@', '@,@', '@.@' are joined again.",
    hidden=frozenset((UNKNOWN,)),
    notes=(BASIC_ENGLISH,),
)
PLAIN = Reader(
    "plain",
    {s: (f"{s}.txt",) for s in SPLITS},
    # any rows of text, and any folder with a file train.txt
    lambda where: not isinstance(where, Path) or bool(PLAIN.candidates(where, "train")),
    _paragraphs,
    lambda part: (RawText(text) for line in lines(part) if (text := line.strip())),
    "A text is a line.",
    notes=(BASIC_ENGLISH,),
)
