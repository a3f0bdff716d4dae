"""Resume: the plan of a folder in which models are trained over several calls, joined by later calls or refused."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypedDict

from trisect.core.errors import StudyError
from trisect.core.files import read_json, read_record, write_json
from trisect.core.json_text import Json
from trisect.lab.run_folder import RunFolder


class CallsData(TypedDict):
    """What a plan's file holds of its calls, beside what it was begun with."""

    seeds: list[int]
    wall_seconds: float


@dataclass(frozen=True)
class ResumePlan:
    """What is trained in a folder: what it was begun with, the seeds of all calls, and the seconds that they worked."""

    begun: Mapping[str, Json]
    seeds: tuple[int, ...] = ()
    wall_seconds: float = 0.0

    def data(self) -> dict[str, Json]:
        """As its file holds it."""
        return {**self.begun, "seeds": list(self.seeds), "wall_seconds": self.wall_seconds}


def join(path: Path, kind: str, begun: Mapping[str, Json], seeds: Sequence[int]) -> ResumePlan:
    """The plan at `path` with these seeds added, or a new one; writes nothing.

    `kind` is what the folder holds, in words, such as 'recall experiment'. Raises StudyError where the folder holds something
    else, or was begun with something else than `begun`, DamagedFileError where the plan cannot be read.
    """
    folder = path.parent
    if not path.exists():
        RunFolder(folder).check_empty(kind)
        return ResumePlan(begun, tuple(sorted(set(seeds))))
    todo = f"Move {folder} away and call the same command again: the plan cannot be made from the rest."
    calls, old = read_record(path, todo, CallsData), read_json(path, todo)
    if differing := [_difference(name, old.get(name), begun[name]) for name in begun if old.get(name) != begun[name]]:
        todo = "Give what it was begun with, or choose another folder with --out."
        raise StudyError(f"{folder} belongs to another {kind}.", f"{'; '.join(differing)}.", todo)
    return ResumePlan(begun, tuple(sorted({*calls["seeds"], *seeds})), calls["wall_seconds"])


def work(path: Path, plan: ResumePlan, left: int, do: Callable[[], object]) -> ResumePlan:
    """Do what is left of the plan at `path`, and add the seconds, also those of a call that is interrupted.

    `left` says how much that is: a call that finds everything done adds none.
    """
    began = time.monotonic()
    try:
        do()
    finally:
        plan = replace(plan, wall_seconds=plan.wall_seconds + (time.monotonic() - began if left else 0.0))
        with suppress(StudyError):  # on a full disk the first file that found it so is the one to name
            write_json(path, plan.data())
    return plan


def _difference(name: str, old: Json, new: Json) -> str:
    """In words, how a plan that is there differs from one that is asked for."""
    if isinstance(old, dict) and isinstance(new, dict):
        return ", ".join(f"{key}: {old.get(key)} there, {new[key]} here" for key in new if old.get(key) != new[key])
    return f"{name}: {old} there, {new} here"
