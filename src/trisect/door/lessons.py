"""Lessons at the door: attention by hand, and small models that are taught to recall and to translate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trisect.core.spec import Machine
from trisect.door.given import free_place


def chart(result: Any) -> Any:
    """A chart of what a function of `trisect.theory` returned: closed forms over what was computed."""
    from trisect.experiments.theory.figures import chart as draw

    return draw(result)


def recall(
    data: str | Path = "embedded",
    out: str | Path = "recall",
    seeds: int | Sequence[int] = 1,
    recipe: str | None = None,
    settings: Mapping[str, Any] | None = None,
    examples: bool = True,
    device: str = "auto",
    workers: int | None = None,
    quiet: bool = False,
) -> Any:
    """What pretraining adds (science B2 to B4): models with and without it, asked where people were born.

    `data` is 'embedded' or a folder of birth places; `recipe` 'embedded', 'small' or 'course', with some `settings`
    changed. Goes on where it stopped; the models are ordinary Hugging Face folders.
    """
    from trisect.experiments.recall.run import run_recall

    chosen = tuple(range(1, seeds + 1)) if isinstance(seeds, int) else tuple(seeds)
    return run_recall(data, free_place(out), chosen, recipe, settings or {}, examples, Machine(device, workers, quiet))


def ask(model: str | Path, question: str, risk: float | None = None) -> Any:
    """Put a question such as 'Where was NAME born?' to a model that `recall` trained; it may abstain."""
    from trisect.experiments.recall.ask import ask as put

    return put(model, question, risk)


def translate_train(
    data: str | Path | Sequence[str | Path] = "embedded",
    out: str | Path = "translation",
    seeds: int | Sequence[int] = 2,
    recipe: str | None = None,
    settings: Mapping[str, Any] | None = None,
    device: str = "auto",
    workers: int | None = None,
    quiet: bool = False,
) -> Any:
    """Train small encoder–decoders on a bitext, one a seed: ordinary Hugging Face folders. Goes on where it stopped.

    `data` is 'embedded', a folder with train, valid or trial, and test sentences, or two files, source and target.
    """
    from trisect.experiments.translate.run import run_translation

    chosen = tuple(range(1, seeds + 1)) if isinstance(seeds, int) else tuple(seeds)
    return run_translation(data, free_place(out), chosen, recipe, settings or {}, Machine(device, workers, quiet))
