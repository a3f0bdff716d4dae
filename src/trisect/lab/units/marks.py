"""Marks of all that one of several models is measured from: by them a kept model is used again, or not."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from trisect.core.errors import SpecError, StudyError, TrisectError
from trisect.core.fields import Declared, declared
from trisect.core.files import digest
from trisect.core.subject import Texts
from trisect.engine.node import code_mark
from trisect.engine.parcels import fingerprint
from trisect.lab.inputs import ModelSource
from trisect.lab.subject import checkpoints_mark, files_mark
from trisect.lab.units.travel import encoded
from trisect.lab.versions import versions
from trisect.text.hub import is_hub, revision_of, split_name
from trisect.text.worlds import is_generated


def asked_mark(experiment: str, settings: Any, group: str, texts: Texts | None) -> str:
    """A mark of all that one model's numbers follow from, besides the model: command, settings, texts, and software."""
    source = replace(getattr(settings, group), model=None)
    plain = replace(settings, **{group: source}, **({"units": None} if hasattr(settings, "units") else {}))
    return _asked(experiment, plain, texts)


def _asked(experiment: str, plain: Any, texts: Texts | None) -> str:
    try:
        own = encoded(plain)
    except SpecError:  # data in memory: for this call alone, nothing of it is found again
        own = f"memory {secrets.token_hex(16)}"
    read = texts_mark(texts)
    software = versions("transformers", "tokenizers", "safetensors", "concept-erasure") | {"code": code_mark()}
    return digest(json.dumps([experiment, own, read, places_mark(plain), software], default=list))


def texts_mark(texts: Texts | None) -> list[object] | None:
    """What texts are known by."""
    return None if texts is None else [texts.name, texts.fingerprint, texts.options, texts.notes]


def weights_mark(settings: Any, source: ModelSource) -> str:
    """A mark of all files that a model is loaded from, and the checkpoints that the settings name beside it; empty where not known."""
    own = files_mark(source.model, source.revision, source.remote_code)
    names: tuple[str, ...] = getattr(settings, "checkpoints", ())
    if not names or not own:
        return own
    with suppress(TrisectError):  # one that is not there: its own error comes where it is opened
        if earlier := checkpoints_mark(source.model, names, source.remote_code):
            return digest(f"{own}\n{earlier}")
    return ""


def places_mark(settings: Any) -> list[tuple[str, str]]:
    """A mark of every file, folder and dataset that a setting names; of a dataset on a hub its commit."""
    return [(name, _place_mark(value)) for name, value in _named(settings) if is_hub(value) or Path(value).exists()]


def check_same(settings: Any, before: Mapping[str, str]) -> None:
    """Raise StudyError where a file or folder on this machine that a setting names is not what it was (`local_places`)."""
    if changed := [place for place, mark in local_places(settings).items() if before.get(place, mark) != mark]:
        known = "Every model reads it for itself, so that models would not be measured by the same."
        raise StudyError(f"{changed[0]} was changed while models were measured.", known, "Call the same command again.")


def local_places(settings: Any) -> dict[str, str]:
    """The files and folders on this machine that settings name, with a mark of each."""
    found = [str(value) for _, value in _named(settings) if not is_hub(value)]
    return {place: fingerprint(Path(place)) for place in found if Path(place).exists()}


def _named(settings: Any) -> list[tuple[str, str | Path]]:
    """Files, folders and datasets that settings name, by the name of the setting."""
    named = [d for d in declared(type(settings)) if isinstance(d, Declared) and Path in (d.item, *get_args(d.item))]
    given = [(one.name, getattr(settings, one.name)) for one in named]
    return [(name, value) for name, value in given if value is not None and not is_generated(value)]


def _place_mark(value: str | Path) -> str:
    """A hash of a file or folder, a dataset's commit, or a word that never comes again where nobody knows that."""
    if not is_hub(value):
        return fingerprint(Path(value))
    name, _ = split_name(str(value))
    return fingerprint(Path(name)) if Path(name).is_dir() else revision_of(str(value)) or secrets.token_hex(16)
