"""What foreign functions are called with and what models give, of any type; and what can be no argument of ours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from torch import Tensor, nn

from trisect.core.errors import ModelError

Arguments: TypeAlias = tuple[Any, ...]
NamedArguments: TypeAlias = dict[str, Any]
ModelOutput: TypeAlias = Any  # of any class: each model has its own


def check_model(model: object) -> None:
    """Raise ModelError for what cannot be a model."""
    if not isinstance(model, (str, Path, nn.Module)):
        known = "A model is a folder, a name on a hub, or a PyTorch module."
        raise ModelError(f"{type(model).__name__} was given as a model.", known, "Give one of these.")


def check_readable(texts: object) -> None:
    """Raise ModelError for what is no text and no several texts."""
    if not isinstance(texts, Iterable):
        known = "What is read is a text, several of them, or the model's own inputs."
        raise ModelError(f"{type(texts).__name__} was given to be read.", known, "Give one of these.")


def check_inputs(inputs: object) -> None:
    """Raise ModelError for what cannot be a model's inputs by name."""
    if not isinstance(inputs, Mapping):
        given = f"The inputs are a {type(inputs).__name__}."
        raise ModelError(given, "A model's own inputs are given by name.", "Give a dict: {'input_ids': ...}.")
    if not any(isinstance(t, Tensor) for t in inputs.values()):
        known = f"It holds {', '.join(map(repr, inputs)) or 'nothing'}."
        raise ModelError("The inputs hold no tensor.", known, "Give what the model's forward takes, as tensors.")
