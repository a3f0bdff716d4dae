"""Edit: what is done at a site, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

from trisect.core.errors import SpecError
from trisect.core.site import Site
from trisect.core.typed import settle

KINDS = ("attack", "freeze")


@dataclass(frozen=True)
class Edit:
    """A site and what is done there throughout training.

    `attack`: an adversary learns to predict the label column `label` of the next word from the site's
    representation, and the model learns to prevent it, weighted by `strength` (the lambda of science A4).
    `freeze`: the site's weights keep their initial values (A7).
    """

    kind: str
    site: Site
    label: str | None = None
    strength: float | None = None

    def __post_init__(self) -> None:
        settle(self)
        if self.kind not in KINDS:
            raise SpecError(f"{self.kind!r} is not an edit.", f"Edits are {', '.join(KINDS)}.", "Use one of them.")
        if (self.kind == "attack") != (self.label is not None and self.strength is not None):
            raise SpecError(
                f"The edit {self.kind} at {self.site} has label={self.label!r}, strength={self.strength!r}.",
                "An attack needs a label column and a strength; a freeze has neither.",
                "Give both for an attack, none for a freeze.",
            )
        if self.strength is not None and not 0 <= self.strength < float("inf"):
            raise SpecError(
                f"The strength {self.strength!r} is not usable.",
                "It is a finite number, 0 or more.",
                "Use for example 1.",
            )
        studied(self.site, self.kind)

    @property
    def slug(self) -> str:
        """A readable name, usable in a folder's name."""
        if self.kind == "attack":
            scale = "" if self.strength == 1 else f"-x{self.strength:g}"
            return f"attack-{self.label}-{self.site}{scale}"
        return f"{self.kind}-{self.site}"


def studied(site: Site, verb: str) -> Site:
    """The site itself, if a study can attack, freeze or rewind it; raises SpecError otherwise."""
    if any(c not in ("q", "k", "v") for c in site.components) or site.heads or site.stack or site.pre:
        raise SpecError(
            f"{verb} at '{site}' is not possible in a study.",
            "Studies attack, freeze and rewind q, k, v and their combinations, at any layers, all heads together.",
            "Use a site such as k@3, q+k@1-2 or v@all.",
        )
    return site
