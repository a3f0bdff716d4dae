"""Recall's page in a browser: no request, no complaint, no sideways scroll, drawings named, tables that open by keyboard."""

from __future__ import annotations

import pytest
from tests import recalled
from tests.accessible import barriers

from trisect.experiments.recall import page as recall
from trisect.report.sheet import html

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> str:
    long = [("a-name-without-any-place-to-break-it-" * 3, (0.02,), (0.2,))]
    about = recalled.about(references=long, examples=True, notes=["A note."])
    path = tmp_path_factory.mktemp("recall") / "report.html"
    path.write_text(html(recall.page(recalled.tables((1, 2)), about)), encoding="utf-8")
    return path.as_uri()


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1920, "light")])
def test_it_fits_and_every_drawing_is_there_and_named(opened, width, scheme):
    tab = opened(width, scheme)
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    drawings = tab.locator("figure .panel > svg")
    assert drawings.count() == 13
    names = [drawings.nth(i).get_attribute("aria-label") for i in range(drawings.count())]
    assert all(name and len(name) > 40 for name in names)
    boxes = "[...document.querySelectorAll('.panel')].map(p => [p.scrollWidth > p.clientWidth + 1, p.tabIndex])"
    assert all(index == 0 for scrolls, index in tab.evaluate(boxes) if scrolls)


def test_no_table_is_cut_off_on_a_narrow_screen(opened):
    tab = opened(360)
    tab.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    boxes = "[...document.querySelectorAll('.scroll')].map(b => [b.ariaLabel, b.scrollWidth - b.clientWidth])"
    found = tab.evaluate(boxes)
    assert len(found) > 5
    # a name without a place to break is scrolled to; whatever else there is stands within the screen
    assert [label for label, over in found if over > 0 and not label.startswith("What others reached")] == []


def test_what_the_examples_were_is_folded_until_it_is_asked_for(opened):
    tab = opened()
    cell = tab.get_by_role("cell", name="guessed: in no text").first
    assert not cell.is_visible()
    tab.evaluate("document.querySelectorAll('.part, .more').forEach(one => (one.open = true))")
    tab.get_by_text("What they were", exact=True).focus()
    tab.keyboard.press("Enter")
    assert cell.is_visible()


def test_marks_of_a_model_have_a_shape_of_their_own_beside_their_colour(opened):
    tab = opened()
    shapes = tab.locator("#recall-accuracy .key svg > *")
    drawn = {shapes.nth(i).get_attribute("d") for i in range(3)}
    assert len(drawn) == 3
    assert None not in drawn


def test_axe_finds_no_barrier(opened):
    tab = opened()
    assert barriers(tab) == []
    tab.emulate_media(color_scheme="dark", media="screen")
    assert barriers(tab, "dark") == []
