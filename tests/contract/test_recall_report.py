"""What follows from the tables of a recall alone: its page, what it says and shows, and the verdicts that were planted."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pytest
from sklearn.metrics import roc_auc_score
from tests import recalled
from tests.pages import foreign

from trisect.claims.models import ResampledUnits, judge_by_draws
from trisect.core.claim import Claim, Combination, Part, Source, Statistic
from trisect.core.finding import Estimate
from trisect.core.tables import frame
from trisect.experiments.recall import page as recall
from trisect.experiments.recall import rows as recall_rows
from trisect.experiments.recall.page import RecallNumbers, words_for
from trisect.experiments.recall.rows import COVERAGES, RISKS
from trisect.measure.recall import threshold
from trisect.report.cards import cards
from trisect.report.sheet import Section, html, write_page
from trisect.stats.bootstrap import percentile_interval

REFERENCES = [("notes <i>of others</i>", (0.016,), (0.194, 0.258)), ("a second", (0.022,), ())]


@pytest.fixture(scope="module")
def one():
    return recalled.tables()


@pytest.fixture(scope="module")
def several():
    return recalled.tables((1, 2, 3))


def sections(tables: dict[str, pl.DataFrame], **more: Any) -> dict[str, Section]:
    return {section.title: section for section in recall.page(tables, recalled.about(**more)).sections}


def test_the_page_has_every_part_and_its_figures_are_counted(one, tmp_path):
    about = recalled.about(references=REFERENCES, notes=["A <u>note</u>."], settings={"layers": 2}, seconds=90.0)
    path = write_page(tmp_path, recall.page(one, about))
    text = path.read_text()
    assert "<script" not in foreign(text)
    assert "a world &lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "A &lt;u&gt;note&lt;/u&gt;." in text
    assert "notes &lt;i&gt;of others&lt;/i&gt;" in text
    assert re.findall(r'class="figure-number">Figure (\d+)\.', text) == [str(n) for n in range(1, 6)]
    assert re.findall(r'<article class="card \w+" id="([^"]+)"', text) == ["B-1", "B-2", "B-3", "B-4"]
    facts = dict(recall.page(one, about).facts)
    assert (facts["Seconds"], facts["Settings"]) == ("90", "layers 2")
    assert sorted(p.stem for p in (tmp_path / "figures").glob("*.svg")) == [
        "recall-accuracy", "recall-reliability", "recall-risk", "recall-survival", "recall-unseen",
    ]  # fmt: skip
    assert text == html(recall.page(one, about))


def test_what_is_right_and_what_survives_are_findings_with_intervals(one):
    right_ones, *others = recall.findings(one, recalled.about())
    assert (right_ones.measure, right_ones.source) == ("accuracy", "recall")
    whole, values = RecallNumbers.of(one), {value.name: value for value in right_ones.values}
    assert list(values) == ["plain", "pretrained", "left-out", "baseline"]
    for model in ("plain", "pretrained", "left-out"):
        right = one["answers"].filter(model=model, split="valid")["correct"].to_list()
        assert values[model].mean == pytest.approx(sum(right) / len(right))
        number = whole.number("accuracy", model)
        assert number is not None
        assert values[model] == number.estimate(model)
        assert f"{100 * sum(right) / len(right):.1f}\u00a0%" in right_ones.words
    assert "; always answering the commonest place " in right_ones.words
    assert [found.claim for found in others if found.measure == "claim"] == ["B-1", "B-2", "B-3", "B-4"]
    deciding = one["claims"].filter(pl.col("part").is_not_null() & pl.col("decides"))
    parts = [found for found in others if found.part is not None]
    assert [(p.claim, p.part, p.verdict) for p in parts] == deciding.select("claim", "part", "verdict").rows()
    effects = deciding.select("effect", "low", "high").rows()
    assert [tuple(p.values[0][1:4]) for p in parts] == [row for row in effects if row[0] is not None]
    blank = one["claims"].with_columns(pl.lit(None, pl.Float64).alias(c) for c in ("effect", "low", "high"))
    unmeasured = [f for f in recall.findings({**one, "claims": blank}, recalled.about()) if f.part is not None]
    assert [f.values for f in unmeasured] == [()] * len(parts)
    (found,) = (found for found in recall.findings(one, recalled.about()) if found.measure == "survival")
    rows = one["measures"].filter(measure="survival", subject="left-out", group="retrieved")
    assert [value.name for value in found.values] == ["q", "k", "v"]
    for value in found.values:
        assert value.mean == pytest.approx(rows.filter(component=value.name)["value"].mean())
        assert value.n == 20
    assert "q 20.0\u00a0%" in found.words
    measures = one["measures"].filter(pl.col("measure") != "survival")
    none = recall.findings({**one, "measures": measures}, recalled.about())
    assert not [found for found in none if found.measure == "survival"]


def test_every_seed_has_its_point_and_stands_in_the_captions(one, several):
    figure = sections(several)["Does pretraining let it answer?"].figures[0]
    layers = {layer.name for layer in figure.panels[0].chart.layer}
    assert "seeds" in layers
    numbers = RecallNumbers.of(several)
    assert len(numbers.shares("pretrained")) == 3
    of_two = several["answers"].filter(model="pretrained", seed=2, split="valid")["correct"]
    assert numbers.shares("pretrained")[1] == pytest.approx(of_two.mean())
    alone = sections(one)
    panel = alone["Does pretraining let it answer?"].figures[0].panels[0]
    assert "seeds" not in {layer.name for layer in panel.chart.layer}


def test_what_others_reached_is_a_table_and_grey_points_beside_what_was_cut_of_the_data(one):
    part = "This run reads 1,005 of 2,937 lines: an easier task."
    title = "Does pretraining let it answer?"
    both = {"references": REFERENCES}
    cut, whole, alone = (sections(one, **more)[title] for more in (both | {"part": part}, both, {"part": part}))
    assert part in cut.words
    assert part in alone.words
    for section, same in ((cut, False), (whole, True)):
        said = (section.figures[0].caption, section.tables[-1].caption, section.figures[0].legend[-1].name)
        assert ["same questions" in text for text in said] == [same] * 3
        assert ["all of the data" in text for text in said] == [not same] * 3
    assert whole.tables[-1].rows == (
        ("notes <i>of others</i>", "1.6\u00a0%", "19.4\u00a0% or 25.8\u00a0%"),
        ("a second", "2.2\u00a0%", "–"),
    )
    bare = sections(one)[title]
    assert len(bare.tables) == 1
    assert "Grey" not in bare.figures[0].caption
    for section, grey in ((whole, True), (bare, False)):
        assert ("others" in {layer.name for layer in section.figures[0].panels[0].chart.layer}) == grey


def test_shares_have_a_fixed_number_of_places(one):
    small = pl.when(pl.col("low").is_not_null()).then(6.83e-6)
    tiny = one | {name: one[name].with_columns(low=small) for name in ("claims", "measures")}
    about = recalled.about()
    for text in ("\n".join(map(str, recall.findings(tiny, about))), html(recall.page(tiny, about))):
        assert "0.00000683" not in text
        assert "+0.000 to " in text or "0.000 to " in text
    assert words_for(Estimate("", 0.01234, 6.83e-6, -0.0), True) == "+0.012 (95\u00a0%: 0.000 to 0.000)"


def test_matches_are_shown_with_their_n_and_against_chance(one):
    without = recalled.tables(models=("plain", "pretrained"))
    assert (RecallNumbers.of(one).deep, RecallNumbers.of(without).deep) == ("left-out", "pretrained")
    section, other = (sections(tables)["Names it never saw"] for tables in (one, without))
    assert ["names left out" in of.figures[0].caption for of in (section, other)] == [True, False]
    rows = {row[0]: row[1:] for row in section.tables[0].rows}
    assert set(rows) == {"character n-grams", "same last name"}
    measured = one["measures"].filter(subject="left-out", measure="match", group="n-grams")
    assert rows["character n-grams"][:2] == (str(measured["n"][0]), f"{100 * measured['value'][0]:.1f}\u00a0%")
    assert f"character n-grams {measured['n'][0]}" in section.figures[0].caption


def test_survival_has_a_panel_for_each_kind_of_answer(one):
    section = sections(one)["What do q, k and v contribute?"]
    figure = section.figures[0]
    assert [panel.title for panel in figure.panels] == ["Retrieved", "Wrong", "Guessed"]
    assert [key.name for key in figure.legend] == ["q", "k", "v"]
    assert section.tables[0].rows[0] == (
        "names left out, guessed: k@1, by the mean",
        "70.0\u00a0%",
        "60.0\u00a0% to 80.0\u00a0%",
        "20",
    )
    assert len(section.tables[0].rows) == 2 * 3 * 3
    assert "retrieved 20; wrong 20; guessed 20" in figure.caption
    assert re.search(r"retrieved 20\.0\u00a0% at [qkv]@[12]; wrong 60\.0\u00a0% at", figure.caption)


def test_what_was_not_measured_leaves_no_section(one):
    plain = {name: table.clear() for name, table in one.items() if name != "answers"}
    plain["answers"] = one["answers"].filter(model="plain")
    found = sections(plain)
    assert list(found) == ["Does pretraining let it answer?"]
    assert found["Does pretraining let it answer?"].words[1] == "No question has a known answer."
    assert "<figure" not in html(recall.page(plain, recalled.about()))
    assert list(sections({"answers": one["answers"]})) == ["Does pretraining let it answer?"]


PLACES = [f"P{i:02d}{'o' * (i % 5)}" for i in range(20)]
ABOUT = {"subject": "m", "corpus": "c"}
UNSEEN, READ, BOTH, TAUGHT = "neither", "pretraining only", "pretraining and fine-tuning", "fine-tuning only"


class World(NamedTuple):
    """What is planted: accuracies on valid names, whether confidence and answers show what is right, what guesses follow."""

    plain: float = 0.02
    pretrained: float = 0.6
    confident: bool = True
    strings: bool = False
    follows: float = 0.8
    names: int = 200
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    models: tuple[str, ...] = ("plain", "pretrained")


PLAIN = World()
ONE = World(seeds=(0,))


@cache
def answers(world: World = PLAIN) -> pl.DataFrame:
    draw = np.random.default_rng(0)
    rows: list[dict[str, Any]] = []
    for model in world.models:
        for run in world.seeds:
            for split in ("train", "valid", "invented"):
                for i in range(world.names):
                    rows.append(_row(world, model, run, split, i, draw))
    return frame("answers", rows)


def _row(world: World, model: str, run: int, split: str, i: int, draw: np.random.Generator) -> dict[str, Any]:
    gold = None if split == "invented" else PLACES[(7 * i * i + len(split)) % 20 if i % 8 else 3]
    near = PLACES[int(draw.integers(20))]
    share = {"plain": world.plain, "pretrained": world.pretrained, "left-out": world.pretrained}[model]
    right = gold is not None and (split == "train" or draw.random() < share)
    wrong = next(p for p in draw.permutation(PLACES) if p != gold)
    guess = near if split == "invented" and draw.random() < world.follows else str(wrong)
    answer = gold if right and gold is not None else guess
    extra = 40 * (world.strings and right != (draw.random() < 0.1))
    sure = -float(draw.exponential(0.2 if right and world.confident else 1.0))
    category = {"train": TAUGHT if model == "plain" else BOTH, "invented": UNSEEN}.get(split, READ)
    return {
        "model": model, "seed": run, "name": f"{split} {i}", "split": split, "question": f"{split} {i}",
        "category": UNSEEN if model == "plain" and split == "valid" else category,
        "gold": gold, "answer": answer, "correct": None if gold is None else answer == gold,
        "log_probability": sure, "mean_log_probability": sure / 4, "entropy": -sure, "margin": 1 + sure,
        "known_place": bool(draw.random() < 0.9), "place_count": int(draw.integers(1, 20)) + extra,
        "nearest": "x", "nearest_place": near,
    }  # fmt: skip


def judge(table: pl.DataFrame, draws: int = 1000) -> pl.DataFrame:
    return recall_rows.judge(table, ABOUT, draws=draws)


def measure_rows(table: pl.DataFrame, nearest: pl.DataFrame | None = None) -> list[dict[str, Any]]:
    return recall_rows.measure_rows(table, nearest, draws=400)


def verdicts(table: pl.DataFrame) -> dict[str, str]:
    return {r["claim"]: r["verdict"] for r in table.iter_rows(named=True) if r["part"] is None}


def row_of(rows: list[dict[str, Any]], measure: str, **fixed: Any) -> dict[str, Any]:
    (found,) = [r for r in rows if r["measure"] == measure and all(r.get(k) == v for k, v in fixed.items())]
    return found


@pytest.mark.parametrize(
    ("world", "want"),
    [
        (World(), ("supported", None, "refuted", "supported")),
        (World(plain=0.5), ("refuted", None, "refuted", "supported")),
        (World(pretrained=0.01), ("refuted", None, None, "supported")),
        (World(confident=False, names=900), ("supported", "supported", "supported", "supported")),
        (World(strings=True, names=400), ("supported", "refuted", "refuted", "supported")),
        (World(follows=0.0, names=100), ("supported", None, "refuted", None)),
        (World(names=29), ("inconclusive",) * 4),
    ],
    ids=["retrieves", "plain knows", "learns nothing", "no confidence", "strings tell", "guesses freely", "too few"],
)
def test_planted_answers_give_their_verdicts(world, want):
    draws = 4000 if world.pretrained < 0.1 else 1000  # to refute, p has to come below what fewer can reach
    found = verdicts(judge(answers(world), draws=draws))
    for claim, verdict in zip(("B-1", "B-2", "B-3", "B-4"), want, strict=True):
        assert verdict is None or found[claim] == verdict, (claim, found)
    if world.follows == 0:
        assert found["B-4"] != "supported"


def test_one_seed_and_seeds_that_differ_decide_nothing():
    table = judge(answers(World(seeds=(1,))))
    assert set(verdicts(table).values()) == {"inconclusive"}
    whole = table.filter(pl.col("part").is_null())
    assert set(whole["reason"]) == {"one seed gives numbers and no verdict"}
    assert whole["effect"].is_not_null().all()
    assert whole["low"].is_not_null().all()
    apart = answers(World(seeds=(1, 2, 3, 4, 5)))
    mine = (pl.col("model") == "pretrained") & (pl.col("split") == "valid")
    swap = pl.when(mine).then(pl.col("seed") == 1).otherwise("correct")
    found = judge(apart.with_columns(correct=swap)).filter(pl.col("part").is_null(), claim="B-1")
    assert found["verdict"][0] == "inconclusive"
    assert found["reason"][0].startswith("cannot be decided with 5 seeds")
    few = judge(answers(World(seeds=(1, 2)))).filter(pl.col("part").is_null())
    assert set(few["reason"]) == {"5 seeds are asked for, 2 given"}


def test_a_model_that_answers_the_commonest_place_is_not_above_it():
    table = answers()
    commonest = recall_rows.commonest_place(table)
    always = pl.when(pl.col("model") == "plain").then(pl.lit(commonest)).otherwise("answer")
    table = table.with_columns(answer=always).with_columns(correct=pl.col("answer") == pl.col("gold"))
    lead = judge(table).filter(pl.col("part").str.contains("commonest")).row(0, named=True)
    assert lead["effect"] == 0
    assert -0.03 < lead["low"] < 0 < lead["high"] < 0.03
    assert lead["p"] < 0.05
    never = answers(World(plain=0.0))  # no right answer at all is still tested
    found = judge(never)
    assert verdicts(found)["B-1"] == "supported"
    part = found.filter(part="accuracy without pretraining").row(0, named=True)
    lead = found.filter(pl.col("part").str.contains("commonest")).row(0, named=True)
    baseline = row_of(measure_rows(never), "accuracy", subject="baseline")
    assert lead["effect"] == pytest.approx(-baseline["value"])
    assert part["effect"] == 0
    assert 0 < part["high"] < 0.03


def test_what_is_missing_is_not_measured_and_every_part_says_of_how_many_names_it_is():
    only = answers(World(models=("pretrained",)))
    found = judge(only)
    whole = {r["claim"]: r for r in found.iter_rows(named=True) if r["part"] is None}
    assert whole["B-1"]["verdict"] == "inconclusive"
    assert whole["B-1"]["reason"] == "1 of 3 parts, supported; accuracy without pretraining and 1 more not run"
    assert whole["B-3"]["verdict"] == "refuted"
    parts = {r["part"]: r["reason"] for r in found.iter_rows(named=True) if r["claim"] == "B-4" and r["part"]}
    assert [reason for part, reason in parts.items() if "last name" in part] == ["not measured on this model"]
    nothing = judge(only.filter(split="train"))
    assert set(verdicts(nothing).values()) <= {"inconclusive", "not tested"}
    assert len(cards(nothing)) == 4
    # the model with names left out is asked what it made up
    both = answers(World(models=("plain", "pretrained", "left-out")))
    sure = pl.when((pl.col("model") == "left-out") & (pl.col("split") == "valid")).then(-0.5)
    table = judge(both.with_columns(log_probability=sure.otherwise("log_probability")))
    part = table.filter(pl.col("part").str.contains("the answer's probability")).row(0, named=True)
    assert part["effect"] == 0.0
    assert json.loads(table["runs"][0]) == ABOUT
    world = answers()
    few = world.filter((pl.col("split") != "invented") | pl.col("name").str.ends_with("1"))
    table = judge(few)
    n = {r["claim"]: r["n"] for r in table.iter_rows(named=True) if r["part"] is None}
    assert n == {"B-1": 200, "B-2": 200, "B-3": 200, "B-4": 20}
    reason = table.filter(pl.col("part").is_null(), claim="B-4")["reason"][0]
    assert reason == "20 names; below 30, resampling decides nothing"


def test_rows_are_the_numbers_written_out():
    table = answers(ONE)
    rows = measure_rows(table)
    frame("measures", rows)
    mine = table.filter(model="pretrained", split="valid")
    right, p = mine["correct"].to_numpy(), np.exp(mine["log_probability"].to_numpy())
    own = {"subject": "pretrained", "group": None}
    accuracy = row_of(rows, "accuracy", **own)
    assert (accuracy["value"], accuracy["n"]) == (pytest.approx(right.mean()), 200)
    half = 1.96 * (right.mean() * (1 - right.mean()) / 200) ** 0.5
    assert accuracy["high"] - accuracy["low"] == pytest.approx(2 * half, rel=0.1)
    assert row_of(rows, "accuracy", subject="pretrained", group=BOTH)["value"] == 1
    assert row_of(rows, "mean_probability", subject="pretrained", group=UNSEEN)["n"] == 200
    assert row_of(rows, "auroc_probability", **own)["value"] == pytest.approx(roc_auc_score(right, p))
    assert row_of(rows, "auroc_entropy", **own)["value"] == pytest.approx(roc_auc_score(right, p))
    assert row_of(rows, "probability_excess", **own)["value"] == pytest.approx(p.mean() - right.mean())
    assert sum(r["n"] for r in rows if r["measure"] == "reliability" and r["subject"] == "pretrained") == 200
    assert row_of(rows, "risk", at=1.0, subject="pretrained")["value"] == pytest.approx(1 - right.mean())
    assert [r["at"] for r in rows if r["measure"] == "risk" and r["subject"] == "plain"] == list(COVERAGES)
    lines = {r["at"]: r["value"] for r in rows if r["measure"] == "threshold" and r["subject"] == "pretrained"}
    assert tuple(lines) == RISKS
    covered = row_of(rows, "threshold_coverage", at=0.5, subject="pretrained")["value"]
    assert lines[0.5] is not None
    assert covered == (p >= lines[0.5]).mean() > 0
    train = table.filter(split="train", model="plain")["gold"].to_list()
    commonest = max(sorted(set(train)), key=train.count)
    assert recall_rows.commonest_place(table) == commonest
    base = table.filter(model="plain", split="valid")["gold"].to_list()
    assert row_of(rows, "accuracy", subject="baseline")["value"] == pytest.approx(base.count(commonest) / 200)


def test_matches_are_counted_by_kind_against_chance():
    table = answers(ONE)
    invented = table.filter(split="invented", model="pretrained")
    every = {"model": None, "seed": None, "match": "last name", "nearest": "k", "similarity": 1.0}
    rows = [every | row for row in invented.head(50).select("name", place="answer").to_dicts()]
    some = pl.DataFrame(rows, schema=recall_rows.NEIGHBOURS)
    rows = measure_rows(table, some)
    by = {"subject": "pretrained", "group": "n-grams"}
    found = {m: row_of(rows, m, **by) for m in ("match", "match_expected", "match_excess", "match_p")}
    share = (invented["answer"] == invented["nearest_place"]).to_numpy().mean()
    assert found["match"]["value"] == pytest.approx(share)
    assert found["match_excess"]["value"] == pytest.approx(share - found["match_expected"]["value"])
    assert (found["match_p"]["value"], found["match_p"]["n"]) == (1 / 2001, 200)
    last = row_of(rows, "match", subject="pretrained", group="last name")
    assert (last["value"], last["n"]) == (1.0, 50)
    assert not [r for r in rows if r.get("group") == "representation"]
    elsewhere = some.with_columns(model=pl.lit("another"))
    assert not [r for r in measure_rows(table, elsewhere) if r.get("group") == "last name"]
    # invented names that are in a text are not unseen
    read = pl.when(pl.col("name").is_in(["invented 1", "invented 2"])).then(pl.lit(READ))
    rows = measure_rows(table.with_columns(category=read.otherwise("category")))
    assert row_of(rows, "match", **by)["n"] == 198


def test_thresholds_are_set_on_held_out_names_that_the_model_met():
    table = answers(World(seeds=(0,), models=("plain", "left-out")))
    last = (pl.col("model") == "left-out") & (pl.col("split") == "valid") & pl.col("name").str.ends_with("7")
    table = table.with_columns(category=pl.when(last).then(pl.lit(UNSEEN)).otherwise("category"))
    deep, plain = (table.filter(model=model) for model in ("left-out", "plain"))
    held = recall_rows.threshold_answers(deep)
    assert len(held) == 180
    assert set(held["category"]) == {READ}
    assert not held["name"].str.ends_with("7").any()
    assert len(recall_rows.threshold_answers(plain)) == 200
    rows = measure_rows(table)
    for risk in RISKS:
        found = threshold(np.exp(held["log_probability"].to_numpy()), held["correct"].to_numpy(), risk)
        own = {"at": risk, "subject": "left-out"}
        assert row_of(rows, "threshold", **own)["value"] == found.value
        covered = row_of(rows, "threshold_coverage", **own)
        assert (covered["value"], covered["n"]) == (found.coverage, 180)
    assert 0.7 in RISKS
    assert row_of(rows, "threshold_coverage", at=0.5, subject="plain")["n"] == 200


def test_a_number_has_one_interval_in_the_rows_and_in_the_claims():
    table = answers(World(names=40, seeds=(1, 2)))
    rows, claims = recall_rows.measure_rows(table), recall_rows.judge(table, ABOUT)
    parts = {r["part"]: r for r in claims.iter_rows(named=True) if r["part"]}
    match = row_of(rows, "match_excess", subject="pretrained", group="n-grams")
    ((_, card),) = [(p, r) for p, r in parts.items() if r["claim"] == "B-4" and r["effect"] is not None]
    assert (card["low"], card["high"]) == (match["low"], match["high"])
    sure = row_of(rows, "auroc_probability", subject="pretrained")
    ((_, card),) = [(p, r) for p, r in parts.items() if r["claim"] == "B-3" and r["decides"]]
    assert (card["low"] + 0.5, card["high"] + 0.5) == pytest.approx((sure["low"], sure["high"]), abs=1e-12)


@pytest.mark.parametrize("right", [True, False])
def test_answers_of_one_kind_leave_no_interval(right):
    world = World(names=60, seeds=(1, 2))
    table = answers(world).with_columns(correct=pl.when(pl.col("correct").is_not_null()).then(right))
    rows = [r for r in measure_rows(table) if r["subject"] == "pretrained"]
    assert row_of(rows, "aurc")["value"] == (0.0 if right else 1.0)
    for row in rows:
        if row["measure"] in ("ece", "aurc", "risk"):
            assert (row["low"], row["high"]) == (None, None)
    whole = [r for r in measure_rows(answers(world)) if r["subject"] == "pretrained"]
    assert all(row_of(whole, m)["low"] < row_of(whole, m)["high"] for m in ("ece", "aurc"))


def test_several_seeds_are_averaged_without_a_threshold_and_the_order_of_answers_leaves_no_trace():
    table = answers(World(seeds=(3, 1)))
    rows = measure_rows(table)
    valid = table.filter(model="pretrained", split="valid")
    each = [valid.filter(seed=s) for s in (1, 3)]
    want = [roc_auc_score(a["correct"].to_numpy(), a["log_probability"].to_numpy()) for a in each]
    found = row_of(rows, "auroc_probability", subject="pretrained")
    assert (found["value"], found["n"]) == (pytest.approx(np.mean(want)), 200)
    assert not [r for r in rows if r["measure"] == "threshold"]
    assert len([r for r in rows if r["measure"] == "threshold_coverage"]) == 2 * len(RISKS)
    table = answers(World(names=40, seeds=(0, 1)))
    mixed = table.sample(fraction=1, shuffle=True, seed=1)
    assert measure_rows(mixed) == measure_rows(table)
    assert judge(mixed).equals(judge(table))


def test_neighbours_of_every_kind_with_their_places():
    known = {"Ada Quill": "P01", "Bo Rask": "P02", "Adam Rask": "P03"}
    vectors = {name: np.eye(4)[i] for i, name in enumerate([*known, "Solo"])} | {"Ada Rask": np.eye(4)[1]}
    found = recall_rows.neighbours(["Ada Rask", "Solo"], known, vectors, "pretrained", 2)
    assert dict(found.schema) == dict(pl.Schema(recall_rows.NEIGHBOURS))
    got = {(r["match"], r["name"]): (r["nearest"], r["place"]) for r in found.iter_rows(named=True)}
    assert got[("n-grams", "Ada Rask")] == ("Adam Rask", "P03")
    assert got[("last name", "Ada Rask")] == ("Adam Rask", "P03")
    assert got[("representation", "Ada Rask")] == ("Bo Rask", "P02")
    assert ("last name", "Solo") not in got
    assert set(found["model"]) == {"pretrained"}
    assert recall_rows.neighbours(["Solo"], {}).is_empty()
    assert set(recall_rows.neighbours(["Ada Rask"], known)["match"]) == {"n-grams", "last name"}


def test_statistics_of_fewer_units_count_with_their_own():
    def part(name: str, effect: Any) -> Part:
        return Part(name, effect, "above", 0.0, "u", "Why.")

    both = Combination(((1.0, Statistic("a")), (-1.0, Statistic("b"))))
    one = Source(
        "recall", "t", "a", "c", (Claim("X", "S.", "w", (part("a", Statistic("a")), part("a − b", both))),), "name"
    )
    draws = np.random.default_rng(0).normal(1, 0.1, (2, 500))
    found = {"a": draws[0] + 1, "b": draws[1]}
    own = {"b": ResampledUnits(50, 8, "name")}
    table = judge_by_draws(one, found, {"a": 2.0, "b": 1.0}, 400, ABOUT, each=own)
    rows = {r["part"]: r for r in table.iter_rows(named=True)}
    assert (rows["a"]["n"], rows["a − b"]["n"], rows[None]["n"]) == (400, 50, 50)
    low, high = percentile_interval(found["a"] - found["b"], 8)
    assert (rows["a − b"]["low"], rows["a − b"]["high"]) == (float(low), float(high))
    assert rows["a − b"]["p"] > rows["a"]["p"]
