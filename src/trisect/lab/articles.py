"""Articles: texts of one article (document) resemble each other, so that a bootstrap draws articles and not texts (science E, r2)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from trisect.core.subject import Texts


class Articles(NamedTuple):
    """Which article each text is of, numbered from 0; null where texts themselves are drawn. `notes` are for the page."""

    numbers: Int[np.ndarray, " N"] | None
    notes: tuple[str, ...] = ()

    def sums(self, table: Float[np.ndarray, "N C"], kept: Iterable[int]) -> Float[np.ndarray, "A C"]:
        """Rows of texts (`kept` says of which) added up by article, without articles that have none; as they are where texts are drawn."""
        if self.numbers is None:
            return table
        there, row = np.unique(self.numbers[list(kept)], return_inverse=True)
        found = np.zeros((len(there), table.shape[1]), table.dtype)
        np.add.at(found, row, table)
        return found


def marked_articles(given: Iterable[int | None], kept: Iterable[int]) -> Articles:
    """Articles as a reader marked them, texts before the first heading being one of their own; texts that are not `kept` do not count.

    Where none is marked, or all texts are of one article, texts are drawn.
    """
    marks, counted = list(given), list(kept)
    if all(one is None for one in marks):
        return Articles(None)
    own = np.array([-1 if one is None else one for one in marks])
    known = np.unique(own[counted])
    numbers = np.searchsorted(known, own).clip(max=max(len(known) - 1, 0))  # of texts that do not count: any
    if len(known) < 2:
        return Articles(None, ("All texts are of one article: intervals are over its texts, and speak of it alone.",))
    return Articles(numbers, (f"Texts of one article are resampled together: {len(known):,} articles.",))


def find_articles(texts: Texts, count: int, kept: Iterable[int] | None = None) -> Articles:
    """Articles of the first `count` texts, of which those `kept` count (null: all)."""
    given = [] if texts.articles is None else list(islice(texts.articles(), count))
    return marked_articles(given, range(count) if kept is None else kept) if len(given) == count else Articles(None)
