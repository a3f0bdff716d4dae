"""Member-steps a second on a GPU: a fleet with narrow products and recorded passes, against eager single runs.

python bench/gpu.py
python bench/gpu.py --sizes FILE            by size of fleet, precision and attack; goes on where it stopped
python bench/gpu.py --sizes FILE --tiny     the same on a CPU with a tiny model: whether it runs
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from paired import Ratio, Row, row
from training import corpus, eager_step

from trisect.core.files import read_json, write_json
from trisect.core.spec import Run, Text
from trisect.experiments.study.presets import find_experiments
from trisect.lm.replay import CudaGraph
from trisect.lm.train import Trainer
from trisect.text.corpus import Corpus, Split
from trisect.text.sources import load_text

MEMBERS, STEPS, ROUNDS = 16, 20, 5


def runs(text: Corpus) -> list[Run]:
    """The baseline and the freezing runs of the paper's preset, one seed."""
    paper = replace(find_experiments("paper")[0], seeds=(1,), attack=None, rewind=None)
    paper = replace(paper, training=replace(paper.training, train_sample=700))
    return list(paper.runs(text.fingerprint))[:MEMBERS]


def _rate(step: Callable[[], object], members: int, device: str, steps: int = STEPS) -> float:
    def sync() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    step()
    sync()
    began = time.perf_counter()
    for _ in range(steps):
        step()
    sync()
    return members * steps / (time.perf_counter() - began)


def rows(device: str = "cuda") -> list[Row]:
    """The table's row; none where there is no GPU."""
    if device == "cuda" and not torch.cuda.is_available():
        return []
    text = corpus()
    specs = runs(text)
    single = eager_step(text, specs[0], device)
    narrow = torch.bfloat16 if device == "cuda" else None
    fleet = Trainer(specs, text, device, products=narrow, recorder=CudaGraph() if device == "cuda" else None)
    rates = [(_rate(single, 1, device), _rate(fleet.step, len(specs), device)) for _ in range(ROUNDS)]
    ratios = sorted(b / a for a, b in rates)
    plain, ours = (sorted(column)[ROUNDS // 2] for column in zip(*rates, strict=True))
    pair = Ratio(plain, ours, ratios[ROUNDS // 2], ratios[0], ratios[-1], ROUNDS)
    notes = [
        f"products in {narrow or torch.float32}",
        "passes recorded" if fleet.replay and fleet.replay.usable else "passes not recorded",
        "the fleet is the baseline and the freezing runs of one seed",
    ]
    what = f"member-steps a second of the paper's model on a GPU, a fleet of {len(specs)} (wall time)"
    return [row(what, f"{plain:.0f} /s", f"{ours:.0f} /s", pair, notes)]


@dataclass(frozen=True)
class Case:
    """A fleet to be timed."""

    members: int
    precision: str
    attacked: bool
    recorded: bool

    @property
    def name(self) -> str:
        """Such as '8 freezing bfloat16 recorded'."""
        words = ("attacked" if self.attacked else "freezing", self.precision, "recorded" if self.recorded else "eager")
        return " ".join((str(self.members), *words))


def cases(device: str) -> list[Case]:
    """Every size with every precision of the device, freezing and under attack, recorded (on a GPU) and not."""
    ways = (False, True) if device == "cuda" else (False,)
    return [
        Case(members, precision, attacked, recorded)
        for precision in (("float32", "bfloat16") if device == "cuda" else ("float32",))
        for attacked, sizes in ((False, (1, 4, 8, 16, 21)), (True, (1, 4, 8, 15)))
        for members in sizes
        for recorded in ways
    ]


def measure(case: Case, device: str, tiny: bool) -> dict[str, Any]:
    """How fast one fleet is, and what memory it took."""
    text = load_text(Text()) if tiny else labelled_corpus()
    paper = replace(find_experiments("paper")[0], seeds=(1,), rewind=None)
    if tiny:
        paper = replace(paper, model=replace(paper.model, width=20, feedforward=20))
    paper = replace(paper, training=replace(paper.training, train_sample=700))
    experiment = replace(paper, freeze=None) if case.attacked else replace(paper, attack=None)
    wanted = "pos" if case.attacked else None
    members = [run for run in experiment.resolved().runs(text.fingerprint) if (run.edit and run.edit.column) == wanted]
    narrow = torch.bfloat16 if case.precision == "bfloat16" else None
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    fleet = Trainer(
        members[: case.members], text, device, products=narrow, recorder=CudaGraph() if case.recorded else None
    )
    steps = [_rate(fleet.step, case.members, device, 2 if tiny else STEPS) for _ in range(1 if tiny else 3)]
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else None
    speeds = {"member_steps_a_second": sorted(steps)[len(steps) // 2], "all": steps, "peak_bytes": peak}
    if fleet.replay is not None:
        speeds |= {"replayed": fleet.replay.usable, "why_not": fleet.replay.reason}
    return speeds


def labelled_corpus() -> Corpus:
    """That of the step's benchmark, with a label of 17 classes."""
    plain = corpus()
    names = tuple(str(i) for i in range(17))
    splits = {
        name: Split(split.tokens, {"pos": (split.tokens % 17).astype(np.int16)}) for name, split in plain.splits.items()
    }
    return Corpus.make("zipf", plain.vocabulary, {"pos": names}, splits, ())


def sizes(place: Path, tiny: bool) -> None:
    """Measure every case that the file does not have yet, and write it after each."""
    device = "cuda" if torch.cuda.is_available() and not tiny else "cpu"
    speeds: dict[str, Any] = read_json(place, f"Delete {place}.") if place.exists() else {}
    for case in cases(device):
        if case.name not in speeds:
            speeds[case.name] = measure(case, device, tiny)
            write_json(place, speeds)
        print(f"{case.name}: {speeds[case.name]['member_steps_a_second']:.1f} member-steps a second", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", type=Path)
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    if options.sizes is not None and (options.tiny or torch.cuda.is_available()):
        sizes(options.sizes, options.tiny)
    else:
        print(json.dumps(rows(), indent=1) if torch.cuda.is_available() else "There is no CUDA device here.")
