"""The state of a model's parameters: a hash of them, and whether they are others than when the model was verified."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from trisect.core.errors import ModelError
from trisect.hf.refusal import total


class State(NamedTuple):
    """A model's parameters in short: how often they were written to, and the sum of each, in float64."""

    writes: int
    sums: tuple[float, ...]

    @classmethod
    def of(cls, model: nn.Module) -> State:
        """The state that a model is in."""
        return cls(_writes(model), _sums(model))

    def changed(self, model: nn.Module) -> bool:
        """Whether its parameters are others by now; what was written and put back again is no change."""
        return _writes(model) != self.writes and _sums(model) != self.sums


def _writes(model: nn.Module) -> int:
    return sum(0 if p.is_inference() else p._version for p in model.parameters())


def _sums(model: nn.Module) -> tuple[float, ...]:
    return tuple(total(p) for p in model.parameters())


def mark_of(model: nn.Module) -> str:
    """Hex digits of a model's weights: the same for the same weights."""
    found = hashlib.blake2b(digest_size=8)
    for name, value in sorted(model.state_dict().items()):
        _add_to(found, name, value)
    return found.hexdigest()


def _add_to(found: Any, name: str, value: object) -> None:
    """Add an entry of a state dict to a hash; a quantised module's may be no plain tensor."""
    if isinstance(value, tuple):
        for part in value:
            _add_to(found, name, part)
    elif isinstance(value, Tensor):
        plain = value.detach().cpu()
        plain = (plain.dequantize() if plain.is_quantized else plain).contiguous()
        found.update(f"{name}{tuple(plain.shape)}{value.dtype}".encode())
        found.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    else:
        found.update(f"{name}{value}".encode())


def check_state(name: str, state: State | None, model: nn.Module) -> None:
    """Raise ModelError where a model's parameters are others than those of a state."""
    if state is not None and state.changed(model):
        known = "What was found of its projections belongs to the weights that it had then."
        raise ModelError(f"The weights of {name} have changed since it was loaded.", known, "Load it again.")
