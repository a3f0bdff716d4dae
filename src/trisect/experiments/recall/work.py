"""The training jobs of a recall experiment, and where their files land."""

from __future__ import annotations

from dataclasses import dataclass

from trisect.engine.drive import land
from trisect.engine.jobs import Files, JobOrder
from trisect.experiments.recall.settings import RecallRecipe
from trisect.experiments.recall.training import STAGES, Lesson, RecallFolder, RecallJob, teach
from trisect.hf.small.gpt import is_model

ORDER = ("models/*/config.json", "answers/*")  # what says that a model, and then a lesson, is finished comes last


@dataclass(frozen=True)
class LessonWork:
    """One lesson; lessons wait for nothing."""

    lesson: Lesson
    place: RecallFolder
    recipe: RecallRecipe
    device: str

    @property
    def title(self) -> str:
        """What messages and progress lines call it."""
        return self.lesson.title

    @property
    def seconds(self) -> float:
        """What it takes, against other lessons."""
        return self.lesson.seconds

    def ready(self) -> bool:
        """Always."""
        return True

    def order(self) -> JobOrder:
        """It goes on from the model that is trained, else from what pretraining left and the training under way."""
        model, base = self.place.model(self.lesson), self.place.base(self.lesson)
        states = [self.place.state(self.lesson, stage) for stage in STAGES]
        losses = [self.place.losses(self.lesson, stage) for stage in self.lesson.stages]
        done = [model] if self.place.is_trained(self.lesson) else [base] if is_model(base) else []
        there = [*done, *(path for path in (*losses, *states) if path.exists())]
        return JobOrder(
            teach,
            RecallJob(self.lesson.model, self.lesson.seed, self.recipe, self.device),
            self.place.path,
            needs={"people": self.place.people},
            begins={str(path.relative_to(self.place.path)): path for path in there},
        )

    def land(self, files: Files) -> None:
        """Put files into the experiment's folder."""
        land(files, self.place.path, ORDER)

    def ended(self) -> None:
        """What an unfinished training goes on from is of no use any more."""
        for stage in STAGES:
            self.place.state(self.lesson, stage).unlink(missing_ok=True)
