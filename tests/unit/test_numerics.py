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
from trisect.engine.start import choose_device
from trisect.experiments.study import tasks
from trisect.experiments.study.run import PreparedStudy, _add_numerics
from trisect.experiments.study.settings import DesignSource, StudySettings
from trisect.experiments.study.tasks import StudyJob
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


def test_a_node_without_narrow_products_refuses_to_train_with_them(monkeypatch):
    monkeypatch.setattr("trisect.engine.start.has_bfloat16", lambda: False)
    asked: Any = StudyJob("train", (), "", "", tiny.EXPERIMENT, "cpu", "bfloat16")
    nothing: Any = None
    with pytest.raises(SpecError) as error:
        tasks._train(asked, nothing, nothing, nothing, "highest")
    assert error.value.problem == "The precision 'bfloat16' was asked for on the CPU."
    assert choose_device(Machine("cpu", precision="bfloat16", engine="ray")) == "cpu"  # the driver trains nothing


def test_narrow_products_are_refused_in_quick_and_warned_of_where_effects_are_small(monkeypatch):
    monkeypatch.setattr("trisect.engine.start.has_bfloat16", lambda: True)
    narrow = Machine("cpu", precision="bfloat16")

    def prepare(experiment, machine=narrow):
        return PreparedStudy.prepare(StudySettings(DesignSource(experiment)), machine)

    prepare("quick", Machine("cpu"))
    with pytest.raises(SpecError, match=r"(?s)'bfloat16' .*in 'quick'.*Leave --precision out"):
        prepare("quick")
    with pytest.warns(UserWarning, match="bfloat16 products moved effects of freezing by more than their spread"):
        prepare(tiny.EXPERIMENT)
    prepare(replace(tiny.EXPERIMENT, freeze=None, rewind=None))  # a warning would be an error here


def test_narrow_products_need_a_processor_that_has_them(monkeypatch):
    asked = Machine("cpu", precision="bfloat16")
    monkeypatch.setattr("trisect.engine.start.has_bfloat16", lambda: True)
    assert choose_device(asked) == "cpu"
    monkeypatch.setattr("trisect.engine.start.has_bfloat16", lambda: False)
    with pytest.raises(SpecError, match=r"(?s)'bfloat16' .*on the CPU.*AVX-512 or AMX.*--device cuda"):
        choose_device(asked)


def test_a_study_is_never_trained_by_two_libraries():
    check_numerics(None, OTHER)
    check_numerics(ONEDNN, ONEDNN)
    with pytest.raises(StudyError) as error:
        check_numerics(ONEDNN, OTHER)
    assert ONEDNN in error.value.problem
    assert OTHER in error.value.reason


def finished(folder, run, how):
    record = {
        "spec": plain(tiny.runs()[0]),
        "status": "finished",
        "diverged_step": None,
        "parameters": 1,
        "versions": {},
        "claims_hash": "",
        "revision": 1,
        "device": "cpu",
        "precision": "float32",
        "products": "medium",
        "numerics": how,
        "processor": "",
        "recorded": False,
        "wall_seconds": 1.0,
        "metrics": [],
    }
    write_json(folder.run(run), record)


def test_runs_that_two_machines_trained_in_two_ways_stop_the_study(tmp_path):
    folder, known = Folder(tmp_path), set[str]()
    _add_numerics(known, folder, ("a-1-0", "b-1-0"))
    assert known == set()
    finished(folder, "a-1-0", ONEDNN)
    _add_numerics(known, folder, ("a-1-0", "b-1-0"))
    assert known == {ONEDNN}
    finished(folder, "b-1-0", OTHER)
    with pytest.raises(StudyError, match="trained in two ways") as error:
        _add_numerics(known, folder, ["b-1-0"])
    assert ONEDNN in error.value.reason
    assert OTHER in error.value.reason
