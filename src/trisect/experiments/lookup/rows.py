"""The numbers of a lookup study: which models formed induction heads, when, and what each checkpoint's q, k and v said."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import polars as pl

from trisect.claims.models import judge_models
from trisect.core.tables import SCHEMAS, frame
from trisect.papers.lookup import SOURCE
from trisect.report.measures import MeasuredValue, Measures

WEIGHT, GAIN = 0.2, 1.0  # from which a model has induction heads: attention weight, and nats that a repetition saves
EXCESS = 1.0  # nats by which an own answer has to lead the others
StepValue = tuple[float, float]
PARTS = ("q", "k", "v")


class Shift(NamedTuple):
    """How far an answer gained on the base's in one model at one checkpoint, in nats, and how often it came; None: not known.

    `other` is the largest shift to what another component predicts, `unrelated` that of the own answer with an unrelated donor's,
    `residual` with the donor's residual stream there.
    """

    own: float
    other: float
    unrelated: float | None
    residual: float | None
    share: float | None
    kept: float

    @property
    def excess(self) -> float:
        """The own shift less the largest other."""
        return self.own - self.other


@dataclass(frozen=True, eq=False)
class LookupNumbers:
    """The tables of a study."""

    measures: Measures
    predictions: pl.DataFrame
    examples: pl.DataFrame
    claims: pl.DataFrame

    @classmethod
    def of(cls, tables: Mapping[str, pl.DataFrame]) -> LookupNumbers:
        """Take the tables; a missing one is an empty one."""
        measures = tables["measures"] if "measures" in tables else frame("measures", ())
        none = pl.DataFrame(schema=dict.fromkeys(("seed", "step"), pl.Int64) | {"site": pl.String})
        predictions, examples = (tables.get(name, none) for name in ("predictions", "examples"))
        claims = tables["claims"] if "claims" in tables else frame("claims", ())
        return cls(
            Measures.of(measures.sort(list(SCHEMAS["measures"]), nulls_last=True)), predictions, examples, claims
        )

    @cached_property
    def seeds(self) -> list[int]:
        """Every seed."""
        return sorted(int(name.rpartition("-")[2]) for name in self.measures.distinct("subject"))

    @cached_property
    def steps(self) -> list[float]:
        """The steps of all checkpoints."""
        return sorted({row.at for row in self.measures.where("text_nats") if row.at is not None})

    def loss(self, seed: int, part: str, step: float) -> float:
        """A loss in nats a piece: on the text, on random pieces the first time, or the second time."""
        return self.measures.where(f"{part}_nats", subject=f"seed-{seed}", at=step).mean

    @cached_property
    def weights(self) -> dict[int, Sequence[StepValue]]:
        """The largest induction weight of any head by step."""
        found: dict[int, Sequence[StepValue]] = {}
        for seed in self.seeds:
            by_step = self.measures.where("induction", subject=f"seed-{seed}").by("at")
            found[seed] = [(step, max(row.value for row in by_step[step])) for step in sorted(by_step)]
        return found

    @cached_property
    def gains(self) -> dict[int, Sequence[StepValue]]:
        """By how much random pieces cost less the second time, by step."""
        return {
            seed: [(step, self.loss(seed, "first", step) - self.loss(seed, "second", step)) for step in self.steps]
            for seed in self.seeds
        }

    @cached_property
    def formed(self) -> dict[int, float]:
        """By seed the step from which it has induction heads; seeds that have none are not there."""
        found = {}
        for seed in self.seeds:
            both = zip(self.weights[seed], self.gains[seed], strict=True)
            holds = [(step, weight >= WEIGHT and gain >= GAIN) for (step, weight), (_, gain) in both]
            if holds and holds[-1][1]:
                found[seed] = next(step for i, (step, _) in enumerate(holds) if all(on for _, on in holds[i:]))
        return found

    def induction_head(self, seed: int) -> MeasuredValue:
        """The head with the largest induction weight at the last checkpoint."""
        rows = self.measures.where("induction", subject=f"seed-{seed}", at=self.steps[-1])
        return max(rows, key=lambda row: row.value)

    def shift(self, seed: int, component: str, step: float) -> Shift | None:
        """What one component from the donor does in the layer of the model's induction head; None where it was not patched."""
        layer = self.induction_head(seed).layer
        rows = self.predictions.filter(seed=seed, step=step, site=f"{component}@{layer}")
        by_name = {row["hypothesis"]: row for row in rows.iter_rows(named=True)}
        own = by_name.get(component)
        others = [by_name[name]["shift_nats"] for name in PARTS if name != component and name in by_name]
        if own is None or own["shift_nats"] is None or len(others) < len(PARTS) - 1 or None in others:
            return None
        known = (own[name] for name in ("unrelated_nats", "residual_nats", "share", "kept"))
        return Shift(own["shift_nats"], max(others), *known)

    def shifts(self, component: str, step: Callable[[int], float | None]) -> dict[int, Shift]:
        """By seed of the models that formed what a component does, at the checkpoint that `step` names for each."""
        at = {seed: step(seed) for seed in self.formed}
        found = {seed: self.shift(seed, component, when) for seed, when in at.items() if when is not None}
        return {seed: shift for seed, shift in found.items() if shift is not None}

    def last(self, seed: int) -> float:
        """The step of the last checkpoint."""
        return self.steps[-1]

    def before(self, seed: int) -> float | None:
        """The last checkpoint in the first half of the way to induction heads; None where there is none."""
        return max((step for step in self.steps if step <= self.formed[seed] / 2), default=None)

    def takes_up(self, seed: int, component: str) -> float | None:
        """The step from which on a component's own answer gains at least half of what it gains at the end over the others' largest."""
        found = [(step, self.shift(seed, component, step)) for step in self.steps]
        values = [(step, shift.excess) for step, shift in found if shift is not None]
        if not values or values[-1][1] < EXCESS:
            return None
        half = values[-1][1] / 2
        return next(step for i, (step, _) in enumerate(values) if all(value >= half for _, value in values[i:]))


def judge_lookups(numbers: LookupNumbers, about: Mapping[str, object]) -> pl.DataFrame:
    """The table `claims`, over the models that formed induction heads."""
    values: dict[str, list[float]] = {}
    for component in PARTS:
        last, before = (numbers.shifts(component, step).values() for step in (numbers.last, numbers.before))
        values[f"excess_{component}"] = [shift.excess for shift in last]
        values[f"unrelated_{component}"] = [s.own - s.unrelated for s in last if s.unrelated is not None]
        values[f"before_{component}"] = [shift.excess for shift in before]
    return judge_models(SOURCE, {name: of for name, of in values.items() if of}, about)
