"""The training loop of the small models: warm-up and cosine, clipped AdamW, resumed where it stopped."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from trisect.core.door import check_barred
from trisect.core.errors import DamagedFileError, SpecError, StudyError
from trisect.core.files import canonical, digest, replace_file
from trisect.text.corruption import IGNORED, Example

PIECES = 4  # of a batch, each of rows of like length, so that little of it is padding
LEAST = 8  # rows of a piece
SAVED_EVERY = 60.0  # seconds


@dataclass(frozen=True)
class Schedule:
    """How long and how fast: the rate rises over `warmup_tokens`, then falls as a cosine to `floor` of it at `decay_tokens`.

    A step counts batch × block tokens, its padding with them. Weight decay is on matrices alone. With several `cycles` all
    epochs come again with the optimiser and the rate started again (Loshchilov & Hutter 2017, SGDR: warm restarts).
    """

    epochs: int
    batch: int
    rate: float
    warmup_tokens: int
    decay_tokens: int
    floor: float = 0.1
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float = 1.0
    cycles: int = 1

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "rate", "decay_tokens", "clip", "cycles"):
            if not getattr(self, name) > 0:
                given = f"A schedule with {name} {getattr(self, name)}."
                raise SpecError(given, "It has to be above 0.", "Give a larger number.")

    def rate_at(self, tokens: int) -> float:
        """The learning rate of the step that ends after so many tokens."""
        if tokens < self.warmup_tokens:
            return self.rate * tokens / self.warmup_tokens
        done = (tokens - self.warmup_tokens) / max(1.0, self.decay_tokens - self.warmup_tokens)
        return self.rate * max(self.floor, 0.5 * (1 + math.cos(math.pi * min(1.0, done))))


@runtime_checkable
class TrainingRow(Protocol):
    """What a model learns from: rows of like size go together, since each is padded to the largest."""

    @property
    def size(self) -> int:
        """How long it is."""
        ...

    @property
    def predicted(self) -> int:
        """How many ids are predicted of it."""
        ...


Rows = TypeVar("Rows", contravariant=True)


@runtime_checkable
class Lecture(Protocol[Rows]):
    """How rows of one kind become a loss."""

    def loss(self, model: nn.Module, rows: Rows) -> Tensor:
        """Summed over all that is predicted, nats."""
        ...


@dataclass(frozen=True)
class NextIds:
    """How a causal model learns an Example: of every id the next one."""

    padding: int

    def loss(self, model: nn.Module, rows: Sequence[Example]) -> Tensor:
        """Summed over all that is predicted, nats."""
        device = next(model.parameters()).device
        ids = padded([row.ids for row in rows], self.padding).to(device)
        labels = padded([row.labels for row in rows], IGNORED).to(device)
        logits = model(input_ids=ids, use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")


EpochRows = Callable[[int, np.random.Generator], Sequence[TrainingRow]]  # the rows of an epoch, given its number from 1
EpochCallback = Callable[[int, float], object]  # of the epoch that ended, and its loss


@dataclass(frozen=True)
class Practice:
    """One training: what it reads, how fast, for a model that reads `block` ids at once and pads with `padding`.

    `lecture` says how the rows are learnt from; null are Examples, of which a causal model predicts the next ids.
    """

    rows: EpochRows
    schedule: Schedule
    block: int
    padding: int
    seed: int
    lecture: Lecture | None = None

    def run(self, model: nn.Module, state: Path, report: EpochCallback = lambda epoch, loss: None) -> tuple[float, ...]:
        """Train `model` in place, on the device that it is on; returns every epoch's loss, nats per predicted character.

        What an epoch reads, its order and its dropout depend on the seed and the epoch's number alone. `state` is
        written now and then; a call that finds it goes on from there, to the very same weights. Raises StudyError where
        it is of another training or the loss is no number any more, DamagedFileError where `state` cannot be read.
        """
        optimizer = _optimizer(model, self.schedule)
        losses = _resume(state, self._mark(model), model, optimizer) if state.exists() else []
        saved = time.monotonic()
        model.train()
        epochs = self.schedule.epochs * self.schedule.cycles
        for number in range(len(losses) + 1, epochs + 1):
            if number > 1 and (number - 1) % self.schedule.epochs == 0:
                optimizer = _optimizer(model, self.schedule)
            losses.append(self._epoch(model, optimizer, number))
            if not math.isfinite(losses[-1]):
                known = f"The learning rate reached {self.schedule.rate:g}."
                raise StudyError(f"The loss of epoch {number} is no finite number.", known, "Give a lower rate.")
            if number < epochs and time.monotonic() - saved > SAVED_EVERY:
                _keep(state, self._mark(model), model, optimizer, losses)
                saved = time.monotonic()
            report(number, losses[-1])
        model.eval()
        return tuple(losses)

    def _mark(self, model: nn.Module) -> str:
        shapes = [[name, list(p.shape)] for name, p in model.named_parameters()]
        lecture = [] if self.lecture is None else [repr(self.lecture)]
        return digest(canonical([repr(self.schedule), self.block, self.padding, self.seed, shapes, *lecture]), 8)

    def _epoch(self, model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> float:
        """One pass over the rows of an epoch; returns the mean loss per predicted id."""
        draw = np.random.default_rng([self.seed, number])
        rows = self.rows(number, draw)
        order = draw.permutation(len(rows))
        steps = math.ceil(len(rows) / self.schedule.batch)
        tokens = (number - 1) % self.schedule.epochs * steps * self.schedule.batch * self.block
        total, count = 0.0, 0
        with torch.random.fork_rng():  # dropout inside the model knows no generator but the global one
            torch.manual_seed(int(draw.integers(2**62)))
            for start in range(0, len(rows), self.schedule.batch):
                batch = [rows[i] for i in order[start : start + self.schedule.batch]]
                tokens += self.schedule.batch * self.block
                for group in optimizer.param_groups:
                    group["lr"] = self.schedule.rate_at(tokens)
                loss, predicted = self._step(model, optimizer, batch)
                total, count = total + loss, count + predicted
        return total / max(1, count)

    def _step(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, batch: Sequence[TrainingRow]
    ) -> tuple[float, int]:
        """One update from a batch, in pieces of rows of like length; returns the summed loss and how many it is over."""
        lecture = self.lecture or _next_ids(self.padding)
        predicted, total = sum(row.predicted for row in batch), 0.0
        optimizer.zero_grad(set_to_none=True)
        ordered = sorted(batch, key=lambda row: row.size)
        size = max(LEAST, math.ceil(len(ordered) / PIECES))
        for start in range(0, len(ordered), size):
            loss = lecture.loss(model, ordered[start : start + size])
            (loss / max(1, predicted)).backward()
            total += float(loss.detach())
        nn.utils.clip_grad_norm_(model.parameters(), self.schedule.clip)
        optimizer.step()
        return total, predicted


def _next_ids(padding: int) -> Lecture:
    return NextIds(padding)


def padded(rows: Sequence[Sequence[int]], filler: int) -> Tensor:
    """Rows as one tensor [B T], filled up at their ends."""
    longest = max(len(row) for row in rows)
    return torch.tensor([[*row, *[filler] * (longest - len(row))] for row in rows])


def _optimizer(model: nn.Module, schedule: Schedule) -> torch.optim.AdamW:
    """AdamW with weight decay on the matrices of linear maps; embeddings, norms and biases have none."""
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    decayed = [p for p in model.parameters() if p.dim() > 1 and id(p) not in tables]
    others = [p for p in model.parameters() if p.dim() < 2 or id(p) in tables]
    groups = [{"params": decayed, "weight_decay": schedule.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=schedule.rate, betas=schedule.betas, fused=True)


def _keep(state: Path, mark: str, model: nn.Module, optimizer: torch.optim.AdamW, losses: Sequence[float]) -> None:
    """Write all that the next epoch depends on; losses go along as hex, which loses nothing."""
    tensors = {f"model.{name}": p.detach() for name, p in model.named_parameters()}
    for i, moments in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{i}.{name}": value for name, value in moments.items()}
    tensors = {name: t.cpu().contiguous().clone() for name, t in tensors.items()}
    about = {"mark": mark, "losses": " ".join(loss.hex() for loss in losses)}
    replace_file(state, lambda scratch: save_file(tensors, scratch, about))


def _resume(state: Path, mark: str, model: nn.Module, optimizer: torch.optim.AdamW) -> list[float]:
    todo = f"Delete {state} and call the same command again: this training then starts from the beginning."
    try:
        with safe_open(state, "pt") as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except (SafetensorError, OSError, ValueError) as error:
        check_barred(state, error)
        raise DamagedFileError(f"{state} cannot be read.", f"{type(error).__name__}: {error}", todo) from error
    if about.get("mark") != mark:
        raise StudyError(f"{state} is of another training.", "Its settings or its seed are others.", todo)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(tensors[f"model.{name}"])
    kept = optimizer.state_dict()
    kept["state"] = {}
    for name, value in tensors.items():
        kind, number, moment = name.split(".", 2) if name.startswith("optimizer.") else ("", "", "")
        if kind:
            kept["state"].setdefault(int(number), {})[moment] = value
    optimizer.load_state_dict(kept)
    return [float.fromhex(loss) for loss in about["losses"].split()]
