"""Recall: what pretraining adds — models with and without it, asked where people were born; trained, asked, judged, written."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl

from trisect.claims import claims_hash
from trisect.core.errors import SpecError, StudyError
from trisect.core.files import read_json, write_json
from trisect.core.spec import Machine
from trisect.core.tables import frame, write_table
from trisect.engine.devices import choose_device
from trisect.experiments.recall.answers import NEIGHBOURS, held_out
from trisect.experiments.recall.ask import CARD
from trisect.experiments.recall.rows import RISKS, judge, measure_rows
from trisect.experiments.recall.settings import RECIPES, Recipe, choose_recipe
from trisect.experiments.recall.survival import survival_measures
from trisect.experiments.recall.training import MODELS, STAGES, Lesson, Place
from trisect.experiments.recall.work import LessonWork
from trisect.hf.small.gpt import is_model
from trisect.lab.folder import Folder
from trisect.lab.jobs import run_jobs
from trisect.lab.settings import check_seeds, difference
from trisect.lab.versions import versions
from trisect.measure.recall import threshold
from trisect.text.corruption import check_block
from trisect.text.people import QUESTION, People, open_people
from trisect.text.world import generated

EMBEDDED = "embedded"
MARKS = "  "  # the mask behind a question, and the one behind its answer
COURSE = "6a9a01f9dd6f7ac5"  # fingerprint of the course's files
# shares of exact matches on the course's 500 dev questions, without and with pretraining, as others reached them
REFERENCES: tuple[tuple[str, tuple[float, ...], tuple[float, ...]], ...] = (
    ("Luvata, notes in two versions", (0.016,), (0.194, 0.258)),
    ("xuanhaocui, predictions", (0.022,), (0.258,)),
    ("SarahLuym, predictions", (0.008,), (0.212,)),
    ("gzliyu, predictions", (0.016,), ()),
    ("Dennis-F-Brodfsky, predictions", (0.010,), ()),
    ("TaylanAkyurek, predictions", (0.020,), ()),
    ("joeysbase, notes", (0.0219,), (0.24,)),
)


@dataclass(frozen=True, eq=False)
class RecallResult:
    """What was found: the tables answers, measures, claims and metrics, the models by name, the page, and a few sentences."""

    folder: Path
    tables: Mapping[str, pl.DataFrame]
    models: Mapping[str, Path]
    report: Path
    notes: tuple[str, ...]
    findings: tuple[str, ...]


def run_recall(
    data: str | Path,
    out: Path,
    seeds: Sequence[int],
    recipe: str | None,
    settings: Mapping[str, Any],
    examples: bool,
    machine: Machine,
) -> RecallResult:
    """Train what is not trained yet, ask every question, judge the claims, and write tables, figures and page into `out`.

    `data` is 'embedded' or a folder as text.people.open_people reads it. Interrupted, a call goes on where it stopped;
    with more seeds it is extended. `examples` shows some questions with their answers on the page. Raises TrisectError.
    """
    device, chosen, people = _prepared(data, seeds, recipe, settings, machine)
    place, began = Place(out), time.monotonic()
    with Folder(out).locked(lambda: _extended(place, chosen, people, seeds, device), place.own):
        plan = _extended(place, chosen, people, seeds, device)
        write_json(place.plan, plan)
        write_json(place.people, asdict(people))
        lessons = [Lesson(m, s) for s in plan["seeds"] for m in MODELS if m != "left-out" or people.left_out]
        left = [one for one in lessons if not (is_model(place.model(one)) and place.answers(one).exists())]
        try:
            works = [LessonWork(one, place, chosen, device) for one in sorted(left, key=lambda one: -one.seconds)]
            run_jobs(works, machine, device, place.path)
        finally:
            plan["wall_seconds"] += time.monotonic() - began if left else 0.0
            with suppress(StudyError):  # on a full disk the first file that found it so is the one to name
                write_json(place.plan, plan)
        return _render(place, plan, people, lessons, examples)


def check_recall_folder(
    data: str | Path,
    out: Path,
    seeds: Sequence[int],
    recipe: str | None,
    settings: Mapping[str, Any],
    machine: Machine,
) -> None:
    """Raise what `run_recall` would with the same arguments before it trains anything; changes nothing."""
    device, chosen, people = _prepared(data, seeds, recipe, settings, machine)
    _extended(Place(out), chosen, people, seeds, device)


def _prepared(
    data: str | Path, seeds: Sequence[int], recipe: str | None, settings: Mapping[str, Any], machine: Machine
) -> tuple[str, Recipe, People]:
    """The device, the recipe and the people, checked: questions and answers fit into the model's rows."""
    device = choose_device(machine)
    chosen = choose_recipe(recipe, str(data) == EMBEDDED, settings)
    check_seeds(seeds)
    people = open_world(data, chosen)
    check_block([a.question + (a.place or "") + MARKS for a in people.train], chosen.block, "The question and answer")
    asked = (a for part in (people.valid, people.test, people.invented) for a in part)
    check_block([a.question + (a.place or " ") + MARKS for a in asked], chosen.block, "The question and answer")
    return device, chosen, people


def open_world(data: str | Path, recipe: Recipe) -> People:
    """The generated people, or those of a folder, with as many names left out and invented as the recipe says."""
    if str(data) == EMBEDDED:
        if recipe.left_out:
            known = "It has people of its own whom no text tells of."
            raise SpecError(f"left_out={recipe.left_out} in the generated world.", known, "Leave that setting out.")
        people = generated(unseen=recipe.invented)
    else:
        people = open_people(data, left_out=recipe.left_out, invented=recipe.invented)
    return people.smaller(recipe.trained_people) if recipe.trained_people else people


def _extended(place: Place, recipe: Recipe, people: People, seeds: Sequence[int], device: str) -> dict[str, Any]:
    """The plan of a folder with these seeds added; raises StudyError where the folder is of another."""
    if not place.plan.exists():
        Folder(place.path).check_empty("recall experiment")
    new = {"recipe": recipe.data(), "people": people.fingerprint, "device": device}
    moving = f"Move {place.path} away and run 'trisect recall' again: the plan cannot be made anew."
    old = read_json(place.plan, moving) if place.plan.exists() else {**new, "seeds": [], "wall_seconds": 0.0}
    if differing := [difference(key, old[key], new[key]) for key in new if old[key] != new[key]]:
        todo = "Give what it was begun with, or choose another folder with --out."
        raise StudyError(f"{place.path} belongs to another recall experiment.", f"{'; '.join(differing)}.", todo)
    return {**old, "seeds": sorted({*old["seeds"], *seeds})}


def _render(
    place: Place, plan: Mapping[str, Any], people: People, lessons: Sequence[Lesson], examples: bool
) -> RecallResult:
    from trisect.experiments.recall import page

    read = {one: read_json(place.answers(one), _again(place.answers(one))) for one in lessons}
    answers = frame("answers", [row for body in read.values() for row in body["answers"]])
    nearest = pl.DataFrame([row for body in read.values() for row in body["nearest"]], schema=NEIGHBOURS)
    survived = [{"model": one.model, "seed": one.seed, **row} for one, body in read.items() for row in body["survival"]]
    about = _about(plan, people, examples)
    tables = {
        "answers": answers,
        "measures": frame("measures", [*measure_rows(answers, nearest), *survival_measures(survived)]),
        "claims": judge(answers, {"people": people.fingerprint, "seeds": plan["seeds"]}, nearest),
        "metrics": frame("metrics", _losses(place, lessons)),
    }
    for name, table in tables.items():
        write_table(place.path / "tables", name, table)
    for one in lessons:
        write_json(place.model(one) / CARD, make_card(one, answers, people))
    write_json(place.path / "about.json", about)
    report = page.write(place.path, tables, about)
    models = {one.title: place.model(one) for one in lessons}
    return RecallResult(place.path, tables, models, report, tuple(about["notes"]), page.findings(tables, about))


def make_card(lesson: Lesson, answers: pl.DataFrame, people: People) -> dict[str, Any]:
    """What `trisect ask` needs to know of a model: the names that it met, and the thresholds set on held-out questions."""
    mine = answers.filter(model=lesson.model, seed=lesson.seed)
    told = {line.name for line in lesson.world(people).lines} if lesson.model != "plain" else set[str]()
    trained = {a.name: a.place for a in people.train}
    gold = {a.name: a.place for a in people.valid} | trained
    names = {name: [name in told, name in trained, gold.get(name)] for name in sorted(told | set(trained))}
    held = held_out(mine)
    sure, right = held["log_probability"].exp().to_numpy(), held["correct"].to_numpy()
    found = [threshold(sure, right, risk) for risk in RISKS]
    rows = [{"risk": t.risk, "threshold": t.value, "coverage": float(t.coverage), "n": len(held)} for t in found]
    return {"question": QUESTION, "names": names, "thresholds": rows}


def _losses(place: Place, lessons: Sequence[Lesson]) -> list[dict[str, Any]]:
    rows = []
    for one in lessons:
        for stage in STAGES:
            path = place.losses(one, stage)
            for epoch, loss in enumerate(read_json(path, _again(path)) if path.exists() else [], start=1):
                rows.append(
                    {
                        "run": f"{one.model}/{stage}/{one.seed}",
                        "epoch": epoch,
                        "split": "train",
                        "name": "loss_nats",
                        "value": loss,
                    }
                )
    return rows


def _again(path: Path) -> str:
    return f"Delete {path} and call 'trisect recall' again: what is missing is made anew."


def _about(plan: Mapping[str, Any], people: People, examples: bool) -> dict[str, Any]:
    recipe, base = dict(plan["recipe"]), RECIPES[plan["recipe"]["name"]].data()
    changed = [f"{key}={value}" for key, value in recipe.items() if value != base[key]]
    words = ["trisect", "recall", "--data", people.name, "--recipe", recipe["name"]]
    words += [word for change in changed for word in ("--set", change)]
    words += ["--seeds", ",".join(map(str, plan["seeds"])) + "," * (len(plan["seeds"]) == 1)]
    return {
        "corpus": f"{people.name}, fingerprint {people.fingerprint}",
        "command": shlex.join(words),
        "settings": recipe,
        "seconds": plan["wall_seconds"],
        "notes": [*people.notes, *_missing(people)],
        "examples": examples,
        "part": people.notes[-1] if people.fingerprint != people.origin else "",
        "references": REFERENCES if people.origin == COURSE else (),
        "versions": versions("transformers", "scikit-learn"),
        "claims_hash": claims_hash("name"),
    }


def _missing(people: People) -> list[str]:
    """A note where questions hold characters that no text to learn from has: they are read as unknown, and counted."""
    known = set(people.characters())
    asked = [a.question + (a.place or "") for part in (people.valid, people.test, people.invented) for a in part]
    lost = Counter(c for question in asked for c in question if c not in known)
    if not lost:
        return []
    many = sum(any(c not in known for c in question) for question in asked)
    listed = ", ".join(f"{c!r} {n}×" for c, n in sorted(lost.items()))
    return [f"{many} questions or their places hold characters outside the vocabulary, read as unknown: {listed}."]
