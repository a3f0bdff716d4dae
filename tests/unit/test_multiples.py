"""Small multiples: a panel for each finding with numbers of components, and every sentence in the table below."""

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trisect.core.finding import Estimate, Finding
from trisect.report.charts import few_ticks, with_numbers
from trisect.report.render import mark
from trisect.report.sheet import sentences, small_multiples

pytestmark = pytest.mark.usefixtures("undrawn")  # pages without drawings, which take most of the time

FREEZING = Finding(
    "freezing",
    "highest at v@1.",
    "nats",
    (Estimate("v", 0.3, 0.1, 0.5, 3), Estimate("q", -0.1), Estimate("k", 0.2, 0.19, 0.21, 3)),
    title="Freezing",
)
SITES = Finding("largest", "at v@6.", "nats", (Estimate("v@6", 0.3), Estimate("k@2", 0.1)), title="Sites")
ALONE = Finding("one", "of v alone.", "nats", (Estimate("v", 0.3), Estimate("q", None)), what="alone")


def test_a_panel_for_each_finding_of_components_with_its_numbers():
    drawn = small_multiples("short", "Method by method", "n = 3.", (FREEZING, SITES, ALONE))
    assert drawn is not None
    assert [panel.title for panel in drawn.panels] == ["Freezing"]
    assert [entry.name for entry in drawn.legend] == ["q", "k", "v", "0"]
    assert drawn.panels[0].alt == "Freezing, in nats: q −0.100, k +0.200, v +0.300."
    (panel,) = with_numbers(drawn).panels
    values = {one.site: (one.values, one.low, one.high) for one in panel.series}
    assert values == {
        "q": ((-0.1,), (None,), (None,)), "k": ((0.2,), (0.19,), (0.21,)), "v": ((0.3,), (0.1,), (0.5,))
    }  # fmt: skip
    assert small_multiples("short", "t", "c", (SITES, ALONE)) is None


def test_panels_of_one_name_say_what_each_is_about():
    alike = [
        Finding("control", f"of {g}.", "nats", FREEZING.values, title="Controls", groups=(g, "bounded")) for g in "ab"
    ]
    drawn = small_multiples("short", "t", "c", (FREEZING, *alike))
    assert drawn is not None
    assert [panel.title for panel in drawn.panels] == ["Freezing", "Controls: a, bounded", "Controls: b, bounded"]
    table = sentences(alike)
    assert table is not None
    assert [name for name, _ in table.rows] == ["Controls: a, bounded", "Controls: b, bounded"]


def test_the_axis_holds_zero_and_the_intervals_that_do_not_dwarf_the_numbers():
    wide = Finding("f", "w", "nats", (Estimate("q", 0.03, 0.02, 0.05), Estimate("k", 0.032, -9.0, 9.0)), title="t")
    drawn = small_multiples("short", "t", "c", (wide,))
    assert drawn is not None
    (low, high) = drawn.panels[0].chart.to_dict(validate=False)["layer"][0]["encoding"]["x"]["scale"]["domain"]
    assert -0.1 < low < 0 < 0.05 < high < 0.1
    assert drawn.caption == "c 2 ends of intervals reach beyond the frame."
    near = small_multiples("short", "t", "c", (FREEZING,))
    assert near is not None
    assert near.caption == "c"


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6), st.integers(2, 6))
@example(879609.9999999999, 1.0000000000000002e-06, 6)
def test_ticks_are_few_round_and_inside(low, span, most):
    ticks = few_ticks(low, low + span, most)
    assert 1 <= len(ticks) <= most
    assert all(low <= t <= low + span for t in ticks)
    gaps = [b - a for a, b in pairwise(ticks)]
    assert all(gap >= span / (most + 1) * 0.99 for gap in gaps)


def test_labels_of_a_small_panel_do_not_touch():
    assert few_ticks(-0.0165, 0.0015, 3) == (-0.01, 0.0)
    assert few_ticks(-0.4, 0.6, 3) == (0.0, 0.5)
    assert few_ticks(0.0, 6.0, 3) == (0.0, 5.0)


def test_every_sentence_stands_in_a_folded_table():
    table = sentences((FREEZING, SITES, ALONE))
    assert table is not None
    assert table.is_folded
    assert table.rows == (("Freezing", "highest at v@1."), ("Sites", "at v@6."), ("alone", "of v alone."))
    assert sentences(()) is None


def test_pairs_that_are_compared_have_signs_of_their_own():
    looks = {mark(pair) for pair in ("q-k", "k-v", "q-v")}
    assert len(looks) == 3
    assert mark("q-k") == mark("q+k")
    assert mark("v-o") == mark("anything")
