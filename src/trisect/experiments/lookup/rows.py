"""The numbers of a lookup study: which models formed induction heads, when, and what each checkpoint's q, k and v said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import polars as pl

from trisect.core.tables import SCHEMAS, frame
from trisect.report.measures import MeasuredValue, Measures

WEIGHT, GAIN = 0.3, 1.0  # from which a model has induction heads: attention weight, and nats that a repetition saves
StepValue = tuple[float, float]


@dataclass(frozen=True, eq=False)
class LookupNumbers:
    """The tables of a study."""

    measures: Measures

    @classmethod
    def of(cls, tables: Mapping[str, pl.DataFrame]) -> LookupNumbers:
        """Take the tables; a missing one is an empty one."""
        measures = tables["measures"] if "measures" in tables else frame("measures", ())
        return cls(Measures.of(measures.sort(list(SCHEMAS["measures"]), nulls_last=True)))

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
