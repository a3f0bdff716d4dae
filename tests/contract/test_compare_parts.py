"""Two models side by side by what not all texts can be asked: profiles of a corpus, interchange over pairs."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests import tinyhf
from tests.raw import write_splits

from trisect.core.errors import CorpusError
from trisect.experiments import EXPERIMENTS
from trisect.experiments.compare import Compare
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


@pytest.fixture(scope="module")
def parts(two, tmp_path_factory):
    """Both models by what reads labels or pairs."""
    place = tmp_path_factory.mktemp("parts")
    corpus, draw = place / "bank", random.Random(0)
    corpus.mkdir()
    for split, count in (("train", 60), ("dev", 20), ("test", 60)):
        sentences = []
        for _ in range(count):
            lines = [
                f"{i}\tw{w}\tw{w}\t{'NOUN' if w % 2 else 'VERB'}\t_\t_\t{i - 1}\t{'root' if i == 1 else 'obj'}\t_\t_"
                for i, w in enumerate((draw.randrange(9) for _ in range(4)), 1)
            ]
            sentences.append("\n".join(lines))
        (corpus / f"en-ud-{split}.conllu").write_text("\n\n".join(sentences) + "\n\n")
    pairs = place / "pairs.jsonl"
    given = [
        {"base": f"w{i} w1 w2", "donor": f"w{i} w3 w2", "answers": {"base": "w1", "donor": "w3"}} for i in range(5)
    ]
    pairs.write_text("\n".join(map(json.dumps, given)))
    settings = asked(two, corpus, what=("erase", "profile", "patch"), pairs=pairs)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("trisect.text.labels.USUAL_LABELS", ("word", "pos", "previous"))  # of eight
        return run(experiment("compare"), settings, place / "out", quiet=True)


def test_differences_are_of_each_models_own_numbers_and_means_say_what_they_are_over(parts):
    table = parts.tables["differences"]
    wanted = {("erase", "erase_excess_nats"), ("profile", "profile_gain"), ("patch", "logit_change")}
    for part, measure in wanted:
        mean = table.filter(part=part, measure=f"mean_{measure}")
        assert set(mean.select("n", "per").iter_rows()) == {(2, "layer")}
        assert mean["low"].null_count() == 0
    assert set(table.filter(pl.col("low").is_not_null())["measure"]) == {f"mean_{measure}" for _, measure in wanted}
    own = {model: parts.tables["profile_measures"].filter(model=model) for model in ("seed-1", "seed-2")}
    gains = table.filter(pl.col("head").is_null(), measure="profile_gain")
    for row in gains.iter_rows(named=True):
        for name, model in (("first", "seed-1"), ("second", "seed-2")):
            same = (pl.col(key).eq_missing(row[key]) for key in ("measure", "group", "layer", "component", "head"))
            assert own[model].filter(*same)["value"].item() == row[name]
    titles = [figure.title for section in page(parts.tables, parts.about).sections for figure in section.figures]
    assert {"More than random maps, word", "Change of the logit difference"} <= set(titles)
    said = {found.title: [value.name for value in found.values] for found in parts.findings}
    assert said["more than random maps, word"] == ["q", "k", "v"]
    text = parts.report.read_text(encoding="utf-8")
    assert all(f"More than random maps, {label}" in text for label in ("word", "pos", "previous"))


def test_texts_with_too_few_words_leave_profiles_out_and_say_so(two, tmp_path):
    write_splits(tmp_path / "corpus", "w1 w2 .\nw3 w4 .")
    parts = tuple(one for one in experiment("compare").experiments if one.name in ("similarity", "profile"))
    less = Compare(tuple(parts))
    done = run(less, asked(two, tmp_path / "corpus"), tmp_path / "out", quiet=True)
    assert [part.what for part in done.about.facts.parts] == ["similarity"]
    with pytest.raises(CorpusError) as caught:
        run(less, asked(two, tmp_path / "corpus", what=("profile",)), tmp_path / "other", quiet=True)
    assert f"Profiles are left out. {caught.value.problem} {caught.value.reason}" in done.notes


def experiment(name: str) -> Experiment[Any, Any]:
    return next(one for one in EXPERIMENTS if one.name == name)
