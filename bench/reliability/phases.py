"""What a process is doing, noted every few milliseconds where a kill cannot take it away, and what it has used of a processor.

A kill is then aimed at a share of a command's own work, or at a phase of it, however busy the machine is.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

ROOM = 64
TICKS = os.sysconf("SC_CLK_TCK")
# a module's place below src/trisect and what it does, the first that fits
KINDS = (
    ("core/files.py", "writing"),
    ("core/tables.py", "writing"),
    ("lab/run_folder.py", "writing"),
    ("hf/small/", "training"),
    ("lm/", "training"),
    ("hf/load.py", "loading a model"),
    ("hf/fetch.py", "loading a model"),
    ("hf/given_files.py", "loading a model"),
    ("hf/proof.py", "verifying a model"),
    ("hf/laws.py", "verifying a model"),
    ("hf/", "passes of a model"),
    ("measure/", "measuring"),
    ("stats/", "statistics"),
    ("theory/", "measuring"),
    ("text/", "reading texts"),
    ("report/", "drawing"),
    ("claims/", "judging"),
    ("engine/", "handing out jobs"),
)


def phase(frame: FrameType | None) -> str:
    """What a stack is about: the innermost experiment that is not the dissection, and the innermost module that says what is done."""
    kind = part = ""
    while frame is not None:
        _, found, place = frame.f_code.co_filename.partition("/src/trisect/")
        if found:
            page = place.startswith("experiments/") and place.rpartition("/")[2].startswith(("page", "figures"))
            own = place.split("/")[1] if place.startswith("experiments/") and place.count("/") > 1 else ""
            kind = kind or (
                "drawing" if page else next((words for start, words in KINDS if place.startswith(start)), "")
            )
            part = own if own and part in ("", "dissect") else part
        frame = frame.f_back
    return f"{part or 'before'}: {kind or 'between two steps'}"


def watch(folder: Path, every: float = 0.003) -> None:
    """Have a thread note what the main thread is doing, in a mapped file named by this process; each phase once more in its own file."""
    path, main = folder / str(os.getpid()), threading.main_thread().ident or 0
    path.write_bytes(b" " * ROOM)
    with path.open("r+b") as file:
        room = mmap.mmap(file.fileno(), ROOM)
    seen: set[str] = set()

    def look() -> None:
        while True:
            words = phase(sys._current_frames().get(main))
            room[:] = words.encode()[:ROOM].ljust(ROOM)
            if words not in seen:
                seen.add(words)
                with suppress(OSError), path.with_suffix(".seen").open("a") as file:
                    file.write(words + "\n")
            time.sleep(every)

    threading.Thread(target=look, daemon=True).start()


def noted(folder: Path, number: int) -> str:
    """What a process noted last; empty where it has noted nothing."""
    with suppress(OSError):
        return (folder / str(number)).read_bytes().decode().strip()
    return ""


def descendants(number: int) -> list[int]:
    """A process and all that it has started, and these."""
    found = [number]
    for one in found:
        with suppress(OSError):
            for children in Path(f"/proc/{one}/task").glob("*/children"):
                found += [int(word) for word in children.read_text().split()]
    return found


def processor_seconds(numbers: list[int]) -> float:
    """What these processes have used of a processor, with what those that have ended below them used."""
    total = 0
    for one in numbers:
        with suppress(OSError, IndexError):
            words = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            total += sum(int(word) for word in words[11:15])
    return total / TICKS
