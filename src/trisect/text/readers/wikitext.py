"""WikiText: paragraphs and headings with <unk>, @-@, @,@ and @.@ in them, as its raw and token files have them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from trisect.text.corpus import SPLITS, UNKNOWN
from trisect.text.readers.base import BASIC_ENGLISH, LINE, RawText, Reader, SplitText, english, lines

MARKS = re.compile(r"<unk>|@[-,.]@|^ ?= .+ =\s*$", re.MULTILINE)
HEADING = re.compile(r"^ ?(= )+.+( =)+\s*$")
ARTICLE = re.compile(r"^ ?= [^=]+ = *$")
JOINED = re.compile(r" @([-,.])@ ")


def suits(where: SplitText) -> bool:
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


def texts(part: SplitText) -> Iterator[RawText]:
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
    suits,
    english,
    texts,
    "A text is a paragraph; headings are left out, and '@-@', '@,@', '@.@' are joined again.",
    hidden=frozenset((UNKNOWN,)),
    notes=(BASIC_ENGLISH,),
)
