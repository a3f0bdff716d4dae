"""The page of a world's study: 'Which methods find the known roles?' follows the answer, and no width cuts a table off."""

from __future__ import annotations

import pytest
from tests import pages
from tests.accessible import barriers
from tests.unit.test_planted import QUICK, perfect, tables

from trisect.claims import judge
from trisect.core.spec import StudyAbout, to_json_data
from trisect.experiments.study.rows import StudyRows

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> str:
    made, about = tables(perfect), StudyAbout(corpus={"name": "roles"}, experiment=to_json_data(QUICK[0]))
    made["claims"] = judge(made, about)
    rows = StudyRows.of(made, about)
    path = tmp_path_factory.mktemp("planted") / "report.html"
    path.write_text(pages.html(made, rows, []), encoding="utf-8")
    return path.as_uri()


def test_the_section_follows_the_answer_its_tables_stay_within_the_page_and_what_is_planted_is_marked(opened):
    tab = opened(360)
    heads = tab.locator("main h2")
    assert [heads.nth(i).inner_text() for i in (0, 3)] == ["The answer", "Which methods find the known roles?"]
    tab.evaluate("document.querySelectorAll('.part, .more').forEach(one => (one.open = true))")
    for width in (360, 768, 1280):
        tab.set_viewport_size({"width": width, "height": 900})
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        for name in ("methods", "interchange", "cells", "sites"):
            table = tab.locator(f"#planted-{name}")
            assert table.is_visible()
            assert table.locator("tbody tr").count() > 0
    names = tab.locator("#planted-cells thead th").all_inner_texts()
    assert sum("●" in name for name in names) == 3
    assert len(names) == 10
    assert barriers(tab, "dark") == []
