"""Tying: several of q, k and v share one matrix and bias from the first step (science D2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from trisect.core.edits import matrices
from trisect.core.schema import record
from trisect.core.site import Site
from trisect.lm.edits.base import Member, Objective, Trained, TrainingEdit


@record
class TieEdit(TrainingEdit):
    """The site's components are one parameter in each layer; the first of q, k, v gives its initial values."""

    kind: ClassVar[str] = "tie"
    title: ClassVar[str] = "Tying"
    own_page: ClassVar[bool] = True

    @classmethod
    def place(cls, site: Site) -> Site:
        """Two or three of q, k and v, whole or single heads."""
        known = "A tie shares one matrix among two or three of q, k and v, which have one shape."
        return matrices(site, len(site.components) in (2, 3), cls.kind, known, "q+k@all or q+k+v@2")

    @property
    def column(self) -> None:
        """It reads no labels."""
        return

    def token_seconds(self, width: int) -> float:
        """A tied member keeps its whole row of parameters, and costs what the baseline costs."""
        return 0.0

    def prepare(self, member: Member) -> None:
        """Share the site's components."""
        member.share(self.site)

    @classmethod
    def objectives(cls, edits: Mapping[int, TrainingEdit], fleet: Trained) -> Sequence[Objective]:
        """The language loss alone."""
        return ()
