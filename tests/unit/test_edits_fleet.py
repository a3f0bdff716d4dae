from dataclasses import replace

import pytest
from tests import tiny

from trisect.core.edits import make_edit
from trisect.core.site import Site
from trisect.core.spec import Run
from trisect.lm.adversary import control_labels
from trisect.lm.edits.attack import AttackEdit
from trisect.lm.train import RunFiles, train_fleet

CORPUS = tiny.corpus()
BASE = next(r for r in tiny.runs() if r.edit is None)


def run(kind: str, place: str, width: int | None = None) -> Run:
    return replace(BASE, edit=make_edit(kind, Site.parse(place).resolve(2, 2), {"width": width}))


def attacked(place: str, variant: str) -> Run:
    return replace(BASE, edit=AttackEdit(Site.parse(place).resolve(2, 2), "pos", 1.0, variant))


def test_the_distance_of_control_labels_is_a_row_of_epoch_0_of_those_attacks_alone(tmp_path):
    runs = [attacked("q@1", variant) for variant in ("plain", "control", "bounded", "site")]
    outcomes = train_fleet(runs, CORPUS, RunFiles(tmp_path / "checkpoint", {}))
    distance = control_labels(CORPUS, "pos", BASE.seed).distance
    for one, outcome in zip(runs, outcomes, strict=True):
        found = [row for row in outcome.rows if row[2] == "control_distance"]
        assert one.edit is not None
        assert found == (
            [(0, "train", "control_distance", distance)] if one.edit.setting("variant") == "control" else []
        )
        names = {(epoch, split) for epoch, split, name, _ in outcome.rows if name == "adversary_accuracy"}
        assert {(2, "train"), (2, "valid"), (2, "train_running")} <= names
        assert outcome.status == "finished"


@pytest.mark.parametrize("kind", ["tie", "identity", "narrow"])
def test_a_fleet_of_edits_that_was_stopped_ends_as_if_it_had_not_been(tmp_path, kind):
    where = {"tie": "q+k+v@all", "identity": "q@all", "narrow": "q+k+v@all"}
    runs = [BASE, run(kind, where[kind], 2 if kind == "narrow" else None)]
    whole = train_fleet(runs, CORPUS, RunFiles(tmp_path / "a", {}))

    class StoppedError(Exception):
        pass

    def stop(progress):
        if progress.epoch == 2:
            raise StoppedError

    with pytest.raises(StoppedError):
        train_fleet(runs, CORPUS, RunFiles(tmp_path / "b", {}), progress=stop)
    again = train_fleet(runs, CORPUS, RunFiles(tmp_path / "b", {}))
    for one, other in zip(whole, again, strict=True):
        assert one.rows == other.rows
        assert all(one.final[name].equal(other.final[name]) for name in one.final)
    assert whole[0].rows != whole[1].rows
