"""dissect on a disk that fills up, from each distinct write of it on, in one run of it.

python bench/reliability/dissect_disk.py --place FOLDER [--each 2] [--ends 12] [--minutes 60]

FOLDER is that of commands.py, which has made dissect's tables in peace. A write is a rename, a wait for the disk, a file opened for
writing or a folder made; two are the same where they are of one part and sort of file and come from the same lines of the tool, and
each distinct one is tried as often as `--each` says. At a write the process is copied, and the copy's disk is full from there on; it
has to end with status 2 and to lose nothing. A copy lacks its parent's threads: where a failure is passed over and the copy would
compute on, the same is tried by a process of its own, in a copy of the folder. Some of the folders that were left are called to their
end. What was tried is in FOLDER/dissect-disk/log.jsonl: called again, the campaign goes on from there. Status 1 where anything went
wrong.
"""

from __future__ import annotations

import argparse
import errno
import hashlib
import io
import json
import os
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from commands import imported, mixed, other_results, start
from common import ended
from prepared import Call, calls

from trisect.core.files import is_scratch

IDLE = 4.0  # seconds without use of a processor after which a copy waits for a thread that it lacks
PASSED = "parts.json"  # whose failure dissect passes over until the next file
SAID = ("disk is full", "No space left")


class Way(NamedTuple):
    """A kind of write: what does it, and which file a call of it is about (null where it writes nothing new)."""

    name: str
    place: Any
    does: str
    file: Callable[..., Path | None]


def _opened(file: Any, mode: str = "r", *_: Any, **__: Any) -> Path | None:
    return Path(file) if isinstance(file, str | Path) and set(mode) & set("wxa") else None


def _made(path: Any, *_: Any, **__: Any) -> Path | None:
    return None if isinstance(path, int) or Path(path).exists() else Path(path)


WAYS = (
    Way("rename", Path, "replace", lambda one, other: Path(other)),
    Way("wait", os, "fsync", lambda number: Path(os.readlink(f"/proc/self/fd/{number}"))),
    Way("open", io, "open", _opened),
    Way("folder", os, "mkdir", _made),
)


class Place(NamedTuple):
    """Where everything of the campaign lies."""

    root: Path

    @property
    def out(self) -> Path:
        """The folder of the one run whose writes are tried."""
        return self.root / "out"

    @property
    def log(self) -> Path:
        """A line for each try."""
        return self.root / "log.jsonl"

    def lines(self) -> list[dict[str, Any]]:
        """What was tried."""
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []


def below(path: Path | None, out: Path) -> str:
    """The path below the folder, a scratch file's by the file that it becomes; empty for one that is elsewhere."""
    if path is None or not path.absolute().is_relative_to(out):
        return ""
    name = re.sub(r"^\.(.+)\.\d+-[0-9a-f]{8}\.trisect-part$", r"\1", path.name)
    return path.absolute().relative_to(out).with_name(name).as_posix() if path.absolute() != out else "."


def point(way: str, file: str) -> str:
    """One name for a write from the same lines, of the same part and sort of file."""
    frame, lines = sys._getframe(2), []
    while frame is not None:
        _, found, module = frame.f_code.co_filename.partition("/src/trisect/")
        lines += [f"{module}:{frame.f_lineno}"] if found else []
        frame = frame.f_back
    part, kind = file.split("/")[0], Path(file).suffix or re.sub(r"\W.*|\d+", "", Path(file).name)
    return f"{way} {part} {kind} {hashlib.blake2b(' '.join(lines).encode(), digest_size=6).hexdigest()}"


def linked(source: Path, target: Path, locks: bool = True) -> None:
    """A second name for every file: files are replaced, never changed."""
    keep = None if locks else shutil.ignore_patterns(".lock")
    shutil.copytree(source, target, copy_function=os.link, ignore=keep)


def numbers(folder: Path) -> dict[str, int]:
    """Every file but locks, what was being written and what jobs at work have, by the number under which the system knows it."""
    files = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}
    return {
        name.as_posix(): path.stat().st_ino
        for name, path in files.items()
        if not any(part in (".lock", ".trisect-jobs") or is_scratch(part) for part in name.parts)
    }


def own_folders(out: Path) -> None:
    """A copy removes no folder elsewhere: those for temporary files are its parent's too."""
    real = shutil.rmtree

    def below_out(path: Any, *rest: Any, **named: Any) -> None:
        if Path(path).absolute().is_relative_to(out):
            real(path, *rest, **named)

    mock.patch.object(shutil, "rmtree", below_out).start()


class Tries:
    """The run whose writes are tried: at each distinct one a copy of the process goes on with a full disk."""

    def __init__(self, place: Place, each: int) -> None:
        self.place, self.each, self.full, self.busy = place, each, False, False
        self.seen = Counter(line["point"] for line in place.lines())

    def begin(self) -> None:
        """Watch every write of this process."""
        for way in WAYS:
            mock.patch.object(way.place, way.does, self._watched(way, getattr(way.place, way.does))).start()

    def _watched(self, way: Way, real: Callable[..., Any]) -> Callable[..., Any]:
        def at(*given: Any, **named: Any) -> Any:
            file = "" if self.busy else below(way.file(*given, **named), self.place.out)
            if file and not self.full and self.seen[name := point(way.name, file)] < self.each:
                self.seen[name] += 1
                self.busy = True
                self.full = self._try(way.name, file, name)
                self.busy = False
            if file and self.full:
                raise OSError(errno.ENOSPC, "No space left on device", file)
            return real(*given, **named)

        return at

    def _try(self, way: str, file: str, name: str) -> bool:
        """Whether this is the copy; the other one waits for it, writes down what came of it, and puts the folder back."""
        out, root = self.place.out, self.place.root
        before, said = root / "before", root / "said-copy"
        shutil.rmtree(before, ignore_errors=True)
        linked(out, before) if out.exists() else before.mkdir()
        there, status, left = numbers(before), None, {}
        if file != PASSED:
            sys.stdout.flush()
            child = os.fork()
            if child == 0:
                number = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.dup2(number, 1)
                os.dup2(number, 2)
                own_folders(out)
                return True
            status, left = _status(child), numbers(out) if out.exists() else {}
        again = status is None
        if again:
            status, left = self._afresh(before, way, file, said)
        gone = sorted(  # a process of its own writes parts.json again before it comes there
            name for name, number in there.items() if left.get(name) != number and not (again and name in left)
        )
        words = said.read_text(errors="replace") if said.exists() else ""
        line = {"point": name, "way": way, "file": file, "status": status, "afresh": again, "gone": gone}
        good = status == 2 and any(said in words for said in SAID) and "Traceback" not in words
        line |= {"good": good and not gone, "said": "" if good else words[-600:]}
        self._keep(name.split()[1], before, left and out)
        with self.place.log.open("a") as log:
            log.write(json.dumps(line) + "\n")
        _put_back(before, out)
        return False

    def _keep(self, part: str, before: Path, left: object) -> None:
        """The first folder of each part that was left by a full disk, to be called to its end."""
        kept = self.place.root / "kept" / part
        if left and not kept.exists():
            kept.parent.mkdir(exist_ok=True)
            linked(self.place.out, kept, locks=False)

    def _afresh(self, before: Path, way: str, file: str, said: Path) -> tuple[int, dict[str, int]]:
        """The same in a process of its own, which the first process starts for this one, in a copy of the folder."""
        folder, asked, answer = (self.place.root / name for name in ("again", "asked.json", "answer.json"))
        shutil.rmtree(folder, ignore_errors=True)
        linked(before, folder, locks=False)
        scratch = asked.with_suffix(".part")
        scratch.write_text(json.dumps([str(folder), way, file, str(said)]))
        scratch.replace(asked)
        while not answer.exists():
            time.sleep(0.05)
        status = json.loads(answer.read_text())
        answer.unlink()
        return status, numbers(folder)


def _status(child: int) -> int | None:
    """A copy's exit status; null where it stopped using a processor and was ended."""
    used, since = -1, time.monotonic()
    while True:
        done, code = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(code)
        now = sum(map(int, Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[11:13]))
        waits = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] == "S"
        if now != used or not waits:
            used, since = now, time.monotonic()
        if time.monotonic() - since > IDLE:
            os.kill(child, 9)
            os.waitpid(child, 0)
            return None
        time.sleep(0.005)


def _put_back(before: Path, out: Path) -> None:
    """The folder as it was, only where it is another; its lock is held open, and stays the file that it is."""
    here = sorted(path.relative_to(out) for path in out.rglob("*")) if out.exists() else []
    if here == sorted(path.relative_to(before) for path in before.rglob("*")) and numbers(out) == numbers(before):
        return
    out.mkdir(exist_ok=True)
    for path in out.iterdir():
        if path.name != ".lock":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in before.iterdir():
        if not (out / path.name).exists():
            path.rename(out / path.name)


def full_at(way: str, file: str, folder: Path) -> Callable[[], None]:
    """From the first such write of that file on the disk is full."""
    full = [False]

    def watched(one: Way, real: Callable[..., Any]) -> Callable[..., Any]:
        def at(*given: Any, **named: Any) -> Any:
            here = below(one.file(*given, **named), folder)
            full[0] = full[0] or (here == file and one.name == way)
            if here and full[0]:
                raise OSError(errno.ENOSPC, "No space left on device", here)
            return real(*given, **named)

        return at

    def begin() -> None:
        for one in WAYS:
            mock.patch.object(one.place, one.does, watched(one, getattr(one.place, one.does))).start()

    return begin


def tried(call: Call, place: Place, each: int, minutes: float) -> int | None:
    """The run whose writes are tried, to its end: its status; null where the time was over. Starts what it asks for."""
    child = start(call.do, place.out, place.root / "said", Tries(place, each).begin)
    asked, answer, end = place.root / "asked.json", place.root / "answer.json", time.monotonic() + 60 * minutes
    while True:
        if asked.exists():
            folder, way, file, said = json.loads(asked.read_text())
            asked.unlink()
            status = ended(start(call.do, Path(folder), Path(said), full_at(way, file, Path(folder))))
            answer.with_suffix(".part").write_text(json.dumps(status))
            answer.with_suffix(".part").replace(answer)
        done, code = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(code)
        if time.monotonic() > end:
            os.killpg(child, 9)
            os.waitpid(child, 0)
            return None
        time.sleep(0.05)


def called_to_their_end(call: Call, place: Place, peace: Path, folders: list[Path]) -> Iterator[tuple[bool, str]]:
    """Folders that full disks left: the same tables as in peace, and of one run."""
    for folder in folders:
        said = place.root / "said-end"
        status = ended(start(call.do, folder, said))
        differ, of = other_results(folder, peace), mixed(folder)
        text = "" if status == 0 else said.read_text(errors="replace")[-400:]
        yield (
            not status and not differ and not of,
            f"{folder.name}, to its end: {status} {text} differ {differ} mixed {of}",
        )
        shutil.move(folder, place.root / "ended" / folder.name)


def main() -> int:
    """Every distinct write, then folders called to their end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--place", type=Path, required=True)
    parser.add_argument("--each", type=int, default=2, help="Tries of each distinct write.")
    parser.add_argument("--ends", type=int, default=12, help="Folders called to their end, of as many parts.")
    parser.add_argument("--minutes", type=float, default=60)
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    imported()
    whole: Path = wanted.place.absolute()
    (call,) = (one for one in calls(whole) if one.name == "dissect")
    place, peace, wrong = Place(whole / "dissect-disk"), whole / "dissect" / "peace", 0
    (place.root / "ended").mkdir(parents=True, exist_ok=True)
    status = tried(call, place, wanted.each, wanted.minutes)
    if status:
        print("WRONG the run itself:", status, (place.root / "said").read_text(errors="replace")[-600:])
    lines = place.lines()
    for line in lines:
        if not line["good"]:
            print("WRONG", json.dumps(line))
    wrong += bool(status) + sum(not line["good"] for line in lines)
    if status == 0:
        kept = sorted((place.root / "kept").iterdir())[: wanted.ends]
        for good, words in called_to_their_end(call, place, peace, [place.out, *kept]):
            print("ok   " if good else "WRONG", words, flush=True)
            wrong += not good
    found = Counter((line["file"].split("/")[0], line["way"]) for line in lines)
    for part in dict.fromkeys(line["file"].split("/")[0] for line in lines):
        print(f"{part:20}", *(f"{way.name} {found[part, way.name]:4}" for way in WAYS))
    points = len({line["point"] for line in lines})
    print(
        f"{len(lines)} tries at {points} distinct writes, {sum(line['afresh'] for line in lines)} afresh; {wrong} wrong"
    )
    return bool(wrong) or status is None


if __name__ == "__main__":
    sys.exit(main())
