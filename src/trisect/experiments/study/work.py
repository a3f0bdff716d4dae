"""A study's tasks as the driver gives them out and lands their files; the driver alone writes in the study's folder."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from trisect.core.study_data import BaseData, HowData, LedgerData
from trisect.engine.drive import land
from trisect.engine.jobs import Files, JobOrder
from trisect.experiments.study.numerics import TrainedSoFar
from trisect.experiments.study.tasks import StudyJob, Task, execute, fleet_name
from trisect.lab.folder import Folder

# after a baseline's epochs come a checkpoint, and what says that a run is finished
ORDER = ("fleets/*", "runs/*/run.json")


@dataclass(frozen=True, eq=False)
class StudyWork:
    """One task of a study; `untrained` are the runs still to be trained, shared by all, fewer as fleets end; `trained` is what
    trained the others, null where none is left to train.
    """

    task: Task
    folder: Folder
    ledger: LedgerData
    device: str
    precision: str
    untrained: set[str]
    trained: TrainedSoFar | None

    @property
    def title(self) -> str:
        """What messages and progress lines call it."""
        return self.task.title

    @property
    def seconds(self) -> float:
        """Its expected cost on one core."""
        return self.task.seconds

    def ready(self) -> bool:
        """An evaluation waits until its run is trained."""
        return self.task.kind == "train" or self.task.runs[0] not in self.untrained

    def order(self) -> JobOrder:
        """Training goes on from the fleet's checkpoint; an evaluation reads what a finished run left."""
        train = self.task.kind == "train"
        paths = self._checkpoint() if train else [self.folder.run(self.task.runs[0]).parent]
        return JobOrder(
            execute,
            self._asked(),
            self.folder.path,
            needs={"corpus": self.folder.corpus},
            begins={self._name(path): path for path in paths},
        )

    def _name(self, path: Path) -> str:
        """What jobs call a file or a folder of the study."""
        return path.relative_to(self.folder.path).as_posix()

    def _asked(self) -> StudyJob:
        task, base, rewinding = self.task, self.ledger["base"], self.ledger["experiment"].get("rewind")
        return StudyJob(
            task.kind,
            task.runs,
            task.site,
            task.label,
            {run: self.ledger["runs"][run] for run in task.runs},
            tuple(rewinding.get("sites", ())) if rewinding else (),
            _how(base, task.kind),
            self.device,
            self.precision,
            self.trained.expected if self.trained else None,
        )

    def _checkpoint(self) -> list[Path]:
        """The fleet's checkpoint where there is one; one that was there before its baseline's folder was deleted goes."""
        checkpoint = self.folder.checkpoint(fleet_name(self.task.runs))
        baselines = [run for run in self.task.runs if self.ledger["runs"][run]["edit"] is None]
        if any(not (self.folder.epochs(run) / "0000.safetensors").exists() for run in baselines):
            checkpoint.unlink(missing_ok=True)
        return [checkpoint] if checkpoint.exists() else []

    def land(self, files: Files) -> None:
        """Put files into the study's folder; evaluations of a run that is trained again belonged to its old weights.

        An evaluation may send home its run's files as well, where the disk gives them other numbers: they are the same.
        """
        for run in self.task.runs if self.task.kind == "train" else ():
            if self._name(self.folder.run(run)) in files:
                shutil.rmtree(self.folder.evaluations(run), ignore_errors=True)
        land(files, self.folder.path, ORDER)

    def ended(self) -> None:
        """A fleet's checkpoint is of no use any more, and its runs can be evaluated."""
        if self.task.kind == "train":
            self.folder.checkpoint(fleet_name(self.task.runs)).unlink(missing_ok=True)
            self.untrained.difference_update(self.task.runs)
            if self.trained:
                self.trained.add(self.task.runs)


def _how(base: BaseData, kind: str) -> HowData | None:
    """What the ledger says of evaluations of a kind."""
    match kind:
        case "rewind" | "midstage":
            return base.get("rewind")
        case "probe" | "erase" | "interchange":
            return base.get(kind)
        case _:
            return None
