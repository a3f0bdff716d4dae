"""Statistics of a profile: each head against random maps and its layer's other heads, means over heads, and q, k, v in pairs."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from trisect.claims.models import LayerMeans
from trisect.core.trace import Address, crosses
from trisect.measure.profile import MapScores
from trisect.stats.null import Null
from trisect.stats.paired import summary, t_interval, t_test
from trisect.stats.tested import Interval, Reals, holm

PAIRS = (("q", "v"), ("k", "v"), ("q", "k"))
NO_PLAIN_MAP = "as attention used it no plain map of the layer's input (such as a norm), so that what is kept may not be by the weights"
LATE = 3  # the last one in so many layers are late


@dataclass(frozen=True, eq=False)
class LayerScores:
    """What probes found in one layer: in each head's q, k and v, in random maps of what they read, and in all of that.

    `nulls` and `wholes` are found by a component's name: one may be as wide as no other is, and in cross-attention q reads other
    words than k and v. `epochs` are what the heads of earlier epochs find in the same input. `matrices` tell the components'
    matrices apart: layers where these are equal share their heads.
    """

    address: Address
    heads: Mapping[str, MapScores]
    nulls: Mapping[str, MapScores]
    wholes: Mapping[str, MapScores]
    epochs: tuple[Mapping[str, MapScores], ...] = ()
    matrices: Mapping[str, Hashable] = field(default_factory=dict)

    @property
    def apart(self) -> bool:
        """Whether q is of other words than k and v, so that their accuracies cannot be compared."""
        return crosses(self.address.stack)

    def null(self, component: str, label: int) -> Null:
        """What random maps as wide as that component's heads find of a label."""
        return Null.of(self.nulls[component].accuracy[:, label])

    def gains(self, component: str, label: int) -> Float[np.ndarray, " H"]:
        """Each head's accuracy less that of random maps of what it reads."""
        return self.heads[component].accuracy[:, label] - self.null(component, label).mean

    def compared(self, component: str, label: int) -> Float[np.ndarray, " H"]:
        """What a head is compared with other components' heads by: its accuracy, or its gain where words are not the same."""
        return self.gains(component, label) if self.apart else self.heads[component].accuracy[:, label]


class _HeadTests(NamedTuple):
    """One component of one layer and one label, head by head.

    `p` counts random maps, `p_drawn` takes them as near normal, so that it can survive a correction; `among` is the share
    of the layer's other heads' q, k and v that find less, in cross-attention beyond random maps.
    """

    accuracy: Float[np.ndarray, " H"]
    bits: Float[np.ndarray, " H"]
    z: Float[np.ndarray, " H"]
    p: Float[np.ndarray, " H"]
    p_drawn: Float[np.ndarray, " H"]
    among: Float[np.ndarray, " H"]


class MeanTest(NamedTuple):
    """A mean over heads less what it is compared with, its 95 % interval, and its two-sided p."""

    value: float
    ends: Interval
    p: float
    n: int


def head_tests(scores: LayerScores, component: str, label: int) -> _HeadTests:
    """Every head of a component against random maps, and among the layer's other heads."""
    null, own = scores.null(component, label), scores.heads[component]
    values = own.accuracy[:, label]
    mine = scores.compared(component, label)
    every = np.concatenate([scores.compared(c, label) for c in scores.heads])
    below = (every[None] < mine[:, None]).sum(1) + ((every[None] == mine[:, None]).sum(1) - 1) / 2
    among = below / max(1, len(every) - 1)
    return _HeadTests(
        values, own.bits[:, label], null.scores(values), null.beyond(values), null.predicted(values), among
    )


def mean_over_random(scores: LayerScores, component: str, label: int) -> MeanTest:
    """The mean of a component's heads less that of random maps: Student's t over heads; of one head alone, by random maps."""
    null = scores.null(component, label)
    gains = scores.gains(component, label)
    if len(gains) == 1:
        ends = null.excess_interval(float(gains[0] + null.mean))
        return MeanTest(float(gains[0]), ends, float(null.predicted(gains + null.mean)[0]), 1)
    return _mean_test(gains)


def paired(scores: LayerScores, one: str, other: str, label: int) -> Float[np.ndarray, " K"]:
    """Differences of two components of the same head; where several query heads share one key head, of their mean.

    In cross-attention of gains over random maps: q is of other words than k and v.
    """
    a, b = (scores.compared(c, label) for c in (one, other))
    few = math.gcd(len(a), len(b))
    return a.reshape(few, -1).mean(1) - b.reshape(few, -1).mean(1)


def _by_matrices(
    scores: Sequence[LayerScores], components: Sequence[str], of: Callable[[LayerScores], Reals]
) -> list[Reals]:
    """Numbers of each head, layer by layer; where layers share the matrices of `components`, their mean, since they are one."""
    layers: dict[object, list[Reals]] = {}
    for one in scores:
        own = tuple(one.matrices.get(c, one.address) for c in components)
        layers.setdefault(own, []).append(of(one))
    return [np.mean(own, 0) for own in layers.values()]


def over_heads(
    scores: Sequence[LayerScores], components: Sequence[str], of: Callable[[LayerScores], Reals]
) -> Float[np.ndarray, " H"]:
    """The same of all layers together."""
    return np.concatenate(_by_matrices(scores, components, of))


def gains_over_heads(scores: Sequence[LayerScores], component: str, label: int) -> Float[np.ndarray, " H"]:
    """The gains of the heads of several layers, each less its own layer's random maps."""
    return over_heads(scores, component, lambda one: one.gains(component, label))


def mean_over_model(scores: Sequence[LayerScores], component: str, label: int) -> MeanTest:
    """The same over the heads of all layers."""
    gains = gains_over_heads(scores, component, label)
    return mean_over_random(scores[0], component, label) if len(scores) == len(gains) == 1 else _mean_test(gains)


def pair_tests(scores: Sequence[LayerScores], label: int) -> dict[str, tuple[MeanTest, float]]:
    """q, k and v in pairs over the heads of some layers, by name as in `q-v`, each with its p after Holm over the three."""
    found = {
        f"{a}-{b}": _mean_test(over_heads(scores, (a, b), lambda one, a=a, b=b: paired(one, a, b, label)))
        for a, b in PAIRS
    }
    adjusted = holm([test.p for test in found.values()])
    return {name: (test, float(p)) for (name, test), p in zip(found.items(), adjusted, strict=True)}


def _mean_test(differences: Reals) -> MeanTest:
    sample = summary(differences)
    sides = t_test(sample, "above", 0.0)
    p = min(1.0, 2 * float(np.minimum(sides.p_for, sides.p_against)))
    return MeanTest(float(sample.mean), t_interval(sample), p, len(differences))


def evidence(
    scores: Sequence[LayerScores], labels: Sequence[str], unread: Collection[str] = ()
) -> dict[str, LayerMeans]:
    """What the claims F-2 and F-3 speak of: every layer's mean over its heads; nothing of cross-attention, nor what is `unread`."""
    found: dict[str, LayerMeans] = {}
    if any(s.apart for s in scores):
        return found
    late = _late(scores)
    if "position" in labels:
        at = labels.index("position")
        for one in ("q", "k"):
            own = _by_matrices(scores, (one, "v"), lambda s, one=one, at=at: paired(s, one, "v", at))
            found[f"position_{one}-v"] = _means(own)
    for label in ("pos", "dep"):
        if label in labels:
            at = labels.index(label)
            for c in ("q", "v"):
                found[f"late_{label}_{c}"] = _means(_by_matrices(late, c, lambda s, c=c, at=at: s.gains(c, at)))
    return {name: means for name, means in found.items() if name not in unread}


def barred(
    scores: Sequence[LayerScores], labels: Sequence[str], used: Mapping[Address, Collection[str]]
) -> dict[str, str]:
    """Why statistics of the claims cannot be read: of components that are read as attention `used` them, layer by layer.

    What these keep may come from what is done behind their weights.
    """
    found: dict[str, str] = {}

    def bar(name: str, components: Sequence[str], layers: Sequence[LayerScores]) -> None:
        if named := [c for c in components if any(c in used.get(s.address, ()) for s in layers)]:
            found[name] = f"{' and '.join(named)}: {NO_PLAIN_MAP}"

    if "position" in labels:
        for one in ("q", "k"):
            bar(f"position_{one}-v", (one, "v"), scores)
    for label in (la for la in ("pos", "dep") if la in labels):
        for c in ("q", "v"):
            bar(f"late_{label}_{c}", (c,), _late(scores))
    return found


def _late(scores: Sequence[LayerScores]) -> Sequence[LayerScores]:
    return scores[-math.ceil(len(scores) / LATE) :]


def _means(layers: Sequence[Reals]) -> LayerMeans:
    return LayerMeans(np.array([heads.mean() for heads in layers]))
