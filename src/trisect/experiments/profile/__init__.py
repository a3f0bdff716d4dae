"""What queries, keys and values encode of each label, head by head, against random maps of the same input."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trisect.experiments.profile.settings import CROSS, ProfileFacts, ProfileSettings
from trisect.lab.experiment import Experiment, LayerMeasure, PageModule, Result

if TYPE_CHECKING:
    from trisect.core.files import Json
    from trisect.core.subject import Subject
    from trisect.lab.experiment import Measured, RunContext


class Profile(Result[ProfileFacts]):
    """A profile: tables, page and findings, with `layers` and `heads` as rows."""

    @property
    def layers(self) -> list[dict[str, Json]]:
        """A row for each layer and label: accuracies of q, k, v (means over heads), of random maps and of the whole input.

        `gains` are q, k and v less random maps, with 95 % intervals over heads and p after Holm; `differences` those of
        q, k and v in pairs.
        """
        from trisect.experiments.profile.page import ProfileNumbers

        return ProfileNumbers.of(self.tables["measures"]).layer_rows()

    @property
    def heads(self) -> list[dict[str, Json]]:
        """A row for each head's q, k and v and each label: accuracy, bits, z and p against random maps, rank in its layer."""
        from trisect.experiments.profile.page import ProfileNumbers

        return ProfileNumbers.of(self.tables["measures"]).head_rows()

    def data(self) -> dict[str, Json]:
        """The result as JSON-ready data, with layers and heads."""
        return {**super().data(), "layers": list(self.layers), "heads": list(self.heads)}


class ProfileModel(Experiment[ProfileSettings, ProfileFacts]):
    """Measure which properties of a word each head's queries, keys and values keep, against random maps of the same input.

    \b
    trisect profile TRANSLATOR --attention cross --corpus embedded
    trisect profile study --corpus embedded --labels position,pos
    """

    name = "profile"
    settings = ProfileSettings
    facts = ProfileFacts
    source = "profile"
    out = "profile-{model}"
    record = "profile.json"
    is_of_words = True
    by_layer = (LayerMeasure("profile_gain", "more than random maps", "accuracy", finding="profile"),)

    @property
    def returns(self) -> type[Profile]:
        """The class of a run's result."""
        return Profile

    def check(self, settings: ProfileSettings) -> None:
        """Raise TrisectError for settings that are wrong whatever the model is."""
        from trisect.experiments.profile.run import check

        check(settings)

    def check_model(self, settings: ProfileSettings, subject: Subject) -> None:
        """Raise ModelError for a model without cross-attention if that is profiled, without a forward pass."""
        from trisect.experiments.profile.reading import PAIRED
        from trisect.lab.subject import check_crossing

        if settings.attention == CROSS:
            check_crossing(subject, PAIRED)

    def measure(self, settings: ProfileSettings, context: RunContext) -> Measured[ProfileFacts]:
        """Do the work; raises TrisectError."""
        from trisect.experiments.profile.run import measure

        return measure(settings, context)

    def page_module(self) -> PageModule[ProfileFacts]:
        """Findings and page."""
        from trisect.experiments.profile import page

        return page


PROFILE = ProfileModel()
