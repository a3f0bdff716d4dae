"""Recall: what pretraining adds — models with and without it, asked where people were born; trained, asked and judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from trisect.core.errors import SpecError
from trisect.core.files import read_json, write_json
from trisect.core.machine import Machine
from trisect.core.schema import plain
from trisect.core.tables import frame
from trisect.engine.start import choose_device
from trisect.experiments.recall.ask import CARD, ModelCard, Threshold
from trisect.experiments.recall.rows import NEIGHBOURS, RISKS, judge, measure_rows, survival_measures, threshold_answers
from trisect.experiments.recall.settings import (
    EMBEDDED_DATA,
    RECIPES,
    RecallFacts,
    RecallRecipe,
    RecallSettings,
    Reference,
)
from trisect.experiments.recall.training import MODELS, RecallJob, train
from trisect.lab.command import command_of
from trisect.lab.experiment import Measured
from trisect.lab.recipes import changes_of, choose_recipe
from trisect.lab.run_folder import DELETE, ResumePlan
from trisect.lab.training import ModelJob, TrainingWork
from trisect.measure.recall import threshold
from trisect.text.birth_places import QUESTION, People, check_block, open_people
from trisect.text.generated import people_corpus

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
    recipe = choose_recipe(RECIPES, settings.recipe, str(settings.data) == EMBEDDED_DATA, settings.settings)
    if str(settings.data) == EMBEDDED_DATA:
        if recipe.left_out:
            known = "It has people of its own who are in no text."
            raise SpecError(f"left_out={recipe.left_out} in the generated world.", known, "Leave that setting out.")
        people = people_corpus(unseen=recipe.invented)
    else:
        people = open_people(settings.data, left_out=recipe.left_out, invented=recipe.invented)
    if recipe.trained_people:
        people = people.smaller(recipe.trained_people)
    trained = [a.question + (a.place or "") + MARKS for a in people.train]
    asked = (a for part in (people.valid, people.test, people.invented) for a in part)
    for questions in (trained, [a.question + (a.place or " ") + MARKS for a in asked]):
        check_block(questions, recipe.block, "The question and answer")
    return RecallWork(settings, recipe, people, device)


class RecallWork(TrainingWork[RecallSettings, RecallRecipe, People, RecallFacts]):
    """Models to be trained and asked."""

    kind = "recall experiment"
    plan_file, data_file = "recall.json", "people.json"
    folders = ("answers", "figures")
    model_pattern = rf"models/({'|'.join(MODELS)})-[0-9]+(-base)?"

    def jobs(self, home: Path, seeds: Sequence[int]) -> list[ModelJob]:
        """Every model of each seed; one that leaves names out where the data have such."""
        models = [(m, s) for s in seeds for m in MODELS if m != "left-out" or self.data.left_out]
        asked = [RecallJob(model, seed, self.recipe, self.device) for model, seed in models]
        seconds = {"plain": 1.0}
        return [
            ModelJob(one.files(home), train, one, home / self.data_file, seconds.get(one.model, 10.0)) for one in asked
        ]

    def collect(self, home: Path, plan: ResumePlan, jobs: Sequence[ModelJob]) -> Measured[RecallFacts]:
        """The tables, from what every model answered (definitions B2 to B4)."""
        people, recipe = self.data, self.recipe
        answers, nearest, survived, losses = [], [], [], []
        for one in jobs:
            asked: RecallJob = one.asked
            body: Any = read_json(one.files.results, DELETE.format(one.files.results))
            answers += body["answers"]
            nearest += body["nearest"]
            survived += [row | {"model": asked.model, "seed": asked.seed} for row in body["survival"]]
            for stage in one.files.stages:
                losses += one.files.loss_rows(stage, f"{asked.model}/{stage}/{asked.seed}", "loss_nats")
        answers, nearest = frame("answers", answers), pl.DataFrame(nearest, schema=NEIGHBOURS)
        tables = {
            "answers": answers,
            "measures": frame("measures", [*measure_rows(answers, nearest), *survival_measures(survived)]),
            "metrics": frame("metrics", losses),
        }
        for one in jobs:
            # what `trisect ask` needs to know of a model: the names that it met, and the thresholds set on held-out questions
            met = {line.name for line in one.asked.read(people).lines} if one.asked.model != "plain" else set[str]()
            trained = {a.name: a.place for a in people.train}
            gold = {a.name: a.place for a in people.valid} | trained
            names = {name: (name in met, name in trained, gold.get(name)) for name in sorted(met | set(trained))}
            held = threshold_answers(answers.filter(model=one.asked.model, seed=one.asked.seed))
            sure, right = held["log_probability"].exp().to_numpy(), held["correct"].to_numpy()
            found = [threshold(sure, right, risk) for risk in RISKS]
            write_json(
                one.files.model() / CARD,
                plain(
                    ModelCard(
                        names, tuple(Threshold(t.risk, t.value, float(t.coverage), len(held)) for t in found), QUESTION
                    )
                ),
            )
        bound = {"people": people.fingerprint, "seeds": list(plan.seeds)}
        examples = self.settings.examples
        whole = RecallSettings(people.name, plan.seeds, recipe.name, changes_of(RECIPES, recipe), examples)
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
            {one.title: one.files.model() for one in jobs},
            command_of("recall", whole),
        )


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
