"""Profiles over checkpoints: a study's epochs, and revisions of a pretrained model; which there are not."""

import json
from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner
from tests import tiny, tinyhf
from tests.contract.test_profile import treebank

import trisect
from trisect.cli import main
from trisect.core.errors import ModelError, SpecError
from trisect.core.tables import frame
from trisect.experiments.profile import PROFILE
from trisect.experiments.profile.page import COMPONENTS, ProfileNumbers, checkpoint_findings
from trisect.lab.driver import render
from trisect.lab.folder import Folder
from trisect.lab.subject import load, read_epochs
from trisect.lm.reading import OwnModel
from trisect.report.sheet import Sheet

pytestmark = pytest.mark.usefixtures("undrawn")

DESIGN = replace(tiny.EXPERIMENT, seeds=(1,), attack=None, freeze=None)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("studied") / "study"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trisect.experiments.study.page.page", lambda tables, about: Sheet("t", "k", "l", ()))
        trisect.study(DESIGN, out=folder, workers=0, quiet=True)
    return folder


def test_epochs_hold_what_training_made_from_its_start_to_its_end(study):
    final = load(study)
    assert isinstance(final, OwnModel)
    epochs = read_epochs(final, study)
    assert len(epochs) == DESIGN.training.epochs + 1
    weights = [e.parameters["layers.1.in.weight"] for e in epochs]
    assert torch.equal(weights[-1], final.parameters["layers.1.in.weight"])
    assert not torch.equal(weights[0], weights[1])
    assert all(torch.equal(e.parameters["decoder.weight"], final.parameters["decoder.weight"]) for e in epochs)


@pytest.mark.drawn
def test_a_profile_over_all_epochs_ends_with_the_model_itself(study, tmp_path):
    words = ["profile", str(study), "--corpus", "embedded", "--labels", "position,pos", "--words", "800"]
    done = CliRunner().invoke(main, [*words, "--checkpoints", "all", "--out", str(tmp_path / "out"), "--json"])
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    said = [r for r in data["records"] if r["measure"] == "profile_checkpoints"]
    assert [r["groups"] for r in said] == [["position"], ["pos"]]
    found = render(PROFILE, tmp_path / "out")
    assert found.about.facts.checkpoints == ("0", "1", "2")
    numbers = ProfileNumbers.of(found.tables["measures"], ("position", "pos"))
    for spot in numbers.spots:
        for c in COMPONENTS:
            last = numbers.stage(2, c, "pos", spot.layer)
            assert last.value == pytest.approx(numbers.gain("pos", c, spot).mean, abs=1e-12)
    assert "they are applied to what the layers of the final model read" in found.report.read_text()
    assert (found.folder / "figures" / "profile-checkpoints.svg").exists()


def test_revisions_are_read_each_as_a_whole(tmp_path):
    bank = treebank(tmp_path / "bank", 60)
    for name, seed in (("step0", 1), ("step1", 2)):
        tinyhf.save(tinyhf.gpt2(seed), tmp_path / "steps" / name, False)
    places = [tmp_path / "steps" / name for name in ("step0", "step1")]
    named = {"labels": ["pos"], "quiet": True}
    both = trisect.profile(places[1], bank, checkpoints=["step0", "step1"], out=tmp_path / "both", **named)
    alone = trisect.profile(places[0], bank, out=tmp_path / "alone", **named)
    numbers, other = (ProfileNumbers.of(one.tables["measures"]) for one in (both, alone))
    for c in COMPONENTS:
        assert numbers.stage(0, c, "pos").value == pytest.approx(other.gain("pos", c).mean, abs=1e-12)
        assert numbers.stage(1, c, "pos").value == pytest.approx(numbers.gain("pos", c).mean, abs=1e-12)


def test_since_when_is_said_by_rule():
    lows = {"q": (-0.05, 0.01, 0.02), "k": (0.01, -0.05, 0.02), "v": (-0.05, -0.2, -0.3)}
    of = {"subject": "m", "stack": "plain", "measure": "profile_stage_gain", "group": "position", "n": 12}
    rows = (
        of | {"component": c, "at": float(at), "value": low + 0.05, "low": low, "high": low + 0.1}
        for c, three in lows.items()
        for at, low in enumerate(three)
    )
    numbers = ProfileNumbers.of(frame("measures", rows), ("position",))
    (found,) = checkpoint_findings(numbers, ("0", "5", "10"))
    assert str(found) == (
        "position, last checkpoint: queries keep it from checkpoint 5 on, keys keep it from checkpoint 10 on, "
        "values drop it from checkpoint 5 on."
    )


def test_checkpoints_that_there_are_not(study, tmp_path):
    few = {"labels": ["pos"], "words": 400, "out": tmp_path / "out", "quiet": True}
    with pytest.raises(SpecError) as refused:
        trisect.profile(study, "embedded", checkpoints=["7"], **few)
    assert "There is no epoch '7'." in str(refused.value)
    assert "has epochs 0 to 2." in str(refused.value)
    assert "Use some of them, or 'all'." in str(refused.value)
    with pytest.raises(SpecError) as refused:
        trisect.profile(load(study), "embedded", checkpoints=["all"], **few)
    assert "Give the study's folder, or a run's." in str(refused.value)
    place = tinyhf.save(tinyhf.gpt2(), tmp_path / "steps" / "step0", False)
    with pytest.raises(ModelError) as refused:
        trisect.profile(place, treebank(tmp_path / "bank", 60), checkpoints=["step7"], **few)
    assert "has no revision 'step7'." in str(refused.value)
    with pytest.raises(SpecError) as refused:
        trisect.profile(load(place), tmp_path / "bank", checkpoints=["step0"], **few)
    assert "Give its name on a hub, or its folder." in str(refused.value)


def test_a_run_with_an_edit_keeps_no_epochs(tmp_path, monkeypatch):
    monkeypatch.setattr("trisect.experiments.study.page.page", lambda tables, about: Sheet("t", "k", "l", ()))
    design = replace(tiny.EXPERIMENT, seeds=(1,), attack=None, rewind=None)
    trisect.study(design, out=tmp_path / "study", workers=0, quiet=True)
    runs = Folder(tmp_path / "study").read_ledger().runs
    edited = tmp_path / "study" / "runs" / next(name for name, spec in runs.items() if spec.edit is not None)
    run = load(edited)
    assert isinstance(run, OwnModel)
    with pytest.raises(ModelError) as refused:
        read_epochs(run, edited)
    assert "The weights of every epoch are kept of baselines alone." in str(refused.value)
