"""An interchange's page in a browser: no request, no complaint, no sideways scroll, drawings named."""

from __future__ import annotations

import pytest
from tests import interchanged
from tests.accessible import check_page

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


def test_it_fits_its_drawings_are_named_and_axe_finds_no_barrier(opened):
    check_page(opened, 2 * 2 * 3)  # directions, numbers, components
