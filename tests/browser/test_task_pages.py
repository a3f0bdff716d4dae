"""Pages of recall and of an alignment in a browser: no request, no complaint, no sideways scroll, drawings named, shapes beside colours."""

from __future__ import annotations

import pytest
from tests import aligned, recalled
from tests.accessible import check_page, check_width

from trisect.experiments.align import page as alignment
from trisect.experiments.recall import page as recall
from trisect.report.sheet import html

pytestmark = pytest.mark.browser

LONG = "a-word-without-any-place-to-break-it-" * 3
DRAWINGS = {"recall": 9, "alignment": 2 + 4 + 2 + 1}  # of an alignment error rates, heads, lengths, a sentence pair
OF = {name: pytest.mark.parametrize("address", [name], indirect=True) for name in DRAWINGS}
BOTH = pytest.mark.parametrize("address", DRAWINGS, indirect=True)


@pytest.fixture(scope="module")
def addresses(tmp_path_factory) -> dict[str, str]:
    about = recalled.about(references=[(LONG, (0.02,), (0.2,))], notes=["A note."])
    scored = aligned.planted((0.5, 0.6), (0.8, 0.7), models=3)
    pairs = aligned.about(scored, corpus=LONG)
    assert pairs.facts.picture is not None
    for side in ("source", "target"):
        pairs.facts.picture[side] = [LONG, *pairs.facts.picture[side][1:]]
    pages = {
        "recall": recall.page(recalled.tables((1, 2)), about),
        "alignment": alignment.page(aligned.tables(scored), pairs),
    }
    folder = tmp_path_factory.mktemp("pages")
    for name, page in pages.items():
        (folder / f"{name}.html").write_text(html(page), encoding="utf-8")
    return {name: (folder / f"{name}.html").as_uri() for name in pages}


@pytest.fixture
def address(request, addresses) -> str:
    return addresses[request.param]


@BOTH
def test_it_fits_its_drawings_are_named_and_axe_finds_no_barrier(opened, request):
    check_page(opened, DRAWINGS[request.node.callspec.params["address"]])


@OF["recall"]
def test_no_table_is_cut_off_on_a_narrow_screen(opened):
    tab = opened(360)
    tab.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    boxes = "[...document.querySelectorAll('.scroll')].map(b => [b.ariaLabel, b.scrollWidth - b.clientWidth])"
    found = tab.evaluate(boxes)
    assert len(found) > 5
    # a name without a place to break is scrolled to; whatever else there is stands within the screen
    assert [label for label, over in found if over > 0 and not label.startswith("What others reached")] == []


@pytest.mark.parametrize(
    ("address", "figure", "count"),
    [("recall", "recall-accuracy", 3), ("alignment", "error-rates", 2)],
    indirect=["address"],
)
def test_marks_have_a_shape_of_their_own_beside_their_colour(opened, figure, count):
    shapes = opened().locator(f"#{figure} .key svg > *")
    looks = [shapes.nth(i).evaluate("e => e.tagName + (e.getAttribute('d') ?? '')") for i in range(count)]
    assert len(set(looks)) == count


@OF["alignment"]
def test_the_card_counts_models_and_the_table_can_be_reached_by_keyboard(opened):
    tab = opened(360)
    tab.evaluate("document.querySelectorAll('.part, .more').forEach(one => (one.open = true))")
    assert tab.locator(".card dt").all_inner_texts()[:2] == ["Models (n)", "Models needed"]
    assert tab.locator(".scroll").count()
    check_width(tab, 360)


@OF["alignment"]
def test_words_of_a_pair_stand_beside_its_cells(opened):
    said = opened().locator("#sentence-pair .panel > svg").locator("text").all_text_contents()
    assert [said.count(word) for word in "bcde"] == [2] * 4
