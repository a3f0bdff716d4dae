"""Thousands of single damaged bytes, straight to what reads each kind of file: named, harmless, never another number.

python bench/reliability/bytes.py [--places 2500] [--seed 0]
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import torch
from common import ONE, Tally, call, without_page, write_experiment

from trisect.core.errors import TrisectError
from trisect.core.files import read_json
from trisect.core.tables import STUDY_TABLES, read_table
from trisect.lm.snapshots import Snapshot, read_snapshot
from trisect.text.corpus import Corpus

Read = Callable[[Path], Any]


def alike(one: Any, other: Any) -> bool:
    """Whether two readings hold the same."""
    if isinstance(one, Snapshot):
        names = one.tensors.keys()
        return one.note == other.note and all(torch.equal(one.tensors[n], other.tensors[n]) for n in names)
    if isinstance(one, Corpus):
        return one.fingerprint == other.fingerprint and one.notes == other.notes
    return one.equals(other) if isinstance(one, pl.DataFrame) else one == other


def damage(tally: Tally, path: Path, read: Read, places: int, draw: random.Random) -> None:
    """Change bytes of a file in place, four ways each, and read it; the file is whole again afterwards."""
    good, whole, name = path.read_bytes(), read(path), f"{path.parent.name}/{path.name}"
    for place in sorted(draw.sample(range(len(good)), min(places, len(good)))):
        for byte in {good[place] ^ (1 << draw.randrange(8)), draw.randrange(256), ord("e"), ord('"')} - {good[place]}:
            path.write_bytes(good[:place] + bytes([byte]) + good[place + 1 :])
            try:
                found = read(path)
            except TrisectError:
                tally.seen[f"{path.suffix}: named"] += 1
            except Exception as error:
                tally.expect(False, f"{name}, byte {place} as {byte}: {type(error).__name__}: {error}")
            else:
                tally.seen[f"{path.suffix}: harmless, the same content"] += 1
                tally.expect(alike(whole, found), f"{name}, byte {place} as {byte}: another content, and nothing said")
    path.write_bytes(good)


def main() -> int:
    """Make a study, damage one file of each kind."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--places", type=int, default=2_500)
    parser.add_argument("--seed", type=int, default=0)
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    tally, draw = Tally(), random.Random(wanted.seed)
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        with without_page():
            call("study", write_experiment(root, ONE), "--out", root / "study", "--workers", 0)
        study, copy = root / "study", root / "corpus"
        shutil.copytree(study / "corpus", copy)
        files: list[tuple[Path, Read]] = [(study / "study.json", lambda path: read_json(path, "."))]
        for pattern in ("runs/base*/run.json", "evaluations/*/rewind*"):
            files.append((next(study.glob(pattern)), lambda path: read_json(path, ".")))
        files.append((next(study.glob("runs/base*/epochs/0001*")), lambda path: read_snapshot(path, ".")))
        files += [
            (study / "tables" / f"{name}.parquet", lambda path: read_table(path.parent, path.stem))
            for name in STUDY_TABLES
        ]
        names = ("train.npy", "train.column-1.npy", "corpus.json")
        files += [(copy / name, lambda path: Corpus.load(path.parent)) for name in names]
        for path, read in files:
            damage(tally, path, read, wanted.places, draw)
    return tally.report("single bytes")


if __name__ == "__main__":
    raise SystemExit(main())
