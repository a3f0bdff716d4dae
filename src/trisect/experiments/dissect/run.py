"""Run the unfinished parts of a dissection, and collect claims, evidence and findings of all parts."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

import polars as pl
from typing_extensions import TypedDict

import trisect
from trisect.core.errors import StudyError
from trisect.core.files import Json, canonical, digest, read_record, write_json
from trisect.core.machine import Machine, versions
from trisect.core.tables import frame
from trisect.engine.processes import reuse_workers
from trisect.experiments.dissect.page import Line, as_table
from trisect.experiments.dissect.parts import MAX_MODELS, PARTS, DissectPart, DissectStep, Results, baseline_models
from trisect.experiments.dissect.settings import RECORD, DissectFacts, DissectSettings, PartFacts
from trisect.experiments.explore import EXPLORE
from trisect.experiments.explore.settings import ExploreSettings
from trisect.experiments.lookup.settings import LookupRecipe
from trisect.experiments.study.plan import designs
from trisect.experiments.study.settings import DesignSource
from trisect.lab import driver, jobs
from trisect.lab.experiment import Measured, Result, RunContext, Work
from trisect.lab.inputs import ModelSource, TextSource
from trisect.lab.records import command
from trisect.lab.run_folder import DISSECTION_PARTS, RunFolder
from trisect.report.sheet import StudyLink, present

PAGE = "explore.html"
TUTORIAL = Path("docs", "one-head.md")  # in a clone of the project; an installed package has none
_WEIGHTS = re.compile(rb"<!-- weights [0-9a-f]+ -->\n$")
# a page's title, and where it is for each model ('' where there is one)
PageLinks = Sequence[tuple[str, Mapping[str, str]]]


def _write_explorer(model: Path, folder: Path, links: Sequence[StudyLink]) -> str:
    """Write the explorer of a trained model over a held-out sentence into the folder; return the page's name.

    The sentence is the first of 6 to 14 words in the embedded corpus. A page that was made from the same weights is kept.
    """
    weights = digest(b"".join(path.read_bytes() for path in sorted(model.glob("*.safetensors"))))
    page, mark = folder / PAGE, f"<!-- weights {weights} -->\n"
    if page.exists() and page.read_bytes().endswith(mark.encode()):
        return PAGE
    if page.exists() and _WEIGHTS.search(page.read_bytes()[-200:]):
        page.unlink()  # made from other weights
    texts = [str(text) for text in islice(TextSource("embedded").open().texts(), 50)]
    sentence = next((text for text in texts if 6 <= len(text.split()) <= 14), texts[0])
    driver.run(EXPLORE, ExploreSettings(ModelSource(model), (sentence,)), page, True, links)
    with page.open("a", encoding="utf-8") as file:
        file.write(mark)
    return PAGE


def tutorial_path(folder: Path) -> str | None:
    """The path to the tutorial relative to a folder in a clone of the project; None for other folders."""
    clone = Path(trisect.__file__).resolve().parents[2]
    inside = folder.resolve().is_relative_to(clone) and (clone / TUTORIAL).exists()
    return os.path.relpath(clone / TUTORIAL, folder.resolve()) if inside else None


@dataclass(frozen=True)
class DissectWork:
    """A dissection that is ready to run; `works` are steps that can be checked beforehand."""

    settings: DissectSettings
    machine: Machine
    works: tuple[tuple[DissectStep, Work[Any]], ...]
    name: str = "dissect"  # of its default folder

    @classmethod
    def prepare(cls, settings: DissectSettings, machine: Machine) -> DissectWork:
        """Prepare the dissection of the settings; raises TrisectError if a step cannot run."""
        if settings.model is not None:
            ModelSource(settings.model).open()  # fail on a model that cannot be read before anything is trained
        steps = [step for part in PARTS for step in part.begins(settings)]
        works = tuple((step, driver.prepare_work(step.experiment, step.settings, machine.quiet)) for step in steps)
        return cls(settings, machine, works)

    def check(self, folder: Path) -> None:
        """Raise if the folder has other results, or if a step cannot be resumed in it."""
        if not (folder / DISSECTION_PARTS).exists() and not (folder / RECORD).exists():
            RunFolder(folder).check_empty("dissection")
        _read_notes(folder)
        for step, work in self.works:
            work.check(folder / step.place)

    def folders_of(self, folder: Path) -> list[Path]:
        """The folders of all steps that have begun; steps that resume may have more."""
        places = [folder, *(folder / place for place in _read_notes(folder)["steps"])]
        return [*places, *(place / name for place in places for name in ("tables", "figures", "links"))]

    def measure(self, context: RunContext) -> Measured[DissectFacts]:
        """Run the unfinished steps and collect the findings of all parts, each with a link to its page."""
        folder, quiet = context.folder, self.machine.quiet
        costs = {part.name: part.seconds for part in PARTS}
        with reuse_workers(), jobs.track_jobs("dissect", costs, quiet) as pace:
            pages = page_links(self.settings)
            runner = _Runner(folder, quiet, _read_notes(folder), pace, pages)
            for part in PARTS:
                with jobs.part(pace, part.name, part.title, quiet):
                    runner.run_part(part, self.settings)
                pace.end(runner.is_fresh)
            model = next(iter(baseline_models(runner.done).values()))
            explorer = _write_explorer(model, folder, links_from(pages, PAGE))
        claim_tables, lines, parts, notes = list[pl.DataFrame](), list[Line](), list[PartFacts](), dict[str, None]()
        for part in PARTS:
            results = runner.done[part.name]
            first_results = tuple({result.about.experiment: result for result in reversed(results)}.values())[::-1]
            claims = [result.tables["claims"] for result in first_results if "claims" in result.tables]
            link = os.path.relpath(results[-1 if len(first_results) > 1 else 0].report, folder)
            evidence = present(*part.evidence([result.findings for result in results]))
            claim_tables, lines = claim_tables + claims, [*lines, *(line._replace(link=link) for line in evidence)]
            ids = tuple(claim for table in claims for claim in table["claim"].unique(maintain_order=True))
            paged = (result for result in first_results if result.paged)
            places = {result.about.experiment: os.path.relpath(result.report, folder) for result in paged}
            parts.append(PartFacts(part.name, part.title, part.question, tuple(part.says(first_results)), ids, places))
            notes |= dict.fromkeys(note for result in first_results for note in result.notes)
        runs, lookup = runner.done["training"][0].tables["runs"], runner.done["lookup"][0]
        recipe = LookupRecipe(**lookup.about.facts.settings)
        models = f"{len(runs)} language models of the training study, those of lookup, recall and translation"
        tables = {name: table for name, table in lookup.tables.items() if name not in ("claims", "metrics")}
        tables |= {"claims": pl.concat([frame("claims", ()), *claim_tables]), "evidence": as_table(lines)}
        look_up = f"{recipe.words()}, on {lookup.about.facts.corpus}"
        return Measured(
            tables,
            DissectFacts(tuple(parts), models, explorer, tutorial_path(folder), look_up),
            tuple(notes),
            seconds=runner.notes["seconds"],
            packages=("transformers", "scikit-learn"),
            command=command("dissect", replace(self.settings, seeds=tuple(sorted(runs["seed"].unique())))),
            links=links_from(pages, "report.html"),
        )


def page_links(settings: DissectSettings) -> PageLinks:
    """Titles and paths of all pages of a dissection: front page, parts, explorer."""
    seeds = designs(DesignSource(settings.study, seeds=settings.seeds))[0].seeds[:MAX_MODELS]
    pages = [("The answer", {"": "report.html"})]
    for part in PARTS:
        place = part.page or f"{part.name}/report.html"
        paths = {f"seed {seed}": place.format(seed=seed) for seed in seeds}
        pages.append((part.title, paths if "{seed}" in place else {"": place}))
    return (*pages, ("One sentence, head by head", {"": PAGE}))


def links_from(pages: PageLinks, page: str) -> tuple[StudyLink, ...]:
    """Links from one page of a dissection to all others, with the page itself marked; empty for an unlisted page."""

    def relative_path(to: str) -> str:
        return "" if to == page else os.path.relpath(to, PurePosixPath(page).parent).replace(os.sep, "/")

    links = list[StudyLink]()
    for title, models in pages:
        is_of_model, first = page in models.values(), next(iter(models.values()))
        others = tuple((name, relative_path(to)) for name, to in models.items()) if len(models) > 1 else ()
        links.append(StudyLink(title, "" if is_of_model else relative_path(first), is_of_model, others))
    return tuple(links) if any(link.here for link in links) else ()


class _Notes(TypedDict):
    """Contents of `parts.json`: seconds of all calls, and for each step's folder a key and the paths that it wrote.

    The key is a hash of all that the step depends on; it is empty until the step has finished.
    """

    seconds: float
    steps: dict[str, dict[str, Json]]


def _read_notes(folder: Path) -> _Notes:
    """Read the notes of a folder; raises DamagedFileError if they are unreadable."""
    path = folder / DISSECTION_PARTS
    if not path.exists():
        return {"seconds": 0.0, "steps": {}}
    return read_record(path, f"Delete {path}: nothing else is lost.", _Notes)


class _Runner:
    """Runs parts; `done` has the results of each, `is_fresh` is whether the last one had to run a step."""

    def __init__(self, out: Path, quiet: bool, notes: _Notes, pace: jobs.Pace, pages: PageLinks) -> None:
        self.out, self.quiet, self.notes, self.pace, self.pages = out, quiet, notes, pace, pages
        self.done: dict[str, Results] = {}
        self.is_fresh, self._start = False, 0.0

    def run_part(self, part: DissectPart, settings: DissectSettings) -> None:
        """Run the unfinished steps of a part."""
        self.is_fresh, self._start, start = False, 0.0, time.monotonic()
        try:
            steps = part.begins(settings)
            self.done[part.name] = part.run(settings, self.run, self.done) if part.run else tuple(map(self.run, steps))
        finally:
            if self.is_fresh:
                self.notes["seconds"] += time.monotonic() - start
                self._write()

    def run(self, step: DissectStep) -> Result[Any]:
        """The result of a step: read from its folder if it is finished, else run by the driver."""
        key, place = step_key(step, self.out), self.out / step.place
        self.pace.begin_step(self._start, step.share)
        self._start += step.share
        note = self.notes["steps"].get(step.place, {})
        if note.get("key") == key and isinstance(paths := note["paths"], dict):
            with suppress(StudyError):  # missing or damaged results: run the step again
                return driver.read(step.experiment, place, {name: self.out / str(path) for name, path in paths.items()})
        self.is_fresh = True
        self.notes["steps"][step.place] = {"key": "", "paths": {}}
        self._write()
        page_paths = (path for _, models in self.pages for path in models.values())
        page = next((path for path in page_paths if PurePosixPath(path).parent.as_posix() == step.place), "")
        links = links_from(self.pages, page)
        result = driver.run(step.experiment, step.settings, place, self.quiet, links, is_part=True)
        places: dict[str, Json] = {name: os.path.relpath(path, self.out) for name, path in result.paths.items()}
        self.notes["steps"][step.place] = {"key": key, "paths": places}
        self._write()
        return result

    def _write(self) -> None:
        with suppress(StudyError):  # on a full disk, report the error that was raised first
            write_json(self.out / DISSECTION_PARTS, self.notes)


def step_key(step: DissectStep, out: Path) -> str:
    """A hash of all that a step depends on: experiment, settings, weights of the models, and versions of software."""

    def simplify(value: Any) -> Any:
        """A setting as JSON data; a folder, given as Path or string, becomes its relative path and hashes of its weights."""
        if is_dataclass(value) and not isinstance(value, type):
            names = [field.name for field in fields(value)]
            names = ["fingerprint"] if "fingerprint" in names else names
            return {name: simplify(getattr(value, name)) for name in names}
        if isinstance(value, Mapping):
            return {str(key): simplify(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [simplify(item) for item in value]
        if isinstance(value, Path) or (isinstance(value, str) and Path(value).is_dir()):
            folder = Path(value)
            weights = [digest(path.read_bytes()) for path in sorted(folder.glob("*.safetensors"))]
            return [os.path.relpath(folder, out), *weights]
        return value if value is None or isinstance(value, bool | int | float | str) else str(value)

    content = {"experiment": step.experiment.name, "settings": simplify(step.settings), "versions": versions()}
    return digest(canonical(content))
