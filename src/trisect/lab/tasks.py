"""Tasks: the pieces of a study that a worker takes on, and what it does with each."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from trisect.claims import claims_hash
from trisect.core.errors import DamagedFileError
from trisect.core.files import digest, read_json, write_json
from trisect.core.site import Site
from trisect.core.spec import Run, plain, read_run
from trisect.lab.folder import Folder
from trisect.lab.versions import versions
from trisect.lm.feed import Piece, evaluation_pieces
from trisect.lm.fleet import size
from trisect.lm.rewind import Curve, blend, evaluate_variants, self_only_loss, stages
from trisect.lm.snapshots import read_snapshot, write_snapshot
from trisect.lm.train import Files, train_fleet
from trisect.measure.curves import adaptive_curves, exact_curves
from trisect.text.corpus import Corpus, unigram_loss

Emit = Callable[[float, str], None]  # share done, and a few words on where it is


@dataclass(frozen=True)
class Task:
    """One piece of work: train a fleet, or evaluate a baseline with its attention cut or one site rewound.

    `runs` are a fleet's run ids, or the one baseline; `seconds` is the expected cost on one core.
    """

    kind: str
    runs: tuple[str, ...]
    site: str = ""
    seconds: float = 1.0

    @property
    def title(self) -> str:
        """What a progress line calls it."""
        seed = self.runs[0].rsplit("-", 2)[1]
        if self.kind == "train":
            return f"train {len(self.runs)} runs from {self.runs[0].rsplit('-', 2)[0]} ({seed})"
        return f"{self.kind} {self.site} ({seed})"


def read_finished(folder: Folder, run: str) -> dict[str, Any]:
    """A finished run's statement and rows; raises DamagedFileError naming what to delete."""
    path = folder.run(run)
    return read_json(path, f"Delete {path.parent} and call 'trisect study' again: its fleet is then trained anew.")


def fleet_name(runs: tuple[str, ...]) -> str:
    """A short name that is a function of the fleet's members."""
    return digest("\n".join(runs), 6)


def is_done(task: Task, folder: Folder) -> bool:
    """Whether all that the task leaves behind is there."""
    if task.kind == "train":
        return all(folder.run(run).exists() for run in task.runs)
    return folder.evaluation(task.runs[0], task.kind, task.site).exists()


def execute(task: Task, folder: Folder, runs: dict[str, Any], corpus: Corpus, device: str, emit: Emit) -> None:
    """Do one task and leave its files; `runs` are the ledger's statements by id."""
    if task.kind == "train":
        _train(task, folder, [read_run(runs[i]) for i in task.runs], corpus, device, emit)
    else:
        began = time.monotonic()
        body = _evaluate(task, folder, read_run(runs[task.runs[0]]), corpus, device)
        body["wall_seconds"] = time.monotonic() - began
        write_json(folder.evaluation(task.runs[0], task.kind, task.site), body)


def _train(task: Task, folder: Folder, runs: list[Run], corpus: Corpus, device: str, emit: Emit) -> None:
    checkpoint = folder.checkpoint(fleet_name(task.runs))
    kept = {slot: folder.epochs(run.id) for slot, run in enumerate(runs) if run.edit is None}
    outcomes = train_fleet(
        runs,
        corpus,
        Files(checkpoint, kept),
        device,
        lambda p: emit(p.done / p.total, f"epoch {p.epoch}, loss {p.loss_nats:.3f}" if p.loss_nats is not None else ""),
    )
    for run, outcome in zip(runs, outcomes, strict=True):
        # evaluations belong to these very weights: none may outlive a baseline that is trained anew
        shutil.rmtree(folder.evaluation(run.id, "cut", "").parent, ignore_errors=True)
        write_snapshot(folder.final(run.id), outcome.final, {"run": run.id})
        body = {
            "spec": plain(run),
            "status": outcome.status,
            "diverged_step": outcome.diverged_step,
            "parameters": size(run.model, len(corpus.vocabulary)),
            "versions": versions(),
            "claims_hash": claims_hash(),
            "device": device,
            "wall_seconds": outcome.wall_seconds,
            "metrics": outcome.rows,
        }
        write_json(folder.run(run.id), body)
    checkpoint.unlink(missing_ok=True)


def _weights(folder: Folder, run: str, file: str, device: str) -> dict[str, Tensor]:
    """A trained baseline's parameters or one epoch's in-projections, without a member axis."""
    base = folder.run(run).parent
    todo = f"Delete the folder {base} and call the same command again: its fleet is then trained anew."
    return {n: v.to(device) for n, v in read_snapshot(base / file, todo).tensors.items()}


def _evaluate(task: Task, folder: Folder, run: Run, corpus: Corpus, device: str) -> dict[str, Any]:
    if read_finished(folder, run.id)["status"] == "diverged":
        return {"diverged": True}  # its last weights mean nothing, and the study goes on
    bare = _weights(folder, run.id, "final.safetensors", device)
    final = {n: v[None] for n, v in bare.items()}
    pieces = {s: evaluation_pieces(corpus, run.training, s, (), device) for s in ("train", "valid")}
    if task.kind == "cut":
        found = {s: _rows([0.0], self_only_loss(final, run.model, p)) for s, p in pieces.items()}
        return found | {"unigram": {s: unigram_loss(corpus, _targets(p)) for s, p in pieces.items()}}
    site = Site.parse(task.site)
    epochs = sorted(p.name for p in folder.epochs(run.id).glob("*.safetensors"))
    if len(epochs) != run.training.epochs + 1:
        raise DamagedFileError(
            f"The site weights of {run.id} are incomplete.",
            f"There are {len(epochs)} of {run.training.epochs + 1} epochs.",
            f"Delete the folder {folder.run(run.id).parent} and call the same command again: its fleet is then trained anew.",
        )
    if task.kind == "rewind":
        how = read_json(folder.ledger, "Run the study anew in another folder.")["base"]["rewind"]
        first = _weights(folder, run.id, f"epochs/{epochs[0]}", device)
        return _convex(run, site, bare, first, pieces, how)
    at = [float(i) for i in range(len(epochs))]
    variants = stages([_weights(folder, run.id, f"epochs/{e}", device) for e in epochs], bare, site)
    return {s: _rows(at, evaluate_variants(final, run.model, p, site, variants, len(at))) for s, p in pieces.items()}


def _convex(
    run: Run,
    site: Site,
    bare: dict[str, Tensor],
    first: dict[str, Tensor],
    pieces: dict[str, list[Piece]],
    how: dict[str, Any],
) -> dict[str, Any]:
    """Loss and accuracy along (1 - α)·θ⁰ + α·θᶠ, exactly or between self-checking nodes; `how` is the ledger's."""
    final = {n: v[None] for n, v in bare.items()}
    grid = np.arange(how["points"]) / (how["points"] - 1)

    def evaluate(alphas: list[float]) -> np.ndarray:
        found = [
            evaluate_variants(final, run.model, p, site, blend(first, bare, site, alphas), len(alphas))
            for p in pieces.values()
        ]
        return np.stack([c.loss_nats for c in found] + [c.accuracy for c in found])

    curves = (
        exact_curves(evaluate, grid)
        if how["mode"] == "exact"
        else adaptive_curves(evaluate, grid, len(pieces), how["epsilon"])
    )
    body: dict[str, Any] = {"check_nats": curves.check, "evaluations": curves.evaluations}
    for i, (split, part) in enumerate(pieces.items()):
        n = sum(p.targets.numel() for p in part)
        body[split] = _rows(grid.tolist(), Curve(curves.values[i], curves.values[i + len(pieces)], n))
    return body


def _targets(pieces: list[Piece]) -> np.ndarray:
    return np.concatenate([piece.targets.cpu().numpy() for piece in pieces])


def _rows(at: list[float], curve: Curve) -> dict[str, Any]:
    losses, accuracies = (
        [float(v) if np.isfinite(v) else None for v in vs] for vs in (curve.loss_nats, curve.accuracy)
    )
    return {"at": at, "loss_nats": losses, "accuracy": accuracies, "n": curve.n}
