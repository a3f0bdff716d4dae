"""A study that probes heads and random maps of what they read: rows of its baseline and of its attacked run, and its page."""

from dataclasses import replace

import pytest
from tests import tiny

import trisect
from trisect.core.methods import Attack, Probe
from trisect.core.site import Site
from trisect.experiments.study.ledger import Task
from trisect.experiments.study.plan import evaluation_seconds

pytestmark = pytest.mark.usefixtures("undrawn")

HEADS = tuple(Site.parse(s) for s in ("q@1.h1", "v@1.h2"))
SITE = Site.parse("q@1")
DESIGN = replace(
    tiny.EXPERIMENT,
    seeds=(1,),
    rewind=None,
    freeze=None,
    attack=Attack((SITE,), labels=("pos",)),
    probe=Probe(HEADS, ("pos",), ("linear",), random_maps=2),
)


def test_random_maps_are_probed_before_and_after_the_attack(tmp_path):
    study = trisect.study(DESIGN, out=tmp_path / "study", workers=0, quiet=True)
    sites, runs = study.tables["sites"], study.tables["runs"]
    drawn = sites.filter(sites["measure"] == "probe_linear_random_bits")
    assert set(drawn["subject"]) == set(runs["run"])
    assert set(drawn["site"]) == {"q+k+v@1"}
    assert sorted(drawn["at"]) == [0.0, 0.0, 1.0, 1.0]
    page = study.report.read_text(encoding="utf-8")
    assert "What single heads hold of POS" in page
    assert "What single heads lose of POS" in page


def test_random_maps_take_their_time():
    (run, *_) = DESIGN.runs("text")
    without = replace(DESIGN, probe=Probe(HEADS, ("pos",), ("linear",)))
    one, both = (evaluation_seconds(run, 300, Task("probe", (run.id,)), design, 0) for design in (without, DESIGN))
    assert both == pytest.approx(2 * one)  # two heads, and two maps of the one layer that they read
