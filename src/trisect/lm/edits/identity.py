"""Identity: one of q, k and v is the layer's input itself, cut into heads; it has no weights (science D2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from trisect.core.edits import matrices
from trisect.core.schema import record
from trisect.core.site import Site
from trisect.lm.edits.base import Member, Objective, Trained, TrainingEdit


@record
class IdentityEdit(TrainingEdit):
    """The site's component is the identity, held so; it has no settings."""

    kind: ClassVar[str] = "identity"
    title: ClassVar[str] = "Identity"
    own_page: ClassVar[bool] = True

    @classmethod
    def place(cls, site: Site) -> Site:
        """One of q, k and v, whole or single heads."""
        known = "An identity stands in for one of q, k and v."
        return matrices(site, len(site.components) == 1, cls.kind, known, "q@all")

    @property
    def column(self) -> None:
        """It reads no labels."""
        return

    def token_seconds(self, width: int) -> float:
        """The member multiplies by the identity as by any matrix."""
        return 0.0

    def prepare(self, member: Member) -> None:
        """Set the site's rows of each in-projection to those of the identity and its bias to 0, and hold them."""
        marks = member.mark(self.site)
        member.row[marks.to(member.row.device)] = 0.0
        own, marked = member.named(member.row), member.named(marks)
        for n in self.site.layers or ():
            rows = marked[f"layers.{n}.in.weight"][:, 0].nonzero()[:, 0]
            own[f"layers.{n}.in.weight"][rows, rows % member.model.width] = 1.0
        member.hold(marks)

    @classmethod
    def objectives(cls, edits: Mapping[int, TrainingEdit], fleet: Trained) -> Sequence[Objective]:
        """The language loss alone."""
        return ()
