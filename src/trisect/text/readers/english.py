"""Texts of lines, split into words by the basic_english rules: WikiText with its marks, and plain text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from trisect.text.lines import SPLITS, UNKNOWN
from trisect.text.readers.base import LINE, Paragraph, Reader, SplitText, lines

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
# what WikiText set apart, in the order in which it is joined again
JOINS = tuple(
    (re.compile(pattern), together)
    for pattern, together in (
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


def detokenise(line: str) -> tuple[str, int]:
    """A line of WikiText as one writes, and in how many places it was joined."""
    joined = 0
    for pattern, together in JOINS:
        line, count = pattern.subn(together, line)
        joined += count
    return line, joined


def _paragraphs(part: SplitText) -> Iterator[Paragraph]:
    """The words of every line that has some, split by the basic_english rules."""
    for line in lines(part):
        if text := line.strip():
            yield Paragraph(basic_english(line), text=text)


def _is_wikitext(where: SplitText) -> bool:
    """Whether a split has a name that only WikiText has, or a mark or a heading of it in the first 2^20 characters."""
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
    """Paragraphs of WikiText, of which headings are no text, those of the first level counted as articles."""
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
    "A text is a line.",
    notes=(BASIC_ENGLISH,),
)
