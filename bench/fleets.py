"""Fleets against single runs, and two one-thread processes against one of two threads, at the size of `quick`.

python bench/fleets.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence

import torch
from paired import paired, summary

from trisect.core.spec import Run
from trisect.experiments.study.presets import find_experiment
from trisect.lm.matmul import fast_products
from trisect.lm.train import Trainer
from trisect.text.corpus import Corpus
from trisect.text.sources import load_text

MEMBERS, STEPS = 8, 20


def members() -> tuple[list[Run], Corpus]:
    """A fleet of `quick`: the baseline and seven freezing runs of seed 1."""
    quick = find_experiment("quick")
    corpus = load_text(quick.text)
    runs = [r for r in quick.runs(corpus.fingerprint) if r.seed == 1 and (r.edit is None or r.edit.kind == "freeze")]
    return runs[:MEMBERS], corpus


def _steps(trainers: Sequence[Trainer], count: int) -> None:
    for trainer in trainers:
        for _ in range(count):
            trainer.step()


def together(rounds: int) -> dict[str, object]:
    """A fleet of eight against eight fleets of one, in one thread; CPU seconds of one member's step."""
    torch.set_num_threads(1)
    runs, corpus = members()
    with fast_products():
        single, fleet = [Trainer([r], corpus) for r in runs], [Trainer(runs, corpus)]
        found = paired(lambda: _steps(single, 2), lambda: _steps(fleet, 2), rounds)
    each = 1e3 / (2 * MEMBERS)
    return {
        "what": "one member's step in a fleet of 8 against 8 single runs, at the size of `quick`",
        "plain": f"{found.plain * each:.1f} ms",
        "ours": f"{found.ours * each:.1f} ms",
        "ratio": found.ratio,
        "low": found.low,
        "high": found.high,
        "notes": ["the grouping into fleets of at most 8 is made by the plan; single runs are fleets of one"],
    }


def _work(threads: int, fleets: int) -> None:
    """A child: make its fleets, say that it is ready, wait for the word, step them all."""
    torch.set_num_threads(threads)
    runs, corpus = members()
    with fast_products():
        trainers = [Trainer(runs, corpus) for _ in range(fleets)]
        _steps(trainers, 2)
        print("ready", flush=True)
        for _ in sys.stdin:
            _steps(trainers, STEPS)
            print("done", flush=True)


def _children(threads: int, processes: int, fleets: int) -> list[subprocess.Popen[str]]:
    env = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    command = [sys.executable, __file__, str(threads), str(fleets)]
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        for _ in range(processes)
    ]
    for child in started:
        _hear(child, "ready")
    return started


def _hear(child: subprocess.Popen[str], word: str) -> None:
    assert child.stdout
    assert child.stdout.readline().strip() == word


def _round(children: Sequence[subprocess.Popen[str]]) -> float:
    began = time.perf_counter()
    for child in children:
        assert child.stdin
        child.stdin.write("go\n")
        child.stdin.flush()
    for child in children:
        _hear(child, "done")
    return time.perf_counter() - began


def side_by_side(rounds: int) -> dict[str, object]:
    """The same two fleets: in one process of two threads, and in two of one thread each; wall seconds."""
    plain, ours = _children(2, 1, 2), _children(1, 2, 1)
    try:
        found = summary([(_round(plain), _round(ours)) for _ in range(rounds + 1)][1:])
    finally:
        for child in (*plain, *ours):
            child.kill()
            child.wait()
    each = 1e3 / (2 * STEPS * MEMBERS)
    return {
        "what": "two workers of one thread against one process of two threads (wall time)",
        "plain": f"{found.plain * each:.1f} ms a member-step",
        "ours": f"{found.ours * each:.1f} ms a member-step",
        "ratio": found.ratio,
        "low": found.low,
        "high": found.high,
        "notes": ["a study starts one worker of one thread for each core unless asked otherwise"],
    }


def rows(rounds: int = 9) -> list[dict[str, object]]:
    """The table's two rows."""
    return [side_by_side(rounds), together(rounds)]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _work(int(sys.argv[1]), int(sys.argv[2]))
    else:
        print(json.dumps(rows(), indent=1))
