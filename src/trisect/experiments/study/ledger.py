"""The ledger: what was asked of a study, which runs that makes, and which of them are trained side by side."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from trisect.core.errors import DamagedFileError, StudyError
from trisect.core.files import read_json, write_json
from trisect.core.methods import METHODS
from trisect.core.site import Site
from trisect.core.spec import SCHEMA, Design, Rewind, Run, plain, read_experiment
from trisect.lab.folder import Folder

# members trained side by side, kept in the ledger since sums must come out the same on resuming: on a CPU more would
# leave the caches, on a GPU fewer would leave most of it idle
FLEET = {"cpu": 8, "cuda": 32}
LEDGER = "study.json"


def join_ledger(
    folder: Folder,
    experiments: Sequence[Design],
    corpus: str,
    device: str = "cpu",
    precision: str = "float32",
    fleet: int | None = None,
) -> dict[str, Any]:
    """Add what experiments ask to the folder's ledger, new runs grouped into fleets, and write it before any work.

    `corpus` is the fingerprint of their text as cut; `fleet` says how many runs a new study trains side by side, where
    it says nothing the `device` decides.
    Raises StudyError, showing the difference, when the folder belongs to a study of another text, model, training,
    precision or size of fleets.
    """
    old, ledger = extended_ledger(folder, experiments, corpus, device, precision, fleet)
    if ledger != old or not folder.ledger.exists():
        write_json(folder.ledger, ledger)
    if _copied(folder) != ledger:
        write_json(folder.copy, ledger)
    return ledger


def extended_ledger(
    folder: Folder,
    experiments: Sequence[Design],
    corpus: str,
    device: str,
    precision: str,
    fleet: int | None = None,
) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """The ledger as it lies there (null where there is none) and as `join_ledger` would write it; raises as that does."""
    there = folder.ledger.exists() or folder.copy.exists()
    if not there:
        folder.check_empty("study")
    old = folder.read_ledger() if there else None
    new = {"base": None, "experiment": None, "asked": [], "runs": {}, "fleets": [], "fleet": fleet or FLEET[device]}
    ledger = old or new | {"precision": precision}
    if (trained := _precision(ledger)) != precision:
        raise StudyError(
            f"{folder.path} belongs to a study trained with {trained} products.",
            f"Here {precision} ones are asked for, and the runs of a study are compared with one another.",
            f"Give --precision {trained}, or choose another folder with --out.",
        )
    if fleet not in (None, _size(ledger)):
        raise StudyError(
            f"{folder.path} belongs to a study with fleets of up to {_size(ledger)} runs.",
            f"Here --fleet {fleet} is asked for; which runs are trained side by side decides a study's last bits.",
            "Leave --fleet out, or choose another folder with --out.",
        )
    for experiment in experiments:
        ledger = _joined(folder, ledger, experiment, corpus)
    return old, ledger


def _copied(folder: Folder) -> Any:
    """What the copy says; nothing where it is gone or damaged. A process killed between two writes leaves an old one."""
    try:
        return read_json(folder.copy, "")
    except DamagedFileError:
        return None


def _joined(folder: Folder, old: dict[str, Any], experiment: Design, corpus: str) -> dict[str, Any]:
    base = _base(experiment, corpus)
    if differences := _differences(old["base"] or base, base):
        raise StudyError(
            f"{folder.path} belongs to another study.",
            "It differs in " + "; ".join(differences) + ".",
            "Choose another folder with --out, or the same text, model and training: seeds, sites and experiments may be added.",
        )
    here, asked = plain(experiment.resolved()), old.get("asked", [old["experiment"]])
    new = [run for run in experiment.runs(corpus) if run.id not in old["runs"]]
    more = evaluations(experiment, corpus) - _evaluated(asked, corpus)
    return {
        "base": base | {key: value for key, value in (old["base"] or base).items() if value is not None},
        "experiment": _merged(old["experiment"], here),
        "asked": [one | {"text": here["text"]} for one in asked] + ([here] if new or more else []),
        "runs": old["runs"] | {run.id: plain(run) for run in new},
        "fleets": old["fleets"] + [[run.id for run in fleet] for fleet in fleets(new, _size(old))],
        "fleet": _size(old),
        "precision": _precision(old),
    }


def repeating(ledger: dict[str, Any]) -> Any:
    """What `trisect study` takes to do the same again, to the bit: one experiment, or what was asked, call by call.

    One experiment where it makes the same runs in the same fleets and the same evaluations; after a study was
    extended unevenly, or by sites, a list.
    """
    corpus, merged = ledger["base"]["corpus"], read_experiment(ledger["experiment"], LEDGER)
    grouped = {tuple(run.id for run in fleet) for fleet in fleets(list(merged.runs(corpus)), _size(ledger))}
    same = grouped == {tuple(fleet) for fleet in ledger["fleets"]}
    if same and evaluations(merged, corpus) == _evaluated(ledger["asked"], corpus):
        return ledger["experiment"]
    return ledger["asked"]


def _size(ledger: dict[str, Any]) -> int:
    return ledger.get("fleet", FLEET["cpu"])  # ledgers from before there was a choice do not say


def _precision(ledger: dict[str, Any]) -> str:
    return ledger.get("precision", "float32")  # nor of this one


def fleets(runs: Sequence[Run], size: int = FLEET["cpu"]) -> list[list[Run]]:
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


def evaluations(experiment: Design, corpus: str) -> set[AskedEvaluation]:
    """Every evaluation that the experiment asks."""
    fitted = experiment.resolved()
    return {asked for run in fitted.runs(corpus) for asked in asked_of(fitted, run)}


def _evaluated(asked: Sequence[Any], corpus: str) -> set[AskedEvaluation]:
    return {each for one in asked for each in evaluations(read_experiment(one, LEDGER), corpus)}


def _base(experiment: Design, corpus: str) -> dict[str, Any]:
    attack, rewind = experiment.attack, experiment.rewind
    return {
        "schema": SCHEMA,
        "corpus": corpus,
        "model": plain(experiment.model),
        "training": plain(experiment.training),
        "attack_epochs": (attack.epochs or experiment.training.epochs) if attack else None,
        "rewind": _measured(rewind) if rewind else None,
        **{key: value for key, value in _listened(experiment).items() if value is not None},
    }


def _measured(rewind: Rewind) -> dict[str, Any]:
    """How rewinding is measured; a sample stands there only where one is drawn, as in ledgers from before there were any."""
    sample = {"sample_tokens": rewind.sample_tokens, "sample_seed": rewind.sample_seed}
    how = {"points": rewind.points, "epsilon": rewind.epsilon, "mode": rewind.mode}
    return how | (sample if rewind.sample_tokens is not None else {})


def _listened(experiment: Design) -> dict[str, Any]:
    """How probes, erasure and interchange are done, which is one for all of a folder."""
    probe, erase, interchange = plain(experiment.resolved().probe), experiment.erase, experiment.interchange
    return {
        "probe": probe and {"sites": probe["sites"], "kinds": probe["kinds"]},
        "erase": erase and {"draws": erase.draws},
        "interchange": interchange and {"pairs": interchange.pairs},
    }


def _differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    found = []
    for key in sorted(set(old) | set(new)):
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            found += _differences(a, b, f"{prefix}{key}.")
        elif a != b and not (key in ("attack_epochs", "rewind", "probe", "erase", "interchange") and None in (a, b)):
            found.append(f"{prefix}{key} (there {a!r}, here {b!r})")
    return found


def _merged(old: dict[str, Any] | None, new: dict[str, Any]) -> dict[str, Any]:
    """The union of what was asked before and now, for the report; lists keep their order, new members last."""
    if old is None:
        return new
    merged = dict(new)
    for key in METHODS:
        a, b = old.get(key), new.get(key)
        if a and b:
            merged[key] = {
                k: list(dict.fromkeys([*a[k], *v])) if isinstance(v, list) else a.get(k) or v for k, v in b.items()
            }
        elif a or b or key in new:
            merged[key] = a or b
    if edits := [*old.get("edits", ()), *(one for one in new.get("edits", ()) if one not in old.get("edits", ()))]:
        merged["edits"] = edits
    merged["seeds"] = sorted({*old["seeds"], *new["seeds"]})
    merged["name"] = old["name"]
    return merged
