"""The sheet: every word stands on it as text, nothing is fetched or run, and the same sheet gives the same bytes."""

from __future__ import annotations

import hashlib
import re
from base64 import b64decode
from dataclasses import replace
from typing import get_args

import altair as alt
import numpy as np
import pytest
from jinja2 import UndefinedError
from tests.unit.test_sampled_claims import claim, drawn, part, source

from trisect.claims import judge_by_draws
from trisect.report import render
from trisect.report import sheet as report_sheet
from trisect.report.charts import Figure, LegendEntry, Panel
from trisect.report.sheet import (
    UNFOLDED_ROWS,
    Bullets,
    Code,
    Document,
    Facts,
    PageBlock,
    Picture,
    Requirement,
    Requirements,
    Section,
    Sheet,
    Strip,
    Table,
    TextBlock,
    Verdicts,
    html,
    write_page,
)

NASTY = "<script>alert('x')</script>&\"</svg>"


def figure(name: str = "fig") -> Figure:
    data = alt.InlineData(values=[{"x": 1, "y": 2}])
    chart = alt.LayerChart(layer=[alt.Chart(data).mark_point().encode(x="x:Q", y="y:Q")])
    panel = Panel(NASTY, chart, NASTY, (), {})
    ramp = (0.0, 1.0, NASTY)
    return Figure(
        name,
        NASTY,
        NASTY,
        NASTY,
        (panel,),
        (LegendEntry(NASTY, "#56B4E9", "square"), LegendEntry("l", "#000000")),
        ramp,
    )


def sheet() -> Sheet:
    table = judge_by_draws(
        source(claim("X-1", part("a", bound=0.5), part("b", decides=False))),
        {"a": drawn(1.0, 0.1), "b": np.ones(10)},
        {"a": 1.0, "b": 1.0},
        40,
        {},
    )
    rows = (Table((NASTY, NASTY), ((NASTY, NASTY),), NASTY), Table(("a",), (("b",),) * (UNFOLDED_ROWS + 1)))
    section = Section(NASTY, (NASTY,), (figure(),), rows, table)
    return Sheet(NASTY, NASTY, NASTY, (section, Section("Bare")), ((NASTY, NASTY),), (NASTY,))


def test_every_word_is_text_and_nothing_is_run_or_fetched():
    page = html(sheet())
    scripts = re.findall(r"<script[^>]*>", page)
    assert scripts == [
        '<script type="application/json">',
        "<script>",
    ]  # numbers of the figure, and the page's own, by its hash
    assert page.count("</script>") == 2
    assert "alert('x')" not in page
    assert page.count("&lt;script&gt;") > 12
    assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page
    assert not re.findall(r'(?:src|href)="(?!#|data:,)', page.replace('xlink:href="#', ""))
    assert "url(http" not in page
    for tag in ("section", "figure", "table", "article", "main", "details"):
        assert page.count(f"<{tag}") == page.count(f"</{tag}>")


def test_what_is_there_is_shown_and_what_is_not_leaves_no_empty_heading():
    page = html(sheet())
    # the figure, two tables, the card and the rules of verdicts, a bare section, how to reproduce, and references
    assert page.count("<details") == 8
    assert 'id="X-1"' in page
    assert "(shown, does not decide)" in page
    assert "Texts (n)" in page
    assert "How to reproduce" in page
    bare = html(Sheet("t", "k", "l", (Section("s"),)))
    assert not [w for w in ("How to reproduce", "References", "<figure", "<table", "<article") if w in bare]


def test_the_same_sheet_gives_the_same_bytes_and_files(tmp_path):
    first, second = write_page(tmp_path / "a", sheet()), write_page(tmp_path / "b", sheet())
    assert first.read_bytes() == second.read_bytes()
    assert first == tmp_path / "a" / "report.html"
    for name in ("fig.svg", "fig.png"):
        assert (tmp_path / "a/figures" / name).read_bytes() == (tmp_path / "b/figures" / name).read_bytes()
    other = write_page(tmp_path / "a", replace(sheet(), title="other"))
    assert other.read_bytes() != second.read_bytes()


def test_a_document_lies_under_its_own_name_with_its_figures(tmp_path):
    figure = next(figure for section in sheet().sections for figure in section.figures)
    page = write_page(tmp_path, Document("other.html", "<p>ä</p>", (figure,)))
    assert page == tmp_path / "other.html"
    assert page.read_text(encoding="utf-8") == "<p>ä</p>"
    drawn = {path.name: path.read_bytes() for path in (tmp_path / "figures").iterdir()}
    assert drawn.keys() == {f"{figure.name}.svg", f"{figure.name}.png"}
    write_page(tmp_path / "sheet", sheet())
    for name, content in drawn.items():
        assert (tmp_path / "sheet" / "figures" / name).read_bytes() == content


def test_a_template_has_style_script_and_the_hash_of_that_script(tmp_path):
    (tmp_path / "a.js").write_text("const a = '<b>';\n")
    (tmp_path / "page.html").write_text("{{ style }}|{{ script }}|{{ script_hash }}|{{ name }}|{{ 1234 | count }}")
    script = report_sheet.wrap_scripts(tmp_path / "a.js")
    assert script == "\"use strict\";\n(() => {\nconst a = '<b>';\n})();\n"
    said = report_sheet.fill(tmp_path / "page.html", "a > b {}", script, name="<i>").split("|")
    assert said[:2] == ["a > b {}", script]
    assert b64decode(said[2]) == hashlib.sha256(script.encode()).digest()
    assert said[3:] == ["&lt;i&gt;", "1\u202f234"]
    with pytest.raises(UndefinedError):
        report_sheet.fill(tmp_path / "page.html", "")


def test_blocks_of_every_kind_stand_on_the_page_in_their_order():
    table = Table(("name", "n"), (("rows", "7"),), "A table of its own", label="seven")
    blocks = (
        TextBlock("A paragraph", "quiet", "place"),
        Bullets(("One point",), "Points"),
        Requirements((Requirement(False, "A need", "It must be.", "0.1"),)),
        table,
        Code("trisect study"),
        Facts((("Seeds", "1 and 2"),)),
    )
    page = html(Sheet("Title", "kicker", "lede", (Section("First"), Section("Part", ("First words",), blocks=blocks))))
    said = [
        "First words",
        "A paragraph",
        "One point",
        "Check failed: A need",
        "A table of its own",
        "trisect study",
        "1 and 2",
    ]
    places = [page.index(text) for text in said]
    assert places == sorted(places)
    assert '<p class="quiet" id="place">A paragraph</p>' in page
    assert {type(block) for block in blocks} | {Picture, Section, Strip, Verdicts} == set(get_args(PageBlock))


def test_a_folded_figure_waits_behind_its_title():
    shown, folded = (
        html(Sheet("T", "k", "l", (Section("Part", blocks=(Picture(figure(), folded=one),)),))) for one in (False, True)
    )
    assert "<summary>" not in shown
    assert folded.count("<summary>") == 1
    assert folded.index("<details") < folded.index("<figure") < folded.index("</details>")


def test_a_legend_stands_above_the_title_of_the_axis():
    made = render.theme().to_dict()
    size = made["axisY"].get("titleFontSize", made["axis"]["titleFontSize"])
    assert made["legend"]["offset"] >= size - made["axisY"]["titleY"]
