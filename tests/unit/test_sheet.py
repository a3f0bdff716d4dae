"""The sheet: every word stands on it as text, nothing is fetched or run, and the same sheet gives the same bytes."""

from __future__ import annotations

import re
from dataclasses import replace

import altair as alt
import numpy as np
import pytest
from tests.unit.test_sampled_claims import claim, drawn, part, source

from trisect.claims import judge_sampled
from trisect.core.errors import StudyError
from trisect.report.panels import Figure, Key, Panel
from trisect.report.sheet import SHORT, Section, Sheet, Table, html, write_sheet

NASTY = "<script>alert('x')</script>&\"</svg>"


def figure(name: str = "fig") -> Figure:
    data = alt.InlineData(values=[{"x": 1, "y": 2}])
    chart = alt.LayerChart(layer=[alt.Chart(data).mark_point().encode(x="x:Q", y="y:Q")])
    panel = Panel(NASTY, chart, NASTY, (), {})
    ramp = (0.0, 1.0, NASTY)
    return Figure(name, NASTY, NASTY, NASTY, (panel,), (Key(NASTY, "#56B4E9", "square"), Key("l", "#000000")), ramp)


def sheet() -> Sheet:
    table = judge_sampled(
        source(claim("X-1", part("a", bound=0.5), part("b", decides=False))),
        {"a": drawn(1.0, 0.1), "b": np.ones(10)},
        {"a": 1.0, "b": 1.0},
        40,
        {},
    )
    rows = (Table((NASTY, NASTY), ((NASTY, NASTY),), NASTY), Table(("a",), (("b",),) * (SHORT + 1)))
    section = Section(NASTY, (NASTY,), (figure(),), rows, table)
    return Sheet(NASTY, NASTY, NASTY, (section, Section("Bare")), ((NASTY, NASTY),), (NASTY,))


def test_every_word_is_text_and_nothing_is_run_or_fetched():
    page = html(sheet())
    assert "<script" not in page
    assert page.count("&lt;script&gt;") > 12
    assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page
    assert not re.findall(r'(?:src|href)="(?!#|data:,)', page.replace('xlink:href="#', ""))
    assert "url(http" not in page
    for tag in ("section", "figure", "table", "article", "main", "details"):
        assert page.count(f"<{tag}") == page.count(f"</{tag}>")


def test_what_is_there_is_shown_and_what_is_not_leaves_no_empty_heading():
    page = html(sheet())
    assert page.count("<details") == 1
    assert 'id="X-1"' in page
    assert "(shown, does not decide)" in page
    assert "Texts (n)" in page
    assert "How to reproduce" in page
    bare = html(Sheet("t", "k", "l", (Section("s"),)))
    assert not [w for w in ("How to reproduce", "References", "<figure", "<table", "<article") if w in bare]


def test_the_same_sheet_gives_the_same_bytes_and_files(tmp_path):
    first, second = write_sheet(tmp_path / "a", sheet()), write_sheet(tmp_path / "b", sheet())
    assert first.read_bytes() == second.read_bytes()
    assert first == tmp_path / "a" / "report.html"
    for name in ("fig.svg", "fig.png"):
        assert (tmp_path / "a/figures" / name).read_bytes() == (tmp_path / "b/figures" / name).read_bytes()
    other = write_sheet(tmp_path / "a", replace(sheet(), title="other"))
    assert other.read_bytes() != second.read_bytes()


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StudyError, match="could not be written"):
        write_sheet(tmp_path / "file", sheet())
