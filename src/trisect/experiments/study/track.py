"""Tracking: finished runs into Weights & Biases, trackio or TensorBoard, each once, and never at the study's cost."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from typing_extensions import TypedDict

from trisect.core.errors import SpecError, unknown
from trisect.core.extras import there
from trisect.core.files import file_name, inside, read_record, write_json
from trisect.lab.folder import Folder
from trisect.lab.runs import read_finished

PROJECT = "trisect"


@dataclass(frozen=True)
class Record:
    """A finished run as trackers take it: its specification, its status, and the rows of `metrics` by epoch.

    A metric is called split/name, for example valid/loss_nats. `key` is the run's id with a mark of this folder.
    """

    run: str
    key: str
    study: str
    place: Path
    config: Mapping[str, object]
    status: Mapping[str, object]
    epochs: Mapping[int, Mapping[str, float]]


def _wandb(record: Record) -> None:
    """As one run, in the user's mode; offline, into the study's folder, where nobody is logged in."""
    import wandb

    mode = None if os.environ.get("WANDB_MODE") or wandb.login(prompt=False, verify=False) else "offline"
    for half in record.place.glob(f"wandb/*-{record.key}"):
        shutil.rmtree(half)  # a process ended while it was written
    record.place.mkdir(parents=True, exist_ok=True)
    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        group=record.study,
        name=record.run,
        id=record.key,
        dir=record.place,
        mode=mode,  # pyright: ignore[reportArgumentType]
        resume="allow",
        config=dict(record.config),
        reinit="create_new",
        settings=wandb.Settings(silent=True, console="off"),
    )
    for epoch, values in record.epochs.items():
        run.log(dict(values), step=epoch)
    run.summary.update(dict(record.status))
    run.finish()


def _trackio(record: Record) -> None:
    """As one run of trackio's own local store (TRACKIO_DIR); what an earlier, broken try left there is removed first."""
    import trackio

    with contextlib.suppress(ValueError):  # no such project yet
        for old in [r for r in trackio.Api().runs(PROJECT) if r.name == record.key]:
            old.delete()
    run = trackio.init(
        PROJECT,
        record.key,
        group=record.study,
        config={**record.config, "status": dict(record.status)},
        embed=False,
        auto_log_gpu=False,
        auto_log_cpu=False,
    )
    for epoch, values in record.epochs.items():
        run.log(dict(values), step=epoch)
    trackio.finish()


def _tensorboard(record: Record) -> None:
    """As a folder of event files of its own, in double precision; `tensorboard --logdir OUT/track/tensorboard`."""
    from torch.utils.tensorboard import SummaryWriter

    folder = inside(record.place, "tensorboard", file_name(record.run))
    shutil.rmtree(folder, ignore_errors=True)
    with SummaryWriter(str(folder)) as writer:
        writer.add_text("config", _fenced(record.config))
        writer.add_text("status", _fenced(record.status))
        for epoch, values in record.epochs.items():
            for name, value in values.items():
                writer.add_scalar(name, value, epoch, new_style=True, double_precision=True)


def _fenced(value: Mapping[str, object]) -> str:
    return f"```json\n{json.dumps(value, indent=1, sort_keys=True)}\n```"


TRACKERS: dict[str, Callable[[Record], None]] = {"wandb": _wandb, "trackio": _trackio, "tensorboard": _tensorboard}


def check_tracker(name: str | None) -> None:
    """Raise SpecError where that tracker is none of ours, is not installed, or cannot be imported."""
    if name is None:
        return
    if name not in TRACKERS:
        raise SpecError(unknown("tracker", name, TRACKERS), f"Trackers are {', '.join(TRACKERS)}.", "Use one of them.")
    todo = f"Install it: pip install 'trisect[{name}]'"
    if not there(name):
        raise SpecError(
            f"Tracking by {name} is asked for, but {name} is not there.", "Trackers are optional extras.", todo
        )
    try:
        importlib.import_module("torch.utils.tensorboard" if name == "tensorboard" else name)
    except Exception as error:  # foreign code: anything may go wrong in it
        known = f"Importing it says: {type(error).__name__}: {error}"
        raise SpecError(f"Tracking by {name} is asked for, but {name} does not work.", known, todo) from error


@contextmanager
def tracking(
    name: str | None, folder: Folder, study: str, runs: Iterable[str]
) -> Iterator[Callable[[Sequence[str]], None]]:
    """While it lasts, log runs as they finish, in a thread of its own; yields what is to be called with run ids.

    `study` is the study's name, `runs` all of its run ids: those that finished earlier and were never logged come
    first. What fails is said once, on standard error, and ends the tracking alone. OUT/track/NAME.json lists what has
    been logged.
    """
    if name is None:
        yield lambda runs: None
        return
    log = _Log(name, folder, study)
    pool = ThreadPoolExecutor(1, thread_name_prefix="track")
    try:
        pool.submit(log.add, tuple(runs))

        def note(ended: Sequence[str]) -> None:
            pool.submit(log.add, tuple(ended))

        yield note
        pool.shutdown()
    finally:
        log.stopped = True  # a study that is stopped does not wait for what can be logged when it goes on
        pool.shutdown()


def log_path(folder: Folder, name: str) -> Path:
    """The list of what has been logged to a tracker."""
    return inside(folder.path, "track", f"{name}.json")


def read_logged(path: Path) -> LoggedRuns:
    """What has been logged, from OUT/track/NAME.json; raises DamagedFileError naming what to delete."""
    again = f"call 'trisect study' again with --track {path.stem}"
    return read_record(path, f"Delete {path.parent} and {again}: every run is then logged again.", LoggedRuns)


class LoggedRuns(TypedDict):
    """The runs that a tracker has been given, and the mark that makes their keys those of this folder."""

    mark: str
    runs: list[str]


class _Log:
    """The list of what has been logged, kept on disk."""

    def __init__(self, name: str, folder: Folder, study: str) -> None:
        self.name, self.folder, self.study = name, folder, study
        self.path = log_path(folder, name)
        self.stopped = False
        self.kept: LoggedRuns = {"mark": secrets.token_hex(3), "runs": []}
        if self.path.exists():
            self.kept = read_logged(self.path)

    def add(self, runs: Sequence[str]) -> None:
        """Log those runs that are finished and not logged yet."""
        for run in runs:
            if self.stopped:
                return
            if run in self.kept["runs"] or not self.folder.run(run).exists():
                continue
            try:
                if not self.path.exists():
                    write_json(self.path, self.kept)  # the mark first, so that a second try replaces the first
                with contextlib.redirect_stdout(io.StringIO()):  # ours may be read by a program
                    TRACKERS[self.name](self._record(run))
                write_json(self.path, {**self.kept, "runs": [*self.kept["runs"], run]})
            except Exception as error:
                self.stopped = True
                said = " ".join(str(error).split())[:300]
                print(
                    f"trisect: tracking by {self.name} stopped: {type(error).__name__}: {said}\n"
                    "  The study goes on. Its tables lack nothing.\n"
                    f"  Call it again with --track {self.name}: what was not logged is logged then.",
                    file=sys.stderr,
                )
                return
            self.kept["runs"].append(run)

    def _record(self, run: str) -> Record:
        body = read_finished(self.folder, run)
        epochs: dict[int, dict[str, float]] = {}
        for epoch, split, name, value in body["metrics"]:
            if value is not None:
                epochs.setdefault(int(epoch), {})[f"{split}/{name}"] = value
        known = ("status", "diverged_step", "parameters", "device", "wall_seconds", "claims_hash")
        return Record(
            run,
            "".join(c if c.isalnum() or c in "-._" else "_" for c in f"{run}-{self.kept['mark']}"),
            self.study,
            self.folder.path / "track",
            {**body["spec"], "run": run, "versions": body["versions"]},
            {key: body[key] for key in known},
            dict(sorted(epochs.items())),
        )
