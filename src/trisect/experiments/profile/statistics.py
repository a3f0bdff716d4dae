"""Statistics of a profile: heads against random maps and other heads of the layer, means over heads, and pairs of q, k and v."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from trisect.claims.models import LayerMeans
from trisect.core.trace import Address, crosses
from trisect.measure.profile import MapScores
from trisect.stats.null import Null
from trisect.stats.paired import summary, t_interval, t_test
from trisect.stats.significance import Interval, Reals, holm

PAIRS = (("q", "v"), ("k", "v"), ("q", "k"))
NO_PLAIN_MAP = "as attention used it no plain map of the layer's input (such as a norm), so that what is kept may not be by the weights"
LATE_PART = 3  # the last one in so many layers are late


@dataclass(frozen=True, eq=False)
class LayerScores:
    """Probe results of one layer: of each head's q, k and v, of random maps of their input, and of the whole input.

    `nulls` (random maps) and `inputs` (all that is read) have a component's name as their key: one may be as wide as no other is,
    and in cross-attention q reads other words than k and v. `epochs` are what the heads of earlier epochs find in the same input.
    `matrices` tell the components' matrices apart: layers where these are equal share their heads.
    """

    address: Address
    heads: Mapping[str, MapScores]
    nulls: Mapping[str, MapScores]
    inputs: Mapping[str, MapScores]
    epochs: tuple[Mapping[str, MapScores], ...] = ()
    matrices: Mapping[str, Hashable] = field(default_factory=dict)

    @property
    def apart(self) -> bool:
        """Whether q reads other words than k and v, so that accuracies cannot be compared."""
        return crosses(self.address.stack)

    def null(self, component: str, label: int) -> Null:
        """Accuracies of random maps of the width of the component's heads."""
        return Null.of(self.nulls[component].accuracy[:, label])

    def gains(self, component: str, label: int) -> Float[np.ndarray, " H"]:
        """Each head's accuracy less that of random maps of its input."""
        return self.heads[component].accuracy[:, label] - self.null(component, label).mean

    def comparable(self, component: str, label: int) -> Float[np.ndarray, " H"]:
        """The number by which heads of different components are compared: accuracy, or gain if they read different words."""
        return self.gains(component, label) if self.apart else self.heads[component].accuracy[:, label]


class MeanTest(NamedTuple):
    """A mean over heads less its reference, with 95 % interval and two-sided p."""

    value: float
    ends: Interval
    p: float
    n: int


def head_tests(scores: LayerScores, component: str, label: int) -> dict[str, Float[np.ndarray, " H"]]:
    """Every head of a component against random maps, and its rank among the layer's heads.

    `p` counts random maps, `p_normal` takes them as near normal, so that it can survive a correction; `among` is the share
    of the layer's other heads' q, k and v that find less, in cross-attention beyond random maps.
    """
    null, values = scores.null(component, label), scores.heads[component].accuracy[:, label]
    heads = scores.comparable(component, label)
    all_scores = np.concatenate([scores.comparable(c, label) for c in scores.heads])
    below = (all_scores[None] < heads[:, None]).sum(1) + ((all_scores[None] == heads[:, None]).sum(1) - 1) / 2
    return {
        "accuracy": values,
        "bits": scores.heads[component].bits[:, label],
        "z": null.scores(values),
        "p": null.beyond(values),
        "p_normal": null.t_p(values),
        "among": below / max(1, len(all_scores) - 1),
    }


def mean_over_random(scores: LayerScores, component: str, label: int) -> MeanTest:
    """The mean of a component's heads less that of random maps: Student's t over heads; for a single head, by random maps."""
    null = scores.null(component, label)
    gains = scores.gains(component, label)
    if len(gains) == 1:
        ends = null.excess_interval(float(gains[0] + null.mean))
        return MeanTest(float(gains[0]), ends, float(null.t_p(gains + null.mean)[0]), 1)
    return _mean_test(gains)


def _pair_differences(scores: LayerScores, first: str, second: str, label: int) -> Float[np.ndarray, " K"]:
    """Differences of two components of the same head; if several query heads share a key head, of their mean.

    In cross-attention of gains over random maps: q is of other words than k and v.
    """
    a, b = (scores.comparable(c, label) for c in (first, second))
    groups = math.gcd(len(a), len(b))
    return a.reshape(groups, -1).mean(1) - b.reshape(groups, -1).mean(1)


def _by_matrices(
    scores: Sequence[LayerScores], components: Sequence[str], statistic: Callable[[LayerScores], Reals]
) -> list[Reals]:
    """Numbers of each head by layer; layers that share the matrices of `components` are averaged into one."""
    layers: dict[object, list[Reals]] = {}
    for layer in scores:
        matrices = tuple(layer.matrices.get(c, layer.address) for c in components)
        layers.setdefault(matrices, []).append(statistic(layer))
    return [np.mean(numbers, 0) for numbers in layers.values()]


def gains_over_heads(scores: Sequence[LayerScores], component: str, label: int) -> Float[np.ndarray, " H"]:
    """The gains of the heads of several layers, each less its layer's random maps."""
    return np.concatenate(_by_matrices(scores, component, lambda layer: layer.gains(component, label)))


def mean_over_model(scores: Sequence[LayerScores], component: str, label: int) -> MeanTest:
    """The same over the heads of all layers."""
    gains = gains_over_heads(scores, component, label)
    return mean_over_random(scores[0], component, label) if len(scores) == len(gains) == 1 else _mean_test(gains)


def pair_tests(scores: Sequence[LayerScores], label: int) -> dict[str, tuple[MeanTest, float]]:
    """Pairs of q, k and v over the heads of some layers, named as in `q-v`, with p after Holm over the three."""
    tests = {}
    for pair in PAIRS:
        differences = partial(_pair_differences, first=pair[0], second=pair[1], label=label)
        tests["-".join(pair)] = _mean_test(np.concatenate(_by_matrices(scores, pair, differences)))
    adjusted = holm([test.p for test in tests.values()])
    return {name: (test, float(p)) for (name, test), p in zip(tests.items(), adjusted, strict=True)}


def _mean_test(differences: Reals) -> MeanTest:
    sample = summary(differences)
    sides = t_test(sample, "above", 0.0)
    p = min(1.0, 2 * float(np.minimum(sides.p_for, sides.p_against)))
    return MeanTest(float(sample.mean), t_interval(sample), p, len(differences))


def evidence(
    scores: Sequence[LayerScores], labels: Sequence[str], transformed: Mapping[Address, Collection[str]]
) -> tuple[dict[str, LayerMeans], dict[str, str]]:
    """Statistics of claims F-2 and F-3, every layer's mean over heads, and why others were not computed.

    Of cross-attention there is nothing. Components that are `transformed` behind their weights, by layer, are not read: what they
    keep may come from there.
    """
    means, unread = dict[str, LayerMeans](), dict[str, str]()

    def note(
        name: str, components: Sequence[str], layers: Sequence[LayerScores], statistic: Callable[[LayerScores], Reals]
    ) -> None:
        if behind := [c for c in components if any(c in transformed.get(s.address, ()) for s in layers)]:
            unread[name] = f"{' and '.join(behind)}: {NO_PLAIN_MAP}"
        elif not any(s.apart for s in scores):
            means[name] = LayerMeans(np.array([heads.mean() for heads in _by_matrices(layers, components, statistic)]))

    if "position" in labels:
        at = labels.index("position")
        for c in ("q", "k"):
            note(f"position_{c}-v", (c, "v"), scores, partial(_pair_differences, first=c, second="v", label=at))
    late = scores[-math.ceil(len(scores) / LATE_PART) :]
    for label, c in product(("pos", "dep"), ("q", "v")):
        if label in labels:
            note(f"late_{label}_{c}", (c,), late, partial(LayerScores.gains, component=c, label=labels.index(label)))
    return means, unread
