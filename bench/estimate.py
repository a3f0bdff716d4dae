"""An estimate, not a measurement: hours that the paper's preset would train on 1, 8 and 64 GPUs.

python bench/estimate.py            the table
python bench/estimate.py --write    the same into docs/how-to/gpu-box.md

What is counted: every operation of one step of each fleet, the bytes that it reads and writes, and the operations of its products, by
running the step on PyTorch's device 'meta', which has shapes and no numbers, with the blocks of a GPU. What is published: a device's rates.
What is measured: the share of its products' time that the same step reaches on a CPU (docs/bench.json). What is assumed stands in ASSUMED.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from trisect.core.spec import Run
from trisect.experiments.study.ledger import fleets
from trisect.experiments.study.plan import makespan
from trisect.experiments.study.presets import find_experiments
from trisect.lm import fleet, loss, train
from trisect.lm.adversary import Attackers
from trisect.lm.train import Trainer
from trisect.text.corpus import Corpus, Split, steps

ROOT = Path(__file__).parents[1]
PAGE, MEASURED = ROOT / "docs" / "how-to" / "gpu-box.md", ROOT / "docs" / "bench.json"
MARKS = "<!-- python bench/estimate.py --write -->", "<!-- end of the estimate -->"
# NVIDIA's data sheet of the H100 SXM: operations a second without sparsity, bytes a second
DEVICE, RATES, BANDWIDTH = "H100 SXM", {"float32": 67e12, "bfloat16": 989e12}, 3.35e12
GAP = 2e-6  # seconds between two operations of a recorded pass
ADAMW = 7  # times that the update reads or writes what it updates
VOCABULARY, TRAIN, VALID = 28_782, 2_049_990, 214_417  # WikiText-2
SIZES, GPUS = (32, 8, 4), (1, 8, 64)
SPARSE = ("index", "gather", "scatter", "embedding")  # what these are given whole is not read whole
ASSUMED = (
    "every operation takes the longer of what its products and what its bytes take at the published rates, and all of them together that "
    "time divided by the share that the step reaches of its products' time on a CPU",
    f"{GAP * 1e6:.0f} µs between operations, as of a recorded pass; an evaluation is a third of a step for each of its tokens, in float32",
    "reading, rewinding and judging are not in it, nor waits for the host, nor that kernels differ in how near they come to the rates",
)


class Traffic(NamedTuple):
    """Of one operation: what its products calculate, and the bytes that it reads and writes."""

    operations: float
    moved: float


class Counting(TorchDispatchMode):
    """Notes every operation that is not a mere view."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Traffic] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run it, and note it."""
        found = func(*args, **(kwargs or {}))
        marks = [one.alias_info for one in func._schema.returns]
        if any(mark is not None and not mark.is_write for mark in marks):
            return found
        given, made = _tensors((args, kwargs)), _tensors(found)
        if func.overloadpacket in flop_registry:
            operations = flop_registry[func.overloadpacket](*args, **(kwargs or {}), out_val=found)
        else:
            operations = 0
        if any(word in str(func) for word in SPARSE):
            moved = 2 * sum(_size(t) for t in (*given[1:], *made) if t is not given[0])
        else:
            moved = sum(_size(t) for t in {id(t): t for t in (*given, *made)}.values())
        self.seen.append(Traffic(float(operations), float(moved)))
        return found


def _tensors(given: Any) -> list[Tensor]:
    return [one for one in tree_leaves(given) if isinstance(one, Tensor)]


def _size(t: Tensor) -> int:
    return min(t.numel() * t.element_size(), t.untyped_storage().nbytes())


class _Pretended:
    """The module `torch`, where a device has neither generators nor autocast."""

    def __getattr__(self, name: str) -> Any:
        if name == "Generator":
            return lambda device: torch.Generator()
        return (lambda *given, **more: contextlib.nullcontext()) if name == "autocast" else getattr(torch, name)


@contextlib.contextmanager
def shapes_alone() -> Iterator[None]:
    """Within it a fleet can be trained on the device 'meta', in the blocks of a GPU."""

    def factor(self: Any, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        bits = torch.empty(-(-int(np.prod(shape)) // 4), dtype=torch.int64, device="meta").random_()
        keep = torch.ge(bits.view(torch.int16), 0, out=torch.empty(4 * len(bits), dtype=dtype, device="meta"))
        return keep.mul_(2.0)[: int(np.prod(shape))].view(shape)

    with contextlib.ExitStack() as stack:
        for sizes in (fleet.TOGETHER, loss.BLOCK, loss.TALL, loss.FEW):
            stack.enter_context(mock.patch.dict(sizes, meta=sizes["cuda"]))
        for module in (fleet, train):
            stack.enter_context(mock.patch.object(module, "torch", _Pretended()))
        stack.enter_context(mock.patch.object(train.Dropout, "factor", factor))
        stack.enter_context(mock.patch.object(torch.optim.AdamW, "step"))
        yield


def count(runs: Sequence[Run], text: Corpus) -> list[Traffic]:
    """Every operation of one step of a fleet, its attackers' update in one."""
    with shapes_alone():
        trainer = Trainer(runs, text, "meta")
        with Counting() as counting:
            trainer.step([])
    groups = [o for o in trainer.objectives if isinstance(o, Attackers)]
    return counting.seen + [Traffic(0.0, float(ADAMW * _size(group.flat))) for group in groups]


def seconds(step: Sequence[Traffic], precision: str, share: float) -> float:
    """What one step takes."""
    limits = (max(one.operations / RATES[precision], one.moved / BANDWIDTH) for one in step)
    return sum(limits) / share + GAP * len(step)


def stand_in() -> Corpus:
    """A few windows with WikiText-2's number of types, and labels; how long the text is enters by TRAIN alone."""
    ids = np.arange(20 * 36 * 2, dtype=np.int32)
    classes = {"pos": 17, "dep": 37}
    labels = {name: (ids % n).astype(np.int16) for name, n in classes.items()}
    names = {name: tuple(map(str, range(n))) for name, n in classes.items()}
    splits = {"train": Split(ids, labels), "valid": Split(ids, labels)}
    return Corpus.make("shapes", tuple(map(str, range(VOCABULARY))), names, splits)


class Job(NamedTuple):
    """A fleet's training: its members, whether attacked, its steps, the tokens of its evaluations, and one step."""

    members: int
    attacked: bool
    steps: int
    evaluated: int
    step: list[Traffic]

    def hours(self, shares: dict[str, float], precision: str) -> float:
        """All steps, and the evaluations."""
        tokens = 700
        wide = seconds(self.step, "float32", shares["float32"])
        took = self.steps * seconds(self.step, precision, shares[precision]) + self.evaluated / tokens * wide / 3
        return took / 3600


def jobs(members: int) -> list[Job]:
    """The training jobs of the preset, in their order."""
    text, found, known = stand_in(), [], dict[tuple[object, ...], list[Traffic]]()
    paper = find_experiments("paper")[0].resolved()
    whole = Corpus.make(
        "length", ("a",), {}, {s: Split(np.zeros(n, np.int32), {}) for s, n in (("train", TRAIN), ("valid", VALID))}
    )
    for team in fleets(list(paper.runs(text.fingerprint)), members):
        training, column = team[0].training, next((r.edit.column for r in team if r.edit is not None), None)
        alike = len(team), column, training.epochs
        if alike not in known:
            known[alike] = count([replace(r, training=replace(training, train_sample=700)) for r in team], text)
        each = VALID + min(training.train_sample or TRAIN, TRAIN)
        every = training.epochs * steps(whole.splits["train"], training.columns, training.window)
        found.append(Job(len(team), column is not None, every, (training.epochs + 1) * each, known[alike]))
    return found


def shares() -> dict[str, float]:
    """The share of its products' time that a step reaches, by precision, as the bench measured it on a CPU; the least over processors."""
    found = [
        _shares_of(of["step"]["rows"])
        for of in json.loads(MEASURED.read_text(encoding="utf-8")).values()
        if "step" in of
    ]
    return {precision: min(one[precision] for one in found) for precision in found[0]}


def _shares_of(rows: list[dict[str, Any]]) -> dict[str, float]:
    notes = "\n".join(note for row in rows for note in row["notes"])
    wide, narrow = (
        re.search(r"ours (\d+)\s?%", notes),
        re.search(r"alone would take \(the decoder's[^)]*\): (\d+)\s?%", notes),
    )
    assert wide is not None
    assert narrow is not None
    return {"float32": int(wide[1]) / 100, "bfloat16": int(narrow[1]) / 100}


def table() -> list[str]:
    """The estimate as lines of a page."""
    own, every = shares(), {size: jobs(size) for size in SIZES}
    lines = [
        f"Hours of training for all runs of `paper` (five seeds; {TRAIN:,} tokens, {VOCABULARY:,} types) on an {DEVICE}. "
        "An H200 gave 803 (float32) and 1,149 (bfloat16) member-steps a second with 21 members ([measured](gpu.md)).",
        "",
        f"| `--fleet` | training jobs | precision | {' | '.join(f'GPUs: {n}' for n in GPUS)} | longest job "
        "| member-steps a second, freezing | under attack |",
        f"| --- | --- | --- |{' --- |' * len(GPUS)} --- | --- | --- |",
    ]
    for size, found in every.items():
        for precision in RATES:
            hours = [job.hours(own, precision) for job in found]
            cells = [f"{makespan(hours, n):.1f}" for n in GPUS] + [f"{max(hours):.1f}"]
            for attacked in (False, True):
                job = max((j for j in found if j.attacked is attacked), key=lambda j: j.members)
                cells.append(f"{job.members / seconds(job.step, precision, own[precision]):,.0f}")
            lines.append(f"| {size} | {len(found)} | {precision} | {' | '.join(cells)} |")
    largest = every[SIZES[0]][0]
    operations, moved = (sum(column) for column in zip(*largest.step, strict=True))
    published = f"{RATES['float32'] / 1e12:.0f} and {RATES['bfloat16'] / 1e12:.0f} TFLOP/s in float32 and bfloat16, {BANDWIDTH / 1e12} TB/s"
    reached = f"{100 * own['float32']:.0f} % and {100 * own['bfloat16']:.0f} %"
    return [
        *lines,
        "",
        f"- Counted (`python bench/estimate.py`): a step of the first fleet, {largest.members} members, is {len(largest.step)} operations, "
        f"{operations / 1e12:.2f} TFLOP in products and {moved / 1e9:.1f} GB read and written.",
        f"- Published: {published} ({DEVICE}, data sheet).",
        f"- Measured: a step on a CPU reaches {reached} of its products' time ([speed](../bench.md)).",
        *(f"- Assumed: {words}." for words in ASSUMED),
    ]


def main() -> None:
    """Print the table, or write it."""
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--write", action="store_true")
    given, lines = ask.parse_args(), table()
    print("\n".join(lines))
    if given.write:
        before, rest = PAGE.read_text(encoding="utf-8").split(MARKS[0])
        after = rest.split(MARKS[1])[1]
        PAGE.write_text("\n".join([before + MARKS[0], *lines, MARKS[1]]) + after, encoding="utf-8")


if __name__ == "__main__":
    main()
