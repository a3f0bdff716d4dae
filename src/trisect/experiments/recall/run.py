"""Recall: models with and without pretraining are trained, asked where people were born, and compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from trisect.core.errors import SpecError
from trisect.core.files import Json, read_json, write_json
from trisect.core.machine import Machine
from trisect.core.schema import record, to_json_data
from trisect.core.subject import SiteTarget
from trisect.core.tables import NewRow, frame
from trisect.engine.jobs import Emit, JobContext, job
from trisect.engine.start import choose_device
from trisect.experiments.recall.ask import CARD, ModelCard, Threshold
from trisect.experiments.recall.rows import (
    CATEGORIES,
    NEIGHBOURS,
    RISKS,
    judge,
    measure_rows,
    neighbours,
    survival_measures,
    threshold_answers,
)
from trisect.experiments.recall.settings import (
    EMBEDDED_DATA,
    RECIPES,
    RecallFacts,
    RecallRecipe,
    RecallSettings,
    Reference,
)
from trisect.hf.small.gpt import Answerer, Practice, ids_of, is_model, load_weights, make_model, make_tokenizer
from trisect.lab.experiment import Measured
from trisect.lab.inputs import changes_of, choose_recipe
from trisect.lab.records import command
from trisect.lab.run_folder import DELETE_ADVICE, ResumePlan
from trisect.lab.training import ModelFiles, ModelJob, TrainingWork, begin
from trisect.lm.matmul import fast_products, one_thread
from trisect.measure.intervention import put, zeros
from trisect.measure.recall import threshold
from trisect.text.birth_places import (
    QUESTION,
    Example,
    People,
    ask,
    check_block,
    draw_span,
    open_people,
    pretraining_example,
    question_example,
)
from trisect.text.generated import people_corpus

MODELS = ("plain", "pretrained", "left-out")
SPLITS = ("train", "valid", "test", "invented")
STAGES = ("pretraining", "fine-tuning")
SHARES = {"pretraining": 0.9, "fine-tuning": 0.95}  # of the time that a model takes, what is over when a stage ends


@record
class RecallJob:
    """One model of one seed: 'plain' is fine-tuned alone, 'pretrained' has read all lines, 'left-out' all but those of some names."""

    model: str
    seed: int
    recipe: RecallRecipe
    device: str

    def files(self, home: Path) -> ModelFiles:
        """The paths of its files; before fine-tuning it is stored as `base`."""
        stages = STAGES[1:] if self.model == "plain" else STAGES
        return ModelFiles(home, f"{self.model}-{self.seed}", "answers", stages, ("models",))

    def read(self, people: People) -> People:
        """The lines that this model may read."""
        return people.without(people.left_out) if self.model == "left-out" else people

    def names_met(self, people: People) -> set[str]:
        """The names in its pretraining text."""
        return {line.name for line in self.read(people).lines} if self.model != "plain" else set()


@job
def train(spec: RecallJob, context: JobContext) -> None:
    """Complete the model's files; paths in the scratch folder are those in the experiment's."""
    people, emit = begin(context, People)
    with one_thread(), fast_products():
        train_and_ask(spec, spec.files(context.scratch), people, emit)


def train_and_ask(spec: RecallJob, files: ModelFiles, people: People, emit: Emit) -> None:
    """Pretrain, fine-tune and answer, skipping stages whose files are complete."""
    if not files.is_complete:
        _train(spec, files, people, emit)
    if not files.results.exists():
        emit(SHARES["fine-tuning"], "answering")
        answerer = Answerer.open(files.model(), spec.device)
        rows, nearest = answer(spec, answerer, people)
        write_json(files.results, {"answers": rows, "nearest": nearest, "survival": survival(answerer, rows)})


def _train(spec: RecallJob, files: ModelFiles, people: People, emit: Emit) -> None:
    """Train from random weights to a fine-tuned model in its folder."""
    recipe, world = spec.recipe, spec.read(people)
    tokenizer = make_tokenizer(people.characters(), recipe.block)
    model = make_model(recipe.architecture(), tokenizer, spec.seed).to(spec.device)
    mask, padding = tokenizer.mask_token_id, tokenizer.pad_token_id
    # every schedule counts the lines of the whole text, so that leaving some out changes nothing else
    lines = len(people.lines)
    texts = [ids_of(line.text, tokenizer) for line in world.lines]

    def spans(number: int, draw: np.random.Generator) -> list[Example]:
        cut = (recipe.shortest_text, recipe.longest_text, recipe.span)
        return [pretraining_example(ids, draw_span(len(ids), recipe.block, draw, *cut), mask) for ids in texts]

    pairs = ((ids_of(a.question, tokenizer), ids_of(a.place or "", tokenizer)) for a in world.train)
    questions = [question_example(question, place, mask) for question, place in pairs]
    reads = {
        "pretraining": (spans, recipe.pretraining(lines), "base"),
        "fine-tuning": (lambda number, draw: questions, recipe.fine_tuning(lines, spec.model != "plain"), ""),
    }
    over = 0.0
    for stage in files.stages:
        rows, schedule, version = reads[stage]
        if version and is_model(files.model(version)) and files.losses(stage).exists():
            load_weights(model, files.model(version))
        else:
            practice = Practice(rows, schedule, recipe.block, padding, spec.seed)

            def report(epoch: int, epochs: int, loss: float, stage: str = stage, over: float = over) -> None:
                share = over + (SHARES[stage] - over) * epoch / epochs
                emit(share, f"{stage}, epoch {epoch} of {epochs}, {loss:.3f} nats")

            files.train(practice, model, tokenizer, stage, report, version)
        over = SHARES[stage]


def answer(spec: RecallJob, answerer: Answerer, people: People) -> tuple[list[NewRow], list[NewRow]]:
    """Rows of the table `answers` for every question, and the nearest known names of unread names.

    Known are names that the model met in a text, and whose place a question says.
    """
    world, met = spec.read(people), spec.names_met(people)
    questions = [(split, a) for split in SPLITS for a in dict.fromkeys(getattr(world, split))]
    answers = answerer.answer([a.question for _, a in questions])
    trained = {a.name for a in world.train}
    counts = Counter(a.place for a in world.train)
    places = {a.name: a.place for _, a in questions if a.place is not None and a.name in met | trained}
    unmet = list(dict.fromkeys(a.name for _, a in questions if a.name not in met | trained))
    vectors = answerer.represent([ask(name) for name in (*unmet, *places)])
    near = neighbours(unmet, places, dict(zip((*unmet, *places), vectors, strict=True)), spec.model, spec.seed)
    first = {row["name"]: row for row in near.filter(match="n-grams").iter_rows(named=True)}
    rows: list[NewRow] = [
        {
            "model": spec.model,
            "seed": spec.seed,
            "name": a.name,
            "split": split,
            "category": CATEGORIES[a.name in met, a.name in trained],
            "question": a.question,
            "gold": a.place,
            "answer": guess.text,
            "correct": None if a.place is None else guess.text == a.place,
            "log_probability": guess.log_probability,
            "mean_log_probability": guess.mean_log_probability,
            "entropy": guess.entropy,
            "margin": guess.margin,
            "known_place": guess.text in counts,
            "place_count": counts.get(guess.text, 0),
            "nearest": first.get(a.name, {}).get("nearest"),
            "nearest_place": first.get(a.name, {}).get("place"),
        }
        for (split, a), guess in zip(questions, answers, strict=True)
    ]
    return rows, near.to_dicts()


RETRIEVED, TAUGHT, WRONG, MADE_UP = GROUPS = ("retrieved", "taught", "wrong", "made up")


def group_of(row: Mapping[str, Json]) -> str | None:
    """The kind of answer in a row of `answers`; None if it is unknown.

    'retrieved': right, of a name met in pretraining only, so that nothing but that text can have held it; 'wrong': the
    same, but another place; 'taught': right, of a name that fine-tuning asked about; 'made up': of a name met nowhere.
    """
    if row["category"] == "neither":
        return MADE_UP
    if row["correct"] is None:
        return None
    if row["category"] == "pretraining only":
        return RETRIEVED if row["correct"] else WRONG
    return TAUGHT if row["correct"] else None


def survival(answerer: Answerer, answers: Iterable[Mapping[str, Json]]) -> list[dict[str, Json]]:
    """Whether each answer is the same with q, k or v of one layer replaced, in all heads and at all positions.

    `answers` are rows of that table, of one model and seed. What is put in place is the mean over the characters of all
    these questions with their answers, or zero. A row of the result is one replacement and one kind of answer: group,
    how, stack, layer, component, and `same`, true or false by question. What the model does not give again in one pass
    without any replacement, such as an answer that never ended, is in none of them.
    """
    kinds = {str(row["question"]): (kind, str(row["answer"])) for row in answers if (kind := group_of(row))}
    questions, texts = list(kinds), [answer for _, answer in kinds.values()]
    if not questions:
        return []
    again = answerer.reproduces(questions, texts)
    means, rows = answerer.means(questions, texts), []
    for address, how, component in product(sorted(answerer.shape.heads), ("mean", "zero"), "qkv"):
        source = means[address] if how == "mean" else zeros()
        same = answerer.reproduces(questions, texts, {address: put([SiteTarget(address, component, None)], source)})
        place = {"stack": address.stack, "layer": address.layer, "component": component}
        for group in GROUPS:
            chosen = [i for i, (kind, _) in enumerate(kinds.values()) if kind == group and again[i]]
            if chosen:
                answers_same = {questions[i]: bool(same[i]) for i in chosen}
                rows.append({"group": group, "how": how} | place | {"same": answers_same})
    return rows


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
    """Prepare the models to train and the questions, checked to fit the model's rows.

    `data` is 'embedded' or a folder as text.birth_places.open_people reads it. Raises TrisectError.
    """
    device = choose_device(machine)
    recipe = choose_recipe(RECIPES, settings.recipe, str(settings.data) == EMBEDDED_DATA, settings.settings)
    if str(settings.data) == EMBEDDED_DATA:
        if recipe.left_out:
            reason = "It has people of its own who are in no text."
            raise SpecError(f"left_out={recipe.left_out} in the generated world.", reason, "Leave that setting out.")
        people = people_corpus(unseen=recipe.invented)
    else:
        people = open_people(settings.data, left_out=recipe.left_out, invented=recipe.invented)
    if recipe.trained_people:
        people = people.smaller(recipe.trained_people)
    others = (*people.valid, *people.test, *people.invented)
    for questions, blank in ((people.train, ""), (others, " ")):
        texts = [a.question + (a.place or blank) + MARKS for a in questions]
        check_block(texts, recipe.block, "The question and answer")
    return RecallWork(settings, recipe, people, device)


class RecallWork(TrainingWork[RecallSettings, RecallRecipe, People, RecallFacts]):
    """Models to train and ask."""

    kind = "recall experiment"
    plan_file, data_file = "recall.json", "people.json"
    folders = ("answers", "figures")
    model_pattern = rf"models/({'|'.join(MODELS)})-[0-9]+(-base)?"

    def jobs(self, home: Path, seeds: Sequence[int]) -> list[ModelJob]:
        """Every model of each seed; one without some names if the data have such."""
        models = [(m, s) for s in seeds for m in MODELS if m != "left-out" or self.data.left_out]
        requests = [RecallJob(model, seed, self.recipe, self.device) for model, seed in models]
        data, seconds = home / self.data_file, {"plain": 1.0}
        return [ModelJob(spec.files(home), train, spec, data, seconds.get(spec.model, 10.0)) for spec in requests]

    def collect(self, home: Path, plan: ResumePlan, jobs: Sequence[ModelJob]) -> Measured[RecallFacts]:
        """The tables, from the answers of every model (definitions B2 to B4)."""
        people, recipe = self.data, self.recipe
        answers, nearest, survived, losses = [], [], [], []
        requests: list[tuple[RecallJob, ModelFiles]] = [(job.request, job.files) for job in jobs]
        for spec, files in requests:
            body: Any = read_json(files.results, DELETE_ADVICE.format(files.results))
            answers += body["answers"]
            nearest += body["nearest"]
            survived += [row | {"model": spec.model, "seed": spec.seed} for row in body["survival"]]
            for stage in files.stages:
                losses += files.loss_rows(stage, f"{spec.model}/{stage}/{spec.seed}", "loss_nats")
        answers, nearest = frame("answers", answers), pl.DataFrame(nearest, schema=NEIGHBOURS)
        tables = {
            "answers": answers,
            "measures": frame("measures", [*measure_rows(answers, nearest), *survival_measures(survived)]),
            "metrics": frame("metrics", losses),
        }
        trained = {a.name: a.place for a in people.train}
        gold = {a.name: a.place for a in people.valid} | trained
        for spec, files in requests:
            # what `trisect ask` needs to know of a model: the names that it met, and the thresholds set on held-out questions
            met = spec.names_met(people)
            names = {name: (name in met, name in trained, gold.get(name)) for name in sorted(met | set(trained))}
            held_out = threshold_answers(answers.filter(model=spec.model, seed=spec.seed))
            sure, right = held_out["log_probability"].exp().to_numpy(), held_out["correct"].to_numpy()
            thresholds = [threshold(sure, right, risk) for risk in RISKS]
            rules = tuple(Threshold(t.risk, t.value, float(t.coverage), len(held_out)) for t in thresholds)
            write_json(files.model() / CARD, to_json_data(ModelCard(names, rules, QUESTION)))
        bound = {"people": people.fingerprint, "seeds": list(plan.seeds)}
        settings = RecallSettings(people.name, plan.seeds, recipe.name, changes_of(RECIPES, recipe))
        facts = RecallFacts(
            f"{people.name}, fingerprint {people.fingerprint}",
            recipe.data(),
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
            {files.title: files.model() for _, files in requests},
            command("recall", settings),
        )


def _missing(people: People) -> list[str]:
    """A note on characters of questions that no training text has, which are read as unknown, with their number."""
    vocabulary = set(people.characters())
    texts = [a.question + (a.place or "") for part in (people.valid, people.test, people.invented) for a in part]
    lost = Counter(c for text in texts for c in text if c not in vocabulary)
    if not lost:
        return []
    total = sum(not set(text) <= vocabulary for text in texts)
    characters = ", ".join(f"{c!r} {n}×" for c, n in sorted(lost.items()))
    return [f"{total} questions or their places hold characters outside the vocabulary, read as unknown: {characters}."]
