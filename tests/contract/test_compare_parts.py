"""Two models side by side by what not all texts can be asked: profiles of a corpus, interchange over pairs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests import tinyhf

from trisect.core.errors import CorpusError
from trisect.experiments import EXPERIMENTS
from trisect.experiments.compare.page import page
from trisect.experiments.compare.settings import CompareSettings
from trisect.hf.load import load
from trisect.lab.driver import run
from trisect.lab.experiment import Experiment
from trisect.lab.inputs import ModelsSource, TextSource


@pytest.fixture(scope="module")
def two():
    return [replace(load(tinyhf.gpt2(seed), tinyhf.tokenizer(False)), name=f"seed-{seed}") for seed in (1, 2)]


def asked(two, texts: Path, **named: Any) -> CompareSettings:
    return CompareSettings(ModelsSource(tuple(two)), TextSource(texts), **named)


def test_profiles_and_interchange_stand_beside_each_other_each_with_what_it_is_of(two, tmp_path):
    pairs = tmp_path / "pairs.jsonl"
    lines = [
        {"base": f"w{i} w1 w2", "donor": f"w{i} w3 w2", "answers": {"base": "w1", "donor": "w3"}} for i in range(4)
    ]
    pairs.write_text("\n".join(map(json.dumps, lines)))
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for split in ("train", "valid", "test"):
        (corpus / f"{split}.txt").write_text("\n".join(f"w{i % 9} w{i % 7} w{i % 5} w{i % 3} ." for i in range(60)))
    settings = asked(two, corpus, what=("profile", "patch"), pairs=pairs)
    done = run(experiment("compare"), settings, tmp_path / "out", quiet=True)
    rows = done.tables["differences"]
    assert set(rows["part"]) == {"profile", "patch"}
    gains = rows.filter(pl.col("measure") == "profile_gain", pl.col("group") == "word", pl.col("head").is_null())
    own = {model: done.tables["profile_measures"].filter(pl.col("model") == model) for model in ("seed-1", "seed-2")}
    for row in gains.iter_rows(named=True):
        for name, model in (("first", "seed-1"), ("second", "seed-2")):
            found = own[model].filter(
                *(pl.col(key).eq_missing(row[key]) for key in ("measure", "group", "layer", "component", "head"))
            )
            assert found["value"].item() == row[name]
    titles = [figure.title for section in page(done.tables, done.about).sections for figure in section.figures]
    assert "More than random maps, word" in titles
    assert "More than random maps, position" in titles
    assert "Change of the logit difference" in titles
    said = {found.title: [value.name for value in found.values] for found in done.findings}
    labels = ("frequency", "position", "word")
    assert [said[f"more than random maps, {label}, mean over layers, accuracy"] for label in labels] == [
        ["q", "k", "v"]
    ] * 3


def test_texts_with_too_few_words_leave_profiles_out_and_say_so(two, tmp_path):
    (tmp_path / "corpus").mkdir()
    for split in ("train", "valid", "test"):
        (tmp_path / "corpus" / f"{split}.txt").write_text("w1 w2 .\nw3 w4 .")
    parts = tuple(one for one in experiment("compare").of if one.name in ("similarity", "profile"))
    less = replace(experiment("compare"), of=parts)
    done = run(less, asked(two, tmp_path / "corpus"), tmp_path / "out", quiet=True)
    assert [part.name for part in done.about.facts.parts] == ["similarity"]
    with pytest.raises(CorpusError) as caught:
        run(less, asked(two, tmp_path / "corpus", what=("profile",)), tmp_path / "other", quiet=True)
    assert f"Profiles are left out. {caught.value.given} {caught.value.known}" in done.notes


def experiment(name: str) -> Experiment[Any, Any]:
    return next(one for one in EXPERIMENTS if one.name == name)
