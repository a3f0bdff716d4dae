"""Narrow heads: every head keeps the first dimensions of its q, k, v and of what W_O reads (science D2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from trisect.core.bounds import WHOLE
from trisect.core.edits import matrices
from trisect.core.schema import record
from trisect.core.site import Site
from trisect.lm.edits.base import Member, Objective, Trained, TrainingEdit


@record
class NarrowEdit(TrainingEdit):
    """Heads keep their first `width` dimensions; the others' weights are 0. Scores keep the scale of the full width."""

    width: Annotated[int, Field(ge=1, le=WHOLE)]

    kind: ClassVar[str] = "narrow"
    title: ClassVar[str] = "Narrower heads"
    own_page: ClassVar[bool] = True

    @classmethod
    def place(cls, site: Site) -> Site:
        """q, k and v together, all heads."""
        known = "A narrow keeps as much of q as of k and v, in every head."
        return matrices(site, len(site.components) == 3 and not site.heads, cls.kind, known, "q+k+v@all")

    @property
    def column(self) -> None:
        """It reads no labels."""
        return

    def token_seconds(self, width: int) -> float:
        """The member multiplies by zeros as by any weights."""
        return 0.0

    def prepare(self, member: Member) -> None:
        """Set all that lies beyond the kept dimensions to 0, and hold it."""
        marks, model = member.blank(), member.model
        named, each = member.named(marks), (model.heads, model.width // model.heads)
        for n in self.site.layers or ():
            for kind in ("weight", "bias"):
                named[f"layers.{n}.in.{kind}"].view(3, *each, -1)[:, :, self.width :] = True
            named[f"layers.{n}.out.weight"].view(model.width, *each)[:, :, self.width :] = True
        member.row[marks.to(member.row.device)] = 0.0
        member.hold(marks)

    @classmethod
    def objectives(cls, edits: Mapping[int, TrainingEdit], fleet: Trained) -> Sequence[Objective]:
        """The language loss alone."""
        return ()
