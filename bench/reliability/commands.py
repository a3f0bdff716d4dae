"""Every command that leaves a folder: killed at random moments, on a disk that is full, twice in one folder, and without a network.

python bench/reliability/commands.py [--kills 8] [--seed 0] [--only norms,align]
"""

from __future__ import annotations

import argparse
import errno
import os
import random
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from common import Tally, ended

from trisect.cli import main as trisect
from trisect.lab.whole_run import MANIFEST, check_run, has_run, landing

SMALL = [f"--set={name}" for name in ("layers=1", "width=16", "heads=2", "epochs=1", "inner=16", "pieces=200")]
TINY = [
    f"--set={name}"
    for name in ("layers=1", "width=16", "heads=2", "pretraining_epochs=1", "epochs_after=1", "epochs_without=1")
]


def commands(place: Path) -> dict[str, list[str]]:
    """Each command, less its --out."""
    texts = ["--corpus", str(place / "texts")]
    gpt2, bart = str(place / "gpt2"), str(place / "bart")
    pairs = ["--source", str(place / "a"), "--target", str(place / "b"), "--gold", str(place / "g")]
    return {
        "norms": ["norms", gpt2, *texts, "--limit", "8"],
        "ablate": ["ablate", gpt2, *texts, "--sites", "v@1", "--limit", "8"],
        "similarity": ["similarity", gpt2],
        "align": ["align", bart, *pairs],
        "patch": ["patch", gpt2, "--base", "w1 w2 w3", "--donor", "w1 w4 w3", "--sites", "v@1"],
        "profile": ["profile", gpt2, "--corpus", str(place / "bank"), "--words", "200"],
        "erase": ["erase", gpt2, "--corpus", str(place / "bank"), "--draws", "2", "--limit", "8"],
        "rewind": ["rewind", str(place / "steps"), "--initial", "step0", "--final", "step1", *texts, "--points", "3", "--sites", "v@1"],
        "theory": ["theory", "average"],
        "translate-train": ["translate-train", "--seeds", "1,", "--workers", "0", *SMALL],
        "recall": ["recall", "--seeds", "1,", "--workers", "0", *TINY],
    }  # fmt: skip


def fork(words: list[str], said: Path, before: Callable[[], object] = lambda: None) -> int:
    """The command in a process of its own, which dies with its status; what it prints goes into a file."""
    if child := os.fork():
        return child
    status = 70
    try:
        os.setsid()
        number = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(number, 1)
        os.dup2(number, 2)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        before()
        trisect.main(words, standalone_mode=True)
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException as error:
        print("Traceback", repr(error), flush=True)
    os._exit(status)


def tables(folder: Path) -> dict[str, bytes]:
    """The tables of a folder."""
    return {path.name: path.read_bytes() for path in sorted((folder / "tables").glob("*.parquet"))}


def one_run_or_none(folder: Path) -> list[str]:
    """What is mixed in a folder: nothing where it is of one run, of none, or of one that the next call lands."""
    if landing(folder) is not None:
        return []
    if has_run(folder):
        return [str(error) for error in check_run(folder)]
    return [f"{path.name} without {MANIFEST}" for path in folder.glob("*.html")]


def no_network() -> None:
    """Every connection is noted and refused."""

    def refuse(_: Any, address: Any) -> None:
        print("CONNECTION", address, flush=True)
        raise OSError("no network here")

    socket.socket.connect = refuse  # pyright: ignore[reportAttributeAccessIssue]


def full_after(count: int) -> None:
    """From the rename of that number on, the disk is full."""
    real, seen = Path.replace, [0]

    def replace(self: Path, target: Any) -> Any:
        seen[0] += 1
        if seen[0] >= count:
            raise OSError(errno.ENOSPC, "No space left on device", str(self))
        return real(self, target)

    mock.patch.object(Path, "replace", replace).start()


class Campaign:
    """Where things lie, what is drawn, and the counts."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root, self.draw, self.tally, self.number = root, random.Random(seed), Tally(), 0

    def run(self, words: list[str], out: Path, before: Callable[[], object] = lambda: None) -> tuple[int, str]:
        """A command to its end: its status and what it said."""
        self.number += 1
        said = self.root / f"said-{self.number}"
        status = ended(fork([*words, "--out", str(out)], said, before))
        text = said.read_text(errors="replace")
        self.tally.expect("Traceback" not in text, f"{words[0]}: a stack: {text[-300:]}")
        return status, text

    def peace(self, name: str, words: list[str]) -> tuple[Path, float]:
        """The command left in peace, without a network."""
        out, began = self.root / name / "peace", time.monotonic()
        status, text = self.run(words, out, no_network)
        self.tally.expect(status == 0, f"{name}: {text[-300:]}")
        self.tally.expect("CONNECTION" not in text, f"{name} opened a connection: {text[-300:]}")
        self.tally.seen["left in peace, without a network"] += 1
        return out, time.monotonic() - began

    def kills(self, name: str, words: list[str], peace: Path, seconds: float, times: int) -> None:
        """Killed at random moments, each time called again to its end."""
        out = self.root / name / "killed"
        for _ in range(times):
            self.number += 1
            child = fork([*words, "--out", str(out)], self.root / f"said-{self.number}")
            time.sleep(self.draw.uniform(0.3, 1.05) * seconds)
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            ended(child)
            self.tally.seen["kill -9"] += 1
            if out.exists():
                self.tally.expect(not (mixed := one_run_or_none(out)), f"{name}, killed: {mixed}")
            if self.draw.random() < 0.5:
                self._whole(name, words, out, peace, "after kill -9")

    def full(self, name: str, words: list[str], peace: Path) -> None:
        """A full disk at each rename in turn, until there are no more."""
        for count in range(1, 200):
            out = self.root / name / f"full-{count}"
            status, text = self.run(words, out, lambda count=count: full_after(count))
            if status == 0:
                break
            lines = text.strip().splitlines()
            good = status == 2 and any("disk is full" in line for line in lines)
            self.tally.expect(good, f"{name}, full at rename {count}: {text[-200:]}")
            self.tally.seen["a full disk at one rename"] += 1
            if out.exists():
                self.tally.expect(not (mixed := one_run_or_none(out)), f"{name}, full at {count}: {mixed}")
            if count % 5 == 1:
                self._whole(name, words, out, peace, "after a full disk")

    def twice(self, name: str, words: list[str], peace: Path) -> None:
        """Two processes in one folder: one is refused, or comes after the other; the tables are the same."""
        out, said = self.root / name / "twice", [self.root / f"{name}-twice-{k}" for k in range(2)]
        pair = [fork([*words, "--out", str(out)], path) for path in said]
        found = sorted(ended(child) for child in pair)
        texts = " ".join(path.read_text(errors="replace") for path in said)
        self.tally.expect(found in ([0, 2], [0, 0]), f"{name}, twice: {found} {texts[-300:]}")
        self.tally.expect(found == [0, 0] or "in use" in texts, f"{name}, twice: {texts[-300:]}")
        self.tally.expect(tables(out) == tables(peace), f"{name}, twice: other tables")
        self.tally.seen["two processes in one folder"] += 1

    def _whole(self, name: str, words: list[str], out: Path, peace: Path, when: str) -> None:
        status, text = self.run(words, out)
        self.tally.expect(status == 0, f"{name} {when}: {text[-300:]}")
        self.tally.expect(tables(out) == tables(peace), f"{name} {when}: other tables")
        self.tally.expect(not one_run_or_none(out), f"{name} {when}: mixed")
        left = [path.name for path in out.rglob("*.trisect-part")]
        self.tally.expect(not left, f"{name} {when}: {left} left")
        self.tally.seen["called again to its end: the same tables"] += 1


def prepare(place: Path) -> None:
    """Tiny models and texts."""
    sys.path.insert(0, str(Path(__file__).parent.parent.parent))
    from tests import tinyhf

    tinyhf.save(tinyhf.gpt2(), place / "gpt2", False)
    tinyhf.save(tinyhf.bart(), place / "bart")
    for name, number in (("step0", 1), ("step1", 2)):
        tinyhf.save(tinyhf.gpt2(number), place / "steps" / name, False)
    lines = [f"w{i} w{i + 1} , w{i + 2} w{(3 * i) % 40} ." for i in range(36)]
    (place / "texts").mkdir()
    (place / "bank").mkdir()
    for split in ("train", "valid", "test"):
        (place / "texts" / f"{split}.txt").write_text("\n".join(lines))
        rows = []
        for i in range(60):
            for j in range(6):
                word, tag = f"w{(7 * i + j) % 40}", ("NOUN", "VERB", "ADJ")[(7 * i + j) % 3]
                rows.append("\t".join([str(j + 1), word, word, tag, tag, "_", str(j), ("dep", "obj")[j % 2], "_", "_"]))
            rows.append("")
        (place / "bank" / f"{split}.conllu").write_text("\n".join(rows) + "\n")
    for name, text in (("a", "w1 w2 w3\nw4 w5\n"), ("b", "w2 w3\nw6 w7 w8\n"), ("g", "0-0 1-1\n0-0 1p2\n")):
        (place / name).write_text(text)


def main() -> int:
    """Every command, every part."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="")
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    import trisect.hf.load
    import trisect.report.sheet  # noqa: F401  (imported before the first fork)

    with tempfile.TemporaryDirectory() as place:
        prepare(Path(place))
        campaign = Campaign(Path(place), wanted.seed)
        for name, words in commands(Path(place)).items():
            if not wanted.only or name in wanted.only.split(","):
                (Path(place) / name).mkdir()
                began = time.monotonic()
                peace, seconds = campaign.peace(name, words)
                campaign.kills(name, words, peace, seconds, wanted.kills)
                campaign.twice(name, words, peace)
                campaign.full(name, words, peace)
                counts = ", ".join(f"{count} {what}" for what, count in campaign.tally.seen.items())
                print(
                    f"{name}: {time.monotonic() - began:.0f} s; so far {counts}; {len(campaign.tally.wrong)} wrong",
                    flush=True,
                )
    for what, count in campaign.tally.seen.items():
        print(f"{count:5} {what}")
    for words in campaign.tally.wrong:
        print("WRONG", words)
    print(f"{len(campaign.tally.wrong)} went wrong")
    return bool(campaign.tally.wrong)


if __name__ == "__main__":
    sys.exit(main())
