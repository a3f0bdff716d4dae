"""Two studies started in one folder at once, and one started where another was killed with the lock in its hands.

python bench/reliability/together.py [--times 10]
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import time
from pathlib import Path

import torch
from common import ONE, Tally, ended, fork, in_copy, same, study, write_experiment

import trisect.experiments.study.run  # noqa: F401  (imported before the first fork)


def refused(tally: Tally, words: str, where: str) -> None:
    """The message of the one that came second."""
    lines = words.strip().splitlines()
    ok = len(lines) == 3 and lines[0].startswith("trisect: The study in ") and lines[0].endswith(" is in use.")
    tally.expect(ok and "Another process" in lines[1] and "--out" in lines[2], f"{where}: said {words}")


def main() -> int:
    """Start, wait, compare."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=10)
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    tally = Tally()
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        file = write_experiment(root, ONE)
        ended(fork(lambda: study(file, root / "peace")))
        for i in range(wanted.times):
            out, words = root / f"both-{i}", [root / f"words-{i}-{k}" for k in range(2)]
            pair = [fork(lambda k=k, out=out, words=words: study(file, out, k), words[k]) for k in range(2)]
            found = sorted((ended(child), path.read_text()) for child, path in zip(pair, words, strict=True))
            if tally.expect([status for status, _ in found] == [0, 2], f"both at once: {found}"):
                refused(tally, found[1][1], "both at once")
            tally.expect(in_copy(lambda out=out: same(out, root / "peace")), "both at once: other tables")
            tally.seen["two at once: one refused, the other with the right tables"] += 1
        for i in range(wanted.times):
            out, words = root / f"dead-{i}", root / f"words-dead-{i}"
            child = fork(lambda out=out: study(file, out))
            while not (out / "study.json").exists():
                time.sleep(0.001)
            second = fork(lambda out=out: study(file, out), words)
            if tally.expect(ended(second) == 2, f"while the first runs: said {words.read_text()}"):
                refused(tally, words.read_text(), "while the first runs")
            os.kill(child, signal.SIGKILL)
            ended(child)
            tally.expect((out / ".lock").exists(), "the killed process left no lock file")
            tally.expect(ended(fork(lambda out=out: study(file, out), words)) == 0, f"stale lock: {words.read_text()}")
            tally.expect(in_copy(lambda out=out: same(out, root / "peace")), "stale lock: other tables")
            tally.seen["the lock of a killed process: no hindrance"] += 1
    return tally.report("two at once")


if __name__ == "__main__":
    raise SystemExit(main())
