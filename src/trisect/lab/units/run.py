"""One experiment over several models: each measured as if it were alone, kept until all are there, and put together."""

from __future__ import annotations

import filecmp
import gc
import json
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from trisect.claims.models import judge_over_models
from trisect.core.errors import ModelError, SiteError, SpecError, StudyError, TrisectError
from trisect.core.files import digest
from trisect.core.finding import About, Finding
from trisect.core.machine import code_mark, versions
from trisect.core.site import Site
from trisect.core.subject import Subject, Texts
from trisect.lab.command import place_marks
from trisect.lab.experiment import Experiment, Measured, RunContext
from trisect.lab.inputs import ModelSource, ModelWorkers
from trisect.lab.jobs import run_jobs
from trisect.lab.passes import plan_edits
from trisect.lab.run_folder import RunFolder
from trisect.lab.subject import (
    at_revision,
    check_folder,
    check_there,
    checkpoints_mark,
    files_mark,
    name_before,
    weight_files,
)
from trisect.lab.units import page
from trisect.lab.units.jobs import (
    TEXTS,
    UNIT,
    AskedUnit,
    UnitMeasured,
    UnitWork,
    encoded,
    made_on,
    notes_by_model,
    read_unit,
    read_unit_data,
    uses_gpu,
    write_texts,
    write_unit,
)
from trisect.lab.units.page import ModelFindings, findings_table, joined, over_models
from trisect.lab.units.settings import MODELS, SeveralModels, UnitsFacts, UnitsResult
from trisect.report.format import slug
from trisect.report.sheet import Sheet

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


FOLDER = "models"  # of each model's own page


class OverModels(Experiment[Any, UnitsFacts]):
    """An experiment over several models, made of the one that measures a single model."""

    facts = UnitsFacts

    def __init__(self, one: Experiment[Any, Any], models: SeveralModels | None) -> None:
        """Over these models; None is for what was measured before, and is only read."""
        self.one, self.models = one, models
        self.name, self.settings, self.source, self.out = one.name, one.settings, one.source, one.out
        self.record, self.function, self.single, self.paged = one.record, one.function, one.single, one.paged
        self.by_layer = one.by_layer

    @property
    def returns(self) -> type[UnitsResult]:
        """What a run returns."""
        return UnitsResult

    def reads_text(self, settings: Any, texts: Texts | None) -> bool:
        """As the single model's own."""
        return self.one.reads_text(settings, texts)

    def check(self, settings: Any) -> None:
        """As the single model's own, then that every model can be opened, as far as no weights are read."""
        self.one.check(settings)
        if self.models is not None:
            check_models(self.models, settings)

    def marks(self, settings: Any) -> list[str]:
        """A mark of every model's weights, before any is opened; empty where nobody can mark them."""
        assert self.models is not None
        source = getattr(settings, self.models.group)
        own = (replace(source, model=model) for model in self.models.models)
        return [one.model.fingerprint if isinstance(one.model, Subject) else weights_mark(settings, one) for one in own]

    def measure(self, settings: Any, context: RunContext) -> Measured[UnitsFacts]:
        """Every model's own tables and page, and what they have in common."""
        assert self.models is not None
        return UnitsMeasure(self.one, self.models).measure(settings, context)

    def findings(self, tables: Mapping[str, pl.DataFrame], about: About[UnitsFacts]) -> Sequence[Finding]:
        """What was found over models, which is the same for every experiment."""
        return page.findings(tables, about)

    def page(self, tables: Mapping[str, pl.DataFrame], about: About[UnitsFacts]) -> Sheet:
        """The page of several models, which is the same for every experiment."""
        return page.page(tables, about)


def check_models(several: SeveralModels, settings: Any) -> None:
    """Raise ModelError for any model that cannot be opened, or has another's weights, as far as no weights are read.

    A model that is wrong is met before the first is measured.
    """
    options, seen = getattr(settings, several.group).fetched(), []
    if _workers(settings).away and (here := [m for m in several.models if not isinstance(m, str | Path)]):
        given = f"{_workers(settings).given} was given with {name_before(here[0])}, which is in memory."
        known = "Another process opens a model from its files."
        raise SpecError(given, known, "Give the model's folder or name, or leave that out.")
    for model in several.models:  # before a hub is asked for the first
        check_folder(model)
    for model, word in zip(several.models, several.words, strict=True):
        check_there(model, **options)
        own = model.fingerprint if isinstance(model, Subject) else None
        name, files = (model.name, ()) if isinstance(model, Subject) else (_name(model, word), weight_files(model))
        for before, mark, others in seen:
            if (own is not None and own == mark) or _same(files, others):
                raise _twice(name, before)
        seen.append((name, own, files))


@dataclass(frozen=True)
class UnitsMeasure:
    """Measures every model as if it were the only one, then their means."""

    one: Experiment[Any, Any]
    models: SeveralModels

    def measure(self, settings: Any, context: RunContext) -> Measured[UnitsFacts]:
        """Every model's own tables and page, and over models means, intervals and claims.

        A claim's effect is then each model's own, tested by Student's t over models; revisions of one model are no sample of
        anything, and have no test over them. A finished model is a unit of the folder until all are, so that a call after one
        that was stopped goes on with the next. Raises ModelError where two models have the same weights.
        """
        folder = RunFolder(context.home or context.folder)
        places = self._measure_all(self._units(settings), settings, context, folder)
        done = [self._read(unit, place, context) for unit, place in places.items()]
        self._check_alike(done)
        tables = {of.facts.name: of.tables for of in done}
        named = joined({name: {k: t for k, t in of.items() if k != "claims"} for name, of in tables.items()})
        named["findings"] = findings_table(ModelFindings(of.facts.name, of.findings) for of in done)
        claims = {name: of["claims"] for name, of in tables.items() if "claims" in of}
        if claims:
            named["claims_by_model"] = joined({name: {"claims": of} for name, of in claims.items()})["claims"]
        if self.models.kind == MODELS:
            named["over_models"] = over_models(named["measures"])
        facts = UnitsFacts(self.models.kind, self.one.name, tuple(of.facts for of in done), self.one.by_layer)

        def judge(about: About[UnitsFacts]) -> pl.DataFrame:
            own = [{"subject": one.name, "fingerprint": one.fingerprint} for one in about.facts.models]
            return judge_over_models(list(claims.values()), {"models": own})

        judged = judge if claims and self.models.kind == MODELS else None
        packages = tuple(dict.fromkeys(name for of in done for name in of.packages))
        family = done[0].family if claims else None
        notes = (*notes_by_model(done), *_machines([read_unit_data(place)["made_on"] for place in places.values()]))
        return Measured(named, facts, notes, judged, family, packages=packages)

    def _units(self, settings: Any) -> tuple[AskedUnit, ...]:
        """The models in their order, each with a name that none before it has."""
        found, names = list[AskedUnit](), set[str]()
        for number, model in enumerate(self.models.models, start=1):
            source, name = replace(getattr(settings, self.models.group), model=model), name_before(model)
            called = f"{name} ({number})" if name in names else name
            names.add(called)
            found.append(AskedUnit(number, source, called, f"{FOLDER}/{number:02d}-{slug(called)}"))
        return tuple(found)

    def _measure_all(
        self, units: Sequence[AskedUnit], settings: Any, context: RunContext, folder: RunFolder
    ) -> dict[AskedUnit, Path]:
        """Where each model's files lie: those that a call before finished, and those that are measured now."""
        workers, group = _workers(settings), self.models.group
        plain = replace(settings, **{group: replace(getattr(settings, group), model=None)}, **_no_units(settings))
        marks = place_marks(plain)
        check = partial(check_same, plain, marks)
        keys = {
            unit: unit_key(
                self.one.name, plain, marks, context.given_texts, unit.called, weights_mark(settings, unit.source)
            )
            for unit in units
        }
        places = {unit: place for unit, key in keys.items() if (place := folder.resume(key)) is not None}
        left = [unit for unit in units if unit not in places]
        if workers.engine != "ray":  # this machine need not hold the models of a cluster
            check_sites(settings, [one.source for one in left], workers.away)
        gpu = uses_gpu(getattr(settings, group))
        if workers.away:
            source = getattr(settings, group)
            if source.device_map is not None and workers.workers is None:  # each model over all GPUs
                workers = replace(workers, workers=1)
            own_gpu = gpu and source.device_map is None
            machine = workers.machine(context.machine.quiet, "cuda" if own_gpu else "cpu")
            with folder.scratch() as scratch:
                texts = None if context.given_texts is None else scratch / f"{TEXTS}.jsonl"
                if context.given_texts is not None and texts is not None and left:
                    write_texts(context.given_texts, texts)
                far = workers.engine == "ray"
                works = [UnitWork(one, keys[one], self.one, settings, group, folder, texts, far, check) for one in left]
                run_jobs(works, machine, machine.device, scratch)
        else:
            numerics, known = made_on(gpu), [read_unit_data(place) for place in places.values()]
            for unit in left:
                subject = self._open(unit, {of["fingerprint"]: of["subject"] for of in known})
                own = replace(settings, **{group: unit.source}, **_no_units(settings))
                with folder.unit(keys[unit], self.one.name) as place:
                    write_unit(
                        self.one, own, RunContext(place, context.machine, (subject,), context.given_texts), numerics
                    )
                    check()
                    known.append(read_unit_data(place))
                del subject
                gc.collect()  # a model's hooks refer to it in circles
        return {unit: folder.place(key) for unit, key in keys.items()}

    def _open(self, unit: AskedUnit, before: Mapping[str, str]) -> Subject:
        """A model under its name, with weights that none before it has."""
        subject: Any = unit.source.open()
        if subject.fingerprint in before:
            raise _twice(unit.called, before[subject.fingerprint])
        return subject if subject.name == unit.called else replace(subject, name=unit.called)

    def _read(self, unit: AskedUnit, place: Path, context: RunContext) -> UnitMeasured:
        """One model, its page and figures among the files of this run."""
        for name in RunFolder(place).manifest()["files"]:
            if name not in (self.one.record, UNIT) and not name.startswith("tables/"):
                target = context.folder / unit.page / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(place / name, target)
        return read_unit(self.one, place, unit.page)

    def _check_alike(self, done: Sequence[UnitMeasured]) -> None:
        """Raise ModelError where two models have the same weights."""
        seen: dict[str, str] = {}
        for of in done:
            if of.facts.fingerprint in seen:
                raise _twice(of.facts.name, seen[of.facts.fingerprint])
            seen[of.facts.fingerprint] = of.facts.name


def unit_key(
    experiment: str, plain: Any, marks: Mapping[str, str], texts: Texts | None, called: str, weights: str
) -> str:
    """32 hex digits of all that one model's numbers follow from: command, settings, texts, software, and the model's files.

    `plain` are the settings without their models. Nothing is found again under the key of what lies in memory, or of files that
    nobody can mark (empty `weights`).
    """
    try:
        own = encoded(plain)
    except SpecError:  # data in memory
        own = secrets.token_hex(16)
    read = None if texts is None else [texts.name, texts.fingerprint, texts.options, texts.notes]
    software = versions("transformers", "tokenizers", "safetensors", "concept-erasure") | {"code": code_mark()}
    content = [experiment, own, dict(marks), read, software, called, weights or secrets.token_hex(16)]
    return digest(json.dumps(content, sort_keys=True, default=list))


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


def check_same(settings: Any, before: Mapping[str, str]) -> None:
    """Raise StudyError where a file or folder on this machine that a setting names is not what it was (`place_marks`)."""
    now = place_marks(settings, hub=False)
    if changed := [place for place, mark in now.items() if before.get(place, mark) != mark]:
        known = "Every model reads it for itself, so that models would not be measured by the same."
        raise StudyError(f"{changed[0]} was changed while models were measured.", known, "Call the same command again.")


def _no_units(settings: Any) -> dict[str, None]:
    """What takes out of settings that they name several models."""
    return {"units": None} if hasattr(settings, "units") else {}


def check_workers(settings: Any) -> None:
    """Raise SpecError for workers where one model is named."""
    if given := _workers(settings).given:
        known = "A model is measured by one process, so that workers are for several, and one is named."
        raise SpecError(f"{given} was given.", known, "Name several models, or leave it out.")


def _workers(settings: Any) -> ModelWorkers:
    found = getattr(settings, "machine", None)
    return found if isinstance(found, ModelWorkers) else ModelWorkers()


def _twice(name: str, before: str) -> ModelError:
    known = "Every unit counts once: the same model twice would make intervals too narrow."
    return ModelError(f"{name} has the weights of {before}.", known, "Leave one of them out.")


def _name(model: object, word: str) -> str:
    """What a model that is not opened yet is called in an error message."""
    return Path(model).name if isinstance(model, str | Path) else word


def _same(files: Sequence[Path], others: Sequence[Path]) -> bool:
    """Whether two models' files hold the same bytes; models of one recipe differ within the first few thousand."""
    if not files or [one.name for one in files] != [one.name for one in others]:
        return False
    return all(filecmp.cmp(one, other, shallow=False) for one, other in zip(files, others, strict=True))


def _machines(made: Sequence[str]) -> Iterator[str]:
    """What is to be said where models were not all computed alike."""
    if len(kinds := list(dict.fromkeys(made))) > 1:
        yield f"Last digits may differ for reasons of their own: models were measured on {'; '.join(kinds)}."
