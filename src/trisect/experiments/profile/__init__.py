"""What queries, keys and values keep and drop of each label, head by head, against random maps of the same input."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trisect.experiments.profile.settings import ProfileFacts, ProfileSettings
from trisect.lab.experiment import Experiment, LayerMeasure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import polars as pl

    from trisect.core.finding import About, Finding
    from trisect.core.subject import Subject
    from trisect.experiments.profile.result import Profile
    from trisect.lab.experiment import Measured, RunContext
    from trisect.report.sheet import Sheet


class ProfileModel(Experiment[ProfileSettings, ProfileFacts]):
    """Measure which properties of a word each head's queries, keys and values keep, against random maps of the same input.

    \b
    trisect profile MODEL --corpus ud-english-ewt --labels position,pos
    trisect profile TRANSLATOR --attention cross --corpus embedded
    """

    name = "profile"
    settings = ProfileSettings
    facts = ProfileFacts
    source = "profile"
    out = "profile-{model}"
    record = "profile.json"
    by_layer = (LayerMeasure("profile_gain", "more than random maps", "accuracy", finding="profile"),)

    @property
    def returns(self) -> type[Profile]:
        """What a run returns."""
        from trisect.experiments.profile.result import Profile

        return Profile

    def check(self, settings: ProfileSettings) -> None:
        """Raise TrisectError for settings that are wrong whatever the model is."""
        from trisect.experiments.profile.run import check

        check(settings)

    def check_model(self, settings: ProfileSettings, subject: Subject) -> None:
        """Raise TrisectError for what a model cannot be asked; nothing goes through it."""
        from trisect.experiments.profile.run import check_model

        check_model(settings, subject)

    def reads_text(self, settings: object, texts: object) -> bool:
        """Always: words with labels or links."""
        return True

    def measure(self, settings: ProfileSettings, context: RunContext) -> Measured[ProfileFacts]:
        """Do the work; raises TrisectError."""
        from trisect.experiments.profile.run import measure

        return measure(settings, context)

    def findings(self, tables: Mapping[str, pl.DataFrame], about: About[ProfileFacts]) -> Sequence[Finding]:
        """What was found, as data."""
        from trisect.experiments.profile.page import findings

        return findings(tables, about)

    def page(self, tables: Mapping[str, pl.DataFrame], about: About[ProfileFacts]) -> Sheet:
        """The page, from tables and what stands beside them alone."""
        from trisect.experiments.profile.page import page

        return page(tables, about)


PROFILE = ProfileModel()
