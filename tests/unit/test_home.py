"""Home: a page of a part leads back to the front page of its dissection, and no other page does."""

import json

import pytest
from tests import tinyhf

import trisect
from trisect.hf.load import load
from trisect.lab.home import home_of


@pytest.fixture
def study(tmp_path):
    (tmp_path / "parts.json").write_text(json.dumps({"seconds": 1.0, "steps": {"ablate/seed-1": {}, "training": {}}}))
    return tmp_path


def test_the_way_back_is_as_long_as_the_way_there(study):
    assert home_of(study / "training") == "../report.html"
    assert home_of(study / "ablate" / "seed-1") == "../../report.html"
    assert home_of(study / "training" / ".run.1-00000000.trisect-part") == "../report.html"


@pytest.mark.parametrize("place", [".", "other", "ablate/seed-2", "ablate", "training/runs/one"])
def test_what_is_no_part_has_no_way_back(study, place):
    assert home_of(study / place) == ""


def test_a_file_of_that_name_that_says_nothing_is_passed_over(tmp_path):
    for text in ("[]", "{", '{"steps": 1}', "\x00"):
        (tmp_path / "parts.json").write_text(text)
        assert home_of(tmp_path / "training") == ""


def test_a_page_of_a_part_links_back_and_the_same_page_elsewhere_does_not(study):
    model = load(tinyhf.gpt2(), tinyhf.tokenizer(False))
    for place, back in (("ablate/seed-1", True), ("ablate/seed-2", False)):
        done = trisect.ablate(model, ["w1 w2 w3"], sites=["v@1"], how="zero", out=study / place, quiet=True)
        page = done.report.read_text(encoding="utf-8")
        assert ('<a href="../../report.html">← All parts of this study</a>' in page) == back
