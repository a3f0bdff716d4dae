"""Site: where in a model, as stack . component @ layer . head, with one canonical spelling."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from trisect.core.errors import SiteError

COMPONENTS = ("q", "k", "v", "o", "attn", "ffn")
HEADED = ("q", "k", "v", "o")
STACKS = ("enc", "dec", "cross")
GRAMMAR = (
    "A site reads [stack.][pre.]component@layer[.hHEAD]: components are "
    + ", ".join(COMPONENTS)
    + " joined by '+', layers and heads count from 1 and are numbers, spans such as 1-3, lists such as 1,4-5, or 'all'"
)
EXAMPLES = "Write for example k@3, q+k@1-2, v@all, v@2.h4, cross.v@4 or pre.k@3."

STACK = re.compile(r"(?!(?:pre|plain|encoder|decoder)\b)[a-z][a-z0-9_]*")
_SHAPE = re.compile(
    rf"(?:(?P<stack>{STACK.pattern})\.)?(?P<pre>pre\.)?(?P<parts>[a-z+]+)@(?P<layers>[^.]+)(?:\.h(?P<heads>[^.]+))?"
)


@dataclass(frozen=True, order=True)
class Site:
    """A site: components at layers, and possibly heads; `None` for layers means all.

    The method decides whether weights or representations are meant: freezing and rewinding act on weights, attacks on what
    enters the dot product. `pre` is the output of the projection, before rotary positions. Layers and heads count from 1.
    """

    components: tuple[str, ...]
    layers: tuple[int, ...] | None
    heads: tuple[int, ...] | None = None
    stack: str = ""
    pre: bool = False

    def __post_init__(self) -> None:
        unknown = [c for c in self.components if c not in COMPONENTS]
        if unknown or not self.components:
            raise _error(f"{self.components!r} as components", f"unknown: {unknown}" if unknown else "none given")
        object.__setattr__(self, "components", tuple(c for c in COMPONENTS if c in self.components))
        for name in ("layers", "heads"):
            numbers = getattr(self, name)
            if numbers is None:
                continue
            if not numbers or min(numbers) < 1:
                raise _error(f"{numbers!r} as {name}", f"{name} count from 1")
            object.__setattr__(self, name, tuple(sorted(set(numbers))))
        if self.stack and not STACK.fullmatch(self.stack):
            reason = f"stacks are {', '.join(STACKS)}, a tower's name in small letters such as vision, or none"
            raise _error(f"{self.stack!r} as stack", reason)
        if self.heads is not None and (bad := [c for c in self.components if c not in HEADED]):
            raise _error(f"heads of {'+'.join(bad)}", f"only {', '.join(HEADED)} have heads")
        if self.pre and (bad := [c for c in self.components if c not in ("q", "k", "v")]):
            raise _error(f"pre.{'+'.join(bad)}", "only q, k and v have a projection")

    @classmethod
    def parse(cls, text: str) -> Site:
        """Parse a site in any spelling; `str` of the result is the canonical one.

        Raises SiteError if the text is not a site.
        """
        match = _SHAPE.fullmatch(text.strip()) if isinstance(text, str) else None
        sites = re.split(r"[,;\s]+", text.strip()) if isinstance(text, str) else []
        if len(sites) > 1 and all(map(_SHAPE.fullmatch, sites)):
            todo = "Separate them by spaces, such as --sites q@3 k@3; in Python a list."
            raise SiteError(f"{text!r} names several sites.", "Each site is an argument of its own.", todo)
        if match is None:
            raise _error(f"{text!r}", "not of that form")
        parts = match["parts"].split("+")
        if unknown := [p for p in parts if p not in COMPONENTS]:
            raise _error(f"{text!r}", f"{unknown[0]!r} is no component")
        heads = None if match["heads"] is None else _numbers(match["heads"], text)
        return cls(tuple(parts), _numbers(match["layers"], text), heads, match["stack"] or "", bool(match["pre"]))

    def __str__(self) -> str:
        stack = f"{self.stack}." if self.stack else ""
        heads = "" if self.heads is None else f".h{format_spans(self.heads)}"
        layers = "all" if self.layers is None else format_spans(self.layers)
        return f"{stack}{'pre.' if self.pre else ''}{'+'.join(self.components)}@{layers}{heads}"

    def resolve(self, layers: int, heads: int) -> Site:
        """This site with the numbers of its layers in a model of that shape, of one stack without a name.

        Raises SiteError if any part of it is outside the model.
        """
        shape = f"The model has layers 1-{layers} and heads 1-{heads}"
        if self.stack:
            problem = f"The site '{self}' names the stack {self.stack!r}."
            raise SiteError(problem, "The model has one unnamed stack.", "Name a stack that it has.")
        if self.layers is not None and self.layers[-1] > layers:
            raise SiteError(
                f"The site '{self}' lies outside the model: layer {self.layers[-1]}.",
                f"{shape}.",
                "Choose a layer in that range.",
            )
        if self.heads and self.heads[-1] > heads:
            problem = f"The site '{self}' names head {self.heads[-1]} of {self.components[0]}."
            reason = f"{shape}; {self.components[0]} has heads 1-{heads}."
            raise SiteError(problem, reason, "Choose a head in that range.")
        return replace(self, layers=self.layers or tuple(range(1, layers + 1)))

    def parts(self) -> tuple[Site, ...]:
        """The single-component, single-layer sites of this resolved site."""
        if self.layers is None:
            raise SiteError(
                f"The site '{self}' has no layer numbers yet.",
                "'all' stands for all layers of a model.",
                "Call resolve first.",
            )
        return tuple(replace(self, components=(c,), layers=(n,)) for n in self.layers for c in self.components)


def _numbers(text: str, site: str) -> tuple[int, ...] | None:
    if text == "all":
        return None
    numbers: list[int] = []
    for piece in text.split(","):
        span = re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", piece)
        if span is None:
            raise _error(f"{site!r}", f"{piece!r} is neither a number nor a span")
        first, last = int(span[1]), int(span[2] or span[1])
        if first < 1:
            raise _error(f"{site!r}", "layers and heads count from 1")
        if last < first:
            raise _error(f"{site!r}", f"the span {piece!r} is reversed")
        numbers.extend(range(first, last + 1))
    return tuple(numbers)


def format_spans(numbers: tuple[int, ...]) -> str:
    """Ascending numbers as in a site, with ranges: 1-3,5."""
    spans: list[list[int]] = []
    for n in numbers:
        if spans and n == spans[-1][1] + 1:
            spans[-1][1] = n
        else:
            spans.append([n, n])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def _error(text: str, reason: str) -> SiteError:
    return SiteError(f"{text} is not a site: {reason}.", f"{GRAMMAR}.", EXAMPLES)
