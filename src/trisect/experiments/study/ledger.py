"""The ledger: what was asked of a study, which runs that makes, and which of them are trained side by side."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

from trisect.core.errors import DamagedFileError, StudyError
from trisect.core.files import read_json, write_json
from trisect.core.methods import ARTICLES, METHODS, ON_TRAIN, Fitted
from trisect.core.site import Site
from trisect.core.spec import SCHEMA, Design, Rewind, Run, plain, read_experiment
from trisect.core.study_data import BaseData, DesignData, LedgerData, RewindData
from trisect.lab.folder import Folder, check_extended
from trisect.lm.matmul import STEP

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
) -> LedgerData:
    """Add what experiments ask to the folder's ledger, new runs grouped into fleets, and write it before any work.

    `corpus` is the fingerprint of their text as cut; `fleet` says how many runs a new study trains side by side, where
    it says nothing the `device` decides.
    Raises StudyError, showing the difference, when the folder belongs to a study of another text, model, training,
    precision or size of fleets, and when the ledger would contradict itself: nothing is written then.
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
) -> tuple[LedgerData | None, LedgerData]:
    """The ledger as it lies there (null where there is none) and as `join_ledger` would write it; raises as that does."""
    there = folder.ledger.exists() or folder.copy.exists()
    if not there:
        folder.check_empty("study")
    old = folder.read_ledger() if there else None
    if (trained := precision if old is None else precision_of(old)) != precision:
        raise StudyError(
            f"{folder.path} belongs to a study trained with {trained} products.",
            f"Here {precision} ones are asked for, and the runs of a study are compared with one another.",
            f"Give --precision {trained}, or choose another folder with --out.",
        )
    size = (fleet or FLEET[device]) if old is None else size_of(old)
    if fleet not in (None, size):
        raise StudyError(
            f"{folder.path} belongs to a study with fleets of up to {size} runs.",
            f"Here --fleet {fleet} is asked for; which runs are trained side by side decides a study's last bits.",
            "Leave --fleet out, or choose another folder with --out.",
        )
    ledger = old
    for experiment in experiments:  # each as those before it, in this call too, settle it
        here = settled(experiment, ledger["base"] if ledger else None)
        ledger = _joined(folder, ledger, here, corpus) if ledger else _begun(here, corpus, size, precision)
    assert ledger is not None, "a study has a design"
    if ledger != old:
        check_extended(folder, ledger)
    return old, ledger


def settled(experiment: Design, base: BaseData | None) -> Design:
    """The experiment with what probes and erasers are fitted on: where it says nothing, as the study began, else whole articles."""
    parts: dict[str, Any] = {}
    for name in ("probe", "erase"):
        part = getattr(experiment, name)
        if part is not None and part.fitted is None:
            there: Any = base.get(name) if base else None
            parts[name] = replace(part, fitted=there.get("fitted", ON_TRAIN) if there else ARTICLES)
    return replace(experiment, **parts)


def _begun(experiment: Design, corpus: str, size: int, precision: str) -> LedgerData:
    """The ledger of a study that begins with this experiment."""
    statement, runs = plain(experiment.resolved()), list(experiment.runs(corpus))
    asked = [statement] if runs or evaluations(experiment, corpus) else []
    return {
        "base": _base(experiment, corpus),
        "experiment": statement,
        "asked": asked,
        "runs": {run.id: plain(run) for run in runs},
        "fleets": [[run.id for run in fleet] for fleet in fleets(runs, size)],
        "fleet": size,
        "precision": precision,
        "step": STEP,
    }


def _copied(folder: Folder) -> object:
    """What the copy says; nothing where it is gone or damaged. A process killed between two writes leaves an old one."""
    try:
        return read_json(folder.copy, "")
    except DamagedFileError:
        return None


def _joined(folder: Folder, old: LedgerData, experiment: Design, corpus: str) -> LedgerData:
    base = _base(experiment, corpus)
    if differences := _differences(dict(old["base"]), dict(base)):
        raise StudyError(
            f"{folder.path} belongs to another study.",
            "It differs in " + "; ".join(differences) + ".",
            "Choose another folder with --out, or the same text, model and training: seeds, sites and experiments may be added.",
        )
    here, asked = plain(experiment.resolved()), old.get("asked", [old["experiment"]])
    new = [run for run in experiment.runs(corpus) if run.id not in old["runs"]]
    more = evaluations(experiment, corpus) - _evaluated(asked, corpus)
    known: Any = {**base, **{key: value for key, value in old["base"].items() if value is not None}}
    return {
        "base": known,
        "experiment": _merged(old["experiment"], here),
        "asked": [_of_text(one, here) for one in asked] + ([here] if new or more else []),
        "runs": old["runs"] | {run.id: plain(run) for run in new},
        "fleets": old["fleets"] + [[run.id for run in fleet] for fleet in fleets(new, size_of(old))],
        "fleet": size_of(old),
        "precision": precision_of(old),
        "step": step_of(old),
    }


def _of_text(one: DesignData, here: DesignData) -> DesignData:
    """A design with the text of another: the same by its fingerprint, it may have moved."""
    changed = one.copy()
    changed["text"] = here["text"]
    return changed


def repeating(ledger: LedgerData) -> DesignData | list[DesignData]:
    """What `trisect study` takes to do the same again, to the bit: one experiment, or what was asked, call by call.

    One experiment where it makes the same runs in the same fleets and the same evaluations; after a study was
    extended unevenly, or by sites, a list.
    """
    corpus, merged = ledger["base"]["corpus"], read_experiment(ledger["experiment"], LEDGER)
    asked = ledger.get("asked", [ledger["experiment"]])
    grouped = {tuple(run.id for run in fleet) for fleet in fleets(list(merged.runs(corpus)), size_of(ledger))}
    same = grouped == {tuple(fleet) for fleet in ledger["fleets"]}
    if same and evaluations(merged, corpus) == _evaluated(asked, corpus):
        return ledger["experiment"]
    return asked


def size_of(ledger: LedgerData) -> int:
    """How many runs of a study are trained side by side at most."""
    return ledger.get("fleet", FLEET["cpu"])  # ledgers from before there was a choice do not say


def precision_of(ledger: LedgerData) -> str:
    """Of which precision the products of a study's training are."""
    return ledger.get("precision", "float32")  # nor of this one


def step_of(ledger: LedgerData) -> int:
    """Which revision of the training step trained a study's runs, and trains those to come."""
    return ledger.get("step", 1)


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


def _evaluated(asked: Sequence[DesignData], corpus: str) -> set[AskedEvaluation]:
    return {each for one in asked for each in evaluations(read_experiment(one, LEDGER), corpus)}


def _base(experiment: Design, corpus: str) -> BaseData:
    attack, rewind = experiment.attack, experiment.rewind
    found: BaseData = {
        "schema": SCHEMA,
        "corpus": corpus,
        "model": plain(experiment.model),
        "training": plain(experiment.training),
        "attack_epochs": (attack.epochs or experiment.training.epochs) if attack else None,
        "rewind": _measured(rewind) if rewind else None,
    }
    probe, erase, interchange = plain(experiment.resolved().probe), experiment.erase, experiment.interchange
    if probe:
        found["probe"] = {
            "sites": probe["sites"],
            "kinds": probe["kinds"],
            "fitted": probe.get("fitted"),
            "random_maps": probe.get("random_maps", 0),
        }
    if erase:
        known = cast("Fitted | None", erase.fitted)  # checked where the design was made
        found["erase"] = {"draws": erase.draws, "fitted": known, "shrinkage": erase.shrinkage}
    if interchange:
        found["interchange"] = {"pairs": interchange.pairs}
    return found


def _measured(rewind: Rewind) -> RewindData:
    """How rewinding is measured; a sample stands there only where one is drawn, as in ledgers from before there were any."""
    how: RewindData = {"points": rewind.points, "epsilon": rewind.epsilon, "mode": rewind.mode}
    if rewind.sample_tokens is not None:
        how["sample_tokens"], how["sample_seed"] = rewind.sample_tokens, rewind.sample_seed
    return how


def _differences(old: Mapping[str, object], new: Mapping[str, object], prefix: str = "") -> list[str]:
    found = []
    for key in sorted(set(old) | set(new)):
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            found += _differences(a, b, f"{prefix}{key}.")
        elif a != b and not (key in ("attack_epochs", "rewind", "probe", "erase", "interchange") and None in (a, b)):
            found.append(f"{prefix}{key} (there {a!r}, here {b!r})")
    return found


def _merged(old: DesignData, new: DesignData) -> DesignData:
    """The union of what was asked before and now, for the report; lists keep their order, new members last."""
    merged: Any = dict(new)
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
