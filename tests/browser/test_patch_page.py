"""An interchange's page in a browser: no request, no complaint, no sideways scroll, drawings named, the text pair legible."""

from __future__ import annotations

import re

import pytest
from tests import interchanged
from tests.accessible import barriers, check_names, check_width

import trisect

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> str:
    model = trisect.load(interchanged.recaller(), tokenizer=interchanged.tokenizer())
    pairs = [
        {"base": b.text, "donor": d.text, "answers": interchanged.predicted(b, d)} for b, d in interchanged.facts(12)
    ]
    out = tmp_path_factory.mktemp("patch")
    sites = ("q@all", "k@all", "v@all")
    done = trisect.patch(
        model, pair_list=pairs, sites=sites, per="head", how="both", positions="differ", out=out, quiet=True
    )
    return done.report.as_uri()


@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (1280, "dark")])
def test_it_fits_and_every_drawing_is_there_and_named(opened, width, scheme):
    tab = opened(width, scheme)
    check_width(tab, width)
    drawings = tab.locator("figure .panel > svg")
    assert drawings.count() == 2 * 2 * 3 + 1  # directions, numbers, components; and the texts
    check_names(drawings)


def test_both_texts_stand_in_the_drawing_with_what_is_patched(opened):
    tab = opened()
    base, donor = interchanged.facts(1)[0]
    drawn = tab.locator("#text-pair .panel > svg")
    words = drawn.locator("text").all_text_contents()
    assert all(words.count(word) >= 2 for word in base.text.split()[:-1])
    differing = sum(a != b for a, b in zip(base.text.split(), donor.text.split(), strict=True))
    assert "Patched: positions " in (drawn.get_attribute("aria-label") or "")
    assert (drawn.get_attribute("aria-label") or "").rpartition("positions ")[2].count(",") == differing - 1
    tab.evaluate("document.querySelectorAll('details').forEach(one => (one.open = true))")
    assert "q+k+v patched" in tab.locator("#text-pair .key").inner_text()


def contrast(one: str, other: str) -> float:
    """WCAG's contrast of two colours as the browser spells them."""

    def bright(colour: str) -> float:
        shares = [int(n) / 255 for n in re.findall(r"\d+", colour)[:3]]
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in shares]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] + 0.05

    low, high = sorted((bright(one), bright(other)))
    return high / low


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_tokens_can_be_read_in_their_boxes_in_light_and_dark(opened, scheme):
    """axe does not look into drawings."""
    fills = "part => [...document.querySelectorAll(`#text-pair .panel ${part}`)].map(e => getComputedStyle(e).fill)"
    tab = opened(1280, scheme)
    boxes, words = (
        set(tab.evaluate(fills, part)) for part in ('[class*="mark-rect"] path', '[class*="mark-text"] text')
    )
    assert len(boxes) == len(words) == 2
    assert min(contrast(box, word) for box in boxes for word in words) > 4.5


def test_axe_finds_no_barrier(opened):
    tab = opened()
    assert barriers(tab) == []
    assert barriers(tab, "dark") == []
