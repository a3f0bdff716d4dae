"""Links between the pages of a dissection: every page links to all, with its own marked, and keeps them when it is made again."""

import pytest
from tests import tinyhf

import trisect
from trisect.experiments.ablate import ABLATE
from trisect.experiments.ablate.settings import AblateSettings
from trisect.experiments.dissect.run import links_from
from trisect.hf.load import load
from trisect.lab import driver
from trisect.lab.inputs import ModelSource, TextSource
from trisect.report.sheet import MARK, Document, StudyLink, with_links

PAGES = (
    ("The answer", {"": "report.html"}),
    ("By hand", {"": "theory/theory.html"}),
    ("Ablation", {"seed 1": "ablate/seed-1/report.html", "seed 2": "ablate/seed-2/report.html"}),
)


def test_every_page_links_to_all_and_marks_itself():
    front = links_from(PAGES, "report.html")
    assert [(one.title, one.href, one.here) for one in front] == [
        ("The answer", "", True),
        ("By hand", "theory/theory.html", False),
        ("Ablation", "ablate/seed-1/report.html", False),
    ]
    second = links_from(PAGES, "ablate/seed-2/report.html")
    assert [one.href for one in second] == ["../../report.html", "../../theory/theory.html", ""]
    assert second[2].models == (("seed 1", "../seed-1/report.html"), ("seed 2", ""))


@pytest.mark.parametrize("page", ["other/report.html", "ablate/seed-3/report.html", "theory.html", ""])
def test_what_is_no_page_of_it_has_no_links(page):
    assert links_from(PAGES, page) == ()


def test_a_page_keeps_its_links_when_it_is_made_again_or_run_again_and_has_none_elsewhere(tmp_path):
    model = load(tinyhf.gpt2(), tinyhf.tokenizer(False))
    asked = AblateSettings(ModelSource(model), TextSource(["w1 w2 w3"]), sites=("v@1",), how="zero")
    links = links_from(PAGES, "ablate/seed-1/report.html")
    first = driver.run(ABLATE, asked, tmp_path / "linked", True, links).report
    page = first.read_text(encoding="utf-8")
    assert '<a href="../../theory/theory.html">By hand</a>' in page
    assert '<span aria-current="page">seed 1</span>' in page
    trisect.render(tmp_path / "linked")
    assert first.read_text(encoding="utf-8") == page
    driver.run(ABLATE, asked, tmp_path / "linked", True)
    assert '<a href="../../theory/theory.html">By hand</a>' in first.read_text(encoding="utf-8")
    alone = driver.run(ABLATE, asked, tmp_path / "alone", True).report.read_text(encoding="utf-8")
    assert "By hand" not in alone


def test_a_page_of_its_own_has_the_links_at_its_mark_and_titles_are_escaped():
    page = Document("x.html", f"<body>{MARK}<p>y</p></body>")
    made = with_links(page, (StudyLink("a < b", "z.html"), StudyLink("here", "", True)))
    assert isinstance(made, Document)
    assert '<a href="z.html">a &lt; b</a>' in made.html
    assert '<span aria-current="page">here</span>' in made.html
    assert MARK not in made.html
    assert with_links(page, ()) is page
