"""Edit: what is done at a site, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

from trisect.core.errors import SpecError
from trisect.core.site import Site
from trisect.core.typed import need, settle, whole

KINDS = ("attack", "freeze", "tie", "identity", "narrow")
VARIANTS = ("plain", "control", "bounded", "site")


@dataclass(frozen=True)
class Edit:
    """A site and what is done there throughout training.

    `attack`: an adversary learns to predict the label column `label` of the next word from the site's
    representation, and the model learns to prevent it, weighted by `strength` (the lambda of science A4). Its
    `variant` is 'plain', or a control: 'control' (labels that each word type drew by chance), 'bounded' (the adversary's
    output is pushed towards the label prior), 'site' (the attack trains the site's own projection alone).
    `freeze`: the site's weights keep their initial values (A7).
    `tie`: the site's components share one matrix and bias from the first step (D2).
    `identity`: the site's component is the layer's input itself, cut into heads; it has no weights.
    `narrow`: each head keeps the first `width` dimensions of its q, k, v and of what W_O reads.
    """

    kind: str
    site: Site
    label: str | None = None
    strength: float | None = None
    variant: str = "plain"
    width: int | None = None

    def __post_init__(self) -> None:
        settle(self)
        if self.kind not in KINDS:
            raise SpecError(f"{self.kind!r} is not an edit.", f"Edits are {', '.join(KINDS)}.", "Use one of them.")
        if (self.kind == "attack") != (self.label is not None and self.strength is not None):
            raise SpecError(
                f"The edit {self.kind} at {self.site} has label={self.label!r}, strength={self.strength!r}.",
                "An attack needs a label column and a strength; no other edit has them.",
                f"Give both for an attack, none for a {self.kind if self.kind != 'attack' else 'freeze'}.",
            )
        if self.strength is not None and not 0 <= self.strength < float("inf"):
            raise SpecError(
                f"The strength {self.strength!r} is not usable.",
                "It is a finite number, 0 or more.",
                "Use for example 1.",
            )
        need(
            self.variant in VARIANTS and (self.variant == "plain" or self.kind == "attack"),
            f"The edit {self.kind} at {self.site} has variant={self.variant!r}.",
            f"Attacks are {', '.join(VARIANTS)}; other edits have no variant.",
            "Use one of them for an attack.",
        )
        need(
            (self.kind == "narrow") == (self.width is not None),
            f"The edit {self.kind} at {self.site} has width={self.width!r}.",
            "A narrow edit needs the width that each head keeps; no other edit has one.",
            "Give it for a narrow edit alone.",
        )
        if self.width is not None:
            whole(self.width, "width", 1)
        place(self.site, self.kind)

    @property
    def slug(self) -> str:
        """A readable name, usable in a folder's name."""
        if self.kind == "attack":
            scale = "" if self.strength == 1 else f"-x{self.strength:g}"
            kind = "" if self.variant == "plain" else f"-{self.variant}"
            return f"attack{kind}-{self.label}-{self.site}{scale}"
        return f"{self.kind}{self.width or ''}-{self.site}"


def place(site: Site, verb: str) -> Site:
    """The site itself, if a study can do there what the verb says; raises SpecError otherwise."""
    if verb in ("tie", "identity", "narrow"):
        return _matrices(site, verb)
    known = ("q", "k", "v") if verb == "erase" else ("q", "k", "v", "o", "attn", "ffn")
    if any(c not in known for c in site.components) or site.stack or site.pre or (verb == "erase" and site.heads):
        raise SpecError(
            f"{verb} at '{site}' is not possible in a study.",
            f"Studies {verb} {', '.join(known)} and their combinations, at any layers"
            + (", all heads together." if verb == "erase" else ", all heads or some; they have one stack."),
            "Use a site such as k@3, q+k@1-2 or v@all.",
        )
    return site


def _matrices(site: Site, verb: str) -> Site:
    least, most, what = {
        "tie": (2, 3, "shares one matrix among two or three of q, k and v, which have one shape"),
        "identity": (1, 1, "stands in for one of q, k and v"),
        "narrow": (3, 3, "keeps as much of q as of k and v, in every head"),
    }[verb]
    plain = all(c in ("q", "k", "v") for c in site.components) and not site.stack and not site.pre
    need(
        plain and least <= len(site.components) <= most and not (verb == "narrow" and site.heads),
        f"{verb} at '{site}' is not possible: " + _shapes(site),
        f"A{'n' * (verb == 'identity')} {verb} {what}.",
        "Use a site such as " + {"tie": "q+k@all or q+k+v@2", "identity": "q@all", "narrow": "q+k+v@all"}[verb] + ".",
    )
    return site


def _shapes(site: Site) -> str:
    """What the matrices of the site are, D being the width and F the feed-forward width."""
    shapes = {
        "q": "D×D",
        "k": "D×D",
        "v": "D×D",
        "o": "D×D, read from the heads",
        "attn": "four of D×D",
        "ffn": "F×D and D×F",
    }
    return ", ".join(f"{c} is {shapes[c]}" for c in site.components) + "."
