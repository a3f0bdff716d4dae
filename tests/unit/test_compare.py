"""Two models side by side: differences are of their own numbers, paired by text where both split the texts alike."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests import tinyhf

import trisect
from trisect.core.errors import SpecError
from trisect.core.machine import Machine
from trisect.experiments.ablate.run import measure as ablate
from trisect.experiments.ablate.settings import AblateSettings
from trisect.experiments.compare.run import _difference
from trisect.experiments.compare.settings import CompareSettings
from trisect.hf.load import load
from trisect.lab.experiment import Bench, Replicates
from trisect.lab.inputs import ModelSource, ModelsSource, TextSource, open_any
from trisect.stats.bootstrap import percentile_interval

TEXTS = [f"w{i} w{i % 7} , w{i % 5} w{i % 3} ." for i in range(7)]


def model(seed: int, specials: bool = False) -> Any:
    return replace(load(tinyhf.gpt2(seed), tinyhf.tokenizer(specials)), name=f"seed-{seed}{'s' * specials}")


@pytest.fixture(scope="module")
def two():
    return model(1), model(2)


@pytest.fixture(scope="module")
def compared(two, tmp_path_factory):
    return trisect.compare(two, TEXTS, what="ablate", out=tmp_path_factory.mktemp("out") / "compare", quiet=True)


def of(subject, place):
    settings = AblateSettings(ModelSource(subject), TextSource(TEXTS))
    return ablate(settings, Bench(place, Machine(quiet=True), (subject,), open_any(TEXTS)))


def test_every_difference_is_that_of_the_models_own_numbers_in_the_same_draws(two, compared, tmp_path):
    rows = compared.tables["differences"].filter(pl.col("measure") == "loss_change_nats").to_dicts()
    alone = [of(subject, tmp_path) for subject in two]
    assert len(rows) == 6
    for row in rows:
        key = tuple(row[name] for name in ("stack", "layer", "head", "component", "measure", "group", "at"))
        draws = [one.replicates[key] for one in alone]
        ends = percentile_interval(draws[1].values - draws[0].values, len(TEXTS))
        assert (row["low"], row["high"]) == (float(ends.low), float(ends.high))
        assert row["value"] == row["second"] - row["first"]
    for name, one in zip(("first", "second"), alone, strict=True):
        own = one.tables["measures"].filter(pl.col("measure") == "loss_change_nats")["value"].to_list()
        assert sorted(own) == sorted(row[name] for row in rows)


def test_the_page_has_both_models_and_their_difference(compared):
    assert trisect.check(compared.folder) == []
    (found,) = compared.findings
    means = compared.tables["differences"].filter(pl.col("measure").str.starts_with("mean_"))
    assert {v.name: v.mean for v in found.values} == dict(means.select("component", "value").iter_rows())
    assert all(v.low < v.mean < v.high for v in found.values)
    assert compared.about.facts.paired
    page = compared.report.read_text(encoding="utf-8")
    assert "model, seed 1 and model, seed 2" in page
    assert all(
        (compared.folder / name).exists() and f'href="{name}"' in page for name in compared.about.facts.parts[0].pages
    )


def test_other_tokens_are_not_paired_and_it_is_said(two, tmp_path):
    other = model(3, specials=True)
    found = trisect.compare((two[0], other), TEXTS, what="ablate", out=tmp_path / "out", quiet=True)
    table = found.tables["differences"]
    assert table["low"].null_count() == len(table)
    assert np.isfinite(table["value"].to_numpy()).all()
    assert not found.about.facts.paired
    assert any(note.startswith("The two models split the texts differently") for note in found.notes)


def test_draws_of_other_texts_are_no_pair():
    draws = np.linspace(0.0, 1.0, 101)
    mine = Replicates(draws, 40, "a")
    assert _difference(1.0, 2.0, [mine, mine._replace(values=draws + 1)])["n"] == 40
    for other in (mine._replace(units=39), mine._replace(which="b"), mine._replace(values=draws[1:])):
        assert "low" not in _difference(1.0, 2.0, [mine, other])


def test_two_models_and_known_parts_alone(two):
    with pytest.raises(SpecError) as caught:
        trisect.compare((*two, model(3)), TEXTS)
    assert (caught.value.given, caught.value.known) == ("3 models were given.", "Two are compared.")
    with pytest.raises(SpecError, match="'rewind' cannot be compared") as caught:
        trisect.compare(two, TEXTS, what=("norms", "rewind"))
    assert caught.value.known == "There is norms, similarity, ablate, profile, patch."


def asked(two, texts: Any = TEXTS, **named: Any) -> CompareSettings:
    return CompareSettings(ModelsSource(tuple(two)), TextSource(texts), **named)


def test_what_both_can_be_asked_is_what_is_compared(two):
    always = ("norms", "similarity", "ablate")
    assert asked(two).parts == always
    assert asked(two, "one text with spaces").parts == always
    assert asked(two, "embedded").parts == (*always, "profile")
    assert asked(two, task="bindings").parts == (*always, "patch")
    assert asked(two, Path("there"), pairs=Path("pairs")).parts == (*always, "profile", "patch")
    assert asked(two, "embedded", what=("ablate", "norms")).parts == ("norms", "ablate")


@pytest.mark.parametrize(
    ("named", "given", "known"),
    [
        (
            {"what": ("profile",)},
            "--what profile was given.",
            "A profile is of the words of a corpus, and texts were given one by one.",
        ),
        (
            {"what": ("patch",)},
            "--what patch was given.",
            "Interchange is over pairs of texts, and none are named.",
        ),
        (
            {"pairs": Path("x"), "task": "bindings"},
            "--pairs and --task were both given.",
            "Pairs come from one place.",
        ),
        (
            {"what": ("norms",), "task": "bindings"},
            "--task was given with --what norms.",
            "Pairs are for patch.",
        ),
    ],
)
def test_a_part_without_what_it_is_of_is_refused(two, named, given, known):
    with pytest.raises(SpecError) as caught:
        asked(two, **named)
    assert (caught.value.given, caught.value.known) == (given, known)
