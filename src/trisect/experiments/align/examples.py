"""Choose the sentence pairs that an alignment page shows, by a rule, with their links."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from trisect.experiments.align.links import Linked
from trisect.experiments.align.settings import PicturedPair
from trisect.measure.alignment import KINDS, as_links, count_hits, error_rates, gold_of

if TYPE_CHECKING:
    from trisect.text.bitext import SentencePair

SHORTEST, LONGEST = 4, 14  # words of either side of a pair that can be shown
SETTING = "awi"
RULE = (
    f"Of the pairs with {SHORTEST} to {LONGEST} words on both sides, sorted by the error rate of norms less that of weights (AWI, "
    "the first model): the first, the one in the middle, and the last."
)
FIRST = f"The first pairs with {SHORTEST} to {LONGEST} words on both sides."
WHERE = ("norms help most", "in the middle", "norms help least")


def choose_pictures(
    linked: Linked, pairs: Sequence[SentencePair], kept: Sequence[int], chosen: Mapping[tuple[str, str], int] | None
) -> list[PicturedPair]:
    """Up to three pairs as plain data, by RULE; without gold links the first three. Words and pairs count from 1.

    Links are of the layers that were chosen on other pairs; where none were, of the layer before the last.
    """
    fitting = [n for n in kept if all(SHORTEST <= len(side) <= LONGEST for side in (pairs[n].source, pairs[n].target))]
    places = {kind: _column(linked, kind, chosen) for kind in KINDS}
    if not fitting:
        return []
    titles = [""] * 3
    shown = fitting[:3]
    if pairs[fitting[0]].sure is not None:
        ranked = sorted(fitting, key=lambda n: (_difference(linked, pairs, n, places), n))
        order = [ranked[0], ranked[len(ranked) // 2], ranked[-1]]
        shown = list(dict.fromkeys(order))
        titles = [f", {where}" for where in WHERE] if len(shown) == len(WHERE) else titles
    layers = {kind: linked.columns[place].layer for kind, place in places.items()}
    return [
        PicturedPair(
            title=f"Pair {n + 1}{title}",
            source=list(pairs[n].source),
            target=list(pairs[n].target),
            sure=_plain(pairs[n].sure),
            possible=_plain(pairs[n].possible),
            layers=layers,
            weight=_plain(as_links(linked.best[n][places["weight"]])),
            norm=_plain(as_links(linked.best[n][places["norm"]])),
        )
        for n, title in zip(shown, titles, strict=False)
    ]


def _column(linked: Linked, kind: str, chosen: Mapping[tuple[str, str], int] | None) -> int:
    layers = list(dict.fromkeys(c.layer for c in linked.columns))
    layer = layers[max(0, len(layers) - 2)] if chosen is None else chosen[SETTING, kind]
    wanted = (SETTING, kind, layer, None)
    return next(i for i, c in enumerate(linked.columns) if tuple(c) == wanted)


def _difference(linked: Linked, pairs: Sequence[SentencePair], number: int, places: Mapping[str, int]) -> float:
    pair = pairs[number]
    gold = gold_of(pair.sure or set(), pair.possible or set(), (len(pair.source), len(pair.target)))
    rates = [float(error_rates(count_hits(linked.best[number][places[kind]], gold))) for kind in KINDS]
    return rates[KINDS.index("norm")] - rates[KINDS.index("weight")]


def _plain(links: Iterable[tuple[int, int]] | None) -> list[list[int]]:
    """Links from 1, sorted, as JSON has them."""
    return sorted([source + 1, target + 1] for source, target in links or ())
