"""Path patching: which earlier part of a model writes the query, key or value of a later head."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trisect.experiments.compose.settings import ComposeFacts, ComposeSettings
from trisect.lab.experiment import Experiment, PageModule

if TYPE_CHECKING:
    from trisect.core.subject import Subject
    from trisect.experiments.compose.run import Composed
    from trisect.lab.experiment import Measured, RunContext


class Compose(Experiment[ComposeSettings, ComposeFacts]):
    """Patch the path of every earlier writer into the query, key or value of later heads, one at a time.

    Writers are the embedding, the positions, each head and each feed-forward block.

    \b
    trisect compose MODEL --pairs pairs.jsonl
    trisect compose lookup/models/seed-1 --task induction --corpus embedded
    """

    name = "compose"
    settings = ComposeSettings
    facts = ComposeFacts
    out = "compose-{model}"
    record = "compose.json"

    @property
    def returns(self) -> type[Composed]:
        """The class of a run's result."""
        from trisect.experiments.compose.run import Composed

        return Composed

    def check(self, settings: ComposeSettings) -> None:
        """Raise TrisectError for settings that are wrong for any model."""
        from trisect.lab.pairs import check_pairs

        check_pairs(settings)

    def check_model(self, settings: ComposeSettings, subject: Subject) -> None:
        """Raise TrisectError for settings that the model cannot run; does not run it."""
        from trisect.experiments.compose.run import prepare

        prepare(settings, subject)

    def measure(self, settings: ComposeSettings, context: RunContext) -> Measured[ComposeFacts]:
        """Patch the paths; raises TrisectError."""
        from trisect.experiments.compose.run import measure

        return measure(settings, context)

    def page_module(self) -> PageModule[ComposeFacts]:
        """Findings and page."""
        from trisect.experiments.compose import page

        return page


COMPOSE = Compose()
