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
from trisect.core.tables import ROW
from trisect.experiments import EXPERIMENTS
from trisect.experiments.compare import Compare
from trisect.experiments.compare import run as compare_run
from trisect.experiments.compare.page import page
from trisect.experiments.compare.run import _differences, _pairing_notes
from trisect.experiments.compare.settings import CompareSettings
from trisect.hf.load import load
from trisect.lab.driver import run
from trisect.lab.experiment import Experiment
from trisect.lab.inputs import ModelsSource, TextSource
from trisect.stats.bootstrap import percentile_interval
from trisect.stats.significance import finite


@pytest.fixture(scope="module")
def two():
    return [replace(load(tinyhf.gpt2(seed), tinyhf.tokenizer(False)), name=f"seed-{seed}") for seed in (1, 2)]


def asked(two, texts: Path, **named: Any) -> CompareSettings:
    return CompareSettings(ModelsSource(tuple(two)), TextSource(texts), **named)


@pytest.fixture(scope="module")
def parts(two, tmp_path_factory):
    """Both models by what has units of its own, and what each gave."""
    place = tmp_path_factory.mktemp("parts")
    corpus, units, draw = place / "bank", list[Any](), random.Random(0)
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
        own = compare_run.measure_unit
        patched.setattr("trisect.text.labels.USUAL_LABELS", ("word", "pos", "previous"))  # of eight
        patched.setattr(compare_run, "measure_unit", lambda *asked: [units.append(own(*asked)), units[-1]][1])
        done = run(experiment("compare"), settings, place / "out", quiet=True)
    return done, dict(zip(("erase", "profile", "patch"), zip(units[::2], units[1::2], strict=True), strict=True))


def test_draws_are_those_behind_each_models_own_intervals(parts):
    """A t interval over heads is another, and its draws are only round its value."""
    for both in parts[1].values():
        for one in both:
            rows = {tuple(row[name] for name in ROW): row for row in one.tables["measures"].to_dicts()}
            assert one.replicates
            for key, drawn in one.replicates.items():
                row = rows[key]
                assert row["n"] == drawn.units
                if drawn.unit == "head":
                    assert drawn.values.mean() == pytest.approx(row["value"], abs=0.05)
                elif row["measure"] not in ("own", "donor"):  # whose intervals are Jeffreys'
                    ends = percentile_interval(drawn.values, drawn.units)
                    assert (finite(ends.low), finite(ends.high)) == (row["low"], row["high"])
                else:
                    assert drawn.values.mean() == pytest.approx(row["value"], abs=0.05)


def test_differences_over_heads_texts_and_pairs_have_paired_intervals(parts):
    done, units = parts
    table = done.tables["differences"]
    wanted = {
        ("erase", "erase_excess_nats"): "text",
        ("profile", "profile_gain"): "head",
        ("profile", "exchange_change"): "text",
        ("patch", "logit_change"): "pair",
    }
    for (part, measure), unit in wanted.items():
        rows = table.filter(part=part, measure=measure).to_dicts()
        assert rows
        for row in rows:
            drawn = [one.replicates[tuple(row[name] for name in ROW)] for one in units[part]]
            ends = percentile_interval(drawn[1].values - drawn[0].values, drawn[0].units)
            assert (row["low"], row["high"]) == (finite(ends.low), finite(ends.high))
            assert (row["n"], row["per"]) == (drawn[0].units, unit)
    own = {model: done.tables["profile_measures"].filter(model=model) for model in ("seed-1", "seed-2")}
    gains = table.filter(pl.col("head").is_null(), measure="profile_gain")
    for row in gains.iter_rows(named=True):
        for name, model in (("first", "seed-1"), ("second", "seed-2")):
            same = (pl.col(key).eq_missing(row[key]) for key in ("measure", "group", "layer", "component", "head"))
            assert own[model].filter(*same)["value"].item() == row[name]
    titles = [figure.title for section in page(done.tables, done.about).sections for figure in section.figures]
    assert {"More than random maps, word", "Change of the logit difference"} <= set(titles)
    said = {found.title: [value.name for value in found.values] for found in done.findings}
    assert said["more than random maps, word, mean over layers, accuracy"] == ["q", "k", "v"]
    text = done.report.read_text(encoding="utf-8")
    assert all(f"More than random maps, {label}" in text for label in ("word", "pos", "previous"))


def test_units_that_differ_are_said_to_be_pairing_notes(parts):
    one, other = parts[1]["patch"]
    moved = other._replace(replicates={key: of._replace(which="others") for key, of in other.replicates.items()})
    part = experiment("patch")
    assert _pairing_notes(part, one, other) == []
    assert _pairing_notes(part, one, moved) == [
        "patch: the models do not have the same pairs behind their numbers, so that differences over pairs are unpaired and have no "
        "interval."
    ]
    rows = list(_differences(part, one, moved, True))
    assert rows
    assert not any("low" in row for row in rows)


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
