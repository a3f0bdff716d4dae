"""One experiment over several models: each measured as if it were alone, kept until all are there, and put together."""

from __future__ import annotations

import filecmp
import gc
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import polars as pl
import torch

from trisect.claims.models import judge_over_models
from trisect.core.errors import ModelError, SpecError, StudyError
from trisect.core.files import digest
from trisect.core.finding import About
from trisect.core.subject import Subject
from trisect.lab.command import command
from trisect.lab.experiment import Bench, Experiment, Measured, Shows
from trisect.lab.inputs import ModelWorkers
from trisect.lab.jobs import run_jobs
from trisect.lab.subject import check_there, name_before, weight_files
from trisect.lab.units import page
from trisect.lab.units.jobs import TEXTS, AskedUnit, UnitWork, made_on, uses_gpu
from trisect.lab.units.kept import UnitStore
from trisect.lab.units.marks import asked_mark, check_same, local_places, weights_mark
from trisect.lab.units.measuring import UnitMeasured, notes_by_model, read_unit, write_unit
from trisect.lab.units.names import MODELS, SeveralModels
from trisect.lab.units.pool import ModelFindings, findings_table, joined, over_models
from trisect.lab.units.settings import UnitsFacts, UnitsResult
from trisect.lab.units.sites import check_sites
from trisect.lab.units.travel import write_texts
from trisect.report.format import slug

FOLDER = "models"  # of each model's own page


@dataclass(frozen=True)
class OverModels(Experiment[Any, UnitsFacts]):
    """An experiment over several models, made of the one that measures a single model."""

    one: Experiment[Any, Any] | None = None
    models: SeveralModels | None = None

    @classmethod
    def made(cls, one: Experiment[Any, Any], models: SeveralModels | None) -> OverModels:
        """The experiment over these models; null is for what was measured before, and is only read."""
        same = {field.name: getattr(one, field.name) for field in fields(Experiment)}
        return cls(**{**same, "facts": UnitsFacts, "result": "", "makes": ""}, one=one, models=models)

    @property
    def returns(self) -> type[UnitsResult]:
        """What a run returns."""
        return UnitsResult

    def check(self, settings: Any) -> None:
        """As the single model's own."""
        assert self.one is not None
        self.one.check(settings)

    def measures(self) -> UnitsMeasure:
        """What measures: the single model's own module, once a model."""
        assert self.one is not None
        assert self.models is not None
        return UnitsMeasure(self.one, self.models)

    def shows(self) -> Shows[UnitsFacts]:
        """The page of several models, which is the same for every experiment."""
        module: Any = page
        return module


@dataclass(frozen=True)
class UnitsMeasure:
    """Measures every model as if it were the only one, then their means."""

    one: Experiment[Any, Any]
    models: SeveralModels

    def check(self, settings: Any) -> None:
        """Raise TrisectError for settings that are wrong whatever the models are."""
        self.one.check(settings)

    def measure(self, settings: Any, bench: Bench) -> Measured[UnitsFacts]:
        """Every model's own tables and page, and over models means, intervals and claims.

        A claim's effect is then each model's own, tested by Student's t over models; revisions of one model are no sample of
        anything, and have no test over them. A model that is finished is kept in the folder until all are, so that a call after
        one that was stopped goes on. Raises ModelError where two models have the same weights.
        """
        self._check_all(settings)
        store = UnitStore.open(bench.home or bench.folder, self.one.name)
        places = local_places(settings)
        units = self._units(settings, bench)
        try:
            self._do(units, settings, bench, store, places)
        except BaseException:
            store.remove_empty()
            raise
        done = [self._read(unit, store, bench) for unit in units]
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
        words = command(self.one, settings, (), bench.given_texts, self.models.words)
        family = done[0].family if claims else None
        notes = (*notes_by_model(done), *_machines([store.read(unit.key)["made_on"] for unit in units]))
        return Measured(named, facts, notes, judged, family, packages=packages, command=words)

    def _check_all(self, settings: Any) -> None:
        """Raise ModelError for any model that cannot be opened, or has another's weights, as far as no weights are read.

        A model that is wrong is met before the first is measured.
        """
        options, seen = getattr(settings, self.models.group).fetched(), []
        if _workers(settings).away and (here := [m for m in self.models.models if not isinstance(m, str | Path)]):
            given = f"{_workers(settings).given} was given with {name_before(here[0])}, which is in memory."
            known = "Another process opens a model from its files."
            raise SpecError(given, known, "Give the model's folder or name, or leave that out.")
        for model, word in zip(self.models.models, self.models.words, strict=True):
            check_there(model, **options)
            own = model.fingerprint if isinstance(model, Subject) else None
            name, files = (model.name, ()) if isinstance(model, Subject) else (_name(model, word), weight_files(model))
            for before, mark, others in seen:
                if (own is not None and own == mark) or _same(files, others):
                    raise _twice(name, before)
            seen.append((name, own, files))

    def _units(self, settings: Any, bench: Bench) -> tuple[AskedUnit, ...]:
        """The models in their order, each with a name that none before it has."""
        asked = asked_mark(self.one.name, settings, self.models.group, bench.given_texts)
        found, names = list[AskedUnit](), set[str]()
        for number, model in enumerate(self.models.models, start=1):
            source, name = replace(getattr(settings, self.models.group), model=model), name_before(model)
            called = f"{name} ({number})" if name in names else name
            names.add(called)
            where = str(Path(model).resolve()) if isinstance(model, str | Path) and Path(model).exists() else model
            key = digest(json.dumps([asked, str(where) if isinstance(where, str | Path) else number, called]), 8)
            place = f"{FOLDER}/{number:02d}-{slug(called)}"
            found.append(AskedUnit(number, source, called, key, asked, place))
        return tuple(found)

    def _do(
        self, units: Sequence[AskedUnit], settings: Any, bench: Bench, store: UnitStore, places: Mapping[str, str]
    ) -> None:
        """Measure what is not kept from a call before; nothing is kept of a model during which one of `places` was changed."""
        workers, gpu = _workers(settings), uses_gpu(getattr(settings, self.models.group))
        threads = 1 if workers.away else torch.get_num_threads()
        numerics = made_on(gpu, threads)

        def weights(unit: AskedUnit) -> str:
            return weights_mark(settings, unit.source)

        left = [one for one in units if not store.has(one.key, one.asked, numerics, lambda one=one: weights(one))]
        if workers.engine != "ray":  # this machine need not hold the models of a cluster
            check_sites(settings, [one.source for one in left], workers.away)
        if workers.away:
            texts = None if bench.given_texts is None else store.root / f"{TEXTS}.jsonl"
            if bench.given_texts is not None and texts is not None and left:
                write_texts(bench.given_texts, texts)
            far = workers.engine == "ray"
            works = [
                UnitWork(one, self.one, settings, self.models.group, store, texts, weights(one), far, gpu)
                for one in left
            ]
            machine = workers.machine(bench.machine.quiet, "cuda" if gpu else "cpu")
            run_jobs(works, machine, machine.device, store.root)
            try:
                check_same(settings, places)
            except StudyError:
                store.forget(unit.key for unit in left)
                raise
            return
        known = {one.key: store.read(one.key) for one in units if one not in left}
        for unit in left:
            mark, subject = weights(unit), self._open(unit, {of["fingerprint"]: of["subject"] for of in known.values()})
            with store.filling(unit.key) as folder:
                own = replace(settings, **{self.models.group: unit.source}, units=None)
                write_unit(
                    self.one,
                    own,
                    Bench(folder, bench.machine, (subject,), bench.given_texts),
                    (unit.asked, mark, numerics),
                )
                check_same(settings, places)
            known[unit.key] = store.read(unit.key)
            del subject
            gc.collect()  # a model's hooks refer to it in circles

    def _open(self, unit: AskedUnit, before: Mapping[str, str]) -> Subject:
        """A model under its name, with weights that none before it has."""
        subject: Any = unit.source.open()
        if subject.fingerprint in before:
            raise _twice(unit.called, before[subject.fingerprint])
        return subject if subject.name == unit.called else replace(subject, name=unit.called)

    def _read(self, unit: AskedUnit, store: UnitStore, bench: Bench) -> UnitMeasured:
        """One model, its page among the files of this run."""
        store.copy_pages(unit.key, bench.folder / unit.page, self.one.record)
        return read_unit(self.one, store.place(unit.key), store.read(unit.key), unit.page)

    def _check_alike(self, done: Sequence[UnitMeasured]) -> None:
        """Raise ModelError where two models have the same weights."""
        seen: dict[str, str] = {}
        for of in done:
            if of.facts.fingerprint in seen:
                raise _twice(of.facts.name, seen[of.facts.fingerprint])
            seen[of.facts.fingerprint] = of.facts.name


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
