"""A disk that is full at each write of a study, and at each size of a real one: said, nothing lost, resumed.

python bench/reliability/disk.py [--real]    (--real mounts a tmpfs, which needs the right to do so)
"""

from __future__ import annotations

import argparse
import errno
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

import torch
from common import ONE, Said, Tally, call, files_of, kind, same, without_page, write_experiment

from trisect.engine.start import SCRATCH

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
MOMENTS = ("half of the bytes", "fsync", "rename", "making the folder")


class Disk:
    """Counts the files that are written, and is full at one moment of one of them."""

    def __init__(self, at: int = -1, moment: str = "") -> None:
        self.at, self.moment, self.count = at, moment, 0
        self.paths: list[Path] = []
        self.durable: list[bool] = []  # of each, whether it is waited for

    def _now(self, moment: str) -> bool:
        return self.count == self.at and self.moment == moment

    def replace_file(self, inner: Callable[..., None], moves: bool = False) -> Callable[..., None]:
        """Stands in for core.files.replace_file; a file that `moves` is whole or not there."""

        def counted(path: Path, write: Callable[[Path], object], durable: bool = True) -> None:
            self.count += 1
            self.paths.append(path)
            self.durable.append(durable)

            def halfway(scratch: Path) -> None:
                if moves and self._now("half of the bytes"):
                    raise FULL
                write(scratch)
                if self._now("half of the bytes"):
                    os.truncate(scratch, scratch.stat().st_size // 2)
                    raise FULL

            with ExitStack() as stack:
                for moment, place in (("fsync", "os.fsync"), ("rename", "pathlib.Path.replace")):
                    if self._now(moment) and (durable or moment != "fsync"):
                        stack.enter_context(mock.patch(place, side_effect=FULL))
                if self._now("making the folder"):
                    stack.enter_context(mock.patch("pathlib.Path.mkdir", side_effect=FULL))
                inner(path, halfway, durable)

        return counted


@contextmanager
def disk(at: int = -1, moment: str = "") -> Iterator[Disk]:
    """Every room that writes, writes on this disk."""
    import trisect.experiments.study.page
    from trisect.core import files, tables
    from trisect.engine import jobs, landing
    from trisect.experiments.study import run as study
    from trisect.lm import snapshots
    from trisect.text import arrays

    made = Disk(at, moment)
    with ExitStack() as stack:
        write = made.replace_file(files.replace_file)
        for room in (files, tables, study, snapshots, arrays, trisect.experiments.study.page):
            stack.enter_context(mock.patch.object(room, "replace_file", write))
        for room in (jobs, landing):
            stack.enter_context(mock.patch.object(room, "replace_file", made.replace_file(files.replace_file, True)))
        yield made


def check(tally: Tally, said: Said, where: str, named: Path | None, out: Path) -> None:
    """An error in three parts that names the file and says what to do; no traceback, no half a file."""
    parts = said.parts
    if not tally.expect(said.status == 2 and len(parts) == 3, f"{where}: status {said.status}, said {said.err[-600:]}"):
        return
    tally.expect(named is None or str(named) in parts[0], f"{where}: names another file: {parts[0]}")
    tally.expect(str(out) in parts[0] or "temporary" in parts[1], f"{where}: names no file: {parts[0]}")
    tally.expect("full" in parts[1] or "No space left" in parts[1], f"{where}: does not say why: {parts[1]}")
    tally.expect(bool(parts[2]), f"{where}: does not say what to do")
    tally.expect(not [*out.rglob("*.part"), *out.rglob("*.trisect-part")], f"{where}: left half a file")


def at_home(path: Path) -> Path | None:
    """What a file of a job is called in the study; null for the second name under which it travels there."""
    if path.parts[0] != SCRATCH:
        return path
    return Path(*path.parts[3:]) if path.parts[2] == "work" else None


def enumerate_writes(tally: Tally, root: Path, file: Path, peace: Path) -> None:
    """Fail each write of the study at one moment of it, in turn, then go on with room again."""
    with disk() as counting:
        call("study", file, "--out", root / "counted", "--workers", 0)
    written = [path.relative_to(root / "counted") for path in counting.paths]
    first_page = next(i for i, path in enumerate(written) if path.parts[0] in ("figures", "report.html"))
    for i, path in enumerate(written):
        out, moment = root / f"full-{i}", MOMENTS[i % len(MOMENTS)]
        if moment == "fsync" and not counting.durable[i]:
            moment = MOMENTS[0]
        named = at_home(path)
        with ExitStack() as stack:
            if i < first_page:
                stack.enter_context(without_page())
            with disk(i + 1, moment):
                said = call("study", file, "--out", out, "--workers", 0)
            check(tally, said, f"write {i + 1} ({path}), {moment}", named and out / named, out)
            before = {p: p.read_bytes() for p in out.glob("runs/*/*") if p.is_file()}
            with without_page():
                said = call("study", file, "--out", out, "--workers", 0)
        tally.expect(said.status == 0, f"write {i + 1} ({path}): resuming said {said.err[-600:]}")
        lost = [p for p, content in before.items() if p.name == "run.json" and p.read_bytes() != content]
        whole = {p.parent.name for p in before if p.name == "run.json"}
        unfinished = named is None or named.parts[0] == "runs"
        tally.expect(unfinished or not lost, f"write {i + 1} ({path}): finished runs {whole} were run again")
        tally.expect(said.status != 0 or same(out, peace), f"write {i + 1} ({path}): other tables")
        tally.seen[f"{kind(path)}: {moment}"] += 1


def real(tally: Tally, root: Path, file: Path, peace: Path) -> None:
    """The same on a file system of a few kilobytes, made larger until the study fits."""
    place = root / "mount"
    place.mkdir()
    pages = 4
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={pages * 4}k", "tmpfs", place], capture_output=True)
    if mounted.returncode:
        print("no tmpfs could be mounted here; left out")
        return
    try:
        out = place / "study"
        while True:
            with without_page():
                said = call("study", file, "--out", out, "--workers", pages % 2)
            if said.status == 0:
                break
            check(tally, said, f"a disk of {pages * 4} kB", None, out)
            tally.seen["a real disk that is full"] += 1
            pages = int(pages * 1.3) + 1
            subprocess.run(["mount", "-o", f"remount,size={pages * 4}k", place], check=True)
        tally.expect(same(out, peace), "a disk that grew: other tables")
        tally.seen["studies finished on a disk that grew"] += 1
        size = sum(p.stat().st_size for paths in files_of(out).values() for p in paths)
        print(f"the study needs {size / 1e3:.0f} kB; the disk ended with {pages * 4} kB")
        subprocess.run(["mount", "-o", f"remount,size={pages * 4 + 40}k", place], check=True)
        check(tally, call("study", file, "--out", out, "--workers", 0), "no room for figures", None, out)
        temporary(tally, root, place)
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def temporary(tally: Tally, root: Path, place: Path) -> None:
    """A text that is read while the temporary folder is full."""
    text = root / "text"
    text.mkdir()
    for split in ("train", "valid"):
        (text / f"{split}.txt").write_text("a b c . \n" * 60_000)
    with mock.patch.object(tempfile, "tempdir", str(place)):
        said = call("corpus", "show", text)
    tally.expect(said.status == 2 and len(said.parts) == 3, f"full temporary folder: {said.status} {said.err[-500:]}")
    tally.expect("TMPDIR" in said.err, f"full temporary folder: {said.err}")
    tally.seen["a full temporary folder"] += 1


def main() -> int:
    """Fail, resume, compare."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--real", action="store_true")
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    tally = Tally()
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        file = write_experiment(root, ONE)
        with without_page():
            call("study", file, "--out", root / "peace", "--workers", 0)
        if wanted.real:
            real(tally, root, file, root / "peace")
        enumerate_writes(tally, root, file, root / "peace")
    return tally.report("a full disk")


if __name__ == "__main__":
    raise SystemExit(main())
