"""A profile's table of measures as numbers by layer, label and component, for its page, its findings and its JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import polars as pl

from trisect.core.json_text import Json
from trisect.core.trace import crosses
from trisect.report.measures import MeasuredValue, Measures
from trisect.stats.tested import ALPHA

COMPONENTS = ("q", "k", "v")
PAIRS = ("q-v", "k-v", "q-k")
HELD = "weights held"
EXCHANGED, KINDS = "exchange_change", ("weights free", HELD)
ERASED = ("erase_excess_nats", "erase_excess_share")
MISSING = MeasuredValue("", "", None, None, None, "", None, None, float("nan"))


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

    @property
    def mean(self) -> float:
        """The value, as an Estimate names it."""
        return self.value

    def data(self) -> dict[str, Json]:
        """The gain as JSON-ready data."""
        return {"mean": self.value, "low": self.low, "high": self.high, "p_holm": self.p_holm, "n": self.n}


class LayerSpot(NamedTuple):
    """A layer of a stack."""

    stack: str
    layer: int


@dataclass(frozen=True, eq=False)
class ProfileNumbers:
    """The table `measures` as a profile asks it; `spots` are the layers, `labels` the labels, in their order."""

    measures: Measures
    spots: tuple[LayerSpot, ...]
    labels: tuple[str, ...]

    @classmethod
    def of(cls, measures: pl.DataFrame, labels: tuple[str, ...] = ()) -> ProfileNumbers:
        """Read the rows once; labels in the order given, else as they come."""
        rows = Measures.of(measures, missing=True)
        probed = [row for row in rows if row.measure.startswith("profile_") and row.at is None]
        spots = sorted({LayerSpot(row.stack, row.layer) for row in probed if row.layer is not None})
        return cls(rows, tuple(spots), tuple(dict.fromkeys([*labels, *(row.group or "" for row in probed)])))

    def get(
        self, spot: LayerSpot, label: str, measure: str, component: str | None = None, head: int | None = None
    ) -> MeasuredValue:
        """One number; NaN where it was not measured."""
        return self.measures.get(f"profile_{measure}", component, label, spot.layer, head, spot.stack) or MISSING

    @property
    def apart(self) -> bool:
        """Whether q is of other words than k and v: in cross-attention."""
        return crosses(self.spots[0].stack)

    def read(self, spot: LayerSpot, label: str, measure: str, component: str) -> MeasuredValue:
        """A number of the words that a component is of: `input` or `majority`."""
        return self.get(spot, label, measure, component if self.apart else None)

    def value(
        self, spot: LayerSpot, label: str, measure: str, component: str | None = None, head: int | None = None
    ) -> float:
        """One number that every profile has."""
        return self.get(spot, label, measure, component, head).value

    def gain(self, label: str, component: str, spot: LayerSpot | None = None, measure: str = "gain") -> ProfileGain:
        """A component above random maps in one layer, or over all layers; for a pair the measure `difference`."""
        stack, layer = (self.spots[0].stack, None) if spot is None else spot
        one, p = (
            self.measures.get(f"profile_{measure}{tail}", component, label, layer, stack=stack) or MISSING
            for tail in ("", "_p_holm")
        )
        return ProfileGain(one.mean or 0.0, one.low, one.high, 1.0 if p.mean is None else p.value, one.n or 0)

    def stage(self, at: int, component: str, label: str, layer: int | None = None) -> MeasuredValue:
        """A gain at a checkpoint, by the checkpoint's number from 0."""
        stack = self.measures.rows[0].stack
        return self.measures.get("profile_stage_gain", component, label, layer, None, stack, float(at)) or MISSING

    def erased(self, component: str, label: str, heads: bool = False) -> Measures:
        """What the loss rises by beyond random subspaces, by layer or by head."""
        rows = self.measures.where(*ERASED, component=component, group=label)
        return Measures(tuple(row for row in rows if (row.head is not None) == heads))

    def carried(self, spot: LayerSpot, label: str, component: str | None = None) -> float:
        """How much better than by the most frequent class all that a component reads predicts a label; without one, at the most."""
        each = COMPONENTS if component is None else (component,)
        return max(self.read(spot, label, "input", c).value - self.read(spot, label, "majority", c).value for c in each)

    def heads(self, spot: LayerSpot, component: str) -> int:
        """How many heads a component has in a layer."""
        return self.get(spot, self.labels[0], "gain", component).n or 0

    def layer_rows(self) -> list[dict[str, Json]]:
        """A row for each layer and label."""
        found: list[dict[str, Json]] = []
        for label in self.labels:
            for spot in self.spots:
                row: dict[str, Json] = {"stack": spot.stack, "layer": spot.layer, "label": label}
                row |= {c: self.get(spot, label, "accuracy", c).mean for c in COMPONENTS}
                q, v = (self.get(spot, label, "random", c) for c in ("q", "v"))
                row |= {"random": q.mean, "random_low": q.low, "random_high": q.high, "random_v": v.mean}
                for name in ("input", "majority"):
                    row[name], row[f"{name}_v"] = (self.read(spot, label, name, c).mean for c in ("q", "v"))
                row["gains"] = {c: self.gain(label, c, spot).data() for c in COMPONENTS}
                row["differences"] = {p: self.gain(label, p, spot, "difference").data() for p in PAIRS}
                found.append(row)
        return found

    def head_rows(self) -> list[dict[str, Json]]:
        """A row for each head, component and label."""
        found: list[dict[str, Json]] = []
        for label, spot, component, head in self.each_head():
            of: dict[str, Json] = {"stack": spot.stack, "layer": spot.layer, "head": head, "component": component}
            of |= {"label": label, "random": self.get(spot, label, "random", component).mean}
            for measure in ("accuracy", "bits", "z", "p", "p_holm", "among"):
                of[measure] = self.get(spot, label, measure, component, head).mean
            found.append(of)
        return found

    def each_head(self) -> list[tuple[str, LayerSpot, str, int]]:
        """Every label, layer, component and head."""
        return [
            (label, spot, component, head)
            for label in self.labels
            for spot in self.spots
            for component in COMPONENTS
            for head in range(1, self.heads(spot, component) + 1)
        ]
