"""Rewinding on a sample of rows: the same rows everywhere, with intervals that hold what all rows show."""

from dataclasses import replace

import polars as pl
import pytest
from tests import tiny

import trisect
from trisect.core.errors import StudyError
from trisect.core.site import Site
from trisect.core.spec import Design, Rewind, plain, read_experiment
from trisect.core.tables import SCHEMAS
from trisect.experiments.study.ledger import join_ledger
from trisect.experiments.study.presets import PRESETS
from trisect.lab.folder import Folder

pytestmark = pytest.mark.usefixtures("undrawn")

SITES = tuple(Site.parse(s) for s in ("q@1", "v@2"))
WHOLE = replace(tiny.EXPERIMENT, seeds=(1,), attack=None, freeze=None, rewind=Rewind(SITES, points=11))
SAMPLED = replace(WHOLE, rewind=Rewind(SITES, points=11, sample_tokens=150, sample_seed=5))
BANDS = {f"{kind}_rise_{end}_nats" for kind in ("rewind", "midstage") for end in ("low", "high")}
AREAS = {f"{kind}_area_{end}" for kind in ("rewind", "midstage") for end in ("low", "high")}


def run(folder, experiment: Design):
    return trisect.study(experiment, out=folder, quiet=True, workers=0)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sampled")
    return {name: run(folder / name, one).tables["sites"] for name, one in (("all", WHOLE), ("some", SAMPLED))}


def test_only_a_sample_has_intervals_and_it_covers_fewer_tokens(both):
    assert set(both["some"]["measure"]) - set(both["all"]["measure"]) == BANDS | AREAS
    rewound = pl.col("measure") == "rewind_loss_nats"
    for split in ("train", "valid"):
        counts = {name: set(t.filter(rewound, pl.col("split") == split)["n"]) for name, t in both.items()}
        assert len(counts["some"]) == len(counts["all"]) == 1
        assert abs(counts["some"].pop() - 150) <= tiny.TRAINING.window < counts["all"].pop() - 150


def rises(table, measure):
    keys = ["subject", "site", "split", "at"]
    losses = table.filter(pl.col("measure") == measure).select(*keys, "value")
    last = pl.col("value").sort_by("at").last().over("subject", "site", "split")
    return losses.with_columns(rise=pl.col("value") - last).drop("value")


@pytest.mark.parametrize("kind", ["rewind", "midstage"])
def test_intervals_hold_the_samples_own_rise_and_mostly_that_of_all_rows(both, kind):
    keys = ["subject", "site", "split", "at"]
    table = rises(both["some"], f"{kind}_loss_nats")
    for end in ("low", "high"):
        ends = (
            both["some"]
            .filter(pl.col("measure") == f"{kind}_rise_{end}_nats")
            .select(*keys, pl.col("value").alias(end))
        )
        table = table.join(ends, on=keys, validate="1:1")
    table = table.join(rises(both["all"], f"{kind}_loss_nats"), on=keys, suffix="_all", validate="1:1")
    assert table.height == 2 * 2 * (11 if kind == "rewind" else 3)
    assert table.select((pl.col("low") - 1e-9 <= pl.col("rise")).all()).item()
    assert table.select((pl.col("rise") <= pl.col("high") + 1e-9).all()).item()
    inside = table.select(pl.col("rise_all").is_between(pl.col("low") - 1e-6, pl.col("high") + 1e-6).mean()).item()
    assert inside > 0.7  # few curves, whose points move together
    assert table.filter(pl.col("at") < 0.5).select((pl.col("high") - pl.col("low")).min()).item() > 0


def test_a_sample_of_everything_gives_what_no_sample_gives(tmp_path, both):
    every = replace(SAMPLED, rewind=Rewind(SITES, points=11, sample_tokens=10**6, midstage=False))
    found = run(tmp_path / "every", every).tables["sites"]
    keys = ["site", "split", "at"]
    for measure in ("rewind_loss_nats", "rewind_area", "criticality"):
        a, b = (t.filter(pl.col("measure") == measure).sort(keys)["value"] for t in (found, both["all"]))
        assert max((a - b).abs()) < 1e-6
    low, high = (
        found.filter(pl.col("measure") == f"rewind_rise_{end}_nats").sort(keys)["value"] for end in ("low", "high")
    )
    assert (low == high).all()


def test_the_check_is_recorded_by_site_and_split(both):
    for measure in ("rewind_check_nats", "rewind_nodes", "rewind_evaluations"):
        assert both["all"].filter(pl.col("measure") == measure).height == 2 * 2
    checks = both["all"].filter(pl.col("measure") == "rewind_check_nats").sort("site", "split")["value"]
    assert len(set(checks)) == 4
    assert set(both["all"].filter(pl.col("measure") == "rewind_nodes")["value"]) <= {0.0, 17.0, 33.0}
    assert set(both["all"].columns) == set(SCHEMAS["sites"])


def test_a_sample_is_part_of_the_experiment_and_of_no_runs_id(tmp_path):
    assert [r.id for r in SAMPLED.runs("x")] == [r.id for r in WHOLE.runs("x")]
    assert read_experiment(plain(SAMPLED), "x") == SAMPLED != WHOLE
    assert all(p.rewind and p.rewind.sample_tokens is None for p in PRESETS)


def test_one_folder_has_one_way_of_measuring(tmp_path):
    folder = Folder(tmp_path)
    join_ledger(folder, [WHOLE], "x")
    with pytest.raises(StudyError, match=r"rewind.sample_tokens \(there None, here 150\)"):
        join_ledger(folder, [SAMPLED], "x")
    other = replace(WHOLE, seeds=(1, 2), rewind=WHOLE.rewind and replace(WHOLE.rewind, sample_seed=7))
    assert join_ledger(folder, [other], "x").experiment.seeds == (1, 2)  # no sample, so that no seed of one
