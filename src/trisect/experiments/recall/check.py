"""Check: which models of a recall are finished, and every file that it goes on from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from trisect.core.files import read_json_list, read_record
from trisect.experiments.recall.rows_kept import AnswersData
from trisect.experiments.recall.settings import RECALL
from trisect.experiments.recall.training import MODELS, Lesson, RecallFolder
from trisect.hf.given_files import check_files
from trisect.hf.small.gpt import is_model
from trisect.lab.begun import Begun, damaged
from trisect.lab.resume import CallsData
from trisect.text.birth_places import PeopleData


def again(path: Path) -> str:
    """What to do about a file that is damaged."""
    return f"Delete {path} and call 'trisect recall' again: what is missing is made again."


def look(folder: Path) -> Begun:
    """How many models are trained and were asked; raises DamagedFileError where plan or people cannot be read."""
    place = RecallFolder(folder)
    todo = f"Move {folder} away and call 'trisect recall' again: the plan cannot be made from the rest."
    seeds = read_record(place.plan, todo, CallsData)["seeds"]
    left_out = place.people.exists() and read_record(place.people, again(place.people), PeopleData)["left_out"]
    team = [Lesson(model, seed) for seed in seeds for model in MODELS if model != "left-out" or left_out]
    done = sum(place.is_done(one) for one in team)
    errors = damaged((pair for one in team for pair in _readers(place, one)), again)
    left = done < len(team) or not (folder / RECALL.record).exists()
    return Begun(RECALL.name, f"{done} of {len(team)} models", left, errors)


def _readers(place: RecallFolder, one: Lesson) -> Iterator[tuple[Path, Callable[[], object]]]:
    answers = place.answers(one)
    yield answers, partial(read_record, answers, again(answers), AnswersData)
    for stage in one.stages:
        losses = place.losses(one, stage)
        yield losses, partial(read_json_list, losses, again(losses))
    for model in (place.base(one), place.model(one)):
        if is_model(model):
            yield model, partial(check_files, model)
