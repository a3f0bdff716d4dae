"""Attacks: an adversary learns to read a label at a site, and the model learns to prevent it (definitions A4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import AfterValidator, Field

from trisect.core.edits import in_study
from trisect.core.errors import SpecError, shorten
from trisect.core.methods import VARIANTS, spell_variant
from trisect.core.schema import record
from trisect.core.site import Site
from trisect.lm.edits.base import Aim, Objective, Reach, Trained, TrainingEdit

if TYPE_CHECKING:
    from trisect.lm.fleet import Member

SECONDS = 8e-8  # of one 2.6 GHz core for each token and unit of width, fitted to two sizes


def _variant(given: str) -> str:
    """Its one spelling; raises SpecError for a text that is none."""
    variant = spell_variant(given)
    if variant is None:
        known = f"Variants of an attack are {', '.join(VARIANTS)}, or several of the last {len(VARIANTS) - 1} joined by '+'."
        raise SpecError(f"variant is {shorten(given)}.", known, "Use one of them, as in bounded+site.")
    return variant


@record
class AttackEdit(TrainingEdit):
    """An adversary learns to predict the label column `label` of the next word from the site's representation, and the
    model learns to prevent it, weighted by `strength` (the lambda of definitions A4).

    `variant` is 'plain', or what is changed, joined by '+': 'control' (labels that each word type drew by chance), 'bounded'
    (the adversary's output is pushed towards the label prior), 'site' (the attack trains the site's own projection alone).
    """

    label: str
    strength: Annotated[float, Field(ge=0)]
    variant: Annotated[str, AfterValidator(_variant)] = "plain"

    kind: ClassVar[str] = "attack"
    title: ClassVar[str] = "Attack"
    own_page: ClassVar[bool] = True

    @classmethod
    def place(cls, site: Site) -> Site:
        """Any components, at any layers and heads."""
        return in_study(site, cls.kind)

    @property
    def column(self) -> str:
        """The label that is removed."""
        return self.label

    @property
    def drawn(self) -> bool:
        """Whether the labels are those that each word type drew by chance."""
        return "control" in self.variant.split("+")

    @property
    def aim(self) -> Aim:
        """Where the adversary's output is pushed: away from the right label, or towards the label prior."""
        return "prior" if "bounded" in self.variant.split("+") else "wrong"

    @property
    def reach(self) -> Reach:
        """What the attack trains: its site's own projection alone, or all below the site as well."""
        return "site" if "site" in self.variant.split("+") else "below"

    @property
    def slug(self) -> str:
        """A readable name: attack[-variant]-label-site[-xstrength]."""
        scale = "" if self.strength == 1 else f"-x{self.strength:g}"
        variant = "" if self.variant == "plain" else f"-{self.variant}"
        return f"{self.kind}{variant}-{self.label}-{self.site}{scale}"

    def token_seconds(self, width: int) -> float:
        """The adversary's passes, and the second one of the model's layers below."""
        return SECONDS * width

    def prepare(self, member: Member) -> None:
        """All parameters are free."""

    @classmethod
    def objectives(cls, edits: Mapping[int, TrainingEdit], fleet: Trained) -> Sequence[Objective]:
        """One group of adversaries for each label, variant and width of representation, in order of slot."""
        from trisect.lm.adversary import Attackers, Target  # loads torch, which a statement does not need
        from trisect.lm.fleet import width_of

        groups: dict[tuple[object, ...], list[Target]] = {}
        for slot, e in sorted(edits.items()):
            if isinstance(e, cls):
                target = Target(slot, e.site, e.label, e.strength, e.drawn, e.aim, e.reach)
                variant = e.label, e.drawn, e.aim, e.reach
                groups.setdefault((*variant, width_of(e.site, fleet.model)), []).append(target)
        return [Attackers(targets, fleet) for targets in groups.values()]
