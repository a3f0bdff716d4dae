"""How a study spreads over cores and GPUs, and the size of its fleets, which it keeps."""

from dataclasses import replace

import pytest
from bench import estimate
from hypothesis import given
from hypothesis import strategies as st
from tests import tiny
from torch.utils.flop_counter import FlopCounterMode

import trisect
from trisect.core.errors import StudyError
from trisect.core.spec import Design
from trisect.experiments.study.ledger import FLEET, fleets, join_ledger
from trisect.experiments.study.plan import gpu_seconds, make_plan, makespan
from trisect.experiments.study.presets import find_experiments
from trisect.experiments.study.settings import StudyMachine
from trisect.lab.folder import Folder
from trisect.lab.inputs import Workers
from trisect.lm import loss, train
from trisect.lm.matmul import sum_repeats
from trisect.lm.train import Trainer

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


def test_a_plan_says_its_jobs_and_times(tmp_path):
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


@pytest.mark.parametrize("attacked", [False, True])
def test_what_an_estimate_counts_of_a_step_without_numbers_is_what_a_step_multiplies(attacked, monkeypatch):
    """A step as it is on a GPU, where rows that repeat are summed by a product."""
    for module in (train, loss):
        monkeypatch.setattr(
            module,
            "add_at",
            lambda table, places, rows, alpha=1.0: table.index_add_(1, places, sum_repeats(places, rows), alpha=alpha),
        )
    runs = [r for r in tiny.runs() if (r.edit is not None and r.edit.kind == "attack") is attacked]
    trainer = Trainer(runs, tiny.corpus())
    for group in tiny.attackers_of(trainer):
        group.masked = True
    with FlopCounterMode(display=False) as counter:
        trainer.step([])
    counted = estimate.count(runs, tiny.corpus())
    assert sum(one.operations for one in counted) == counter.get_total_flops() > 0
    assert sum(one.moved for one in counted) > 20 * trainer.flat.numel()


def test_a_plan_of_gpus_reckons_as_the_estimate_in_the_docs_which_is_marked_as_one():
    page = estimate.PAGE.read_text(encoding="utf-8")
    found = page.split(estimate.MARKS[0])[1].split(estimate.MARKS[1])[0]
    assert "An H200 gave" in found
    shares = estimate.shares()  # as docs/bench.json has them today, the least over processors
    assert f"reaches {100 * shares['float32']:.0f} % and {100 * shares['bfloat16']:.0f} %" in found
    assert f"{estimate.TRAIN:,} tokens, {estimate.VOCABULARY:,} types" in found
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in found.splitlines() if "| float32 |" in line]
    assert [int(row[0]) for row in cells] == list(estimate.SIZES)
    paper, text = find_experiments("paper")[0].resolved(), estimate.stand_in()
    for row, size in zip(cells, estimate.SIZES, strict=True):
        teams = fleets(list(paper.runs(text.fingerprint)), size)
        for attacked, cell in ((False, row[-2]), (True, row[-1])):
            some = [t for t in teams if any(r.edit is not None and r.edit.column for r in t) is attacked]
            team = max(some, key=len)
            tokens = len(text.splits["train"].tokens)
            a_step = gpu_seconds(team, text) * 700 / tokens / team[0].training.epochs
            assert len(team) / a_step == pytest.approx(float(cell.replace(",", "")), rel=0.1)


def test_a_study_keeps_the_size_of_its_fleets(tmp_path):
    folder, corpus = Folder(tmp_path), make_plan(tiny.EXPERIMENT).corpus.fingerprint
    first = join_ledger(folder, [tiny.EXPERIMENT], corpus, fleet=2)
    assert first.fleet == 2
    assert max(map(len, first.fleets)) == 2
    assert join_ledger(folder, [tiny.EXPERIMENT], corpus) == first
    with pytest.raises(StudyError) as caught:
        join_ledger(folder, [tiny.EXPERIMENT], corpus, fleet=8)
    assert caught.value.given == f"{tmp_path} belongs to a study with fleets of up to 2 runs."
    assert "--fleet 8 is asked for" in caught.value.known
    assert isinstance(tiny.EXPERIMENT, Design)


def test_the_workers_of_a_dissection_are_those_of_its_studies():
    given = Workers("cuda", 3, "ray")
    found = StudyMachine.of(given).machine(True)
    assert found == given.machine(True)
    assert (found.device, found.workers, found.engine) == ("cuda", 3, "ray")
