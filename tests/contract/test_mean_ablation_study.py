"""Mean ablation and all layers at once in a study: rows, the page's figure, and a study of before that is extended by them."""

from dataclasses import replace

import pytest
from tests import tiny

import trisect
from trisect.core.methods import Ablate, Freeze, Rewind
from trisect.core.site import Site

pytestmark = pytest.mark.usefixtures("undrawn")

SITES = tuple(Site.parse(s) for s in ("q@1", "v@1", "v@2", "v@all"))
BEFORE = replace(tiny.EXPERIMENT, attack=None, seeds=(1,), rewind=Rewind(SITES, points=3, midstage=False), freeze=None)
AFTER = replace(BEFORE, freeze=Freeze(SITES), ablate=Ablate(SITES))


@pytest.fixture(scope="module")
def extended(tmp_path_factory):
    out = tmp_path_factory.mktemp("ablated") / "study"
    trisect.study(BEFORE, out=out, workers=0, quiet=True)
    before = (out / "study.json").read_text(encoding="utf-8")
    return before, trisect.study(AFTER, out=out, workers=0, quiet=True)


def test_a_study_that_knew_no_ablation_is_extended_by_it(extended):
    before, study = extended
    assert '"ablate"' not in before
    sites = study.tables["sites"]
    for split in ("train", "valid"):
        rows = sites.filter((sites["measure"] == "ablate_rise_nats") & (sites["split"] == split))
        assert sorted(rows["site"]) == ["q@1", "v@1", "v@1-2", "v@2"]
    assert sorted(study.tables["runs"]["site"].drop_nulls()) == ["q@1", "v@1", "v@1-2", "v@2"]


def test_it_stands_on_the_page_and_among_the_findings(extended):
    _, study = extended
    found = [one for one in study.findings if one.measure == "ablation"]
    assert [one.title for one in found] == ["Mean ablation"]
    assert {e.name for e in found[0].values} == {"q", "v"}
    assert "Mean ablation" in study.report.read_text(encoding="utf-8")
    assert (study.folder / "figures" / "combinations.svg").exists()
