"""The edits that small language models can be trained with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import AfterValidator, Field

from trisect.core.edits import check_projection_site, check_study_site, register
from trisect.core.errors import SpecError, shorten
from trisect.core.methods import VARIANTS, canonical_variant
from trisect.core.schema import MAX_INT, record
from trisect.core.site import Site
from trisect.lm.training_edit import Aim, Objective, Reach, Trained, TrainingEdit

if TYPE_CHECKING:
    from trisect.lm.fleet import Member


@record
class _WeightEdit(TrainingEdit):
    """An edit of weights alone, without labels or further losses, at the cost of the baseline."""

    has_own_figures: ClassVar[bool] = True

    @property
    def column(self) -> None:
        """None."""
        return

    def token_seconds(self, width: int) -> float:
        """No more than the baseline."""
        return 0.0

    @classmethod
    def objectives(cls, edits: Mapping[int, TrainingEdit], fleet: Trained) -> Sequence[Objective]:
        """None beside the language loss."""
        return ()


@record
class FreezeEdit(_WeightEdit):
    """The site's weights keep their initial values; it has no settings."""

    kind: ClassVar[str] = "freeze"
    title: ClassVar[str] = "Freezing"

    @classmethod
    def check_site(cls, site: Site) -> Site:
        """Any components, at any layers and heads."""
        return check_study_site(site, cls.kind)

    def prepare(self, member: Member) -> None:
        """Freeze the site's weights and biases."""
        member.hold(member.mark(self.site))


@record
class _TieEdit(_WeightEdit):
    """The site's components share one parameter in each layer, initialised as the first of q, k, v."""

    kind: ClassVar[str] = "tie"
    title: ClassVar[str] = "Tying"

    @classmethod
    def check_site(cls, site: Site) -> Site:
        """Two or three of q, k and v, whole or single heads."""
        reason = "A tie shares one matrix among two or three of q, k and v, which have one shape."
        return check_projection_site(site, len(site.components) in (2, 3), cls.kind, reason, "q+k@all or q+k+v@2")

    def prepare(self, member: Member) -> None:
        """Share the site's components."""
        member.share(self.site)


@record
class _IdentityEdit(_WeightEdit):
    """The site's component is kept at the identity; it has no settings."""

    kind: ClassVar[str] = "identity"
    title: ClassVar[str] = "Identity"

    @classmethod
    def check_site(cls, site: Site) -> Site:
        """One of q, k and v, whole or single heads."""
        reason = "An identity stands in for one of q, k and v."
        return check_projection_site(site, len(site.components) == 1, cls.kind, reason, "q@all")

    def prepare(self, member: Member) -> None:
        """Set the site's rows of each in-projection to the identity and its bias to 0, and freeze them."""
        marks = member.mark(self.site)
        member.row[marks.to(member.row.device)] = 0.0
        matrices, marked = member.views(member.row), member.views(marks)
        for n in self.site.layers or ():
            rows = marked[f"layers.{n}.in.weight"][:, 0].nonzero()[:, 0]
            matrices[f"layers.{n}.in.weight"][rows, rows % member.model.width] = 1.0
        member.hold(marks)


@record
class NarrowEdit(_WeightEdit):
    """Heads use their first `width` dimensions; the weights of others are 0. Scores keep the scale of the full width."""

    width: Annotated[int, Field(ge=1, le=MAX_INT)]

    kind: ClassVar[str] = "narrow"
    title: ClassVar[str] = "Narrower heads"

    @classmethod
    def check_site(cls, site: Site) -> Site:
        """q, k and v together, all heads."""
        reason = "A narrow keeps as much of q as of k and v, in every head."
        return check_projection_site(site, len(site.components) == 3 and not site.heads, cls.kind, reason, "q+k+v@all")

    def prepare(self, member: Member) -> None:
        """Set everything beyond the kept dimensions to 0, and freeze it."""
        marks, model = member.blank(), member.model
        named, each = member.views(marks), (model.heads, model.width // model.heads)
        for n in self.site.layers or ():
            for kind in ("weight", "bias"):
                named[f"layers.{n}.in.{kind}"].view(3, *each, -1)[:, :, self.width :] = True
            named[f"layers.{n}.out.weight"].view(model.width, *each)[:, :, self.width :] = True
        member.row[marks.to(member.row.device)] = 0.0
        member.hold(marks)


SECONDS = 8e-8  # of one 2.6 GHz core for each token and unit of width, fitted to two sizes


def _parse_variant(text: str) -> str:
    """The canonical spelling of a variant; raises SpecError for an unknown one."""
    if (variant := canonical_variant(text)) is None:
        reason = f"Variants of an attack are {', '.join(VARIANTS)}, or several of the last {len(VARIANTS) - 1} joined by '+'."
        raise SpecError(f"variant is {shorten(text)}.", reason, "Use one of them, as in bounded+site.")
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
    variant: Annotated[str, AfterValidator(_parse_variant)] = "plain"

    kind: ClassVar[str] = "attack"
    title: ClassVar[str] = "Attack"
    has_own_figures: ClassVar[bool] = True

    @classmethod
    def check_site(cls, site: Site) -> Site:
        """Any components, at any layers and heads."""
        return check_study_site(site, cls.kind)

    @property
    def column(self) -> str:
        """The label that is removed."""
        return self.label

    @property
    def uses_control(self) -> bool:
        """Whether the labels are control labels, drawn at random for each word type."""
        return "control" in self.variant.split("+")

    @property
    def aim(self) -> Aim:
        """The target of the adversary's output: away from the right label, or towards the label prior."""
        return "prior" if "bounded" in self.variant.split("+") else "wrong"

    @property
    def reach(self) -> Reach:
        """What the attack trains: its site's projection alone, or everything below the site too."""
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
        """Leave all parameters free."""

    @classmethod
    def objectives(cls, edits: Mapping[int, TrainingEdit], fleet: Trained) -> Sequence[Objective]:
        """One group of adversaries for each label, variant and width of representation, in order of slot."""
        from trisect.lm.adversary import Attackers  # loads torch, which a statement does not need
        from trisect.lm.fleet import width_of

        groups: dict[tuple[str, bool, Aim, Reach, int], list[tuple[int, Site, float]]] = {}
        for slot, e in sorted(edits.items()):
            if isinstance(e, cls):
                key = e.label, e.uses_control, e.aim, e.reach, width_of(e.site, fleet.model)
                groups.setdefault(key, []).append((slot, e.site, e.strength))
        return [Attackers(targets, *key[:4], fleet) for key, targets in groups.items()]


EDITS: tuple[type[TrainingEdit], ...] = (
    AttackEdit,
    FreezeEdit,
    _TieEdit,
    _IdentityEdit,
    NarrowEdit,
)

register(EDITS)
