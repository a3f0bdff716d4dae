"""Train one model of a recall experiment, from random weights to its answers; each step is done once and kept."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import nn

from trisect.core.files import inside, read_record, write_json
from trisect.core.schema import record
from trisect.engine.drive import land
from trisect.engine.jobs import Emit, Files, JobDesk, JobOrder, job
from trisect.experiments.recall.rows import CATEGORIES, AnswerRow, NeighbourRow, neighbours, survived
from trisect.experiments.recall.settings import RecallRecipe
from trisect.hf.small.gpt import Answerer, Practice, ids_of, is_model, load_weights, make_model, make_tokenizer, save
from trisect.lm.matmul import fast_products, one_thread
from trisect.text.birth_places import (
    Example,
    People,
    ask,
    draw_span,
    pretraining_example,
    question_example,
)

MODELS = ("plain", "pretrained", "left-out")
SPLITS = ("train", "valid", "test", "invented")
STAGES = ("pretraining", "fine-tuning")
ANSWERING = 0.05  # of the time that a lesson takes, the share of its questions


@dataclass(frozen=True)
class Lesson:
    """One model of one seed: 'plain' is fine-tuned only, 'pretrained' read all lines, 'left-out' not those of some names."""

    model: str
    seed: int

    @property
    def title(self) -> str:
        """What a progress line, and a folder, calls it."""
        return f"{self.model}-{self.seed}"

    @property
    def seconds(self) -> float:
        """What it takes, against other lessons."""
        return 1.0 if self.model == "plain" else 10.0

    @property
    def stages(self) -> tuple[str, ...]:
        """Its trainings, in their order."""
        return STAGES[1:] if self.model == "plain" else STAGES

    def world(self, people: People) -> People:
        """What this model may read of all there is."""
        return people.without(people.left_out) if self.model == "left-out" else people


@dataclass(frozen=True)
class RecallFolder:
    """Where the files of a recall experiment lie."""

    path: Path

    @property
    def plan(self) -> Path:
        """The recipe, the seeds, and the people."""
        return self.path / "recall.json"

    @property
    def people(self) -> Path:
        """Texts and questions, as every worker reads them."""
        return self.path / "people.json"

    def model(self, lesson: Lesson) -> Path:
        """A fine-tuned model, an ordinary Hugging Face folder."""
        return inside(self.path, "models", lesson.title)

    def base(self, lesson: Lesson) -> Path:
        """The same model before it was fine-tuned."""
        return inside(self.path, "models", f"{lesson.title}-base")

    def state(self, lesson: Lesson, stage: str) -> Path:
        """Where an unfinished training goes on from."""
        return inside(self.path, "state", f"{lesson.title}-{stage}.safetensors")

    def losses(self, lesson: Lesson, stage: str) -> Path:
        """The loss of every epoch of a training."""
        return inside(self.path, "losses", f"{lesson.title}-{stage}.json")

    def answers(self, lesson: Lesson) -> Path:
        """What a model answered, and what of it survives without q, k or v."""
        return inside(self.path, "answers", f"{lesson.title}.json")

    def is_trained(self, lesson: Lesson) -> bool:
        """Whether a model is there, and the losses of each of its trainings."""
        return is_model(self.model(lesson)) and all(self.losses(lesson, stage).exists() for stage in lesson.stages)

    def is_done(self, lesson: Lesson) -> bool:
        """Whether all that a lesson leaves behind is there."""
        return self.is_trained(lesson) and self.answers(lesson).exists()

    def own(self) -> list[Path]:
        """Every folder that a recall experiment writes into."""
        ours = re.compile(rf"({'|'.join(MODELS)})-[0-9]+(-base)?")
        models = [path for path in sorted((self.path / "models").glob("*")) if ours.fullmatch(path.name)]
        return [self.path, *(self.path / name for name in ("answers", "figures", "losses", "state", "tables")), *models]


@record
class RecallJob:
    """A lesson as a worker reads it."""

    model: str
    seed: int
    recipe: RecallRecipe
    device: str


@job
def teach(asked: RecallJob, desk: JobDesk) -> None:
    """Do a lesson; its files lie in the scratch folder as they lie in the experiment's."""

    def emit(share: float, words: str) -> None:
        desk.keep()
        desk.say(share, words)

    def open_people(path: Path) -> People:
        return read_record(path, "Call 'trisect recall' again: it writes the file again.", People)

    people, lesson = desk.read("people", open_people), Lesson(asked.model, asked.seed)
    with one_thread(), fast_products():
        take(lesson, RecallFolder(desk.scratch), asked.recipe, people, asked.device, emit)


def take(lesson: Lesson, place: RecallFolder, recipe: RecallRecipe, people: People, device: str, emit: Emit) -> None:
    """Do of a lesson what is not done yet: pretrain, fine-tune, answer. What is done is on the disk, whole."""
    world = lesson.world(people)
    if not place.is_trained(lesson):
        _train(lesson, place, recipe, people, world, device, emit)
    if not place.answers(lesson).exists():
        emit(1 - ANSWERING, "answering")
        answerer = Answerer.open(place.model(lesson), device)
        rows, nearest = answer(lesson, answerer, world)
        body = {"answers": rows, "nearest": nearest, "survival": survived(answerer, rows)}
        write_json(place.answers(lesson), body)


def _train(
    lesson: Lesson, place: RecallFolder, recipe: RecallRecipe, people: People, world: People, device: str, emit: Emit
) -> None:
    """From random weights to a fine-tuned model in its folder."""
    tokenizer = make_tokenizer(people.characters(), recipe.block)
    model = make_model(recipe.architecture(), tokenizer, lesson.seed).to(device)
    mask, padding, pretrained = tokenizer.mask_token_id, tokenizer.pad_token_id, lesson.model != "plain"
    # every schedule counts the lines of the whole text, so that leaving some out changes nothing else
    lines = len(people.lines)
    if pretrained and is_model(place.base(lesson)) and place.losses(lesson, STAGES[0]).exists():
        load_weights(model, place.base(lesson))
    elif pretrained:
        texts = [ids_of(line.text, tokenizer) for line in world.lines]

        def spans(number: int, draw: np.random.Generator) -> list[Example]:
            cut = (recipe.shortest_text, recipe.longest_text, recipe.span)
            return [pretraining_example(ids, draw_span(len(ids), recipe.block, draw, *cut), mask) for ids in texts]

        practice = Practice(spans, recipe.pretraining(lines), recipe.block, padding, lesson.seed)
        _practise(practice, model, place, lesson, "pretraining", emit)
        save(model, tokenizer, place.base(lesson))
        place.state(lesson, "pretraining").unlink(missing_ok=True)
    asked = [
        question_example(ids_of(a.question, tokenizer), ids_of(a.place or "", tokenizer), mask) for a in world.train
    ]
    schedule = recipe.fine_tuning(lines, pretrained)
    practice = Practice(lambda number, draw: asked, schedule, recipe.block, padding, lesson.seed)
    _practise(practice, model, place, lesson, "fine-tuning", emit)
    save(model, tokenizer, place.model(lesson))
    place.state(lesson, "fine-tuning").unlink(missing_ok=True)


def _practise(
    practice: Practice, model: nn.Module, place: RecallFolder, lesson: Lesson, stage: str, emit: Emit
) -> None:
    """One training, with its losses kept beside the models."""
    epochs = practice.schedule.epochs * practice.schedule.cycles
    share = (0.0, 0.9) if stage == "pretraining" else (0.9 if lesson.model != "plain" else 0.0, 1 - ANSWERING)

    def note(epoch: int, loss: float) -> None:
        done = share[0] + (share[1] - share[0]) * epoch / epochs
        emit(done, f"{stage}, epoch {epoch} of {epochs}, {loss:.3f} nats")

    losses = practice.run(model, place.state(lesson, stage), note)
    write_json(place.losses(lesson, stage), list(losses))


def answer(lesson: Lesson, answerer: Answerer, world: People) -> tuple[list[AnswerRow], list[NeighbourRow]]:
    """Rows of the table `answers` for every question, and the nearest known names of names that the model met nowhere.

    Known are names that the model met in a text, and whose place a question says.
    """
    asked = [(split, a) for split in SPLITS for a in dict.fromkeys(getattr(world, split))]
    answers = answerer.answer([a.question for _, a in asked])
    met = {line.name for line in world.lines} if lesson.model != "plain" else set[str]()
    trained = {a.name for a in world.train}
    counts = Counter(a.place for a in world.train)
    known = {a.name: a.place for _, a in asked if a.place is not None and a.name in met | trained}
    unmet = list(dict.fromkeys(a.name for _, a in asked if a.name not in met | trained))
    questions = [ask(name) for name in (*unmet, *known)]
    vectors = dict(zip((*unmet, *known), answerer.represent(questions), strict=True))
    near = neighbours(unmet, known, vectors, lesson.model, lesson.seed)
    first = {row["name"]: row for row in near.filter(match="n-grams").iter_rows(named=True)}
    rows: list[AnswerRow] = [
        {
            "model": lesson.model,
            "seed": lesson.seed,
            "name": a.name,
            "split": split,
            "category": CATEGORIES[a.name in met, a.name in trained],
            "question": a.question,
            "gold": a.place,
            "answer": found.text,
            "correct": None if a.place is None else found.text == a.place,
            "log_probability": found.log_probability,
            "mean_log_probability": found.mean_log_probability,
            "entropy": found.entropy,
            "margin": found.margin,
            "known_place": found.text in counts,
            "place_count": counts.get(found.text, 0),
            "nearest": first[a.name]["nearest"] if a.name in first else None,
            "nearest_place": first[a.name]["place"] if a.name in first else None,
        }
        for (split, a), found in zip(asked, answers, strict=True)
    ]
    return rows, [NeighbourRow(**row) for row in near.to_dicts()]


ORDER = ("models/*/config.json", "answers/*")  # what says that a model, and then a lesson, is finished comes last


@dataclass(frozen=True)
class LessonWork:
    """One lesson; lessons wait for nothing."""

    lesson: Lesson
    place: RecallFolder
    recipe: RecallRecipe
    device: str

    @property
    def title(self) -> str:
        """What messages and progress lines call it."""
        return self.lesson.title

    @property
    def seconds(self) -> float:
        """What it takes, against other lessons."""
        return self.lesson.seconds

    def ready(self) -> bool:
        """Always."""
        return True

    def order(self) -> JobOrder:
        """It goes on from the model that is trained, else from what pretraining left and the training under way."""
        model, base = self.place.model(self.lesson), self.place.base(self.lesson)
        states = [self.place.state(self.lesson, stage) for stage in STAGES]
        losses = [self.place.losses(self.lesson, stage) for stage in self.lesson.stages]
        done = [model] if self.place.is_trained(self.lesson) else [base] if is_model(base) else []
        there = [*done, *(path for path in (*losses, *states) if path.exists())]
        return JobOrder(
            teach,
            RecallJob(self.lesson.model, self.lesson.seed, self.recipe, self.device),
            self.place.path,
            needs={"people": self.place.people},
            begins={str(path.relative_to(self.place.path)): path for path in there},
        )

    def land(self, files: Files) -> None:
        """Put files into the experiment's folder."""
        land(files, self.place.path, ORDER)

    def ended(self) -> None:
        """What an unfinished training goes on from is of no use any more."""
        for stage in STAGES:
            self.place.state(self.lesson, stage).unlink(missing_ok=True)
