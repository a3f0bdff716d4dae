"""Folds of held-out text: rows of windows dealt as whole articles, for what is fitted on some and measured on the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from trisect.core.errors import CorpusError
from trisect.lm.feed import Piece
from trisect.text.articles import article_starts
from trisect.text.corpus import Corpus

FOLDS = 3


class Fold(NamedTuple):
    """What is fitted on, and what is measured with it; `articles` says of each row measured which one it lies in.

    `number` counts from 1; 0 is the one and only of studies whose probes are fitted on train. Without marked articles a row is one.
    """

    fit: list[Piece]
    scored: list[Piece]
    number: int = 0
    articles: Int[np.ndarray, " R"] | None = None


def deal(corpus: Corpus, split: str, pieces: Sequence[Piece], label: str, least: int, count: int = FOLDS) -> list[Fold]:
    """Rows of a split as `count` folds that follow one another, each with about as many labelled tokens.

    Folds begin where articles do; where the text marks too few, they begin anywhere. Rows that lie across two folds are left out.
    Raises CorpusError where a fold would have fewer than `least` labelled tokens.
    """
    rows = [(p, r) for p, piece in enumerate(pieces) for r in range(len(piece.inputs))]
    start = np.array([_starts(pieces[p])[r] for p, r in rows])
    stop = start + np.array([pieces[p].inputs.shape[1] for p, _ in rows])
    many = np.concatenate([(p.labels[label] >= 0).view(p.inputs.shape).sum(1).cpu().numpy() for p in pieces])
    part = corpus.splits[split]
    begun = article_starts(part.tokens, corpus.vocabulary) if part.documents is None else np.empty(0, dtype=int)
    for cuts in (_cuts(start, many, count, begun), _cuts(start, many, count)):
        fold = np.searchsorted(cuts, start, side="right")
        fold[np.searchsorted(cuts, stop, side="left") != fold] = -1
        sizes = [int(many[fold == f].sum()) for f in range(count)]
        if min(sizes) >= least:
            article = np.searchsorted(begun, start, side="right") if len(begun) else np.arange(len(rows))
            return [_fold(pieces, rows, fold, f, article) for f in range(count)]
    raise CorpusError(
        f"The label column '{label}' of '{corpus.name}' cannot be probed.",
        f"Of the {split} tokens that are read {int(many.sum())} carry a label: too few for {count} folds of {least} or more.",
        "Use another column, or a longer text.",
    )


def _starts(piece: Piece) -> Int[np.ndarray, " B"]:
    assert piece.starts is not None, "a piece of no split has no place in it"
    return piece.starts


def _cuts(
    start: Int[np.ndarray, " R"], many: Int[np.ndarray, " R"], count: int, begun: Int[np.ndarray, " A"] | None = None
) -> Int[np.ndarray, " C"]:
    """Where folds after the first begin: at equal shares of the labelled tokens, or where the nearest article does."""
    order = np.argsort(start, kind="stable")
    before = np.concatenate([[0], np.cumsum(many[order])[:-1]])
    wanted = many.sum() * np.arange(1, count) / count
    cuts = start[order][np.minimum(np.searchsorted(before, wanted), len(order) - 1)]
    if begun is None or not len(begun):
        return cuts
    return np.sort(begun[np.abs(begun[:, None] - cuts).argmin(0)])


def _fold(
    pieces: Sequence[Piece],
    rows: Sequence[tuple[int, int]],
    fold: Int[np.ndarray, " R"],
    own: int,
    article: Int[np.ndarray, " R"],
) -> Fold:
    others = _chosen(pieces, rows, (fold >= 0) & (fold != own))
    return Fold(others, _chosen(pieces, rows, fold == own), own + 1, article[fold == own])


def _chosen(pieces: Sequence[Piece], rows: Sequence[tuple[int, int]], which: np.ndarray) -> list[Piece]:
    """The pieces with those rows alone, in their order."""
    kept: dict[int, list[int]] = {}
    for (p, r), here in zip(rows, which, strict=True):
        if here:
            kept.setdefault(p, []).append(r)
    return [pieces[p].some_rows(mine) for p, mine in kept.items()]
