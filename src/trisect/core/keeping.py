"""Labelled tensors as files and as labelled arrays: safetensors with words beside the tensors, and xarray."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trisect.core.errors import SpecError
from trisect.core.extras import there
from trisect.core.files import replace_file
from trisect.core.json_text import Json

if TYPE_CHECKING:
    from torch import Tensor

AXES = {
    "q": ("row", "head", "query", "width"),
    "k": ("row", "key_head", "key", "width"),
    "v": ("row", "key_head", "key", "value_width"),
    "weights": ("row", "head", "query", "key"),
    "output": ("row", "head", "query", "value_width"),
}


class KeptPart(NamedTuple):
    """One tensor with the name that it is kept by; `kind` says what its axes are, empty where nothing does."""

    name: str
    kind: str
    values: Tensor


def save_parts(parts: Iterable[KeptPart], said: Mapping[str, Json], path: Path) -> Path:
    """Every part by its name, and what is said beside them as JSON in the file's metadata."""
    from safetensors.torch import save_file

    if path.suffix != ".safetensors":
        given, known = f"{path.name!r} was given.", "A reading is kept as safetensors."
        raise SpecError(given, known, "Give a name that ends in .safetensors.")
    tensors = {part.name: part.values.contiguous().clone() for part in parts}
    replace_file(path, lambda scratch: save_file(tensors, scratch, {"reading": json.dumps(said)}))
    return path


def dataset_of(parts: Iterable[KeptPart], said: Mapping[str, Json]) -> Any:
    """An xarray.Dataset: a variable for each part that has axes, called by their kind and length, so that lengths agree."""
    if not there("xarray"):
        raise SpecError("to_xarray needs the package xarray.", "It is not installed here.", "Run: pip install xarray.")
    xarray: Any = importlib.import_module("xarray")
    variables: dict[str, Any] = {}
    for part in parts:
        if part.kind in AXES:
            sized = tuple(f"{axis}_{n}" for axis, n in zip(AXES[part.kind], part.values.shape, strict=True))
            variables[part.name.replace(" ", "_")] = (sized, part.values.float().numpy())
    return xarray.Dataset(variables, attrs=dict(said))
