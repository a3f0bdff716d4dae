"""Folds of held-out text: rows of windows dealt as whole articles, for what is fitted on some and measured on the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from trisect.core.errors import CorpusError
from trisect.lm.feed import Piece
from trisect.text.articles import article_starts
from trisect.text.corpus import Corpus

FOLDS = 3
MOST, FEWEST = 0.6, 0.1  # of the labelled tokens, in one fold: else articles are too uneven to be dealt
KEPT = 0.95  # of the labelled tokens, at least, where articles of a fold lie apart: rows across two folds are left out


class Fold(NamedTuple):
    """What is fitted on, and what is measured with it; `articles` says of each row measured which one it lies in.

    `number` counts from 1; 0 is the one and only of studies whose probes are fitted on train. `whole` says that folds are
    whole articles; else folds are made of rows, each of which counts as an article.
    """

    fit: list[Piece]
    scored: list[Piece]
    number: int = 0
    articles: Int[np.ndarray, " R"] | None = None
    whole: bool = False


def deal(
    corpus: Corpus,
    split: str,
    pieces: Sequence[Piece],
    label: str,
    least: int,
    count: int = FOLDS,
    apart: bool = True,
) -> list[Fold]:
    """Rows of a split as `count` folds, as even in labelled tokens as whole articles that follow one another allow.

    Rows that lie across two folds are left out. Where a fold would have more than MOST of the labelled tokens, or less than
    FEWEST, articles of a fold may lie `apart`: the longest first, each to the smallest fold; or, where that parts so many short
    articles that less than KEPT of the tokens stays, the longest article alone and the others in their order. Where that is
    not even either, or the text marks no articles, rows that follow one another are dealt, in equal shares, and are the units.
    Raises CorpusError where a fold would have fewer than `least` labelled tokens.
    """
    rows = [(p, r) for p, piece in enumerate(pieces) for r in range(len(piece.inputs))]
    start = np.array([_starts(pieces[p])[r] for p, r in rows])
    stop = start + np.array([pieces[p].inputs.shape[1] for p, _ in rows])
    many = np.concatenate([(p.labels[label] >= 0).view(p.inputs.shape).sum(1).cpu().numpy() for p in pieces])
    part = corpus.splits[split]
    begun = article_starts(part.tokens, corpus.vocabulary) if part.documents is None else np.empty(0, dtype=int)
    for whole, fold in _dealt(begun, start, stop, many, count, apart):
        sizes = np.array([many[fold == f].sum() for f in range(count)])
        even = not whole or (sizes.max() <= MOST * sizes.sum() and sizes.min() >= FEWEST * sizes.sum())
        if sizes.min() >= least and even:
            article = np.searchsorted(begun, start, side="right") if whole else np.arange(len(rows))
            return [_fold(pieces, rows, fold, f, article, whole) for f in range(count)]
    raise CorpusError(
        f"The label column '{label}' of '{corpus.name}' cannot be probed.",
        f"Of the {split} tokens that are read {int(many.sum())} carry a label: too few for {count} folds of {least} or more.",
        "Use another column, or a longer text.",
    )


def _dealt(
    begun: Int[np.ndarray, " A"],
    start: Int[np.ndarray, " R"],
    stop: Int[np.ndarray, " R"],
    many: Int[np.ndarray, " R"],
    count: int,
    apart: bool,
) -> Iterator[tuple[bool, Int[np.ndarray, " R"]]]:
    """Ways to deal rows, the best first: whether folds are whole articles, and each row's fold, -1 for those in two."""
    first, last = np.searchsorted(begun, start, side="right"), np.searchsorted(begun, stop, side="left")
    cuts = _cuts(first, start, many, count)
    if cuts is not None:
        yield True, _between(begun[np.searchsorted(begun, cuts, side="right") - 1], start, stop)
    if apart:
        sizes = np.bincount(first, many, minlength=len(begun) + 1)
        for own in (_longest_first(sizes, count), _longest_alone(sizes, count)):
            alike = np.array([len(set(own[a : z + 1])) == 1 for a, z in zip(first, last, strict=True)])
            if many[alike].sum() >= KEPT * many.sum():
                yield True, np.where(alike, own[first], -1)
    cuts = _cuts(start, start, many, count)
    if cuts is not None:
        yield False, _between(cuts, start, stop)


def _between(
    cuts: Int[np.ndarray, " C"], start: Int[np.ndarray, " R"], stop: Int[np.ndarray, " R"]
) -> Int[np.ndarray, " R"]:
    """Each row's fold where folds after the first begin at the cuts, -1 for rows that lie across one."""
    fold = np.searchsorted(cuts, start, side="right")
    return np.where(np.searchsorted(cuts, stop, side="left") == fold, fold, -1)


def _longest_first(sizes: Float[np.ndarray, " U"], count: int) -> Int[np.ndarray, " U"]:
    """Each unit's fold: the longest first, each to the fold that is the smallest by then (Graham 1969, LPT)."""
    fold, held = np.zeros(len(sizes), dtype=int), np.zeros(count)
    for unit in np.argsort(-sizes, kind="stable"):
        fold[unit] = held.argmin()
        held[fold[unit]] += sizes[unit]
    return fold


def _longest_alone(sizes: Float[np.ndarray, " U"], count: int) -> Int[np.ndarray, " U"]:
    """Each unit's fold: the first holds the longest alone, the others the rest in their order, as even as can be."""
    fold, longest = np.zeros(len(sizes), dtype=int), int(sizes.argmax())
    rest = np.delete(np.arange(len(sizes)), longest)
    cuts = _cuts(rest, rest, sizes[rest], count - 1)
    if cuts is not None:
        fold[rest] = 1 + np.searchsorted(cuts, rest, side="right")
    return fold


def _starts(piece: Piece) -> Int[np.ndarray, " B"]:
    assert piece.starts is not None, "a piece of no split has no place in it"
    return piece.starts


def _cuts(
    units: Int[np.ndarray, " R"], start: Int[np.ndarray, " R"], many: Int[np.ndarray, " R"], count: int
) -> Int[np.ndarray, " C"] | None:
    """Where folds after the first begin: the first rows of units such that folds are as even as can be (least squares).

    `units` says of each row which one it lies in, in their order. Null where there are fewer units than folds.
    """
    _, which = np.unique(units, return_inverse=True)
    sums = np.concatenate([[0], np.cumsum(np.bincount(which, many))])
    last = len(sums) - 1
    if last < count:
        return None
    # uneven[j]: squares of the best folds of the first j units; begins[f][j]: where the last of them begins
    uneven, begins = sums**2, []
    for _ in range(1, count):
        found = [uneven[:j] + (sums[j] - sums[:j]) ** 2 for j in range(1, last + 1)]
        chosen = [int(one.argmin()) for one in found]
        begins.append([0, *chosen])
        uneven = np.array([np.inf, *(one[i] for one, i in zip(found, chosen, strict=True))])
    cuts, end = [], last
    for own in reversed(begins):
        end = own[end]
        cuts.append(start[which == end].min())
    return np.array(cuts[::-1])


def _fold(
    pieces: Sequence[Piece],
    rows: Sequence[tuple[int, int]],
    fold: Int[np.ndarray, " R"],
    own: int,
    article: Int[np.ndarray, " R"],
    whole: bool,
) -> Fold:
    others = _chosen(pieces, rows, (fold >= 0) & (fold != own))
    return Fold(others, _chosen(pieces, rows, fold == own), own + 1, article[fold == own], whole)


def _chosen(pieces: Sequence[Piece], rows: Sequence[tuple[int, int]], which: np.ndarray) -> list[Piece]:
    """The pieces with those rows alone, in their order."""
    kept: dict[int, list[int]] = {}
    for (p, r), here in zip(rows, which, strict=True):
        if here:
            kept.setdefault(p, []).append(r)
    return [pieces[p].some_rows(mine) for p, mine in kept.items()]
