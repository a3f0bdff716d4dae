"""The ledger: what was asked of a study, which runs that makes, and which of them are trained side by side."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from trisect.core.errors import DamagedFileError, StudyError
from trisect.core.files import digest, read_json, write_json
from trisect.core.schema import plain
from trisect.core.site import Site
from trisect.core.spec import Design, Ledger, Run, differences
from trisect.lab.folder import Folder
from trisect.lm.matmul import STEP

# members trained side by side, kept in the ledger since sums must come out the same on resuming: on a CPU more would
# leave the caches, on a GPU fewer would leave most of it idle
FLEET = {"cpu": 8, "cuda": 32}


def join_ledger(
    folder: Folder,
    experiments: Sequence[Design],
    corpus: str,
    device: str = "cpu",
    precision: str = "float32",
    fleet: int | None = None,
    write: bool = True,
) -> Ledger:
    """The folder's ledger with what experiments ask added, new runs grouped into fleets; written before any work.

    `corpus` is the fingerprint of their text as cut; `fleet` says how many runs a new study trains side by side, where
    it says nothing the `device` decides.
    Raises StudyError, showing the difference, when the folder belongs to a study of another text, model, training,
    precision or size of fleets: nothing is written then.
    """
    there = folder.ledger.exists() or folder.copy.exists()
    if not there:
        folder.check_empty("study")
    old = folder.read_ledger() if there else None
    if old is not None and old.precision != precision:
        raise StudyError(
            f"{folder.path} belongs to a study trained with {old.precision} products.",
            f"Here {precision} ones are asked for, and the runs of a study are compared with one another.",
            f"Give --precision {old.precision}, or choose another folder with --out.",
        )
    if old is not None and fleet not in (None, old.fleet):
        raise StudyError(
            f"{folder.path} belongs to a study with fleets of up to {old.fleet} runs.",
            f"Here --fleet {fleet} is asked for; which runs are trained side by side decides a study's last bits.",
            "Leave --fleet out, or choose another folder with --out.",
        )
    ledger = old
    for experiment in experiments:
        here = experiment.resolved()
        if ledger is None:
            size = fleet or FLEET[device]
            ledger = Ledger(corpus, (here,), _fleet_ids(here.runs(corpus), size), size, precision, STEP)
            continue
        other = [f"corpus (there {ledger.corpus!r}, here {corpus!r})"] if corpus != ledger.corpus else []
        if other := [*other, *differences(ledger.experiment, here)]:
            raise StudyError(
                f"{folder.path} belongs to another study.",
                "It differs in " + "; ".join(other) + ".",
                "Choose another folder with --out, or the same text, model and training: seeds, sites and experiments may be added.",
            )
        new = [run for run in here.runs(corpus) if run.id not in ledger.runs]
        more = new or evaluations([here], corpus).keys() - evaluations(ledger.asked, corpus)
        asked = tuple(
            replace(one, text=here.text) for one in ledger.asked
        )  # the same by its fingerprint, it may have moved
        grouped = (*ledger.fleets, *_fleet_ids(new, ledger.fleet))
        ledger = replace(ledger, asked=(*asked, here) if more else asked, fleets=grouped)
    assert ledger is not None, "a study has a design"
    if write:
        _write_ledger(folder, ledger)
    return ledger


def _write_ledger(folder: Folder, ledger: Ledger) -> None:
    """Write the ledger and its copy where another one lies there; a process killed between two writes leaves an old copy."""
    for path in (folder.ledger, folder.copy):
        try:
            same = read_json(path, "") == plain(ledger)
        except DamagedFileError:  # gone, or altered
            same = False
        if not same:
            write_json(path, plain(ledger))


def repeating(ledger: Ledger) -> Design | tuple[Design, ...]:
    """What `trisect study` takes to do the same again, to the bit: one experiment, or what was asked, call by call.

    One experiment where it makes the same runs in the same fleets and the same evaluations; after a study was
    extended unevenly, or by sites, several.
    """
    whole = ledger.experiment
    same = set(_fleet_ids(whole.runs(ledger.corpus), ledger.fleet)) == set(ledger.fleets)
    if same and evaluations([whole], ledger.corpus).keys() == evaluations(ledger.asked, ledger.corpus).keys():
        return whole
    return ledger.asked


def fleets(runs: Iterable[Run], size: int = FLEET["cpu"]) -> list[list[Run]]:
    """Runs that can be trained side by side: one seed, one training, one label; the baseline's fleet comes first."""
    groups: dict[tuple[object, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.seed, run.training.epochs, run.edit.column if run.edit else None), []).append(run)
    cut = []
    for group in groups.values():
        count = -(-len(group) // size)
        edges = [round(i * len(group) / count) for i in range(count + 1)]
        cut += [group[a:b] for a, b in itertools.pairwise(edges)]
    return sorted(cut, key=lambda fleet: all(run.edit for run in fleet))


def _fleet_ids(runs: Iterable[Run], size: int) -> tuple[tuple[str, ...], ...]:
    """The same by the runs' ids."""
    return tuple(tuple(run.id for run in fleet) for fleet in fleets(runs, size))


@dataclass(frozen=True)
class Task:
    """One piece of work: train a fleet, or evaluate one trained run.

    A baseline is evaluated with its attention cut, one site rewound or replaced by its mean, or a label erased at a site; it
    and attacked runs are probed for a label. `runs` are a fleet's run ids, or the one; an empty `site` is every one, an empty
    `label` none; `seconds` is the expected cost on one core, which tells no task from another.
    """

    kind: str
    runs: tuple[str, ...]
    site: str = ""
    label: str = ""
    seconds: float = field(default=1.0, compare=False)

    @property
    def title(self) -> str:
        """What a progress line calls it."""
        what, seed, _ = self.runs[0].rsplit("-", 2)
        if self.kind == "train":
            return f"train {len(self.runs)} runs from {what} ({seed})"
        return f"{' '.join(filter(None, (self.kind, self.label, self.site)))} ({seed})"

    def files(self, folder: Folder) -> list[Path]:
        """The files that say that it is done."""
        if self.kind == "train":
            return [folder.run(run) for run in self.runs]
        return [folder.evaluation(self.runs[0], self.kind, self.site, self.label)]

    def is_done(self, folder: Folder) -> bool:
        """Whether all that it leaves behind is there."""
        return all(path.exists() for path in self.files(folder))


def fleet_name(runs: Sequence[str]) -> str:
    """A short name that is a function of the fleet's members."""
    return digest("\n".join(runs), 6)


def tasks_of(experiment: Design, run: Run) -> list[Task]:
    """Every evaluation that a resolved experiment asks of one of its runs."""
    probe, erase, rewind = experiment.probe, experiment.erase, experiment.rewind
    probed, own = [("probe", "", label) for label in (probe.labels if probe else ())], (run.id,)
    if run.edit is not None:
        return [Task(kind, own, site, label) for kind, site, label in probed if label == run.edit.column]
    asked = [("cut", str(Site(("attn",), None)), "")]
    kinds = (("rewind", "midstage") if rewind.midstage else ("rewind",)) if rewind else ()
    asked += [(kind, str(site), "") for kind in kinds for site in (rewind.sites if rewind else ())]
    asked += probed
    for kind, method in (("ablate", experiment.ablate), ("interchange", experiment.interchange)):
        asked += [(kind, str(site), "") for site in (method.sites if method else ())]
    if erase:
        asked += [("erase", str(site), label) for label in erase.labels for site in erase.sites]
    return [Task(kind, own, site, label) for kind, site, label in asked]


def evaluations(experiments: Iterable[Design], corpus: str) -> dict[Task, tuple[Design, Run]]:
    """Every evaluation that the experiments ask, each once, with the first design and the run that it is of."""
    found: dict[Task, tuple[Design, Run]] = {}
    for design in (one.resolved() for one in experiments):
        for run in design.runs(corpus):
            for task in tasks_of(design, run):
                found.setdefault(task, (design, run))
    return found
