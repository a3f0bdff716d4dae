"""What nothing noticed when it was changed on purpose (make mutants): each line here fails where one of those changes is made."""

import json
import os
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests import tinyhf

from trisect.core.errors import ModelError
from trisect.core.files import replace_file, write_json
from trisect.core.subject import Batch
from trisect.core.trace import Address, Side
from trisect.experiments.study.plan import Task
from trisect.experiments.study.run import StudyWork
from trisect.hf.files.fetch import Options, fetch
from trisect.hf.load import load
from trisect.lab.folder import Folder
from trisect.lab.pairs import patched_sides

CODE = """
import pathlib
pathlib.Path({mark!r}).write_text("it ran")
from transformers import GPT2Config, GPT2LMHeadModel
class OwnConfig(GPT2Config):
    model_type = "own"
class OwnModel(GPT2LMHeadModel):
    config_class = OwnConfig
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tinyhf.save(tinyhf.gpt2(), tmp_path_factory.mktemp("m") / "gpt2", False)


def test_code_of_a_models_folder_does_not_run_unless_it_is_allowed(tmp_path):
    place, mark = tinyhf.save(tinyhf.gpt2(), tmp_path / "own", False), tmp_path / "mark"
    (place / "own.py").write_text(CODE.format(mark=str(mark)))
    body = json.loads((place / "config.json").read_text())
    body |= {"model_type": "own", "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}}
    (place / "config.json").write_text(json.dumps(body))
    with pytest.raises(ModelError, match="needs code of its own"):
        fetch(place, Options())
    assert not mark.exists()


@pytest.mark.parametrize("option", [False, True])
def test_what_is_allowed_reaches_every_loader_as_it_was_given(folder, monkeypatch, option):
    seen: list[tuple[str, dict[str, Any]]] = []

    def spied(kind, name):
        real = getattr(kind, name).__func__

        def call(cls, *rest, **named):
            seen.append((kind.__name__, named))
            return real(cls, *rest, **named)

        monkeypatch.setattr(kind, name, classmethod(call))

    for kind in (transformers.AutoConfig, transformers.AutoModelForCausalLM, transformers.AutoTokenizer):
        spied(kind, "from_pretrained")
    fetch(folder, Options(remote_code=option, pickle=option))
    named = dict(seen)
    assert set(named) >= {"AutoConfig", "AutoModelForCausalLM", "AutoTokenizer"}
    assert all(given["trust_remote_code"] is option for given in named.values())
    assert named["AutoModelForCausalLM"]["use_safetensors"] is (None if option else True)


def test_cross_attention_asks_with_the_target_and_looks_at_the_source():
    source, target = (Side(None, torch.ones(1, n, dtype=torch.bool), None, None) for n in (3, 5))  # pyright: ignore[reportArgumentType]
    batch = Batch({}, source, target, ((0, 0),))
    assert (batch.queries("cross"), batch.keys("cross")) == (target, source)
    assert (batch.queries("dec"), batch.keys("dec")) == (target, target)
    assert (batch.queries("enc"), batch.keys("enc")) == (source, source)
    subject = load(tinyhf.bart(), tinyhf.tokenizer())
    reading = subject.read([("w1 w2 w3 w4 w5 w6", "w7 w8")])
    cross = next(t for t in reading.traces if t.address == Address("cross", 1))
    assert cross.key_real.shape[1] == reading.source.real.shape[1] == cross.weights.shape[3]
    assert cross.query_real.shape[1] != cross.key_real.shape[1]


def test_where_the_answer_stands_is_what_is_patched_as_last():
    side = Side((("a", "b", "c"),), torch.ones(1, 3, dtype=torch.bool), torch.zeros(1, 3, dtype=torch.bool), None)  # pyright: ignore[reportArgumentType]
    batch = Batch({}, side, None, ((0, 0),))
    for at, place in ((None, 2), (torch.tensor([1]), 1)):
        assert patched_sides(batch, batch, "last", at).source.tolist() == [[n == place for n in range(3)]]


def test_a_file_is_renamed_into_place_and_never_written_where_it_lies(tmp_path):
    path = tmp_path / "x.json"
    write_json(path, {"a": 1})
    first, number = path.read_bytes(), path.stat().st_ino
    with path.open("rb") as reader:  # who has it open goes on reading the old one
        write_json(path, {"a": 2, "b": "longer than before"})
        assert reader.read() == first
        assert path.stat().st_ino != number
    assert not [p for p in tmp_path.iterdir() if p != path]


def test_bytes_are_on_the_disk_before_a_file_has_its_name(tmp_path, monkeypatch):
    path, flushed = tmp_path / "x", []
    real = os.fsync

    def fsync(number):
        flushed.append((os.fstat(number).st_size, path.exists()))
        real(number)

    monkeypatch.setattr(os, "fsync", fsync)
    replace_file(path, lambda scratch: scratch.write_bytes(b"12345"))
    assert flushed == [(5, False)]
    replace_file(path, lambda scratch: scratch.write_bytes(b"1"), durable=False)
    assert len(flushed) == 1


@pytest.mark.parametrize(("kind", "left"), [("train", []), ("rewind", ["one.json"])])
def test_an_evaluation_that_sends_its_runs_files_leaves_the_others_there(tmp_path, kind, left):
    folder, run = Folder(tmp_path), "baseline-s1"
    write_json(folder.evaluations(run) / "one.json", {})
    work = StudyWork(Task(kind, (run,)), folder, {}, "cpu", "float32", set(), set())  # pyright: ignore[reportArgumentType]
    name = folder.run(run).relative_to(tmp_path).as_posix()
    work.land({name: b"{}"})
    assert folder.run(run).read_bytes() == b"{}"
    assert [path.name for path in folder.evaluations(run).glob("*")] == left


def test_listed_survivors_are_changes_of_what_stands():
    root = Path(__file__).parents[2]
    tool = runpy.run_path(str(root / "tools" / "mutants.py"))
    for line in (root / "tools" / "survivors.txt").read_text(encoding="utf-8").splitlines():
        mutant, _, reason = line.partition(" | ")
        assert reason
        assert mutant in map(str, tool["mutants"](root / "src" / "trisect" / mutant.split()[0]))
