"""What pretraining adds: small models asked where people were born."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trisect.experiments.recall.settings import AskSettings, RecallFacts, RecallSettings
from trisect.lab.experiment import PageModule, TrainingExperiment, Utility

if TYPE_CHECKING:
    from trisect.core.machine import Machine
    from trisect.experiments.recall.ask import RecallReply
    from trisect.experiments.recall.run import RecallWork


class Recall(TrainingExperiment[RecallSettings, RecallFacts]):
    """Measure what pretraining adds: models with and without it answer where people were born. Call it again to resume.

    \b
    trisect recall --data birth-places --seeds 2 --set pretraining_epochs=200
    trisect recall --out recall
    """

    name = "recall"
    settings = RecallSettings
    facts = RecallFacts
    source = "recall"
    makes = "models"

    def prepare(self, settings: RecallSettings, machine: Machine) -> RecallWork:
        """Prepare the work of the settings."""
        from trisect.experiments.recall.run import prepare

        return prepare(settings, machine)

    def page_module(self) -> PageModule[RecallFacts]:
        """Findings and page."""
        from trisect.experiments.recall import page

        return page


RECALL = Recall()


class Ask(Utility[AskSettings]):
    """Ask a model trained by recall one question: its answer with a confidence, or none if it is not confident enough.

    \b
    trisect ask recall/models/pretrained-1 "Where was Numo Temil born?"
    """

    name = "ask"
    settings = AskSettings

    @property
    def gives(self) -> type[RecallReply]:
        """The class of the reply."""
        from trisect.experiments.recall.ask import RecallReply

        return RecallReply

    def answer(self, settings: AskSettings) -> RecallReply:
        """Answer the question of the settings; raises TrisectError."""
        from trisect.experiments.recall.ask import ask

        return ask(settings.model, settings.question, settings.risk)


ASK = Ask()
