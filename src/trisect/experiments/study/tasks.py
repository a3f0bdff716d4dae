"""Tasks: the pieces of a study that a worker takes on, and what it does with each."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
from torch import Tensor

from trisect.claims import REVISION, claims_hash
from trisect.core.files import digest, write_json
from trisect.core.json_text import Json
from trisect.core.methods import ON_TRAIN
from trisect.core.processor import processor
from trisect.core.schema import record
from trisect.core.site import Site
from trisect.core.spec import Run, plain, read_run
from trisect.core.study_data import EraseData, HowData, InterchangeData, ProbeData, RewindData, RunData
from trisect.engine.devices import check_narrow
from trisect.engine.jobs import JobDesk, job
from trisect.experiments.study.ablating import ablate
from trisect.experiments.study.erasing import erase
from trisect.experiments.study.evaluation import EvaluationData
from trisect.experiments.study.interchanging import change_one, interchange
from trisect.experiments.study.probing import probe
from trisect.experiments.study.rewinding import curve_data, rewind
from trisect.lab.folder import Folder
from trisect.lab.runs import FORMAT, epoch_weights, read_finished, weights
from trisect.lab.versions import versions
from trisect.lm.edited import parameters_of
from trisect.lm.feed import Piece, evaluation_pieces
from trisect.lm.matmul import check_numerics, fast_products, numerics, one_thread
from trisect.lm.rewind import parts_of, self_only_loss
from trisect.lm.snapshots import write_snapshot
from trisect.lm.train import Progress, RunFiles, train_fleet
from trisect.text.corpus import Corpus, unigram_loss
from trisect.text.worlds import world_of


@dataclass(frozen=True)
class Task:
    """One piece of work: train a fleet, or evaluate one trained run.

    A baseline is evaluated with its attention cut, one site rewound or replaced by its mean, or a label erased at a site; it
    and attacked runs are probed for a label. `runs` are a fleet's run ids, or the one; `seconds` is the expected cost on one core.
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
    return f"Delete {path} and call 'trisect study' again: only this is then done again."


def fleet_name(runs: tuple[str, ...]) -> str:
    """A short name that is a function of the fleet's members."""
    return digest("\n".join(runs), 6)


def is_done(task: Task, folder: Folder) -> bool:
    """Whether all that the task leaves behind is there."""
    return all(path.exists() for path in left_by(task, folder))


def left_by(task: Task, folder: Folder) -> list[Path]:
    """The files that say that a task is done."""
    if task.kind == "train":
        return [folder.run(run) for run in task.runs]
    return [folder.evaluation(task.runs[0], task.kind, task.site, task.label)]


@record
class StudyJob:
    """A task as a worker reads it: the statements of its runs by id, and what the study's ledger says of such tasks.

    `rewound` are the sites that the study rewinds: of their matrices the weights of every epoch are kept. `how` is the
    ledger's statement of evaluations of the task's kind, `numerics` what trained the runs that are finished.
    """

    kind: str
    runs: tuple[str, ...]
    site: str
    label: str
    statements: dict[str, RunData]
    rewound: tuple[str, ...]
    how: HowData | None
    device: str
    precision: str
    numerics: str | None = None


@job
def execute(asked: StudyJob, desk: JobDesk) -> None:
    """Do one task; its files lie in the scratch folder as they lie in the study's."""
    folder, corpus = Folder(desk.scratch), desk.read("corpus", Corpus.load)
    runs = [read_run(asked.statements[i]) for i in asked.runs]
    with one_thread(), fast_products() as products:
        if asked.kind == "train":
            _train(asked, folder, runs, corpus, desk, products)
        else:
            began = time.monotonic()
            body = _evaluate(asked, folder, runs[0], corpus)
            body["kind"], body["site"], body["label"] = asked.kind, asked.site, asked.label
            body["wall_seconds"] = time.monotonic() - began
            write_json(folder.evaluation(runs[0].id, asked.kind, asked.site, asked.label), body)


def _train(asked: StudyJob, folder: Folder, runs: list[Run], corpus: Corpus, desk: JobDesk, products: str) -> None:
    check_narrow(asked.device, asked.precision)
    how = numerics(asked.device, asked.precision, products)
    check_numerics(asked.numerics, how)
    kept = {slot: folder.epochs(run.id) for slot, run in enumerate(runs) if run.edit is None}
    parts = tuple(dict.fromkeys(("in", *parts_of([Site.parse(s) for s in asked.rewound], runs[0].model))))
    checkpoint, epoch = folder.checkpoint(fleet_name(asked.runs)), [0]

    def progress(p: Progress) -> None:
        if p.epoch != epoch[0]:  # the first step after a checkpoint
            epoch[0] = p.epoch
            desk.keep()
        desk.say(p.done / p.total, f"epoch {p.epoch}, loss {p.loss_nats:.3f}" if p.loss_nats is not None else "")

    outcomes = train_fleet(
        runs,
        corpus,
        RunFiles(checkpoint, kept, parts, how),
        asked.device,
        progress,
        asked.precision,
    )
    for run, outcome in zip(runs, outcomes, strict=True):
        write_snapshot(folder.final(run.id), outcome.final, {"run": run.id})
        body = {
            "format": FORMAT,
            "spec": plain(run),
            "status": outcome.status,
            "diverged_step": outcome.diverged_step,
            "parameters": parameters_of(run.model, len(corpus.vocabulary), run.edit),
            "versions": versions(),
            "claims_hash": claims_hash(),
            "revision": REVISION,
            "device": asked.device,
            "precision": asked.precision,
            "products": products,
            "numerics": how,
            "processor": processor(),
            "recorded": outcome.recorded,
            "wall_seconds": outcome.wall_seconds,
            "metrics": outcome.rows,
        }
        write_json(folder.run(run.id), body)
    checkpoint.unlink(missing_ok=True)  # nobody goes on from it


def _evaluate(task: StudyJob, folder: Folder, run: Run, corpus: Corpus) -> EvaluationData:
    if read_finished(folder, run.id)["status"] == "diverged":
        return {"diverged": True}  # its last weights mean nothing, and the study goes on
    bare = weights(folder, run.id, "final.safetensors", task.device)
    if task.kind in ("probe", "erase"):
        return _labelled(task, run, bare, corpus)
    final = {n: v[None] for n, v in bare.items()}
    pieces = {s: evaluation_pieces(corpus, run.training, s, (), task.device) for s in ("train", "valid")}
    if task.kind == "cut":
        cut = {s: self_only_loss(final, run.model, p) for s, p in pieces.items()}
        found = {s: curve_data([0.0], c.loss_nats, c.accuracy, c.n) for s, c in cut.items()}
        unigram = {s: unigram_loss(corpus, _targets(p)) for s, p in pieces.items()}
        return {"train": found["train"], "valid": found["valid"], "unigram": unigram}
    site = Site.parse(task.site)
    if task.kind == "ablate":
        return {"rows": [row._asdict() for row in ablate(bare, run.model, site, pieces)]}
    if task.kind == "interchange":
        return {"rows": _interchanged(run, bare, corpus, site, cast("InterchangeData", task.how)["pairs"])}
    epochs = epoch_weights(folder, run.id, run.training.epochs)
    convex, how = task.kind == "rewind", cast("RewindData", task.how)
    stored = [weights(folder, run.id, e, task.device) for e in epochs[: 1 if convex else None]]
    return rewind(run, site, bare, stored, convex, pieces, how)


def _labelled(task: StudyJob, run: Run, final: dict[str, Tensor], corpus: Corpus) -> EvaluationData:
    """Rows of the table `sites` about one run: probes of a label at every site, or a label erased at one."""
    if task.kind == "probe":
        how = cast("ProbeData", task.how)
        sites = [Site.parse(s) for s in how["sites"] or _everywhere(run)]
        found = probe(
            final,
            run.model,
            corpus,
            run.training,
            task.label,
            how["kinds"],
            sites,
            run.seed,
            fitted=how.get("fitted") or ON_TRAIN,
            maps=how.get("random_maps", 0),
        )
    else:
        site, taken = Site.parse(task.site), cast("EraseData", task.how)
        fitted, shrinkage = taken.get("fitted") or ON_TRAIN, taken.get("shrinkage", True)
        found = erase(
            final,
            run.model,
            corpus,
            run.training,
            site,
            task.label,
            taken["draws"],
            run.seed,
            fitted=fitted,
            shrinkage=shrinkage,
        )
    return {"rows": [row._asdict() | {"label": task.label} for row in found]}


def _interchanged(run: Run, final: dict[str, Tensor], corpus: Corpus, site: Site, count: int) -> list[dict[str, Json]]:
    """Rows of the table `sites`: what donors that differ in everything change, and those that differ in one attribute."""
    world, words = world_of(corpus), corpus.vocabulary
    whole = interchange(final, run.model, words, site, world.pairs(count, run.seed))
    each = {c: change_one(final, run.model, words, site, world.near_pairs(count, run.seed, c)) for c in world.columns}
    return [row._asdict() for row in whole] + [row._asdict() | {"label": c} for c, row in each.items()]


def _everywhere(run: Run) -> list[str]:
    return [f"{c}@{n}" for n in range(1, run.model.layers + 1) for c in ("q", "k", "v")]


def _targets(pieces: list[Piece]) -> np.ndarray:
    return np.concatenate([piece.gold.cpu().numpy() for piece in pieces])
