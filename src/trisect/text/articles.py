"""Articles: where they begin in a text that is tokens alone, by WikiText's headings of the first level (`= Title =`).

Axes: N token, A article.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

MARK = "="
ENDS = frozenset(".!?)'\"")  # a paragraph ends so, or with a heading; after any other word a mark is part of a formula
LONGEST = 25  # tokens of a title


def article_starts(tokens: Int[np.ndarray, " N"], vocabulary: Sequence[str]) -> Int[np.ndarray, " A"]:
    """The place of each article's first token; nothing where no headings are marked.

    A heading of level n is a title between n marks and n marks. Two headings may follow one another, so that the marks
    between two titles are those that close the one and open the other.
    """
    marks = np.flatnonzero(np.asarray(tokens) == vocabulary.index(MARK)) if MARK in vocabulary else np.empty(0, int)
    runs = np.split(marks, np.flatnonzero(np.diff(marks) > 1) + 1) if len(marks) else []
    found, opened, free = [], None, -1  # where a heading opened and at which level; the last token of a heading
    for run in runs:
        start, many = int(run[0]), len(run)
        if opened is not None:
            begun, level = opened
            if many >= level and start - begun - level <= LONGEST:
                if level == 1:
                    found.append(begun)
                start, many = start + level, many - level
                free, opened = start - 1, None
        if many and _may_open(tokens, vocabulary, start, free):
            opened = (start, many)
    return np.array(found, dtype=int)


def _may_open(tokens: Int[np.ndarray, " N"], vocabulary: Sequence[str], start: int, free: int) -> bool:
    """Whether what precedes can be the end of a paragraph or of a heading."""
    return start == 0 or free == start - 1 or vocabulary[int(tokens[start - 1])] in ENDS
