"""Two models side by side: differences are of their own numbers, and their means are paired by layer or head."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy.stats import sem, t
from tests import tinyhf

import trisect
from trisect.core.errors import CorpusError, SpecError
from trisect.experiments.compare import Compare
from trisect.experiments.compare import run as compare_run
from trisect.experiments.compare.run import take_differences
from trisect.experiments.compare.settings import CompareSettings
from trisect.hf.load import load
from trisect.lab import driver
from trisect.lab.experiment import LayerMeasure, UnitFacts, UnitsFacts
from trisect.lab.inputs import ModelsSource, TextSource
from trisect.lab.units.jobs import measure_unit

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


def test_differences_are_the_second_less_the_first_and_means_are_over_layers_or_their_heads():
    numbers = [
        # measure, layer, head, component, group, then both models' values
        ("own", 1, None, "v", None, 1.0, 3.0),
        ("own", 2, None, "v", None, 2.0, 3.0),
        ("own", 2, 1, "v", None, 9.0, 3.0),  # layers have numbers of their own
        ("own", 1, None, "v", "once", 0.0, 2.0),
        ("by_head", 1, 1, "q", None, 0.5, 0.25),
        ("by_head", 1, 2, "q", None, 0.5, 0.5),
        ("by_head", 2, 1, "q", None, 0.5, 0.125),
        ("by_head", 3, 1, "q", None, 0.5, None),  # the second has no such layer
        ("nameless", 1, None, None, None, 1.0, 1.5),
        ("nameless", 2, None, None, None, 1.0, 1.5),
        ("other", 1, None, "v", None, 1.0, 1.0),
        ("own_p", 1, None, "v", None, 0.1, 0.2),
    ]
    rows = [
        {"model": model, "stack": "plain", "layer": layer, "head": head, "component": component}
        | {"measure": measure, "group": group, "at": None, "value": values[i]}
        for measure, layer, head, component, group, *values in numbers
        for i, model in enumerate("ab")
    ]
    shown = (LayerMeasure("own", "", ""), LayerMeasure("by_head", "", ""), LayerMeasure("nameless", "", "", "k"))
    models = tuple(UnitFacts(name, "", "", ()) for name in "ab")
    measures = pl.DataFrame(rows, schema_overrides={"at": pl.Float64, "head": pl.Int64}, infer_schema_length=None)
    found = take_differences(measures, UnitsFacts("models", "", models, shown))
    single, means = (found.filter(pl.col("per").is_null() == alone) for alone in (True, False))
    assert sorted(single["value"]) == sorted(b - a for name, *_, a, b in numbers if b is not None and name != "own_p")
    got = {
        tuple(row[:3]): row[3:]
        for row in means.select(
            "measure", "component", "group", "first", "second", "value", "low", "high", "n", "per"
        ).iter_rows()
    }
    ends = lambda values: pytest.approx(t.interval(0.95, len(values) - 1, np.mean(values), sem(values)))  # noqa: E731
    assert got.pop(("mean_own", "v", "once")) == (0.0, 2.0, 2.0, None, None, 1, "layer")
    assert got.pop(("mean_nameless", "k", None)) == (1.0, 1.5, 0.5, None, None, 2, "layer")
    for name, component, values, per in (
        ("own", "v", (2.0, 1.0), "layer"),
        ("by_head", "q", (-0.25, 0.0, -0.375), "head"),
    ):
        first, second, value, low, high, n, unit = got.pop((f"mean_{name}", component, None))
        assert value == pytest.approx(second - first) == pytest.approx(np.mean(values))
        assert ((low, high), n, unit) == (ends(values), len(values), per)
    assert not got


def test_every_difference_is_that_of_the_models_own_numbers(two, compared):
    own, table = compared.tables["ablate_measures"], compared.tables["differences"]
    rows = table.filter(pl.col("measure") == "loss_change_nats")
    assert len(rows) == 6
    assert (rows["value"] == rows["second"] - rows["first"]).all()
    for side, subject in zip(("first", "second"), two, strict=True):
        numbers = own.filter(pl.col("measure") == "loss_change_nats", model=subject.name)["value"]
        assert sorted(numbers) == sorted(rows[side])


def test_texts_that_are_split_otherwise_are_said(two, tmp_path):
    other = model(3, specials=True)
    found = trisect.compare((two[0], other), TEXTS, what="ablate", out=tmp_path / "out", quiet=True)
    assert found.notes[-1].startswith("The two models split the texts into different numbers of tokens")


def test_the_default_folder_names_both(two):
    assert driver._place(Compare(), None, None, two) == Path("compare-seed-1-seed-2")


def test_the_page_has_both_models_and_their_difference(compared):
    assert trisect.check(compared.folder) == []
    (found,) = compared.findings
    means = compared.tables["differences"].filter(pl.col("measure").str.starts_with("mean_"))
    assert {v.name: v.mean for v in found.values} == dict(means.select("component", "value").iter_rows())
    assert all(v.low < v.mean < v.high for v in found.values)
    assert (found.per, {v.n for v in found.values}) == ("layer", {2})
    assert found.words.startswith("mean over 2 layers, nats: ")
    page = compared.report.read_text(encoding="utf-8")
    assert (
        "Student\u2019s t over the differences of layers" in page
        or "Student&#39;s t over the differences of layers" in page
    )
    assert "model, seed 1 and model, seed 2" in page
    pages = [one.page for one in compared.about.facts.parts[0].models]
    assert all((compared.folder / name).exists() and f'href="{name}"' in page for name in pages)


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
    with pytest.raises(SpecError) as caught:
        trisect.compare((other, two[0]), TEXTS, task="bindings", out=tmp_path / "out", quiet=True)
    assert str(caught.value) == (
        "The task 'bindings' was asked for.\n  bert fills in masked tokens; the task is for models that go on with a text.\n"
        "  Give pairs of your own with --pairs."
    )
    assert not (tmp_path / "out").exists()


def test_what_one_model_alone_has_to_say_begins_with_its_name(two, tmp_path, monkeypatch):
    def noted(*given: Any) -> Any:
        made = measure_unit(*given)
        notes = ("Both have this.", f"Texts left out: {made.facts.name[-1]} of 3.")
        return made._replace(about=replace(made.about, notes=notes))

    monkeypatch.setattr(compare_run, "measure_unit", noted)
    found = trisect.compare(two, TEXTS, what="norms", out=tmp_path / "out", quiet=True)
    names = [one.name for one in two]
    assert found.notes == ("Both have this.", *(f"{name}: Texts left out: {name[-1]} of 3." for name in names))


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
