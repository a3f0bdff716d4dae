"""What every part of the campaign shares: a small study, what is told of files, and when two studies are the same."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import click.testing
import polars as pl

from trisect.cli import main
from trisect.core.site import Site
from trisect.core.spec import Attack, Design, Freeze, Model, Rewind, Text, Training, plain
from trisect.core.tables import STUDY_TABLES, read_table
from trisect.report.sheet import Sheet

SITES = (Site.parse("q@1"),)
TWO = Design(
    "two",
    Text("embedded", train_tokens=1_200, valid_tokens=400),
    Model(width=8, layers=2, heads=2, feedforward=8, dropout=0.1),
    Training(epochs=3, columns=6, eval_columns=4, window=12, optimizer="adamw", rate=3e-3, warmup=3, train_sample=300),
    seeds=(1, 2),
    attack=Attack(SITES, labels=("pos",)),
    rewind=Rewind(SITES, points=11),
    freeze=Freeze(SITES),
)
ONE = Design(
    "one",
    TWO.text,
    TWO.model,
    Training(**{**TWO.training.__dict__, "epochs": 2}),
    seeds=(1,),
    attack=Attack(SITES, labels=("pos",)),
    rewind=Rewind(SITES, points=11),
    freeze=Freeze(SITES),
)


@dataclass
class Tally:
    """Counts of what was seen, and what went wrong, in words."""

    seen: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def expect(self, ok: bool, words: str) -> bool:
        """Note something that is not as it should be."""
        if not ok:
            self.wrong.append(words)
            print("WRONG:", words, flush=True)
        return ok

    def report(self, title: str) -> int:
        """Print the counts; the exit status is 1 where anything went wrong."""
        print(f"{title} ({time.monotonic() - self.began:.0f} s)")
        for name, count in self.seen.most_common():
            print(f"  {count:>6}  {name}")
        print(f"  {len(self.wrong):>6}  went wrong")
        return bool(self.wrong)


@dataclass(frozen=True)
class Said:
    """What a command said: its exit status, standard output and standard error."""

    status: int
    out: str
    err: str

    @property
    def parts(self) -> list[str]:
        """The three parts of an error message, empty where it is not of that form."""
        lines = self.err.strip().splitlines()
        ok = len(lines) == 3 and lines[0].startswith("trisect: ") and all(line.startswith("  ") for line in lines[1:])
        return [lines[0].removeprefix("trisect: "), *(line.strip() for line in lines[1:])] if ok else []


def call(*words: object) -> Said:
    """The command line in this process; a traceback comes back as status 1 with the exception's name."""
    found = click.testing.CliRunner().invoke(main, [str(w) for w in words])
    failed = found.exception is not None and not isinstance(found.exception, SystemExit)
    return Said(found.exit_code, found.stdout, found.stderr + (repr(found.exception) if failed else ""))


def write_experiment(folder: Path, experiment: Design) -> Path:
    """The experiment as a file that `trisect study` takes."""
    path = folder / f"{experiment.name}.json"
    path.write_text(json.dumps(plain(experiment)), encoding="utf-8")
    return path


@contextmanager
def without_page() -> Iterator[None]:
    """Figures and page are left out: they take most of the time, and are written again by each call."""
    with mock.patch("trisect.experiments.study.page.page", return_value=Sheet("t", "k", "l", ())):
        yield


def tables(folder: Path) -> dict[str, pl.DataFrame]:
    """The tables of a study without wall seconds."""
    return {name: read_table(folder / "tables", name).drop("wall_seconds", strict=False) for name in STUDY_TABLES}


def same(one: Path, other: Path) -> bool:
    """The same tables: byte for byte but for `runs`, which holds wall seconds and is compared row for row without."""
    files = all(
        (one / "tables" / f"{name}.parquet").read_bytes() == (other / "tables" / f"{name}.parquet").read_bytes()
        for name in STUDY_TABLES
        if name != "runs"
    )
    return files and all(table.equals(tables(other)[name]) for name, table in tables(one).items())


def kind(path: Path) -> str:
    """What sort of file it is."""
    name = path.name
    if "corpus" in path.parts:
        return f"corpus {'json' if name.endswith('.json') else 'npy'}"
    for folder, word in (
        ("epochs", "epoch snapshot"),
        ("fleets", "checkpoint"),
        ("evaluations", "evaluation"),
        ("tables", "table"),
        ("figures", "figure"),
    ):
        if folder in path.parts:
            return word
    return name


def files_of(folder: Path) -> dict[str, list[Path]]:
    """Every file of a study, by kind."""
    found: dict[str, list[Path]] = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and p.name != ".lock"):
        found.setdefault(kind(path.relative_to(folder)), []).append(path)
    return found


def fork(do: Callable[[], object], words: Path | None = None) -> int:
    """Have a copy of this process do something and end, what it says written to `words`; returns its id.

    This process has everything imported, so that a study starts at once; it must not have used polars before, whose
    threads a copy would lack.
    """
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        os.setsid()
        if words is not None:
            file = os.open(words, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, 1)
            os.dup2(file, 2)
        do()
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def ended(child: int) -> int:
    """Wait for a copy to end: its exit status, negative where a signal ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def in_copy(do: Callable[[], object]) -> bool:
    """Whether a copy of this process did it without complaint, and found it true."""
    return ended(fork(lambda: sys.exit(0 if do() else 1))) == 0


def study(file: Path, out: Path, workers: int = 0, page: bool = False) -> None:
    """`trisect study` in this process."""
    words = ["study", str(file), "--out", str(out), "--workers", str(workers)]
    if page:
        main(words)
    with without_page():
        main(words)
