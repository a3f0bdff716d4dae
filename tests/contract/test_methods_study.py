"""What a study measures of its trained models: ablation and probed heads in a study extended by them, sampled rewinding, roles."""

from dataclasses import replace

import polars as pl
import pytest
from tests import tiny
from tests.studies import run

from trisect.core.errors import CorpusError, StudyError
from trisect.core.methods import Ablate, Attack, Freeze, Interchange, Probe, Rewind
from trisect.core.site import Site
from trisect.core.spec import Text, read_experiment, to_json_data
from trisect.core.tables import SCHEMAS
from trisect.experiments.study.plan import join_ledger, make_plan
from trisect.experiments.study.presets import INDUCTION, PRESETS, ROLES
from trisect.lab.folder import Folder

SITES = tuple(Site.parse(s) for s in ("q@1", "v@2"))
ABLATED = tuple(Site.parse(s) for s in ("q@1", "v@1", "v@2", "v@all"))
HEADS = tuple(Site.parse(s) for s in ("q@1.h1", "v@1.h2"))
WHOLE = replace(tiny.EXPERIMENT, seeds=(1,), attack=None, freeze=None, rewind=Rewind(SITES, points=11))
SAMPLED = replace(WHOLE, rewind=Rewind(SITES, points=11, sample_tokens=150, sample_seed=5))
PROBED = replace(
    WHOLE, attack=Attack(SITES[:1], labels=("pos",)), probe=Probe(HEADS, ("pos",), ("linear",), random_maps=2)
)
AFTER = replace(PROBED, freeze=Freeze(ABLATED), ablate=Ablate(ABLATED))
BANDS = {f"{kind}_rise_{end}_nats" for kind in ("rewind", "midstage") for end in ("low", "high")}
AREAS = {f"{kind}_area_{end}" for kind in ("rewind", "midstage") for end in ("low", "high")}
KEYS = ["subject", "site", "split", "at"]


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sampled")
    return {name: run(folder / name, one) for name, one in (("all", WHOLE), ("some", SAMPLED))}


@pytest.fixture(scope="module")
def tables(both):
    return {name: study.tables["sites"] for name, study in both.items()}


@pytest.fixture(scope="module")
def extended(both, tables):
    """A study of before that is asked for attacks, probes and ablation as well."""
    before = (both["all"].folder / "study.json").read_text(encoding="utf-8")
    assert '"ablate"' not in before
    return run(both["all"].folder, AFTER)


def test_a_study_that_knew_no_ablation_and_no_random_maps_is_extended_by_them(extended):
    sites = extended.tables["sites"]
    for split in ("train", "valid"):
        rows = sites.filter(measure="ablate_rise_nats", split=split)
        assert sorted(rows["site"]) == ["q@1", "v@1", "v@1-2", "v@2"]
    assert sorted(extended.tables["runs"]["site"].drop_nulls()) == ["q@1", "q@1", "v@1", "v@1-2", "v@2"]
    (ablation,) = [one for one in extended.findings if one.measure == "ablation"]
    assert (ablation.title, {e.name for e in ablation.values}) == ("Mean ablation", {"q", "v"})
    assert (extended.folder / "figures" / "combinations.svg").exists()
    sites, runs = extended.tables["sites"], extended.tables["runs"]
    drawn = sites.filter(measure="probe_linear_random_bits")
    assert set(drawn["subject"]) == set(runs.filter(pl.col("edit").is_in(["none", "attack"]))["run"])
    assert set(drawn["site"]) == {"q+k+v@1"}
    assert sorted(drawn["at"]) == [0.0, 0.0, 1.0, 1.0]


def test_random_maps_take_their_time():
    probed = replace(PROBED, rewind=None)
    without = replace(probed, probe=Probe(HEADS, ("pos",), ("linear",)))
    bare, both = (sum(make_plan(design).evaluation) for design in (without, probed))
    assert both == pytest.approx(2 * bare)  # two heads, and two maps of the one layer that they read


def test_only_a_sample_has_intervals_and_the_check_is_recorded_by_site_and_split(tables):
    assert set(tables["some"]["measure"]) - set(tables["all"]["measure"]) == BANDS | AREAS
    for split in ("train", "valid"):
        counts = {name: set(t.filter(measure="rewind_loss_nats", split=split)["n"]) for name, t in tables.items()}
        assert len(counts["some"]) == len(counts["all"]) == 1
        assert abs(counts["some"].pop() - 150) <= tiny.TRAINING.window < counts["all"].pop() - 150
    for measure in ("rewind_check_nats", "rewind_nodes", "rewind_evaluations"):
        assert tables["all"].filter(measure=measure).height == 2 * 2
    checks = tables["all"].filter(measure="rewind_check_nats")["value"]
    assert len(set(checks)) == 4
    assert set(tables["all"].filter(measure="rewind_nodes")["value"]) <= {0.0, 17.0, 33.0}
    assert set(tables["all"].columns) == set(SCHEMAS["sites"])


def rises(table, measure):
    last = pl.col("value").sort_by("at").last().over("subject", "site", "split")
    losses = table.filter(measure=measure).select(*KEYS, "value")
    return losses.with_columns(rise=pl.col("value") - last).drop("value")


@pytest.mark.parametrize("kind", ["rewind", "midstage"])
def test_intervals_hold_the_samples_own_rise_and_mostly_that_of_all_rows(tables, kind):
    table = rises(tables["some"], f"{kind}_loss_nats")
    for end in ("low", "high"):
        ends = tables["some"].filter(measure=f"{kind}_rise_{end}_nats").select(*KEYS, pl.col("value").alias(end))
        table = table.join(ends, on=KEYS, validate="1:1")
    table = table.join(rises(tables["all"], f"{kind}_loss_nats"), on=KEYS, suffix="_all", validate="1:1")
    assert table.height == 2 * 2 * (11 if kind == "rewind" else 3)
    assert table.select((pl.col("low") - 1e-9 <= pl.col("rise")).all()).item()
    assert table.select((pl.col("rise") <= pl.col("high") + 1e-9).all()).item()
    inside = table.select(pl.col("rise_all").is_between(pl.col("low") - 1e-6, pl.col("high") + 1e-6).mean()).item()
    assert inside > 0.7  # few curves, whose points move together
    assert table.filter(pl.col("at") < 0.5).select((pl.col("high") - pl.col("low")).min()).item() > 0


def test_a_sample_of_everything_gives_what_no_sample_gives(tmp_path, tables):
    every = replace(SAMPLED, rewind=Rewind(SITES, points=11, sample_tokens=10**6, midstage=False))
    sites = run(tmp_path / "every", every).tables["sites"]
    for measure in ("rewind_loss_nats", "rewind_area", "criticality"):
        a, b = (t.filter(measure=measure).sort(KEYS[1:])["value"] for t in (sites, tables["all"]))
        assert max((a - b).abs()) < 1e-6
    low, high = (sites.filter(measure=f"rewind_rise_{end}_nats").sort(KEYS[1:])["value"] for end in ("low", "high"))
    assert (low == high).all()


def test_a_sample_is_part_of_the_experiment_and_of_no_runs_id(tmp_path):
    assert [r.id for r in SAMPLED.runs("x")] == [r.id for r in WHOLE.runs("x")]
    assert read_experiment(to_json_data(SAMPLED), "x") == SAMPLED != WHOLE
    assert all(p.rewind and p.rewind.sample_tokens is None for p in PRESETS)
    folder = Folder(tmp_path)
    join_ledger(folder, [WHOLE], "x")
    with pytest.raises(StudyError, match=r"rewind.sample_tokens \(there None, here 150\)"):
        join_ledger(folder, [SAMPLED], "x")  # one folder has one way of measuring
    other = replace(WHOLE, seeds=(1, 2), rewind=WHOLE.rewind and replace(WHOLE.rewind, sample_seed=7))
    assert join_ledger(folder, [other], "x").experiment.seeds == (1, 2)  # no sample, so that no seed of one


EVERY = tuple(Site((c,), (layer,)) for layer in (1, 2) for c in "qkv")
BARE = dict.fromkeys(("attack", "control", "tie", "probe", "erase", "ablate", "rewind", "freeze"))
BRIEF = replace(
    ROLES[0],
    seeds=(1, 2),
    model=replace(ROLES[0].model, width=8, feedforward=8),
    text=Text("roles", train_tokens=7_680, valid_tokens=1_200),
    training=replace(ROLES[0].training, epochs=1),
    interchange=Interchange(EVERY, pairs=50),
    **BARE,
)


def test_a_text_without_donors_is_refused_before_anything_is_trained(tmp_path):
    other = replace(BRIEF, text=Text("embedded", train_tokens=7_680, valid_tokens=1_200))
    with pytest.raises(CorpusError) as caught:
        run(tmp_path / "study", other)
    for words in ("asked for in the text 'embedded'", "documents of roles, induction", "Leave interchange out"):
        assert words in str(caught.value)
    assert not (tmp_path / "study").exists()


def test_induction_is_learnt_and_its_first_layers_values_act_as_keys(tmp_path):
    """Two layers learn it in a few hundred steps; v of layer 1 passes on what the key of layer 2 is matched on."""
    pairs = INDUCTION[0].interchange and replace(INDUCTION[0].interchange, pairs=50)
    training = replace(INDUCTION[0].training, epochs=2)
    measured = BARE | {"ablate": INDUCTION[0].ablate, "interchange": pairs}
    study = run(tmp_path / "study", replace(INDUCTION[0], seeds=(1,), training=training, **measured))
    rows = study.tables["sites"].select("site", "measure", "value").iter_rows()
    shares = {(site, name): value for site, name, value in rows}
    assert min(shares[f"{c}@2", "interchange_own"] for c in "qkv") > 0.9
    assert shares["v@1", "interchange_as_k"] > 0.9
    assert {shares[f"{c}@3", "interchange_unchanged"] for c in "qkv"} == {shares["q@3", "interchange_unchanged"]}
    scores = {one.groups[0]: one.values[0].mean for one in study.findings if one.measure == "planted"}
    assert scores["interchange"] == 1
    assert {"interchange", "ablate", "interchange_whole"} <= set(scores)
