"""Attacks by dose: the loss at equal bits removed, beside the control, and runs that are left out."""

import json

import polars as pl
import pytest
from tests.controlled import SEEDS, everywhere, made

from trisect.experiments.study import figures, page, removal, words
from trisect.experiments.study.figures import AGAINST, HALF, _at_equal_bits
from trisect.experiments.study.rows import StudyRows
from trisect.report import render

PLANTED = (
    everywhere("attack-pos-k@1", -0.3, 0.3)
    | everywhere("attack-control-pos-k@1", 0.0, 0.1)
    | {"bits-attack-pos-k@1-k@1": 0.25, "control-bits-attack-control-pos-k@1-k@1": 0.5}
)


@pytest.fixture(scope="module")
def study():
    return made(PLANTED, spread=0.0)


@pytest.fixture(scope="module")
def rows(study):
    return StudyRows.of(*study)


def test_attack_and_control_are_compared_where_both_remove_as_much(rows):
    """The attack takes 0.75 bits for 0.3 nats, the control 0.5 for 0.1: at 0.5 bits 0.2 against 0.1, linear between doses."""
    found = {title: points for title, (points, _) in _at_equal_bits(rows, "pos").items()}
    assert {(p.site, p.seed) for p in found[AGAINST]} == {("k@1", seed) for seed in SEEDS}
    assert [p.value for p in found[AGAINST]] == pytest.approx([0.1] * len(SEEDS))
    assert [p.value for p in found[HALF]] == pytest.approx([0.2] * len(SEEDS))
    (finding,) = figures.dose_findings(rows)
    assert finding.values[0].mean == pytest.approx(0.1)


@pytest.mark.parametrize("left", [1.0, 0.6])
def test_a_site_that_some_seed_does_not_reach_is_left_out_and_counted(study, left):
    """One seed's attack removes nothing, or less than half of the bits, beyond which the cost is not known."""
    tables, described = study
    runs = tables["runs"].filter(edit="attack", variant="plain", seed=SEEDS[0], site="k@1", label="pos")
    bits = pl.col("subject").is_in(runs["run"].to_list()) & (pl.col("measure") == "probe_linear_bits")
    sites = tables["sites"].with_columns(pl.when(bits).then(left).otherwise(pl.col("value")).alias("value"))
    rows = StudyRows.of({**tables, "sites": sites}, described)
    points, counted = _at_equal_bits(rows, "pos")[HALF]
    assert points == []
    assert counted.startswith("0 of")


def raised(study, runs):
    """The study with losses of these runs that are far above the unigram loss."""
    tables, described = study
    losses = pl.col("run").is_in(runs) & (pl.col("name") == "loss_nats")
    metrics = tables["metrics"].with_columns(pl.when(losses).then(99.0).otherwise("value").alias("value"))
    return StudyRows.of({**tables, "metrics": metrics}, described)


def combined(points):
    """The sites q+k of layers 1 and 5, with the numbers of q there."""
    return [p._replace(site=p.site.replace("q", "q+k")) for p in points if p.site in ("q@1", "q@5")]


def test_collapsed_runs_are_counted_drawn_grey_and_not_compared(study):
    tables, described = study
    runs = tables["runs"].filter((pl.col("edit") == "attack") & (pl.col("variant") == "plain"))
    lost = runs.filter(pl.col("site") == "k@1")["run"].to_list()
    unigram = tables["sites"].filter((pl.col("measure") == "unigram_loss_nats") & (pl.col("split") == "valid"))[
        "value"
    ][0]
    losses = pl.col("run").is_in(lost) & (pl.col("name") == "loss_nats")
    stuck = pl.when(losses).then(pl.max_horizontal("value", pl.lit(unigram))).otherwise("value")
    rows = StudyRows.of({**tables, "metrics": tables["metrics"].with_columns(stuck.alias("value"))}, described)
    assert rows.collapses == frozenset(lost)
    assert not _at_equal_bits(rows, "pos")[AGAINST][0]
    drawn = {figure.name: figure for figure in figures.collect(rows)}["fig04-attack-pos-valid"]
    assert f"{len(lost)} runs collapsed" in drawn.caption
    assert "k@1" not in drawn.caption
    assert "nothing is read from sites where one did" in drawn.caption
    first = pl.col("site").str.ends_with("@1") & (pl.col("edit") == "attack")
    without = StudyRows.of({**tables, "runs": tables["runs"].filter(~first.fill_null(False))}, described)
    asked = ("attack", "control", "information")
    before, after = (
        {(f.measure, *f.groups): f for f in page.collect(some) if f.measure in asked} for some in (without, rows)
    )
    assert before.keys() == after.keys()
    for key, one in after.items():
        left = "sites where one did are not compared" if key[0] == "control" else "nothing is read from their site"
        said = f"{len(lost)} runs collapsed, that is, never fell clearly below the unigram loss: {left}."
        assert said in one.words
        assert "k@1" not in one.words
        assert one.values == before[key].values  # of the layers where none did, for all components alike
        assert key[0] != "attack" or "Mean over layers 2, 3, 4 and 5:" in one.words
    effects = rows.effects("attack", "valid", "pos")
    assert {p.site for p in figures.together([*effects, *combined(effects)])} == {"q+k@1", "q+k@5"}
    alive = figures.together([*(kept := rows.readable(effects)), *combined(kept)])
    assert {p.site for p in alive} == {"q+k@5"}  # its parts at layer 1 are not both there
    bits = {figure.name: figure for figure in removal.removal_figures(rows)}["removed-pos-linear-bits"]
    assert "k@1" not in bits.caption
    table = dict(words.numbers(rows)[1])
    assert table["k@1"][0] == ("–", "")
    assert table["k@5"][0] != ("–", "")
    grey = {panel.title: greys(panel.chart) for panel in drawn.panels}
    assert grey == {title: 1 + (title == "k: keys") for title in grey}  # the baseline, and layer 1's keys
    assert "k: keys" in grey


def test_a_control_without_a_site_that_can_be_read_is_named(study):
    runs = study[0]["runs"].filter(edit="attack", variant="control")["run"].to_list()
    rows = raised(study, runs)
    assert rows.collapses == frozenset(runs)
    said = {f.groups[1]: f for f in page.collect(rows) if f.measure == "control"}
    assert said["control"].values == ()
    assert f"minus that by control labels: not read. {len(runs)} runs collapsed" in said["control"].words
    drawn = {figure.name: figure for figure in figures.control_figures(rows)}["controls-pos-valid"]
    assert "control labels not read" in drawn.caption


def greys(chart):
    """How many curves of a panel are grey."""
    (main,) = (layer for layer in chart.layer if layer.name == "main")
    return len({row["line"] for row in json.loads(main.data.values) if row["colour"] == render.BASELINE})


def test_where_the_baseline_learns_nothing_no_attack_stopped_it(study):
    runs = study[0]["runs"]
    first = runs.filter(seed=SEEDS[0])["run"].to_list()
    attacked = runs.filter(edit="attack", site="k@1")["run"].to_list()
    rows = raised(study, [*first, *attacked])
    assert rows.collapses == frozenset(attacked) - frozenset(first)
    assert rows.collapses
