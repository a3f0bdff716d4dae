"""Every type that transformers builds, made small: how many are read, refused by name, wrong or not built, and why.

    make all-types, or: PYTHONPATH=. OMP_NUM_THREADS=1 python bench/all_types.py --place FOLDER [TYPE …]

Each type has a process of its own, which ends after so many seconds of a processor. What became of it is a line of
FOLDER/types.jsonl; called once more, the command goes on with those that have none. Types that are named are tried again.
In the end the counts are printed, and FOLDER/types.csv holds a row for each type.
"""

from __future__ import annotations

import argparse
import csv
import json
import multiprocessing
import os
import resource
import signal
from collections.abc import Sequence
from pathlib import Path

from tests import counted, judged, shrunk

TRIES = 11
IDLE = 20  # times the seconds of a processor that a process may last


def one(kind: str, path: Path) -> None:
    """What becomes of one type, written to a file."""
    with judged.quiet():
        how, said = judged.outcome(kind, TRIES)
    path.write_text(json.dumps({"how": how, "said": " ".join(said.split())[:2000]}), encoding="utf-8")


def run_type(kind: str, place: Path, seconds: int) -> dict[str, object]:
    """What became of one type in a process of its own, and the seconds of a processor that it was used for."""
    path = place / "one.json"
    path.unlink(missing_ok=True)

    def do() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
        with (place / "said.txt").open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        one(kind, path)

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    child = multiprocessing.get_context("fork").Process(target=do)
    child.start()
    child.join(IDLE * seconds)
    if child.is_alive():
        child.kill()
    child.join()
    status, after = child.exitcode or 0, resource.getrusage(resource.RUSAGE_CHILDREN)
    used = round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1)
    if path.is_file():
        verdict = json.loads(path.read_text(encoding="utf-8"))
    else:
        slow = status in (-signal.SIGXCPU, -signal.SIGKILL) or used >= seconds
        last = (place / "said.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        verdict = {"how": "too slow" if slow else "ended in an error", "said": f"ended with {status} {' '.join(last)}"}
    return {"type": kind, **verdict, "cpu_seconds": used}


def read_rows(path: Path) -> dict[str, dict[str, object]]:
    """What is known of each type already; the last line of a type counts."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return {row["type"]: row for row in map(json.loads, lines)}


def main() -> None:
    """Try all types that are not tried yet, or those named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--place", type=Path, required=True)
    parser.add_argument("--seconds", type=int, default=120, help="of a processor, for one type")
    parser.add_argument("types", nargs="*")
    options = parser.parse_args()
    options.place.mkdir(parents=True, exist_ok=True)
    table = options.place / "types.jsonl"
    with judged.quiet():
        every = shrunk.kinds()
    done = read_rows(table)
    for kind in options.types or [k for k in every if k not in done]:
        row = run_type(kind, options.place, options.seconds)
        with table.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(row["type"], row["how"], row["cpu_seconds"], str(row["said"])[:120], flush=True)
    count(options.place, every)


def count(place: Path, every: Sequence[str]) -> None:
    """Write a row for each type, and print how many became what."""
    done = read_rows(place / "types.jsonl")
    rows = [counted.row(kind, str(done[kind]["how"]), str(done[kind]["said"])) for kind in every if kind in done]
    with (place / "types.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([counted.Row._fields, *rows])
    print(*counted.table(rows), sep="\n")
    read, attending = counted.share(rows)
    used = sum(float(str(done[kind]["cpu_seconds"])) for kind in every if kind in done)
    print(
        f"{read} of {attending} that run and attend are read ({100 * read / max(1, attending):.1f} %); {used:.0f} s of a processor"
    )


if __name__ == "__main__":
    main()
