"""The training loop: runs in, rows and site snapshots out.

All runs of a fleet share seed, initialisation, batches and dropout masks, so that a member differs from the baseline
by its edit alone. What would mix members is forbidden here: losses are summed over F, the gradient norm is clipped for
each member by itself, and randomness is a function of (seed, step).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from trisect.core.edits import Edit
from trisect.core.spec import Model, Run, Training
from trisect.lm.feed import Piece, PlacedLabels, Windows, evaluation_pieces, label_positions
from trisect.lm.fleet import (
    Dropout,
    Member,
    Place,
    blocks_of,
    count_parameters,
    derive_seed,
    embedding_rows,
    forward,
    initial,
    layout,
    views,
)
from trisect.lm.loss import NarrowDecoder, Scores, loss_and_gradients, token_scores, workspace
from trisect.lm.matmul import add_at, check_numerics
from trisect.lm.replay import CudaGraph, Recorder, Replay
from trisect.lm.snapshots import read_snapshot, write_snapshot
from trisect.lm.training_edit import Objective, Trained, TrainingEdit, check_trainable
from trisect.text.corpus import Corpus, steps


class _EditedFleet:
    """Ties and frozen values of a fleet; its creation sets the edited members' initial values.

    All members' at once, by places in the flattened parameters: a few operations a step, however many members are edited.
    Each round of ties adds other places to first ones, none of them twice.
    """

    def __init__(
        self,
        edits: Mapping[int, TrainingEdit],
        model: Model,
        places: Mapping[str, Place],
        flat: Float[Tensor, "F P"],
    ) -> None:
        self.flat, wide = flat, flat.shape[1]
        self.diverged: dict[int, Tensor] = {}
        positions, values, ties = [torch.zeros(0, dtype=torch.long)], [flat.new_empty(0)], list[list[Tensor]]()
        for slot, edit in edits.items():
            member = Member(model, places, flat[slot])
            edit.prepare(member)
            positions += [where + slot * wide for where, _ in member.constants]
            values += [value for _, value in member.constants]
            ties += [[where + slot * wide for where in tie] for tie in member.ties]
        self.constants, self.values = torch.cat(positions).to(flat.device), torch.cat(values)
        self.ties: list[tuple[Tensor, Tensor]] = []
        for n in range(1, max(map(len, ties), default=1)):
            pairs = zip(*((tie[0], tie[n]) for tie in ties if len(tie) > n), strict=True)
            first, other = (torch.cat(ends).to(flat.device) for ends in pairs)
            self.ties.append((first, other))
        self._share()

    def hold_member(self, slot: int) -> None:
        """Freeze a whole member at its present values."""
        self.diverged[slot] = self.flat[slot].clone()

    def gather(self, gradient: Float[Tensor, "F P"]) -> None:
        """Reduce a gradient to distinct, trainable parameters, in place: sums at the first place, 0 elsewhere."""
        flat = gradient.view(-1)
        for first, other in self.ties:
            flat.index_copy_(0, first, flat[first] + flat[other])
            flat.index_fill_(0, other, 0.0)
        flat.index_fill_(0, self.constants, 0.0)
        for slot in self.diverged:
            gradient[slot] = 0.0

    def restore(self) -> None:
        """After an update, restore ties and frozen parameters, which decay and momentum would change."""
        self._share()
        self.flat.view(-1).index_copy_(0, self.constants, self.values)
        for slot, value in self.diverged.items():
            self.flat[slot] = value

    def _share(self) -> None:
        flat = self.flat.view(-1)
        for first, other in self.ties:
            flat.index_copy_(0, other, flat[first])


def parameters_of(model: Model, vocabulary: int, edit: Edit | None = None) -> int:
    """The number of distinct parameters that a member with that edit trains: tied ones count once, frozen ones never."""
    total = count_parameters(model, vocabulary)
    if edit is None:
        return total
    member = Member(model, layout(model, vocabulary), torch.zeros(total))
    check_trainable(edit).prepare(member)
    untrained = member.blank()
    for positions in (
        *(where for where, _ in member.constants),
        *(other for _, *rest in member.ties for other in rest),
    ):
        untrained[positions] = True
    return total - int(untrained.sum())


class _StepResult(NamedTuple):
    """Each member's mean loss and accuracy at a step, and values of other objectives by slot and name."""

    loss: Float[Tensor, " F"]
    accuracy: Float[Tensor, " F"]
    notes: Mapping[int, Mapping[str, Tensor]]


class _RunningMeans:
    """Running means over an epoch's steps: with dropout, before each update."""

    def __init__(self, members: int) -> None:
        self.totals = torch.zeros(2, members, dtype=torch.float64)  # of loss and of accuracy
        self.notes: dict[int, dict[str, tuple[float, int]]] = {}
        self.count = 0

    def add(self, steps: list[_StepResult]) -> None:
        """Add several steps; the device is waited for once."""
        for means in torch.stack([torch.stack([s.loss.double(), s.accuracy.double()]) for s in steps]).cpu():
            self.totals += means
        self.count += len(steps)
        notes = [(slot, name, v) for s in steps for slot, values in s.notes.items() for name, v in values.items()]
        numbers = torch.stack([value.double() for _, _, value in notes]).tolist() if notes else ()
        for (slot, name, _), value in zip(notes, numbers, strict=True):
            total, count = self.notes.setdefault(slot, {}).get(name, (0.0, 0))
            self.notes[slot][name] = total + value, count + 1

    def rows(self, slot: int) -> list[tuple[str, str, float]]:
        """(split, name, value) of one member."""
        loss, accuracy = (self.totals[:, slot] / self.count).tolist()
        means = [("loss_nats", loss), ("accuracy", accuracy)]
        means += [(name, total / count) for name, (total, count) in self.notes.get(slot, {}).items()]
        return [("train_running", name, value) for name, value in means]


MAX_FREED_BYTES = 31 * 2**20  # bytes: glibc adapts to freed blocks of at most 32 MiB


def _raise_trim_threshold() -> None:
    """Free an unused block of LARGEST bytes, so that glibc keeps freed blocks up to that size.

    By default every allocation over 128 KiB is a new mapping (mmap) that is unmapped when it is freed, and the top of the heap is
    returned; each page then costs a page fault when it is next written. The threshold follows the largest freed block (mallopt(3)).
    Without effect on other allocators, and on numbers.
    """
    torch.empty(MAX_FREED_BYTES, dtype=torch.uint8)


SlotRows = dict[int, list[tuple[str, str, float]]]  # slot -> (split, name, value)


class _Descent:
    """The optimiser over a fleet's flat parameters; all its rules are elementwise, so members do not interact."""

    def __init__(self, flat: Float[Tensor, "F P"], training: Training) -> None:
        self.flat, self.decay = flat, training.weight_decay
        adamw = training.optimizer == "adamw"
        self.optimizer = torch.optim.AdamW([flat], weight_decay=self.decay, fused=True) if adamw else None

    def step(self, gradient: Float[Tensor, "F P"], share: Float[Tensor, " F"], rate: float, look: bool = True) -> None:
        """Step along each member's `share` of its gradient, which may be changed in place.

        With `look` a share of 1 of all saves work; to look makes a GPU wait.
        """
        if self.optimizer is None:
            if self.decay:
                self.flat.mul_(1 - rate * self.decay)
            self.flat.addcmul_(gradient, (share * -rate)[:, None])
            return
        if not look or bool((share < 1).any()):
            gradient.mul_(share[:, None])
        self.flat.grad = gradient
        self.optimizer.param_groups[0]["lr"] = rate
        self.optimizer.step()


def moments(optimizer: torch.optim.Optimizer | None, flat: Tensor) -> dict[str, Tensor]:
    """An optimiser's state, with names that begin with 'optimizer.'; empty without one."""
    if optimizer is None:
        return {}
    return {f"optimizer.{k}": v for k, v in optimizer.state[flat].items() if isinstance(v, Tensor)}


def restore_moments(optimizer: torch.optim.Optimizer | None, flat: Tensor, state: Mapping[str, Tensor]) -> None:
    """Restore the state of `moments` in place, since a recorded pass writes to the same tensors.

    Before the first step there is nothing, which is the same as zeros.
    """
    if optimizer is None:
        return
    before = {k.removeprefix("optimizer."): v for k, v in state.items() if k.startswith("optimizer.")}
    if flat not in optimizer.state:
        if before:
            optimizer.state[flat] = {k: v.to(flat.device, copy=True) for k, v in before.items()}
        return
    for name, value in optimizer.state[flat].items():
        if name in before:
            value.copy_(before[name])
        else:
            value.zero_()


STEPS_AHEAD = 50  # steps that a GPU is given before it is waited for
Row = tuple[int, str, str, float]  # epoch, split, name, value


class _Outcome(NamedTuple):
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
    """Progress of a fleet: finished and total steps, epoch, and the running mean loss of its first member."""

    done: int
    total: int
    epoch: int
    loss_nats: float | None


class RunFiles(NamedTuple):
    """Paths of a fleet's checkpoint, and of a baseline's site weights of every epoch (a folder).

    `parts` are the matrices of each layer that are kept so (see `rewind.parts_of`). `numerics` is what trains them, noted
    in the checkpoint.
    """

    checkpoint: Path
    epochs: Mapping[int, Path]  # slot -> folder
    parts: tuple[str, ...] = ("in",)
    numerics: str | None = None


class Trainer:
    """Training of one fleet; `step` advances it by one window, `evaluate` measures it."""

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
        assert len({(r.model, r.training, r.seed, r.corpus) for r in runs}) == 1
        self.runs, self.corpus, self.device = tuple(runs), corpus, device
        self.model, self.training, self.seed = first.model, first.training, first.seed
        self.vocabulary = len(corpus.vocabulary)
        self.places = layout(self.model, self.vocabulary)
        self.flat = initial(self.model, self.vocabulary, self.seed).to(device, dtype).repeat(len(runs), 1)
        self.products = products
        self.narrow = None if products is None else NarrowDecoder(products)
        self.draw = torch.Generator(device)
        self.gradient = torch.zeros_like(self.flat)
        self.gradients = views(self.gradient, self.places)
        self.parameters = views(self.flat, self.places)
        # of these the gradient is taken; what they hold is changed in place by every update
        inner = {n: v for n, v in self.parameters.items() if not n.startswith(("embed.", "decoder."))}
        self.leaves = {n: v.detach().requires_grad_() for n, v in inner.items()}
        self.descent = _Descent(self.flat, self.training)
        edits = {i: check_trainable(r.edit) for i, r in enumerate(runs) if r.edit is not None}
        self.edited = _EditedFleet(edits, self.model, self.places, self.flat)
        fleet, kinds = Trained(self.model, corpus, self.seed, device, dtype), dict.fromkeys(map(type, edits.values()))
        self.objectives: list[Objective] = [o for kind in kinds for o in kind.objectives(edits, fleet)]
        self.labels = tuple(dict.fromkeys(column for o in self.objectives for column in o.columns))
        self.keep = blocks_of((site for o in self.objectives for site in o.sites), self.model)
        self.recorder = recorder
        self.replay: Replay | None = None  # the recorded pass, where one was tried
        self._names: list[tuple[int, str]] = []  # slot and name of every value of objectives in it
        self.dead: dict[int, int] = {}  # slot -> the step at which it diverged
        self.steps_done = 0
        self.steps_per_epoch = steps(corpus.splits["train"], self.training.columns, self.training.window)
        self.windows = Windows(corpus, self.training, self.labels, device)
        self.ahead = STEPS_AHEAD if self.flat.is_cuda else 1
        self.pieces = {s: evaluation_pieces(corpus, self.training, s, self.labels, device) for s in ("train", "valid")}
        sizes = [piece.targets.numel() for pieces in self.pieces.values() for piece in pieces]
        largest = max(*sizes, self.training.columns * self.training.window)
        self.work = workspace(len(runs) * largest, self.vocabulary, self.flat)
        _raise_trim_threshold()

    def advance(self, count: int) -> list[_StepResult]:
        """Some steps; where they are several, none waits for the device: whether a member diverged is looked at once, at
        their end, and if one did they are done again, looked at one by one.
        """
        if count == 1:
            return [self.step()]
        before, norms = {name: tensor.clone() for name, tensor in self._state().items()}, []
        results = [self.step(norms) for _ in range(count)]
        if torch.stack(norms).isfinite().all():
            return results
        self._restore(before)
        self.steps_done -= count
        return [self.step() for _ in range(count)]

    def step(self, norms: list[Tensor] | None = None) -> _StepResult:
        """Train on one window: adversaries first, then the model against the updated adversaries (definitions A4).

        Members that diverged are held; where `norms` is given, those of gradients are added to it instead, unseen.
        """
        epoch, window = divmod(self.steps_done, self.steps_per_epoch)
        piece = self.windows[window]
        self.draw.manual_seed(derive_seed("dropout", self.seed, self.steps_done))
        # a pass can be recorded and replayed where no shape of it depends on what stands in the window
        recordable = piece.scored is None and all(o.recordable(piece.labels) for o in self.objectives)
        if self.recorder is not None and recordable:
            scores, notes = self._replay_backward(piece, self.recorder)
        else:
            scores, notes = self._backward(piece)
        loss, correct = scores.loss.mean(1), scores.correct.double().mean(1)
        self._update(epoch, norms)
        return _StepResult(loss, correct, notes)

    def _replay_backward(self, piece: Piece, recorder: Recorder) -> tuple[Scores, Mapping[int, Mapping[str, Tensor]]]:
        """`_backward` on a window, recorded for the first and replayed for others of its shape."""
        positions = {column: label_positions(piece.labels, column) for column in self.labels}

        def work(window: Sequence[Tensor]) -> tuple[Tensor, ...]:
            labels = PlacedLabels(dict(zip(self.labels, window[2:], strict=True)), positions)
            scores, notes = self._backward(Piece(window[0], window[1], labels, input_labels=piece.input_labels))
            self._names = [(slot, name) for slot, values in notes.items() for name in values]
            values = [notes[slot][name].double() for slot, name in self._names]
            return *scores, torch.stack(values) if values else scores.loss.new_empty(0, dtype=torch.float64)

        window = piece.inputs, piece.targets, *(piece.labels[column] for column in self.labels)
        if self.replay is None:
            self.replay = Replay(work, window, self.draw, self.gradient, self.objectives, recorder)
            self.draw.manual_seed(derive_seed("dropout", self.seed, self.steps_done))
        loss, correct, values = (self.replay if self.replay.fits(window) else work)(window)
        notes: dict[int, dict[str, Tensor]] = {}
        values = values.clone()  # the next replay writes there
        for (slot, name), value in zip(self._names, values.unbind(), strict=True):
            notes.setdefault(slot, {})[name] = value
        return Scores(loss, correct), notes

    def _backward(self, piece: Piece) -> tuple[Scores, dict[int, Mapping[str, Tensor]]]:
        """Fill `gradient` for the loss on one window; adversaries learn meanwhile. Returns the values of objectives."""
        parameters, leaves = self.parameters, self.leaves
        rows = embedding_rows(parameters["embed.weight"], piece.inputs).requires_grad_()
        drop = Dropout(self.model.dropout, self.draw)
        with torch.autocast("cuda", self.products, self.products is not None and self.flat.is_cuda):
            passed = forward(leaves, piece.inputs, self.model, drop, blocks=self.keep, rows=rows)
        hidden = passed.hidden.detach().flatten(1, 2)
        w, b = parameters["decoder.weight"], parameters["decoder.bias"]
        into = self.gradients["decoder.weight"], self.gradients["decoder.bias"]
        counted = piece.target_states(hidden)
        if self.narrow is None:
            scores, decoder = loss_and_gradients(counted, w, b, piece.gold, into, self.work)
        else:
            scores, decoder = self.narrow(counted, w, b, piece.gold, into)
        upstream = decoder.hidden
        if piece.scored is not None:
            upstream = torch.zeros_like(hidden)
            upstream[:, piece.scored] = decoder.hidden
        # the chain rule at the sites: d(-λ·CE)/dx enters where x is, so one backward pass carries loss_total
        states = {block: x.detach() for block, x in passed.blocks.items()}
        pushes = {block: torch.zeros_like(x) for block, x in states.items()}
        confined = [site for o in self.objectives if o.reach == "site" for site in o.sites]
        near = {block: torch.zeros_like(states[block]) for block in blocks_of(confined, self.model)}
        notes: dict[int, Mapping[str, Tensor]] = {}
        for objective in self.objectives:
            into = near if objective.reach == "site" else pushes
            notes |= objective.push(states, piece.label_words(objective.columns), piece.labels, into)
        at_site = []  # gradients of the matrices of one layer that make a block; what enters them is held still
        for (name, layer), push in near.items():
            kinds = ("up", "down") if name == "ffn" else ("in", "out")
            names = [f"layers.{layer}.{kind}.{part}" for kind in kinds for part in ("weight", "bias")]
            inputs = [leaves[name] for name in names]
            gradients = torch.autograd.grad(
                passed.blocks[name, layer], inputs, push, retain_graph=True, allow_unused=True
            )
            at_site += zip(names, gradients, strict=True)
        of_rows, *of_leaves = torch.autograd.grad(
            [passed.hidden, *passed.blocks.values()],
            [rows, *leaves.values()],
            [upstream.view_as(passed.hidden), *(pushes[block] for block in passed.blocks)],
        )
        add_at(self.gradients["embed.weight"].zero_(), piece.inputs.flatten(), of_rows.flatten(1, 2))
        into = [self.gradients[name] for name in leaves]
        torch.ops.aten._foreach_copy_(into, of_leaves)  # one kernel on a GPU, not one a parameter
        for name, gradient in at_site:
            if gradient is not None:
                self.gradients[name] += gradient
        return scores, notes

    def _update(self, epoch: int, unseen: list[Tensor] | None) -> None:
        """Clip each member by its own norm, mark diverged ones, step, and restore frozen values."""
        flat = self.gradient
        self.edited.gather(flat)
        norms = torch.linalg.vector_norm(flat, dim=1)
        if unseen is not None:
            unseen.append(norms)
        else:
            for slot in (~torch.isfinite(norms)).nonzero()[:, 0].tolist():
                self.hold_member(slot)
                flat[slot] = 0.0
                norms[slot] = 0.0
        share = (self.training.clip / (norms + 1e-6)).clamp(max=1.0)
        warm = min(1.0, (self.steps_done + 1) / max(1, self.training.warmup))
        self.descent.step(flat, share, self.training.rate * self.training.decay**epoch * warm, unseen is None)
        self.edited.restore()
        self.steps_done += 1

    def hold_member(self, slot: int) -> None:
        """Freeze a diverged member at its last weights, from the current step."""
        if slot not in self.dead:
            self.dead[slot] = self.steps_done + 1
            self.edited.hold_member(slot)

    def start_rows(self) -> SlotRows:
        """(split, name, value) by slot, recorded once before training."""
        noted: SlotRows = {}
        for objective in self.objectives:
            for slot, rows in objective.start_rows().items():
                noted.setdefault(slot, []).extend(rows)
        return noted

    def evaluate(self) -> SlotRows:
        """(split, name, value) by slot: mean loss and accuracy over the tokens of each split, and the rows of other objectives.

        In evaluation mode and float32 or wider.
        """
        weight, bias = self.parameters["decoder.weight"], self.parameters["decoder.bias"]
        rows: SlotRows = {slot: [] for slot in range(len(self.flat))}
        for split, pieces in self.pieces.items():
            totals = torch.zeros(2, len(self.flat), dtype=torch.float64, device=bias.device)
            sums: list[dict[int, Tensor]] = [{} for _ in self.objectives]
            for piece in pieces:
                with torch.no_grad():
                    passed = forward(self.parameters, piece.inputs, self.model, blocks=self.keep)
                hidden = piece.target_states(passed.hidden.flatten(1, 2))
                scores = token_scores(hidden, weight, bias, piece.gold, self.work)
                for objective, by_slot in zip(self.objectives, sums, strict=True):
                    measured = objective.measure(passed.blocks, piece.label_words(objective.columns), piece.labels)
                    for slot, value in measured.items():
                        by_slot[slot] = by_slot[slot] + value if slot in by_slot else value
                totals += torch.stack([scores.loss.double().sum(1), scores.correct.double().sum(1)])
            count = sum(piece.tokens for piece in pieces)
            # one copy to the host for all sums: the only thing that a GPU is waited for
            tensors = [totals, *(value for by_slot in sums for value in by_slot.values())]
            flat = torch.cat([t.double().flatten() for t in tensors]).cpu().split([t.numel() for t in tensors])
            totals, *values = (part.view(t.shape).to(t.dtype) for part, t in zip(flat, tensors, strict=True))
            for slot, (loss, correct) in enumerate(totals.T.tolist()):
                rows[slot] += [(split, "loss_nats", loss / count), (split, "accuracy", correct / count)]
            pairs = (
                (objective, slot) for objective, by_slot in zip(self.objectives, sums, strict=True) for slot in by_slot
            )
            for (objective, slot), value in zip(pairs, values, strict=True):
                rows[slot] += [(split, name, number) for name, number in objective.summary(value)]
        return rows

    def save(self, path: Path, note: object) -> None:
        """Write everything that the next epoch depends on."""
        note = {"steps": self.steps_done, "dead": sorted(self.dead.items()), "note": note}
        write_snapshot(path, self._state(), note, durable=False)

    def load(self, path: Path) -> object:
        """Resume from the file of `save`; returns its note."""
        todo = f"Delete {path} and call 'trisect study' again: this fleet then starts again."
        tensors, note = read_snapshot(path, todo)
        self._restore(tensors)
        self.steps_done = note["steps"]
        for slot, step in note["dead"]:
            self.hold_member(slot)
            self.dead[slot] = step
        return note["note"]

    def _state(self) -> dict[str, Tensor]:
        tensors = {"flat": self.flat} | moments(self.descent.optimizer, self.flat)
        for i, objective in enumerate(self.objectives):
            tensors |= {f"attackers.{i}.{k}": v for k, v in objective.state().items()}
        return tensors

    def _restore(self, tensors: Mapping[str, Tensor]) -> None:
        self.flat.copy_(tensors["flat"])
        restore_moments(self.descent.optimizer, self.flat, tensors)
        for i, objective in enumerate(self.objectives):
            prefix = f"attackers.{i}."
            objective.restore({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})


def train_fleet(
    runs: Sequence[Run],
    corpus: Corpus,
    files: RunFiles,
    device: str = "cpu",
    progress: Callable[[Progress], None] = lambda _: None,
    precision: str = "float32",
) -> list[_Outcome]:
    """Train a fleet to its last epoch, from its checkpoint if there is one; training resumes at the start of an epoch."""
    narrow = torch.bfloat16 if precision == "bfloat16" else None
    recorder = CudaGraph() if torch.device(device).type == "cuda" else None
    trainer, began = Trainer(runs, corpus, device, products=narrow, recorder=recorder), time.monotonic()
    final = views(trainer.flat, trainer.places)
    rows: list[list[Row]] = [[] for _ in runs]
    epoch, spent = 0, 0.0

    def save_sites() -> None:
        for slot, folder in files.epochs.items():
            weights = {n: v[slot] for n, v in final.items() if n.split(".")[-2] in files.parts}
            write_snapshot(folder / f"{epoch:04d}.safetensors", weights, {"epoch": epoch}, durable=False)

    if files.checkpoint.exists():
        note = trainer.load(files.checkpoint)
        assert isinstance(note, dict)
        if files.numerics is not None:
            check_numerics(note.get("numerics"), files.numerics)
        epoch, spent, rows = note["epoch"], note["seconds"], [[tuple(row) for row in member] for member in note["rows"]]
    else:
        _record(rows, 0, trainer, trainer.start_rows())
        _record(rows, 0, trainer, trainer.evaluate())
        save_sites()
    total, per_epoch = trainer.training.epochs * trainer.steps_per_epoch, trainer.steps_per_epoch
    while epoch < trainer.training.epochs and len(trainer.dead) < len(runs):
        running = _RunningMeans(len(runs))
        while running.count < per_epoch:
            running.add(trainer.advance(min(trainer.ahead, per_epoch - running.count)))
            loss = float(running.totals[0, 0]) / running.count
            progress(Progress(trainer.steps_done, total, epoch + 1, loss))
        epoch += 1
        _record(rows, epoch, trainer, {i: running.rows(i) for i in range(len(runs))})
        _record(rows, epoch, trainer, trainer.evaluate())
        save_sites()
        seconds = spent + time.monotonic() - began
        note = {"epoch": epoch, "seconds": seconds, "rows": rows, "numerics": files.numerics}
        trainer.save(files.checkpoint, note)
    seconds = (spent + time.monotonic() - began) / len(runs)
    return [
        _Outcome(
            "diverged" if i in trainer.dead else "finished",
            trainer.dead.get(i),
            rows[i],
            {n: v[i].cpu() for n, v in final.items()},
            seconds,
            trainer.replay is not None and trainer.replay.usable,
        )
        for i in range(len(runs))
    ]


def _record(rows: list[list[Row]], epoch: int, trainer: Trainer, measured: SlotRows) -> None:
    """Add rows of active members; a member with a non-finite row has diverged, and missing values stay missing."""
    for slot, values in measured.items():
        if any(not math.isfinite(value) for _, _, value in values):
            trainer.hold_member(slot)
        if slot not in trainer.dead:
            rows[slot] += [(epoch, *row) for row in values]
