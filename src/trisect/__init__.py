"""trisect: what do the query, key and value submodules of a Transformer each do?"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import trisect.lm.edits  # noqa: F401 (makes the kinds of edits known to statements; loads no torch)

if TYPE_CHECKING:
    from trisect.calls import annotate as annotate
    from trisect.calls import chart as chart
    from trisect.calls import check as check
    from trisect.calls import corpus as corpus
    from trisect.calls import explore as explore
    from trisect.calls import intervene as intervene
    from trisect.calls import list_claims as list_claims
    from trisect.calls import load as load
    from trisect.calls import prove as prove
    from trisect.calls import render as render
    from trisect.calls import serve as serve
    from trisect.calls import switchboard as switchboard
    from trisect.calls import texts as texts
    from trisect.core.edits import Edit as Edit
    from trisect.core.errors import TrisectError as TrisectError
    from trisect.core.machine import Machine as Machine
    from trisect.core.methods import Attack as Attack
    from trisect.core.methods import Control as Control
    from trisect.core.methods import Erase as Erase
    from trisect.core.methods import Freeze as Freeze
    from trisect.core.methods import Probe as Probe
    from trisect.core.methods import Rewind as Rewind
    from trisect.core.methods import Tie as Tie
    from trisect.core.site import Site as Site
    from trisect.core.spec import Design as Design
    from trisect.core.spec import Model as Model
    from trisect.core.spec import Run as Run
    from trisect.core.spec import Text as Text
    from trisect.core.spec import Training as Training
    from trisect.core.subject import Texts as Texts
    from trisect.core.trace import Reading as Reading
    from trisect.core.trace import Trace as Trace
    from trisect.experiments.study.result import Study as Study
    from trisect.text.corpus import Corpus as Corpus

_HOME = {
    "Edit": "core.edits",
    "TrisectError": "core.errors",
    "Site": "core.site",
    **dict.fromkeys(("Attack", "Control", "Erase", "Freeze", "Probe", "Rewind", "Tie"), "core.methods"),
    "Machine": "core.machine",
    **dict.fromkeys(("Design", "Model", "Run", "Text", "Training"), "core.spec"),
    **dict.fromkeys(
        (
            "annotate",
            "chart",
            "check",
            "corpus",
            "explore",
            "intervene",
            "list_claims",
            "load",
            "prove",
            "render",
            "serve",
            "switchboard",
            "texts",
        ),
        "calls",
    ),
    "Texts": "core.subject",
    **dict.fromkeys(("Reading", "Trace"), "core.trace"),
    "Study": "experiments.study.result",
    "Corpus": "text.corpus",
}

_RENAMED = {"Experiment": "Design"}  # what a name of an earlier version is called now


def __getattr__(name: str) -> Any:
    """Import on first use, so that `import trisect` costs nothing; experiments' functions are made from their settings."""
    if name == "__all__":
        return _names()
    if name in _HOME:
        return getattr(import_module(f"trisect.{_HOME[name]}"), name)
    if name in ("measure", "theory"):
        return import_module(f"trisect.{name}")
    if name in _RENAMED:
        raise AttributeError(f"module 'trisect' has no {name!r} any more; it is called trisect.{_RENAMED[name]}")
    if not name.startswith("_"):
        for one in import_module("trisect.experiments").EXPERIMENTS:
            if one.python == name:
                return import_module("trisect.api").function(one)
        for one in import_module("trisect.experiments").UTILITIES:
            if one.python == name:
                return import_module("trisect.api").utility(one)
    raise AttributeError(f"module 'trisect' has no attribute {name!r}; it has {', '.join(_names())}")


def _names() -> list[str]:
    """Every public name: those that have a home, and the functions of experiments and utilities."""
    found = import_module("trisect.experiments")
    return sorted((*_HOME, *(one.python for one in (*found.EXPERIMENTS, *found.UTILITIES))))


def __dir__() -> list[str]:
    return _names()
