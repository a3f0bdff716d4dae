"""Freezing: a site's weights and biases keep their initial values (science A7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from trisect.core.edits import in_study
from trisect.core.schema import record
from trisect.core.site import Site
from trisect.lm.edits.base import Member, Objective, Trained, TrainingEdit


@record
class FreezeEdit(TrainingEdit):
    """The site's weights keep their initial values; it has no settings."""

    kind: ClassVar[str] = "freeze"
    title: ClassVar[str] = "Freezing"
    own_page: ClassVar[bool] = True

    @classmethod
    def place(cls, site: Site) -> Site:
        """Any components, at any layers and heads."""
        return in_study(site, cls.kind)

    @property
    def column(self) -> None:
        """It reads no labels."""
        return

    def token_seconds(self, width: int) -> float:
        """A frozen member costs what the baseline costs."""
        return 0.0

    def prepare(self, member: Member) -> None:
        """Hold the site's weights and biases."""
        member.hold(member.mark(self.site))

    @classmethod
    def objectives(cls, edits: Mapping[int, TrainingEdit], fleet: Trained) -> Sequence[Objective]:
        """The language loss alone."""
        return ()
