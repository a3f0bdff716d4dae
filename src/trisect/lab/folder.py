"""A study's folder: where each file lies, and the ledger as it is read."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from itertools import chain
from pathlib import Path

from torch import Tensor

from trisect.core.errors import DamagedFileError, StudyError, TrisectError
from trisect.core.files import as_record, digest, file_name, inside, is_name, read_json
from trisect.core.methods import FITTED, ON_TRAIN
from trisect.core.schema import read
from trisect.core.spec import Model, Run, Training, read_experiment, read_run
from trisect.core.study_data import DesignData, FinishedRun, LedgerData
from trisect.lab.run_folder import RunFolder
from trisect.lm.snapshots import read_snapshot

# methods whose evaluations are done alike in all of a study, each with what designs say of it besides, call by call
HOW = {
    "rewind": ("sites", "midstage"),
    "probe": ("labels",),
    "erase": ("sites", "labels"),
    "interchange": ("sites",),
}


def contradiction(ledger: LedgerData, runs: Mapping[str, Run]) -> str:
    """What the ledger says that its own runs and designs deny, as words; empty where all agrees.

    `runs` are its runs as read. A checksum can be made for any content, and a run's id is the hash of its statement alone.
    """
    return next(chain(_of_runs(ledger, runs), _of_designs(ledger), _asked(ledger, runs)), "")


def _of_runs(ledger: LedgerData, runs: Mapping[str, Run]) -> Iterator[str]:
    """Text, model and training are one for all runs; attacks may be shorter."""
    base = ledger["base"]
    model, training = read(Model, base["model"], "the ledger"), read(Training, base["training"], "the ledger")
    for name, run in runs.items():
        if run.corpus != base["corpus"]:
            yield f"its base has the text {base['corpus']!r}, and {name} {run.corpus!r}"
        ends = run.training.epochs if run.edit is not None else training.epochs
        yield from _other(model, run.model, name)
        yield from _other(replace(training, epochs=ends), run.training, name)


def _of_designs(ledger: LedgerData) -> Iterator[str]:
    """Each design has the base's model and training, and evaluates as the base says; what the base says, some design asks."""
    base = ledger["base"]
    model, training = read(Model, base["model"], "the ledger"), read(Training, base["training"], "the ledger")
    statements = (ledger["experiment"], *ledger.get("asked", ()))
    for one in statements:
        design = read_experiment(one, "the ledger")
        yield from _other(model, design.model, "a design")
        yield from _other(training, design.training, "a design")
        if design.attack and (last := design.attack.epochs or training.epochs) != base["attack_epochs"]:
            yield f"its base has attacks of {base['attack_epochs']} epochs, and a design of {last}"
        for name, besides in HOW.items():
            yield from _evaluated_alike(name, base.get(name) or {}, one.get(name) or {}, besides)
    for name in ("attack", *HOW):
        said = base.get("attack_epochs" if name == "attack" else name)
        if said is not None and not any(one.get(name) for one in statements):
            yield f"its base has {name} {said!r}, and no design"


def _other(base: Model | Training, here: Model | Training, whose: str) -> Iterator[str]:
    """Settings that are not the base's."""
    for one in fields(base):
        there, mine = getattr(base, one.name), getattr(here, one.name)
        if there != mine:
            yield f"its base has {one.name} {there!r}, and {whose} {mine!r}"


def _evaluated_alike(
    name: str, base: Mapping[str, object], design: Mapping[str, object], besides: Collection[str]
) -> Iterator[str]:
    """A method as the base has it and as a design does; of a sample it says something only where one is drawn."""
    if not design:
        return
    if not base:
        yield f"its base has no {name}, and a design has"
    for key in base.keys() | (design.keys() - set(besides) - {"sample_seed"}):
        if base.get(key) != design.get(key):
            yield f"its base has {name} {key} {base.get(key)!r}, and a design {design.get(key)!r}"


def _asked(ledger: LedgerData, runs: Mapping[str, Run]) -> Iterator[str]:
    """Its runs are those of what was asked, call by call; ledgers from before that was noted say nothing.

    Where such a ledger was extended since, the first of them is the union of all calls before. Seeds and sites of different
    calls are crossed there, so that it may make runs that no call made; every part of them is one of a run that is there.
    """
    if "asked" not in ledger:
        return
    corpus = ledger["base"]["corpus"]
    made = [{run.id: run for run in _design_runs(one, corpus)} for one in ledger["asked"]]
    of = {run for one in made for run in one}
    crossed = set[str]()
    if made and ledger.get("step", 1) == 1:  # later steps began their studies with what was asked
        there = {part for run in runs.values() for part in _parts(run)}
        crossed = {name for name, run in made[0].items() if _parts(run) <= there}.difference(*made[1:])
    if odd := (of ^ runs.keys()) - (crossed - runs.keys()):
        yield f"{min(odd)} is a run of {'its designs' if min(odd) in of else 'it'} alone"


def _parts(run: Run) -> set[tuple[str, object]]:
    """What a union of designs puts together in another way: the seed, the training's length, and each setting of the edit."""
    edit = run.edit
    settings = {} if edit is None else {"kind": edit.kind} | {one.name: getattr(edit, one.name) for one in fields(edit)}
    return {("seed", run.seed), ("epochs", run.training.epochs), *settings.items()}


def _design_runs(statement: DesignData, corpus: str) -> Iterator[Run]:
    return read_experiment(statement, "the ledger").runs(corpus)


@dataclass(frozen=True)
class Folder(RunFolder):
    """The files of one study."""

    @property
    def ledger(self) -> Path:
        """What belongs to the study: base, experiment, runs and fleets."""
        return self.path / "study.json"

    @property
    def copy(self) -> Path:
        """The ledger once more: it alone could not be made again."""
        return self.path / "study.copy.json"

    @property
    def corpus(self) -> Path:
        """The text as cut, memory-mapped by every worker."""
        return self.path / "corpus"

    @property
    def tables(self) -> Path:
        """The tidy tables."""
        return self.path / "tables"

    def run(self, run: str) -> Path:
        """A finished run's statement and rows; its being there is what finished means."""
        return self._run(run) / "run.json"

    def final(self, run: str) -> Path:
        """A run's final weights."""
        return self._run(run) / "final.safetensors"

    def epochs(self, run: str) -> Path:
        """A baseline's site weights of every epoch."""
        return self._run(run) / "epochs"

    def checkpoint(self, fleet: str) -> Path:
        """Where an unfinished fleet goes on from."""
        return inside(self.path, "fleets", f"{fleet}.safetensors")

    def evaluations(self, run: str) -> Path:
        """The folder of a run's evaluations."""
        return inside(self.path, "evaluations", file_name(run))

    def evaluation(self, run: str, kind: str, site: str, label: str = "") -> Path:
        """Rows of one evaluation of a trained run: 'rewind' or 'midstage' of a site, 'cut' of attention, 'erase' of a
        label at a site, or 'probe' of a label.

        A label is named by its hash; a file of an earlier version, which has the label in its name, is kept in use.
        """
        folder, plain = self.evaluations(run), f"{kind}-{'-'.join(filter(None, (label, site)))}"
        if label and not (is_name(plain) and (folder / f"{plain}.json").exists()):
            plain = "-".join(filter(None, (f"{kind}.{digest(label, 8)}", site)))  # a dot: no earlier name is like it
        return inside(folder, f"{file_name(plain)}.json")

    def own(self) -> list[Path]:
        """Every folder that the study itself writes into."""
        found = [self.path, *(self.path / name for name in ("corpus", "figures", "fleets", "tables"))]
        try:
            runs = self.read_ledger()["runs"]
        except StudyError:  # none yet, or damaged: whoever reads it says so
            return found
        return found + [place for run in runs for place in (self._run(run), self.epochs(run), self.evaluations(run))]

    def _run(self, run: str) -> Path:
        """The folder of a run: its id, or a hash where a label in it makes it no file's name."""
        return inside(self.path, "runs", file_name(run))

    def read_ledger(self) -> LedgerData:
        """The ledger, or its copy where it is gone; raises StudyError where there is none, else DamagedFileError."""
        moving = f"The ledger cannot be made again: move {self.path} away and run the study again."
        if self.ledger.exists():
            todo = f"Delete {self.ledger} and call 'trisect study' again: it is made again from {self.copy.name}."
            return _ledger(self.ledger, todo if self.copy.exists() else moving)
        if self.copy.exists():
            return _ledger(self.copy, moving)
        raise StudyError(
            f"{self.path} holds no study.",
            f"There is no {self.ledger.name} in it.",
            "Run 'trisect study' with --out first.",
        )


def _ledger(path: Path, todo: str) -> LedgerData:
    """A ledger whose parts are what a study wrote: of each run the statement that its id is the hash of.

    A checksum can be made for any content, so that it says nothing of that. Raises DamagedFileError.
    """
    found = read_json(path, todo)
    try:
        body = as_record(found, path, todo, LedgerData)
        runs, fleets = body["runs"], body["fleets"]
        read = {run: read_run(statement) for run, statement in runs.items()}
        if wrong := [run for run, statement in read.items() if statement.id != run]:
            raise ValueError(f"{wrong[0]} is not the id of its statement")
        if strange := [run for fleet in fleets for run in fleet if run not in runs]:
            raise ValueError(f"a fleet names {strange[0]!r}, which is no run of it")
        if odd := contradiction(_with_fits(body), read):
            raise ValueError(odd)
        return body
    except (KeyError, TypeError, ValueError, AttributeError, TrisectError) as error:
        said = f"{error.given} {error.known}" if isinstance(error, TrisectError) else str(error)
        raise DamagedFileError(
            f"{path} is no study's ledger.", f"{type(error).__name__}: {said[:200]}", todo
        ) from error


def check_extended(folder: Folder, ledger: LedgerData) -> None:
    """Raise StudyError for a ledger that would be refused when it is read; to be called before it is written."""
    read = {run: read_run(statement) for run, statement in ledger["runs"].items()}
    if odd := contradiction(_with_fits(deepcopy(ledger)), read):
        raise StudyError(
            f"{folder.path} cannot be extended by what is asked for.",
            f"Its ledger would contradict itself, and could not be read again: {odd[:200]}.",
            "Choose another folder with --out.",
        )


def _with_fits(ledger: LedgerData) -> LedgerData:
    """The ledger with what probes and erasers are fitted on, and random maps, named also where it was written before there was a choice."""
    for statement in (ledger["base"], ledger["experiment"], *ledger.get("asked", ())):
        for part in filter(None, (probe := statement.get("probe"), erase := statement.get("erase"))):
            if (fitted := part.setdefault("fitted", ON_TRAIN)) not in (None, *FITTED):
                raise ValueError(f"a method is fitted on {fitted!r}")
        if probe:
            probe.setdefault("random_maps", 0)
        if erase:
            erase.setdefault("shrinkage", True)
    return ledger


FORMAT = 1  # of run.json; a file without a number is of format 1


def read_finished(folder: Folder, run: str) -> FinishedRun:
    """A finished run's statement and rows; raises DamagedFileError naming what to delete, StudyError for a later format."""
    path = folder.run(run)
    todo = f"Delete {path.parent} and call 'trisect study' again: its fleet is then trained again."
    body = read_json(path, todo)
    if (found := body.get("format", FORMAT)) != FORMAT:
        raise StudyError(
            f"{path} has format {found}.",
            f"This version reads format {FORMAT}.",
            "Use the version of trisect that wrote it, or run the study again in another folder.",
        )
    return as_record(body, path, todo, FinishedRun)


def weights(folder: Folder, run: str, file: str, device: str) -> dict[str, Tensor]:
    """A trained baseline's parameters or one epoch's in-projections, without a member axis."""
    base = folder.run(run).parent
    todo = f"Delete the folder {base} and call 'trisect study' again: its fleet is then trained again."
    return {n: v.to(device) for n, v in read_snapshot(base / file, todo)[0].items()}


def epoch_weights(folder: Folder, run: str, epochs: int) -> list[str]:
    """The files of a baseline's epochs 0 to `epochs`, as `weights` takes them; raises DamagedFileError if one is gone."""
    found = [f"epochs/{p.name}" for p in sorted(folder.epochs(run).glob("*.safetensors"))]
    if len(found) != epochs + 1:
        raise DamagedFileError(
            f"The site weights of {run} are incomplete.",
            f"There are {len(found)} of {epochs + 1} epochs.",
            f"Delete the folder {folder.run(run).parent} and call 'trisect study' again: its fleet is then trained again.",
        )
    return found
