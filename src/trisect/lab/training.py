"""Train models over several calls: their files, each model as a job, and work that resumes in its folder."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from torch import nn

from trisect.core.files import Json, read_json_list, read_record, safe_join, write_json
from trisect.core.schema import to_json_data
from trisect.engine.drive import JobWork
from trisect.engine.jobs import Emit, Files, JobContext, JobOrder, write_files
from trisect.hf.files.fetch import OwnTokenizer
from trisect.hf.small.gpt import Practice, is_model, save
from trisect.lab.experiment import F, Measured, RunContext
from trisect.lab.inputs import R
from trisect.lab.jobs import run_jobs
from trisect.lab.run_folder import DELETE_ADVICE, ResumePlan, join_plan, run_plan
from trisect.text.birth_places import People
from trisect.text.bitext import Bitext
from trisect.text.pairs import TrainingText


class _SeededSettings(Protocol):
    """Settings with seeds."""

    seeds: Final[tuple[int, ...]]


S = TypeVar("S", bound=_SeededSettings)
D = TypeVar("D", People, Bitext, TrainingText)


@dataclass(frozen=True)
class ModelFiles:
    """The paths of a model's files in its experiment's folder.

    `stages` are its trainings in order, a single one without a name; `kind` is the folder of what models give once they are
    trained, `models` the path of the folder that they lie in.
    """

    home: Path
    title: str
    kind: str
    stages: tuple[str, ...] = ("",)
    models: tuple[str, ...] = ()

    def model(self, version: str = "") -> Path:
        """The trained model, a Hugging Face folder, or an earlier version of it."""
        return safe_join(self.home, *self.models, self._name(version))

    def state(self, stage: str) -> Path:
        """The state from which an unfinished training resumes."""
        return safe_join(self.home, "state", f"{self._name(stage)}.pt")

    def losses(self, stage: str) -> Path:
        """The loss of every epoch of a training."""
        return safe_join(self.home, "losses", f"{self._name(stage)}.json")

    @property
    def results(self) -> Path:
        """The results of the trained model."""
        return safe_join(self.home, self.kind, f"{self.title}.json")

    def _name(self, part: str) -> str:
        return f"{self.title}-{part}" if part else self.title

    @property
    def is_complete(self) -> bool:
        """Whether the model and the losses of all its trainings exist."""
        return is_model(self.model()) and all(self.losses(stage).exists() for stage in self.stages)

    def loss_rows(self, stage: str, run: str, name: str) -> list[dict[str, Json]]:
        """Rows of the table `metrics` with the loss of every epoch of a training; raises DamagedFileError."""
        path = self.losses(stage)
        losses = enumerate(read_json_list(path, DELETE_ADVICE.format(path)), start=1)
        return [{"run": run, "epoch": epoch, "split": "train", "name": name, "value": loss} for epoch, loss in losses]

    def train(
        self,
        practice: Practice,
        model: nn.Module,
        tokenizer: OwnTokenizer,
        stage: str,
        report: Callable[[int, int, float], object],
        version: str = "",
    ) -> None:
        """Run or resume a training, and store its losses and the model; `report` gets epoch, epochs and loss."""
        epochs = practice.schedule.epochs * practice.schedule.cycles
        losses = practice.run(model, self.state(stage), lambda epoch, loss: report(epoch, epochs, loss))
        write_json(self.losses(stage), list(losses))
        save(model, tokenizer, self.model(version))
        self.state(stage).unlink(missing_ok=True)


@dataclass(frozen=True)
class ModelJob(JobWork):
    """A model as a job that depends on no other: the argument of `function`, and the training data."""

    files: ModelFiles
    function: Callable[[Any, JobContext], None]
    request: Any
    data: Path
    cost: float = 1.0  # what it takes, against others

    @property
    def title(self) -> str:
        """Its title in messages and progress lines."""
        return self.files.title

    @property
    def seconds(self) -> float:
        """Its relative cost."""
        return self.cost

    def order(self) -> JobOrder:
        """The job, resuming from the existing files."""
        home, names = self.files.home, re.compile(rf"{re.escape(self.title)}([-.].*)?")
        folders = (home.joinpath(*self.files.models), home / "losses", home / "state")
        paths = [path for folder in folders for path in sorted(folder.glob("*")) if names.fullmatch(path.name)]
        begins = {path.relative_to(home).as_posix(): path for path in paths}
        return JobOrder(self.function, self.request, home, {"data": self.data}, begins)

    def land(self, files: Files) -> None:
        """Move files into the experiment's folder; the file that marks a model as finished is last."""
        write_files(files, self.files.home, ("*/config.json", f"{self.files.kind}/*"))

    def finish(self) -> None:
        """Remove the state of an unfinished training."""
        for stage in self.files.stages:
            self.files.state(stage).unlink(missing_ok=True)


def begin(context: JobContext, kind: type[D]) -> tuple[D, Emit]:
    """A job's training data, and its progress report, which also sends new files home."""

    def load(path: Path) -> D:
        return read_record(path, "Run the same command again: it writes the file again.", kind)

    def emit(share: float, words: str) -> None:
        context.send_files()
        context.report(share, words)

    return context.read("data", load), emit


@dataclass(frozen=True)
class TrainingWork(Generic[S, R, D, F]):
    """Models to train from `data`; call it again to resume, or with more seeds to extend it.

    `kind` is what the folder holds, in words. `plan_file` and `data_file` are names of its plan and of what is learnt from,
    `folders` those it writes into besides models, whose names below it fit `model_pattern`.
    """

    settings: S
    recipe: R
    data: D
    device: str
    name: str = ""
    kind: ClassVar[str]
    plan_file: ClassVar[str]
    data_file: ClassVar[str]
    folders: ClassVar[tuple[str, ...]]
    model_pattern: ClassVar[str]

    def check(self, folder: Path) -> None:
        """Raise StudyError if the folder has other content, or was begun with other settings."""
        self._plan(folder)

    def folders_of(self, folder: Path) -> Iterable[Path]:
        """All folders that it writes."""
        near = (path.relative_to(folder).as_posix() for path in sorted([*folder.glob("*"), *folder.glob("models/*")]))
        models = [folder / name for name in near if re.fullmatch(self.model_pattern, name)]
        return [folder, *(folder / name for name in ("losses", "state", "tables", *self.folders)), *models]

    def measure(self, context: RunContext) -> Measured[F]:
        """Train the unfinished models, and measure all."""
        home, plan = context.folder, self._plan(context.folder)
        write_json(home / self.plan_file, plan.data())
        write_json(home / self.data_file, to_json_data(self.data))
        jobs = self.jobs(home, plan.seeds)
        left = [job for job in jobs if not (job.files.is_complete and job.files.results.exists())]
        left.sort(key=lambda job: -job.seconds)
        plan = run_plan(
            home / self.plan_file, plan, len(left), lambda: run_jobs(left, context.machine, self.device, home)
        )
        return self.collect(home, plan, jobs)

    def jobs(self, home: Path, seeds: Sequence[int]) -> list[ModelJob]:
        """A job for the model of each seed."""
        raise NotImplementedError(self.kind)

    def collect(self, home: Path, plan: ResumePlan, jobs: Sequence[ModelJob]) -> Measured[F]:
        """The tables, from the files of the trained models."""
        raise NotImplementedError(self.kind)

    def _plan(self, folder: Path) -> ResumePlan:
        plan_facts: Mapping[str, Json] = {"recipe": self.recipe.data(), "device": self.device}
        data_name = self.data_file.removesuffix(".json")  # `people` or `bitext`
        return join_plan(
            folder / self.plan_file, self.kind, {**plan_facts, data_name: self.data.fingerprint}, self.settings.seeds
        )
