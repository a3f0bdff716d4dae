"""The page of all four sources in a browser: no request, no complaint, no sideways scroll, one table that can be read."""

from __future__ import annotations

import polars as pl
import pytest
from tests import aligned
from tests.accessible import check_page
from tests.controlled import made
from tests.unit import test_lookup_page as lookups

from trisect.core.finding import About, Finding
from trisect.experiments.align import page as alignment_page
from trisect.experiments.dissect import page as dissect
from trisect.experiments.dissect import parts as dissect_parts
from trisect.experiments.dissect.page import Line, as_table
from trisect.experiments.dissect.settings import DissectFacts, PartFacts
from trisect.experiments.study.page import with_verdicts
from trisect.experiments.study.rows import StudyRows
from trisect.report.format import Mean
from trisect.report.sheet import Sheet, StudyLink, html, present, with_links

pytestmark = pytest.mark.browser

LONG = "a-name-without-any-place-to-break-it-" * 3
TITLES = {*dissect_parts.KINDS.values(), "Alignment", "Ablation", "Norms", "Similarity", "Recall"}
EFFECTS = {"attack-pos-v@1/valid": 0.5, "attack-pos-q@1/valid": 0.1, "rewind-v@2": 0.9}


@pytest.fixture(scope="module")
def lines() -> list[Line]:
    tables, about = made(EFFECTS, (1, 2, 3))
    scored = aligned.planted((0.5, 0.6), (0.8, 0.7), models=2)
    aligned_findings = alignment_page.findings(aligned.tables(scored), aligned.about(scored))
    lines = present(
        *dissect_parts.training_lines([with_verdicts(StudyRows.of(tables, about))]),
        *dissect_parts.alignment_lines([aligned_findings]),
    )
    found = [line._replace(link="training/report.html") for line in lines]
    means = {c: Mean(x, x - 0.01, x + 0.01, 3) for c, x in zip("qkv", (0.1, 0.2, 0.6), strict=True)}
    missing = TITLES - {line.title for line in found}
    assert missing <= {"All layers at once", "Ablation", "Ablation in the study", "Norms", "Similarity", "Recall"}
    return [
        *found,
        *(Line(kind.lower(), "norms", LONG, "nats", means, words=LONG, link="x.html") for kind in sorted(missing)),
    ]


@pytest.fixture(scope="module")
def address(lines, tmp_path_factory) -> str:
    tables, _ = made(EFFECTS, (1, 2, 3))
    judged = tables["claims"], aligned.tables(aligned.planted((0.5, 0.6), (0.8, 0.7)))["claims"]
    asked, said = (tuple(table["claim"].unique(maintain_order=True)) for table in judged)
    attack, laws = Finding("attack", f"{LONG}.", title="Findings"), Finding("laws", "A finding.")
    shown = lookups.tables()
    parts = (
        PartFacts("lookup", "Looking up", "What do q, k and v say?", lookups.answers(shown), ("G-1",), {}),
        PartFacts("attacks", "Attacks", "What happens?", (attack,), asked, {"the study": "study.html"}),
        PartFacts("norms", "Norms", "Weights alone?", (Finding("aer", "Said after."),), said, {}),
        PartFacts("hand", "By hand", "What can it do?", (laws,), (), {"theory": "theory.html", LONG: "recall.html"}),
    )
    facts = DissectFacts(parts, "3 language models")
    about = About("dissect", f"trisect dissect --out {LONG}", 61.4, (LONG,), {"trisect": "0.1.0"}, None, facts)
    page = dissect.page({**shown, "claims": pl.concat(judged), "evidence": as_table(lines)}, about)
    links = (
        StudyLink("Here", "", True),
        StudyLink("Norms", "n.html", models=(("seed 1", "n.html"), ("seed 2", "m.html"))),
    )
    page = with_links(page, links)
    assert isinstance(page, Sheet)
    path = tmp_path_factory.mktemp("dissect") / "report.html"
    path.write_text(html(page), encoding="utf-8")
    return path.as_uri()


def test_it_fits_its_picture_is_named_and_axe_finds_no_barrier(opened):
    check_page(opened)


def test_every_line_of_evidence_and_every_claim_is_read_in_its_section(opened, lines):
    tab = opened()
    tab.evaluate("document.querySelectorAll('.part').forEach(one => (one.open = true))")
    cells = tab.get_by_role("rowheader")
    names = [cells.nth(i).inner_text() for i in range(cells.count()) if cells.nth(i).is_visible()]
    assert {line.title for line in lines} == TITLES
    assert set(names) >= TITLES
    wholes = made(EFFECTS, (1, 2, 3))[0]["claims"].filter(pl.col("part").is_null(), pl.col("verdict") != "not tested")
    assert wholes.height > 10
    assert {*wholes["claim"], "C-5"} <= set(names)
    assert tab.get_by_text("Said after.").is_visible()


def test_the_first_screen_has_a_pair_in_four_lines_and_a_sentence_for_each_of_q_k_and_v(opened):
    tab = opened(360)
    assert tab.locator(".answer").is_visible()
    answer = tab.locator("#short-answer")
    names = answer.get_by_role("rowheader")
    assert [names.nth(i).inner_text() for i in range(4)] == ["base", "donor", "predicted", "came"]
    assert [answer.get_by_text(f"with the donor's {c}, ").count() for c in "qkv"] == [1, 1, 1]


def test_marks_of_any_page_are_read_by_pointer_and_keys(opened):
    tab = opened()
    panel = tab.locator("#lookup-roles .panel").first
    panel.focus()
    tab.keyboard.press("ArrowRight")
    assert tab.locator("#tip").inner_text().split("\n")[1] == "q"
    mark = panel.locator(".main_marks > path").first
    box = mark.bounding_box()
    tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert tab.locator("#tip").inner_text().split("\n")[1] == "q"
    tab.locator("#lookup-roles").get_by_role("button", name="q", exact=True).click()
    assert not mark.is_visible()
    assert {f"Save {kind}" for kind in ("SVG", "PNG", "CSV", "LaTeX")} <= set(
        tab.locator(".save button").all_inner_texts()
    )


def test_links_lead_to_the_pages_beside_it_and_can_be_reached_by_keyboard(opened):
    tab = opened(360)
    tab.evaluate("document.querySelectorAll('details').forEach(one => (one.open = true))")
    links = tab.locator("main a[href$='.html']")
    targets = {links.nth(i).get_attribute("href") for i in range(links.count())}
    assert {"study.html", "theory.html", "recall.html", "training/report.html", "x.html"} <= targets
    links.first.focus()
    assert tab.evaluate("document.activeElement.getAttribute('href')") == "theory.html"  # from the first screen
