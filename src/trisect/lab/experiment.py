"""What an experiment is: its settings, how it measures, what it found and its page; and what a run of one returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from trisect.core.door import door
from trisect.core.finding import About, Finding
from trisect.core.json_text import Json
from trisect.core.machine import Machine

if TYPE_CHECKING:
    import polars as pl

    from trisect.core.subject import Subject, Texts
    from trisect.report.sheet import Document, Sheet
    from trisect.report.study_links import StudyLink
    from trisect.stats.tested import Reals

S_in = TypeVar("S_in", contravariant=True)
S = TypeVar("S")
F = TypeVar("F")


ROW = ("stack", "layer", "head", "component", "measure", "group", "at")  # what names a number of the table `measures`


class Replicates(NamedTuple):
    """A number in every draw of a bootstrap over so many units (or groups of them); the same seed gives the same draws.

    `which` is a mark of the units themselves: numbers with the same mark meet the same units in every draw. `unit` is what they
    are: text, or article where a corpus marks them. `each` is of a share what each unit adds to it, 0 or 1; null of any other.
    """

    values: Reals
    units: int
    which: str
    unit: str = "text"
    each: Reals | None = None


@dataclass(frozen=True, eq=False)
class Measured(Generic[F]):
    """What an experiment measured: tables by name, facts, notes, and what lies beside the tables (`paths`, by name).

    `judge` makes the table of claims once it is known where the numbers are from; null where nothing is claimed. `family`
    says of which claims the hash is noted: text, head, name, seed, …; `seconds` are those of all calls where work
    goes on over several, else null. `packages` are software besides PyTorch and the like that made the numbers. `command`
    repeats the whole where the settings of one call do not: what several calls have asked for. `links` are the page's own to
    others, where it is the first of several. `replicates` are numbers of the
    table `measures` (stack, layer, head, component, measure, group, at) in draws of texts, for differences between models.
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
    replicates: Mapping[tuple[str | float | int | bool | None, ...], Replicates] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Result(Generic[F]):
    """What a run of an experiment left: its folder, tables by name, page, findings, and where it is all from.

    `report` is the record where an experiment has no page (`paged`); `paths` are what `makes` says, such as models.
    """

    folder: Path
    tables: Mapping[str, pl.DataFrame]
    report: Path
    findings: tuple[Finding, ...]
    about: About[F]
    paths: Mapping[str, Path]
    paged: bool = True
    makes: str = ""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader has to know besides."""
        return self.about.notes

    def data(self) -> dict[str, Json]:
        """The result as JSON-ready data: the page, the findings in words and as records, notes, and what was made."""
        page: dict[str, Json] = {"report": str(self.report.resolve())} if self.paged else {}
        made: dict[str, Json] = (
            {self.makes: [str(path.resolve()) for path in self.paths.values()]} if self.makes else {}
        )
        return {
            **page,
            **made,
            "notes": list(self.notes),
            "findings": [str(finding) for finding in self.findings],
            "records": [finding.data() for finding in self.findings],
        }


@dataclass(frozen=True)
class Bench:
    """What an experiment works with: the inputs that its settings name, its folder, the machine, and progress.

    The folder is locked and its own while it measures. `subjects` and `texts` are what groups of the settings opened, `of` the
    experiments that it runs, where it is made of others. `home` is the folder that the files land in, where they are staged in
    another; `show` gets the progress in the place of the terminal: the share that is done, and of what.
    """

    folder: Path
    machine: Machine
    subjects: tuple[Subject, ...] = ()
    given_texts: Texts | None = None
    of: tuple[Experiment[Any, Any], ...] = ()
    home: Path | None = None
    show: Callable[[float, str], None] | None = None

    @property
    def subject(self) -> Subject:
        """The model to be read."""
        assert len(self.subjects) == 1, "the settings name one model"
        return self.subjects[0]

    @property
    def texts(self) -> Texts:
        """The texts to read."""
        assert self.given_texts is not None, "the settings name texts"
        return self.given_texts

    @contextmanager
    def progress(self, title: str) -> Iterator[Callable[[int, int], None]]:
        """A progress bar, to be called with (done, total)."""
        if (show := self.show) is not None:
            yield lambda done, total: show(done / total if total else 0.0, title)
            return
        from trisect.lab.live import bar  # with rich, which a library call that is quiet does without

        with bar(title, self.machine.quiet) as step:
            yield step


class Measures(Protocol[S_in, F]):
    """The module `run` of an experiment."""

    def check(self, settings: S_in) -> None:
        """Raise TrisectError for what is wrong with settings whatever the model is; of one that `checks`."""
        ...

    def measure(self, settings: S_in, bench: Bench) -> Measured[F]:
        """Do the work; raises TrisectError."""
        ...


class ChecksModel(Protocol[S_in]):
    """The module `run` of an experiment that `checks_model`."""

    def check_model(self, settings: S_in, subject: Subject) -> None:
        """Raise TrisectError for what a model cannot be asked, before any pass through it."""
        ...


class AskedPart(NamedTuple):
    """An experiment that another asks for, with settings of its own."""

    experiment: Experiment[Any, Any]
    settings: Any


class MadeOf(Protocol[S_in]):
    """The module `run` of an experiment that is made of others."""

    def parts_of(self, settings: S_in, of: Sequence[Experiment[Any, Any]]) -> Iterable[AskedPart]:
        """Experiments that settings ask for, each with settings of its own."""
        ...


class Work(Protocol[F]):
    """Work that goes on in its folder where a call before it stopped: checked against the folder, then done there."""

    @property
    def name(self) -> str:
        """What {name} stands for in the default folder; raises nothing."""
        ...

    def check(self, folder: Path) -> None:
        """Raise TrisectError where the folder is not this work's, or what it goes on from is damaged; change nothing."""
        ...

    def own(self, folder: Path) -> Iterable[Path]:
        """Every folder that the work itself writes into."""
        ...

    def measure(self, bench: Bench) -> Measured[F]:
        """Do what is not done yet; raises TrisectError."""
        ...


class Resumes(Protocol[S_in, F]):
    """The module `run` of an experiment that is resumable."""

    def prepare(self, settings: S_in, machine: Machine) -> Work[F]:
        """The work that the settings ask for; raises TrisectError for what cannot be run, without a look at a folder."""
        ...


class Shows(Protocol[F]):
    """The module `page` of an experiment; never reaches PyTorch. Without a page it has findings alone."""

    def findings(self, tables: Mapping[str, pl.DataFrame], about: About[F]) -> Sequence[Finding]:
        """What was found, as data: the page, the terminal and dissect all read these."""
        ...

    def page(self, tables: Mapping[str, pl.DataFrame], about: About[F]) -> Sheet | Document:
        """The page, from tables and what stands beside them alone."""
        ...


class LayerMeasure(NamedTuple):
    """A measure of the table `measures` that a page of several models draws by layer, a layer's heads averaged.

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


@dataclass(frozen=True)
class Experiment(Generic[S, F]):
    """One experiment as every interface knows it.

    `name` is the command, `function` the name in Python where that is another; `home` is the package that holds the
    modules run and page, imported at first use so that help costs nothing. `help` is what `--help` says, the first line
    a sentence, with an example; `out` is the folder where none is given, in which {model} stands for the model's name
    and {name} for that of resumable work. `record` is the file that holds About. `source` is the key of the source that
    asks, empty where none does. One that is `resumable` has `prepare` in its module run, in the place of `measure`; where a file
    of its folder, the `plan`, is written before it begins, `look` in its module check says what is done. One with
    a `single` page leaves that and nothing else: `out` is then the page, or a folder to put it in under this name. One
    that is not `paged` leaves no page. What a run returns is the class `result` of its module result, where it has one of its
    own; `makes` says in one word what its paths are where
    the terminal shows them, such as models. `by_layer` is what a page of several models draws layer by layer.
    `of` are experiments that it runs: whoever lists all of them says which, since none knows another. One that `checks` has
    `check` in its module run, for what its settings name besides models and texts that all experiments share; one that
    `checks_model` has `check_model` there, for what they ask of a model that is loaded.
    """

    name: str
    help: str
    settings: type[S]
    facts: type[F]
    home: str
    source: str = ""
    out: str = ""
    record: str = "about.json"
    function: str = ""
    resumable: bool = False
    plan: str = ""
    single: str = ""
    paged: bool = True
    makes: str = ""
    result: str = ""
    by_layer: tuple[LayerMeasure, ...] = ()
    of: tuple[Experiment[Any, Any], ...] = ()
    checks: bool = False
    checks_model: bool = False

    @property
    def leaves(self) -> str:
        """What `out` is, as help shows it."""
        if self.single:
            return "The page"
        names = [*filter(None, (self.makes,)), "tables", *(("figures", "page") if self.paged else ())]
        return f"The folder for {', '.join(names[:-1])} and {names[-1]}"

    @property
    def where(self) -> str:
        """The default of `out`, as help shows it."""
        return (self.out or self.name).format(model="MODEL", name="NAME")

    @property
    def python(self) -> str:
        """The function's name."""
        return self.function or self.name.replace("-", "_")

    @property
    def returns(self) -> type[Result[F]]:
        """What a run returns."""
        found: Any = getattr(import_module(f"{self.home}.result"), self.result) if self.result else Result
        return found

    def check(self, settings: S) -> None:
        """Raise TrisectError for settings that are wrong whatever their models are; opens no model."""
        if self.checks:
            self.measures().check(settings)
        if self.of:
            module: Any = import_module(f"{self.home}.run")
            made: MadeOf[S] = module
            for part, own in made.parts_of(settings, self.of):
                part.check(own)

    def check_model(self, settings: S, subject: Subject) -> None:
        """Raise TrisectError for settings that a model cannot be asked; nothing goes through it."""
        if self.checks_model:
            module: Any = import_module(f"{self.home}.run")
            checks: ChecksModel[S] = module
            checks.check_model(settings, subject)

    def measures(self) -> Measures[S, F]:
        """The module that measures."""
        module: Any = import_module(f"{self.home}.run")
        return module

    def resumes(self) -> Resumes[S, F]:
        """The module that goes on where it stopped."""
        module: Any = import_module(f"{self.home}.run")
        return module

    def shows(self) -> Shows[F]:
        """The module that says what was found and makes the page."""
        module: Any = import_module(f"{self.home}.page")
        return module


class Reply(Protocol):
    """What a utility gives back."""

    def words(self) -> Sequence[str]:
        """As lines of a terminal."""
        ...

    def data(self) -> dict[str, Json]:
        """As JSON-ready data."""
        ...


@dataclass(frozen=True)
class Utility(Generic[S]):
    """A command and function that leaves no folder: it takes settings, as an experiment does, and gives a reply back.

    `home` is the module that holds its function `reply`, of the settings, and the type `gives` of what that returns.
    """

    name: str
    help: str
    settings: type[S]
    home: str
    gives: str

    @property
    def python(self) -> str:
        """The function's name."""
        return self.name.replace("-", "_")

    @door()
    def reply(self, settings: S) -> Reply:
        """What it says to these settings; raises TrisectError."""
        module: Any = import_module(self.home)
        return module.reply(settings)
