"""How a study spreads over cores and GPUs, and the size of its fleets, which it keeps."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import tiny

import trisect
from trisect.core.errors import CorpusError, StudyError
from trisect.core.methods import Attack
from trisect.core.spec import Design
from trisect.experiments.study.plan import FLEET, fleets, gpu_seconds, join_ledger, make_plan, makespan
from trisect.experiments.study.presets import find_experiments
from trisect.experiments.study.settings import StudyMachine
from trisect.lab.folder import Folder
from trisect.lab.inputs import Workers
from trisect.text.corpus import Corpus, Split

JOBS = st.lists(st.floats(0, 1e6), max_size=30)


@given(JOBS, st.integers(1, 40))
def test_jobs_end_no_sooner_than_they_can_and_within_twice_that(jobs, places):
    least, found = max(sum(jobs) / places, max(jobs, default=0)), makespan(jobs, places)
    assert least * (1 - 1e-9) <= found <= 2 * least * (1 + 1e-9)


@given(JOBS)
def test_one_place_takes_the_sum_and_enough_places_the_longest(jobs):
    assert makespan(jobs, 1) == pytest.approx(sum(jobs))
    assert makespan(jobs, len(jobs) + 1) == max(jobs, default=0)


def test_smaller_fleets_are_more_jobs_of_the_same_runs():
    runs = list(replace(find_experiments("paper")[0], seeds=(1, 2, 3, 4, 5)).resolved().runs("0" * 32))
    found = {size: fleets(runs, size) for size in (32, 8, 4)}
    assert [len(teams) for teams in found.values()] == [15, 35, 70]
    for size, teams in found.items():
        assert sorted(run.id for team in teams for run in team) == sorted(run.id for run in runs)
        assert max(map(len, teams)) <= size


def test_a_plan_says_its_jobs_and_times():
    one, many = (make_plan(tiny.EXPERIMENT, fleet=size) for size in (1, None))
    assert len(one.training) == len(one.runs)
    assert many.fleet == FLEET["cpu"]
    assert many.rewind_seconds == one.rewind_seconds > 0
    assert many.train_seconds == pytest.approx(one.train_seconds)
    shown = trisect.plan(tiny.EXPERIMENT, fleet=1, workers=3, gpus=2)
    words = [line.split()[0] for line in shown.words()]
    assert words.index("jobs") < words.index("spread") < words.index("GPUs")
    assert "expected, not measured" in "\n".join(shown.words())
    assert (shown.data()["jobs"]["cores"], shown.data()["jobs"]["gpus"]) == (3, 2)
    assert "GPUs" not in [line.split()[0] for line in many.words()]


def test_a_plan_of_gpus_reckons_as_a_gpu_was_measured():
    """Member-steps a second of the paper's model by size of fleet, float32 and recorded: the table of the documents."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "gpu.md").read_text(encoding="utf-8")
    cells = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if re.match(r"\| \d+ ", line)
    ]
    measured = {int(row[0].split()[0]): (row[2], row[6]) for row in cells}
    assert set(measured) == {1, 4, 8, 16, 21}
    ids = np.arange(20 * 36 * 2, dtype=np.int32)
    labels = {name: (ids % n).astype(np.int16) for name, n in (("pos", 17), ("dep", 37))}
    names = {name: tuple(map(str, range(int(ids.max()) + 1)[:37])) for name, ids in labels.items()}
    splits = {name: Split(ids, labels) for name in ("train", "valid")}
    text = Corpus.make("shapes", tuple(map(str, range(28_782))), names, splits)
    compared = 0
    runs = [run for run in find_experiments("paper")[0].resolved().runs(text.fingerprint) if run.seed == 1]
    for size, numbers in measured.items():
        for attacked, number in zip((False, True), numbers, strict=True):
            team = [r for r in runs if (r.edit is not None and r.edit.column is not None) is attacked][:size]
            if number == "–" or len(team) < size - 1:
                continue
            a_step = gpu_seconds(team, text) * 700 / len(text.splits["train"].tokens) / team[0].training.epochs
            assert len(team) / a_step == pytest.approx(float(number.replace(",", "")), rel=0.25)
            compared += 1
    assert compared == 9


def test_a_plan_answers_without_the_labels_and_a_study_does_not():
    unlabelled = replace(tiny.EXPERIMENT, attack=Attack(tiny.SITES, ("mood",)))
    plan = trisect.plan(unlabelled)
    usual = trisect.plan(replace(tiny.EXPERIMENT, attack=Attack(tiny.SITES, ("pos",))))
    assert (len(plan.runs), plan.train_seconds) == (len(usual.runs), usual.train_seconds)
    assert [line for line in plan.words() if line.startswith("labels") and "'mood'" in line]
    assert plan.data()["corpus"]["missing_labels"] == ["mood"]
    assert "missing_labels" not in usual.data()["corpus"]
    with pytest.raises(CorpusError, match="no label column 'mood'"):
        make_plan(unlabelled)


def test_a_study_keeps_the_size_of_its_fleets(tmp_path):
    folder, corpus = Folder(tmp_path), make_plan(tiny.EXPERIMENT).corpus.fingerprint
    first = join_ledger(folder, [tiny.EXPERIMENT], corpus, fleet=2)
    assert first.fleet == 2
    assert max(map(len, first.fleets)) == 2
    assert join_ledger(folder, [tiny.EXPERIMENT], corpus) == first
    with pytest.raises(StudyError) as caught:
        join_ledger(folder, [tiny.EXPERIMENT], corpus, fleet=8)
    assert caught.value.problem == f"{tmp_path} belongs to a study with fleets of up to 2 runs."
    assert "--fleet 8 is asked for" in caught.value.reason
    assert isinstance(tiny.EXPERIMENT, Design)


def test_the_workers_of_a_dissection_are_those_of_its_studies():
    given = Workers("cuda", 3, "ray")
    found = StudyMachine.of(given).machine(True)
    assert found == given.machine(True)
    assert (found.device, found.workers, found.engine) == ("cuda", 3, "ray")
