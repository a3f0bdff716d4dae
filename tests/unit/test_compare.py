"""Two models side by side: differences are of their own numbers, paired by text where both split the texts alike."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests import tinyhf

import trisect
from trisect.core.errors import CorpusError, SpecError
from trisect.core.machine import Machine
from trisect.core.subject import Texts
from trisect.core.trace import Address
from trisect.experiments.ablate.run import measure as ablate
from trisect.experiments.ablate.settings import AblateSettings
from trisect.experiments.compare import run as compare_run
from trisect.experiments.compare.run import _difference, _mean
from trisect.experiments.compare.settings import CompareSettings
from trisect.experiments.norms.run import measure as norms
from trisect.experiments.norms.settings import NormsSettings
from trisect.experiments.profile.run import profile_replicates
from trisect.experiments.profile.statistics import LayerScores
from trisect.hf.load import load
from trisect.lab.experiment import Replicates, RunContext
from trisect.lab.inputs import ModelSource, ModelsSource, TextSource, open_any
from trisect.lab.units.jobs import measure_unit
from trisect.measure.profile import MapScores
from trisect.stats.bootstrap import bootstrap_ratios, percentile_interval
from trisect.stats.shares import paired_difference

pytestmark = pytest.mark.usefixtures("undrawn")

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
    return ablate(settings, RunContext(place, Machine(quiet=True), (subject,), open_any(TEXTS)))


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
    pages = [one.page for one in compared.about.facts.parts[0].models]
    assert all((compared.folder / name).exists() and f'href="{name}"' in page for name in pages)


def test_articles_that_were_resampled_are_called_articles(two, tmp_path):
    texts = Texts("marked", lambda: iter(TEXTS), articles=lambda: (i // 2 for i in range(len(TEXTS))))
    found = trisect.compare(two, texts, what="ablate", out=tmp_path / "out", quiet=True)
    drawn = found.tables["differences"].filter(pl.col("n").is_not_null())
    assert set(drawn.select("n", "per").iter_rows()) == {(4, "article")}
    of_norms = norms(
        NormsSettings(ModelSource(two[0]), TextSource(texts)),
        RunContext(tmp_path, Machine(quiet=True), (two[0],), texts),
    )
    assert {(one.units, one.unit) for one in of_norms.replicates.values()} == {(4, "article")}
    assert {one.per for one in found.findings if any(v.n is not None for v in one.values)} == {"article"}
    page = found.report.read_text(encoding="utf-8")
    assert "a bootstrap over articles in which" in page
    assert "paired by article." in page
    assert "With fewer than 30 articles such intervals" in page


def never(*given: Any) -> Any:
    pytest.fail("work was begun before what is wrong was met")


def test_pairs_with_a_broken_line_are_refused_before_a_model_is_opened(tmp_path, monkeypatch):
    (tmp_path / "pairs.jsonl").write_text('{"base": "a", "donor": "b"}\n{"base": "a"\n')
    monkeypatch.setattr(ModelsSource, "open", never)
    with pytest.raises(CorpusError) as caught:
        trisect.compare(("a", "b"), TEXTS, pairs=tmp_path / "pairs.jsonl", out=tmp_path / "out", quiet=True)
    assert "line 2" in caught.value.problem
    assert not (tmp_path / "out").exists()


def test_a_task_that_a_model_cannot_do_is_refused_before_anything_is_computed(two, tmp_path, monkeypatch):
    other = replace(load(tinyhf.bert(), tinyhf.tokenizer()), name="bert")
    monkeypatch.setattr(compare_run, "measure_unit", never)
    monkeypatch.setattr(compare_run, "_tokens", never)
    with pytest.raises(SpecError) as caught:
        trisect.compare((other, two[0]), TEXTS, task="bindings", out=tmp_path / "out", quiet=True)
    assert str(caught.value) == (
        "The task 'bindings' was asked for.\n  bert fills in masked tokens; the task is for models that go on with a text.\n"
        "  Give pairs of your own with --pairs."
    )
    assert not (tmp_path / "out").exists()


def test_other_tokens_are_not_paired_and_it_is_said(two, tmp_path):
    other = model(3, specials=True)
    found = trisect.compare((two[0], other), TEXTS, what="ablate", out=tmp_path / "out", quiet=True)
    table = found.tables["differences"]
    assert table["low"].null_count() == len(table)
    assert np.isfinite(table["value"].to_numpy()).all()
    assert not found.about.facts.paired
    assert any(note.startswith("The two models split the texts differently") for note in found.notes)


def test_what_one_model_alone_has_to_say_begins_with_its_name(two, tmp_path, monkeypatch):
    def noted(*given: Any) -> Any:
        made = measure_unit(*given)
        notes = ("Both have this.", f"Texts left out: {made.facts.name[-1]} of 3.")
        return made._replace(about=replace(made.about, notes=notes))

    monkeypatch.setattr(compare_run, "measure_unit", noted)
    found = trisect.compare(two, TEXTS, what="norms", out=tmp_path / "out", quiet=True)
    names = [one.name for one in two]
    assert found.notes == ("Both have this.", *(f"{name}: Texts left out: {name[-1]} of 3." for name in names))


def test_draws_of_other_texts_are_no_pair():
    draws = np.linspace(0.0, 1.0, 101)
    mine = Replicates(draws, 40, "a")
    assert _difference(1.0, 2.0, mine, mine._replace(values=draws + 1))["n"] == 40
    for other in (mine._replace(units=39), mine._replace(which="b"), mine._replace(values=draws[1:])):
        assert "low" not in _difference(1.0, 2.0, mine, other)


def test_other_tokens_unpair_texts_and_neither_heads_nor_pairs():
    draws = np.linspace(0.0, 1.0, 101)
    for unit, paired in {"text": False, "article": False, "head": True, "pair": True}.items():
        mine = Replicates(draws, 40, "a", unit)
        row = _difference(1.0, 2.0, mine, mine._replace(values=draws + 1), paired=False)
        assert ("low" in row) == paired


def shares(hits: np.ndarray) -> Replicates:
    hits = hits.astype(float)
    drawn = bootstrap_ratios(hits[:, None], np.ones(len(hits)), 0)[:, 0]
    return Replicates(drawn, len(hits), "a", "pair", hits)


def test_shares_that_all_pairs_have_alike_differ_by_no_certain_number():
    ones, some = np.ones(40), np.arange(40) % 2
    for first, second in ((ones, ones), (ones, 0 * ones), (some, some)):
        one, other = float(first.mean()), float(second.mean())
        row = _difference(one, other, shares(first), shares(second))
        low, high = row["low"], row["high"]
        assert isinstance(low, float)
        assert isinstance(high, float)
        assert (low, high) == paired_difference(first.astype(float), second.astype(float))
        assert low <= other - one <= high
        assert high - low > 0.05
        mean = [_mean([shares(of), shares(of)]) for of in (first, second)]  # over layers
        of_means = _difference(one, other, mean[0], mean[1])
        assert (of_means["low"], of_means["high"]) == (low, high)
    one, other = (_mean([shares(some), shares(of)]) for of in (ones, 1 - some))
    assert one is not None
    assert other is not None
    ends = percentile_interval(other.values - one.values, 40)
    assert _difference(0.75, 0.5, one, other)["low"] == ends.low


def test_one_unit_is_no_sample():
    mine = Replicates(np.linspace(0.0, 1.0, 101), 1, "a", "head")
    assert set(_difference(1.0, 2.0, mine, mine)) == {"first", "second", "value"}
    gone = mine._replace(units=40, values=np.full(101, np.nan))
    assert set(_difference(1.0, 2.0, gone, gone)) == {"first", "second", "value"}


def layer_scores(layer: int, heads: int, matrices: dict[str, object] | None = None) -> LayerScores:
    own, maps = ({c: MapScores(np.full((n, 1), 0.5), np.ones((n, 1))) for c in ("q", "k", "v")} for n in (heads, 2))
    return LayerScores(Address("decoder", layer), own, maps, own, (), matrices or {})


@pytest.mark.parametrize("heads", [1, 2])
def test_a_layer_with_one_head_has_no_draws_of_heads(heads):
    drawn = profile_replicates([layer_scores(layer, heads) for layer in (0, 1)], ["word"], (), 0)
    assert {one.units for one in drawn.values()} == ({2} if heads == 1 else {2, 4})
    assert ("decoder", 0, None, "q", "profile_gain", "word", None) in drawn or heads == 1


def test_layers_that_share_a_key_and_have_their_own_queries_count_it_once():
    scores = [layer_scores(layer, 4, {"q": f"q{layer}", "k": "k", "v": "v"}) for layer in (1, 2)]
    drawn = profile_replicates(scores, ["word"], (), 0)
    units = {c: drawn["decoder", None, None, c, "profile_gain", "word", None].units for c in ("q", "k", "v")}
    assert units == {"q": 8, "k": 4, "v": 4}


def test_two_models_and_known_parts_alone(two):
    with pytest.raises(SpecError) as caught:
        trisect.compare((*two, model(3)), TEXTS)
    assert (caught.value.problem, caught.value.reason) == ("3 models were given.", "Two are compared.")
    with pytest.raises(SpecError, match="'rewind' cannot be compared") as caught:
        trisect.compare(two, TEXTS, what=("norms", "rewind"))
    assert caught.value.reason == "There is norms, similarity, ablate, erase, profile, patch."


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
    assert asked(two, "embedded", what=("erase", "norms")).parts == ("norms", "erase")


@pytest.mark.parametrize(
    ("named", "given", "known"),
    [
        ({"what": ("erase", "norms")}, "--what erase, norms was given.", "Erasing is of the labels of a corpus"),
        ({"what": ("profile",)}, "--what profile was given.", "A profile is of the words of a corpus"),
        ({"what": ("patch",)}, "--what patch was given.", "Interchange is over pairs of texts"),
        ({"pairs": Path("x"), "task": "bindings"}, "--pairs and --task were both given.", "Pairs come from one place"),
        ({"what": ("norms",), "task": "bindings"}, "--task was given with --what norms.", "Pairs are for patch"),
    ],
)
def test_a_part_without_what_it_is_of_is_refused(two, named, given, known):
    with pytest.raises(SpecError) as caught:
        asked(two, **named)
    assert caught.value.problem == given
    assert caught.value.reason.startswith(known)
