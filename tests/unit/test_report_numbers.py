"""The numbers behind the report's marks: each series once, each mark with its own, and how exact the curves are."""

import json
import re
from typing import Any

import polars as pl
import pytest
from tests import pages
from tests.synthetic import about, study_tables

from trisect.core.tables import frame
from trisect.experiments.study import figures
from trisect.experiments.study.rows import StudyRows
from trisect.experiments.study.words import exactness
from trisect.measure.criticality import TOLERANCE
from trisect.report import charts, render
from trisect.report.charts import Measure, Series, mean_of, of_runs
from trisect.report.format import Point, interval

pytestmark = pytest.mark.usefixtures("undrawn")  # pages without drawings, which take most of the time

SMALL = {"seeds": (1, 2), "epochs": 3, "layers": 2}
LOSS = Measure("loss", "nats")


def series(seed, values, at=(0.0, 1.0), **more):
    return Series(LOSS, "q@1", f"run-{seed}", seed, at, values, **more)


@pytest.fixture(scope="module")
def rows():
    return StudyRows.of(study_tables(**SMALL), about(**SMALL))


@pytest.fixture(scope="module")
def drawn(rows):
    return {figure.name: figure for figure in figures.collect(rows)}


def test_the_mean_of_series_is_the_mean_of_each_number():
    whole = mean_of([series(1, (1.0, 2.0)), series(2, (2.0, 5.0)), series(3, (3.0, 2.0))])
    for i, values in enumerate(((1.0, 2.0, 3.0), (2.0, 5.0, 2.0))):
        known = interval(values)
        assert (whole.values[i], whole.low[i], whole.high[i]) == pytest.approx((known.mean, known.low, known.high))
    assert (whole.n, whole.seed, whole.run) == (3, None, "")


def test_a_mean_stops_where_the_first_seed_is_lost_and_says_so():
    whole = mean_of([series(1, (1.0, 2.0)), series(2, (2.0,), (0.0,), diverged=True)])
    assert whole.at == (0.0,)
    assert whole.diverged
    alone = series(1, (1.0, 2.0))
    assert mean_of([alone]) is alone
    same = mean_of([series(1, (1.0,), ()), series(2, (1.0,), ())])
    assert (same.at, same.values, same.low) == ((), (1.0,), (None,))


def test_points_become_a_series_for_each_run_in_the_order_of_at():
    points = [
        Point("q@1", 1, 2.0, 1.0, False, "a"),
        Point("q@1", 1, 1.0, 0.0, True, "a"),
        Point("k@1", 2, 3.0, None, False, "b"),
    ]
    first, second = of_runs(points, LOSS)
    assert (first.at, first.values, first.diverged, first.run) == ((0.0, 1.0), (1.0, 2.0), True, "a")
    assert (second.at, second.values, second.site) == ((), (3.0,), "k@1")


def test_every_mark_that_is_drawn_has_its_stroke(drawn):
    """The page finds marks by place alone, so that drawing and strokes must agree in number, layer by layer."""
    for name in ("answer", "fig03-attack-pos-train", "fig07-baseline", "fig08-rewind-heat", "fig10-midstage"):
        for view in drawn[name].views:
            for panel in view.panels:
                text = render.slim(render.svg(panel.chart, name, legend=False))
                for layer, strokes in panel.strokes.items():
                    groups = re.findall(rf'<g class="[^"]* {layer}_marks">(.*?)</g>', text)
                    many = sum(len(re.findall(r"<(?:path|line|text)\b", group)) for group in groups)
                    assert (name, layer, many) == (name, layer, len(strokes))
                    assert {stroke.key for stroke in strokes} <= {key.name for key in view.legend} | {""}


def test_a_figure_packs_each_series_once_however_often_it_is_drawn(drawn):
    figure = drawn["fig04-attack-pos-valid"]
    assert [view.name for view in figure.views] == ["component", "layer", "label"]
    packed: Any = charts.pack([(v.name, [(p.series, p.strokes) for p in v.panels]) for v in figure.views], "epoch")
    runs = [packed["runs"][row[2]] for row in packed["series"] if row[3] is not None]
    assert len(runs) == len(set(runs)) == 2 * (1 + 6 + 6)  # two seeds: the baseline, six sites, two labels
    assert packed["axes"] == [[0, 1, 2, 3]]
    shown = {i for panel in packed["views"][1]["panels"] for i in panel["series"]}
    assert not any("-dep-" in packed["runs"][packed["series"][i][2]] for i in shown)
    json.dumps(packed, allow_nan=False)


def test_numbers_inside_the_page_cannot_end_their_block():
    tables = study_tables(**SMALL)
    evil = tables["runs"].with_columns(pl.col("run").str.replace("baseline", "</script><b>"))
    known = dict(zip(tables["runs"]["run"], evil["run"], strict=True))
    renamed = {
        "runs": evil,
        "metrics": tables["metrics"].with_columns(pl.col("run").replace(known)),
        "sites": frame("sites", ()),
    }
    found = StudyRows.of(renamed, about(**SMALL))
    figure = next(f for f in figures.collect(found) if f.name == "fig07-baseline")
    text = pages.html(renamed, found, [figure])
    assert "</script><b>" not in text
    assert "\\u003c/script>\\u003cb>" in text


def with_check(checks, **measures):
    tables = study_tables(**SMALL)
    rows = [
        {"subject": run, "site": "q@1", "split": "train", "n": 10, "measure": name, "value": value, "at": at}
        for run, seed in tables["runs"].filter(pl.col("edit") == "none").select("run", "seed").iter_rows()
        for name, (value, at) in {"rewind_check_nats": (checks * seed, None), **measures}.items()
    ]
    return {**tables, "sites": frame("sites", [*tables["sites"].to_dicts(), *rows])}


def exact(tables, description=None):
    found = exactness(StudyRows.of(tables, description or about(**SMALL)))
    assert found is not None
    return found


def test_the_adaptive_check_is_told_with_where_it_is_worst():
    tables = with_check(2e-4, rewind_evaluations=(21.0, None))
    text = exact(tables)
    assert "The losses at 101 values of α come from 21 evaluations per site and seed" in text
    assert f"agree within {TOLERANCE:g} nats everywhere" in text
    assert "The largest disagreement of the last two was 0.000400 nats (q@1, seed 2)." in text
    rows = StudyRows.of(tables, about(**SMALL))
    page = pages.html(tables, rows, [f for f in figures.collect(rows) if f.ramp])
    assert text in page
    assert page.index('id="fig08-rewind-heat"') < page.index(text)


@pytest.mark.parametrize(
    ("nodes", "spent", "full"), [(17, 17, False), (33, 140, False), (0, 42, True), (None, 134, True)]
)
def test_where_no_two_grids_agree_it_is_said(nodes, spent, full):
    """By the last nodes; tables without them, by the evaluations."""
    of_nodes = {} if nodes is None else {"rewind_nodes": (float(nodes), None)}
    text = exact(with_check(0.0, rewind_evaluations=(float(spent), None), **of_nodes))
    assert ("At q@1 no two agreed in some seed, and every α was evaluated there." in text) is full
    assert f"come from {spent} evaluations per site and seed" in text


def test_with_fewer_values_than_nodes_the_sentence_is_still_true():
    tables = with_check(2e-4, rewind_evaluations=(17.0, None))
    few = tables["sites"].filter(~((pl.col("measure") == "rewind_loss_nats") & ((pl.col("at") * 10) % 1 > 1e-9)))
    points = few.filter(measure="rewind_loss_nats", split="train")["at"].n_unique()
    text = exact({**tables, "sites": few})
    assert points < 17
    assert text.startswith(f"The losses at {points} values of α come from 17 evaluations per site and seed;")


def test_exact_mode_has_no_check():
    description = about(**SMALL)
    description["experiment"]["rewind"]["mode"] = "exact"
    text = exact(with_check(0.0, rewind_evaluations=(101.0, None)), description)
    assert text == "Every one of the 101 values of α was evaluated; nothing is interpolated."
    assert exactness(StudyRows.of(study_tables(**SMALL), about(**SMALL))) is None


def test_a_sample_of_rows_is_told_with_its_widest_interval():
    ends = {"rewind_rise_low_nats": (0.1, 0.0), "rewind_rise_high_nats": (0.3, 0.0)}
    description = about(**SMALL)
    description["experiment"]["rewind"]["sample_tokens"] = 2000
    text = exact(with_check(0.0, rewind_evaluations=(17.0, None), **ends), description)
    assert "a sample of whole rows of 2\u202f000 tokens of each split" in text
    assert "over all rows is +0.100 to +0.300 nats (q@1, seed 1)" in text


def test_the_adversary_is_compared_with_the_commonest_label_where_the_tables_know_it(drawn):
    tables = study_tables(**SMALL)
    base = tables["runs"].filter(pl.col("edit") == "none")["run"][0]
    known = {"subject": base, "measure": "majority_accuracy_pos", "split": "valid", "value": 0.25, "n": 10}
    more = StudyRows.of({**tables, "sites": frame("sites", [*tables["sites"].to_dicts(), known])}, about(**SMALL))
    adversary = next(f for f in figures.collect(more) if f.name == "adversary")
    assert [key.name for key in adversary.legend] == ["q", "k", "v", "commonest label"]
    assert [p.strokes.get("level0") is not None for p in adversary.panels] == [True, False]
    assert [key.name for key in drawn["adversary"].legend] == ["q", "k", "v"]
