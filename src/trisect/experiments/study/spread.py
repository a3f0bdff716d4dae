"""How a study spreads: its jobs, the longest of them, and how long they take on so many cores or GPUs; rough, and said so."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from trisect.core.finding import Json
from trisect.core.machine import Machine
from trisect.core.spec import Run
from trisect.experiments.study.estimate import products
from trisect.experiments.study.ledger import fleets
from trisect.lab.live import clock
from trisect.text.corpus import Corpus

# of one GPU in float32, fitted to the estimate of bench/estimate.py for an H100; no device has measured them
GPU_OPERATIONS = 26e12  # operations a second in the products of a fleet, where memory is as much the limit as they are
GPU_STEP = 1.2e-3  # seconds that a step takes however small it is
GPU_ATTACK = 1.2  # times as long under attack


class Spread(NamedTuple):
    """Jobs with their expected seconds on one core; those of training with their seconds on one GPU as well."""

    fleet: int
    training: tuple[float, ...]
    evaluation: tuple[float, ...]
    on_gpu: tuple[float, ...]
    cores: int
    gpus: int | None

    def words(self) -> tuple[str, ...]:
        """Jobs and times as lines of a plan."""
        longest, whole = max((*self.training, *self.evaluation), default=0.0), (*self.training, *self.evaluation)
        jobs = (
            f"{len(self.training)} of training (up to {self.fleet} runs in one), {len(self.evaluation)} of evaluation"
        )
        lines = (
            f"jobs      {jobs}; the longest roughly {clock(longest)} of one core",
            f"spread    roughly {clock(makespan(whole, self.cores))} on {self.cores} core{'s' * (self.cores != 1)}",
        )
        if self.gpus is None:
            return lines
        took, one = makespan(self.on_gpu, self.gpus), max(self.on_gpu, default=0.0)
        words = f"training roughly {clock(took)} on {self.gpus} (the longest job {clock(one)}): expected, not measured"
        return (*lines, f"GPUs      {words}")

    def data(self) -> dict[str, Json]:
        """The same as JSON-ready data."""
        whole = (*self.training, *self.evaluation)
        found: dict[str, Json] = {
            "fleet": self.fleet,
            "training": len(self.training),
            "evaluation": len(self.evaluation),
            "longest_core_seconds": max(whole, default=0.0),
            "cores": self.cores,
            "seconds_on_cores": makespan(whole, self.cores),
        }
        if self.gpus is not None:
            found |= {"gpus": self.gpus, "training_seconds_on_gpus": makespan(self.on_gpu, self.gpus)}
        return found


def makespan(jobs: Sequence[float], places: int) -> float:
    """When the last job ends if each is begun, in order, at the first place that is free."""
    ends = [0.0] * places
    for seconds in jobs:
        heapq.heappush(ends, heapq.heappop(ends) + seconds)
    return max(ends)


def gpu_seconds(fleet: Sequence[Run], corpus: Corpus) -> float:
    """Expected seconds of one GPU for the steps of one fleet's training."""
    run, tokens = fleet[0], len(corpus.splits["train"].tokens)
    positions = run.training.columns * run.training.window
    step = GPU_STEP + len(fleet) * 3 * products(run, len(corpus.vocabulary)) * positions / GPU_OPERATIONS
    attacked = any(one.edit is not None and one.edit.column is not None for one in fleet)
    return run.training.epochs * tokens / positions * step * (GPU_ATTACK if attacked else 1.0)


def spread_of(
    runs: Sequence[Run], trained: Mapping[Run, float], evaluations: Sequence[float], corpus: Corpus, members: int
) -> Spread:
    """The jobs of runs that are trained in so many core-seconds each, in fleets of up to `members`, on this machine."""
    teams = fleets(runs, members)
    return Spread(
        members,
        tuple(sum(trained[run] for run in team) for team in teams),
        tuple(evaluations),
        tuple(gpu_seconds(team, corpus) for team in teams),
        Machine().cores(),
        None,
    )
