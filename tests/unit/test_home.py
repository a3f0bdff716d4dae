"""Home: a page of a dissection links to all of its pages, with its own marked, and no other page does."""

import pytest
from tests import tinyhf

import trisect
from trisect.core.files import write_json
from trisect.hf.load import load
from trisect.lab.home import links_of
from trisect.report.sheet import Document
from trisect.report.study_links import MARK, StudyLink, with_links

PAGES = [
    {"title": "The answer", "models": {"": "report.html"}},
    {"title": "By hand", "models": {"": "theory/theory.html"}},
    {"title": "Ablation", "models": {"seed 1": "ablate/seed-1/report.html", "seed 2": "ablate/seed-2/report.html"}},
]


@pytest.fixture
def study(tmp_path):
    write_json(tmp_path / "parts.json", {"seconds": 1.0, "steps": {}, "pages": PAGES})
    return tmp_path


def test_every_page_links_to_all_and_marks_itself(study):
    front = links_of(study, "report.html")
    assert [(one.title, one.href, one.here) for one in front] == [
        ("The answer", "", True),
        ("By hand", "theory/theory.html", False),
        ("Ablation", "ablate/seed-1/report.html", False),
    ]
    second = links_of(study / "ablate" / "seed-2", "report.html")
    assert [one.href for one in second] == ["../../report.html", "../../theory/theory.html", ""]
    assert second[2].models == (("seed 1", "../seed-1/report.html"), ("seed 2", ""))
    staged = study / "theory" / ".run.1-00000000.trisect-part"
    assert links_of(staged, "theory.html") == links_of(study / "theory", "theory.html")


@pytest.mark.parametrize(
    ("place", "name"),
    [("other", "report.html"), ("ablate/seed-3", "report.html"), ("ablate", "report.html"), (".", "theory.html")],
)
def test_what_is_no_page_of_it_has_no_links(study, place, name):
    assert links_of(study / place, name) == ()


def test_notes_that_say_nothing_of_pages_or_lead_elsewhere_give_no_links(tmp_path):
    path = tmp_path / "parts.json"
    for text in ("[]", "{", '{"steps": 1}', "\x00"):
        path.write_text(text)
        assert links_of(tmp_path, "report.html") == ()
    front = {"title": "The answer", "models": {"": "report.html"}}
    for bad in ({"models": {"": "x.html"}}, {"title": "x", "models": {"": "../x.html"}}, {"title": 1, "models": {}}, 3):
        write_json(path, {"seconds": 1.0, "steps": {}, "pages": [front, bad]})
        assert [one.title for one in links_of(tmp_path, "report.html")] == ["The answer"]


def test_the_front_page_and_a_part_made_by_a_run_are_linked_and_the_same_page_elsewhere_is_not(study):
    model = load(tinyhf.gpt2(), tinyhf.tokenizer(False))
    for place, linked in (("ablate/seed-1", True), ("ablate/seed-3", False)):
        done = trisect.ablate(model, ["w1 w2 w3"], sites=["v@1"], how="zero", out=study / place, quiet=True)
        page = done.report.read_text(encoding="utf-8")
        assert ('<a href="../../theory/theory.html">By hand</a>' in page) == linked
        assert ('<span aria-current="page">seed 1</span>' in page) == linked


def test_a_page_of_its_own_has_the_links_at_its_mark_and_titles_are_escaped():
    page = Document("x.html", f"<body>{MARK}<p>y</p></body>")
    made = with_links(page, (StudyLink("a < b", "z.html"), StudyLink("here", "", True)))
    assert isinstance(made, Document)
    assert '<a href="z.html">a &lt; b</a>' in made.html
    assert '<span aria-current="page">here</span>' in made.html
    assert MARK not in made.html
    assert with_links(page, ()) is page
