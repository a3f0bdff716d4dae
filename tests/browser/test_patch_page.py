"""An interchange's page in a browser: no request, no complaint, no sideways scroll, drawings named."""

from __future__ import annotations

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
    assert drawings.count() == 2 * 2 * 3  # directions, numbers, components
    check_names(drawings)


def test_axe_finds_no_barrier(opened):
    tab = opened()
    assert barriers(tab) == []
    assert barriers(tab, "dark") == []
