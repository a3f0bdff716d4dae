"""Interchange interventions (activation patching) at q, k and v: which of the predicted answers came, and changes of logit differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike

from trisect.stats.bootstrap import drawn_ratios, percentile_interval
from trisect.stats.ratios import ratios
from trisect.stats.shares import jeffreys
from trisect.stats.tested import finite

BASE = "base"  # the answer of the run that is patched, as it is without
OTHER = "other"  # an answer that nothing predicted
UNKNOWN = -1  # a prediction that is not known


class PairShare(NamedTuple):
    """A share of pairs with Jeffreys' 95 % interval over them; all null where there is no pair."""

    value: float | None
    low: float | None
    high: float | None
    hits: int
    n: int


class InterchangeShares(NamedTuple):
    """What answers came when one component came from the donor, among the pairs where all predictions differ.

    `own` counts answers equal to the component's own prediction, `others` those equal to each other component's,
    `unchanged` those of the base; what is left of the `n` pairs gave an answer that nothing predicted.
    """

    component: str
    own: PairShare
    others: Mapping[str, PairShare]
    unchanged: PairShare
    n: int


class LogitChange(NamedTuple):
    """A normalised change of a logit difference, 0 as the patched run was, 1 as the other; with its 95 % interval over n pairs."""

    value: float | None
    low: float | None
    high: float | None
    n: int


def shares(answers: ArrayLike, predictions: Mapping[str, ArrayLike], component: str) -> InterchangeShares:
    """Which of the predicted answers came when `component` was the donor's.

    `answers` [N] are ids of what came; `predictions` holds under 'base' what comes without, under 'q', 'k', 'v' (as far as
    known) what comes where that one works as its name says, each [N], UNKNOWN where it is not known. A joint component
    such as 'q+k' has an entry of that name. Only pairs count where all these predictions are known and differ.
    """
    hits, clear = share_hits(answers, predictions, component)
    found = {name: share_of(hit[clear]) for name, hit in hits.items()}
    own, unchanged = found.pop(component), found.pop(BASE)
    return InterchangeShares(component, own, found, unchanged, int(clear.sum()))


def share_hits(
    answers: ArrayLike, predictions: Mapping[str, ArrayLike], component: str
) -> tuple[dict[str, Bool[np.ndarray, " N"]], Bool[np.ndarray, " N"]]:
    """For each prediction the pairs whose answer it is, and the pairs that count; arguments as those of `shares`."""
    assert {BASE, component} <= set(predictions), f"predictions of {BASE} and {component} are needed"
    wanted = {name: np.asarray(predictions[name]) for name in _compared(predictions, component)}
    came = np.asarray(answers)
    return {name: came == of for name, of in wanted.items()}, all_differ(list(wanted.values()))


def share_of(hits: Bool[np.ndarray, " N"]) -> PairShare:
    """The share of pairs that are true; its interval reaches to 0 or 1 where all pairs say so, as is the custom."""
    n, count = len(hits), int(hits.sum())
    if not n:
        return PairShare(None, None, None, 0, 0)
    value = count / n
    low, high = jeffreys(value, n)
    return PairShare(value, min(low, value) if count else 0.0, max(high, value) if count < n else 1.0, count, n)


def all_differ(predictions: Sequence[Int[np.ndarray, " N"]]) -> Bool[np.ndarray, " N"]:
    """For each pair, whether all its predictions are known and no two are the same."""
    table = np.sort(np.stack(predictions), 0)
    return (table[0] >= 0) & (np.diff(table, axis=0) != 0).all(0)


def which_came(answers: ArrayLike, predictions: Mapping[str, ArrayLike]) -> tuple[str, ...]:
    """For each pair the first name in `predictions` whose answer came, or OTHER."""
    came = np.asarray(answers)
    found = np.full(len(came), OTHER, dtype=object)
    for name in reversed(list(predictions)):
        known = np.asarray(predictions[name])
        found[(came == known) & (known >= 0)] = name
    return tuple(map(str, found))


def logit_change(
    patched: Float[np.ndarray, " N"],
    own: Float[np.ndarray, " N"],
    other: Float[np.ndarray, " N"],
    seed: int = 0,
) -> LogitChange:
    """Σ (own − patched) / Σ (own − other) over pairs, of differences of the logits of the two runs' answers.

    `own` is the difference in the run that is patched, `other` that in the run patched from, `patched` that under the
    patch. Sums before the ratio: a pair that both runs answer alike weighs little, where its own ratio would be boundless.
    Source: Wang et al. 2022, Interpretability in the Wild; Zhang & Nanda 2024, Towards Best Practices of Activation Patching.
    """
    above, room, kept = logit_ratio(patched, own, other)
    moved, n = above[:, None], int(kept.sum())
    if not n or room.sum() == 0:
        return LogitChange(None, None, None, n)
    ends = percentile_interval(drawn_ratios(moved, room, seed), n)
    return LogitChange(finite(ratios(moved, room)[0]), finite(ends.low[0]), finite(ends.high[0]), n)


def logit_ratio(
    patched: Float[np.ndarray, " N"], own: Float[np.ndarray, " N"], other: Float[np.ndarray, " N"]
) -> tuple[Float[np.ndarray, " M"], Float[np.ndarray, " M"], Bool[np.ndarray, " N"]]:
    """What `logit_change` adds up above and below its line, of the pairs that say something, and which those are."""
    moved, room = own - patched, own - other
    kept = np.isfinite(moved) & np.isfinite(room) & ((room != 0) | (moved != 0))
    return moved[kept], room[kept], kept


def _compared(predictions: Mapping[str, ArrayLike], component: str) -> list[str]:
    """What has to differ: the base's answer, those of q, k and v as far as there are any, and the component's own."""
    return list(dict.fromkeys([BASE, *(name for name in "qkv" if name in predictions), component]))
