"""A study's folder: where each file lies, the ledger of what belongs to it, and the lock that keeps others out."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from trisect.core.errors import StudyError
from trisect.core.files import read_json, write_json
from trisect.core.site import Site
from trisect.core.spec import SCHEMA, Experiment, Run, plain

FLEET = 8  # members trained side by side; a function of the plan alone, since sums must come out the same on resuming


@dataclass(frozen=True)
class Folder:
    """The files of one study."""

    path: Path

    @property
    def ledger(self) -> Path:
        """What belongs to the study: base, experiment, runs and fleets."""
        return self.path / "study.json"

    @property
    def corpus(self) -> Path:
        """The text as cut, memory-mapped by every worker."""
        return self.path / "corpus"

    @property
    def tables(self) -> Path:
        """The tidy tables."""
        return self.path / "tables"

    def run(self, run: str) -> Path:
        """A finished run's statement and rows; its being there is what finished means."""
        return self.path / "runs" / run / "run.json"

    def final(self, run: str) -> Path:
        """A run's final weights."""
        return self.path / "runs" / run / "final.safetensors"

    def epochs(self, run: str) -> Path:
        """A baseline's site weights of every epoch."""
        return self.path / "runs" / run / "epochs"

    def checkpoint(self, fleet: str) -> Path:
        """Where an unfinished fleet goes on from."""
        return self.path / "fleets" / f"{fleet}.safetensors"

    def evaluation(self, baseline: str, kind: str, site: str) -> Path:
        """Rows of one evaluation of a trained baseline: 'rewind' or 'midstage' of a site, or 'cut' of attention."""
        return self.path / "evaluations" / baseline / f"{kind}-{site}.json"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep the folder to oneself; raises StudyError while another process has it."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            todo = "Choose a folder that can be made, with --out."
            raise StudyError(f"The folder {self.path} cannot be made.", f"The system says: {error}", todo) from error
        lock = FileLock(self.path / ".lock")
        try:
            with lock.acquire(timeout=0):
                for scratch in self.path.rglob(".*.part"):
                    scratch.unlink()  # left by a process that was killed while writing
                yield
        except PermissionError as error:
            todo = "Choose a folder that can be written, with --out."
            raise StudyError(f"{self.path} cannot be written.", f"The system says: {error}", todo) from error
        except Timeout as error:
            raise StudyError(
                f"The study in {self.path} is in use.",
                "Another process is running or reporting it.",
                "Wait for it to end, or choose another folder with --out.",
            ) from error

    def read_ledger(self) -> dict[str, Any]:
        """The ledger; raises StudyError where there is none, DamagedFileError where it is damaged."""
        if not self.ledger.exists():
            raise StudyError(
                f"{self.path} holds no study.",
                f"There is no {self.ledger.name} in it.",
                "Run 'trisect study' with --out first.",
            )
        return read_json(self.ledger, f"The ledger cannot be made anew: move {self.path} away and run the study again.")


def join_ledger(folder: Folder, experiment: Experiment, runs: Sequence[Run]) -> dict[str, Any]:
    """Add runs to the folder's ledger, grouping those that are new into fleets, and write it before any work.

    Raises StudyError, showing the difference, when the folder belongs to a study of another text, model or training.
    """
    base = _base(experiment, runs[0].corpus)
    if not folder.ledger.exists() and any(p.name != ".lock" for p in folder.path.iterdir()):
        raise StudyError(
            f"{folder.path} is not empty, and holds no study.",
            f"There is {', '.join(sorted(p.name for p in folder.path.iterdir() if p.name != '.lock')[:5])}.",
            "Choose an empty or a new folder with --out.",
        )
    old = (
        folder.read_ledger() if folder.ledger.exists() else {"base": base, "experiment": None, "runs": {}, "fleets": []}
    )
    if differences := _differences(old["base"], base):
        raise StudyError(
            f"{folder.path} belongs to another study.",
            "It differs in " + "; ".join(differences) + ".",
            "Choose another folder with --out, or the same text, model and training: seeds, sites and experiments may be added.",
        )
    new = [run for run in runs if run.id not in old["runs"]]
    ledger = {
        "base": {key: base[key] if value is None else value for key, value in old["base"].items()},
        "experiment": _merged(old["experiment"], plain(experiment.resolved())),
        "runs": old["runs"] | {run.id: plain(run) for run in new},
        "fleets": old["fleets"] + [[run.id for run in fleet] for fleet in fleets(new)],
    }
    if ledger != old:
        write_json(folder.ledger, ledger)
    return ledger


def fleets(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs that can be trained side by side: one seed, one training, one label; the baseline's fleet comes first."""
    groups: dict[tuple[object, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.seed, run.training.epochs, run.edit.label if run.edit else None), []).append(run)
    cut = []
    for group in groups.values():
        count = -(-len(group) // FLEET)
        edges = [round(i * len(group) / count) for i in range(count + 1)]
        cut += [group[a:b] for a, b in itertools.pairwise(edges)]
    return sorted(cut, key=lambda fleet: all(run.edit for run in fleet))


def rewound(experiment: Experiment) -> list[tuple[str, Site]]:
    """(kind, site) of every evaluation that the experiment asks of each baseline."""
    asked: list[tuple[str, Site]] = [("cut", Site(("attn",), None))]
    rewind = experiment.resolved().rewind
    if rewind:
        asked += [
            (kind, site)
            for kind in (("rewind", "midstage") if rewind.midstage else ("rewind",))
            for site in rewind.sites
        ]
    return asked


def _base(experiment: Experiment, corpus: str) -> dict[str, Any]:
    attack, rewind = experiment.attack, experiment.rewind
    return {
        "schema": SCHEMA,
        "corpus": corpus,
        "model": plain(experiment.model),
        "training": plain(experiment.training),
        "attack_epochs": (attack.epochs or experiment.training.epochs) if attack else None,
        "rewind": {"points": rewind.points, "epsilon": rewind.epsilon, "mode": rewind.mode} if rewind else None,
    }


def _differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    found = []
    for key in sorted(set(old) | set(new)):
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            found += _differences(a, b, f"{prefix}{key}.")
        elif a != b and not (key in ("attack_epochs", "rewind") and None in (a, b)):
            found.append(f"{prefix}{key} (there {a!r}, here {b!r})")
    return found


def _merged(old: dict[str, Any] | None, new: dict[str, Any]) -> dict[str, Any]:
    """The union of what was asked before and now, for the report; lists keep their order, new members last."""
    if old is None:
        return new
    merged = dict(new)
    for key in ("attack", "rewind", "freeze"):
        a, b = old[key], new[key]
        if a and b:
            merged[key] = {
                k: list(dict.fromkeys([*a[k], *v])) if isinstance(v, list) else a[k] or v for k, v in b.items()
            }
        else:
            merged[key] = a or b
    merged["seeds"] = sorted({*old["seeds"], *new["seeds"]})
    merged["name"] = old["name"]
    return merged
