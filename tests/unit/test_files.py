"""Files that are whole or not there, tensors kept in a temporary file, and a number made of the bits of every tensor."""

from __future__ import annotations

import errno
import os
import tempfile
import threading
from pathlib import Path
from typing import Any, NotRequired

import numpy as np
import polars as pl
import pytest
import torch
from tests import tinyhf
from torch import Tensor, nn
from typing_extensions import TypedDict

from trisect.core import files
from trisect.core.errors import DamagedFileError, StudyError
from trisect.core.files import (
    canonical,
    digest,
    file_name,
    read_json,
    read_json_list,
    read_record,
    read_strict,
    remove_scratch,
    safe_join,
    write_json,
)  # fmt: skip
from trisect.core.subject import Texts
from trisect.core.tables import SCHEMAS, STUDY_TABLES, frame, read_table, write_table
from trisect.experiments.ablate.run import TextsRead, make_replacement
from trisect.hf.files.checkpoints import State
from trisect.hf.load import Pretrained, load
from trisect.lab.passes import to_disk, weights_to_hold
from trisect.lm.snapshots import read_snapshot, write_snapshot


def test_canonical_text_knows_no_order_and_no_nan():
    assert canonical({"b": 1, "a": [1.5, None, True]}) == '{"a":[1.5,null,true],"b":1}'
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical(float("nan"))
    assert digest("x") == digest(b"x") != digest("y")


def test_json_comes_back_bit_for_bit(tmp_path):
    numbers = np.random.default_rng(0).normal(size=200).tolist()
    write_json(tmp_path / "a" / "x.json", {"numbers": numbers})
    assert read_json(tmp_path / "a" / "x.json", "Delete it.")["numbers"] == numbers


@pytest.mark.parametrize("content", ["", "{", "[]", '{"body": 1}', '{"body": 1, "checksum": "0"}'])
def test_json_that_is_not_whole_is_damaged(tmp_path, content):
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(DamagedFileError, match=r"x\.json") as caught:
        read_json(tmp_path / "x.json", "Delete it.")
    assert caught.value.todo == "Delete it."


@pytest.mark.parametrize(("size", "words"), [(100, "Expecting value"), (101, "more than 100 bytes")])
def test_of_what_does_not_say_its_size_no_more_than_the_bound_is_read(tmp_path, monkeypatch, size, words):
    monkeypatch.setattr(files, "MAX_JSON_BYTES", 100)
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_bytes(b" " * size))
    writer.start()
    with pytest.raises(ValueError, match=words):
        read_strict(tmp_path / "pipe")
    writer.join()


def test_scratch_that_is_a_link_stays_with_what_it_leads_to(tmp_path):
    other, link = tmp_path / "other", tmp_path / f".x.{os.getpid()}-01234567.trisect-part"
    other.write_text("theirs")
    real = link.with_name(f".y.{os.getpid()}-01234567.trisect-part")
    real.write_text("half")
    link.symlink_to(other)
    remove_scratch([tmp_path])
    assert sorted(tmp_path.iterdir()) == sorted([link, other])


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StudyError, match="could not be written") as caught:
        write_json(tmp_path / "file" / "x.json", 1)
    assert "The system says" in caught.value.reason


@pytest.mark.parametrize("harm", ["byte in tensors", "byte in note", "cut"])
def test_snapshots_come_back_whole_or_not_at_all(tmp_path, harm):
    path = tmp_path / "x.safetensors"
    tensors = {"a": torch.arange(6, dtype=torch.float64).view(2, 3), "empty": torch.zeros(0), "step": torch.tensor(3.0)}
    write_snapshot(path, tensors, {"epoch": 3})
    found, note = read_snapshot(path, "Delete it.")
    assert note == {"epoch": 3}
    assert all(torch.equal(found[n], t) for n, t in tensors.items())
    content = bytearray(path.read_bytes())
    if harm == "cut":
        content = content[:-4]
    else:
        place = -3 if harm == "byte in tensors" else content.index(b"epoch")
        content[place] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(DamagedFileError, match=r"x\.safetensors"):
        read_snapshot(path, "Delete it.")


def test_rows_become_the_same_table_in_any_order(tmp_path):
    rows = [
        {"run": r, "epoch": e, "split": "train", "name": "loss_nats", "value": float(e)} for r in "ab" for e in range(3)
    ]
    table = frame("metrics", rows)
    assert table.equals(frame("metrics", rows[::-1]))
    assert frame("metrics", []).schema == table.schema
    write_table(tmp_path, "metrics", table)
    assert read_table(tmp_path, "metrics").equals(table)


def test_tables_with_other_columns_are_refused(tmp_path):
    write_table(tmp_path, "runs", pl.DataFrame({"run": ["a"]}))
    with pytest.raises(DamagedFileError, match="has other columns than 'runs'"):
        read_table(tmp_path, "runs")
    with pytest.raises(DamagedFileError, match="cannot be read"):
        read_table(tmp_path, "metrics")
    assert (
        set(STUDY_TABLES)
        == {"runs", "metrics", "sites", "claims", "controls"}
        == set(SCHEMAS) - {"measures", "answers", "translations"}
    )


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "a/b", "/a", "../a", "a\\b", "a\0b", "a\nb", "x" * 221, "\ud800"]
)
def test_what_is_no_name_never_becomes_a_path(tmp_path, name):
    with pytest.raises(StudyError, match="cannot be a file's name") as caught:
        safe_join(tmp_path, "runs", name)
    assert caught.value.problem.startswith(repr(name))
    assert safe_join(tmp_path, "runs", file_name(name)).parent == tmp_path / "runs"


@pytest.mark.parametrize("name", ["run.json", "attack-pos-q+k@1-2-s1-0a1b2c3d", "morph.Gender[psor]", "ä b", "x" * 220])
def test_a_plain_name_stays_as_it_is(tmp_path, name):
    assert safe_join(tmp_path, file_name(name)) == tmp_path / name


def test_names_made_from_hashes_differ():
    assert len({file_name(name) for name in ("a/b", "a/c", "..", ".", "", "\ud800")}) == 6


def test_what_is_read_is_an_object_or_a_list_as_asked(tmp_path):
    write_json(tmp_path / "list.json", [1, 2])
    write_json(tmp_path / "object.json", {"a": 1})
    assert read_json_list(tmp_path / "list.json", "Delete it.") == [1, 2]
    for read, name, known in (
        (read_json, "list.json", "It holds a list, not an object."),
        (read_json_list, "object.json", "It holds a dict, not a list."),
    ):
        with pytest.raises(DamagedFileError) as caught:
            read(tmp_path / name, "Delete it.")
        assert (caught.value.problem, caught.value.reason, caught.value.todo) == (
            f"{tmp_path / name} is damaged.",
            known,
            "Delete it.",
        )


class Card(TypedDict):
    """A record with a field that earlier versions did not write."""

    name: str
    rows: list[dict[str, int]]
    more: NotRequired[dict[str, str]]


@pytest.mark.parametrize(
    ("body", "known"),
    [
        ({"name": "x", "rows": []}, None),
        ({"name": "x", "rows": [], "more": {}, "unknown": 1}, None),
        ({"rows": []}, "name"),
        ({"name": "x", "rows": {}, "more": []}, "rows"),
    ],
)
def test_a_record_has_the_keys_that_it_requires_and_lists_where_they_stand(tmp_path, body, known):
    path = tmp_path / "card.json"
    write_json(path, body)
    if known is None:
        assert read_record(path, "Delete it.", Card) == body
        return
    with pytest.raises(DamagedFileError) as caught:
        read_record(path, "Delete it.", Card)
    assert (caught.value.problem, caught.value.todo) == (f"{path} is damaged.", "Delete it.")
    assert f"Card: {known} in {path}" in caught.value.reason


TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.bool, torch.int64)


@pytest.fixture(scope="module")
def subject() -> Pretrained:
    return load(tinyhf.llama(), tinyhf.tokenizer())


def bits(tensor: Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("shape", [(3, 5), (), (0, 4), (7, 1, 3)])
def test_tensors_come_back_bit_for_bit_whatever_their_kind_and_shape(kind, shape):
    tensor = (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 9).to(kind)
    found = to_disk(tensor)
    assert (found.shape, found.dtype) == (tensor.shape, tensor.dtype)
    assert bits(found) == bits(tensor)


def test_order_and_numbers_that_are_none_stay_and_one_that_is_written_to_is_the_writers_own():
    for tensor in (torch.randn(4, 6).T, torch.tensor([float("nan"), -0.0, float("inf")])):
        one, two = to_disk(tensor), to_disk(tensor)
        one += 1
        assert bits(two) == bits(tensor) != bits(one)


@pytest.mark.parametrize("size", [4, 1 << 16])
def test_a_full_folder_of_temporary_files_is_named(size, monkeypatch):
    """A small tensor is refused when all is written, a large one at once."""
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda: Path("/dev/full").open("r+b"))  # noqa: SIM115
    with pytest.raises(StudyError) as caught:
        to_disk(torch.ones(size))
    assert str(caught.value) == (
        f"What is held over all layers cannot be stored in the folder of temporary files, {tempfile.gettempdir()}.\n  It is full.\n"
        "  Free some space there, or set TMPDIR to a folder with more of it, and run the same command again."
    )


def test_a_system_without_a_folder_of_temporary_files_says_so(monkeypatch):
    def none(*given):
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "TemporaryFile", none)
    monkeypatch.setattr(tempfile, "gettempdir", none)
    with pytest.raises(StudyError) as caught:
        to_disk(torch.ones(3))
    assert caught.value.problem == "What is held over all layers cannot be stored in the folder of temporary files."
    assert caught.value.reason == "The system says: No usable temporary directory found."


def test_held_weights_are_those_of_the_unedited_pass(subject):
    batch = next(iter(subject.batches(["the cat sat on the mat"] * 2, 2)))
    own = {trace.address: trace.weights for trace in subject.trace(batch).traces}
    held = weights_to_hold(subject, batch)
    assert set(held) == set(own)
    assert all(bits(held[a]) == bits(own[a]) for a in own)


def test_what_another_text_lends_is_put_together_for_one_layer_at_a_time(subject):
    lines = ["the cat sat on the mat", "a dog ran", "the mat"]
    texts = Texts("lines", lambda: iter(lines))
    read = TextsRead.of(texts, 0)
    list(read.stream())
    replace = make_replacement(subject, read, subject.addresses, "resample", 3, 0, lambda n: None)
    batch = next(iter(subject.batches(lines, 3, scored=True)))
    lent, again = replace(batch), replace(batch)
    first = lent(subject.addresses[0])
    assert lent(subject.addresses[0]) is first
    for address in reversed(subject.addresses):  # in any order the same
        assert all(bits(a) == bits(b) for a, b in zip(lent(address), again(address), strict=True))
        assert lent(address).q.shape[0] == len(lines)
    assert lent(subject.addresses[0]) is not first


KINDS = (torch.float64, torch.float32, torch.bfloat16, torch.int8, torch.bool, torch.complex64)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("count", [1, 130, 40_001])
@pytest.mark.parametrize("first", [0, 1, 3])
def test_one_byte_that_changed_is_noticed(kind, count, first):
    model: Any = nn.Module()
    model.register_buffer("part", torch.zeros(first + count, dtype=torch.uint8).to(kind)[first:])
    model.register_buffer("empty", torch.zeros(0, 3))
    state = State.of(model)
    assert state.changed(model) is None
    for place in {0, count // 2, count - 1}:
        model.part[place] = 1
        assert state.changed(model) == "part"
        model.part[place] = 0
    assert state.changed(model) is None


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [16, 64, 256])
def test_rows_columns_and_numbers_that_change_places_are_noticed(kind, width):
    model = nn.Linear(width, width, dtype=kind)
    state, kept = State.of(model), model.weight.data.clone()
    for one, other in ((0, 1), (0, 2), (0, 4), (1, width - 1)):
        order = list(range(width))
        order[one], order[other] = other, one
        for changed in (kept[order], kept[:, order]):
            model.weight.data[:] = changed
            assert state.changed(model) == "weight"
        model.weight.data[:] = kept
        model.bias.data[:] = model.bias.data[order]
        assert state.changed(model) == "bias"
        model.bias.data[:] = model.bias.data[order]
    assert state.changed(model) is None


@pytest.mark.parametrize(
    "part",
    [torch.ones(64)[::2], torch.ones(1).expand(8), torch.ones(8, 8).T, torch.eye(3).to_sparse(), torch.tensor(1.0)],
    ids=["strided", "expanded", "turned", "sparse", "one number"],
)
def test_tensors_of_any_layout_have_a_number(part):
    model = nn.Module()
    model.register_buffer("part", part)
    state = State.of(model)
    assert state.changed(model) is None
    model.part = part.clone() * 2
    assert state.changed(model) == "part"


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:torch.quantize_per_tensor:UserWarning")
def test_quantised_weights_and_their_scale_are_in_it():
    module = nn.Sequential(nn.Linear(8, 8))
    model = torch.ao.quantization.quantize_dynamic(module, {nn.Linear}, dtype=torch.qint8)
    state = State.of(model)
    assert state.changed(model) is None
    weight, bias = model[0]._weight_bias()
    doubled, scale = weight.dequantize() * 2, weight.q_scale() * 2
    scaled = torch.quantize_per_tensor(doubled, scale, weight.q_zero_point(), torch.qint8)
    model[0].set_weight_bias(scaled, bias)
    assert "0._packed_params._packed_params" in str(state.changed(model))
