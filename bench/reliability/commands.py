"""Every command that leaves a folder: killed at random moments, on a disk that fills up, twice in one folder, and without a network.

python bench/reliability/commands.py --place FOLDER [--kills 200] [--pairs 3] [--no-disk] [--minutes 30] [--only norms] [--less dissect]

A kill is aimed at a share of the command's own work or at a phase of it, and what it hit is counted. The campaign goes on where it
stopped: FOLDER keeps models, texts, what was made in peace, and `counts.json`, in which each trial is counted when it has ended.
Status 1 where anything went wrong, in this call or in one before.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import pkgutil
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from common import ended, in_copy
from counts import Counts, report
from every_write import Refused, each_write, refusals
from phases import descendants, noted, processor_seconds, watch
from prepared import Call, calls, others, prepare

from trisect.core.tables import read_table
from trisect.lab.run_folder import MANIFEST, RunFolder

ENDED = 4  # of the folders that full disks left behind, about so many of a command and way are called to their end
GUARD = """
import socket
def _refused(*given):
    with open({notes!r}, "a") as file:
        file.write(repr(given[-1]) + "\\n")
    raise OSError("no network here")
_connect = socket.socket.connect
def _to(self, address):
    return _connect(self, address) if self.family == socket.AF_UNIX else _refused(address)
socket.socket.connect = socket.socket.connect_ex = _to
socket.getaddrinfo = lambda host, *rest, **named: _refused(host)
"""
WATCHED = """
import sys
from pathlib import Path
sys.path.append({bench!r})
import phases
phases.watch(Path({phases!r}))
"""


def start(do: Callable[[Path], object], out: Path, said: Path, before: Callable[[], object] = lambda: None) -> int:
    """The command in a process of its own with a group of its own; what it prints goes into a file."""
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
        do(out)
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException as error:
        from trisect.core.errors import TrisectError

        known = isinstance(error, TrisectError)  # from Python, where the command line would have printed it
        print(f"trisect: {error}" if known else f"Traceback {error!r}", flush=True)
        status = 2 if known else 70
    with suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def running(child: int) -> bool:
    """Whether a process has not ended yet; its status is left for whoever waits for it."""
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def results(folder: Path) -> dict[str, bytes]:
    """What has to be the same: every table, and of a corpus its arrays."""
    found = [p for p in folder.rglob("*") if p.suffix == ".parquet" and p.parent.name == "tables"]
    found += [*folder.glob("*.npy"), *folder.glob("corpus.json")]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(found)}


def other_results(one: Path, other: Path) -> list[str]:
    """Results that differ, by name: tables that hold seconds are compared without them."""
    mine, theirs = results(one), results(other)
    differ = [name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name)]

    def same(name: str) -> bool:
        frames = [read_table((place / name).parent, Path(name).stem) for place in (one, other)]
        frames = [f.drop([c for c in f.columns if "seconds" in c]) for f in frames]
        frames = [f.filter(~f["name"].str.contains("seconds")) if "name" in f.columns else f for f in frames]
        return frames[0].equals(frames[1])

    def equal(name: str) -> bool:
        return name.endswith(".parquet") and name in mine and name in theirs and in_copy(lambda: same(name))

    return [name for name in differ if not equal(name)]


def mixed(folder: Path) -> list[str]:
    """What is mixed in a folder: nothing where it is of one run, of none, or of one that the next call lands."""
    if any(RunFolder(stage).has_run for stage in folder.glob(".run.*.trisect-part")):
        return []
    if RunFolder(folder).has_run:
        return [str(error) for error in RunFolder(folder).check()]
    return [f"{path.name} without {MANIFEST}" for path in (*folder.glob("*.html"), *folder.glob("corpus.json"))]


def full_after(count: int, way: str) -> None:
    """From that number of renames (or waits for the disk) on, the disk is full."""
    place, name = (Path, "replace") if way == "rename" else (os, "fsync")
    real, seen = getattr(place, name), [0]

    def full(*given: Any) -> Any:
        seen[0] += 1
        if seen[0] >= count:
            raise OSError(errno.ENOSPC, "No space left on device", str(given[0]))
        return real(*given)

    mock.patch.object(place, name, full).start()


class Campaign:
    """Where things lie, what is drawn, and the counts."""

    def __init__(self, place: Path, seed: int, aimed: Collection[str] = ()) -> None:
        self.place, self.counts = place, Counts(place / "counts.json")
        drawn = sum(sum(c.values()) for c in self.counts.tried.values())
        self.draw = random.Random(f"{seed}/{drawn}")
        self.notes, self.doing = place / "connections", place / "doing"
        self.aimed = aimed  # phases that every kill is aimed at, in their order; empty: every other one, at any phase
        self.begun: Sequence[str] = ()  # folders of the run left in peace with which that of a copied command begins
        self.used = 0.0  # seconds of a processor by the last command that was run to its end

    def run(self, call: Call, out: Path, before: Callable[[], object] = lambda: None) -> tuple[int, str]:
        """A command to its end: its status and what it said."""
        said = self.place / f"said-{call.name}"
        began = os.times()
        status = ended(start(call.do, out, said, before))
        self.used = sum(os.times()[2:4]) - sum(began[2:4])
        text = said.read_text(errors="replace")
        self.counts.expect("Traceback" not in text, f"{call.name}: a stack: {text[-600:]}")
        return status, text

    def peace(self, call: Call) -> None:
        """The command left in peace, with each connection noted and refused, in its workers as well."""
        if call.name in self.counts.seconds:
            return
        out, began = self.place / call.name / "peace", time.monotonic()
        self.notes.write_text("")
        self.forget()

        def before() -> None:
            exec(GUARD.format(notes=str(self.notes)), {})
            watch(self.doing)

        status, text = self.run(call, out, before)
        self.counts.expect(status == 0, f"{call.name}, in peace: {text[-300:]}")
        self.counts.expect(not (to := self.notes.read_text()), f"{call.name} opened connections: {to[:300]}")
        self.counts.seconds[call.name], self.counts.processor[call.name] = time.monotonic() - began, self.used
        seen = [line for path in self.doing.glob("*.seen") for line in path.read_text().splitlines()]
        self.counts.phases[call.name] = list(dict.fromkeys(seen))
        self.counts.add(call.name, "in peace, no connection")

    def kill(self, call: Call) -> None:
        """Killed at a random share of its work or in one phase after the other; now and then called again to its end.

        A share is of the seconds of a processor that it needed in peace, less what calls killed in the same folder have done.
        """
        out, said = self.place / call.name / "killed", self.place / f"said-{call.name}"
        self.forget()
        number = self.counts.of(call.name, "kill -9") + self.counts.of(call.name, "had ended before it was killed")
        phases = self.counts.phases[call.name]
        wanted = phases[(number // 2) % len(phases)] if number % 2 else ""
        if aimed := [what for what in phases if what in self.aimed]:
            wanted = aimed[number % len(aimed)]
        whole, spent = self.counts.processor[call.name], self.counts.spent.get(call.name, 0.0)
        aim = self.draw.uniform(0.02, 0.95) * max(whole - spent, 0.2 * whole)
        child = start(call.do, out, said, lambda: watch(self.doing))
        used, hit = self.wait(child, aim, wanted)
        alone = call.workers and self.draw.random() < 0.5
        with suppress(ProcessLookupError):
            (os.kill if alone else os.killpg)(child, signal.SIGKILL)
        status = ended(child)
        if status != -signal.SIGKILL:
            self.counts.add(call.name, "had ended before it was killed")
            lines = said.read_text(errors="replace").strip().splitlines()
            self.counts.expect(status == 0, f"{call.name}, to be killed: {lines[-3:]}")
        else:
            self.counts.spent[call.name] = spent + used
            during = self.counts.during.setdefault(call.name, Counter())
            during.update(hit if not alone else hit[:1])
            self.counts.add(call.name, "kill -9")
        if out.exists() and not call.resumes:
            self.counts.expect(not (found := mixed(out)), f"{call.name}, killed: {found}")
        if status == 0 or self.draw.random() < call.ending:
            self.whole(call, out, "after kill -9")
            self.counts.spent[call.name] = 0.0

    def wait(self, child: int, aim: float, wanted: str) -> tuple[float, list[str]]:
        """Wait for that use of a processor, or for a phase; what was used, and what the process and its workers were doing."""
        while True:
            every = descendants(child)
            used = processor_seconds(every)
            doing = [noted(self.doing, one) for one in every]
            if (wanted in doing if wanted else used >= aim) or not running(child):
                break
            time.sleep(0.005)
        if wanted:
            time.sleep(self.draw.uniform(0.0, 0.05))
            doing = [noted(self.doing, one) for one in every]
        words = [what or "before: starting" for what in doing]
        return used, [words[0], *(f"worker, {what}" for what in words[1:])]

    def forget(self) -> None:
        """Remove what processes noted."""
        self.doing.mkdir(exist_ok=True)
        for path in self.doing.iterdir():
            path.unlink(missing_ok=True)

    def full(self, call: Call, way: str) -> bool:
        """The disk is full from one rename (or wait) on; false where the command has no more of them.

        A command that goes on goes on in the same folder, with one write more each time, so that each call begins at another place;
        one that takes minutes is copied at each of its writes, as those that do not go on.
        """
        done, what = f"full at a {way}, all tried", f"full at a {way}"
        if self.counts.of(call.name, done):
            return False
        if call.copied or not call.resumes:
            self.each_write(call, way)
            self.counts.add(call.name, done)
            return False
        count = self.counts.of(call.name, what) + 1
        out = self.place / call.name / f"full-{way}"
        status, text = self.run(call, out, lambda: full_after(count, way))
        if status == 0:
            self.counts.add(call.name, done)
            self.same(call, out, f"with a disk that filled up at {way}s")
            return False
        self.refused(call, way, Refused(count, status, text, out))
        return True

    def each_write(self, call: Call, way: str) -> None:
        """Every rename (or wait) of a command, in one run of it; some of what is left is called to its end."""
        out, left = self.place / call.name / f"full-{way}", self.place / call.name / f"left-{way}"
        for folder in (out, left):
            shutil.rmtree(folder, ignore_errors=True)
        left.mkdir()
        for name in self.begun if call.copied else ():
            there = self.place / call.name / "peace" / name
            shutil.copytree(there, out / name) if there.is_dir() else shutil.copy2(there, out / name)
        status, text = self.run(call, out, each_write(way, out, left))
        self.counts.expect(status == 0, f"{call.name}, copied at each {way}: {text[-400:]}")
        self.same(call, out, f"copied at each {way}")
        found = list(refusals(left))
        for one in found:
            self.refused(call, way, one)
            of = [] if call.resumes or not one.folder.exists() else mixed(one.folder)
            self.counts.expect(not of, f"{call.name}, full at {way} {one.number}: {of}")
        found = [one for one in found if one.folder.exists()]
        for one in found[:: max(1, len(found) // ENDED)]:
            self.whole(call, one.folder, f"after a full disk at {way} {one.number}")
        shutil.rmtree(left)

    def refused(self, call: Call, way: str, found: Refused) -> None:
        """A full disk was said, with status 2."""
        good = found.status == 2 and any("disk is full" in line for line in found.said.splitlines())
        self.counts.expect(good, f"{call.name}, full at {way} {found.number}: {found.status} {found.said[-400:]}")
        self.counts.expect("Traceback" not in found.said, f"{call.name}: a stack: {found.said[-600:]}")
        self.counts.add(call.name, f"full at a {way}")

    def twice(self, call: Call) -> None:
        """Two processes in one folder: one is refused, or comes after the other; the tables are the same."""
        number = self.counts.of(call.name, "two processes in one folder")
        out, said = self.place / call.name / f"twice-{number}", [self.place / f"said-twice-{k}" for k in range(2)]
        pair = [start(call.do, out, path) for path in said]
        found = sorted(ended(child) for child in pair)
        texts = " ".join(path.read_text(errors="replace") for path in said)
        self.counts.expect(found in ([0, 2], [0, 0]), f"{call.name}, twice: {found} {texts[-300:]}")
        self.counts.expect(found == [0, 0] or "in use" in texts, f"{call.name}, twice: {texts[-300:]}")
        self.same(call, out, "twice in one folder")
        self.counts.add(call.name, "two processes in one folder")

    def whole(self, call: Call, out: Path, when: str) -> None:
        """Called again to its end: as in peace, nothing left over, and the next kill begins with an empty folder."""
        status, text = self.run(call, out)
        if self.counts.expect(status == 0, f"{call.name} {when}: {text[-300:]}"):
            self.same(call, out, when)
        left = [path.name for path in out.rglob("*.trisect-part")]
        self.counts.expect(not left, f"{call.name} {when}: {left} left")
        if call.resumes and out.exists():
            out.rename(out.with_name(f"{out.name}-{time.time_ns()}"))

    def same(self, call: Call, out: Path, when: str) -> None:
        """The tables are those of the run left in peace, and of one run."""
        differ = other_results(out, self.place / call.name / "peace")
        self.counts.expect(not differ, f"{call.name} {when}: other results: {differ}")
        self.counts.expect(not (found := mixed(out)), f"{call.name} {when}: {found}")
        self.counts.add(call.name, "the same tables in the end")


def trials(
    campaign: Campaign, chosen: list[Call], kills: int, pairs: int, disk: bool = True
) -> Iterator[Callable[[], object]]:
    """One trial after the other, in rounds over all commands, so that each has its share wherever time ends."""
    each = -(-kills // len(chosen))
    yield from ((lambda call=call: campaign.peace(call)) for call in chosen)
    if {"norms", "study", "recall"} <= {call.name for call in chosen}:  # what they left is read
        yield from ((lambda call=call: campaign.peace(call)) for call in others(campaign.place))
    left = True
    while left:
        left = False
        for call in chosen:
            counts = campaign.counts
            if counts.of(call.name, "kill -9") < each:
                left = True
                yield lambda call=call: campaign.kill(call)
            if counts.of(call.name, "two processes in one folder") < pairs:
                left = True
                yield lambda call=call: campaign.twice(call)
            for way in ("rename", "fsync"):
                if disk and not counts.of(call.name, f"full at a {way}, all tried"):
                    left = True
                    yield lambda call=call, way=way: campaign.full(call, way)


def imported() -> None:
    """Import what commands need, once, so that a kill falls into a command's own work."""
    import transformers.models.bart.modeling_bart
    import transformers.models.gpt2.modeling_gpt2  # noqa: F401

    import trisect

    for found in pkgutil.walk_packages(trisect.__path__, "trisect."):
        if not any(word in found.name for word in ("ray", "__main__", "server")):
            with suppress(ImportError):
                importlib.import_module(found.name)


def main() -> int:
    """Every command, every part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--place", type=Path, required=True)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--no-disk", action="store_true", help="Leave out disks that fill up.")
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--aim", default="", help="Phases, with commas, as counts.json has them.")
    parser.add_argument("--begun", default="", help="Parts of dissect that are there already, with commas.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--less", default="")
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    imported()
    place: Path = wanted.place.absolute()
    guard = place / "guard"
    if not (place / "prepared").exists():
        prepare(place)
        guard.mkdir(parents=True, exist_ok=True)
        watched = WATCHED.format(bench=str(Path(__file__).parent.absolute()), phases=str(place / "doing"))
        (guard / "sitecustomize.py").write_text(GUARD.format(notes=str(place / "connections")) + watched)
        (place / "prepared").write_text("")
    os.environ["PYTHONPATH"] = f"{guard}:{os.environ.get('PYTHONPATH', '')}"  # of workers, which note connections too
    campaign, end = Campaign(place, wanted.seed, wanted.aim.split(",")), time.monotonic() + 60 * wanted.minutes
    campaign.begun = tuple(filter(None, wanted.begun.split(",")))
    only, less = (set(filter(None, text.split(","))) for text in (wanted.only, wanted.less))
    chosen = [call for call in calls(place) if (not only or call.name in only) and call.name not in less]
    for call in chosen:
        (place / call.name).mkdir(exist_ok=True)
    for trial in trials(campaign, chosen, wanted.kills, wanted.pairs, not wanted.no_disk):
        if time.monotonic() > end:
            break
        trial()
    report(campaign.counts)
    return bool(campaign.counts.wrong)


if __name__ == "__main__":
    sys.exit(main())
