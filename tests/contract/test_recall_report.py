"""Recall's page: what it says and shows of the tables, and that it needs nothing but them."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests import recalled
from tests.pages import foreign

from trisect.core.finding import Estimate
from trisect.experiments.recall import RECALL
from trisect.experiments.recall import page as recall
from trisect.experiments.recall.page import RecallNumbers, words_for
from trisect.lab import driver
from trisect.report.sheet import Section, html, write_page

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
    about = recalled.about(
        references=REFERENCES, examples=True, notes=["A <u>note</u>."], settings={"layers": 2}, seconds=90.0
    )
    path = write_page(tmp_path, recall.page(one, about))
    text = path.read_text()
    assert "<script" not in foreign(text)
    assert "a world &lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "A &lt;u&gt;note&lt;/u&gt;." in text
    assert "notes &lt;i&gt;of others&lt;/i&gt;" in text
    assert re.findall(r'class="figure-number">Figure (\d+)\.', text) == [str(n) for n in range(1, 9)]
    assert re.findall(r'<article class="card \w+" id="([^"]+)"', text) == ["B-1", "B-2", "B-3", "B-4"]
    facts = dict(recall.page(one, about).facts)
    assert (facts["Seconds"], facts["Settings"]) == ("90", "layers 2")
    assert sorted(p.stem for p in (tmp_path / "figures").glob("*.svg")) == [
        "recall-accuracy", "recall-confidence", "recall-loss", "recall-ranking", "recall-reliability", "recall-risk",
        "recall-survival", "recall-unseen",
    ]  # fmt: skip
    assert text == html(recall.page(one, about))


def test_what_is_right_is_found_with_intervals_and_beside_the_commonest_place(one):
    right_ones, *others = recall.findings(one, recalled.about(examples=True))
    assert (right_ones.measure, right_ones.source) == ("accuracy", "recall")
    whole, values = RecallNumbers.of(one), {value.name: value for value in right_ones.values}
    assert list(values) == ["plain", "pretrained", "left-out", "baseline"]
    for model in ("plain", "pretrained", "left-out"):
        right = one["answers"].filter((pl.col("model") == model) & (pl.col("split") == "valid"))["correct"].to_list()
        assert values[model].mean == pytest.approx(sum(right) / len(right))
        number = whole.number("accuracy", model)
        assert number is not None
        assert values[model] == number.estimate(model)
        assert f"{100 * sum(right) / len(right):.1f}\u00a0%" in right_ones.words
    gold = one["answers"].filter((pl.col("model") == "plain") & (pl.col("split") == "train"))["gold"].to_list()
    assert f"always answering '{max(sorted(set(gold)), key=gold.count)}'" in right_ones.words
    assert "; always answering the commonest place " in recall.findings(one, recalled.about())[0].words
    assert [found.claim for found in others if found.measure == "claim"] == ["B-1", "B-2", "B-3", "B-4"]
    deciding = one["claims"].filter(pl.col("part").is_not_null() & pl.col("decides"))
    parts = [found for found in others if found.part is not None]
    assert [(p.claim, p.part, p.verdict) for p in parts] == deciding.select("claim", "part", "verdict").rows()
    effects = deciding.select("effect", "low", "high").rows()
    assert [tuple(p.values[0][1:4]) for p in parts] == [row for row in effects if row[0] is not None]
    blank = one["claims"].with_columns(pl.lit(None, pl.Float64).alias(c) for c in ("effect", "low", "high"))
    unmeasured = [f for f in recall.findings({**one, "claims": blank}, recalled.about()) if f.part is not None]
    assert [f.values for f in unmeasured] == [()] * len(parts)


def test_what_survives_is_a_finding_of_q_k_and_v(one):
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
    assert "3 seeds, small marks are seeds" in figure.caption
    layers = {layer.name for layer in figure.panels[0].chart.layer}
    assert "seeds" in layers
    numbers = RecallNumbers.of(several)
    assert len(numbers.shares("pretrained")) == 3
    of_two = several["answers"].filter(model="pretrained", seed=2, split="valid")["correct"]
    assert numbers.shares("pretrained")[1] == pytest.approx(of_two.mean())
    assert "names and seeds" in sections(several)["What the claims say here"].words[0]
    alone = sections(one)
    assert "There is one seed" in alone["What the claims say here"].words[0]
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
        assert [text.endswith(part) for text in said[:2]] == [not same] * 2
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
    assert ["some names" in of.figures[0].caption for of in (section, other)] == [True, False]
    rows = {row[0]: row[1:] for row in section.tables[0].rows}
    assert set(rows) == {"character n-grams", "same last name"}
    measured = one["measures"].filter(subject="left-out", measure="match", group="n-grams")
    assert rows["character n-grams"][:2] == (str(measured["n"][0]), f"{100 * measured['value'][0]:.1f}\u00a0%")
    assert f"character n-grams {measured['n'][0]}" in section.figures[0].caption
    confidence = next(f for f in sections(one)["Retrieved or guessed?"].figures if f.name == "recall-confidence")
    for category, count in one["answers"].filter(model="left-out")["category"].value_counts().iter_rows():
        assert re.search(rf"{category} 0\.\d+ \(n\u00a0=\u00a0{count}\)", confidence.caption)


def test_survival_has_a_panel_for_each_kind_of_answer(one):
    section = sections(one)["Where do q, k and v come in?"]
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


def test_losses_stand_by_stage_with_only_the_models_that_have_it(one):
    figure = sections(one)["How it was learned"].figures[0]
    assert (
        "pretraining 0.375 (pretrained) and 0.375 (names left out); fine-tuning 0.375 (fine-tuned only), "
        in figure.caption
    )
    assert [panel.title for panel in figure.panels] == ["Pretraining", "Fine-tuning"]
    assert {s.site for s in figure.panels[0].series} == {"pretrained", "left-out"}
    assert {s.site for s in figure.panels[1].series} == {"plain", "pretrained", "left-out"}


def test_examples_say_what_they_were_only_in_the_second_table(one):
    first, second = sections(one, examples=True)["Which are retrieved, which are guessed?"].tables
    assert len(first.rows) == len(second.rows) == 15
    kinds = [row[1] for row in second.rows]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {"retrieved": 5, "wrong": 5, "guessed: in no text": 5}
    assert kinds != sorted(kinds)
    answers = {row["name"]: row for row in one["answers"].filter(pl.col("model") == "left-out").to_dicts()}
    for asked, said in zip(first.rows, second.rows, strict=True):
        name = said[0].partition(". ")[2]
        assert asked[0].partition(". ")[2] == f"Where was {name} born?"
        assert asked[1] == answers[name]["answer"]
        assert (answers[name]["correct"] is True) == (said[1] == "retrieved") or said[1] == "guessed: in no text"
    assert "Which are retrieved, which are guessed?" not in sections(one)


def test_what_was_not_measured_leaves_no_section(one):
    plain = {name: table.clear() for name, table in one.items() if name != "answers"}
    plain["answers"] = one["answers"].filter(pl.col("model") == "plain")
    found = sections(plain, examples=True)
    assert list(found) == ["Does pretraining let it answer?"]
    assert found["Does pretraining let it answer?"].words[1] == "No question has a known answer."
    assert "<figure" not in html(recall.page(plain, recalled.about()))
    assert list(sections({"answers": one["answers"]})) == ["Does pretraining let it answer?", "Retrieved or guessed?"]


def test_committed_results_are_read_and_shown_again(tmp_path):
    kept = Path(__file__).parents[2] / "results" / "recall" / "embedded"
    shutil.copytree(kept / "tables", tmp_path / "tables")
    shutil.copy(kept / "about.json", tmp_path)
    done = driver.render(RECALL, tmp_path)
    noted = json.loads((kept / "about.json").read_text(encoding="utf-8"))["body"]
    assert done.about.command == noted["command"]
    assert dict(done.about.facts.settings) == noted["settings"]
    assert len(done.about.facts.references) == len(noted["references"])
    assert {found.claim for found in done.findings if found.verdict} == set(done.tables["claims"]["claim"])
    assert done.report.read_text(encoding="utf-8").count("<article") == done.tables["claims"]["claim"].n_unique()
    for path in (kept / "tables").iterdir():
        assert (tmp_path / "tables" / path.name).read_bytes() == path.read_bytes()
