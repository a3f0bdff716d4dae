"""The page of all four sources in a browser: no request, no complaint, no sideways scroll, one table that can be read."""

from __future__ import annotations

import pytest
from tests import aligned
from tests.controlled import made

from trisect.core.finding import Finding
from trisect.experiments.dissect import model_evidence
from trisect.experiments.dissect import page as dissect
from trisect.experiments.dissect.evidence import KINDS, Line
from trisect.experiments.dissect.page import SourceFindings
from trisect.experiments.dissect.study_evidence import study_lines
from trisect.experiments.study.findings import with_verdicts
from trisect.experiments.study.rows import StudyRows
from trisect.report.points import Mean
from trisect.report.sheet import html

pytestmark = pytest.mark.browser

LONG = "a-name-without-any-place-to-break-it-" * 3
EFFECTS = {"attack-pos-v@1/valid": 0.5, "attack-pos-q@1/valid": 0.1, "rewind-v@2": 0.9}


@pytest.fixture(scope="module")
def lines() -> list[Line]:
    tables, about = made(EFFECTS, (1, 2, 3))
    found = study_lines(with_verdicts(StudyRows.of(tables, about)), "training/report.html")
    alignment = aligned.tables(aligned.planted((0.5, 0.6), (0.8, 0.7), models=2))["measures"]
    found += [
        line
        for line in [model_evidence.alignment_line(alignment, {"C-5": "supported"}, "alignment/report.html")]
        if line
    ]
    q, k, v = (Mean(x, x - 0.01, x + 0.01, 3) for x in (0.1, 0.2, 0.6))
    missing = set(KINDS) - {line.kind for line in found}
    assert missing <= {"ablation", "norms", "similarity", "recall"}
    return [
        *found,
        *(Line(kind, "norms", LONG, "nats", q, k, v, words=LONG, link="x.html") for kind in sorted(missing)),
    ]


@pytest.fixture(scope="module")
def address(lines, tmp_path_factory) -> str:
    tables, _ = made(EFFECTS, (1, 2, 3))
    claims = aligned.tables(aligned.planted((0.5, 0.6), (0.8, 0.7)))["claims"]
    asked = (
        SourceFindings(
            "Attacks",
            "What happens?",
            (Finding("attack", f"{LONG}.", title="Findings"),),
            tables["claims"],
            (("the study", "study.html"),),
        ),
        SourceFindings(
            "Norms",
            "Weights alone?",
            (Finding("claim", "said in the table", claim="C-5", verdict="supported"), Finding("aer", "Said after.")),
            claims,
            (),
        ),
        SourceFindings(
            "By hand",
            "What can it do?",
            (Finding("laws", "A finding."),),
            None,
            (("theory", "theory.html"), (LONG, "recall.html")),
        ),
    )
    about = {
        "command": f"trisect dissect --out {LONG}",
        "seconds": 61.4,
        "models": "3 language models",
        "versions": {"trisect": "0.1.0"},
        "citations": ("Somebody. Something. 2020.",),
    }
    path = tmp_path_factory.mktemp("dissect") / "report.html"
    path.write_text(html(dissect.sheet(asked, lines, about)), encoding="utf-8")
    return path.as_uri()


@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (360, "dark"), (1280, "light"), (1920, "dark")])
def test_it_fits_and_its_picture_is_there_and_named(opened, width, scheme):
    tab = opened(width, scheme)
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    drawing = tab.locator("figure .panel > svg")
    assert drawing.count() == 1
    assert "Largest: " in (drawing.get_attribute("aria-label") or "")
    boxes = (
        "[...document.querySelectorAll('.panel, .scroll')].map(p => [p.scrollWidth > p.clientWidth + 1, p.tabIndex])"
    )
    assert all(index == 0 for scrolls, index in tab.evaluate(boxes) if scrolls)


def test_every_line_of_evidence_and_every_claim_is_read_without_opening_anything(opened, lines):
    tab = opened()
    cells = tab.get_by_role("rowheader")
    told = [cells.nth(i).inner_text() for i in range(cells.count()) if cells.nth(i).is_visible()]
    assert {KINDS[line.kind] for line in lines} == set(KINDS.values())
    assert set(KINDS.values()) <= set(told)
    assert {f"A-{i}" for i in range(1, 15)} | {"C-5", "D-2"} <= set(told)
    assert tab.get_by_text("said in the table").count() == 0
    assert tab.get_by_text("Said after.").is_visible()


def test_links_lead_to_the_pages_beside_it_and_can_be_reached_by_keyboard(opened):
    tab = opened(360)
    links = tab.locator("a[href$='.html']")
    targets = {links.nth(i).get_attribute("href") for i in range(links.count())}
    assert {"study.html", "theory.html", "recall.html", "training/report.html", "alignment/report.html"} <= targets
    links.first.focus()
    assert tab.evaluate("document.activeElement.getAttribute('href')") == "study.html"
