"""Models at the door: everything that is read of a model that others, or trisect, trained."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trisect.core.subject import Text
from trisect.door.given import as_subject, free_place


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


def align(
    models: Any,
    source: str | Path,
    target: str | Path,
    gold: str | Path | None = None,
    out: str | Path = "align",
    base: int | None = None,
    trial: tuple[str | Path, str | Path, str | Path] | None = None,
    limit: int | None = None,
    seed: int = 0,
    quiet: bool = False,
) -> Any:
    """Word links from cross-attention, by weight and by norm, of an encoder–decoder over sentence pairs (science C5).

    `models` is one, or several that differ by their seed; `gold` has sure and possible links, counted from `base` where
    the file does not say; `trial` are source, target and gold of other pairs, which choose the best layer.
    """
    from trisect.experiments.align.run import run_align

    return run_align(models, source, target, gold, base, trial, free_place(out), limit, seed=seed, quiet=quiet)


def explore(reading: Any, row: int = 0) -> Any:
    """A view into every head of one row of a Reading, for a notebook."""
    from trisect.experiments.explore.run import explore as show

    return show(reading, row)


def explore_page(subject: Any, text: Text, out: str | Path = "explore.html") -> Path:
    """One self-contained page to look into every head with; returns its path."""
    from trisect.experiments.explore.run import run_explore

    return run_explore(as_subject(subject), text, Path(out))
