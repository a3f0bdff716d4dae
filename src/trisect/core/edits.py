"""Edits at a site throughout training, as plain data; every kind is a registered class.

The kinds are implemented in lm/edits. This module has what designs need of them: parsing, the data that is hashed into run
ids, the sites that a kind can edit, and its cost.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Annotated, Any, ClassVar, cast

from pydantic import BeforeValidator, PlainSerializer
from pydantic.fields import FieldInfo

from trisect.core.errors import SpecError, require, shorten, unknown_name
from trisect.core.methods import SiteText
from trisect.core.schema import record
from trisect.core.site import COMPONENTS, Site

SettingValue = str | float | int | bool | None
COMMON = ("label", "strength")  # keys of every edit's data (None where it has no such setting), since run ids hash them


@record
class Edit(ABC):
    """A site and its edit; a kind's settings are its own fields: strings, numbers or booleans.

    Settings at their defaults are left out of the edit's data, so that run ids do not change when a kind gains settings.
    """

    kind: ClassVar[str]
    title: ClassVar[str]  # its name on a page, such as `Freezing`
    has_own_figures: ClassVar[bool]  # whether the study's page has separate figures for it

    site: SiteText

    def __post_init__(self) -> None:
        self.check_site(self.site)

    @classmethod
    @abstractmethod
    def check_site(cls, site: Site) -> Site:
        """Return the site if this kind can edit it; raises SpecError otherwise."""

    @property
    @abstractmethod
    def column(self) -> str | None:
        """The label column that the edit removes from the model, or None.

        Runs with the same column are trained side by side, for the epochs of attacks, and probed for that label.
        """

    @abstractmethod
    def token_seconds(self, width: int) -> float:
        """Seconds of one core beyond the baseline for each training token, in a model of that width."""

    @property
    def slug(self) -> str:
        """A readable name, usable for a folder: the kind and its settings, then the site."""
        values = (getattr(self, name) for name in setting_fields(type(self)))
        return f"{self.kind}{'-'.join(f'{v:g}' if isinstance(v, float) else str(v) for v in values)}-{self.site}"

    def setting(self, name: str) -> SettingValue:
        """A setting by name; None if the kind has none of that name."""
        return getattr(self, name) if name in setting_fields(type(self)) else None

    def data(self) -> dict[str, SettingValue]:
        """The edit as JSON-ready data, which is hashed into run ids; `read_edit` reads it."""
        settings = {name: (getattr(self, name), info) for name, info in setting_fields(type(self)).items()}
        changed = {
            name: value for name, (value, info) in settings.items() if info.is_required() or value != info.default
        }
        return {"kind": self.kind, "site": str(self.site), **dict.fromkeys(COMMON), **changed}


_KINDS: dict[str, type[Edit]] = {}


def register(kinds: Iterable[type[Edit]]) -> None:
    """Register kinds of edits by name; an incomplete kind is an error in its file."""
    for kind in kinds:
        assert not inspect.isabstract(kind), f"{kind.__name__} does not define {sorted(kind.__abstractmethods__)}"
        missing = [name for name in ("kind", "title", "has_own_figures") if not hasattr(kind, name)]
        assert not missing, f"{kind.__name__} does not define {missing}"
        assert _KINDS.setdefault(kind.kind, kind) is kind, f"two kinds of edits are called {kind.kind!r}"


def kinds() -> tuple[str, ...]:
    """The names of all kinds of edits, in order of registration."""
    import_module("trisect.lm.edits")  # which registers them; on first use, so that `import trisect` loads little
    return tuple(_KINDS)


def kind_of(name: object) -> type[Edit]:
    """The kind of edit with that name; raises SpecError if there is none."""
    names = kinds()
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise SpecError(unknown_name("edit", name, names), f"Edits are {', '.join(names)}.", "Use one of them.")
    return kind


def setting_fields(kind: type[Edit]) -> dict[str, FieldInfo]:
    """The fields of a kind's settings, by name."""
    return {name: info for name, info in cast("Any", kind).__pydantic_fields__.items() if name != "site"}


def make_edit(kind: str, site: Site, settings: Mapping[str, object] | None = None) -> Edit:
    """Make the edit of a kind, site and settings (None: no setting); raises SpecError for settings that do not fit."""
    edit_class, values = kind_of(kind), settings or {}
    fields = setting_fields(edit_class)
    unexpected = [name for name, value in values.items() if name not in fields and value is not None]
    missing = [name for name, info in fields.items() if info.is_required() and values.get(name) is None]
    if wrong := unexpected or missing:
        needed = [name for name, info in fields.items() if info.is_required()]
        offered = [name for name in fields if name not in needed]
        raise SpecError(
            f"The edit {kind} at {site} has {', '.join(f'{name}={values.get(name)!r}' for name in wrong)}.",
            f"It needs {' and '.join(needed) or 'no settings'}"
            + (f", and may have {' and '.join(offered)}." if offered else "."),
            f"Leave out {', '.join(unexpected)}." if unexpected else f"Give {', '.join(missing)}.",
        )
    arguments: Any = {name: value for name, value in values.items() if name in fields and value is not None}
    try:
        return edit_class(site=site, **arguments)
    except SpecError as error:
        raise SpecError(f"In the edit {kind} at {site}: {error.problem}", error.reason, error.todo) from None


def read_edit(data: object) -> Edit:
    """The edit itself, or the one from `Edit.data`; raises SpecError for other data, SiteError for its site."""
    if isinstance(data, Edit):
        return data
    if not isinstance(data, Mapping) or not {"kind", "site"} <= set(data):
        reason = "It is a JSON object with a kind, a site, and the settings of its kind."
        raise SpecError(f"An edit is {shorten(data)}.", reason, f"Kinds are {', '.join(kinds())}.")
    kind_of(data["kind"])
    settings = {name: value for name, value in data.items() if name not in ("kind", "site")}
    return make_edit(data["kind"], Site.parse(data["site"]), settings)


# in JSON an object with kind, site and settings
AnyEdit = Annotated[Edit, BeforeValidator(read_edit), PlainSerializer(Edit.data)]


def check_site(site: Site, method: str) -> Site:
    """Return the site if a study can edit it so; raises SpecError otherwise."""
    match method:
        case "rewind" | "control" | "probe":
            return check_study_site(site, method)
        case "erase" | "interchange":
            return check_study_site(site, method, ("q", "k", "v"), heads=False)
        case "ablate":
            return check_study_site(site, method, ("q", "k", "v"))
        case _:
            return kind_of(method).check_site(site)


def check_study_site(site: Site, method: str, allowed: tuple[str, ...] = COMPONENTS, heads: bool = True) -> Site:
    """Return the site if its components are allowed and it is of the only stack; raises SpecError otherwise."""
    if any(c not in allowed for c in site.components) or site.stack or site.pre or (site.heads and not heads):
        raise SpecError(
            f"{method} at '{site}' is not possible in a study.",
            f"Studies {method} {', '.join(allowed)} and their combinations, at any layers"
            + (", all heads or some; they have one stack." if heads else ", all heads together."),
            "Use a site such as k@3, q+k@1-2 or v@all.",
        )
    return site


SHAPES = {  # of each component's matrices; D is the width and F the feed-forward width
    **dict.fromkeys(("q", "k", "v"), "D×D"),
    "o": "D×D, read from the heads",
    "attn": "four of D×D",
    "ffn": "F×D and D×F",
}


def check_projection_site(site: Site, ok: bool, kind: str, reason: str, example: str) -> Site:
    """Return the site if it is one of q, k and v of the only stack and `ok`; raises SpecError naming the shapes otherwise."""
    plain = all(c in ("q", "k", "v") for c in site.components) and not site.stack and not site.pre
    shapes = ", ".join(f"{c} is {SHAPES[c]}" for c in site.components)
    require(plain and ok, f"{kind} at '{site}' is not possible: {shapes}.", reason, f"Use a site such as {example}.")
    return site
