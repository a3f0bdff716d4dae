"""What do the query, key and value submodules of a Transformer each do?

    model = trisect.load("MODEL")                a folder, a name on the hub, or a module: verified layer by layer
    reading = model.read("a text")               reading["v@3.h2"].v [row, head, position, width]; .q .k .weights .output
    trisect.read(model, "a text", grad=True)     the same with a graph: trace.v.grad after reading.output[…].backward()
    with trisect.edit(model, {"v@3.h2": fn}):    a function of yours at q, k or v: in calls, in generate, in all below
    trisect.patch(model, base=text, donor=other) another text's q, k or v (activation patching)
    trisect.compose(model, task="induction")     which earlier part makes a head's query, key or value
    trisect.norms(model, texts)                  which tokens get weight, and what arrives from each
    trisect.profile(model, texts)                which properties of a word q, k and v keep

Layers and heads count from 1 in sites and tables, positions from 0; indices into arrays are Python's. A command
`trisect NAME --some-option` is `trisect.NAME(some_option=…)`; `theory` is theory_page and `report` render there. Its texts
(--corpus, --split, --limit, --text) are `texts`.
What it returns has `.tables` (Polars), `.to_pandas()` (needs pandas), `.to_dict()`, `.findings` and `.report`, the page.
`trisect.MeasureName` has the name, unit and meaning of every measure. In a notebook `trisect.explore(reading)` shows every head.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# where public names are; what a type checker knows of them stands in __init__.pyi
_HOME = {
    name: home
    for home, names in {
        "calls": "chart check corpus direct_logits edit explore intervene list_claims logit_lens prove read render serve "
        "switchboard texts",
        "lab.annotation": "annotate",
        "lab.subject": "load",
        "core.edits": "Edit",
        "core.errors": "TrisectError",
        "core.machine": "Machine",
        "core.methods": "Attack Control Erase Freeze Probe Rewind Tie",
        "core.site": "Site",
        "core.spec": "Design Model Run Text Training",
        "core.subject": "Texts",
        "core.tables": "MeasureName",
        "core.trace": "Reading Trace",
        "experiments.study.result": "Study",
        "text.corpus": "Corpus",
    }.items()
    for name in names.split()
}


def __getattr__(name: str) -> Any:
    """Import on first use, so that `import trisect` costs nothing; experiments' functions are made from their settings."""
    if name == "__all__":
        return _names()
    if name in _HOME:
        with import_module("trisect.core.machine").without_collection():
            return getattr(import_module(f"trisect.{_HOME[name]}"), name)
    if name in ("measure", "theory"):
        return import_module(f"trisect.{name}")
    if not name.startswith("_"):
        experiments = import_module("trisect.experiments")
        for command in (*experiments.EXPERIMENTS, *experiments.UTILITIES):
            if command.python == name:
                return import_module("trisect.api").function(command)
    raise AttributeError(f"module 'trisect' has no attribute {name!r}; it has {', '.join(_names())}")


def _names() -> list[str]:
    """Every public name: those that have a home, and the functions of experiments and utilities."""
    experiments = import_module("trisect.experiments")
    return sorted((*_HOME, *(command.python for command in (*experiments.EXPERIMENTS, *experiments.UTILITIES))))


def __dir__() -> list[str]:
    return _names()
