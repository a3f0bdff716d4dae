"""Interchange interventions (activation patching): q, k or v of a site from a donor text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trisect.experiments.patch.settings import SHARE_MARGIN, PatchFacts, PatchSettings
from trisect.lab.experiment import Experiment, LayerMeasure, PageModule

if TYPE_CHECKING:
    from trisect.core.subject import Subject
    from trisect.experiments.patch.result import Patched
    from trisect.lab.experiment import Measured, RunContext


class Patch(Experiment[PatchSettings, PatchFacts]):
    """Replace a text's queries, keys or values by another text's (activation patching, interchange interventions).

    Counts which answer the model then gives: the base's, or the one that q, k or v predicts.

    \b
    trisect patch MODEL --task bindings --sites q@all k@all v@all
    trisect patch MODEL --pairs pairs.jsonl --per head
    trisect patch MODEL --pairs pairs.jsonl --by gradient
    trisect patch MODEL --base "The capital of France is" --donor "The capital of Italy is"
    trisect patch lookup/models/seed-1 --task induction --corpus embedded
    """

    name = "patch"
    settings = PatchSettings
    facts = PatchFacts
    out = "patch-{model}"
    record = "patch.json"
    by_layer = (
        LayerMeasure("own", "frequency of the predicted answer", "share of pairs", signed=False, margin=SHARE_MARGIN),
        LayerMeasure("logit_change", "change of the logit difference", "share of the way"),
        LayerMeasure("output_change", "change of the output", "share", signed=False),
    )

    @property
    def returns(self) -> type[Patched]:
        """The class of a run's result."""
        from trisect.experiments.patch.result import Patched

        return Patched

    def check(self, settings: PatchSettings) -> None:
        """Raise TrisectError for settings that are wrong whatever the model is."""
        from trisect.lab.pairs import check_pairs

        check_pairs(settings)

    def check_model(self, settings: PatchSettings, subject: Subject) -> None:
        """Raise TrisectError for settings that the model cannot run, without a forward pass."""
        from trisect.experiments.patch.run import prepare

        prepare(settings, subject)

    def measure(self, settings: PatchSettings, context: RunContext) -> Measured[PatchFacts]:
        """Do the work; raises TrisectError."""
        if settings.by == "gradient":
            from trisect.experiments.patch.gradient import measure as estimate

            return estimate(settings, context)
        from trisect.experiments.patch.run import measure

        return measure(settings, context)

    def page_module(self) -> PageModule[PatchFacts]:
        """Findings and page."""
        from trisect.experiments.patch import page

        return page


PATCH = Patch()
