"""An interchange's numbers in draws of its pairs, so that two models over the same pairs have paired differences."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from trisect.core.files import digest
from trisect.core.tables import NewRow
from trisect.experiments.patch.rows import Interchanged, PatchedRuns, compared, where_patched
from trisect.lab.experiment import ROW, Replicates
from trisect.measure.interchange import logit_ratio, share_hits
from trisect.stats.bootstrap import drawn_ratios


class _Ratio(NamedTuple):
    """A number that is a ratio of sums over some of the pairs; of a `share` each pair adds 0 or 1."""

    named: NewRow
    above: Float[np.ndarray, " N"]
    below: Float[np.ndarray, " N"]
    pairs: Bool[np.ndarray, " P"]
    share: bool


def pair_replicates(
    runs: PatchedRuns, counted: Bool[np.ndarray, " P"], seed: int
) -> Mapping[tuple[str | float | int | bool | None, ...], Replicates]:
    """Shares of the own and of the other text's answer, and changes of logits or outputs, by what names their rows."""
    together: dict[tuple[bytes, bytes], list[_Ratio]] = {}
    for one in runs.done:
        for ratio in _ratios(one, runs, counted):
            together.setdefault((ratio.pairs.tobytes(), ratio.below.tobytes()), []).append(ratio)
    found: dict[tuple[str | float | int | bool | None, ...], Replicates] = {}
    for own in together.values():
        n = len(own[0].below)
        if n < 2 or own[0].below.sum() == 0:
            continue
        which = digest(json.dumps([[p.base, p.donor] for p, on in zip(runs.pairs, own[0].pairs, strict=True) if on]), 8)
        drawn = drawn_ratios(np.stack([ratio.above for ratio in own], 1), own[0].below, seed)
        for column, ratio in enumerate(own):
            each = ratio.above if ratio.share else None
            found[tuple(ratio.named.get(name) for name in ROW)] = Replicates(drawn[:, column], n, which, "pair", each)
    return found


def _ratios(one: Interchanged, runs: PatchedRuns, counted: Bool[np.ndarray, " P"]) -> Iterator[_Ratio]:
    where, values = where_patched(one), one.values[counted]

    def ratio(measure: str, above: np.ndarray, below: np.ndarray, kept: np.ndarray, share: bool = False) -> _Ratio:
        pairs = counted.copy()
        pairs[counted] = kept
        return _Ratio(where | {"measure": measure}, above.astype(float), below.astype(float), pairs, share)

    if one.answers is None:
        yield ratio("output_change", values, np.ones(len(values)), np.ones(len(values), dtype=bool))
        return
    own, other = ("base", "donor") if one.how == "denoise" else ("donor", "base")
    moved, room, kept = logit_ratio(values, runs.differences[own][counted], runs.differences[other][counted])
    yield ratio("logit_change", moved, room, kept)
    for measure, component, predicted in compared(one, runs, counted):
        hits, clear = share_hits(one.answers[counted], predicted, component)
        yield ratio(measure, hits[component][clear], np.ones(int(clear.sum())), clear, True)
