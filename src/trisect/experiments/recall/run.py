"""Recall: what pretraining adds — models with and without it, asked where people were born; trained, asked and judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import polars as pl

from trisect.core.errors import SpecError
from trisect.core.files import read_json_list, read_record, write_json
from trisect.core.machine import Machine
from trisect.core.tables import frame
from trisect.engine.devices import choose_device
from trisect.experiments.recall.ask import CARD
from trisect.experiments.recall.rows import (
    NEIGHBOURS,
    RISKS,
    AnswersData,
    CardData,
    SurvivedRow,
    ThresholdData,
    held_out,
    judge,
    measure_rows,
    survival_measures,
)
from trisect.experiments.recall.settings import (
    EMBEDDED_DATA,
    RECIPES,
    RecallFacts,
    RecallRecipe,
    RecallSettings,
    Reference,
    choose_recipe,
)
from trisect.experiments.recall.training import MODELS, Lesson, LessonWork, RecallFolder
from trisect.lab.command import command_of
from trisect.lab.experiment import Measured, RunContext, changed
from trisect.lab.jobs import run_jobs
from trisect.lab.run_folder import DELETE, ResumePlan, follow_plan, join_plan
from trisect.measure.recall import threshold
from trisect.text.birth_places import QUESTION, People, check_block, open_people
from trisect.text.generated import people_corpus

KIND = "recall experiment"
MARKS = "  "  # the mask behind a question, and the one behind its answer
COURSE = "6a9a01f9dd6f7ac5"  # fingerprint of the course's files
# shares of exact matches on the course's 500 dev questions, without and with pretraining, as others reached them
REFERENCES: tuple[Reference, ...] = (
    ("Luvata, notes in two versions", (0.016,), (0.194, 0.258)),
    ("xuanhaocui, predictions", (0.022,), (0.258,)),
    ("SarahLuym, predictions", (0.008,), (0.212,)),
    ("gzliyu, predictions", (0.016,), ()),
    ("Dennis-F-Brodfsky, predictions", (0.010,), ()),
    ("TaylanAkyurek, predictions", (0.020,), ()),
    ("joeysbase, notes", (0.0219,), (0.24,)),
)


def prepare(settings: RecallSettings, machine: Machine) -> RecallWork:
    """What is trained and asked, checked: questions and answers fit into the model's rows.

    `data` is 'embedded' or a folder as text.birth_places.open_people reads it. Raises TrisectError.
    """
    device = choose_device(machine)
    recipe = choose_recipe(settings.recipe, str(settings.data) == EMBEDDED_DATA, settings.settings)
    people = open_world(settings.data, recipe)
    check_block([a.question + (a.place or "") + MARKS for a in people.train], recipe.block, "The question and answer")
    asked = (a for part in (people.valid, people.test, people.invented) for a in part)
    check_block([a.question + (a.place or " ") + MARKS for a in asked], recipe.block, "The question and answer")
    return RecallWork(settings, recipe, people, device)


@dataclass(frozen=True)
class RecallWork:
    """Models to be trained and asked; interrupted, call it again to resume; with more seeds it is extended."""

    settings: RecallSettings
    recipe: RecallRecipe
    people: People
    device: str
    name: str = ""

    def check(self, folder: Path) -> None:
        """Raise StudyError where the folder holds something else, or another recall."""
        self._plan(folder)

    def own(self, folder: Path) -> Iterable[Path]:
        """Every folder that a recall writes into."""
        return RecallFolder(folder).own()

    def measure(self, context: RunContext) -> Measured[RecallFacts]:
        """Train what is not trained yet, and ask every question (definitions B2 to B4)."""
        place, plan = RecallFolder(context.folder), self._plan(context.folder)
        write_json(place.plan, plan.data())
        write_json(place.people, asdict(self.people))
        lessons = [Lesson(m, s) for s in plan.seeds for m in MODELS if m != "left-out" or self.people.left_out]
        left = [one for one in lessons if not place.is_done(one)]
        longest = sorted(left, key=lambda one: -one.seconds)
        works = [LessonWork(one, place, self.recipe, self.device) for one in longest]
        plan = follow_plan(
            place.plan, plan, len(left), lambda: run_jobs(works, context.machine, self.device, place.path)
        )
        return self._found(place, plan, lessons)

    def _plan(self, folder: Path) -> ResumePlan:
        begun = {"recipe": self.recipe.data(), "people": self.people.fingerprint, "device": self.device}
        return join_plan(RecallFolder(folder).plan, KIND, begun, self.settings.seeds)

    def _found(self, place: RecallFolder, plan: ResumePlan, lessons: Sequence[Lesson]) -> Measured[RecallFacts]:
        """The tables, from what every model answered."""
        people, recipe = self.people, self.recipe
        read = {one: read_record(place.answers(one), DELETE.format(place.answers(one)), AnswersData) for one in lessons}
        answers = frame("answers", [row for body in read.values() for row in body["answers"]])
        nearest = pl.DataFrame([row for body in read.values() for row in body["nearest"]], schema=NEIGHBOURS)
        survived = [
            SurvivedRow(model=one.model, seed=one.seed, **row) for one, body in read.items() for row in body["survival"]
        ]
        losses = [
            {
                "run": f"{one.model}/{stage}/{one.seed}",
                "epoch": epoch,
                "split": "train",
                "name": "loss_nats",
                "value": loss,
            }
            for one in lessons
            for stage in one.stages
            for path in (place.losses(one, stage),)
            for epoch, loss in enumerate(read_json_list(path, DELETE.format(path)), start=1)
        ]
        tables = {
            "answers": answers,
            "measures": frame("measures", [*measure_rows(answers, nearest), *survival_measures(survived)]),
            "metrics": frame("metrics", losses),
        }
        for one in lessons:
            write_json(place.model(one) / CARD, make_card(one, answers, people))
        bound = {"people": people.fingerprint, "seeds": list(plan.seeds)}
        examples = self.settings.examples
        whole = RecallSettings(people.name, plan.seeds, recipe.name, changed(RECIPES, recipe), examples)
        facts = RecallFacts(
            f"{people.name}, fingerprint {people.fingerprint}",
            recipe.data(),
            examples,
            people.notes[-1] if people.fingerprint != people.origin else "",
            REFERENCES if people.origin == COURSE else (),
        )
        return Measured(
            tables,
            facts,
            (*people.notes, *_missing(people)),
            lambda about: judge(answers, bound, nearest),
            "name",
            plan.wall_seconds,
            ("transformers", "scikit-learn"),
            {one.title: place.model(one) for one in lessons},
            command_of("recall", whole),
        )


def open_world(data: str | Path, recipe: RecallRecipe) -> People:
    """The generated people, or those of a folder, with as many names left out and invented as the recipe says."""
    if str(data) == EMBEDDED_DATA:
        if recipe.left_out:
            known = "It has people of its own who are in no text."
            raise SpecError(f"left_out={recipe.left_out} in the generated world.", known, "Leave that setting out.")
        people = people_corpus(unseen=recipe.invented)
    else:
        people = open_people(data, left_out=recipe.left_out, invented=recipe.invented)
    return people.smaller(recipe.trained_people) if recipe.trained_people else people


def make_card(lesson: Lesson, answers: pl.DataFrame, people: People) -> CardData:
    """What `trisect ask` needs to know of a model: the names that it met, and the thresholds set on held-out questions."""
    mine = answers.filter(model=lesson.model, seed=lesson.seed)
    met = {line.name for line in lesson.world(people).lines} if lesson.model != "plain" else set[str]()
    trained = {a.name: a.place for a in people.train}
    gold = {a.name: a.place for a in people.valid} | trained
    names = {name: (name in met, name in trained, gold.get(name)) for name in sorted(met | set(trained))}
    held = held_out(mine)
    sure, right = held["log_probability"].exp().to_numpy(), held["correct"].to_numpy()
    found = [threshold(sure, right, risk) for risk in RISKS]
    rows = [ThresholdData(risk=t.risk, threshold=t.value, coverage=float(t.coverage), n=len(held)) for t in found]
    return {"question": QUESTION, "names": names, "thresholds": rows}


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
