"""A profile's table of measures as numbers by layer, label and component, for its page, its findings and its JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import polars as pl

from trisect.core.json_text import Json
from trisect.core.trace import crosses
from trisect.stats.tested import ALPHA

COMPONENTS = ("q", "k", "v")
PAIRS = ("q-v", "k-v", "q-k")
HELD = "weights held"
EXCHANGED, KINDS = "exchange_change", ("weights free", HELD)
ERASED = ("erase_excess_nats", "erase_excess_share")

_Key = tuple[str | None, int | None, int | None, str | None, str, str | None]


class MeasuredNumber(NamedTuple):
    """A number of the table, with the ends of its interval and over how many it is; null where there is none."""

    value: float | None
    low: float | None
    high: float | None
    n: int | None


class ProfileGain(NamedTuple):
    """How far the mean over heads lies above random maps, with its interval, and its p after Holm."""

    value: float
    low: float | None
    high: float | None
    p_holm: float
    n: int

    @property
    def side(self) -> int:
        """1 where it lies above random maps after Holm's correction, −1 below, else 0."""
        if not self.p_holm < ALPHA:
            return 0
        return 1 if self.value > 0 else -1


class LayerSpot(NamedTuple):
    """A layer of a stack."""

    stack: str
    layer: int


class ProfileNumbers(NamedTuple):
    """The table `measures`, found by place and measure; `spots` are the layers, `labels` the labels, in their order.

    `stages` are gains at checkpoints, by the checkpoint's number from 0; `erased` what the loss rises by beyond random subspaces.
    `erased_heads` is the same for
    single heads, where these were asked for. `exchanged` is what another text's parts change, by layer (null: the mean over
    them), kind and component.
    """

    found: Mapping[_Key, MeasuredNumber]
    spots: tuple[LayerSpot, ...]
    labels: tuple[str, ...]
    stages: Mapping[tuple[int, int | None, str, str], MeasuredNumber]
    erased: Mapping[tuple[LayerSpot, str, str], MeasuredNumber]
    exchanged: Mapping[tuple[int | None, str, str], MeasuredNumber]
    erased_heads: Mapping[tuple[LayerSpot, int, str, str], MeasuredNumber]

    @classmethod
    def of(cls, measures: pl.DataFrame, labels: tuple[str, ...] = ()) -> ProfileNumbers:
        """Read the rows once; labels in the order given, else as they come."""
        columns = ("stack", "layer", "head", "component", "measure", "group", "at", "value", "low", "high", "n")
        found: dict[_Key, MeasuredNumber] = {}
        stages: dict[tuple[int, int | None, str, str], MeasuredNumber] = {}
        erased: dict[tuple[LayerSpot, str, str], MeasuredNumber] = {}
        exchanged: dict[tuple[int | None, str, str], MeasuredNumber] = {}
        heads: dict[tuple[LayerSpot, int, str, str], MeasuredNumber] = {}
        spots, met = set(), dict.fromkeys(labels)
        for stack, layer, head, component, measure, group, at, *rest in measures.select(columns).iter_rows():
            if measure in ERASED and head is None:
                erased[LayerSpot(stack, layer), component, group] = MeasuredNumber(*rest)
            elif measure in ERASED:
                heads[LayerSpot(stack, layer), head, component, group] = MeasuredNumber(*rest)
            if measure == EXCHANGED:
                exchanged[layer, group, component] = MeasuredNumber(*rest)
            if not measure.startswith("profile_"):
                continue
            if at is not None:
                stages[int(at), layer, component, group] = MeasuredNumber(*rest)
                continue
            found[stack, layer, head, component, measure, group] = MeasuredNumber(*rest)
            met.setdefault(group)
            if layer is not None:
                spots.add(LayerSpot(stack, layer))
        return cls(found, tuple(sorted(spots)), tuple(met), stages, erased, exchanged, heads)

    def get(
        self, spot: LayerSpot, label: str, measure: str, component: str | None = None, head: int | None = None
    ) -> MeasuredNumber:
        """One number; of nulls where it was not measured."""
        key = (spot.stack, spot.layer, head, component, f"profile_{measure}", label)
        return self.found.get(key, MeasuredNumber(None, None, None, None))

    @property
    def apart(self) -> bool:
        """Whether q is of other words than k and v: in cross-attention."""
        return crosses(self.spots[0].stack)

    def read(self, spot: LayerSpot, label: str, measure: str, component: str) -> MeasuredNumber:
        """A number of the words that a component is of: `input` or `majority`."""
        return self.get(spot, label, measure, component if self.apart else None)

    def value(
        self, spot: LayerSpot, label: str, measure: str, component: str | None = None, head: int | None = None
    ) -> float:
        """One number that every profile has."""
        found = self.get(spot, label, measure, component, head).value
        return float("nan") if found is None else found

    def gain(self, label: str, component: str, spot: LayerSpot | None = None, measure: str = "gain") -> ProfileGain:
        """A component above random maps in one layer, or over all layers; for a pair the measure `difference`."""
        stack, layer = (self.spots[0].stack, None) if spot is None else spot
        named = (f"profile_{measure}", f"profile_{measure}_p_holm")
        one, p = (self.found[stack, layer, None, component, name, label] for name in named)
        return ProfileGain(one.value or 0.0, one.low, one.high, 1.0 if p.value is None else p.value, one.n or 0)

    def carried(self, spot: LayerSpot, label: str, component: str | None = None) -> float:
        """How much better than by the most frequent class all that a component reads predicts a label; without one, at the most."""
        each = COMPONENTS if component is None else (component,)
        both = ([self.read(spot, label, measure, c).value for measure in ("input", "majority")] for c in each)
        return max(float("nan") if None in two else float(two[0] or 0) - float(two[1] or 0) for two in both)

    def heads(self, spot: LayerSpot, component: str) -> int:
        """How many heads a component has in a layer."""
        return self.get(spot, self.labels[0], "gain", component).n or 0

    def layer_rows(self) -> list[dict[str, Json]]:
        """A row for each layer and label."""
        return [self._layer_row(spot, label) for label in self.labels for spot in self.spots]

    def _layer_row(self, spot: LayerSpot, label: str) -> dict[str, Json]:
        means: dict[str, Json] = {c: self.get(spot, label, "accuracy", c).value for c in COMPONENTS}
        nulls = {c: self.get(spot, label, "random", c) for c in COMPONENTS}
        gains: dict[str, Json] = {c: _gain_row(self.gain(label, c, spot)) for c in COMPONENTS}
        pairs: dict[str, Json] = {p: _gain_row(self.gain(label, p, spot, "difference")) for p in PAIRS}
        return {
            "stack": spot.stack,
            "layer": spot.layer,
            "label": label,
            **means,
            "random": nulls["q"].value,
            "random_low": nulls["q"].low,
            "random_high": nulls["q"].high,
            "random_v": nulls["v"].value,
            "input": self.read(spot, label, "input", "q").value,
            "input_v": self.read(spot, label, "input", "v").value,
            "majority": self.read(spot, label, "majority", "q").value,
            "majority_v": self.read(spot, label, "majority", "v").value,
            "gains": gains,
            "differences": pairs,
        }

    def head_rows(self) -> list[dict[str, Json]]:
        """A row for each head, component and label."""
        found: list[dict[str, Json]] = []
        for label in self.labels:
            for spot in self.spots:
                for component in COMPONENTS:
                    for head in range(1, self.heads(spot, component) + 1):
                        row: dict[str, Json] = {
                            "stack": spot.stack,
                            "layer": spot.layer,
                            "head": head,
                            "component": component,
                            "label": label,
                            "random": self.get(spot, label, "random", component).value,
                        }
                        for measure in ("accuracy", "bits", "z", "p", "p_holm", "among"):
                            row[measure] = self.get(spot, label, measure, component, head).value
                        found.append(row)
        return found


def _gain_row(gain: ProfileGain) -> dict[str, Json]:
    return {"mean": gain.value, "low": gain.low, "high": gain.high, "p_holm": gain.p_holm, "n": gain.n}
