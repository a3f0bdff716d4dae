"""Tasks: the pieces of a study that a worker takes on, and what it does with each."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from trisect.claims import claims_hash
from trisect.core.files import digest, write_json
from trisect.core.site import Site
from trisect.core.spec import Run, plain, read_run
from trisect.engine.worker import Emit
from trisect.experiments.study.erasing import erase
from trisect.experiments.study.probing import probe
from trisect.experiments.study.rewinding import curve_data, rewind
from trisect.lab.folder import Folder
from trisect.lab.runs import FORMAT, epoch_weights, read_finished, weights
from trisect.lab.versions import versions
from trisect.lm.edited import parameters_of
from trisect.lm.feed import Piece, evaluation_pieces
from trisect.lm.rewind import parts_of, self_only_loss
from trisect.lm.snapshots import write_snapshot
from trisect.lm.train import Files, train_fleet
from trisect.text.corpus import Corpus, unigram_loss


@dataclass(frozen=True)
class Task:
    """One piece of work: train a fleet, or evaluate one trained run.

    A baseline is evaluated with its attention cut, one site rewound, or a label erased at a site; it and attacked runs
    are probed for a label. `runs` are a fleet's run ids, or the one; `seconds` is the expected cost on one core.
    """

    kind: str
    runs: tuple[str, ...]
    site: str = ""
    seconds: float = 1.0
    label: str = ""

    @property
    def title(self) -> str:
        """What a progress line calls it."""
        seed = self.runs[0].rsplit("-", 2)[1]
        if self.kind == "train":
            return f"train {len(self.runs)} runs from {self.runs[0].rsplit('-', 2)[0]} ({seed})"
        return f"{' '.join(filter(None, (self.kind, self.label, self.site)))} ({seed})"


def evaluation_advice(path: Path) -> str:
    """What to do about a damaged evaluation."""
    return f"Delete {path} and call 'trisect study' again: only this is then done anew."


def fleet_name(runs: tuple[str, ...]) -> str:
    """A short name that is a function of the fleet's members."""
    return digest("\n".join(runs), 6)


def is_done(task: Task, folder: Folder) -> bool:
    """Whether all that the task leaves behind is there."""
    if task.kind == "train":
        return all(folder.run(run).exists() for run in task.runs)
    return folder.evaluation(task.runs[0], task.kind, task.site, task.label).exists()


def execute(
    task: Task,
    folder: Folder,
    runs: dict[str, Any],
    corpus: Corpus,
    device: str,
    emit: Emit,
    precision: str = "float32",
) -> None:
    """Do one task and leave its files; `runs` are the ledger's statements by id."""
    if task.kind == "train":
        _train(task, folder, [read_run(runs[i]) for i in task.runs], corpus, device, emit, precision)
    else:
        began = time.monotonic()
        body = _evaluate(task, folder, read_run(runs[task.runs[0]]), corpus, device)
        body |= {"kind": task.kind, "site": task.site, "label": task.label, "wall_seconds": time.monotonic() - began}
        write_json(folder.evaluation(task.runs[0], task.kind, task.site, task.label), body)


def _train(
    task: Task, folder: Folder, runs: list[Run], corpus: Corpus, device: str, emit: Emit, precision: str
) -> None:
    checkpoint = folder.checkpoint(fleet_name(task.runs))
    kept = {slot: folder.epochs(run.id) for slot, run in enumerate(runs) if run.edit is None}
    if any(not (epochs / "0000.safetensors").exists() for epochs in kept.values()):
        checkpoint.unlink(missing_ok=True)  # what came before it is gone, say since a message asked to delete it
    outcomes = train_fleet(
        runs,
        corpus,
        Files(checkpoint, kept, tuple(dict.fromkeys(("in", *parts_of(_rewound(folder), runs[0].model))))),
        device,
        lambda p: emit(p.done / p.total, f"epoch {p.epoch}, loss {p.loss_nats:.3f}" if p.loss_nats is not None else ""),
        precision,
    )
    for run, outcome in zip(runs, outcomes, strict=True):
        # evaluations belong to these very weights: none may outlive a baseline that is trained anew
        shutil.rmtree(folder.evaluations(run.id), ignore_errors=True)
        write_snapshot(folder.final(run.id), outcome.final, {"run": run.id})
        body = {
            "format": FORMAT,
            "spec": plain(run),
            "status": outcome.status,
            "diverged_step": outcome.diverged_step,
            "parameters": parameters_of(run.model, len(corpus.vocabulary), run.edit),
            "versions": versions(),
            "claims_hash": claims_hash(),
            "device": device,
            "precision": precision,
            "recorded": outcome.recorded,
            "wall_seconds": outcome.wall_seconds,
            "metrics": outcome.rows,
        }
        write_json(folder.run(run.id), body)
    checkpoint.unlink(missing_ok=True)


def _rewound(folder: Folder) -> list[Site]:
    """The sites that the study rewinds: what their weights are is kept of every epoch."""
    rewind = folder.read_ledger()["experiment"]["rewind"]
    return [Site.parse(site) for site in rewind["sites"]] if rewind else []


def _evaluate(task: Task, folder: Folder, run: Run, corpus: Corpus, device: str) -> dict[str, Any]:
    if read_finished(folder, run.id)["status"] == "diverged":
        return {"diverged": True}  # its last weights mean nothing, and the study goes on
    bare = weights(folder, run.id, "final.safetensors", device)
    if task.kind in ("probe", "erase"):
        return _listened(task, run, bare, folder.read_ledger()["base"][task.kind], corpus)
    final = {n: v[None] for n, v in bare.items()}
    pieces = {s: evaluation_pieces(corpus, run.training, s, (), device) for s in ("train", "valid")}
    if task.kind == "cut":
        cut = {s: self_only_loss(final, run.model, p) for s, p in pieces.items()}
        found = {s: curve_data([0.0], c.loss_nats, c.accuracy, c.n) for s, c in cut.items()}
        return found | {"unigram": {s: unigram_loss(corpus, _targets(p)) for s, p in pieces.items()}}
    site = Site.parse(task.site)
    epochs = epoch_weights(folder, run.id, run.training.epochs)
    convex, how = task.kind == "rewind", folder.read_ledger()["base"]["rewind"]
    stored = [weights(folder, run.id, e, device) for e in epochs[: 1 if convex else None]]
    return rewind(run, site, bare, stored, convex, pieces, how)


def _listened(task: Task, run: Run, final: dict[str, Tensor], how: Any, corpus: Corpus) -> dict[str, Any]:
    """Rows of the table `sites` about one run: probes of a label at every site, or a label erased at one."""
    if task.kind == "probe":
        sites = [Site.parse(s) for s in how["sites"] or _everywhere(run)]
        found = probe(final, run.model, corpus, run.training, task.label, how["kinds"], sites, run.seed)
    else:
        site = Site.parse(task.site)
        found = erase(final, run.model, corpus, run.training, site, task.label, how["draws"], run.seed)
    return {"rows": [row._asdict() | {"label": task.label} for row in found]}


def _everywhere(run: Run) -> list[str]:
    return [f"{c}@{n}" for n in range(1, run.model.layers + 1) for c in ("q", "k", "v")]


def _targets(pieces: list[Piece]) -> np.ndarray:
    return np.concatenate([piece.targets.cpu().numpy() for piece in pieces])
