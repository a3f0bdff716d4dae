"""One folder per experiment; EXPERIMENTS and UTILITIES list all, `find_command` imports one."""

from __future__ import annotations

from functools import cache
from typing import Any

from trisect.lab.experiment import Experiment, Utility

EXPERIMENT_NAMES = (
    "ablate", "align", "bench", "compare", "compose", "dissect", "erase", "explore", "lookup", "norms", "patch", "profile",
    "quantise", "recall", "rewind", "similarity", "study", "theory", "translate-train",
)  # fmt: skip
UTILITY_NAMES = ("ask", "audit", "plan")
EXPERIMENTS: tuple[Experiment[Any, Any], ...]  # made when they are asked for, below
UTILITIES: tuple[Utility[Any], ...]


def __getattr__(name: str) -> Any:
    """The lists of all, each command imported."""
    if name not in ("EXPERIMENTS", "UTILITIES"):
        raise AttributeError(name)
    commands = tuple(map(find_command, EXPERIMENT_NAMES if name == "EXPERIMENTS" else UTILITY_NAMES))
    return globals().setdefault(name, commands)  # from now on the module's own


def find_command(name: str) -> Experiment[Any, Any] | Utility[Any]:
    """Find the experiment or utility of a command by name; no other is imported."""
    return _import_command(name)


@cache
def _import_command(name: str) -> Any:
    match name:
        case "ablate":
            from trisect.experiments.ablate import ABLATE as COMMAND
        case "align":
            from trisect.experiments.align import ALIGN as COMMAND
        case "ask":
            from trisect.experiments.recall import ASK as COMMAND
        case "audit":
            from trisect.experiments.audit import AUDIT as COMMAND
        case "bench":
            from trisect.experiments.bench import BENCHMARK as COMMAND
        case "compare":  # none knows another: who lists all says what it is made of
            from trisect.experiments.compare import Compare

            return Compare(tuple(map(_import_command, ("norms", "similarity", "ablate", "erase", "profile", "patch"))))
        case "compose":
            from trisect.experiments.compose import COMPOSE as COMMAND
        case "dissect":
            from trisect.experiments.dissect import DISSECT as COMMAND
        case "erase":
            from trisect.experiments.erase import ERASE as COMMAND
        case "explore":
            from trisect.experiments.explore import EXPLORE as COMMAND
        case "lookup":
            from trisect.experiments.lookup import LookupStudy

            return LookupStudy(_import_command("patch"), _import_command("compose"))
        case "norms":
            from trisect.experiments.norms import NORMS as COMMAND
        case "patch":
            from trisect.experiments.patch import PATCH as COMMAND
        case "plan":
            from trisect.experiments.study import PLAN as COMMAND
        case "profile":
            from trisect.experiments.profile import PROFILE as COMMAND
        case "quantise":
            from trisect.experiments.quantise import QUANTISE as COMMAND
        case "recall":
            from trisect.experiments.recall import RECALL as COMMAND
        case "rewind":
            from trisect.experiments.checkpoints import REWIND as COMMAND
        case "similarity":
            from trisect.experiments.similarity import SIMILARITY as COMMAND
        case "study":
            from trisect.experiments.study import STUDY as COMMAND
        case "theory":
            from trisect.experiments.theory import THEORY as COMMAND
        case "translate-train":
            from trisect.experiments.translate import TRANSLATE as COMMAND
        case _:
            raise KeyError(name)
    return COMMAND
