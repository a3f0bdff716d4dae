"""What training saw within an epoch: sums over steps, left on the device until they are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


class Stepped(NamedTuple):
    """What one step saw: each member's mean loss and accuracy, and by slot what other objectives say, by name."""

    loss: Float[Tensor, " F"]
    accuracy: Float[Tensor, " F"]
    said: Mapping[int, Mapping[str, Tensor | float]]


class RunningMeans:
    """Means over an epoch's steps so far: with dropout, before each update."""

    def __init__(self, members: int) -> None:
        self.loss, self.correct = torch.zeros(members, dtype=torch.float64), torch.zeros(members, dtype=torch.float64)
        self.said: dict[int, dict[str, tuple[float, int]]] = {}
        self.count = 0

    def add(self, steps: list[Stepped]) -> None:
        """Take in some steps; the device is waited for once."""
        seen = torch.stack([torch.stack([one.loss.double(), one.accuracy.double()]) for one in steps]).cpu()
        for loss, correct in seen:
            self.loss += loss
            self.correct += correct
        self.count += len(steps)
        names = [(slot, name, value) for one in steps for slot, own in one.said.items() for name, value in own.items()]
        tensors = [value.double() for _, _, value in names if isinstance(value, Tensor)]
        numbers = iter(torch.stack(tensors).tolist() if tensors else ())
        for slot, name, value in names:
            own = self.said.setdefault(slot, {})
            total, count = own.get(name, (0.0, 0))
            own[name] = total + (next(numbers) if isinstance(value, Tensor) else value), count + 1

    def rows(self, slot: int) -> list[tuple[str, str, float]]:
        """(split, name, value) of one member."""
        means = [
            ("loss_nats", float(self.loss[slot]) / self.count),
            ("accuracy", float(self.correct[slot]) / self.count),
        ]
        means += [(name, total / count) for name, (total, count) in self.said.get(slot, {}).items()]
        return [("train_running", name, value) for name, value in means]
