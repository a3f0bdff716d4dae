"""A command over one model that was stopped goes on where it was, and leaves the bits that it would have left."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from tests import tinyhf

import trisect
from trisect.core.errors import StudyError
from trisect.core.steps import shown_by
from trisect.lab import halfway
from trisect.lab.halfway import Halfway
from trisect.lab.units.kept import KEPT, UnitStore

pytestmark = pytest.mark.usefixtures("undrawn")
LINES = [f"w{i} w{i + 1} , w{i + 2} w{3 * i % 40} ." for i in range(1, 13)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("kept")
    tinyhf.save(tinyhf.llama(seed=2), place / "other")
    tinyhf.save(tinyhf.llama(seed=4), place / "third")
    return str(tinyhf.save(tinyhf.llama(), place / "model"))


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is summed up is kept after every item."""
    monkeypatch.setattr(halfway, "SECONDS", 0.0)
    monkeypatch.setattr(halfway, "SHARE", 0.0)


class StoppedError(Exception):
    """As a call that is killed ends."""


def stopping(monkeypatch: pytest.MonkeyPatch, after: int) -> list[tuple[str, int]]:
    """What is kept, as (name, done); the call ends when it was kept so often."""
    kept: list[tuple[str, int]] = []
    write = Halfway._write

    def note(self: Halfway, name: str, done: int, state: Any) -> None:
        write(self, name, done, state)
        kept.append((name, done))
        if len(kept) == after:
            raise StoppedError

    monkeypatch.setattr(Halfway, "_write", note)
    return kept


def ask(command: str, model: str, out: Path) -> Any:
    """One command on a few texts, in batches of two."""
    if command == "patch":
        pairs = [(line, f"w9 {line}".rsplit(" ", 1)[0]) for line in LINES]
        return trisect.patch(model, given=pairs, sites=["v@1", "q@2"], out=out, batch=2, quiet=True)
    if command == "profile":
        return trisect.profile(model, "embedded", labels=["position"], words=200, out=out, quiet=True)
    if command == "ablate":
        return trisect.ablate(model, LINES, how="resample", sites=["v@1", "k@2"], out=out, batch=2, quiet=True)
    if command == "erase":
        asked = {"labels": ["pos"], "limit": 10, "sites": ["v@1"], "draws": 1, "tokens": 300}
        return trisect.erase(model, "embedded", out=out, batch=2, quiet=True, **asked)
    if command == "profile --checkpoints":
        asked = {"labels": ["position"], "words": 200, "checkpoints": ["model", "other"]}
        return trisect.profile(model, "embedded", out=out, quiet=True, **asked)
    if command == "rewind":
        asked = {"stages": ["third"], "sites": ["v@1", "q@2"], "points": 3, "exact": True}
        return trisect.rewind(Path(model).parent, "other", "model", LINES, out=out, quiet=True, **asked)
    return getattr(trisect, command)(model, LINES, out=out, batch=2, quiet=True)


def tables(folder: Path) -> dict[str, pl.DataFrame]:
    return {path.stem: pl.read_parquet(path) for path in sorted((folder / "tables").glob("*.parquet"))}


COMMANDS = {
    "norms": 4,
    "similarity": 3,
    "ablate": 4,
    "erase": 3,
    "patch": 3,
    "profile": 1,
    "profile --checkpoints": 5,
    "rewind": 3,
}


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize(("command", "after"), COMMANDS.items())
def test_a_command_that_was_stopped_goes_on_and_leaves_the_same_bits(command, after, model, tmp_path, monkeypatch):
    with monkeypatch.context() as whole:
        whole.setattr(halfway, "SECONDS", 1e9)
        wanted_notes = ask(command, model, tmp_path / "whole").notes
    with monkeypatch.context() as once:
        kept = stopping(once, after)
        with pytest.raises(StoppedError):
            ask(command, model, tmp_path / "out")
    name, number = kept[-1]
    assert name == "layers-2" if "--checkpoints" in command else number == after
    assert [path.name for path in (tmp_path / "out" / KEPT).iterdir()] != []
    kept = stopping(monkeypatch, 10_000)
    done = ask(command, model, tmp_path / "out")
    assert kept[0] == (name, number + 1)  # what was done is not done again
    left, wanted = tables(tmp_path / "out"), tables(tmp_path / "whole")
    assert set(left) == set(wanted)
    assert all(left[name].equals(wanted[name]) for name in wanted)
    assert done.notes == wanted_notes
    assert not (tmp_path / "out" / KEPT).exists()


@pytest.mark.usefixtures("often")
def test_a_file_that_changed_after_it_was_read_is_another(model, tmp_path, monkeypatch):
    """Also where it changed before anything was kept of what was read."""
    path = tmp_path / "pairs.jsonl"
    texts = ["".join(json.dumps({"base": line, "donor": f"w{i} {line[3:]}"}) + "\n" for line in LINES) for i in (7, 9)]
    path.write_text(texts[0])

    def ask() -> Any:
        return trisect.patch(model, pairs=path, sites=["v@1"], out=tmp_path / "out", batch=2, quiet=True)

    with monkeypatch.context() as once:
        stopping(once, 3)
        noted = Halfway._write

        def edit(self: Halfway, name: str, done: int, state: Any) -> None:
            path.write_text(texts[1])
            noted(self, name, done, state)

        once.setattr(Halfway, "_write", edit)
        with pytest.raises(StoppedError):
            ask()
    kept = stopping(monkeypatch, 10_000)
    ask()
    assert kept[0][1] == 1  # all is done again


@pytest.mark.usefixtures("often")
def test_what_was_kept_of_other_weights_settings_or_texts_is_not_used(model, tmp_path, monkeypatch):
    with monkeypatch.context() as once:
        stopping(once, 3)
        with pytest.raises(StoppedError):
            ask("norms", model, tmp_path / "out")
    other = tinyhf.save(tinyhf.llama(seed=2), tmp_path / "other" / "model")
    kept = stopping(monkeypatch, 10_000)
    for given in ((str(other), LINES, 0), (model, LINES[1:], 0), (model, LINES, 1)):
        kept.clear()
        trisect.norms(given[0], given[1], seed=given[2], out=tmp_path / "out", batch=2, quiet=True)
        assert min(number for _, number in kept) == 1
        with monkeypatch.context() as once:
            stopping(once, 3)
            with pytest.raises(StoppedError):
                ask("norms", model, tmp_path / "out")


@pytest.mark.usefixtures("often")
def test_curves_of_revisions_of_which_the_first_changed_are_not_used(model, tmp_path, monkeypatch):
    folder, said = Path(shutil.copytree(Path(model).parent, tmp_path / "run")), list[str]()
    with monkeypatch.context() as once, shown_by(said.append):
        stopping(once, 2)
        with pytest.raises(StoppedError):
            ask("rewind", str(folder / "model"), tmp_path / "out")
    assert said[0] == "Hashing the files of 3 revisions …"
    tinyhf.save(tinyhf.llama(seed=3), folder / "other")
    kept = stopping(monkeypatch, 1)
    with pytest.raises(StoppedError):
        ask("rewind", str(folder / "model"), tmp_path / "out")
    assert kept[0][1] == 1  # all is done again


class Sum:
    """Something that is summed up."""

    def __init__(self) -> None:
        self.total = torch.zeros(2)


def halves(folder: Path, mark: str = "m") -> Halfway:
    folder.mkdir(exist_ok=True)
    return Halfway(folder, "norms", lambda: mark)


def add(folder: Path, mark: str = "m", until: int = 5, kinds: tuple[type, ...] = (Sum,)) -> tuple[list[int], float]:
    """Numbers below 5 added up, until one; which were met, and their sum."""
    own, met = Sum(), list[int]()
    for number in halves(folder, mark).going_on("numbers", range(5), {"own": own}, kinds):
        if number == until:
            break
        met.append(number)
        own.total += number
    return met, float(own.total[0])


@pytest.mark.usefixtures("often")
def test_items_that_are_done_are_left_out_and_their_sum_is_there(tmp_path):
    assert add(tmp_path / "a", until=3) == ([0, 1, 2], 3.0)
    assert add(tmp_path / "a", mark="another") == ([0, 1, 2, 3, 4], 10.0)
    assert add(tmp_path / "b", until=3) == ([0, 1, 2], 3.0)
    assert add(tmp_path / "b") == ([3, 4], 10.0)


@pytest.mark.usefixtures("often")
def test_nothing_is_kept_of_what_nobody_can_say_is_the_same(tmp_path):
    assert add(tmp_path / "a", mark="", until=3) == ([0, 1, 2], 3.0)
    assert list((tmp_path / "a").iterdir()) == []


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("damage", ["cut", "changed", "another"])
def test_what_is_damaged_or_of_another_command_is_not_read(damage, tmp_path):
    add(tmp_path / "a", until=3)
    path = tmp_path / "a" / KEPT / "numbers.pt"
    body = path.read_bytes()
    if damage == "cut":
        path.write_bytes(body[:-9])
    elif damage == "changed":
        path.write_bytes(body[:200] + bytes([body[200] ^ 1]) + body[201:])
    else:
        (path.parent / "units.json").write_text(json.dumps({"experiment": "ablate"}))
    assert add(tmp_path / "a") == ([0, 1, 2, 3, 4], 10.0)


def test_only_kinds_that_are_named_are_read_back(tmp_path, often):
    """A file that somebody else put there runs no code."""
    add(tmp_path / "a", until=3)
    assert add(tmp_path / "a", kinds=()) == ([0, 1, 2, 3, 4], 10.0)


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("place", ["file", "folder"])
def test_a_disk_that_is_full_ends_keeping_and_not_the_command(place, tmp_path, monkeypatch):
    """What was kept before stays, and is gone on from."""
    assert add(tmp_path / "a", until=3)[0] == [0, 1, 2]
    said = list[str]()
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def full(*given: Any) -> Any:
        raise error

    with monkeypatch.context() as filled, shown_by(said.append):
        filled.setattr(Path, "write_bytes", full)
        if place == "folder":
            filled.setattr(Path, "mkdir", lambda path, **named: None if path.exists() else full())
            shutil.rmtree(tmp_path / "a" / KEPT)
        assert add(tmp_path / "a")[1] == 10.0
    (words,) = [line for line in said if "not kept" in line]
    assert words.startswith("What is done is not kept, so that a call after a stop does it again. ")
    assert str(tmp_path / "a" / KEPT) in words
    assert words.endswith("The disk is full.")
    assert add(tmp_path / "a")[0] == ([3, 4] if place == "file" else [0, 1, 2, 3, 4])


@pytest.mark.usefixtures("often")
def test_what_lay_on_a_device_that_is_gone_is_done_again(tmp_path, monkeypatch):
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(torch.serialization, "location_tag", lambda storage: "cuda:63")
        add(tmp_path / "a", until=3)
    assert add(tmp_path / "a")[0] == [0, 1, 2, 3, 4]


@pytest.mark.usefixtures("often")
def test_what_cannot_be_read_is_done_again(tmp_path, monkeypatch):
    add(tmp_path / "a", until=3)
    monkeypatch.setattr(Path, "read_bytes", lambda path: (_ for _ in ()).throw(OSError(errno.EIO, "broken")))
    assert add(tmp_path / "a")[0] == [0, 1, 2, 3, 4]


@pytest.mark.usefixtures("often")
def test_what_may_not_be_read_stays_and_is_said(tmp_path, monkeypatch):
    """It may be whole: all would be done again, and written over it."""
    add(tmp_path / "a", until=3)
    with monkeypatch.context() as barred:
        error = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        barred.setattr(Path, "read_bytes", lambda path: (_ for _ in ()).throw(error))
        with pytest.raises(StudyError) as caught:
            add(tmp_path / "a")
    assert caught.value.given == f"{tmp_path / 'a' / KEPT / 'numbers.pt'} cannot be read or written."
    assert caught.value.known == "The system says: Permission denied."
    assert caught.value.todo.startswith("Change its permissions")
    assert add(tmp_path / "a")[0] == [3, 4]


def test_a_folder_with_a_stopped_command_is_refused_to_another(tmp_path, often, model, monkeypatch):
    with monkeypatch.context() as once:
        stopping(once, 3)
        with pytest.raises(StoppedError):
            ask("norms", model, tmp_path / "out")
    with pytest.raises(StudyError) as caught:
        ask("similarity", model, tmp_path / "out")
    assert "holds the beginning of 'trisect norms', which was stopped" in str(caught.value)
    assert UnitStore.open(tmp_path / "out", "norms").root.is_dir()
