"""Answers are kept without names and places, and seeds that were asked apart are measured as if they had been asked together."""

from __future__ import annotations

import gzip
import runpy
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from trisect.core.errors import StudyError
from trisect.core.files import read_json, write_json
from trisect.core.tables import frame
from trisect.experiments.recall.rows import NEIGHBOURS, judge, measure_rows, survival_measures
from trisect.text.birth_places import People, PretrainingLine, Question, ask

TOOL = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[2] / "tools" / "recalled_seeds.py")))
PLACES = ("Ely", "Rom", "Graz", "Pernambuco", "Tallinn")
NAMES = [f"{first} {last}" for first in ("Adaex", "Borix", "Celux", "Dorax") for last in ("Arnelt", "Brandt", "Corvin")]
MODELS = ("plain", "pretrained", "left-out")


def world() -> People:
    asked = [Question(name, ask(name), PLACES[i in (1, 3) if i < 6 else i % 5]) for i, name in enumerate(NAMES)]
    lines = tuple(PretrainingLine(one.name, f"{one.name} was born in {one.place}.") for one in asked)
    unknown = tuple(Question(name, ask(name), None) for name in ("Eluxx Zander", "Fadox Yarrow"))
    return People("few", lines, tuple(asked[:6]), tuple(asked[6:]), (), (NAMES[-1],), unknown)


def answered(people: People, model: str, seed: int) -> dict[str, list[dict[str, object]]]:
    """A model's file of answers: at random right, another place, or none that exists."""
    draw = np.random.default_rng([MODELS.index(model), seed])
    rows, nearest = [], []
    for split in ("train", "valid", "invented"):
        for one in getattr(people, split):
            said = str(draw.choice([one.place or "Ely", *PLACES, "Nowhereburg"]))
            unmet = split == "invented" or (model == "left-out" and one.name in people.left_out)
            near = str(draw.choice(NAMES[:6]))
            rows.append(
                {
                    "model": model,
                    "seed": seed,
                    "name": one.name,
                    "split": split,
                    "category": "neither" if unmet else "pretraining only" if split == "valid" else "fine-tuning only",
                    "question": one.question,
                    "gold": one.place,
                    "answer": said,
                    "correct": None if one.place is None else said == one.place,
                    "log_probability": -float(draw.exponential()),
                    "mean_log_probability": -float(draw.exponential()),
                    "entropy": float(draw.exponential()),
                    "margin": float(draw.exponential()),
                    "known_place": said in PLACES,
                    "place_count": int(draw.integers(4)),
                    "nearest": near if unmet else None,
                    "nearest_place": PLACES[NAMES.index(near) in (1, 3)] if unmet else None,
                }
            )
            if unmet:
                place = PLACES[NAMES.index(near) in (1, 3)]
                found = {"model": model, "seed": seed, "match": "last name", "name": one.name}
                nearest.append(found | {"nearest": near, "similarity": 1.0, "place": place})
    same = {str(row["question"]): bool(draw.integers(2)) for row in rows}
    kept = {"group": "taught", "how": "mean", "stack": "plain", "layer": 1, "component": "q", "same": same}
    return {"answers": rows, "nearest": nearest, "survival": [kept]}


def recall(place: Path, seed: int, **changed: object) -> Path:
    """A finished recall of one seed, as it lies on disk."""
    people = world()
    write_json(place / "people.json", asdict(people))
    for model in MODELS:
        write_json(place / "answers" / f"{model}-{seed}.json", answered(people, model, seed))
        for stage in ("pretraining", "fine-tuning"):
            (place / "losses").mkdir(exist_ok=True)
            write_json(place / "losses" / f"{model}-{stage}.json".replace(model, f"{model}-{seed}"), [2.0, 1.0])
    given = f" --seeds {seed}," if seed != 1 else ""  # which nobody has to name
    about = {"command": f"trisect recall --data few{given} --workers 1", "seconds": 10.0, "examples": True}
    write_json(place / "about.json", about | {"corpus": "few, fingerprint abc", "settings": {"width": 8}} | changed)
    return place


def test_seeds_kept_apart_are_measured_as_they_are_uncoded(tmp_path):
    for seed in (1, 2):
        assert TOOL.keep(recall(tmp_path / f"r{seed}", seed), tmp_path / "kept") == [seed]
    found = TOOL.join(tmp_path / "kept", 300)
    bodies = [(model, seed, answered(world(), model, seed)) for seed in (1, 2) for model in MODELS]
    answers = frame("answers", [row for _, _, body in bodies for row in body["answers"]])
    nearest = pl.DataFrame([row for _, _, body in bodies for row in body["nearest"]], schema=NEIGHBOURS)
    survived: list[Any] = [{"model": m, "seed": s, **row} for m, s, body in bodies for row in body["survival"]]
    rows = [*measure_rows(answers, nearest, draws=300), *survival_measures(survived)]
    assert_frame_equal(found["measures"], frame("measures", rows))
    named = [c for c in found["claims"].columns if c != "runs"]
    assert_frame_equal(found["claims"].select(named), judge(answers, {}, nearest, draws=300).select(named))
    assert found["metrics"].height == 2 * 5 * 2  # seeds, trainings (one of the plain model's), epochs
    about = read_json(tmp_path / "kept" / "about.json", "")
    assert about["command"] == "trisect recall --seeds 1,2 --data few --workers 1"
    assert about["seconds"] == 20.0
    assert about["examples"] is False


def test_no_name_and_no_place_is_kept(tmp_path):
    TOOL.keep(recall(tmp_path / "r", 3), tmp_path / "kept")
    text = gzip.decompress((tmp_path / "kept" / "seeds" / "seed-3.json.gz").read_bytes()).decode()
    text += TOOL.join(tmp_path / "kept", 20)["answers"].write_csv()
    words = {word for name in [*NAMES, *(one.name for one in world().invented)] for word in name.split()}
    assert [word for word in {*words, *PLACES, "Nowhereburg"} if word in text] == []
    code = TOOL.Code.of(world())
    assert {len(code.place(place)) - len(place) for place in (*PLACES, "Nowhereburg", "x", "")} == {0}
    assert len({code.place(place) for place in (*PLACES, "Nowhereburg")}) == 6
    assert code.place(None) is None


def test_what_is_kept_already_and_what_is_of_another_recipe_is_refused(tmp_path):
    kept = tmp_path / "kept"
    TOOL.keep(recall(tmp_path / "one", 1), kept)
    before = {path: path.read_bytes() for path in kept.rglob("*") if path.is_file()}
    with pytest.raises(StudyError, match="Seed 1 is kept already"):
        TOOL.keep(tmp_path / "one", kept)
    with pytest.raises(StudyError, match="another recall"):
        TOOL.keep(recall(tmp_path / "two", 2, settings={"width": 9}), kept)
    with pytest.raises(StudyError, match="another recall"):
        TOOL.keep(recall(tmp_path / "three", 2, corpus="few, fingerprint xyz"), kept)
    assert {path: path.read_bytes() for path in kept.rglob("*") if path.is_file()} == before
    with pytest.raises(StudyError, match="Nothing to do"):
        TOOL.main(["keep"])
