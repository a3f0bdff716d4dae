"""What trained a run, to the bit: stated in its record, and never two in one study."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests import tiny

from trisect.core.errors import SpecError, StudyError
from trisect.core.files import write_json
from trisect.core.machine import Machine
from trisect.core.spec import plain
from trisect.engine.devices import choose_device
from trisect.experiments.study import tasks
from trisect.experiments.study.presets import find_experiment
from trisect.experiments.study.run import TrainedSoFar, check_precision, check_step
from trisect.experiments.study.tasks import StudyJob, Task
from trisect.lab.folder import Folder
from trisect.lm.matmul import STEP, check_numerics, numerics

ONEDNN, OTHER = "step 2, float32 products by oneDNN (medium)", "step 2, float32 products by MKL (highest)"


def test_what_trains_a_run_names_step_precision_library_setting_and_device(monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Abacus 9")
    narrow = f"step {STEP}, bfloat16 (revision 2) products"
    assert numerics("cpu", "float32", "medium") == f"step {STEP}, float32 products by oneDNN (medium) on AVX2"
    assert numerics("cpu", "bfloat16", "highest") == f"{narrow} by oneDNN (highest) on AVX2"
    assert numerics("cuda", "bfloat16", "highest") == f"{narrow} by cuBLAS (highest) on Abacus 9"
    for said, library in (
        ("Intel(R) oneAPI Math Kernel Library Version 2024.2", "MKL"),
        ("BLAS_INFO=open, BUILD_TYPE=Release", "OpenBLAS"),
        ("BLAS_INFO=accelerate", "Accelerate"),
        ("", "BLAS"),
    ):
        monkeypatch.setattr(torch.__config__, "show", lambda said=said: said)
        assert numerics("cpu", "float32", "highest") == f"step {STEP}, float32 products by {library} (highest) on AVX2"


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_shorter_note_is_compared_as_far_as_it_goes(precision):
    """Notes from before there were devices in them, and of bfloat16 on a CPU from before its revision was named."""
    here = numerics("cpu", precision, "medium")
    before = f"step {STEP}, {precision} products by oneDNN (medium)"
    check_numerics(before, here)
    with pytest.raises(StudyError):
        check_numerics(before.replace("oneDNN", "MKL"), here)
    with pytest.raises(StudyError):
        check_numerics(here.replace(" on ", " on other than "), here)


def test_bfloat16_of_a_gpu_before_its_second_revision_does_not_go_on(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Abacus 9")
    check_numerics(f"step {STEP}, float32 products by cuBLAS (highest)", numerics("cuda", "float32", "highest"))
    with pytest.raises(StudyError):
        check_numerics(f"step {STEP}, bfloat16 products by cuBLAS (highest)", numerics("cuda", "bfloat16", "highest"))


def test_a_node_without_narrow_products_refuses_to_train_with_them(monkeypatch):
    monkeypatch.setattr("trisect.engine.devices.narrow_here", lambda: False)
    asked: Any = StudyJob("train", (), "", "", {}, (), None, "cpu", "bfloat16")
    nothing: Any = None
    with pytest.raises(SpecError) as error:
        tasks._train(asked, nothing, [], nothing, nothing, "highest")
    assert error.value.given == "The precision 'bfloat16' was asked for on the CPU."
    assert choose_device(Machine("cpu", precision="bfloat16", engine="ray")) == "cpu"  # the driver trains nothing


def test_narrow_products_are_refused_in_quick_and_warned_of_where_effects_are_small(monkeypatch):
    quick, paper = find_experiment("quick"), find_experiment("paper")
    check_precision([quick], "float32")
    with pytest.raises(SpecError) as error:
        check_precision([quick], "bfloat16")
    assert " ".join(str(error.value).split()) == (
        "The precision 'bfloat16' was asked for in 'quick'. At its size large products are a small part of a step, and its "
        "effects are small beside what rounding moves. Leave --precision out."
    )
    with pytest.warns(UserWarning, match="bfloat16 products moved effects of freezing by more than their spread"):
        check_precision([paper], "bfloat16")
    check_precision([replace(paper, freeze=None, rewind=None)], "bfloat16")  # a warning would be an error here


def test_narrow_products_need_a_processor_that_has_them(monkeypatch):
    asked = Machine("cpu", precision="bfloat16")
    monkeypatch.setattr("trisect.engine.devices.narrow_here", lambda: True)
    assert choose_device(asked) == "cpu"
    monkeypatch.setattr("trisect.engine.devices.narrow_here", lambda: False)
    with pytest.raises(SpecError) as error:
        choose_device(asked)
    assert " ".join(str(error.value).split()) == (
        "The precision 'bfloat16' was asked for on the CPU. PyTorch has no fast bfloat16 products on this processor (it needs "
        "AVX-512 or AMX). Leave --precision out, or give --device cuda where there is one."
    )


def test_a_study_is_never_trained_by_two_libraries():
    check_numerics(None, OTHER)
    check_numerics(ONEDNN, ONEDNN)
    with pytest.raises(StudyError) as error:
        check_numerics(ONEDNN, OTHER)
    assert " ".join(str(error.value).split()) == (
        f"The study was trained so far with: {ONEDNN}. Here it would be: {OTHER}. That moves effects, and the runs of a "
        "study are compared with one another. Go on where the study began, or choose another folder with --out."
    )


def ledger(**more):
    body: Any = {
        "base": {},
        "experiment": {},
        "runs": {"a-1-0": {}, "b-1-0": {}},
        "fleets": [["a-1-0", "b-1-0"]],
        **more,
    }
    return body


def test_a_study_of_an_earlier_step_is_evaluated_and_never_trained_further(tmp_path):
    folder, train, cut = Folder(tmp_path), Task("train", ("a-1-0", "b-1-0")), Task("cut", ("a-1-0",))
    check_step(folder, ledger(), [cut])
    check_step(folder, ledger(step=STEP), [train, cut])
    with pytest.raises(StudyError) as error:
        check_step(folder, ledger(), [train, cut])
    assert " ".join(str(error.value).split()) == (
        f"{tmp_path} belongs to a study that revision 1 of the training step began. 2 of its runs are not trained yet, this "
        f"version trains with revision {STEP}, whose last bits differ, and the runs of a study are compared with one "
        "another. Go on with the version of trisect that began it, or choose another folder with --out; what is finished "
        "can be reported and evaluated."
    )


def finished(folder, run, how):
    record = {
        "spec": plain(tiny.runs()[0]),
        "status": "finished",
        "diverged_step": None,
        "parameters": 1,
        "versions": {},
        "claims_hash": "",
        "device": "cpu",
        "wall_seconds": 1.0,
        "metrics": [],
    }
    write_json(folder.run(run), record | ({} if how is None else {"numerics": how}))


def test_runs_that_two_machines_trained_in_two_ways_stop_the_study(tmp_path):
    folder = Folder(tmp_path)
    trained = TrainedSoFar(folder, ledger())
    assert trained.expected is None
    finished(folder, "a-1-0", ONEDNN)
    trained.add(["a-1-0"])
    assert trained.expected == ONEDNN == TrainedSoFar(folder, ledger()).expected
    finished(folder, "b-1-0", f"{ONEDNN} on AVX2")
    assert TrainedSoFar(folder, ledger()).expected == f"{ONEDNN} on AVX2"  # the two agree, and it says more
    finished(folder, "b-1-0", OTHER)
    with pytest.raises(StudyError) as error:
        trained.add(["b-1-0"])
    assert " ".join(str(error.value).split()) == (
        f"Runs of {tmp_path} were trained in two ways. They are: {OTHER}; {ONEDNN}. The runs of a study are compared with "
        "one another. Delete the folders of those runs that are to be trained again, and use machines of one kind."
    )


def test_runs_that_note_nothing_expect_nothing(tmp_path):
    folder = Folder(tmp_path)
    finished(folder, "a-1-0", None)
    assert TrainedSoFar(folder, ledger()).expected is None
