"""The ledger: what was asked of a study, which runs that makes, and which of them are trained side by side."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from trisect.core.errors import DamagedFileError, StudyError
from trisect.core.files import read_json, write_json
from trisect.core.schema import plain
from trisect.core.site import Site
from trisect.core.spec import Design, Run
from trisect.core.study_data import Ledger, differences
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
) -> Ledger:
    """Add what experiments ask to the folder's ledger, new runs grouped into fleets, and write it before any work.

    `corpus` is the fingerprint of their text as cut; `fleet` says how many runs a new study trains side by side, where
    it says nothing the `device` decides.
    Raises StudyError, showing the difference, when the folder belongs to a study of another text, model, training,
    precision or size of fleets: nothing is written then.
    """
    old, ledger = extended_ledger(folder, experiments, corpus, device, precision, fleet)
    if ledger != old or not folder.ledger.exists():
        write_json(folder.ledger, plain(ledger))
    try:
        copied = read_json(folder.copy, "")
    except DamagedFileError:  # gone, or altered
        copied = None
    if copied != plain(ledger):  # a process killed between two writes leaves an old one
        write_json(folder.copy, plain(ledger))
    return ledger


def extended_ledger(
    folder: Folder,
    experiments: Sequence[Design],
    corpus: str,
    device: str,
    precision: str,
    fleet: int | None = None,
) -> tuple[Ledger | None, Ledger]:
    """The ledger as it lies there (None where there is none) and as `join_ledger` would write it; raises as that does."""
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
        if ledger is not None:
            ledger = _joined(folder, ledger, here, corpus)
        else:
            size = fleet or FLEET[device]
            grouped = fleet_ids(here.runs(corpus), size)
            ledger = Ledger(corpus, (here,), grouped, size, precision, STEP)
    assert ledger is not None, "a study has a design"
    return old, ledger


def _joined(folder: Folder, old: Ledger, here: Design, corpus: str) -> Ledger:
    other = [f"corpus (there {old.corpus!r}, here {corpus!r})"] if corpus != old.corpus else []
    if other := [*other, *differences(old.experiment, here)]:
        raise StudyError(
            f"{folder.path} belongs to another study.",
            "It differs in " + "; ".join(other) + ".",
            "Choose another folder with --out, or the same text, model and training: seeds, sites and experiments may be added.",
        )
    new = [run for run in here.runs(corpus) if run.id not in old.runs]
    more = new or evaluations([here], corpus) - evaluations(old.asked, corpus)
    asked = [replace(one, text=here.text) for one in old.asked]  # the same by its fingerprint, it may have moved
    return replace(
        old,
        asked=(*asked, here) if more else tuple(asked),
        fleets=(*old.fleets, *fleet_ids(new, old.fleet)),
    )


def repeating(ledger: Ledger) -> Design | tuple[Design, ...]:
    """What `trisect study` takes to do the same again, to the bit: one experiment, or what was asked, call by call.

    One experiment where it makes the same runs in the same fleets and the same evaluations; after a study was
    extended unevenly, or by sites, several.
    """
    whole = ledger.experiment
    same = set(fleet_ids(whole.runs(ledger.corpus), ledger.fleet)) == set(ledger.fleets)
    if same and evaluations([whole], ledger.corpus) == evaluations(ledger.asked, ledger.corpus):
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


def fleet_ids(runs: Iterable[Run], size: int) -> tuple[tuple[str, ...], ...]:
    """The same by the runs' ids."""
    return tuple(tuple(run.id for run in fleet) for fleet in fleets(runs, size))


class AskedEvaluation(NamedTuple):
    """An evaluation of one run: its kind, the site (empty: every site) and the label column, where there is one."""

    run: str
    kind: str
    site: str = ""
    label: str = ""


def asked_of(experiment: Design, run: Run) -> list[AskedEvaluation]:
    """Every evaluation that a resolved experiment asks of one of its runs."""
    probe, erase, rewind = experiment.probe, experiment.erase, experiment.rewind
    if run.edit is not None:
        mine = probe.labels if probe else ()
        return [AskedEvaluation(run.id, "probe", label=label) for label in mine if label == run.edit.column]
    asked = [AskedEvaluation(run.id, "cut", str(Site(("attn",), None)))]
    kinds = (("rewind", "midstage") if rewind.midstage else ("rewind",)) if rewind else ()
    asked += [AskedEvaluation(run.id, kind, str(site)) for kind in kinds for site in (rewind.sites if rewind else ())]
    asked += [AskedEvaluation(run.id, "probe", label=label) for label in (probe.labels if probe else ())]
    if experiment.ablate:
        asked += [AskedEvaluation(run.id, "ablate", str(site)) for site in experiment.ablate.sites]
    if experiment.interchange:
        asked += [AskedEvaluation(run.id, "interchange", str(site)) for site in experiment.interchange.sites]
    if erase:
        asked += [AskedEvaluation(run.id, "erase", str(site), label) for label in erase.labels for site in erase.sites]
    return asked


def evaluations(experiments: Iterable[Design], corpus: str) -> set[AskedEvaluation]:
    """Every evaluation that the experiments ask."""
    resolved = [one.resolved() for one in experiments]
    return {asked for one in resolved for run in one.runs(corpus) for asked in asked_of(one, run)}
