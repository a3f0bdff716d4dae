"""The paths of a study's folder, and its ledger."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from trisect.core.errors import DamagedFileError, StudyError, TrisectError
from trisect.core.files import digest, file_name, read_json, read_record, safe_join
from trisect.core.schema import read
from trisect.core.spec import FinishedRun, Ledger
from trisect.lab.run_folder import RunFolder
from trisect.lm.snapshots import read_snapshot


@dataclass(frozen=True)
class Folder(RunFolder):
    """The files of one study."""

    @property
    def ledger(self) -> Path:
        """The ledger: base, experiment, runs and fleets."""
        return self.path / "study.json"

    @property
    def copy(self) -> Path:
        """A copy of the ledger, the only file that cannot be computed again."""
        return self.path / "study.copy.json"

    @property
    def corpus(self) -> Path:
        """The tokenized text, memory-mapped by every worker."""
        return self.path / "corpus"

    @property
    def tables(self) -> Path:
        """The tidy tables."""
        return self.path / "tables"

    def run(self, run: str) -> Path:
        """A run's statement and rows, written when the run is finished."""
        return self._run(run) / "run.json"

    def final(self, run: str) -> Path:
        """A run's final weights."""
        return self._run(run) / "final.safetensors"

    def epochs(self, run: str) -> Path:
        """A baseline's site weights of every epoch."""
        return self._run(run) / "epochs"

    def checkpoint(self, fleet: str) -> Path:
        """The checkpoint from which an unfinished fleet resumes."""
        return safe_join(self.path, "fleets", f"{fleet}.safetensors")

    def evaluations(self, run: str) -> Path:
        """The folder of a run's evaluations."""
        return safe_join(self.path, "evaluations", file_name(run))

    def evaluation(self, run: str, kind: str, site: str, label: str = "") -> Path:
        """Rows of one evaluation of a trained run: 'rewind' or 'midstage' of a site, 'cut' of attention, 'erase' of a
        label at a site, or 'probe' of a label, which is named by its hash.
        """
        name = "-".join(filter(None, (f"{kind}.{digest(label, 8)}" if label else kind, site)))
        return safe_join(self.evaluations(run), f"{file_name(name)}.json")

    def folders(self) -> list[Path]:
        """All folders that the study writes."""
        places = [self.path, *(self.path / name for name in ("corpus", "figures", "fleets", "tables"))]
        try:
            runs = self.read_ledger().runs
        except StudyError:  # none yet, or damaged: whoever reads it says so
            return places
        return places + [place for run in runs for place in (self._run(run), self.epochs(run), self.evaluations(run))]

    def _run(self, run: str) -> Path:
        """The folder of a run: its id, or a hash if the id is no valid file name."""
        return safe_join(self.path, "runs", file_name(run))

    def read_ledger(self) -> Ledger:
        """Read the ledger, or its copy; raises StudyError if there is neither, DamagedFileError if they are damaged."""
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


def _ledger(path: Path, todo: str) -> Ledger:
    """Read a ledger and check that its designs and fleets agree, which a checksum cannot show."""
    body = read_json(path, todo)
    try:
        return read(Ledger, body, path)
    except TrisectError as error:
        reason = f"{error.problem} {error.reason}"[:300]
        raise DamagedFileError(f"{path} is no study's ledger.", reason, todo) from error


def read_run(folder: Folder, run: str) -> FinishedRun:
    """Read a finished run's statement and rows; raises DamagedFileError naming the file to delete."""
    path = folder.run(run)
    todo = f"Delete {path.parent} and call 'trisect study' again: its fleet is then trained again."
    return read_record(path, todo, FinishedRun)


def weights(folder: Folder, run: str, file: str, device: str) -> dict[str, Tensor]:
    """Read a trained baseline's parameters or one epoch's in-projections, without a member axis."""
    base = folder.run(run).parent
    todo = f"Delete the folder {base} and call 'trisect study' again: its fleet is then trained again."
    return {n: v.to(device) for n, v in read_snapshot(base / file, todo)[0].items()}


def epoch_weights(folder: Folder, run: str, epochs: int) -> list[str]:
    """The files of a baseline's epochs 0 to `epochs`, for `weights`; raises DamagedFileError if one is missing."""
    files = [f"epochs/{p.name}" for p in sorted(folder.epochs(run).glob("*.safetensors"))]
    if len(files) != epochs + 1:
        raise DamagedFileError(
            f"The site weights of {run} are incomplete.",
            f"There are {len(files)} of {epochs + 1} epochs.",
            f"Delete the folder {folder.run(run).parent} and call 'trisect study' again: its fleet is then trained again.",
        )
    return files
