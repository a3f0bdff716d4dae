"""An alignment's page in a browser: no request, no complaint, no sideways scroll, drawings named, shapes beside colours."""

from __future__ import annotations

import pytest
from tests import aligned
from tests.accessible import barriers

from trisect.experiments.align import page as alignment
from trisect.report.sheet import html

pytestmark = pytest.mark.browser

LONG = "a-word-without-any-place-to-break-it-" * 3


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> str:
    scored = aligned.planted((0.5, 0.6), (0.8, 0.7), models=3)
    about = aligned.about(scored, corpus=LONG)
    for side in ("source", "target"):
        about.facts.pictures[0][side] = [LONG, *about.facts.pictures[0][side][1:]]
    path = tmp_path_factory.mktemp("alignment") / "report.html"
    path.write_text(html(alignment.page(aligned.tables(scored), about)), encoding="utf-8")
    return path.as_uri()


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1920, "light")])
def test_it_fits_and_every_drawing_is_there_and_named(opened, width, scheme):
    tab = opened(width, scheme)
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    drawings = tab.locator("figure .panel > svg")
    assert drawings.count() == 2 + 4 + 2 + 3  # error rates, heads, lengths, sentence pairs
    names = [drawings.nth(i).get_attribute("aria-label") for i in range(drawings.count())]
    assert all(name and len(name) > 40 for name in names)
    boxes = "[...document.querySelectorAll('.panel')].map(p => [p.scrollWidth > p.clientWidth + 1, p.tabIndex])"
    assert all(index == 0 for scrolls, index in tab.evaluate(boxes) if scrolls)


def test_the_card_counts_models_and_the_table_can_be_reached_by_keyboard(opened):
    tab = opened(360)
    tab.evaluate("document.querySelectorAll('.part, .more').forEach(one => (one.open = true))")
    assert tab.locator(".card dt").all_inner_texts()[:2] == ["Models (n)", "Models needed"]
    boxes = "[...document.querySelectorAll('.scroll')].map(b => [b.scrollWidth > b.clientWidth + 1, b.tabIndex])"
    found = tab.evaluate(boxes)
    assert found
    assert all(index == 0 for scrolls, index in found if scrolls)


def test_weight_and_norm_have_a_shape_of_their_own_beside_their_colour(opened):
    tab = opened()
    shapes = tab.locator("#error-rates .key svg > *")
    drawn = [shapes.nth(i).evaluate("e => e.tagName + (e.getAttribute('d') ?? '')") for i in range(2)]
    assert len(set(drawn)) == 2


def test_words_of_a_pair_stand_beside_its_cells(opened):
    tab = opened()
    said = tab.locator("#sentence-pairs .panel > svg").nth(1).locator("text").all_text_contents()
    assert [said.count(word) for word in "abcde"] == [2] * 5


def test_axe_finds_no_barrier(opened):
    assert barriers(opened()) == []
