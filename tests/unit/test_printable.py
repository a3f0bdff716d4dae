"""Control characters: safe in every figure, page and line of the terminal, in one place each."""

import altair as alt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trisect.core.printable import safe, safe_data
from trisect.report import charts, render, sheet
from trisect.report.sheet import Document, write_document

BAD = ["a\x00b", "a\x01b", "a\x1b[31mb", "a\x9bb", "a\ufffeb", "a\U0001fffeb", "a\ud800b", "a\x7fb"]


@pytest.mark.parametrize("word", BAD)
def test_a_figure_with_such_a_word_is_drawn_as_svg_and_png(word):
    """The renderer ends the whole process on them, so that a failure here is an abort."""
    rows = [{"at": 1, "word": word}]
    chart = charts.overlay(word, charts.chart_of("m", rows).mark_text().encode(alt.X("at:Q"), alt.Text("word:N")))
    text = render.svg(alt.concat(chart), "x")
    assert text.count(safe(word)) >= 2  # the title and the mark
    assert word not in text
    assert render.png(text).startswith(b"\x89PNG")


def test_a_word_that_only_looks_like_rows_is_a_word():
    chart = charts.overlay('[{"\\u', charts.chart_of("m", [{"at": 1}]).mark_point().encode(alt.X("at:Q")))
    assert "<svg" in render.svg(alt.concat(chart), "x")


@pytest.mark.parametrize("word", BAD)
def test_a_page_with_such_a_word_can_be_written(word, tmp_path):
    (tmp_path / "t.html").write_text("<p>{{ word }}</p>")
    page = sheet.fill(tmp_path / "t.html", "", word=word)
    assert page == f"<p>{safe(word)}</p>"
    assert write_document(tmp_path / "page.html", Document("page.html", word)).read_text() == safe(word)


@given(st.text(alphabet=st.characters(codec=None)))
def test_what_is_safe_stays_and_is_xml(text):
    made = safe(text)
    assert safe(made) == made
    assert len(made) == len(text)
    made.encode()
    for before, after in zip(text, made, strict=True):
        allowed = before in "\t\n\r" or (before >= " " and not "\x7f" <= before <= "\x9f")
        allowed = allowed and not "\ud800" <= before <= "\udfff" and ord(before) & 0xFFFE != 0xFFFE
        assert (before == after) == allowed


def test_two_controls_stay_two_and_data_are_safe_inside():
    assert safe("\x00\x1b\x7f") == "␀␛␡"
    assert safe_data({"a\x00": ["\x1b", 1, None, True, ["x\x00"]]}) == {"a␀": ["␛", 1, None, True, ["x␀"]]}
