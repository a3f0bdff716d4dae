"""A profile's numbers in draws of heads, and of texts, so that two models with the same of them have paired differences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from trisect.experiments.profile.exchange import Exchange
from trisect.experiments.profile.numbers import COMPONENTS, EXCHANGED, KINDS
from trisect.experiments.profile.statistics import LayerScores
from trisect.lab.experiment import ROW, Replicates
from trisect.stats.bootstrap import drawn_ratios
from trisect.stats.tested import Reals

_Key = tuple[str | float | int | bool | None, ...]


def profile_replicates(
    scores: Sequence[LayerScores], labels: Sequence[str], moved: Exchange | None, seed: int
) -> Mapping[_Key, Replicates]:
    """Means over heads beyond random maps, layer by layer and over the model; what another text's parts change.

    Heads are counted by their place, texts by what they hold.
    """
    found = dict(_exchanged(moved, seed)) if moved is not None else {}
    stack = scores[0].address.stack
    together: dict[tuple[int | None, ...], list[tuple[_Key, Reals]]] = {}  # by layer and how many heads there are
    for at, label in enumerate(labels):
        for c in COMPONENTS:
            gains = [one.heads[c].accuracy[:, at] - one.null(c, at).mean for one in scores]
            for one, own in zip(scores, gains, strict=True):
                named = _key(one.address.stack, one.address.layer, c, "profile_gain", label)
                together.setdefault((one.address.layer, len(own)), []).append((named, own))
            whole = _key(stack, None, c, "profile_gain", label)
            together.setdefault((None, *map(len, gains)), []).append((whole, np.concatenate(gains)))
    for heads, own in together.items():
        values = np.stack([one for _, one in own], 1)
        if len(values) < 2:  # one head is no sample of heads
            continue
        drawn = drawn_ratios(values, np.ones(len(values)), seed)
        found |= {
            named: Replicates(drawn[:, i], len(values), f"heads {heads}", "head") for i, (named, _) in enumerate(own)
        }
    return found


def _exchanged(moved: Exchange, seed: int) -> Iterator[tuple[_Key, Replicates]]:
    every = np.concatenate([moved.changes, moved.changes.mean(1, keepdims=True)], 1)
    n, shape = len(every), every.shape[1:]
    if n < 2:
        return
    drawn = drawn_ratios(every.reshape(n, -1), np.ones(n), seed).reshape(-1, *shape)
    for i, address in enumerate([*moved.addresses, None]):
        layer, stack = (None, moved.addresses[0].stack) if address is None else (address.layer, address.stack)
        for j, kind in enumerate(KINDS):
            for c, component in enumerate(COMPONENTS):
                named = _key(stack, layer, component, EXCHANGED, kind)
                yield named, Replicates(drawn[:, i, j, c], n, moved.mark, "text")


def _key(stack: str, layer: int | None, component: str, measure: str, group: str) -> _Key:
    given = {"stack": stack, "layer": layer, "component": component, "measure": measure, "group": group}
    return tuple(given.get(name) for name in ROW)
