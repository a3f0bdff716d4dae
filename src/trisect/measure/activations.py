"""The activations φ of feed-forward blocks, by name: elementwise functions of a tensor."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

NAMES = ("gelu", "gelu_tanh", "silu", "relu", "quick_gelu", "relu2", "tanh", "linear")


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """The function of that name, one of NAMES."""
    known: dict[str, Callable[[Tensor], Tensor]] = {
        "gelu": F.gelu,
        "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
        "silu": F.silu,
        "relu": torch.relu,
        "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
        "relu2": lambda x: torch.relu(x).square(),
        "tanh": torch.tanh,
        "linear": lambda x: x,
    }
    return known[name]
