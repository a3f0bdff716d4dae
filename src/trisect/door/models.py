"""Models at the door: everything that is read of a model that others, or trisect, trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def prove(
    model: Any,
    inputs: Mapping[str, Any] | None = None,
    revision: str | None = None,
    dtype: str | None = None,
    device: str = "cpu",
    device_map: str | None = None,
    pickle: bool = False,
    remote_code: bool = False,
) -> Any:
    """The proof that a pretrained model is read rightly: `rows()` as a table, `refusal` null or the error to raise."""
    from trisect.hf.load import load as load_pretrained

    return load_pretrained(
        model, None, inputs, None, revision, dtype, device, device_map, pickle, remote_code, proof=False
    ).proof


def explore(reading: Any, row: int = 0) -> Any:
    """A view into every head of one row of a Reading, for a notebook."""
    from trisect.experiments.explore.run import explore as show

    return show(reading, row)
