"""Several models as units: each as if it were alone, then means over models by Student's t; revisions in their order."""

import gc
import json
import math
import shutil
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from scipy import stats
from tests import tinyhf

import trisect
from trisect.claims import judge_by_draws
from trisect.claims.models import HeadsAgainstNull, judge_heads, judge_over_models
from trisect.claims.reasons import Reason
from trisect.core.errors import ModelError, SpecError
from trisect.core.finding import Estimate, Finding
from trisect.core.tables import frame, read_table
from trisect.experiments.ablate.settings import AblateSettings
from trisect.hf.load import load
from trisect.lab.experiment import LayerMeasure, UnitFacts, UnitsFacts
from trisect.lab.inputs import ModelSource, TextSource
from trisect.lab.subject import files_mark, name_before
from trisect.lab.units import page as units_page
from trisect.lab.units.page import findings_table, layer_sections, layer_values, over_models, pool_findings
from trisect.lab.units.run import SeveralModels, several_models
from trisect.papers import matrices, norms
from trisect.report import format as words
from trisect.stats.paired import compare, summary, t_interval

PAIRS = [f"overlap_excess_{pair}" for pair in ("q-k", "k-v", "q-v")]
TEXTS = [f"w{i} w{i % 7} , w{i % 5} w{i % 3} ." for i in range(6)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three checkpoints, so named that an order by letters is not theirs."""
    place = tmp_path_factory.mktemp("checkpoints")
    for seed, name in enumerate(("step9", "step10", "step100"), start=1):
        tinyhf.save(tinyhf.gpt2(seed), place / name, False)
    return place


@pytest.fixture(scope="module")
def three(folder):
    return [load(str(folder / name)) for name in ("step9", "step10", "step100")]


@pytest.fixture(scope="module")
def whole(three, tmp_path_factory):
    return trisect.ablate(three, TEXTS, sites="v@1", out=tmp_path_factory.mktemp("out") / "units", quiet=True)


def units(*models: Any, **named: Any) -> SeveralModels:
    found = several_models(asked(*models, **named))
    assert found is not None
    return found


def asked(*models: Any, **named: Any) -> AblateSettings:
    (first, *rest) = models
    return AblateSettings(ModelSource(models if rest else first), TextSource(TEXTS), **named)


def test_every_model_is_measured_as_if_it_were_alone_and_means_are_students_over_models(three, whole, tmp_path):
    alone = trisect.ablate(three[1], TEXTS, sites="v@1", out=tmp_path / "alone", quiet=True)
    mine = whole.tables["measures"].filter(model="step10")
    assert mine.drop("model").equals(alone.tables["measures"])
    own = whole.about.facts.models[1]
    assert own.findings == tuple(map(str, alone.findings))
    assert (own.name, own.fingerprint) == ("step10", three[1].fingerprint)
    assert (whole.folder / own.page).read_bytes() == alone.report.read_bytes()
    measures, means = whole.tables["measures"], whole.tables["over_models"]
    values = measures.filter(measure="loss_change_nats")["value"].to_numpy()
    row = means.filter(measure="loss_change_nats").row(0, named=True)
    half = stats.t.ppf(0.975, 2) * values.std(ddof=1) / math.sqrt(3)
    assert np.allclose([row["value"], row["low"], row["high"]], values.mean() + np.array([0, -half, half]), rtol=1e-12)
    assert (row["n"], row["least"], row["most"]) == (3, values.min(), values.max())
    (found,) = (one for one in whole.findings if one.measure == "mean_change")
    assert found.per == "model"
    assert found.values == (Estimate("v", *(row[key] for key in ("value", "low", "high", "n"))),)


def test_workers_leave_the_same_tables_bit_for_bit(folder, tmp_path):
    steps = [f"{folder}@step9", str(folder / "step10")]
    torch.set_num_threads(1)
    named: dict[str, Any] = {"sites": "v@1", "quiet": True}
    here, away = (trisect.ablate(steps, TEXTS, out=tmp_path / f"out{n}", workers=n, **named) for n in (0, 1))
    assert here.about.notes == away.about.notes
    assert [page.name for page in (tmp_path / "out1").iterdir() if page.name.startswith(".")] == [".lock"]
    names = [path.name for path in sorted((here.folder / "tables").iterdir())]
    assert names == ["findings.parquet", "measures.parquet", "over_models.parquet"]
    for name in names:
        assert (here.folder / "tables" / name).read_bytes() == (away.folder / "tables" / name).read_bytes(), name


def test_a_model_is_called_as_it_will_be_and_known_by_all_of_its_files(folder, three, tmp_path):
    for given in (str(folder / "step9"), f"{folder}@step9", folder / "step10"):
        assert name_before(given) == trisect.load(given).name
        assert len(files_mark(given)) == 32
    assert (name_before(three[0]), files_mark(three[0])) == ("step9", "")
    copy = shutil.copytree(folder / "step9", tmp_path / "copy")
    same, other = files_mark(folder / "step9"), files_mark(folder / "step10")
    assert files_mark(copy) == same == files_mark(f"{folder}@step9") != other
    for name in ("tokenizer.json", "config.json", "model.safetensors"):
        before = files_mark(copy)
        (copy / name).write_bytes((copy / name).read_bytes() + b" ")
        assert files_mark(copy) != before
    (copy / "adapter_config.json").write_text("{}")
    assert files_mark(copy) == ""


def test_a_change_has_a_sign_over_models_and_a_share_has_none(whole):
    # said by no finding
    twice = {**whole.tables, "measures": whole.tables["measures"].with_columns(pl.col("value").abs() * 2)}
    for signed in (True, False):
        drawn = (LayerMeasure("loss_change_nats", "a number", "nats", signed=signed),)
        about = replace(whole.about, facts=replace(whole.about.facts, by_layer=drawn))
        (mean,) = (one for one in units_page.findings(twice, about) if one.measure == "mean_loss_change_nats")
        assert mean.signed is signed
        assert ("+" in mean.words) is signed


def test_components_are_compared_by_each_models_own_difference(whole):
    per = {"q": (1.0, 1.1, 1.3), "k": (0.1, 0.3, 0.4), "v": (0.11, 0.29, 0.41)}
    rows = [
        placed(c, None, v + layer, layer, measure="loss_change_nats")
        for layer in (1, 2)
        for c, values in per.items()
        for v in values
    ]
    names = [name for _ in (1, 2) for _ in per for name in whole.about.facts.names]
    measures = frame("measures", rows).select(pl.Series("model", names), pl.all())
    tables = {**whole.tables, "measures": measures}
    drawn = LayerMeasure("loss_change_nats", "change", "nats", margin=0.05)
    about = replace(whole.about, facts=replace(whole.about.facts, by_layer=(drawn,)))
    (found,) = (one for one in units_page.findings(tables, about) if one.measure == "mean_loss_change_nats")
    expected = compare({name: np.array(v) + 1.5 for name, v in per.items()}, 0.05)
    assert found.compared is not None
    for mine, theirs in zip(found.compared.pairs, expected.pairs, strict=True):
        assert mine[:2] + mine[6:] == theirs[:2] + theirs[6:]
        assert mine[2:6] == pytest.approx(theirs[2:6])
    assert found.words.endswith("Paired by model (n = 3; t tests, Holm over the pairs, margin 0.05): q largest.")
    said = units_page.page(tables, about).sections[0]
    (table,) = said.tables
    assert table.columns == ("of", "difference", "mean", "95 %", "p, Holm", "reading")
    read = [("q minus v", "q above v"), ("q minus k", "q above k"), ("v minus k", "alike")]
    assert [row[1::4] for row in table.rows] == read
    unranked = replace(about, facts=replace(about.facts, by_layer=(drawn._replace(margin=None),)))
    assert all(one.compared is None for one in units_page.findings(tables, unranked))


def test_a_mean_over_layers_is_known_by_its_measure_and_group_and_not_by_its_number(whole):
    """A measure that is 0 in all models lends no margin to another finding of zeros, and is not left out for it."""
    names = whole.about.facts.names
    rows = [
        placed(c, group, 0.0, 1, measure=measure)
        for measure, group in (("drawn", "pos"), ("drawn", "shape"))
        for c in "qkv"
        for _ in names
    ]
    measures = frame("measures", rows).select(pl.Series("model", list(names) * 6), pl.all())
    zeros = tuple(Estimate(c, 0.0) for c in "qkv")
    found = (
        Finding("other", "w", "nats", zeros, title="Other"),
        Finding("said", "w", "nats", zeros, title="Said", groups=("pos",)),
        Finding("unedited", "w", "nats", (Estimate("unedited", 10.4),), signed=False),
    )
    told = findings_table(dict.fromkeys(names, found))
    drawn = LayerMeasure("drawn", "number", "nats", margin=0.05, finding="said")
    about = replace(whole.about, facts=replace(whole.about.facts, by_layer=(drawn,)))
    tables: dict[str, pl.DataFrame] = {"measures": measures, "findings": told}
    made = {one.title: one for one in units_page.findings(tables, about)}
    assert list(made) == ["Other", "Said, pos", "unedited", "number, shape, mean over layers"]
    assert [one.compared is not None for one in made.values()] == [False, True, False, True]
    over, layers, each = (
        next(s for s in units_page.page(tables, about).sections if s.title == title)
        for title in ("Over models", "Layer by layer", "Each model")
    )
    # one number is no figure
    assert [figure.title for figure in over.figures] == ["Other", "Said, pos", "Number, shape, mean over layers"]
    assert layers.tables[0].rows[0][1] == "0.000"
    assert "unedited" in [row[0] for row in each.tables[0].rows]


def test_the_folder_over_several_models_is_whole_and_its_page_is_made_again_from_it(whole, tmp_path):
    assert trisect.check(whole.folder) == []
    said = json.loads(json.dumps(whole.data()))
    assert said["units"] == "models"
    assert [model["model"] for model in said["models"]] == ["step9", "step10", "step100"]
    assert all(Path(model["report"]).exists() for model in said["models"])
    assert read_table(whole.folder / "tables", "measures").columns[0] == "model"
    page = whole.report.read_text(encoding="utf-8")
    assert all(f'href="{one.page}"' in page for one in whole.about.facts.models)
    page = units_page.page(whole.tables, whole.about)
    tables = {s.title: s.tables[0] for s in page.sections if s.title in ("Layer by layer", "Each model")}
    (mean,) = (one.values[0] for one in whole.findings if one.measure == "mean_change")
    ends = f"{words.number(mean.low, True)} to {words.number(mean.high, True)}"
    assert "+" in ends
    assert ends in tables["Layer by layer"].rows[0]
    assert any(ends in row for row in tables["Each model"].rows)
    folder = Path(shutil.copytree(whole.folder, tmp_path / "again"))
    (folder / "report.html").unlink()
    again = trisect.render(folder)
    assert again.report.read_bytes() == whole.report.read_bytes()
    assert again.findings == whole.findings
    assert trisect.check(folder) == []


def revisions(folder: Path) -> list[str]:
    return [f"{folder}@{name}" for name in ("step9", "step10", "step100")]


def test_revisions_are_measured_in_their_order_one_at_a_time(folder, tmp_path, monkeypatch):
    alive: list[weakref.ref] = []
    held: list[int] = []
    own: Any = ModelSource.open

    def opened(source):
        gc.collect()
        held.append(sum(one() is not None for one in alive))
        subject = own(source)
        alive.append(weakref.ref(subject.model))
        return subject

    monkeypatch.setattr(ModelSource, "open", opened)
    found = trisect.ablate(revisions(folder), TEXTS, sites="v@1", out=tmp_path / "out", quiet=True)
    facts: Any = found.about.facts
    assert held == [0, 0, 0]
    assert [name.partition("@")[2] for name in facts.names] == ["step9", "step10", "step100"]
    assert facts.units == "revisions"
    assert found.about.command.startswith("trisect ablate MODEL@step9 MODEL@step10 MODEL@step100 --text")
    assert "over_models" not in found.tables
    (rise,) = (one for one in found.findings if one.measure == "mean_change")
    assert rise.words.startswith(f"from {facts.names[0]} to {facts.names[2]}, nats: v ")


def test_revisions_are_no_sample_and_have_no_verdict_over_them(folder, tmp_path):
    done = trisect.norms(revisions(folder), TEXTS, out=tmp_path / "out", quiet=True)
    facts: Any = done.about.facts
    assert facts.units == "revisions"
    assert set(done.tables["claims_by_model"]["model"]) == set(facts.names)
    assert not {"claims", "over_models"} & set(done.tables)
    about: Any = done.about
    layers = next(s for s in units_page.page(done.tables, about).sections if s.title == "Layer by layer")
    named = {figure.title: [panel.title for panel in figure.panels] for figure in layers.figures}
    assert named["Variation over tokens, layer by layer"] == ["layer 1", "layer 2"]
    assert named["Mixing ratio, layer by layer"] == [
        f"{kind}, layer {n}" for kind in ("norm", "weight") for n in (1, 2)
    ]


def test_revisions_and_models_are_told_apart(folder):
    steps = [f"{folder}@{name}" for name in ("step10", "step9")]
    assert units(*steps).kind == "revisions"
    assert units(*steps).models == tuple(steps)
    assert units(*steps, units="models").kind == "models"
    assert units(steps[0], str(folder / "step9")).kind == "models"
    assert units("a/b-seed1", "a/b-seed2").kind == "models"
    assert units("a/b@step1", "a/b@step2").title == "b-2-revisions"
    assert several_models(asked(steps[0])) is None


def test_a_revision_by_its_name_is_that_model(folder, three):
    one = trisect.load(f"{folder}@step10")
    assert one.fingerprint == three[1].fingerprint
    assert (one.name, one.options) == (f"{folder.name}@step10", ("MODEL@step10",))
    with pytest.raises(ModelError) as caught:
        trisect.load(f"{folder}@step11")
    assert caught.value.reason == "Its subfolders with a model are step10, step100, step9."
    with pytest.raises(ModelError, match=r"(?s)revision main was given for .*It names a revision already"):
        trisect.load("owner/model@step1", revision="main")


def test_a_model_that_is_not_there_or_named_twice_is_met_before_any_is_measured(folder, three, tmp_path, monkeypatch):
    with pytest.raises(SpecError) as caught:
        several_models(asked(str(folder / "step9"), units="models"))
    assert str(caught.value).startswith("--units models was given.\n  Units are several models, and one is named.")
    with pytest.raises(SpecError, match="MODEL was given twice") as caught:
        several_models(asked(three[0], three[1], three[0]))
    assert caught.value.reason == "Every unit counts once: the same model twice would make intervals too narrow."
    with pytest.raises(SpecError, match="No model was given"):
        trisect.ablate([], TEXTS)
    opened: list[Any] = []
    monkeypatch.setattr(ModelSource, "open", lambda source: opened.append(source.model))
    with pytest.raises(ModelError, match="has no revision 'step11'"):
        trisect.ablate([three[0], f"{folder}@step11"], TEXTS, out=tmp_path / "out", quiet=True)
    assert opened == []


@pytest.mark.parametrize("workers", [0, 2])
def test_the_same_weights_are_no_second_model(folder, tmp_path, workers):
    copy = shutil.copytree(folder / "step9", tmp_path / "copy")
    with pytest.raises(ModelError, match="copy has the weights of step9"):
        trisect.ablate([folder / "step9", copy], TEXTS, sites="v@1", out=tmp_path / "out", workers=workers, quiet=True)
    assert not (tmp_path / "out" / "report.html").exists()


def judged(shift, texts=40):
    """A model's own table of claims, its numbers moved by so much."""
    draws = {"cv_f": np.linspace(0.2, 0.3, 10_001) + shift, "cv_a": np.linspace(0.4, 0.5, 10_001)}
    return judge_by_draws(
        norms.SOURCE, draws, {name: float(v.mean()) for name, v in draws.items()}, texts, {"m": shift}
    )


def test_a_claim_over_models_is_tested_by_their_own_effects_and_barred_where_one_model_bars_it():
    tables = [judged(shift) for shift in (0.0, 0.02, 0.05)]
    found = judge_over_models(tables, {"models": [1, 2, 3]})
    part = found.filter(pl.col("part").is_not_null(), claim="C-1").row(0, named=True)
    effects = [t.filter(claim="C-1", part=part["part"])["effect"][0] for t in tables]
    sample = summary(effects)
    assert (part["effect"], part["n"], part["over"]) == (pytest.approx(float(sample.mean)), 3, "model")
    assert (part["low"], part["high"]) == pytest.approx(tuple(float(end) for end in t_interval(sample)))
    assert part["p"] == pytest.approx(2 * stats.t.sf((part["effect"] - part["bound"]) / (part["spread"] / 3**0.5), 2))
    whole = found.filter(pl.col("part").is_null())
    assert whole["claim"].to_list() == [claim.id for claim in norms.SOURCE.claims]
    assert whole.filter(claim="C-3")["verdict"].item() == "not tested"
    alone = judge_over_models(tables[:1], {})
    assert alone.filter(pl.col("part").is_null(), claim="C-1")["reason"].item() == (
        "one model gives numbers and no verdict"
    )
    few, enough = judged(0.0, texts=3), [judged(shift) for shift in (0.01, 0.02, 0.05, 0.03, 0.04)]
    whole = (pl.col("claim") == "C-1") & pl.col("part").is_null()
    assert judge_over_models(enough, {}).filter(whole)["verdict"].item() == "supported"
    table = judge_over_models([few, *enough], {})
    parts = table.filter(pl.col("part").is_not_null(), claim="C-1")
    assert parts["p"].null_count() == len(parts) == len(parts["effect"].drop_nulls())
    found = table.filter(whole).row(0, named=True)
    reason = "in 1 of 6 models: 3 texts; below 30, resampling decides nothing"
    assert (found["verdict"], found["reason"]) == ("inconclusive", reason)


def by_head(*excess):
    """A model's own table: every head's overlap above that of random matrices, each far from the bound by its own null."""
    effects = np.array(excess)
    below = np.where(effects < 0.05, 1e-6, 1.0)
    against = HeadsAgainstNull(effects, below, 1.0001e-6 / below, lambda head, alpha: (0.0, 0.0))
    return judge_heads(matrices.SOURCE, dict.fromkeys(PAIRS, against), {"m": excess})


def test_what_is_tested_head_by_head_is_supported_over_models_and_never_refuted():
    whole = (pl.col("claim") == "D-1") & pl.col("part").is_null()
    low = judge_over_models([by_head(0.0, worst) for worst in (0.01, 0.011, 0.012, 0.01, 0.011)], {}).filter(whole)
    assert low["verdict"].item() == "supported"
    found = judge_over_models([by_head(0.0, worst) for worst in (0.061, 0.06, 0.062, 0.06, 0.061)], {})
    open_ = ("inconclusive", str(Reason("head by head")), None)
    assert found.filter(whole).select("verdict", "reason", "seeds_needed").row(0) == open_
    parts = found.filter(pl.col("part").is_not_null(), pl.col("decides"), claim="D-1")
    assert parts["reason"].to_list() == [str(Reason("head by head"))] * 3
    assert (parts["effect"] > 0.05).all()
    assert (parts["p"] > 0.99).all()


def test_p_values_have_no_mean_and_heads_stand_for_a_layer_without_a_number_of_its_own():
    row = {"subject": "m", "stack": "plain", "layer": 1}
    made = [
        ("a", {"measure": "x", "value": 1.0}),
        ("b", {"measure": "x", "value": 3.0}),
        ("b", {"measure": "y", "value": 2.0}),
        ("a", {"measure": "x_p_holm", "value": 0.5}),
    ]
    table = pl.concat(
        frame("measures", [row | own]).select(pl.lit(model).alias("model"), pl.all()) for model, own in made
    )
    means = over_models(table)
    assert means.select("measure", "value", "n").rows() == [("x", 2.0, 2), ("y", 2.0, 1)]
    assert means["low"].is_null().to_list() == [False, True]
    rows = [
        placed("q", None, v, layer, head) for layer, head, v in ((1, 1, 1.0), (1, 2, 2.0), (2, 1, 5.0), (2, None, 7.0))
    ]
    table = frame("measures", rows).select(pl.lit("m").alias("model"), pl.all())
    expected = {("", "q", 1): {"m": 1.5}, ("", "q", 2): {"m": 7.0}}
    assert layer_values(table, [LayerMeasure("x", "x", "share")]) == expected


def placed(component, group, value, layer=None, head=None, stack="plain", measure="x"):
    where = {"stack": stack, "component": component, "layer": layer, "head": head, "group": group}
    return where | {"subject": "m", "measure": measure, "value": value}


def over(models, *rows):
    """The same rows in several models, each model's a little larger than those of the one before."""
    made = [frame("measures", [row | {"value": row["value"] + 0.25 * i} for row in rows]) for i in range(len(models))]
    return pl.concat(
        table.select(pl.lit(model).alias("model"), pl.all()) for model, table in zip(models, made, strict=True)
    )


def test_what_is_of_several_layers_stands_apart_under_the_layers_that_its_row_names():
    table = over(
        ["m"],
        placed("q", "denoise", 1.0, layer=1),
        placed("q", "denoise, layers 1-10", 2.0),
        placed("q", "denoise, layers 1-2", 2.5),
        placed("q+k", "denoise, layers 1-2", 3.0),
        placed("q", "all, whatever the layers", 4.0),
    )
    asked = [LayerMeasure("x", "x", "nats")]
    assert layer_values(table, asked) == {("", "q", 1): {"m": 1.0}}
    expected = {("", "q", "1-10"): {"m": 2.0}, ("", "q", "1-2"): {"m": 2.5}, ("", "q+k", "1-2"): {"m": 3.0}}
    assert layer_values(table, asked, True) == expected
    one, apart = layer_sections({"measures": table}, UnitsFacts("models", "patch", (), (asked[0],)))
    assert (one.title, apart.title) == ("Layer by layer", "Several layers at once")
    assert [row[0] for row in apart.tables[0].rows] == ["layers 1-2, q", "layers 1-2, q+k", "layers 1-10, q"]
    assert [panel.title for figure in apart.figures for panel in figure.panels] == ["Several layers at once"]
    table = over(
        ["m"],
        placed("v", "noise, layers 1,3", 1.0, stack="cross"),
        placed("v", "noise, layers 1,3, heads 2,4", 2.0, stack="cross"),
        placed("v", "noise, layers 1,3", 3.0, head=2, stack="dec"),
    )
    assert layer_values(table, [LayerMeasure("x", "x", "nats")], True) == {
        ("cross-attention, noise", "v", "1,3"): {"m": 1.0},
        ("cross-attention, noise, heads 2,4", "v", "1,3"): {"m": 2.0},
        ("decoder, noise, head 2", "v", "1,3"): {"m": 3.0},
    }
    models = tuple(UnitFacts(f"m@{i}", str(i), f"models/{i}", (), ()) for i in (1, 2))
    table = over([model.name for model in models], placed("q", "denoise, layers 1-2", 2.0))
    facts = UnitsFacts("revisions", "patch", models, (LayerMeasure("x", "x", "nats"),))
    (apart,) = layer_sections({"measures": table}, facts)
    assert apart.tables[0].rows == (("layers 1-2, q", "+2.000", "+2.250"),)
    assert [panel.title for figure in apart.figures for panel in figure.panels] == ["layers 1-2"]


def test_only_what_all_models_have_and_no_site_is_put_together():
    def of(**values):
        found = Finding("kind", "", "nats", tuple(Estimate(name.replace("_", "@"), v) for name, v in values.items()))
        return found, Finding("claim", "", values=(Estimate("C", 1.0),), claim="C")

    table = findings_table({"a": of(q=1.0, v_1=2.0, k=3.0), "b": of(q=2.0, v_1=2.5)})
    (one,) = pool_findings(table, ["a", "b"])
    assert [(mean.name, mean.mean) for mean, _ in one.numbers] == [("q", 1.5)]
