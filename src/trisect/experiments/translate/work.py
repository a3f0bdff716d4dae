"""The models of a translation experiment as the driver gives them out and lands their files."""

from __future__ import annotations

from dataclasses import dataclass

from trisect.engine.drive import land
from trisect.engine.jobs import Files, JobOrder
from trisect.experiments.translate.settings import TranslationRecipe
from trisect.experiments.translate.training import Apprentice, TranslationFolder, TranslationJob, teach
from trisect.hf.small.gpt import is_model

ORDER = ("*/config.json", "scores/*")  # what says that a model is finished comes after all else of it


@dataclass(frozen=True)
class ApprenticeWork:
    """One model; models wait for nothing."""

    one: Apprentice
    place: TranslationFolder
    recipe: TranslationRecipe
    device: str
    keep: int | None = None

    @property
    def title(self) -> str:
        """What messages and progress lines call it."""
        return self.one.title

    @property
    def seconds(self) -> float:
        """What it takes, against others."""
        return self.one.seconds

    def ready(self) -> bool:
        """Always."""
        return True

    def order(self) -> JobOrder:
        """It goes on from the model that is trained, else from the training under way."""
        trained = [self.place.model(self.one), self.place.losses(self.one)]
        state = self.place.state(self.one)
        there = trained if is_model(trained[0]) and trained[1].exists() else [state] if state.exists() else []
        return JobOrder(
            teach,
            TranslationJob(self.one.seed, self.recipe, self.device, self.keep),
            self.place.path,
            needs={"bitext": self.place.bitext},
            begins={str(path.relative_to(self.place.path)): path for path in there},
        )

    def land(self, files: Files) -> None:
        """Put files into the experiment's folder."""
        land(files, self.place.path, ORDER)

    def ended(self) -> None:
        """What an unfinished training goes on from is of no use any more."""
        self.place.state(self.one).unlink(missing_ok=True)
