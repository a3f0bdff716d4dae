"""What the system refuses is said in three parts by every command, never as a traceback."""

import errno
import io
from pathlib import Path
from unittest.mock import Mock

import click
import pytest
import torch
from click.testing import CliRunner
from safetensors import SafetensorError
from safetensors.torch import save_file
from tests import tinyhf

import trisect
from trisect.cli import main
from trisect.core.errors import DamagedFileError, StudyError, TrisectError, translate_system_errors
from trisect.core.files import read_json, replace_file
from trisect.core.tables import read_table
from trisect.hf.small import gpt
from trisect.hf.small.gpt import load_weights, make_tokenizer, save
from trisect.lm import snapshots

COMMANDS = [
    ("theory", "--out", "locked/x.html"),
    ("explore", "locked/model", "a text"),
    ("recall", "--data", "locked"),
    ("recall", "--out", "locked/o"),
    ("norms", "locked/model", "--text", "a"),
    ("corpus", "show", "locked"),
    ("corpus", "annotate", "locked", "--pipeline", "en_core_web_sm", "--out", "x"),
    ("check", "locked"),
    ("report", "locked"),
    ("study", "locked/x.json"),
    ("study", "quick", "--out", "locked"),
    ("plan", "quick", "--corpus", "locked"),
    ("dissect", "--out", "locked"),
    ("align", "locked/model", "--source", "locked/a", "--target", "locked/b"),
    ("lookup", "--corpus", "locked"),
    ("translate-train", "--data", "locked"),
    ("translate-train", "--out", "locked"),
    ("similarity", "locked/model"),
    ("ablate", "locked/model", "--text", "a"),
    ("erase", "locked/model", "--corpus", "locked"),
    ("patch", "locked/model", "--base", "a", "--donor", "b"),
    ("profile", "locked/model", "--corpus", "locked"),
    ("rewind", "locked/model", "--initial", "a", "--final", "b", "--corpus", "locked"),
    ("ask", "locked", "Where was Ann born?"),
]


@pytest.fixture
def _locked(tmp_path, monkeypatch):
    """A folder that nothing can be read from or written to, also for root."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "locked").mkdir()
    stat, opened, scan = Path.stat, Path.open, Path.iterdir

    def refuse(path):
        if "locked" in path.parts:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))

    def guarded(real):
        def call(self, *rest, **named):
            refuse(self)
            return real(self, *rest, **named)

        return call

    for name, real in (("stat", stat), ("open", opened), ("iterdir", scan), ("mkdir", Path.mkdir)):
        monkeypatch.setattr(Path, name, guarded(real))


@pytest.mark.usefixtures("_locked")
@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words[:2]))
def test_every_command_says_what_cannot_be_read_or_written(words):
    result = CliRunner().invoke(main, list(words), catch_exceptions=False)
    assert result.exit_code == 2
    given, known, todo = result.stderr.removeprefix("trisect: ").strip().splitlines()[-3:]
    assert "locked" in given
    assert "Permission denied" in known or "no spaCy" in known or "optional extra" in known
    assert todo.strip()


@pytest.mark.usefixtures("_locked")
def test_and_so_does_every_call():
    for call in (
        lambda: trisect.load("locked/model"),
        lambda: trisect.corpus("locked"),
        lambda: trisect.check("locked"),
        lambda: trisect.render("locked"),
        lambda: trisect.plan("locked/x.json"),
        lambda: trisect.theory_page(out="locked/x.html"),
    ):
        with pytest.raises(TrisectError) as error:
            call()
        assert "Permission denied" in error.value.reason


@pytest.mark.parametrize(
    ("raised", "given", "known", "todo"),
    [
        (OSError(errno.ENOSPC, "No space left", "x"), "x cannot be read or written.", "The disk is full.", "Free some"),
        (OSError(errno.ENAMETOOLONG, "File name too long", "x"), "x cannot", "File name too long.", "Use a shorter name."),
        (OSError(errno.EMFILE, "Too many open files"), "A file cannot", "Too many open files.", "ulimit -n"),
        (OSError("odd"), "A file cannot be read or written.", "The system says: odd.", "Check the path"),
        (MemoryError(), "The memory of this machine", "The system gave", "Ask for less"),
        (RuntimeError("[enforce] can't allocate memory: 8 bytes"), "The memory", "can't allocate", "Ask for less"),
        (ValueError("embedded null byte"), "A path was given", "NUL", "Use another name."),
        (SafetensorError("I/O error: no (os error 28)"), "A file cannot", "The disk is full.", "Free some"),
        (SafetensorError("I/O error: no (os error 13)"), "A file cannot", "Permission denied", "Change its permissions"),
    ],
)  # fmt: skip
def test_each_kind_has_its_own_advice(raised, given, known, todo):
    with pytest.raises(StudyError) as error, translate_system_errors():
        raise raised
    assert given in error.value.problem
    assert known in error.value.reason
    assert todo in error.value.todo


@pytest.mark.parametrize(
    "raised",
    [
        BrokenPipeError(),
        RuntimeError("ours"),
        ValueError("ours"),
        StudyError("a", "b", "c (os error 28)"),
        SafetensorError("HeaderTooLarge"),
    ],
)
def test_nothing_else_is_swallowed(raised):
    with pytest.raises(type(raised)) as error, translate_system_errors():
        raise raised
    assert error.value is raised


def test_a_path_with_nul_and_a_name_that_is_no_text_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TrisectError, match="NUL"):
        trisect.theory_page(["average"], out="a\x00b/x.html")
    with pytest.raises(TrisectError, match="half a character"):
        trisect.plan(corpus="caf\udcc3")
    result = CliRunner().invoke(main, ["corpus", "show", "caf\udcc3"])
    assert result.exit_code == 2
    assert "PYTHONUTF8=1" in result.stderr


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            PermissionError(errno.EACCES, "Permission denied", "secret.txt"),
            ("secret.txt cannot be read", "Change its permissions"),
        ),
        (
            OSError(errno.ENOSPC, "No space left on device", "page.html"),
            ("page.html cannot be read", "Free some space"),
        ),
        (OSError(errno.EMFILE, "Too many open files"), ("A file cannot be read", "ulimit -n")),
        (OSError(errno.ENOSPC, "No space left on device"), ("What was found could not be printed.", "Free some space")),
        (OSError(errno.EBADF, "Bad file descriptor"), ("What was found could not be printed.", "Send it elsewhere")),
    ],
)
def test_what_reaches_the_command_line_is_said_of_the_file_or_of_the_stream_that_it_is_of(error, words, monkeypatch):
    def fails(*_):
        raise error

    monkeypatch.setattr(click.Group, "parse_args", fails)
    monkeypatch.setattr("trisect.cli.group.open", lambda *_: io.StringIO(), raising=False)  # would stay open here
    found = CliRunner().invoke(main, ["--help"])
    assert found.exit_code == 2
    assert all(word in found.output for word in words), found.output


def _full(raised):
    def write(*_, **__):
        raise raised

    return write


def test_a_disk_that_is_full_inside_a_compiled_library_is_said_of_the_file(tmp_path, monkeypatch):
    (tmp_path / "old.safetensors").write_text("old")
    with pytest.raises(SafetensorError):  # so the library says it
        save_file({"a": torch.ones(1)}, tmp_path / "none" / "x.safetensors")
    for path in (tmp_path / "old.safetensors", tmp_path / "new.safetensors"):
        with pytest.raises(StudyError) as error:
            replace_file(path, _full(SafetensorError("Error while serializing: I/O error: no (os error 28)")))
        assert error.value.problem == f"{path} could not be written."
        assert error.value.reason == "The disk is full."
        assert "Free some space" in error.value.todo
    assert [path.name for path in tmp_path.iterdir()] == ["old.safetensors"]
    assert (tmp_path / "old.safetensors").read_text() == "old"
    with pytest.raises(SafetensorError, match="Header"):
        replace_file(tmp_path / "new.safetensors", _full(SafetensorError("HeaderTooLarge")))


def test_a_model_for_which_the_temporary_folder_has_no_room_is_said_to_have_none(tmp_path, monkeypatch):
    monkeypatch.setattr("safetensors.torch.serialize_file", _full(SafetensorError("I/O error: no (os error 28)")))
    with pytest.raises(StudyError) as error:
        save(tinyhf.gpt2(), make_tokenizer("ab", 8), tmp_path / "model")
    assert error.value.problem.startswith("A trained model cannot be kept in the folder of temporary files")
    assert error.value.reason == "It is full."
    assert "TMPDIR" in error.value.todo
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    "error", [PermissionError(errno.EACCES, "Permission denied"), OSError(errno.EMFILE, "Too many")]
)
def test_what_the_system_does_not_let_be_read_is_not_called_damaged(error, tmp_path, monkeypatch):
    """A file that is called damaged is to be deleted, or is removed: one that may be whole has to stay."""

    def barred(*given, **named):
        raise error

    model = torch.nn.Linear(1, 1)
    of_rust = Mock(side_effect=SafetensorError(f"{error.strerror} (os error {error.errno})"))
    monkeypatch.setattr(Path, "read_text", barred)
    monkeypatch.setattr(Path, "read_bytes", barred)
    monkeypatch.setattr(snapshots, "safe_open", of_rust)
    monkeypatch.setattr(torch, "load", barred)
    monkeypatch.setattr(gpt, "load_model", of_rust)
    reads = {
        tmp_path / "x.json": lambda path: read_json(path, "Delete it."),
        tmp_path / "metrics.parquet": lambda _: read_table(tmp_path, "metrics"),
        tmp_path / "s.safetensors": lambda path: snapshots.read_snapshot(path, "Delete it."),
        tmp_path / "state": lambda path: gpt._resume(path, "", model, torch.optim.AdamW(model.parameters())),
        tmp_path / "model": lambda path: load_weights(model, path),
    }
    for path, read in reads.items():
        with pytest.raises(StudyError) as caught:
            read(path)
        assert not isinstance(caught.value, DamagedFileError)
        assert caught.value.problem == f"{path} cannot be read or written."
        assert "Delete" not in caught.value.todo
