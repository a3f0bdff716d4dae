"""Keep the answers of a recall's seeds without their names, and put seeds together that were trained apart.

    python tools/recalled_seeds.py keep RECALL results/recall/birth-places-seeds
    python tools/recalled_seeds.py join results/recall/birth-places-seeds

`keep` takes a finished recall and writes seeds/seed-N.json.gz for each of its seeds: every answer with its probabilities, names as
numbers and places as codes as long as they are, so that all that is measured of them stays the same. `join` makes tables and verdicts
of all seeds that are kept; `trisect report` makes the page. Refused: another world or recipe, and a seed that is there already.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from trisect.core.errors import StudyError, TrisectError
from trisect.core.files import digest, read_json, read_json_list, read_record, replace_file, write_json
from trisect.core.tables import frame, write_table
from trisect.experiments.recall.rows import (
    DRAWS,
    NEIGHBOURS,
    AnswersData,
    SurvivedRow,
    judge,
    measure_rows,
    survival_measures,
)
from trisect.experiments.recall.training import MODELS, Lesson, RecallFolder
from trisect.lab.run_folder import DELETE
from trisect.text.birth_places import People, PeopleData, ask, read_people

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
OF_RUN = ("corpus", "settings")  # what seeds that are put together have in common
RECORD = "about.json"
COMMAND, SEEDS = "trisect recall", re.compile(r" --seeds ([0-9,]+)")


@dataclass(frozen=True)
class Code:
    """Names as numbers in their order, places as codes of their own length; what is no known place, by a digest of it."""

    names: Mapping[str, str]
    places: Mapping[str, str]

    @classmethod
    def of(cls, people: People) -> Code:
        """The code of a world, the same of every seed."""
        every = (people.train, people.valid, people.test, people.invented)
        names = sorted({*people.names(), *(one.name for part in every for one in part)})
        wide = len(str(len(names)))
        places = sorted({one.place for part in every for one in part if one.place})
        by_length: dict[int, int] = {}
        coded = {}
        for place in places:
            number = by_length[len(place)] = by_length.get(len(place), 0) + 1
            coded[place] = base(number).rjust(len(place), "_")[-len(place) :]
        return cls({name: f"person {i:0{wide}}" for i, name in enumerate(names, start=1)}, coded)

    def name(self, name: str) -> str:
        """A name's number."""
        return self.names[name]

    def place(self, text: str | None) -> str | None:
        """A place's code, or an answer's that is none."""
        if text is None or text in self.places:
            return None if text is None else self.places[text]
        return ("?" + digest(text, 16))[: len(text)].ljust(len(text), "_") if text else text


def base(number: int) -> str:
    """A number in base 36."""
    return (base(number // 36) if number >= 36 else "") + DIGITS[number % 36]


def coded(body: AnswersData, code: Code) -> dict[str, Any]:
    """A model's file of answers without names and places."""
    questions = {row["question"]: ask(code.name(row["name"])) for row in body["answers"]}

    def changed(row: Mapping[str, Any]) -> dict[str, Any]:
        made = {"name": code.name, "nearest": code.name} | dict.fromkeys(
            ("gold", "answer", "nearest_place", "place"), code.place
        )
        own: dict[str, Callable[[str], Any]] = {**made, "question": questions.__getitem__}
        return {k: own[k](v) if k in own and v is not None else v for k, v in row.items()}

    survival = [
        {**one, "same": {questions[asked]: kept for asked, kept in one["same"].items()}} for one in body["survival"]
    ]
    return {
        "answers": [changed(row) for row in body["answers"]],
        "nearest": [changed(row) for row in body["nearest"]],
        "survival": survival,
    }


def kept_at(place: Path, seed: int) -> Path:
    """Where a seed's answers lie."""
    return place / "seeds" / f"seed-{seed}.json.gz"


def keep(recall: Path, place: Path) -> list[int]:
    """Write what the seeds of a finished recall answered; returns the seeds."""
    about = read_json(recall / RECORD, "Let the recall end.")
    folder = RecallFolder(recall)
    people = read_people(read_record(folder.people, DELETE.format(folder.people), PeopleData))
    code, seeds = Code.of(people), seeds_of(about)
    if (place / RECORD).exists():
        known = read_json(place / RECORD, "Take the folder as it was committed.")
        if different := [name for name in OF_RUN if known[name] != about[name]]:
            said = f"Their {' and '.join(different)} differ."
            raise StudyError(f"{recall} is another recall than {place}.", said, "Keep it elsewhere.")
        if twice := sorted({*seeds} & {*seeds_of(known)}):
            said = f"Kept there are seeds {', '.join(map(str, seeds_of(known)))}."
            raise StudyError(f"Seed {twice[0]} is kept already.", said, "Keep other seeds.")
        about = _with_seeds(known, sorted([*seeds, *seeds_of(known)])) | {
            "seconds": known["seconds"] + about["seconds"]
        }
    for seed in seeds:
        lessons = [Lesson(model, seed) for model in MODELS if model != "left-out" or people.left_out]
        body = {
            one.model: coded(read_record(folder.answers(one), DELETE.format(folder.answers(one)), AnswersData), code)
            | {
                "losses": {
                    stage: read_json_list(folder.losses(one, stage), DELETE.format(folder.losses(one, stage)))
                    for stage in one.stages
                }
            }
            for one in lessons
        }
        _write(kept_at(place, seed), body)
    write_json(place / RECORD, about | {"examples": False})
    return seeds


def join(place: Path, draws: int = DRAWS) -> dict[str, pl.DataFrame]:
    """Tables and verdicts of all seeds that are kept."""
    about = read_json(place / RECORD, "Keep a seed first.")
    seeds = seeds_of(about)
    read = {seed: json.loads(gzip.decompress(kept_at(place, seed).read_bytes())) for seed in seeds}
    every = [(seed, model, body) for seed, of in read.items() for model, body in of.items()]
    answers = frame("answers", [row for _, _, body in every for row in body["answers"]])
    nearest = pl.DataFrame([row for _, _, body in every for row in body["nearest"]], schema=NEIGHBOURS)
    survived = [SurvivedRow(model=model, seed=seed, **row) for seed, model, body in every for row in body["survival"]]
    bound = {"people": str(about["corpus"]).rpartition(" ")[2], "seeds": seeds}
    return {
        "answers": answers,
        "measures": frame("measures", [*measure_rows(answers, nearest, draws=draws), *survival_measures(survived)]),
        "metrics": frame("metrics", _losses(every)),
        "claims": judge(answers, bound, nearest, draws=draws),
    }


def _losses(every: Iterable[tuple[int, str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    return [
        {"run": f"{model}/{stage}/{seed}", "epoch": epoch, "split": "train", "name": "loss_nats", "value": loss}
        for seed, model, body in every
        for stage, losses in body["losses"].items()
        for epoch, loss in enumerate(losses, start=1)
    ]


def seeds_of(about: Mapping[str, Any]) -> list[int]:
    """The seeds of the command that an about.json states; 1 where it states none."""
    found = SEEDS.search(str(about["command"]))
    return [int(n) for n in found[1].split(",") if n] if found else [1]


def _with_seeds(about: Mapping[str, Any], seeds: Sequence[int]) -> dict[str, Any]:
    """The same with the command of these seeds."""
    given = ",".join(map(str, seeds)) + ("," if len(seeds) == 1 else "")
    rest = SEEDS.sub("", str(about["command"])).removeprefix(COMMAND)
    return {**about, "command": f"{COMMAND} --seeds {given}{rest}"}


def _write(path: Path, body: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(body, separators=(",", ":"), sort_keys=True, allow_nan=False)
    replace_file(path, lambda scratch: scratch.write_bytes(gzip.compress(text.encode(), mtime=0)))


def main(given: Sequence[str]) -> None:
    """Keep, or join."""
    match given:
        case ["keep", recall, place]:
            print(f"{place}: kept seeds {', '.join(map(str, keep(Path(recall), Path(place))))}")
        case ["join", place]:
            for name, table in join(Path(place)).items():
                write_table(Path(place) / "tables", name, table)
            print(f"{place}: {', '.join(map(str, seeds_of(read_json(Path(place) / RECORD, ''))))}")
        case _:
            raise StudyError(
                "Nothing to do was given.", "There is 'keep RECALL FOLDER' and 'join FOLDER'.", "Give one of them."
            )


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except TrisectError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
