"""Snapshots: tensors in a file with a checksum, written atomically, with a JSON note."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from trisect.core.errors import DamagedFileError, check_access
from trisect.core.files import canonical, replace_file


def write_snapshot(path: Path, tensors: Mapping[str, Tensor], note: Any = None, durable: bool = True) -> None:
    """Write tensors and a note in safetensors format atomically, with a checksum over both."""
    ready = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    text = canonical(note)
    metadata = {"note": text, "checksum": _checksum(ready, text)}
    replace_file(path, lambda scratch: scratch.write_bytes(save(ready, metadata)), durable)


def read_snapshot(path: Path, todo: str) -> tuple[dict[str, Tensor], Any]:
    """Read the tensors and note of `write_snapshot`; raises DamagedFileError with the advice `todo` if the file has changed."""
    try:
        with safe_open(path, "pt") as handle:
            metadata = handle.metadata() or {}
            tensors = {name: handle.get_tensor(name).clone() for name in handle.keys()}  # noqa: SIM118 (not a dict)
        note, checksum = metadata["note"], metadata["checksum"]
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        check_access(path, error)
        raise DamagedFileError(
            f"The snapshot {path} cannot be read.", f"{type(error).__name__}: {error}", todo
        ) from error
    if _checksum(tensors, note) != checksum:
        raise DamagedFileError(f"The snapshot {path} is damaged.", "Its content does not match its checksum.", todo)
    return tensors, json.loads(note)


def _checksum(tensors: Mapping[str, Tensor], note: str) -> str:
    total = hashlib.blake2b(note.encode(), digest_size=16)
    for name in sorted(tensors):
        total.update(f"{name}{tuple(tensors[name].shape)}{tensors[name].dtype}".encode())
        total.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()
