"""One study of seeds that were trained apart: their runs, losses and measures together, and every claim judged again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import polars as pl

from trisect import claims
from trisect.claims.verdicts import judge_controls
from trisect.core.errors import SpecError, StudyError
from trisect.core.files import replace_file
from trisect.core.finding import About
from trisect.core.schema import plain
from trisect.core.spec import Design, read_experiment
from trisect.core.tables import SCHEMAS, read_table
from trisect.experiments.study.rows import described
from trisect.experiments.study.settings import DesignSource, StudyFacts, StudySettings
from trisect.lab.experiment import Bench, Measured
from trisect.lab.records import read_noted
from trisect.lab.run_folder import STATEMENT, RunFolder

ABOUT = "about.json"
RUN_OF = {"runs": "run", "metrics": "run", "sites": "subject"}  # tables that are no verdicts: which column names a run
EDITS = ["edit", "site", "label", "strength", "variant"]
MEASURES = ["site", "measure", "label", "split"]


@dataclass(frozen=True)
class EndedStudy:
    """What a study that has ended left: where, its record, and the tables that are no verdicts."""

    place: Path
    about: About[StudyFacts]
    tables: dict[str, pl.DataFrame]

    @classmethod
    def read(cls, place: Path) -> EndedStudy:
        """A study from its folder; raises StudyError where there is none that has ended, or its files do not agree."""
        todo, given = "Join a study that has ended, as it was written.", f"{place} holds no study that has ended."
        if not (place / ABOUT).is_file():
            raise StudyError(given, f"There is no {ABOUT} in it.", todo)
        about = read_noted("study", StudyFacts, place / ABOUT, todo)
        if about.facts.experiment is None:
            raise StudyError(given, f"Its {ABOUT} names no experiment.", todo)
        study = cls(place, about, {name: read_table(place / "tables", name) for name in RUN_OF})
        for known in study.faults():
            raise StudyError(f"{place} does not agree with itself.", known, todo)
        return study

    @property
    def design(self) -> Design:
        """Its statement, seeds among the rest."""
        assert self.about.facts.experiment, "a study that has ended says what it was"
        return self.about.facts.experiment

    @property
    def seeds(self) -> list[int]:
        """Its seeds."""
        return list(self.design.seeds)

    def faults(self) -> Iterator[str]:
        """What does not agree: the two statements, the seeds, the runs, or what was measured of each seed."""
        try:
            stated = json.loads((self.place / STATEMENT).read_text(encoding="utf-8"))
            design = None if isinstance(stated, list) else read_experiment(stated, STATEMENT)
        except (OSError, ValueError, SpecError) as error:
            yield f"{STATEMENT} cannot be read ({type(error).__name__}: {error})."
            return
        runs, seed_of = self.tables["runs"], pl.col("seed")
        if design is None:
            yield f"{STATEMENT} holds a list, since not every seed was asked for the same runs."
        elif design != self.design:
            yield f"{STATEMENT} and {ABOUT} state two designs."
        if sorted(runs["seed"].unique()) != sorted(self.seeds):
            yield f"Stated are seeds {self.seeds}, run were {sorted(runs['seed'].unique())}."
        if runs["run"].n_unique() < runs.height:
            yield "Its table of runs has one of them twice."
        for name, column in RUN_OF.items():
            if stray := set(self.tables[name][column]) - set(runs["run"]):
                yield f"Its table {name} is also about {min(stray)}, which is no run of it."
        measured = self.tables["sites"].join(runs.select("seed", "status", subject="run"), on="subject")
        whole = measured.filter((pl.col("status") == "finished").all().over(seed_of))
        for rows, columns in ((runs, EDITS), (whole, MEASURES)):
            sets = {frozenset(of.select(columns).unique().rows()) for _, of in rows.group_by("seed")}
            if len(sets) > 1:
                yield f"Not every seed has the same {'runs' if columns is EDITS else 'measures'}."

    @property
    def key(self) -> Mapping[str, object]:
        """What has to be alike: all that was asked but the seeds and the names, the text, the rules and the kind of device."""
        design = self.design
        asked = {one.name: getattr(design, one.name) for one in fields(design) if one.name not in ("seeds", "name")}
        runs = {name: sorted(self.tables["runs"][name].unique()) for name in ("revision", "device", "claims_hash")}
        facts = self.about.facts
        own = {"corpus": facts.corpus.get("fingerprint"), "precision": facts.precision}
        return asked | runs | {"text": replace(design.text, corpus=None)} | own

    def with_seeds_of(self, other: EndedStudy) -> EndedStudy:
        """Both together, rows in the order of a study of all these seeds; raises StudyError where they are no seeds of one study."""
        ours, theirs = self.key, other.key
        if differs := sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)):
            known = f"They differ in {', '.join(differs)}."
            raise StudyError(f"{other.place} is another study than {self.place}.", known, "Join seeds of one design.")
        if twice := sorted(set(self.seeds) & set(other.seeds)):
            known = f"{self.place} has seed {', '.join(map(str, twice))}."
            raise StudyError(f"{other.place} has seeds that are already there.", known, "Join other seeds.")
        tables = {
            name: pl.concat([table, other.tables[name]]).sort(list(SCHEMAS[name]), nulls_last=True)
            for name, table in self.tables.items()
        }
        experiment = replace(self.design, seeds=tuple(sorted([*self.seeds, *other.seeds])))
        seconds = self.about.facts.wall_seconds + other.about.facts.wall_seconds
        facts = replace(self.about.facts, experiment=experiment, wall_seconds=seconds)
        return replace(self, about=replace(self.about, facts=facts, seconds=seconds), tables=tables)

    def judged(self) -> dict[str, pl.DataFrame]:
        """All tables, with the verdicts over all seeds."""
        said = described(self.about)
        verdicts = {"claims": claims.judge(self.tables, said), "controls": judge_controls(self.tables, said)}
        return {**self.tables, **verdicts}


@dataclass(frozen=True)
class JoinedStudy:
    """Studies of other seeds that become one, in a folder of its own; those that they were stay as they are."""

    whole: EndedStudy
    places: Sequence[Path]

    @classmethod
    def prepare(cls, settings: StudySettings) -> JoinedStudy:
        """The study that is made of those that the settings name; raises TrisectError where they do not fit."""
        if settings.what != DesignSource():
            known = "Studies that were trained are joined as they are: they say themselves what was run."
            raise SpecError("--join was given with settings of a study.", known, "Leave these out.")
        places = [Path(place) for place in settings.join]
        if len(places) < 2:
            raise SpecError("One study was given to be joined.", "One is joined with others.", "Give two or more.")
        whole, *others = map(EndedStudy.read, places)
        for other in others:
            whole = whole.with_seeds_of(other)
        return cls(whole, places)

    @property
    def name(self) -> str:
        """That of the design."""
        return f"{self.whole.design.name}-joined"

    def check(self, folder: Path) -> None:
        """Raise StudyError where another study, or anything but a study that was joined before, lies in the folder."""
        if folder.resolve() in [place.resolve() for place in self.places]:
            known = "What is made of it lies in a folder of its own."
            raise StudyError(f"{folder} is one of the studies to be joined.", known, "Choose another with --out.")
        names = {path.name for path in folder.iterdir()} if folder.is_dir() else set[str]()
        if not RunFolder(folder).check_command("study") and not names <= {".lock", STATEMENT}:
            RunFolder(folder).check_empty("study that was joined")

    def own(self, folder: Path) -> list[Path]:
        """The folder alone."""
        return [folder]

    def measure(self, bench: Bench) -> Measured[StudyFacts]:
        """All tables, verdicts among them; the statement lies beside."""
        text = json.dumps(plain(self.whole.design), indent=1) + "\n"
        replace_file(bench.folder / STATEMENT, lambda scratch: scratch.write_text(text, encoding="utf-8"))
        about = self.whole.about
        tables = self.whole.judged()
        return Measured(tables, about.facts, about.notes, seconds=about.seconds, packages=(), command=about.command)
