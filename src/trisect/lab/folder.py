"""A study's folder: where each file lies, and the lock that keeps others out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from trisect.core.errors import StudyError
from trisect.core.files import read_json


@dataclass(frozen=True)
class Folder:
    """The files of one study."""

    path: Path

    @property
    def ledger(self) -> Path:
        """What belongs to the study: base, experiment, runs and fleets."""
        return self.path / "study.json"

    @property
    def copy(self) -> Path:
        """The ledger once more: it alone could not be made anew."""
        return self.path / "study.copy.json"

    @property
    def corpus(self) -> Path:
        """The text as cut, memory-mapped by every worker."""
        return self.path / "corpus"

    @property
    def tables(self) -> Path:
        """The tidy tables."""
        return self.path / "tables"

    def run(self, run: str) -> Path:
        """A finished run's statement and rows; its being there is what finished means."""
        return self.path / "runs" / run / "run.json"

    def final(self, run: str) -> Path:
        """A run's final weights."""
        return self.path / "runs" / run / "final.safetensors"

    def epochs(self, run: str) -> Path:
        """A baseline's site weights of every epoch."""
        return self.path / "runs" / run / "epochs"

    def checkpoint(self, fleet: str) -> Path:
        """Where an unfinished fleet goes on from."""
        return self.path / "fleets" / f"{fleet}.safetensors"

    def evaluation(self, run: str, kind: str, site: str, label: str = "") -> Path:
        """Rows of one evaluation of a trained run: 'rewind' or 'midstage' of a site, 'cut' of attention, 'erase' of a
        label at a site, or 'probe' of a label.
        """
        return self.path / "evaluations" / run / f"{kind}-{'-'.join(filter(None, (label, site)))}.json"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep the folder to oneself; raises StudyError while another process has it."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            todo = "Choose a folder that can be made, with --out."
            raise StudyError(f"The folder {self.path} cannot be made.", f"The system says: {error}", todo) from error
        lock = FileLock(self.path / ".lock")
        try:
            lock.acquire(timeout=0)
        except Timeout as error:
            raise StudyError(
                f"The study in {self.path} is in use.",
                "Another process is running or reporting it.",
                "Wait for it to end, or choose another folder with --out.",
            ) from error
        except (OSError, NotImplementedError) as error:  # a disk without room for one more file, or without locks
            todo = "Choose a folder that can be written, with --out."
            raise StudyError(f"{self.path} cannot be written.", f"The system says: {error}", todo) from error
        try:
            for scratch in self.path.rglob(".*.part"):
                with contextlib.suppress(FileNotFoundError):  # a process that is just ending may take it away itself
                    scratch.unlink()  # left by a process that was killed while writing
            yield
        except PermissionError as error:
            todo = "Choose a folder that can be written, with --out."
            raise StudyError(f"{self.path} cannot be written.", f"The system says: {error}", todo) from error
        finally:
            lock.release()

    def read_ledger(self) -> dict[str, Any]:
        """The ledger, or its copy where it is gone; raises StudyError where there is none, else DamagedFileError."""
        moving = f"The ledger cannot be made anew: move {self.path} away and run the study again."
        if self.ledger.exists():
            todo = f"Delete {self.ledger} and call 'trisect study' again: it is made anew from {self.copy.name}."
            return read_json(self.ledger, todo if self.copy.exists() else moving)
        if self.copy.exists():
            return read_json(self.copy, moving)
        raise StudyError(
            f"{self.path} holds no study.",
            f"There is no {self.ledger.name} in it.",
            "Run 'trisect study' with --out first.",
        )


def is_study(place: Path) -> bool:
    """Whether a folder is a study's: its ledger, or the ledger's copy, is there."""
    return Folder(place).ledger.exists() or Folder(place).copy.exists()
