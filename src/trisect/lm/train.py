"""The one training loop: runs in, rows and site snapshots out.

All runs of a fleet share seed, initialisation, batches and dropout masks, so that a member differs from the baseline
by its edit alone. What would mix members is forbidden here: losses are summed over F, the gradient norm is clipped for
each member by itself, and randomness is a function of (seed, step).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, assert_never

import torch
from torch import Tensor

from trisect.core.spec import Run
from trisect.lm.descent import Descent
from trisect.lm.edited import Edited
from trisect.lm.edits.base import Objective, Trained, TrainingEdit, trained
from trisect.lm.evaluation import Found, evaluate
from trisect.lm.feed import Piece, Windows, evaluation_pieces
from trisect.lm.fleet import Block, Dropout, add_rows, embedding_rows, forward, initial, layout, number, views
from trisect.lm.loss import Scores, loss_and_gradients, workspace
from trisect.lm.matmul import check_numerics
from trisect.lm.narrow import NarrowDecoder
from trisect.lm.pages import keep_freed_memory
from trisect.lm.places import blocks_of
from trisect.lm.recorded import RecordedWindows
from trisect.lm.replay import CudaGraph, Recorder, Replay
from trisect.lm.running import RunningMeans, Stepped
from trisect.lm.snapshots import read_snapshot, write_snapshot
from trisect.text.corpus import Corpus, steps

AHEAD = 50  # steps that a GPU is given before it is waited for
Row = tuple[int, str, str, float]  # epoch, split, name, value


class Outcome(NamedTuple):
    """How one run ended, its metrics rows, its final parameters, its share of the fleet's seconds, and whether its
    passes were recorded and replayed (on a GPU).
    """

    status: str
    diverged_step: int | None
    rows: list[Row]
    final: dict[str, Tensor]
    wall_seconds: float
    recorded: bool


class Progress(NamedTuple):
    """Where a fleet is: steps done of all, the epoch, and the running mean loss of its first member."""

    done: int
    total: int
    epoch: int
    loss_nats: float | None


class RunFiles(NamedTuple):
    """Where a fleet keeps its checkpoint, and a baseline its site weights of every epoch (a folder).

    `parts` are the matrices of each layer that are kept so (see `rewind.parts_of`). `numerics` is what trains them, noted
    in the checkpoint.
    """

    checkpoint: Path
    epochs: Mapping[int, Path]  # slot -> folder
    parts: tuple[str, ...] = ("in",)
    numerics: str | None = None


class Trainer:
    """One fleet in training; `step` advances it by one window, `evaluate` measures it."""

    def __init__(
        self,
        runs: Sequence[Run],
        corpus: Corpus,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        products: torch.dtype | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        first = runs[0]
        assert all(
            (r.model, r.training, r.seed, r.corpus) == (first.model, first.training, first.seed, first.corpus)
            for r in runs
        )
        self.runs, self.corpus, self.device = tuple(runs), corpus, device
        self.model, self.training, self.seed = first.model, first.training, first.seed
        self.vocabulary = len(corpus.vocabulary)
        self.places = layout(self.model, self.vocabulary)
        start = initial(self.model, self.vocabulary, self.seed).to(device, dtype)
        self.flat = start.repeat(len(runs), 1)
        self.products = products
        self.narrow = None if products is None else NarrowDecoder(products)
        self.draw = torch.Generator(device)
        self.gradient = torch.zeros_like(self.flat)
        self.gradients = views(self.gradient, self.places)
        self.parameters = views(self.flat, self.places)
        # of these the gradient is taken; what they hold is changed in place by every update
        self.leaves = {n: v.detach().requires_grad_() for n, v in self.parameters.items() if _in_body(n)}
        self.descent = Descent(self.flat, self.training)
        edits = {i: trained(r.edit) for i, r in enumerate(runs) if r.edit is not None}
        self.edited = Edited(edits, self.model, self.places, self.flat)
        self.objectives = _objectives(edits, Trained(self.model, corpus, self.seed, device, dtype))
        self.labels = tuple(dict.fromkeys(column for o in self.objectives for column in o.columns))
        self.keep = blocks_of((site for o in self.objectives for site in o.sites), self.model)
        made = self.labels, self.objectives, self.draw, self.gradient, self._backward
        self.recorded = None if recorder is None else RecordedWindows(recorder, *made)
        self.dead: dict[int, int] = {}
        self.steps_done = 0
        self.steps_per_epoch = steps(corpus.splits["train"], self.training.columns, self.training.window)
        self.windows = Windows(corpus, self.training, self.labels, device)
        self.ahead = AHEAD if self.flat.is_cuda else 1
        self.pieces = {s: evaluation_pieces(corpus, self.training, s, self.labels, device) for s in ("train", "valid")}
        largest = max(p.targets.numel() for own in self.pieces.values() for p in own)
        largest = max(largest, self.training.columns * self.training.window)
        self.work = workspace(len(runs) * largest, self.vocabulary, self.flat)
        keep_freed_memory()

    def stretch(self, count: int) -> list[Stepped]:
        """Some steps; where they are several, none waits for the device: whether a member diverged is looked at once, at
        their end, and if one did they are done again, looked at one by one.
        """
        if count == 1:
            return [self.step()]
        before, norms = {name: tensor.clone() for name, tensor in self._state().items()}, []
        found = [self.step(norms) for _ in range(count)]
        if bool(torch.isfinite(torch.stack(norms)).all()):
            return found
        self._restore(before)
        self.steps_done -= count
        return [self.step() for _ in range(count)]

    def step(self, norms: list[Tensor] | None = None) -> Stepped:
        """One window: attackers first, then the model against the updated attackers (science A4).

        Members that diverged are held; where `norms` is given, those of gradients are added to it instead, unseen.
        """
        epoch, window = divmod(self.steps_done, self.steps_per_epoch)
        piece = self.windows[window]
        self.draw.manual_seed(number("dropout", self.seed, self.steps_done))
        said: dict[int, Mapping[str, Tensor | float]] = {}
        if self.recorded is not None and self.recorded.fits(piece):
            scores, said = self.recorded(piece, number("dropout", self.seed, self.steps_done))
        else:
            scores = self._backward(piece, said)
        loss, correct = scores.loss.mean(1), scores.correct.double().mean(1)
        self._update(epoch, norms)
        return Stepped(loss, correct, said)

    @property
    def replay(self) -> Replay | None:
        """The recorded pass, where one was tried."""
        return None if self.recorded is None else self.recorded.replay

    def _backward(self, piece: Piece, said: dict[int, Mapping[str, Tensor | float]]) -> Scores:
        """Fill `gradient` with that of the loss on one window; attackers learn on the way, and `said` notes how they did."""
        parameters, leaves = self.parameters, self.leaves
        rows = embedding_rows(parameters["embed.weight"], piece.inputs).requires_grad_()
        drop = Dropout(self.model.dropout, self.draw)
        with torch.autocast("cuda", self.products, self.products is not None and self.flat.is_cuda):
            passed = forward(leaves, piece.inputs, self.model, drop, blocks=self.keep, rows=rows)
        hidden = passed.hidden.detach().flatten(1, 2)
        w, b = parameters["decoder.weight"], parameters["decoder.bias"]
        into = self.gradients["decoder.weight"], self.gradients["decoder.bias"]
        counted = piece.counted(hidden)
        if self.narrow is None:
            scores, decoder = loss_and_gradients(counted, w, b, piece.gold, into, self.work)
        else:
            scores, decoder = self.narrow(counted, w, b, piece.gold, into)
        # the chain rule at the sites: d(-λ·CE)/dx enters where x is, so one backward pass carries loss_total
        kept = {block: x.detach() for block, x in passed.kept.items()}
        pushes = {block: torch.zeros_like(x) for block, x in kept.items()}
        confined = [site for o in self.objectives if o.reach == "site" for site in o.sites]
        near = {block: torch.zeros_like(kept[block]) for block in blocks_of(confined, self.model)}
        for objective in self.objectives:
            match objective.reach:
                case "site":
                    into = near
                case "below":
                    into = pushes
                case other:
                    assert_never(other)
            said |= objective.push(kept, piece.spoken(objective.columns), piece.labels, into)
        own = [_reach_site(passed.kept[block], near[block], leaves, block) for block in near]
        found = torch.autograd.grad(
            [passed.hidden, *passed.kept.values()],
            [rows, *leaves.values()],
            [_spread(decoder.hidden, hidden, piece).view_as(passed.hidden), *(pushes[block] for block in passed.kept)],
        )
        add_rows(self.gradients["embed.weight"].zero_(), piece.inputs, found[0])
        into = [self.gradients[name] for name in leaves]
        torch.ops.aten._foreach_copy_(into, list(found[1:]))  # one kernel on a GPU, not one a parameter
        for name, gradient in (pair for some in own for pair in some.items()):
            self.gradients[name] += gradient
        return scores

    def _update(self, epoch: int, unseen: list[Tensor] | None) -> None:
        """Clip each member by its own norm, mark those that diverged, step, and put held values back."""
        flat = self.gradient
        self.edited.gather(flat)
        norms = torch.linalg.vector_norm(flat, dim=1)
        if unseen is not None:
            unseen.append(norms)
        else:
            for slot in (~torch.isfinite(norms)).nonzero()[:, 0].tolist():
                self.hold_diverged(slot)
                flat[slot] = 0.0
                norms[slot] = 0.0
        share = (self.training.clip / (norms + 1e-6)).clamp(max=1.0)
        warm = min(1.0, (self.steps_done + 1) / max(1, self.training.warmup))
        self.descent.step(flat, share, self.training.rate * self.training.decay**epoch * warm, unseen is None)
        self.edited.restore()
        self.steps_done += 1

    def hold_diverged(self, slot: int) -> None:
        """Hold a member that diverged at its last weights, from the step under way."""
        if slot not in self.dead:
            self.dead[slot] = self.steps_done + 1
            self.edited.hold_diverged(slot)

    def start_rows(self) -> Found:
        """(split, name, value) by slot, of what is noted once before training."""
        found: Found = {}
        for objective in self.objectives:
            for slot, rows in objective.start_rows().items():
                found.setdefault(slot, []).extend(rows)
        return found

    def evaluate(self) -> Found:
        """(split, name, value) by slot, in evaluation mode and float32 or wider (see lm/evaluation.py)."""
        return evaluate(self.parameters, self.model, self.pieces, self.objectives, self.keep, self.work)

    def save(self, path: Path, note: object) -> None:
        """Write everything that the next epoch depends on."""
        write_snapshot(
            path,
            self._state(),
            {"steps": self.steps_done, "dead": sorted(self.dead.items()), "note": note},
            durable=False,
        )

    def load(self, path: Path) -> object:
        """Go on from what `save` wrote; returns its note."""
        tensors, note = read_snapshot(
            path, f"Delete {path} and call 'trisect study' again: this fleet then starts again."
        )
        self._restore(tensors)
        self.steps_done = note["steps"]
        for slot, step in note["dead"]:
            self.hold_diverged(slot)
            self.dead[slot] = step
        return note["note"]

    def _state(self) -> dict[str, Tensor]:
        tensors = {"flat": self.flat} | self.descent.state()
        for i, objective in enumerate(self.objectives):
            tensors |= {f"attackers.{i}.{k}": v for k, v in objective.state().items()}
        return tensors

    def _restore(self, tensors: Mapping[str, Tensor]) -> None:
        self.flat.copy_(tensors["flat"])
        self.descent.restore(tensors)
        for i, objective in enumerate(self.objectives):
            prefix = f"attackers.{i}."
            objective.restore({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})


def _reach_site(x: Tensor, push: Tensor, leaves: Mapping[str, Tensor], block: Block) -> dict[str, Tensor]:
    """Gradient of the matrices of one layer that make a block; what enters them is held still."""
    kinds = ("up", "down") if block[0] == "ffn" else ("in", "out")
    names = [f"layers.{block[1]}.{kind}.{part}" for kind in kinds for part in ("weight", "bias")]
    found = torch.autograd.grad(x, [leaves[name] for name in names], push, retain_graph=True, allow_unused=True)
    return {name: gradient for name, gradient in zip(names, found, strict=True) if gradient is not None}


def _spread(gradient: Tensor, hidden: Tensor, piece: Piece) -> Tensor:
    """The gradient of the states that are counted as one of all states."""
    if piece.scored is None:
        return gradient
    whole = torch.zeros_like(hidden)
    whole[:, piece.scored] = gradient
    return whole


def _in_body(name: str) -> bool:
    return not name.startswith(("embed.", "decoder."))


def _objectives(edits: Mapping[int, TrainingEdit], fleet: Trained) -> list[Objective]:
    """What members are trained on beside the language loss, kind by kind in order of slot."""
    kinds = dict.fromkeys(type(edit) for edit in edits.values())
    return [objective for kind in kinds for objective in kind.objectives(edits, fleet)]


def train_fleet(
    runs: Sequence[Run],
    corpus: Corpus,
    files: RunFiles,
    device: str = "cpu",
    progress: Callable[[Progress], None] = lambda _: None,
    precision: str = "float32",
) -> list[Outcome]:
    """Train one fleet to its last epoch, from its checkpoint where there is one; an epoch is the unit of resuming."""
    narrow = torch.bfloat16 if precision == "bfloat16" else None
    recorder = CudaGraph() if torch.device(device).type == "cuda" else None
    trainer, began = Trainer(runs, corpus, device, products=narrow, recorder=recorder), time.monotonic()
    rows: list[list[Row]] = [[] for _ in runs]
    epoch, spent = 0, 0.0
    if files.checkpoint.exists():
        note = trainer.load(files.checkpoint)
        assert isinstance(note, dict)
        if files.numerics is not None:
            check_numerics(note.get("numerics"), files.numerics)
        epoch, spent, rows = note["epoch"], note["seconds"], [[tuple(r) for r in own] for own in note["rows"]]
    else:
        _record(rows, 0, trainer, trainer.start_rows())
        _record(rows, 0, trainer, trainer.evaluate())
        _keep_epoch(trainer, files, 0)
    total, per_epoch = trainer.training.epochs * trainer.steps_per_epoch, trainer.steps_per_epoch
    while epoch < trainer.training.epochs and len(trainer.dead) < len(runs):
        running = RunningMeans(len(runs))
        while running.count < per_epoch:
            running.add(trainer.stretch(min(trainer.ahead, per_epoch - running.count)))
            progress(Progress(trainer.steps_done, total, epoch + 1, float(running.loss[0]) / running.count))
        epoch += 1
        _record(rows, epoch, trainer, {i: running.rows(i) for i in range(len(runs))})
        _record(rows, epoch, trainer, trainer.evaluate())
        _keep_epoch(trainer, files, epoch)
        seconds = spent + time.monotonic() - began
        note = {"epoch": epoch, "seconds": seconds, "rows": rows, "numerics": files.numerics}
        trainer.save(files.checkpoint, note)
    seconds = (spent + time.monotonic() - began) / len(runs)
    final = views(trainer.flat, trainer.places)
    return [
        Outcome(
            "diverged" if i in trainer.dead else "finished",
            trainer.dead.get(i),
            rows[i],
            {n: v[i].cpu() for n, v in final.items()},
            seconds,
            trainer.replay is not None and trainer.replay.usable,
        )
        for i in range(len(runs))
    ]


def _record(
    rows: list[list[Row]], epoch: int, trainer: Trainer, found: Mapping[int, list[tuple[str, str, float]]]
) -> None:
    """Add the rows of members that are alive; one with a row that is no number has diverged, and missing stays missing."""
    for slot, values in found.items():
        if any(not math.isfinite(value) for _, _, value in values):
            trainer.hold_diverged(slot)
        if slot not in trainer.dead:
            rows[slot] += [(epoch, *row) for row in values]


def _keep_epoch(trainer: Trainer, files: RunFiles, epoch: int) -> None:
    parameters = views(trainer.flat, trainer.places)
    for slot, folder in files.epochs.items():
        own = {n: parameters[n][slot] for n in trainer.places if n.split(".")[-2] in files.parts}
        write_snapshot(folder / f"{epoch:04d}.safetensors", own, {"epoch": epoch}, durable=False)
