"""The report of controls, ties, probes and erasure: figures where there are rows, sentences made of numbers, one table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import polars as pl
import pytest
from tests import pages
from tests.controlled import SEEDS, everywhere, made
from tests.synthetic import DECIDING, about, experiment, study_tables

from trisect.claims.verdicts import SURVIVES
from trisect.core import spec
from trisect.core.methods import VARIANTS
from trisect.core.tables import frame
from trisect.experiments.study import figures, page, removal
from trisect.experiments.study import words as study_words
from trisect.experiments.study.rows import StudyRows
from trisect.report import charts
from trisect.report.cards import survival_sentence, survivals, tally_survival
from trisect.report.charts import FigureView, Measure, axis_for, site_panel
from trisect.report.format import Point, site_position

pytestmark = pytest.mark.usefixtures("undrawn")  # pages without drawings, which take most of the time

NEW = [
    "controls-pos-valid",
    "controls-pos-train",
    "attack-pos-dose",
    "removed-pos-linear-bits",
    "removed-pos-linear-accuracy",
]
PAPER = pl.col("edit").is_in(["none", "attack", "freeze"]) & (pl.col("variant").fill_null("plain") == "plain")
NEW += ["removed-pos-elsewhere", "erasure-pos", "tying"]
PLANTED = (
    everywhere("attack-pos-k@1", -0.3, 0.3)
    | everywhere("attack-control-pos-k@1", 0.0, 0.1)
    | everywhere("tie-q+k+v@1-5", 0.4, 0.4)
    | everywhere("narrow5-q+k+v@1-5", 0.1, 0.1)
    | {f"bits-attack-pos-{site}-{site}": 0.25 for site in map(str, DECIDING)}
    | {"bits-attack-pos-v@1-q@5": 1.5}
    | {"erase-v@5": 0.52, "random-v@5": 0.02}
)


@pytest.fixture(scope="module")
def study():
    return made(PLANTED)


@pytest.fixture(scope="module")
def rows(study):
    return StudyRows.of(*study)


@pytest.fixture(scope="module")
def drawn(rows):
    return {one.name: one for one in figures.collect(rows)}


def test_new_figures_stand_where_there_are_rows_and_nowhere_else(study, drawn):
    assert [name for name in drawn if name in NEW] == NEW
    tables, described = study
    sites = tables["sites"].filter(pl.col("label").is_null())
    plain = {**tables, "runs": tables["runs"].filter(PAPER), "sites": sites, "controls": frame("controls", ())}
    bare = StudyRows.of(plain, described)
    assert page.collect(bare) == (*page.answer_findings(bare), *page.comparisons(bare), *study_words.findings(bare))
    assert {one.name for one in figures.collect(bare)} == set(drawn) - set(NEW)


def test_the_papers_figures_do_not_see_controls_ties_and_probes(study, rows, drawn):
    tables, described = study
    old = {**tables, "runs": tables["runs"].filter(PAPER)}
    bare = StudyRows.of({**old, "sites": tables["sites"].filter(pl.col("label").is_null())}, described)
    assert bare.edit_sites == rows.edit_sites
    assert tuple(study_words.findings(bare)) == tuple(study_words.findings(rows))
    assert bare.effects("attack", "valid", "pos") == rows.effects("attack", "valid", "pos")
    assert rows.strengths == (1.0,)


def test_controls_are_drawn_at_their_sites_beside_the_attack(drawn):
    figure = drawn["controls-pos-valid"]
    assert [panel.title for panel in figure.panels] == [
        "Attack",
        "Control labels",
        "Bounded attack",
        "Gradient limited to this projection",
    ]
    assert {s.site for panel in figure.panels for s in panel.series} == {str(site) for site in DECIDING}
    # of six sites one differs, by 0.2 nats
    assert "control labels +0.03" in figure.caption
    assert f"{len(SEEDS)} seeds, 6 sites" in figure.caption
    assert [c for c, (_, how) in figures.CONTROL_WORDS.items() if how in figure.caption] == [
        "control",
        "bounded",
        "site",
    ]


def test_attacks_and_controls_are_compared_at_the_sites_that_both_have_in_a_seed():
    attack = [Point("q@1", 1, 0.5), Point("k@1", 1, 9.0), Point("q@1", 2, 0.7), Point("v@1", 2, 0.1)]
    control = [Point("q@1", 1, 0.2), Point("q@1", 2, 0.4), Point("k@1", 2, 5.0)]
    none = StudyRows.of({}, {})
    less = figures._less_controls(none, {"plain": attack, "bounded": control})
    assert [(p.site, p.seed, round(p.value, 9)) for p in less["bounded"]] == [("q@1", 1, 0.3), ("q@1", 2, 0.3)]
    assert figures._less_controls(none, {"bounded": control}) == {}
    assert figures._less_controls(none, {"plain": attack[1:2], "bounded": control[:1]}) == {}


def test_a_combined_control_has_a_panel_and_a_sentence_of_its_own(study):
    tables, described = study
    both = pl.col("variant").replace({"site": "bounded+site"})
    rows = StudyRows.of({**tables, "runs": tables["runs"].with_columns(both)}, described)
    figure = next(iter(figures.control_figures(rows)))
    assert [panel.title for panel in figure.panels][-1] == "Bounded, gradient limited to this projection"
    assert [c for c, (_, how) in figures.CONTROL_WORDS.items() if how in figure.caption] == [
        "control",
        "bounded",
        "bounded+site",
    ]


def test_panels_of_probes_fit_a_narrow_screen(rows):
    points = removal._after_attack(rows, "pos", "probe_linear_bits")
    axis = axis_for([p.value for p in points], "bits")
    for title in removal.AFTER.values():
        panel = site_panel(title, points, axis, (removal.GUESSING,), Measure(title, "bits"))
        (drawn,) = cast(Any, charts.arrangement("p", FigureView("", (panel,), ())))["panels"]
        assert not drawn["wide"], title


def test_ties_stand_against_parameters_and_narrower_heads(rows, drawn):
    found = removal._smaller_models(rows)
    names = [one.name for one in found]
    assert sorted(names) == sorted(
        ["Q=K", "K=V", "Q=V", "Q=K=V", "Q the identity", "V the identity", *["narrower heads"] * 2]
    )
    one = next(f for f in found if f.name == "Q=K=V")
    against = removal.against_narrow(one, found)  # of the nearest width of a head, in five layers
    assert against is not None
    assert against.mean == pytest.approx(0.3, abs=0.01)
    assert removal.against_narrow(one, [one]) is None
    shared, costs = removal.tying_findings(rows)
    assert (shared.measure, shared.source, [e.name for e in shared.values]) == ("tying", "tying", ["q", "k", "v"])
    values = {e.name: e for e in costs.values}
    assert (costs.measure, costs.source, costs.unit) == ("matrices", "tying", "nats")
    assert values["Q=K=V"].mean == pytest.approx(0.4, abs=0.01)
    assert values["Q=K=V minus narrower heads"].mean == pytest.approx(against.mean)
    assert "Q=K=V with" in costs.words
    assert len(drawn["tying"].panels) == 3
    assert {key.name for key in drawn["tying"].legend} == {*names, "baseline"}


def test_the_page_holds_its_sections_cards_and_escapes_words(study):
    tables, described = study
    rows = StudyRows.of(tables, described)
    odd = rows.controls.with_columns(pl.col("part").str.replace("POS at k@1", "<b>POS</b> at k@1", literal=True))
    few = [one for one in figures.collect(rows) if one.name in ("controls-pos-valid", "tying")]
    text = pages.html(tables, replace(rows, controls=odd), few)
    for anchor in ('id="controls"', 'id="tying"', "sources&#39; claims and our results"):
        assert anchor in text
    assert 'id="future"' not in text
    assert "&lt;b&gt;POS&lt;/b&gt; at k@1" in text
    assert "<b>POS</b>" not in text
    assert text.count("survives: a label drawn by chance does not do as much") == 1
    assert "Of 16 claims" in text


def test_a_claim_survives_where_every_part_does(rows):
    for readings, joint in (
        (["survives", "undecided"], "undecided"),
        (["survives", "no such effect", "undecided"], "no such effect"),
        (["does not survive", "no such effect"], "does not survive"),
        (["survives"] * 3, "survives"),
    ):
        parts = [{"claim": "A-1", "control": "control", "part": str(i), "reading": r} for i, r in enumerate(readings)]
        assert tally_survival(frame("controls", parts)) == {"control": {joint: ["A-1"]}}
    found = survivals(rows.controls, "submodules", "A-1")
    assert [one.name for one in found] == ["Control labels", "Bounded attack", "Gradient limited to this projection"]
    assert found[0].reading == "survives: a label drawn by chance does not do as much"
    assert found[1].reading == "does not survive: an attack whose loss has a floor does not do it"
    assert len(found[0].parts) == 2
    assert survivals(rows.controls, "submodules", "A-12") == ()
    assert "A-1" in tally_survival(rows.controls)["control"][SURVIVES]
    assert survival_sentence("control", {SURVIVES: ["A-1", "A-2"]}) == "Control labels: survive: A-1 and A-2."
    assert tally_survival(frame("controls", ())) == {}


def test_together_is_the_effect_of_several_less_the_sum_of_each():
    def at(site, value, seed=1):
        return Point(site, seed, value)

    points = [
        at("q@1", 0.1),
        at("k@1", 0.2),
        at("q+k@1", 0.7),
        at("q@1", 1.0, 2),
        at("q+k@1", 2.0, 2),
        at("v@1-2", 1.0),
    ]
    found = figures.together(points)
    assert [(p.site, p.seed) for p in found] == [("q+k@1", 1)]  # seed 2 lacks k@1; v@1-2 lacks its layers
    assert found[0].value == pytest.approx(0.4)
    lost = figures.together([at("q@1", 0.1)._replace(diverged=True), at("k@1", 0.2), at("q+k@1", 0.7)])
    assert lost[0].diverged


@pytest.fixture(scope="module")
def wide():
    """A study of combinations, blocks and single heads, all of them frozen."""
    names = ["q@1", "k@1", "v@1", "q+k@1", "q+k+v@1", "attn@1", "ffn@1", "q@1.h1", "q@1.h2", "k@1.h1"]
    sites = tuple(map(spec.Site.parse, names))
    base = experiment((1, 2, 3), 2, 1, ("pos",))
    whole_ = replace(base, attack=None, rewind=None, freeze=spec.Freeze(sites))
    effects = {f"freeze-{n}/{split}": 0.1 for n in ("q@1", "k@1", "v@1") for split in ("train", "valid")}
    effects |= everywhere("freeze-q+k@1", 0.5, 0.5) | everywhere("freeze-q@1.h2", 0.3, 0.3)
    tables = study_tables((1, 2, 3), 2, 1, ("pos",), effects, whole=whole_)
    return StudyRows.of({**tables, "claims": frame("claims", ())}, about(whole=whole_))


def test_single_heads_are_a_map_and_enter_no_mean_over_layers(wide):
    assert not site_position("q@1.h2").single
    assert {p.site for p in wide.effects("freeze", "valid")} == {
        "q@1",
        "k@1",
        "v@1",
        "q+k@1",
        "q+k+v@1",
        "attn@1",
        "ffn@1",
    }
    assert wide.heads is not None
    found = {one.name: one for one in figures.collect(wide)}
    assert [panel.title for panel in found["heads-freeze"].panels] == ["q: queries", "k: keys"]
    assert "Highest 0.3" in found["heads-freeze"].panels[0].alt
    assert "layer 1 head 2" in found["heads-freeze"].panels[0].alt
    compensating = found["combinations"]
    assert "Freezing: of 2 sites, 1 clear above" in compensating.caption


def test_heads_alone_are_shown_as_sites():
    rows_ = StudyRows.of({"runs": frame("runs", [{"run": "a", "edit": "freeze", "site": "q@1.h1", "seed": 1}])}, {})
    assert rows_.heads is None
    assert rows_.edit_sites == ("q@1.h1",)


def test_the_plain_attack_less_its_control_is_paired_by_seed(rows):
    found = {one.groups: one for one in figures.control_findings(rows) if one.measure == "control"}
    assert set(found) == {("pos", control) for control in VARIANTS[1:]}
    left = found["pos", "control"]
    values = {e.name: e for e in left.values}
    assert list(values) == ["q", "k", "v", "all"]
    # k@1 alone differs, by 0.2 nats, of two sites of k and of six in all
    assert values["k"].mean == pytest.approx(0.1, abs=0.005)
    assert values["all"].mean == pytest.approx(0.2 / 6, abs=0.005)
    assert values["all"].n == len(SEEDS)
    assert (left.unit, left.compared, left.source) == ("nats", None, "")
    assert "minus that by control labels, mean over the same sites: +0.03" in left.words


def test_findings_of_probes_and_erasure_have_a_number_for_each_component(rows):
    found = {one.measure: one for one in removal.removal_findings(rows)}
    assert set(found) == {"probe", "information", "erasure"}
    for one in found.values():
        assert [e.name for e in one.values] == ["q", "k", "v"]
        assert (one.groups, one.source, one.per) == (("pos",), "", "seed")
    assert found["information"].values[0].mean == pytest.approx(0.75, abs=0.02)
    erased = {e.name: e.mean for e in found["erasure"].values}
    assert erased["v"] == pytest.approx((0.08 + 0.5) / 2, abs=0.02)
    assert found["erasure"].comparison == "v largest"
    # what a probe finds at whole width ranks nothing; what erasing it costs may
    assert [found[m].compared is None for m in ("probe", "information", "erasure")] == [True, True, False]
    assert all(study_words.FULL_WIDTH_NOTE in found[m].words for m in ("probe", "information"))
