"""Sites that are named for several models: each has to have them, which is known before the first of them is measured."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from trisect.core.errors import SiteError
from trisect.core.site import Site
from trisect.core.subject import Subject
from trisect.lab.inputs import ModelSource
from trisect.lab.passes import plan_edits
from trisect.lab.subject import at_revision, name_before

# of a configuration: no shape follows from it
NO_PART = ("_name_or_path", "transformers_version", "dtype", "torch_dtype")


def check_sites(settings: Any, sources: Sequence[ModelSource], at_once: bool) -> None:
    """Raise SiteError for a site that one of the models lacks; nothing where the settings name none.

    One model of each shape is opened for it, as its configuration or its name tells. The first model is not, unless several are
    measured at the same time (`at_once`): it is met as the first that is measured.
    """
    sites: Sequence[Site | str] | None = getattr(settings, "sites", None)
    if sites is None:
        return
    marks = [_shape_mark(source.model) for source in sources]
    first = dict(zip(reversed(marks), reversed(sources), strict=True))
    if len(first) < 2:
        return
    for mark in dict.fromkeys(marks if at_once else _others(marks)):
        try:
            plan_edits(first[mark].open().shape, sites, getattr(settings, "per", "layer"))
        except SiteError as error:
            raise SiteError(error.given, f"{name_before(first[mark].model)}: {error.known}", error.todo) from None
        gc.collect()  # a model's hooks refer to it in circles


def _others(marks: Sequence[str]) -> Iterable[str]:
    return (mark for mark in marks if mark != marks[0])


def _shape_mark(model: Any) -> str:
    """What is the same for models of one shape; revisions of a model on a hub have one."""
    if isinstance(model, Subject):
        return model.shape.words()
    if not isinstance(model, str | Path):
        return str(id(model))
    found = at_revision(model)
    if found is not None and not Path(found.base).is_dir():
        return found.base
    file = (Path(model) if found is None else Path(found.base) / found.revision) / "config.json"
    if not file.is_file():
        return str(model)  # a model on a hub, or a run of a study
    text = file.read_text(encoding="utf-8")
    with suppress(ValueError, AttributeError):
        return json.dumps({k: v for k, v in json.loads(text).items() if k not in NO_PART}, sort_keys=True)
    return text
