"""One experiment over several models: measured one after the other, each in memory alone, and put together."""

from __future__ import annotations

import filecmp
import gc
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from trisect.claims import claims_hash
from trisect.claims.models import judge_over_models
from trisect.core.errors import ModelError
from trisect.core.finding import About, Finding
from trisect.core.subject import Subject
from trisect.lab.command import command
from trisect.lab.experiment import Bench, Experiment, Measured, Replicates, Shows
from trisect.lab.subject import check_there, weight_files
from trisect.lab.units import page
from trisect.lab.units.names import MODELS, SeveralModels
from trisect.lab.units.pool import ModelFindings, findings_table, joined, over_models
from trisect.lab.units.settings import UnitFacts, UnitsFacts, UnitsResult
from trisect.lab.versions import versions
from trisect.report.format import slug
from trisect.report.sheet import write_page

FOLDER = "models"  # of each model's own page
SHOWN = ("texts", "tokens", "words", "pairs")  # facts that models are compared by


@dataclass(frozen=True)
class OverModels(Experiment[Any, UnitsFacts]):
    """An experiment over several models, made of the one that measures a single model."""

    one: Experiment[Any, Any] | None = None
    models: SeveralModels | None = None

    @classmethod
    def made(cls, one: Experiment[Any, Any], models: SeveralModels) -> OverModels:
        """The experiment over these models."""
        same = {field.name: getattr(one, field.name) for field in fields(Experiment)}
        return cls(**{**same, "facts": UnitsFacts, "result": "", "makes": ""}, one=one, models=models)

    @property
    def returns(self) -> type[UnitsResult]:
        """What a run returns."""
        return UnitsResult

    def measures(self) -> UnitsMeasure:
        """What measures: the single model's own module, once a model."""
        assert self.one is not None
        assert self.models is not None
        return UnitsMeasure(self.one, self.models)

    def shows(self) -> Shows[UnitsFacts]:
        """The page of several models, which is the same for every experiment."""
        module: Any = page
        return module


class UnitMeasured(NamedTuple):
    """What one model gave."""

    facts: UnitFacts
    tables: Mapping[str, pl.DataFrame]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    family: str | None
    packages: tuple[str, ...]
    replicates: Mapping[tuple[str | float | int | bool | None, ...], Replicates]


@dataclass(frozen=True)
class UnitsMeasure:
    """Measures every model as if it were the only one, then their means."""

    one: Experiment[Any, Any]
    models: SeveralModels

    def measure(self, settings: Any, bench: Bench) -> Measured[UnitsFacts]:
        """Every model's own tables and page, and over models means, intervals and claims.

        A claim's effect is then each model's own, tested by Student's t over models; revisions of one model are no sample of
        anything, and have no test over them. Raises ModelError where two models have the same weights.
        """
        self._check_all(settings)
        done: list[UnitMeasured] = []
        for number, model in enumerate(self.models.models, start=1):
            subject = self._open(settings, model, number, done)
            done.append(self._measured(settings, bench, number, subject))
            del subject
            gc.collect()  # a model's hooks refer to it in circles
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
        return Measured(named, facts, _notes(done), judged, family, packages=packages, command=words)

    def _check_all(self, settings: Any) -> None:
        """Raise ModelError for any model that cannot be opened, or has another's weights, as far as no weights are read.

        A model that is wrong is met before the first is measured, whose work would be lost.
        """
        options, seen = getattr(settings, self.models.group).fetched(), []
        for model, word in zip(self.models.models, self.models.words, strict=True):
            check_there(model, **options)
            own = model.fingerprint if isinstance(model, Subject) else None
            name, files = (model.name, ()) if isinstance(model, Subject) else (_name(model, word), weight_files(model))
            for before, mark, others in seen:
                if (own is not None and own == mark) or _same(files, others):
                    raise _twice(name, before)
            seen.append((name, own, files))

    def _open(self, settings: Any, model: Any, number: int, done: list[UnitMeasured]) -> Subject:
        """A model with a name and weights that none before it has."""
        subject = replace(getattr(settings, self.models.group), model=model).open()
        if same := [of.facts.name for of in done if of.facts.fingerprint == subject.fingerprint]:
            raise _twice(subject.name, same[0])
        taken = subject.name in [of.facts.name for of in done]
        return _renamed(subject, f"{subject.name} ({number})") if taken else subject

    def _measured(self, settings: Any, bench: Bench, number: int, subject: Subject) -> UnitMeasured:
        """One model, with its own page."""
        group = self.models.group
        source = replace(getattr(settings, group), model=self.models.models[number - 1])
        own = replace(settings, **{group: source}, units=None)
        return measure_unit(self.one, own, bench, f"{FOLDER}/{number:02d}-{slug(subject.name)}", subject)


def measure_unit(one: Experiment[Any, Any], settings: Any, bench: Bench, place: str, subject: Subject) -> UnitMeasured:
    """One model as an experiment measures it, with its own page, at `place` in the folder of the bench."""
    began = time.monotonic()
    own = Bench(bench.folder / place, bench.machine, (subject,), bench.given_texts)
    own.folder.mkdir(parents=True, exist_ok=True)
    measured = one.measures().measure(settings, own)
    about = About(
        one.name,
        command(one, settings, (subject,), bench.given_texts) if measured.command is None else measured.command,
        time.monotonic() - began if measured.seconds is None else measured.seconds,
        measured.notes,
        versions(*measured.packages),
        None if measured.family is None else claims_hash(measured.family),
        measured.facts,
    )
    tables = dict(measured.tables) | ({} if measured.judge is None else {"claims": measured.judge(about)})
    shows = one.shows()
    found = tuple(shows.findings(tables, about))
    shown = write_page(own.folder, shows.page(tables, about))
    said = tuple(map(str, found))
    facts = UnitFacts(subject.name, subject.fingerprint, f"{place}/{shown.name}", said, tuple(_facts(measured.facts)))
    return UnitMeasured(facts, tables, found, measured.notes, measured.family, measured.packages, measured.replicates)


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


def _renamed(subject: Any, name: str) -> Subject:
    return replace(subject, name=name)


def _facts(facts: Any) -> Iterator[tuple[str, str]]:
    """What a model's own facts say that models are compared by."""
    assert is_dataclass(facts)
    for name in SHOWN:
        value = getattr(facts, name, None)
        if value is not None:
            yield name, f"{value:,}"


def _notes(done: list[UnitMeasured]) -> tuple[str, ...]:
    """What all models' notes say, then what some say, with their names."""
    shared = [note for note in done[0].notes if all(note in of.notes for of in done)]
    own = [f"{of.facts.name}: {note}" for of in done for note in of.notes if note not in shared]
    return tuple(dict.fromkeys((*shared, *own)))
