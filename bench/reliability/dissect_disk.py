"""dissect on a disk that fills up, without a copy of its process: again and again in one folder, full from a drawn write on.

python bench/reliability/dissect_disk.py --place FOLDER [--way fsync] [--stride 40] [--ends 2] [--begun training] [--seed 0] [--minutes 10]

FOLDER is that of commands.py, which has made dissect's tables in peace. Each call is refused at one of the next writes and
goes on from what the one before has left; which part's file it was is counted. Some of the folders are kept, and called to their
end once each; so is the last. Status 1 where anything went wrong.
"""

from __future__ import annotations

import argparse
import errno
import os
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from commands import imported, mixed, other_results, start
from common import ended
from every_write import WAYS
from prepared import calls


def full_from(count: int, way: str, out: Path, note: Path) -> Callable[[], object]:
    """From that write on the disk is full; which file was refused first is noted."""

    def begin() -> None:
        place, name = next((place, name) for kind, place, name in WAYS if kind == way)
        real, seen = getattr(place, name), [0]

        def at(*given: Any) -> Any:
            seen[0] += 1
            if seen[0] < count:
                return real(*given)
            if seen[0] == count:
                file = given[0] if way == "rename" else os.readlink(f"/proc/self/fd/{given[0]}")
                note.write_text(os.path.relpath(file, out))
            raise OSError(errno.ENOSPC, "No space left on device", str(given[0]))

        mock.patch.object(place, name, at).start()

    return begin


def main() -> int:
    """Refused calls until one ends well, and the folders that some of them left called to their end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--place", type=Path, required=True)
    parser.add_argument("--way", choices=[way for way, _, _ in WAYS], default="fsync")
    parser.add_argument("--stride", type=int, default=40, help="Writes between two refusals, on average.")
    parser.add_argument("--ends", type=int, default=2, help="Folders kept, and called to their end once.")
    parser.add_argument("--begun", default="", help="Parts that are there already, with commas.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=10)
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    imported()
    place: Path = wanted.place.absolute()
    (call,) = (one for one in calls(place) if one.name == "dissect")
    peace, root = place / "dissect" / "peace", place / f"dissect-full-{wanted.way}-{wanted.seed}"
    out, said, note = root / "out", root / "said", root / "note"
    shutil.rmtree(root, ignore_errors=True)
    out.mkdir(parents=True)
    for name in (*filter(None, wanted.begun.split(",")), *(["parts.json"] if wanted.begun else [])):
        (shutil.copytree if (peace / name).is_dir() else shutil.copy2)(peace / name, out / name)
    draw, hit, wrong, end = random.Random(wanted.seed), Counter[str](), 0, time.monotonic() + 60 * wanted.minutes
    kept: list[Path] = []

    def expect(good: bool, words: str) -> None:
        nonlocal wrong
        wrong += not good
        print("ok   " if good else "WRONG", words, flush=True)

    def whole(folder: Path) -> None:
        status = ended(start(call.do, folder, said))
        text = said.read_text(errors="replace")
        expect(status == 0, f"{folder.name}, called to its end: {status} {'' if status == 0 else text[-400:]}")
        differ = other_results(folder, peace)
        expect(not differ and not mixed(folder), f"{folder.name}: other tables {differ}, mixed {mixed(folder)}")

    while time.monotonic() < end:
        count = draw.randint(1, 2 * wanted.stride)
        note.unlink(missing_ok=True)
        status = ended(start(call.do, out, said, full_from(count, wanted.way, out, note)))
        text = said.read_text(errors="replace")
        if status == 0 and not note.exists():
            break
        file = note.read_text() if note.exists() else ""
        good = status == 2 and "disk is full" in text and "Traceback" not in text
        expect(good, f"{wanted.way} {count}, {file}: {status} {'' if good else text[-400:]}")
        hit[file.split("/")[0]] += 1
        if out.exists() and draw.random() < 0.25 and len(kept) < wanted.ends:
            kept.append(root / f"kept {sum(hit.values())}")
            shutil.copytree(out, kept[-1], copy_function=os.link)  # files are replaced, never changed
    for folder in (out, *kept):
        whole(folder)
    for part, number in hit.most_common():
        print(f"{number:5} {part}")
    print(f"{sum(hit.values())} refused calls, {1 + len(kept)} folders called to their end, {wrong} went wrong")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
