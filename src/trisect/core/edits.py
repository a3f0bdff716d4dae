"""Edit: what is done at a site throughout training, as plain data; every kind is a class of its own, registered by name.

The kinds stand in lm/edits, each in one file with all that it does. Core holds what statements need of them: reading,
the text that is hashed into run ids, where a kind can be, and what it costs.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from typing import ClassVar

from trisect.core.errors import SpecError, unknown
from trisect.core.site import Site
from trisect.core.typecheck import filled, need, settle, settled

SettingValue = str | float | int | bool | None
COMMON = ("label", "strength")  # stated by every edit, null where it has none: run ids hash them
WHERE = ("q", "k", "v", "o", "attn", "ffn")


@dataclass(frozen=True)
class Edit(ABC):
    """A site and what is done there; a kind's settings are the fields that it adds, texts, numbers or truth values.

    A setting that stands at its default is left out of the edit's data, so that a kind can gain settings and the ids of
    runs stay as they were.
    """

    kind: ClassVar[str]
    title: ClassVar[str]  # its name on a page, such as `Freezing`
    own_page: ClassVar[bool]  # whether the study's page draws it with figures of its own

    site: Site

    def __post_init__(self) -> None:
        settle(self)
        self.place(self.site)

    @classmethod
    @abstractmethod
    def place(cls, site: Site) -> Site:
        """The site itself, if this can be done there; raises SpecError otherwise."""

    @property
    @abstractmethod
    def column(self) -> str | None:
        """The label column that it takes out of the model, or null. It decides what is read of the text, which runs are
        trained side by side (those of one column), how long (as long as attacks), and what fresh probes are asked.
        """

    @abstractmethod
    def token_seconds(self, width: int) -> float:
        """What it costs in a model of that width beyond the baseline: seconds of one core for each token in training."""

    @property
    def slug(self) -> str:
        """A readable name, usable in a folder's name: the kind and its settings, then the site."""
        values = (getattr(self, f.name) for f in settings_of(type(self)))
        return f"{self.kind}{'-'.join(f'{v:g}' if isinstance(v, float) else str(v) for v in values)}-{self.site}"

    def setting(self, name: str) -> SettingValue:
        """One of its settings, or null where the kind has none of that name."""
        return getattr(self, name) if any(f.name == name for f in settings_of(type(self))) else None

    def data(self) -> dict[str, SettingValue]:
        """The edit as JSON-ready data, as it is hashed into run ids; `read_edit` reads it."""
        own = {f.name: getattr(self, f.name) for f in settings_of(type(self))}
        defaults = {f.name: f.default for f in settings_of(type(self)) if f.default is not MISSING}
        changed = {name: value for name, value in own.items() if name not in defaults or value != defaults[name]}
        return {"kind": self.kind, "site": str(self.site), **dict.fromkeys(COMMON), **changed}


_KINDS: dict[str, type[Edit]] = {}


def register(kinds: Iterable[type[Edit]]) -> None:
    """Make kinds of edits known by their names; one that leaves a question open is a mistake in its file."""
    for kind in kinds:
        assert not inspect.isabstract(kind), f"{kind.__name__} does not answer {sorted(kind.__abstractmethods__)}"
        open_ = [name for name in ("kind", "title", "own_page") if not hasattr(kind, name)]
        assert not open_, f"{kind.__name__} does not state {open_}"
        assert _KINDS.setdefault(kind.kind, kind) is kind, f"two kinds of edits are called {kind.kind!r}"


def kinds() -> tuple[str, ...]:
    """The names of all kinds of edits, in the order in which they are registered."""
    return tuple(_KINDS)


def kind_of(name: object) -> type[Edit]:
    """The kind of edit of that name; raises SpecError where there is none."""
    found = _KINDS.get(name) if isinstance(name, str) else None
    if found is None:
        raise SpecError(unknown("edit", name, _KINDS), f"Edits are {', '.join(_KINDS)}.", "Use one of them.")
    return found


def settings_of(kind: type[Edit]) -> list[Field[object]]:
    """The dataclass fields of a kind's settings."""
    return [f for f in fields(kind) if f.name != "site"]


def make_edit(kind: str, site: Site, settings: Mapping[str, object] | None = None) -> Edit:
    """The edit of that kind, site and settings, null standing for none; raises SpecError for what does not fit."""
    known, given = kind_of(kind), settings or {}
    own = {f.name: f for f in settings_of(known)}
    unknown = [name for name, value in given.items() if name not in own and value is not None]
    missing = [name for name, f in own.items() if f.default is MISSING and given.get(name) is None]
    if wrong := unknown or missing:
        needed = [name for name, f in own.items() if f.default is MISSING]
        offered = [name for name in own if name not in needed]
        raise SpecError(
            f"The edit {kind} at {site} has {', '.join(f'{name}={given.get(name)!r}' for name in wrong)}.",
            f"It needs {' and '.join(needed) or 'no settings'}"
            + (f", and may have {' and '.join(offered)}." if offered else "."),
            f"Leave out {', '.join(unknown)}." if unknown else f"Give {', '.join(missing)}.",
        )
    kept = {name: value for name, value in given.items() if name in own and value is not None}
    return filled(known, {"site": site, **settled(known, kept, f"the edit {kind} at {site}")})


def read_edit(data: object, where: object = "the run") -> Edit:
    """The edit that `Edit.data` gave as data; raises SpecError naming `where` for what is none, SiteError for its site."""
    if not isinstance(data, Mapping) or not {"kind", "site"} <= set(data):
        known = "It is a JSON object with a kind, a site, and the settings of its kind."
        raise SpecError(f"An edit in {where} is {data!r}.", known, f"Kinds are {', '.join(_KINDS)}.")
    kind_of(data["kind"])
    settings = {name: value for name, value in data.items() if name not in ("kind", "site")}
    return make_edit(data["kind"], Site.parse(data["site"]), settings)


def place(site: Site, verb: str) -> Site:
    """The site itself, if a study can do there what the verb says; raises SpecError otherwise."""
    match verb:
        case "rewind" | "control" | "probe":
            return in_study(site, verb)
        case "erase" | "interchange":
            return in_study(site, verb, ("q", "k", "v"), heads=False)
        case "ablate":
            return in_study(site, verb, ("q", "k", "v"))
        case _:
            return kind_of(verb).place(site)


def in_study(site: Site, verb: str, known: tuple[str, ...] = WHERE, heads: bool = True) -> Site:
    """The site itself, if its components are among the known and it is of the only stack; raises SpecError otherwise."""
    if any(c not in known for c in site.components) or site.stack or site.pre or (site.heads and not heads):
        raise SpecError(
            f"{verb} at '{site}' is not possible in a study.",
            f"Studies {verb} {', '.join(known)} and their combinations, at any layers"
            + (", all heads or some; they have one stack." if heads else ", all heads together."),
            "Use a site such as k@3, q+k@1-2 or v@all.",
        )
    return site


def matrices(site: Site, ok: bool, given: str, known: str, example: str) -> Site:
    """The site itself, if it is one of q, k and v of the only stack and `ok`; raises SpecError naming the shapes otherwise."""
    plain = all(c in ("q", "k", "v") for c in site.components) and not site.stack and not site.pre
    need(plain and ok, f"{given} at '{site}' is not possible: {_shapes(site)}", known, f"Use a site such as {example}.")
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
