"""The interface of experiments: settings, measuring, findings and page; and the result of a run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from trisect.core.errors import SpecError, import_optional, translate_system_errors
from trisect.core.files import Json
from trisect.core.finding import About, Finding
from trisect.core.machine import Machine
from trisect.core.schema import record

if TYPE_CHECKING:
    import polars as pl

    from trisect.core.subject import Subject, Texts
    from trisect.report.sheet import Document, Sheet, StudyLink


S = TypeVar("S")
F = TypeVar("F")


Tables: TypeAlias = "Mapping[str, pl.DataFrame]"  # by name


@dataclass(frozen=True, eq=False)
class Measured(Generic[F]):
    """What an experiment measured: tables by name, facts, notes, and further files (`paths`, by name).

    `judge` makes the table of claims once it is known where the numbers are from; None where nothing is claimed. `family`
    says of which claims the hash is noted: text, head, name, seed, …; `seconds` are those of all calls where work
    goes on over several, else None. `packages` are software besides PyTorch and the like that made the numbers. `command`
    repeats the whole where the settings of one call do not: what several calls have asked for. `links` are the page's own to
    others, where it is the first of several.
    """

    tables: Mapping[str, pl.DataFrame]
    facts: F
    notes: tuple[str, ...] = ()
    judge: Callable[[About[F]], pl.DataFrame] | None = None
    family: str | None = None
    seconds: float | None = None
    packages: tuple[str, ...] = ("transformers",)
    paths: Mapping[str, Path] = field(default_factory=dict)
    command: str | None = None
    links: tuple[StudyLink, ...] = ()


@dataclass(frozen=True, eq=False)
class Result(Generic[F]):
    """The result of a run: folder, tables by name, page, findings, and its record.

    `report` is the record where an experiment has no page (`paged`); `paths` are what `makes` says, such as models; `answer` is
    the page's first sentence, where it was drawn in this call.
    """

    folder: Path
    tables: Mapping[str, pl.DataFrame]
    report: Path
    findings: tuple[Finding, ...]
    about: About[F]
    paths: Mapping[str, Path]
    paged: bool = True
    makes: str = ""
    answer: str = ""

    def __repr__(self) -> str:
        tables = ", ".join(f"{name} [{table.height} × {table.width}]" for name, table in self.tables.items())
        first = f"; {self.findings[0]}" if self.findings else ""
        return f"<{type(self).__name__} of trisect {self.about.experiment} in {self.folder}: {tables}{first}>"

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the reader."""
        return self.about.notes

    def to_pandas(self, table: str = "") -> Any:
        """A table as a pandas.DataFrame: by name, else `measures` if there is one, else the first.

        Raises SpecError for a name that is none of `tables`, and without the package pandas.
        """
        name = table or ("measures" if "measures" in self.tables else next(iter(self.tables), ""))
        if name not in self.tables:
            reason = f"There are {', '.join(self.tables) or 'no tables'}."
            raise SpecError(f"The table {name!r} was asked for.", reason, "Name one of them.")
        return import_optional("pandas").DataFrame(self.tables[name].to_dict(as_series=False))

    def to_dict(self) -> dict[str, Json]:
        """Everything as JSON-ready data: the output of `--json`, with every table as a list of rows under `tables`."""
        rows: dict[str, Json] = {name: list(table.iter_rows(named=True)) for name, table in self.tables.items()}
        return {**self.data(), "tables": rows}

    def data(self) -> dict[str, Json]:
        """The result as JSON-ready data: the page's first sentence, page, findings in words and as records, notes, and files."""
        return {
            **({"answer": self.answer} if self.answer else {}),
            **({"report": str(self.report.resolve())} if self.paged else {}),
            **({self.makes: [str(path.resolve()) for path in self.paths.values()]} if self.makes else {}),
            "notes": list(self.notes),
            "findings": [str(finding) for finding in self.findings],
            "records": [finding.data() for finding in self.findings],
        }


class LayerMeasure(NamedTuple):
    """A measure of the table `measures` that pages of several models show by layer, mean over the layer's heads.

    `component` is whose it is, where the rows themselves do not say; a `signed` number is a difference. Where q, k and v are to be
    ranked by it over models, `margin` is what they are alike within. `finding` is the measure of the finding that has its means
    over layers, where there is one.
    """

    measure: str
    title: str
    unit: str
    component: str = ""
    signed: bool = True
    margin: float | None = None
    finding: str = ""


@record
class UnitFacts:
    """One of several models: its name in rows, a hash of its weights, its page, and its findings in words."""

    name: str
    fingerprint: str
    page: str
    findings: tuple[str, ...]
    facts: tuple[tuple[str, str], ...] = ()


@record
class UnitsFacts:
    """Several models in order, and their relation: models of one recipe, or revisions of one model."""

    units: str
    what: str
    models: tuple[UnitFacts, ...]
    by_layer: tuple[LayerMeasure, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the models, in order."""
        return tuple(model.name for model in self.models)

    @property
    def is_sample(self) -> bool:
        """Whether the models are of one recipe, so that means and claims are tested over them."""
        return self.units == "models"


class UnitsResult(Result[UnitsFacts]):
    """The result of a run over several models; `tables` have a column `model`."""

    def data(self) -> dict[str, Json]:
        """The result as JSON-ready data, with each model's page and findings."""
        models: list[Json] = [
            {
                "model": model.name,
                "fingerprint": model.fingerprint,
                "report": str((self.folder / model.page).resolve()),
                "findings": list(model.findings),
            }
            for model in self.about.facts.models
        ]
        return {**super().data(), "units": self.about.facts.units, "models": models}


@dataclass(frozen=True)
class RunContext:
    """The context of a run: opened inputs, folder, machine, and progress.

    The folder is locked and its own while it measures. `subjects` and `texts` are what groups of the settings opened, `experiments`
    the ones that it runs, where it is made of others. `home` is the folder that the files land in, where they are staged in
    another; `show` gets the progress in the place of the terminal: the share that is done, and of what.
    """

    folder: Path
    machine: Machine
    subjects: tuple[Subject, ...] = ()
    given_texts: Texts | None = None
    experiments: tuple[Experiment[Any, Any], ...] = ()
    home: Path | None = None
    show: Callable[[float, str], None] | None = None

    @property
    def subject(self) -> Subject:
        """The opened model."""
        assert len(self.subjects) == 1, "the settings name one model"
        return self.subjects[0]

    @property
    def texts(self) -> Texts:
        """The opened texts."""
        assert self.given_texts is not None, "the settings name texts"
        return self.given_texts

    def measure(self, experiment: Experiment[Any, Any], settings: Any) -> Measured[Any]:
        """What an experiment measures; laws of models of others are looked at in part of its reads, and at its end."""
        from trisect.lab.subject import sampled

        with ExitStack() as stack:
            for subject in self.subjects:
                stack.enter_context(sampled(subject))
            return experiment.measure(settings, self)

    @contextmanager
    def progress(self, title: str) -> Iterator[Callable[[int, int], None]]:
        """A progress bar, called with (done, total)."""
        if (show := self.show) is not None:
            yield lambda done, total: show(done / total if total else 0.0, title)
            return
        from trisect.lab.jobs import bar  # with rich, which a library call that is quiet does without

        with bar(title, self.machine.quiet) as step:
            yield step


class Work(Protocol[F]):
    """Work that resumes in its folder after an interruption: checked against the folder, then run."""

    @property
    def name(self) -> str:
        """The value of {name} in the default folder; raises nothing."""
        ...

    def check(self, folder: Path) -> None:
        """Raise TrisectError if the folder is not this work's, or its files are damaged; changes nothing."""
        ...

    def folders_of(self, folder: Path) -> Iterable[Path]:
        """All folders that the work writes."""
        ...

    def measure(self, context: RunContext) -> Measured[F]:
        """Do all unfinished work; raises TrisectError."""
        ...


class PageModule(Protocol[F]):
    """A module with these two functions."""

    def findings(self, tables: Tables, about: About[F], /) -> Sequence[Finding]: ...  # noqa: D102

    def page(self, tables: Tables, about: About[F], /) -> Sheet | Document: ...  # noqa: D102


class Command(Generic[S]):
    """A command and function made from settings: `name` is the command's, `function` the Python name if it differs.

    Its docstring is what `--help` says, the first line a sentence, with an example.
    """

    name: str
    settings: type[S]
    function: str = ""

    @property
    def help(self) -> str:
        """The text of `--help`."""
        return inspect.cleandoc(self.__doc__ or "")  # the margin is there up to Python 3.12

    @property
    def python(self) -> str:
        """The function's name in Python."""
        return self.function or self.name.replace("-", "_")


class Experiment(Command[S], Generic[S, F]):
    """An experiment as every interface uses it: a class, whose methods import what they need when called.

    `out` is the folder where none is given, in which {model} stands for the model's name and {name} for that of training. `record`
    is the file that holds About. `source` is the key of the source that asks, empty where none
    does. One with a `single` page leaves that and nothing else: `out` is then the page, or a folder to put it in under this name.
    One that is not `paged` leaves no page. `makes` says in one word what its paths are where the terminal shows them, such as
    models. One that `is_of_words` reads text whatever its settings are. `by_layer` is what a page of several models draws layer by
    layer. `experiments` are those that it runs.
    """

    facts: type[F]
    source: str = ""
    out: str = ""
    record: str = "about.json"
    single: str = ""
    paged: bool = True
    makes: str = ""
    is_of_words: bool = False
    by_layer: tuple[LayerMeasure, ...] = ()
    experiments: tuple[Experiment[Any, Any], ...] = ()

    @property
    def leaves(self) -> str:
        """What `out` contains, for help."""
        if self.single:
            return "The page"
        names = [*filter(None, (self.makes,)), "tables", *(("figures", "page") if self.paged else ())]
        return f"The folder for {', '.join(names[:-1])} and {names[-1]}"

    @property
    def where(self) -> str:
        """The default of `out`, for help."""
        return (self.out or self.name).format(model="MODEL", name="NAME")

    @property
    def returns(self) -> type[Result[F]]:
        """The class of a run's result."""
        return Result

    def check(self, settings: S) -> None:
        """Raise TrisectError for settings that are wrong for any model; opens no model."""

    def reads_text(self, settings: S, texts: Texts | None) -> bool:
        """Whether the models read text, without sound or images."""
        return self.is_of_words or (texts is not None and isinstance(next(texts.texts(), None), str | tuple))

    def check_model(self, settings: S, subject: Subject) -> None:
        """Raise TrisectError for settings that the model cannot run, without a forward pass."""

    def measure(self, settings: S, context: RunContext) -> Measured[F]:
        """Do the work; raises TrisectError."""
        raise NotImplementedError(self.name)

    def page_module(self) -> PageModule[F]:
        """The module with findings and page, which does not import PyTorch."""
        raise NotImplementedError(self.name)

    def findings(self, tables: Tables, about: About[F]) -> Sequence[Finding]:
        """The findings as data, for the page, the terminal and dissect."""
        return self.page_module().findings(tables, about)

    def page(self, tables: Tables, about: About[F]) -> Sheet | Document:
        """The page, from tables and record alone."""
        return self.page_module().page(tables, about)


class TrainingExperiment(Experiment[S, F]):
    """An experiment that trains models over several calls: it prepares work, which resumes in its folder."""

    def prepare(self, settings: S, machine: Machine) -> Work[F]:
        """Prepare the work of the settings; raises TrisectError if it cannot be run, without reading a folder."""
        raise NotImplementedError(self.name)


class Reply(Protocol):
    """The reply of a utility."""

    def words(self) -> Sequence[str]:
        """The reply as lines for a terminal."""
        ...

    def data(self) -> Mapping[str, object]:
        """As JSON-ready data."""
        ...


class Utility(Command[S]):
    """A command and function that writes no folder: it takes settings and returns a reply."""

    @property
    def gives(self) -> type[Reply]:
        """The class of the reply."""
        raise NotImplementedError(self.name)

    def answer(self, settings: S) -> Reply:
        """Answer the settings; raises TrisectError."""
        raise NotImplementedError(self.name)

    def failed(self, reply: Any) -> bool:
        """Whether the reply is a failed check, so that the command exits with 1."""
        return False

    @translate_system_errors()
    def reply(self, settings: S) -> Reply:
        """Answer the settings, with errors of the system as TrisectError."""
        return self.answer(settings)
