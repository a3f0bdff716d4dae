"""Check: which models of a translation are finished, and every file that it goes on from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from trisect.core.files import read_json_list, read_record
from trisect.experiments.translate.settings import TRANSLATE
from trisect.experiments.translate.training import Apprentice, ScoresData, TranslationFolder
from trisect.hf.given_files import check_files
from trisect.hf.small.gpt import is_model
from trisect.lab.begun import Begun, damaged
from trisect.lab.resume import CallsData
from trisect.text.bitext import BitextData


def again(path: Path) -> str:
    """What to do about a file that is damaged."""
    return f"Delete {path} and call 'trisect translate-train' again: what is missing is made again."


def look(folder: Path) -> Begun:
    """How many models are trained and scored; raises DamagedFileError where the plan cannot be read."""
    place = TranslationFolder(folder)
    todo = f"Move {folder} away and call 'trisect translate-train' again: the plan cannot be made from the rest."
    team = [Apprentice(seed) for seed in read_record(place.plan, todo, CallsData)["seeds"]]
    done = sum(place.is_done(one) for one in team)
    errors = damaged(_readers(place, team), again)
    left = done < len(team) or not (folder / TRANSLATE.record).exists()
    return Begun(TRANSLATE.name, f"{done} of {len(team)} models", left, errors)


def _readers(place: TranslationFolder, team: list[Apprentice]) -> Iterator[tuple[Path, Callable[[], object]]]:
    yield place.bitext, partial(read_record, place.bitext, again(place.bitext), BitextData)
    for one in team:
        losses, scores, model = place.losses(one), place.scores(one), place.model(one)
        yield losses, partial(read_json_list, losses, again(losses))
        yield scores, partial(read_record, scores, again(scores), ScoresData)
        if is_model(model):
            yield model, partial(check_files, model)
