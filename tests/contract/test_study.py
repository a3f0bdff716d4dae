import json
import math
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
import torch
from tests import tiny
from tests.raw import read_json
from tests.studies import assert_same, no_page, run  # noqa: F401

import trisect
from trisect.core.errors import CorpusError, DamagedFileError, SpecError, StudyError
from trisect.core.files import write_json
from trisect.core.spec import Attack, Freeze, Rewind, Run
from trisect.experiments.study import run as lab
from trisect.experiments.study.plan import fleets, make_plan
from trisect.lab.folder import Folder
from trisect.lm import train
from trisect.lm.feed import evaluation_pieces

SITE = tiny.SITES[:1]
ONE = replace(
    tiny.EXPERIMENT, seeds=(1,), attack=Attack(SITE, ("pos",)), freeze=Freeze(SITE), rewind=Rewind(SITE, points=5)
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The tiny study, never stopped."""
    return run(tmp_path_factory.mktemp("whole") / "study")


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """One seed and one site of it, for what is trained again and again."""
    return run(tmp_path_factory.mktemp("one") / "study", ONE)


def test_accuracies_and_losses_are_in_range_and_the_disk_holds_what_was_planned(whole):
    metrics, sites = whole.tables["metrics"], whole.tables["sites"]
    for table, column in ((metrics, "name"), (sites, "measure")):
        assert table.filter(pl.col(column).str.ends_with("accuracy"))["value"].is_between(0, 1).all()
    for name, low, high in (("loss_nats", 3, 6), ("adversary_loss_nats", 0.5, 5)):
        running = metrics.filter(name=name, split="train_running", epoch=2)["value"]
        assert running.is_between(low, high).all()
    planned = make_plan(tiny.EXPERIMENT).disk_bytes
    left = sum(p.stat().st_size for p in whole.folder.glob("runs/**/*.safetensors"))
    assert planned == pytest.approx(left, rel=0.35)  # headers weigh at this size


def test_rewinding_nothing_gives_the_final_loss_and_the_unigram_loss_is_of_the_same_tokens(whole):
    """α = 1 and the last stored epoch are the trained model itself; α = 0 is not."""
    final = whole.tables["metrics"].filter(epoch=2, name="loss_nats")
    ends = ("rewind_loss_nats", 1.0, True), ("midstage_loss_nats", 2.0, True), ("rewind_loss_nats", 0.0, False)
    for measure, at, same in ends:
        rows = whole.tables["sites"].filter(measure=measure, at=at)
        joined = rows.join(final, left_on=["subject", "split"], right_on=["run", "split"], suffix="_final")
        assert joined.height == rows.height > 0
        most = (joined["value"] - joined["value_final"]).abs().max()
        assert most < 1e-6 if same else most > 1e-5  # float32 sums in another order
    corpus = tiny.corpus()
    counts = [1 + sum(corpus.splits["train"].tokens == i) for i in range(len(corpus.vocabulary))]
    for split in ("train", "valid"):
        targets = [int(y) for p in evaluation_pieces(corpus, tiny.TRAINING, split, (), "cpu") for y in p.targets]
        expected = sum(math.log(sum(counts) / counts[y]) for y in targets) / len(targets)
        rows = whole.tables["sites"].filter(measure="unigram_loss_nats", split=split)
        assert rows["value"].to_list() == pytest.approx([expected] * 2, abs=1e-12)
        assert set(rows["n"]) == {len(targets)}


@pytest.mark.parametrize("stop", [1, 40, 62])
def test_a_study_stopped_at_any_step_and_resumed_gives_the_same_tables(one, tmp_path, monkeypatch, stop):
    step, count = train.Trainer.step, [0]

    def stopping(self):
        count[0] += 1
        if count[0] == stop:
            raise KeyboardInterrupt
        return step(self)

    monkeypatch.setattr(train.Trainer, "step", stopping)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "study", ONE)
    monkeypatch.setattr(train.Trainer, "step", step)
    assert_same(run(tmp_path / "study", ONE), one)


def test_kill_9_loses_at_most_the_epoch_under_way(one, tmp_path):
    code = (
        "import trisect; from tests.contract.test_study import ONE\n"
        f"trisect.study(ONE, out={str(tmp_path / 'killed')!r}, workers=0, quiet=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[2])
    deadline = time.monotonic() + 120
    while not list((tmp_path / "killed").glob("fleets/*.safetensors")) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.kill()
    process.wait()
    assert_same(run(tmp_path / "killed", ONE), one)


def test_more_seeds_sites_and_experiments_extend_a_study(whole, tmp_path, monkeypatch):
    small = replace(tiny.EXPERIMENT, seeds=(2,), attack=None, freeze=Freeze(SITE), rewind=Rewind(SITE, 11))
    larger = replace(small, seeds=(1, 2), attack=Attack(SITE, ("pos",)), freeze=Freeze(tiny.SITES[:2]))
    run(tmp_path / "study", small)
    before = set(Folder(tmp_path / "study").path.glob("runs/*"))
    trained: list[str] = []
    original = train.train_fleet
    monkeypatch.setattr(
        "trisect.experiments.study.tasks.train_fleet",
        lambda runs, *rest: (trained.extend(r.id for r in runs), original(runs, *rest))[1],
    )
    extended = run(tmp_path / "study", larger)
    assert len(before) == 2
    assert not {p.name for p in before} & set(trained)
    assert set(extended.tables["runs"]["run"]) == {p.name for p in before} | set(trained)
    # grouped into other fleets the sums come in another order: equal to rounding, not to the bit
    both = extended.tables["metrics"].join(
        whole.tables["metrics"], on=["run", "epoch", "split", "name"], suffix="_whole"
    )
    assert both.height == extended.tables["metrics"].height
    assert max((both["value"] - both["value_whole"]).abs()) < 1e-4


def test_a_study_begun_with_an_earlier_step_is_reported_and_not_trained_further(whole, tmp_path):
    shutil.copytree(whole.folder, tmp_path / "study")
    folder = Folder(tmp_path / "study")
    for place in (folder.ledger, folder.copy):
        body = read_json(place, "")
        write_json(place, body | {"step": 1})
    assert_same(run(folder.path), whole)
    before = sorted(folder.path.rglob("*"))
    with pytest.raises(StudyError, match="revision 1 of the training step began"):
        run(folder.path, replace(tiny.EXPERIMENT, seeds=(1, 2, 3)))
    assert sorted(folder.path.rglob("*")) == before


def test_a_study_goes_on_with_what_trained_it_alone(whole, tmp_path, monkeypatch):
    shutil.copytree(whole.folder, tmp_path / "study")
    monkeypatch.setattr(
        "trisect.experiments.study.tasks.numerics", lambda *_: "step 2, float32 products by Abacus (low)"
    )
    with pytest.raises(StudyError, match="it would be: step 2, float32 products by Abacus"):
        run(tmp_path / "study", replace(tiny.EXPERIMENT, seeds=(1, 2, 3)))


def test_finished_runs_are_never_run_again_and_asking_for_less_takes_nothing_away(whole, monkeypatch):
    less = run(whole.folder, replace(tiny.EXPERIMENT, seeds=(1,), attack=None))
    assert_same(less, whole)
    monkeypatch.setattr("trisect.experiments.study.run.run_jobs", lambda works, *_: works and pytest.fail("run again"))
    assert_same(run(whole.folder), whole)


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (replace(tiny.EXPERIMENT, training=replace(tiny.TRAINING, epochs=3)), r"training\.epochs \(there 2, here 3\)"),
        (replace(tiny.EXPERIMENT, model=replace(tiny.MODEL, width=16)), r"model\.width \(there 8, here 16\)"),
        (
            replace(tiny.EXPERIMENT, text=replace(tiny.TEXT, train_tokens=1_300)),
            r"corpus \(there '\w{16}', here '\w{16}'\)",
        ),
        (replace(tiny.EXPERIMENT, rewind=Rewind(tiny.SITES, points=21)), r"rewind\.points \(there 11, here 21\)"),
        (
            replace(tiny.EXPERIMENT, attack=Attack(tiny.SITES, ("pos",), epochs=1)),
            r"attack\.epochs \(there 2, here 1\)",
        ),
    ],
)
def test_anything_else_in_its_folder_is_refused_with_the_difference(whole, change, difference):
    with pytest.raises(StudyError, match=difference):
        run(whole.folder, change)
    assert_same(run(whole.folder), whole)


@pytest.mark.parametrize(
    ("kind", "harm"),
    [
        ("runs/*/run.json", "byte"),
        ("runs/baseline*/final.safetensors", "byte"),
        ("runs/baseline*/epochs/0000.safetensors", "cut"),
        ("evaluations/*/rewind-*.json", "empty"),
    ],
)
def test_a_damaged_file_is_named_and_deleting_what_the_message_says_repairs(whole, tmp_path, kind, harm):
    folder = tmp_path / "study"
    shutil.copytree(whole.folder, folder)
    for path in folder.glob("evaluations/*/rewind-*.json" if "safetensors" in kind else "nothing"):
        path.unlink()  # so that the snapshot is read again
    victim = sorted(folder.glob(kind))[0]
    content = bytearray(victim.read_bytes())
    if harm == "byte":
        content[len(content) // 2] ^= 1
    victim.write_bytes({"byte": content, "cut": content[: len(content) // 2], "empty": b""}[harm])
    with pytest.raises(DamagedFileError) as caught:
        run(folder)
    assert str(victim) in caught.value.problem
    named = Path(caught.value.todo.split("Delete ")[1].removeprefix("the folder ").split(" and call")[0])
    assert victim.is_relative_to(named)
    shutil.rmtree(named) if named.is_dir() else named.unlink()
    assert_same(run(folder), whole)


def test_a_damaged_checkpoint_is_named_and_the_fleet_starts_again_without_it(one, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(
            "trisect.experiments.study.tasks.write_snapshot", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "study", ONE)
    checkpoint = next((tmp_path / "study").glob("fleets/*.safetensors"))
    content = bytearray(checkpoint.read_bytes())
    content[-1] ^= 1
    checkpoint.write_bytes(bytes(content))
    with pytest.raises(DamagedFileError, match="is damaged") as caught:
        run(tmp_path / "study", ONE)
    assert f"Delete {checkpoint}" in caught.value.todo
    checkpoint.unlink()
    assert_same(run(tmp_path / "study", ONE), one)


def test_a_damaged_table_is_named_and_a_damaged_copy_of_the_text_is_written_again(whole, tmp_path):
    path = whole.folder / "tables" / "metrics.parquet"
    good = path.read_bytes()
    path.write_bytes(good[:100])
    fresh = trisect.Study(whole.folder)
    with pytest.raises(DamagedFileError, match=r"metrics\.parquet cannot be read") as caught:
        _ = fresh.tables
    assert "trisect report" in caught.value.todo
    assert trisect.render(whole.folder).tables["metrics"].height > 0
    assert path.read_bytes() == good
    shutil.copytree(whole.folder, tmp_path / "study")
    (tmp_path / "study" / "corpus" / "train.npy").write_bytes(b"")
    assert_same(run(tmp_path / "study"), whole)


@pytest.mark.parametrize("nth", [1, 2, 13, 27])
def test_a_full_disk_is_said_and_nothing_half_written_is_read(one, tmp_path, monkeypatch, nth):
    """The nth write of the study finds the disk full; with space freed it ends with the same tables."""
    count = [0]

    def filling(write):
        def full(self, data, *rest, **how):
            count[0] += 1
            if count[0] == nth:
                write(self, data[: len(data) // 2], *rest, **how)
                raise OSError(28, "No space left on device")
            return write(self, data, *rest, **how)

        return full

    monkeypatch.setattr(Path, "write_bytes", filling(Path.write_bytes))
    monkeypatch.setattr(Path, "write_text", filling(Path.write_text))
    with pytest.raises(StudyError) as caught:
        run(tmp_path / "study", ONE)
    assert caught.value.reason == "The disk is full."
    assert "it resumes from the last complete file" in caught.value.todo
    assert not [path for path in (tmp_path / "study").rglob(".*") if path.name != ".lock"]
    assert_same(run(tmp_path / "study", ONE), one)


@pytest.mark.parametrize("alone", [True, False])
def test_diverged_runs_are_rows_and_nothing_is_said_of_the_sites_of_a_seed_whose_baseline_diverged(
    tmp_path, monkeypatch, alone
):
    """The baseline of seed 1, with or without others in its fleet, and the attacks of seed 2 lose their weights on the way."""
    original = train.Trainer.step

    def poisoned(self):
        for slot, one in enumerate(self.runs):
            if self.steps_done == 10 and (one.seed, one.edit and one.edit.kind) in ((1, None), (2, "attack")):
                self.flat[slot, 0] = float("nan")
        return original(self)

    monkeypatch.setattr(train.Trainer, "step", poisoned)
    study = run(tmp_path / "study", replace(ONE, seeds=(1, 2), freeze=None if alone else ONE.freeze))
    runs = study.tables["runs"]
    lost = (pl.col("edit") == "none") & (pl.col("seed") == 1) | (pl.col("edit") == "attack") & (pl.col("seed") == 2)
    assert set(runs.filter(lost).select("status", "diverged_step").rows()) == {("diverged", 11)}
    assert set(runs.filter(~lost)["status"]) == {"finished"}
    rows = study.tables["metrics"].filter(pl.col("run").is_in(runs.filter(lost)["run"].to_list()))
    assert rows["epoch"].max() == 0
    assert rows["value"].is_finite().all()
    assert set(study.tables["sites"]["subject"]) == set(runs.filter(edit="none", seed=2)["run"])
    assert set(study.tables["claims"].filter(pl.col("part").is_null())["verdict"]) <= {"inconclusive", "not tested"}


def test_lost_numbers_are_missing_rows_and_versions_and_claims_those_of_the_time_of_the_run(
    whole, tmp_path, monkeypatch
):
    shutil.copytree(whole.folder, tmp_path / "study")
    path = sorted((tmp_path / "study").glob("evaluations/*/rewind-q@1.json"))[0]
    body = read_json(path, "")
    body["rows"][0]["value"] = None
    write_json(path, body)
    sites = trisect.render(tmp_path / "study").tables["sites"]
    assert sites.height == whole.tables["sites"].height - 1
    assert sites["value"].is_finite().all()
    monkeypatch.setattr("trisect.claims.claims_hash", lambda: "another")
    monkeypatch.setattr("trisect.core.machine.version", lambda _: "99")
    again = trisect.render(tmp_path / "study")
    assert again.tables["runs"].equals(whole.tables["runs"])


def test_a_stopped_study_goes_on_from_its_last_epoch_and_not_from_the_start(tmp_path, monkeypatch):
    long = replace(tiny.EXPERIMENT, training=replace(tiny.TRAINING, epochs=6), seeds=(1,), attack=None, rewind=None)
    step, count = train.Trainer.step, [0]
    epoch = train.Trainer(list(make_plan(long).runs[:1]), tiny.corpus()).steps_per_epoch

    def counting(self):
        count[0] += 1
        if count[0] == 4 * epoch + 3:
            raise KeyboardInterrupt
        return step(self)

    monkeypatch.setattr(train.Trainer, "step", counting)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "study", long)
    before = count[0]
    run(tmp_path / "study", long)
    assert count[0] - before == 2 * epoch


def test_what_is_killed_before_its_end_can_be_reported(tmp_path, monkeypatch):
    note, count = lab._note, [0]

    def only_once(*rest):
        count[0] += 1
        if count[0] == 1:  # a killed process writes no second note
            note(*rest)

    monkeypatch.setattr(lab, "_note", only_once)
    monkeypatch.setattr(lab, "run_jobs", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "study")
    assert trisect.render(tmp_path / "study").tables["runs"].height == 0


def test_evaluations_do_not_outlive_the_baseline_that_they_measured(whole, tmp_path):
    shutil.copytree(whole.folder, tmp_path / "study")
    baseline = whole.tables["runs"].filter(edit="none", seed=1)["run"][0]
    shutil.rmtree(tmp_path / "study" / "runs" / baseline)
    old = tmp_path / "study" / "evaluations" / baseline / "rewind-q@1.json"
    old.write_text(old.read_text() + " ")
    assert_same(run(tmp_path / "study"), whole)
    assert not old.read_text().endswith(" ")


def test_a_plan_runs_nothing_counts_everything_and_its_fleets_mix_no_seeds_labels_or_trainings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan = trisect.plan(tiny.EXPERIMENT)
    assert len(plan.runs) == 14
    assert all(isinstance(r, Run) for r in plan.runs)
    assert plan.parameters == train.Trainer(list(plan.runs[:1]), plan.corpus).flat.shape[1]
    assert plan.train_seconds > 0
    assert plan.rewind_seconds > 0
    assert list(tmp_path.iterdir()) == []
    assert json.loads(json.dumps(plan.data()))["runs"] == [r.id for r in plan.runs]
    runs = [*tiny.runs(1), *tiny.runs(2)]
    grouped = fleets(runs)
    assert fleets(runs) == grouped
    assert sorted(r.id for f in grouped for r in f) == sorted(r.id for r in runs)
    for fleet in grouped:
        assert len({(r.seed, r.training, r.edit.column if r.edit else None) for r in fleet}) == 1
        assert len(fleet) <= 8
    assert [any(r.edit is None for r in f) for f in grouped] == [True, True, False, False]


@pytest.mark.parametrize(
    ("asked", "named", "error", "words"),
    [
        (replace(ONE, attack=None, text=replace(tiny.TEXT, min_count=10**9)), {}, CorpusError, "one word type"),
        (replace(ONE, attack=None, text=replace(tiny.TEXT, valid_tokens=3)), {}, CorpusError, "too short"),
        (replace(tiny.EXPERIMENT, attack=Attack(tiny.SITES, ("mood",))), {}, CorpusError, "'mood'"),
        (tiny.EXPERIMENT, {"device": "cuda"}, SpecError, "'cuda' was asked for"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is_made(tmp_path, monkeypatch, asked, named, error, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(error, match=words):
        trisect.study(asked, **{"out": tmp_path / "study", "quiet": True} | named)
    with pytest.raises(StudyError, match="holds no study"):
        trisect.render(tmp_path)
    assert not list(tmp_path.iterdir())


def test_exact_rewinding_evaluates_every_point(tmp_path):
    both = {}
    for mode, least in (("exact", 101), ("adaptive", 17)):
        wanted = replace(ONE, attack=None, freeze=None, rewind=Rewind(SITE, mode=mode, midstage=False))
        sites = run(tmp_path / mode, wanted).tables["sites"]
        spent = sites.filter(measure="rewind_evaluations")["value"]
        assert spent.min() == least
        both[mode] = sites.filter(measure="rewind_loss_nats").sort("split", "at")["value"]
    assert max((both["exact"] - both["adaptive"]).abs()) < 1e-3
