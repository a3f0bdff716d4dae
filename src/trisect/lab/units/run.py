"""Run one experiment over several models: each is measured alone and stored, then all are combined."""

from __future__ import annotations

import gc
import json
import secrets
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from trisect.claims.models import judge_over_models
from trisect.core.errors import ModelError, SpecError, StudyError, TrisectError
from trisect.core.files import digest
from trisect.core.finding import About
from trisect.core.machine import code_hash, versions
from trisect.core.schema import Group, settings_of
from trisect.core.subject import Subject, Texts
from trisect.lab.experiment import Experiment, Measured, PageModule, RunContext, UnitsFacts, UnitsResult
from trisect.lab.inputs import UNITS, ModelSource, ModelWorkers
from trisect.lab.jobs import run_jobs
from trisect.lab.records import place_marks
from trisect.lab.run_folder import RunFolder, is_study
from trisect.lab.subject import (
    MODEL,
    at_revision,
    baselines,
    check_exists,
    check_folder,
    checkpoints_mark,
    files_mark,
    for_texts,
    name_before,
)
from trisect.lab.units import page
from trisect.lab.units.jobs import (
    TEXTS,
    UNIT,
    UnitMeasured,
    UnitWork,
    encode_settings,
    hardware,
    notes_by_model,
    read_unit,
    read_unit_data,
    uses_gpu,
    write_texts,
    write_unit,
)
from trisect.lab.units.page import concat_tables, findings_table, over_models
from trisect.report.format import slug

MODELS, REVISIONS = UNITS
FOLDER = "models"  # of each model's own page
REPEAT_REASON = "Every unit counts once: the same model twice would make intervals too narrow."


@dataclass(frozen=True, eq=False)
class _Unit:
    """One of several models: how to open it, its name, and the path of its page."""

    source: ModelSource
    called: str
    page: str


@dataclass(frozen=True)
class SeveralModels:
    """The models of the settings for `load`, in order; `group` is the field that names them."""

    settings: Any
    models: tuple[object, ...]
    kind: str
    group: str
    title: str

    @property
    def words(self) -> tuple[str, ...]:
        """The models as words of a command line; without paths of this machine."""
        return tuple(map(_word, self.models))

    @property
    def workers(self) -> ModelWorkers:
        """The workers that measure them."""
        return _workers(self.settings)

    @cached_property
    def units(self) -> tuple[_Unit, ...]:
        """The models in order, with distinct names."""
        units = list[_Unit]()
        for number, model in enumerate(self.models, start=1):
            source, name = replace(getattr(self.settings, self.group), model=model), name_before(model)
            called = f"{name} ({number})" if any(unit.called == name for unit in units) else name
            units.append(_Unit(source, called, f"{FOLDER}/{number:02d}-{slug(called)}"))
        return tuple(units)

    @cached_property
    def marks(self) -> tuple[str, ...]:
        """A hash of every model's files, and of checkpoints in the settings; empty if one cannot be hashed."""
        return tuple(self._mark(unit.source) for unit in self.units)

    @property
    def fingerprints(self) -> list[str]:
        """A hash of every model's weights, before any is opened; empty if one cannot be hashed."""
        marked = zip(self.models, self.marks, strict=True)
        return [model.fingerprint if isinstance(model, Subject) else mark for model, mark in marked]

    def _mark(self, source: ModelSource) -> str:
        mark = files_mark(source.model, source.revision, source.remote_code)
        names: tuple[str, ...] = getattr(self.settings, "checkpoints", ())
        if not names or not mark:
            return mark
        with suppress(TrisectError):  # one that is not there: its own error comes where it is opened
            if earlier := checkpoints_mark(source.model, names, source.remote_code):
                return digest(f"{mark}\n{earlier}")
        return ""


def _settings_for(over: SeveralModels, source: ModelSource) -> Any:
    """The settings for one of the models."""
    overrides = {"units": None} if hasattr(over.settings, "units") else {}
    return replace(over.settings, **{over.group: source}, **overrides)


def several_models(settings: Any) -> SeveralModels | None:
    """The models of settings that name several; None for a single one.

    With `units` 'models' a study stands for its finished baselines. Raises SpecError for units of one model, and for a model that
    is named twice.
    """
    groups = (field for field in settings_of(type(settings)) if isinstance(field, Group))
    takes_several = (g for g in groups if any(f.option.argument and f.option.many == "models" for f in g.fields))
    group = next(takes_several, None)
    source = None if group is None else getattr(settings, group.name)
    if group is None or not isinstance(source, ModelSource):
        return None
    kind_asked = getattr(settings, "units", None)
    named = source.model if isinstance(source.model, list | tuple) else (source.model,)
    models = tuple(
        m for place in named for m in (baselines(place) if kind_asked == MODELS and _is_study(place) else (place,))
    )
    if len(models) < 2:
        if kind_asked is not None:
            reason = "Units are several models, and one is named."
            raise SpecError(f"--units {kind_asked} was given.", reason, "Name at least two models, or leave it out.")
        return None
    for number, model in enumerate(models):  # the same weights under two names are met when they are opened
        before = models[:number]
        if any(model is other or (isinstance(model, str | Path) and str(model) == str(other)) for other in before):
            raise SpecError(f"{_word(model)} was given twice.", REPEAT_REASON, "Give every model once.")
    revisions = [at_revision(model) for model in models]
    bases = {None if revision is None else revision.base for revision in revisions}
    base = next(iter(bases)) if len(bases) == 1 else None
    kind = kind_asked or (MODELS if base is None else REVISIONS)
    title = f"{_short(models[0] if base is None else base)}-{len(models)}-{kind}"
    return SeveralModels(settings, models, kind, group.name, title)


def _is_study(model: Any) -> bool:
    return isinstance(model, str | Path) and is_study(Path(model))


def _short(model: Any) -> str:
    """A model's name for use in a folder's name."""
    name = model.name if isinstance(model, Subject) else type(model).__name__
    if isinstance(model, str | Path):
        name = str(model)
    return name.rstrip("/").split("/")[-1].replace("@", "-")


def _word(model: Any) -> str:
    if isinstance(model, Subject):
        return model.options[0]
    revision = at_revision(model)
    if revision is not None:
        return f"{MODEL if Path(revision.base).exists() else revision.base}@{revision.revision}"
    return MODEL if not isinstance(model, str) or Path(model).exists() else model


class OverModels(Experiment[Any, UnitsFacts]):
    """An experiment over several models, made from the one for a single model."""

    facts = UnitsFacts

    def __init__(self, experiment: Experiment[Any, Any], models: SeveralModels | None) -> None:
        """Take the experiment and the models; None for results that are only read."""
        self.experiment, self.models = experiment, models
        copied = ("name", "settings", "source", "out", "record", "function", "single", "paged", "by_layer")
        for name in copied:
            setattr(self, name, getattr(experiment, name))

    @property
    def returns(self) -> type[UnitsResult]:
        """The class of a run's result."""
        return UnitsResult

    def reads_text(self, settings: Any, texts: Texts | None) -> bool:
        """As for a single model."""
        return self.experiment.reads_text(settings, texts)

    def check(self, settings: Any) -> None:
        """Check as for a single model, then that every model can be opened, without reading weights."""
        self.experiment.check(settings)
        if self.models is not None:
            workers = self.models.workers
            if workers.away and (in_memory := [m for m in self.models.models if not isinstance(m, str | Path)]):
                problem = f"{workers.stated} was given with {name_before(in_memory[0])}, which is in memory."
                reason = "Another process opens a model from its files."
                raise SpecError(problem, reason, "Give the model's folder or name, or leave that out.")
            for model in self.models.models:  # before a hub is asked for the first
                check_folder(model)
            seen: dict[str, str] = {}
            for model in self.models.models:
                check_exists(model, **getattr(self.models.settings, self.models.group).fetch_options())
                if isinstance(model, Subject):
                    _check_weights(seen, model.fingerprint, model.name)

    def measure(self, settings: Any, context: RunContext) -> Measured[UnitsFacts]:
        """Tables and page of every model, and means, intervals and claims over models.

        A claim's effect is then each model's own, tested by Student's t over models; revisions of one model are no sample of
        anything, and have no test over them. A finished model is a unit of the folder until all are, so that a call after one
        that was stopped goes on with the next. Raises ModelError where two models have the same weights.
        """
        assert self.models is not None
        over, folder = self.models, RunFolder(context.home or context.folder)
        places = _measure_units(self.experiment, over, context, folder)
        done = [self._read(*unit_and_place, context) for unit_and_place in zip(over.units, places, strict=True)]
        seen: dict[str, str] = {}
        for unit in done:
            _check_weights(seen, unit.facts.fingerprint, unit.facts.name)
        named = concat_tables(
            {unit.facts.name: {k: t for k, t in unit.tables.items() if k != "claims"} for unit in done}
        )
        named["findings"] = findings_table({unit.facts.name: unit.findings for unit in done})
        claims = {unit.facts.name: unit.tables["claims"] for unit in done if "claims" in unit.tables}
        if claims:
            named["claims_by_model"] = concat_tables({name: {"claims": table} for name, table in claims.items()})[
                "claims"
            ]
        if over.kind == MODELS:
            named["over_models"] = over_models(named["measures"])
        facts = UnitsFacts(
            over.kind, self.experiment.name, tuple(unit.facts for unit in done), self.experiment.by_layer
        )

        def judge(about: About[UnitsFacts]) -> pl.DataFrame:
            subjects = [{"subject": model.name, "fingerprint": model.fingerprint} for model in about.facts.models]
            return judge_over_models(list(claims.values()), {"models": subjects})

        judged = judge if claims and over.kind == MODELS else None
        packages = tuple(dict.fromkeys(name for unit in done for name in unit.packages))
        notes = notes_by_model(done)
        if len(kinds := dict.fromkeys(read_unit_data(place)["hardware"] for place in places)) > 1:
            words = "Last digits may differ for reasons of their own: models were measured on"
            notes = (*notes, f"{words} {'; '.join(kinds)}.")
        return Measured(named, facts, notes, judged, done[0].family if claims else None, packages=packages)

    def _read(self, unit: _Unit, place: Path, context: RunContext) -> UnitMeasured:
        """Read one model's result, with its page and figures among the files of this run."""
        for name in RunFolder(place).manifest()["files"]:
            if name not in (self.experiment.record, UNIT) and not name.startswith("tables/"):
                target = context.folder / unit.page / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(place / name, target)
        return read_unit(self.experiment, place, unit.page)

    def page_module(self) -> PageModule[UnitsFacts]:
        """Findings and page of several models, for any experiment."""
        return page


def _measure_units(
    experiment: Experiment[Any, Any], over: SeveralModels, context: RunContext, folder: RunFolder
) -> list[Path]:
    """The folders of all models' files: finished by an earlier call, or measured now."""
    settings, workers = over.settings, over.workers
    source: ModelSource = getattr(settings, over.group)
    plain = _settings_for(over, replace(source, model=None))
    marks = place_marks(plain)

    def check() -> None:
        """Raise StudyError where a file or folder on this machine that a setting names is not what it was."""
        marks_now = place_marks(plain, hub=False)
        if changed := [place for place, mark in marks_now.items() if marks.get(place, mark) != mark]:
            reason = "Every model reads it for itself, so that models would not be measured by the same."
            problem = f"{changed[0]} was changed while models were measured."
            raise StudyError(problem, reason, "Run the same command again.")

    keys = {
        unit: _unit_key(experiment.name, plain, marks, context.given_texts, unit.called, mark)
        for unit, mark in zip(over.units, over.marks, strict=True)
    }
    done = [place for key in keys.values() if (place := folder.resume(key)) is not None]
    left = [unit for unit, key in keys.items() if folder.unit_folder(key) not in done]
    if workers.away:
        if source.device_map is not None and workers.workers is None:  # each model over all GPUs
            workers = replace(workers, workers=1)
        has_gpu = uses_gpu(source) and source.device_map is None
        machine = workers.machine(context.machine.quiet, "cuda" if has_gpu else "cpu")
        with folder.scratch() as scratch:
            texts = None if context.given_texts is None else scratch / f"{TEXTS}.jsonl"
            if context.given_texts is not None and texts is not None and left:
                write_texts(context.given_texts, texts)
            far = workers.engine == "ray"
            works = [
                UnitWork(
                    u.called, keys[u], experiment, _settings_for(over, u.source), over.group, folder, texts, far, check
                )
                for u in left
            ]
            run_jobs(works, machine, machine.device, scratch)
    else:
        numerics, seen = hardware(uses_gpu(source)), dict[str, str]()
        for unit in left:
            subject: Any = unit.source.open()
            _check_weights(seen, subject.fingerprint, unit.called)
            if subject.name != unit.called:
                subject = replace(subject, name=unit.called)
            with folder.unit(keys[unit], experiment.name) as place:
                subject = for_texts(subject, context.given_texts)
                unit_context = RunContext(place, context.machine, (subject,), context.given_texts)
                write_unit(experiment, _settings_for(over, unit.source), unit_context, numerics)
                check()
            del subject, unit_context
            gc.collect()  # a model's hooks refer to it in circles
    return [folder.unit_folder(key) for key in keys.values()]


def _check_weights(seen: dict[str, str], fingerprint: str, name: str) -> None:
    """Raise ModelError for a model whose weights have been met under another name."""
    if (before := seen.setdefault(fingerprint, name)) != name:
        raise ModelError(f"{name} has the weights of {before}.", REPEAT_REASON, "Leave one of them out.")


def _unit_key(
    experiment: str, plain: Any, marks: Mapping[str, str], texts: Texts | None, called: str, weights: str
) -> str:
    """A hash of everything that one model's numbers depend on: command, settings, texts, software, and model files.

    `plain` are the settings without their models. Nothing is found again under the key of what lies in memory, or of files that
    nobody can mark (empty `weights`).
    """
    try:
        data = encode_settings(plain)
    except SpecError:  # data in memory
        data = secrets.token_hex(16)
    read = None if texts is None else [texts.name, texts.fingerprint, texts.options, texts.notes]
    software = versions("transformers", "tokenizers", "safetensors", "concept-erasure") | {"code": code_hash()}
    content = [experiment, data, dict(marks), read, software, called, weights or secrets.token_hex(16)]
    return digest(json.dumps(content, sort_keys=True, default=list))


def check_workers(settings: Any) -> None:
    """Raise SpecError for workers with a single model."""
    if stated := _workers(settings).stated:
        reason = "A model is measured by one process, so that workers are for several, and one is named."
        raise SpecError(f"{stated} was given.", reason, "Name several models, or leave it out.")


def _workers(settings: Any) -> ModelWorkers:
    machine = getattr(settings, "machine", None)
    return machine if isinstance(machine, ModelWorkers) else ModelWorkers()
