import os
import threading
from typing import NotRequired

import numpy as np
import polars as pl
import pytest
import torch
from typing_extensions import TypedDict

from trisect.core import files
from trisect.core.errors import DamagedFileError, StudyError
from trisect.core.files import (
    canonical,
    digest,
    file_name,
    inside,
    read_json,
    read_json_list,
    read_record,
    read_strict,
    remove_scratch,
    replace_file,
    write_json,
)  # fmt: skip
from trisect.core.tables import SCHEMAS, STUDY_TABLES, frame, read_table, write_table
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
    monkeypatch.setattr(files, "JSON_BYTES", 100)
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


def test_a_failed_write_leaves_the_old_file_and_no_scratch(tmp_path):
    path = tmp_path / "x"
    path.write_text("old")

    def fail(scratch):
        scratch.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(StudyError, match="could not be written") as caught:
        replace_file(path, fail)
    assert caught.value.reason == "The disk is full."
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


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


def test_what_is_missing_stays_missing():
    row = frame("sites", [{"subject": "x", "measure": "unigram_loss_nats", "value": 1.0}]).row(0, named=True)
    assert row["site"] is None
    assert row["at"] is None


def test_tables_with_other_columns_are_refused(tmp_path):
    pl.DataFrame({"run": ["a"]}).write_parquet(tmp_path / "runs.parquet")
    with pytest.raises(DamagedFileError, match="has other columns than 'runs'"):
        read_table(tmp_path, "runs")
    with pytest.raises(DamagedFileError, match="cannot be read"):
        read_table(tmp_path, "metrics")
    assert (
        set(STUDY_TABLES)
        == {"runs", "metrics", "sites", "claims", "controls"}
        == set(SCHEMAS) - {"measures", "answers", "translations"}
    )


def test_a_table_of_an_earlier_version_has_nulls_where_columns_came_later(tmp_path):
    table = frame("sites", [{"subject": "x", "measure": "unigram_loss_nats", "value": 1.0}])
    write_table(tmp_path, "sites", table.drop("label"))
    assert read_table(tmp_path, "controls").equals(frame("controls", []))
    assert read_table(tmp_path, "sites").equals(table)


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "a/b", "/a", "../a", "a\\b", "a\0b", "a\nb", "x" * 221, "\ud800"]
)
def test_what_is_no_name_never_becomes_a_path(tmp_path, name):
    with pytest.raises(StudyError, match="cannot be a file's name") as caught:
        inside(tmp_path, "runs", name)
    assert caught.value.problem.startswith(repr(name))
    assert inside(tmp_path, "runs", file_name(name)).parent == tmp_path / "runs"


@pytest.mark.parametrize("name", ["run.json", "attack-pos-q+k@1-2-s1-0a1b2c3d", "morph.Gender[psor]", "ä b", "x" * 220])
def test_a_plain_name_stays_as_it_is(tmp_path, name):
    assert inside(tmp_path, file_name(name)) == tmp_path / name


def test_names_made_from_hashes_differ():
    assert len({file_name(name) for name in ("a/b", "a/c", "..", ".", "", "\ud800")}) == 6


def test_scratch_files_carry_a_mark_and_are_removed_in_the_folders_that_are_named_alone(tmp_path):
    seen = []
    replace_file(tmp_path / "x.json", lambda scratch: (seen.append(scratch.name), scratch.write_text("whole")))
    ours = [seen[0], ".runs.parquet.123-0a1b2c3d.trisect-part"]
    others = [".x.part", ".x.json.part", ".x.py.12.part", "x.json.1-01234567.trisect-part", ".x.1-0123.trisect-part"]
    for folder in (tmp_path / "own", tmp_path / "own" / "below"):
        folder.mkdir()
        for name in (*ours, *others):
            (folder / name).write_text("half")
    (tmp_path / "own" / ".y.json.5.part").mkdir()
    remove_scratch([tmp_path / "own", tmp_path / "nowhere"])
    assert {p.name for p in (tmp_path / "own").iterdir()} == {*others, "below", ".y.json.5.part"}
    assert {p.name for p in (tmp_path / "own" / "below").iterdir()} == {*ours, *others}


def test_what_is_read_is_an_object_or_a_list_as_asked(tmp_path):
    write_json(tmp_path / "list.json", [1, 2])
    write_json(tmp_path / "object.json", {"a": 1})
    assert read_json_list(tmp_path / "list.json", "Delete it.") == [1, 2]
    for read, name, known in (
        (read_json, "list.json", "It holds a list, no object."),
        (read_json_list, "object.json", "It holds a dict, no list."),
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
