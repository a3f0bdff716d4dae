"""Nearest known names to a name, and whether answers about it follow what is known of these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

LENGTHS = (2, 4)  # of the pieces of names that are compared


class Neighbours(NamedTuple):
    """For each of N names the `top` nearest known names, nearest first: their places in the list of these, and cosines.

    Where there are fewer, the place is −1 and the cosine NaN. A known name that is the name itself is no neighbour.
    """

    nearest: Int[np.ndarray, "N K"]
    similarity: Float[np.ndarray, "N K"]


class Follows(NamedTuple):
    """How often an answer is the place of the name's neighbour, what chance would give, and the excess over that.

    `n` is the weight of the answers that were compared: those whose name has a neighbour with a place.
    """

    share: Float[np.ndarray, "*S"]
    expected: Float[np.ndarray, "*S"]
    excess: Float[np.ndarray, "*S"]
    n: Float[np.ndarray, "*S"]


def nearest_by_characters(names: Sequence[str], known: Sequence[str], top: int = 1) -> Neighbours:
    """Nearest known names by the cosine of their character n-grams of 2 to 4 characters, weighted by TF-IDF of `known`.

    N-grams do not cross words, and the ends of words count. Equally near names come in the order of `known`.
    """
    if not len(names) or not len(known):
        return _none(len(names), top)
    return _nearest(character_similarity(names, known), names, known, top)


def nearest_with_same_last_name(names: Sequence[str], known: Sequence[str], top: int = 1) -> Neighbours:
    """Nearest known names by character n-grams among those that share the last word of a name of two words or more."""
    if not len(names) or not len(known):
        return _none(len(names), top)
    number = {"": -1}
    ours, theirs = (np.array([number.setdefault(_last(name), len(number)) for name in some]) for some in (names, known))
    same = (ours[:, None] == theirs[None]) & (ours[:, None] >= 0)
    return _nearest(np.where(same, character_similarity(names, known), np.nan), names, known, top)


def nearest_by_vectors(
    vectors: Float[np.ndarray, "N D"],
    known_vectors: Float[np.ndarray, "M D"],
    names: Sequence[str],
    known: Sequence[str],
    top: int = 1,
) -> Neighbours:
    """Nearest known names by the cosine of vectors that a model has for them."""
    if not len(names) or not len(known):
        return _none(len(names), top)
    unit, others = (_unit(np.asarray(some, dtype=float)) for some in (vectors, known_vectors))
    return _nearest(unit @ others.T, names, known, top)


def character_similarity(names: Sequence[str], known: Sequence[str]) -> Float[np.ndarray, "N M"]:
    """Cosines of TF-IDF weighted character n-grams: 1 for a name and itself, 0 where no n-gram is shared."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    grams = TfidfVectorizer(analyzer="char_wb", ngram_range=LENGTHS, lowercase=True)
    theirs = grams.fit_transform(known)
    return np.asarray((grams.transform(names) @ theirs.T).toarray(), dtype=float)


def places(neighbours: Neighbours, known: Sequence[str], place: Mapping[str, str]) -> list[str | None]:
    """The place of every name's nearest known name; null where there is none, or where that has no place."""
    first = [int(i) for i in neighbours.nearest[:, 0]]
    return [place.get(known[i]) if i >= 0 else None for i in first]


def follows(
    answers: Sequence[str], places: Sequence[str | None], weights: Float[np.ndarray, "*S N"] | None = None
) -> Follows:
    """The share of answers that are their neighbour's place, less what random pairing gives: Σ_c n_a(c) n_b(c) / n².

    n_a and n_b count how often c is an answer and a neighbour's place; that is the mean over all n! pairings.
    """
    ours, theirs, kept = _codes(answers, places)
    counted = (np.ones(len(answers)) if weights is None else weights)[..., kept]
    n = np.asarray(counted.sum(-1))
    classes = np.arange(max([*ours, *theirs], default=-1) + 1)
    tables = [counted @ (codes[:, None] == classes).astype(float) for codes in (ours, theirs)]
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.asarray(counted @ (ours == theirs).astype(float) / n)
        expected = np.asarray((tables[0] * tables[1]).sum(-1) / n**2)
    return Follows(share, expected, share - expected, n)


def agreement(answers: Sequence[str], places: Sequence[str]) -> Float[np.ndarray, "N N"]:
    """1 where the answer about the name of the row is the place of the neighbour of the column's name, else 0."""
    ours, theirs = (np.asarray(some, dtype=object) for some in (answers, places))
    return (ours[:, None] == theirs[None]).astype(float)


def _codes(
    answers: Sequence[str], places: Sequence[str | None]
) -> tuple[Int[np.ndarray, " M"], Int[np.ndarray, " M"], Int[np.ndarray, " M"]]:
    """Answers and neighbours' places as numbers, of those that have a neighbour with a place, and which these are."""
    pairs = [(i, a, p) for i, (a, p) in enumerate(zip(answers, places, strict=True)) if p is not None]
    number: dict[str, int] = {}
    codes = [(i, number.setdefault(a, len(number)), number.setdefault(p, len(number))) for i, a, p in pairs]
    kept, ours, theirs = np.array(codes, dtype=int).reshape(-1, 3).T
    return ours, theirs, kept


def _nearest(similarity: Float[np.ndarray, "N M"], names: Sequence[str], known: Sequence[str], top: int) -> Neighbours:
    places = {name: np.flatnonzero(np.asarray(known, dtype=object) == name) for name in set(names) & set(known)}
    left = np.where(np.isnan(similarity), -np.inf, similarity)
    for row, name in enumerate(names):
        left[row, places.get(name, [])] = -np.inf
    found, rows = _none(len(names), top), np.arange(len(names))
    for rank in range(min(top, len(known))):
        best = left.argmax(1)
        near = left[rows, best]
        found.nearest[:, rank] = np.where(np.isfinite(near), best, -1)
        found.similarity[:, rank] = np.where(np.isfinite(near), near, np.nan)
        left[rows, best] = -np.inf
    return found


def _none(names: int, top: int) -> Neighbours:
    return Neighbours(np.full((names, top), -1), np.full((names, top), np.nan))


def _last(name: str) -> str:
    words = name.split()
    return words[-1] if len(words) > 1 else ""


def _unit(vectors: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N D"]:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1.0)
