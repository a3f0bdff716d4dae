"""A study's folder: where each file lies, and the ledger as it is read."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

from trisect.core.errors import DamagedFileError, StudyError, TrisectError
from trisect.core.files import (
    as_record,
    digest,
    file_name,
    inside,
    is_name,
    read_json,
)
from trisect.core.methods import FITTED, ON_TRAIN
from trisect.core.spec import read_run
from trisect.core.study_data import LedgerData
from trisect.lab.ledger_laws import contradiction
from trisect.lab.run_folder import RunFolder


@dataclass(frozen=True)
class Folder(RunFolder):
    """The files of one study."""

    @property
    def ledger(self) -> Path:
        """What belongs to the study: base, experiment, runs and fleets."""
        return self.path / "study.json"

    @property
    def copy(self) -> Path:
        """The ledger once more: it alone could not be made again."""
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
        return self._run(run) / "run.json"

    def final(self, run: str) -> Path:
        """A run's final weights."""
        return self._run(run) / "final.safetensors"

    def epochs(self, run: str) -> Path:
        """A baseline's site weights of every epoch."""
        return self._run(run) / "epochs"

    def checkpoint(self, fleet: str) -> Path:
        """Where an unfinished fleet goes on from."""
        return inside(self.path, "fleets", f"{fleet}.safetensors")

    def evaluations(self, run: str) -> Path:
        """The folder of a run's evaluations."""
        return inside(self.path, "evaluations", file_name(run))

    def evaluation(self, run: str, kind: str, site: str, label: str = "") -> Path:
        """Rows of one evaluation of a trained run: 'rewind' or 'midstage' of a site, 'cut' of attention, 'erase' of a
        label at a site, or 'probe' of a label.

        A label is named by its hash; a file of an earlier version, which has the label in its name, is kept in use.
        """
        folder, plain = self.evaluations(run), f"{kind}-{'-'.join(filter(None, (label, site)))}"
        if label and not (is_name(plain) and (folder / f"{plain}.json").exists()):
            plain = "-".join(filter(None, (f"{kind}.{digest(label, 8)}", site)))  # a dot: no earlier name is like it
        return inside(folder, f"{file_name(plain)}.json")

    def own(self) -> list[Path]:
        """Every folder that the study itself writes into."""
        found = [self.path, *(self.path / name for name in ("corpus", "figures", "fleets", "tables"))]
        try:
            runs = self.read_ledger()["runs"]
        except StudyError:  # none yet, or damaged: whoever reads it says so
            return found
        return found + [place for run in runs for place in (self._run(run), self.epochs(run), self.evaluations(run))]

    def _run(self, run: str) -> Path:
        """The folder of a run: its id, or a hash where a label in it makes it no file's name."""
        return inside(self.path, "runs", file_name(run))

    def read_ledger(self) -> LedgerData:
        """The ledger, or its copy where it is gone; raises StudyError where there is none, else DamagedFileError."""
        moving = f"The ledger cannot be made again: move {self.path} away and run the study again."
        if self.ledger.exists():
            todo = f"Delete {self.ledger} and call 'trisect study' again: it is made again from {self.copy.name}."
            return _ledger(self.ledger, todo if self.copy.exists() else moving)
        if self.copy.exists():
            return _ledger(self.copy, moving)
        raise StudyError(
            f"{self.path} holds no study.",
            f"There is no {self.ledger.name} in it.",
            "Run 'trisect study' with --out first.",
        )


def _ledger(path: Path, todo: str) -> LedgerData:
    """A ledger whose parts are what a study wrote: of each run the statement that its id is the hash of.

    A checksum can be made for any content, so that it says nothing of that. Raises DamagedFileError.
    """
    found = read_json(path, todo)
    try:
        body = as_record(found, path, todo, LedgerData)
        runs, fleets = body["runs"], body["fleets"]
        read = {run: read_run(statement) for run, statement in runs.items()}
        if wrong := [run for run, statement in read.items() if statement.id != run]:
            raise ValueError(f"{wrong[0]} is not the id of its statement")
        if strange := [run for fleet in fleets for run in fleet if run not in runs]:
            raise ValueError(f"a fleet names {strange[0]!r}, which is no run of it")
        if odd := contradiction(_with_fits(body), read):
            raise ValueError(odd)
        return body
    except (KeyError, TypeError, ValueError, AttributeError, TrisectError) as error:
        said = f"{error.given} {error.known}" if isinstance(error, TrisectError) else str(error)
        raise DamagedFileError(
            f"{path} is no study's ledger.", f"{type(error).__name__}: {said[:200]}", todo
        ) from error


def check_extended(folder: Folder, ledger: LedgerData) -> None:
    """Raise StudyError for a ledger that would be refused when it is read; to be called before it is written."""
    read = {run: read_run(statement) for run, statement in ledger["runs"].items()}
    if odd := contradiction(_with_fits(deepcopy(ledger)), read):
        raise StudyError(
            f"{folder.path} cannot be extended by what is asked for.",
            f"Its ledger would contradict itself, and could not be read again: {odd[:200]}.",
            "Choose another folder with --out.",
        )


def _with_fits(ledger: LedgerData) -> LedgerData:
    """The ledger with what probes and erasers are fitted on, and random maps, named also where it was written before there was a choice."""
    for statement in (ledger["base"], ledger["experiment"], *ledger.get("asked", ())):
        for part in filter(None, (probe := statement.get("probe"), erase := statement.get("erase"))):
            if (fitted := part.setdefault("fitted", ON_TRAIN)) not in (None, *FITTED):
                raise ValueError(f"a method is fitted on {fitted!r}")
        if probe:
            probe.setdefault("random_maps", 0)
        if erase:
            erase.setdefault("shrinkage", True)
    return ledger
