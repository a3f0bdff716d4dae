"""The answer in three sentences: made by rule from rows, with the number that shows it, or said not to be shown."""

import polars as pl
import pytest
from tests.pages import html as page_html
from tests.synthetic import about, study_tables

from trisect.core.tables import frame
from trisect.experiments.study import page as study_page
from trisect.experiments.study.page import collect, make_sheet
from trisect.experiments.study.rows import StudyRows
from trisect.report.sheet import Bullets, TextBlock, open_section

pytestmark = pytest.mark.usefixtures("undrawn")  # pages without drawings, which take most of the time

SEEDS = (1, 2, 3, 4, 5)


def with_rows(measures, seeds=SEEDS):
    """A study's tables with further measures of its baselines' sites: {(site, measure, split, at): one value a seed}."""
    tables = study_tables(seeds, 3, 2, ("pos",), {})
    bases = dict(tables["runs"].filter(pl.col("edit") == "none").select("seed", "run").iter_rows())
    more = [
        {"subject": bases[seed], "site": site, "measure": measure, "split": split, "at": at, "value": value, "n": 1000}
        for (site, measure, split, at), values in measures.items()
        for seed, value in zip(seeds, values, strict=True)
    ]
    return {**tables, "sites": frame("sites", [*tables["sites"].to_dicts(), *more])}


def rows_of(tables, seeds=SEEDS):
    return StudyRows.of(tables, about(seeds, 3, 2, ("pos",)))


def shares(own, others=0.01):
    """Interchange at the layer that reads, every seed a little different."""
    measures = {}
    for component in "qkv":
        for name, value in (("own", own), ("others", others), ("unchanged", 1 - own - others)):
            spread = [value + 0.001 * (i - 2) for i in range(len(SEEDS))]
            measures[f"{component}@2", f"interchange_{name}", "valid", None] = spread
    return measures


def test_where_interchange_is_clear_each_sentence_says_what_the_component_does():
    answers = list(study_page.answer_findings(rows_of(with_rows(shares(0.97)))))
    assert [one.groups for one in answers] == [("q",), ("k",), ("v",)]
    assert [one.title for one in answers] == ["Query", "Key", "Value"]
    for one, thesis in zip(
        answers, ("what is looked for", "what a token is matched on", "what is passed on"), strict=True
    ):
        assert thesis in one.words.partition(":")[0]
        assert "97.0\u00a0% (95\u00a0%: 96.8\u00a0% to 97.2\u00a0%) of pairs" in one.words
        assert (one.values[0].mean, one.values[0].n) == (pytest.approx(0.97), 5)
        assert one.unit == "of pairs"


@pytest.mark.parametrize(
    ("own", "others", "seeds", "start"),
    [
        (0.97, 0.06, SEEDS, "Mostly, "),
        (0.7, 0.01, SEEDS, "Mostly, "),
        (0.3, 0.01, SEEDS, "Not shown here: "),
        (0.0, 0.5, SEEDS, "Not shown here: "),
        (0.97, 0.01, (1,), "One model, which decides nothing: "),
    ],
)
def test_what_the_rows_do_not_carry_is_said_not_to_be_shown(own, others, seeds, start):
    measures = {spot: values[: len(seeds)] for spot, values in shares(own, others).items()}
    answers = list(study_page.answer_findings(rows_of(with_rows(measures, seeds), seeds)))
    assert [one.words.startswith(start) for one in answers] == [True] * 3


def everywhere(q, k, v):
    measures = {}
    for component, value in (("q", q), ("k", k), ("v", v)):
        spread = [value + 0.002 * (i - 2) * (1 + "qkv".index(component)) for i in range(len(SEEDS))]
        measures[f"{component}@1-2", "ablate_rise_nats", "valid", None] = spread
    return measures


def test_a_language_study_says_what_each_costs_in_all_layers_and_that_this_is_not_what_it_does():
    rows = rows_of(with_rows(everywhere(0.1, 0.2, 0.9)))
    answers = list(study_page.answer_findings(rows))
    assert ": +0.900\u00a0nats (" in answers[2].words
    assert answers[2].words.endswith("with them replaced by their mean.")
    (compared,) = [one for one in study_page.comparisons(rows) if one.groups == ("mean ablation",)]
    assert (compared.measure, compared.comparison) == ("all_layers", "v largest")
    page = page_html(with_rows(everywhere(0.1, 0.2, 0.9)), rows, [])
    assert "These numbers say how much each matters, not what it does." in page
    assert (
        page.index('id="short-answer"')
        < page.index('id="sure"')
        < page.index('id="open"')
        < page.index('id="attention"')
    )


def test_without_all_layers_single_layers_are_averaged_and_without_interventions_nothing_is_answered():
    tables = with_rows({(f"{c}@{n}", "ablate_rise_nats", "valid", None): [0.1 * n] * 5 for c in "qkv" for n in (1, 2)})
    first = next(iter(study_page.answer_findings(rows_of(tables))))
    assert "in one layer (mean over layers)" in first.words
    assert first.values[0].mean == pytest.approx(0.15)
    assert {one.measure for one in study_page.comparisons(rows_of(tables))} == {"each_layer"}
    bare = {**tables, "runs": tables["runs"].filter(pl.col("edit") == "none"), "sites": frame("sites", [])}
    assert list(study_page.answer_findings(rows_of(bare))) == []
    sheet = make_sheet(bare, rows_of(bare), [])
    block = sheet.sections[0].blocks[0]
    assert isinstance(block, TextBlock)
    assert block.text == "No intervention has numbers yet, so there is no answer."


def test_frozen_runs_without_a_baseline_have_no_numbers_yet():
    tables = study_tables(SEEDS, 3, 2, ("pos",), {})
    runs = tables["runs"].filter(pl.col("edit") == "freeze")
    assert runs.height
    block = study_page.first_sections(rows_of({**tables, "runs": runs, "sites": frame("sites", [])}), (), ())[0].blocks[
        0
    ]
    assert isinstance(block, TextBlock)
    assert block.text == "No intervention has numbers yet, so there is no answer."


def test_what_is_open_says_how_many_seeds_are_needed_and_what_is_alike_by_which_margin():
    noisy = {
        (f"{c}@1-2", "ablate_rise_nats", "valid", None): [0.1 + 0.05 * ((i * (n + 2)) % 5 - 2) for i in range(5)]
        for n, c in enumerate("qkv")
    }
    tables = with_rows(noisy)
    section = open_section(collect(rows_of(tables)))
    listed = {block.title: block.items for block in section.blocks if isinstance(block, Bullets)}
    assert any("seeds needed, 5 run" in item for item in listed["Too uncertain"])
    assert all("alike within" in item for item in listed["Alike within the margin"])
    assert "The method cannot see it" not in str(list(listed))
    assert open_section([]).words == ("Nothing that was compared was left open.",)
