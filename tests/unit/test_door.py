"""What is refused is said in three parts, never as a traceback; no control character and no long echo of what was given."""

import errno
import io
import json
from pathlib import Path
from unittest.mock import Mock

import altair as alt
import click
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import save_file
from tests import tinyhf

import trisect
from trisect.cli import main
from trisect.core.errors import DamagedFileError, StudyError, TrisectError, shorten, translate_system_errors
from trisect.core.files import read_json, replace_file
from trisect.core.printable import safe, safe_data
from trisect.core.tables import read_table
from trisect.hf.small import gpt
from trisect.hf.small.gpt import load_weights, make_tokenizer, save
from trisect.lm import snapshots
from trisect.report import charts, render, sheet
from trisect.report.sheet import Document, write_document
from trisect.text import birth_places, bitext, pairs
from trisect.text.sources import as_texts, open_labels, open_texts

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
        (MemoryError(), "The memory of this machine", "The system is out", "Use a smaller model"),
        (RuntimeError("[enforce] can't allocate memory: 8 bytes"), "The memory", "can't allocate", "Use a smaller model"),
        (ValueError("embedded null byte"), "An impossible path", "NUL", "Use another name."),
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


def test_an_error_quotes_numbers_and_texts_and_no_tensor_or_array():
    assert shorten([{"x": torch.zeros(3)}]) == "a list of numbers"
    assert shorten(np.zeros(3)) == "a ndarray of numbers"
    assert shorten(np.float64(2.5)) == "np.float64(2.5)"
    assert shorten(["see array(x)"]) == "['see array(x)']"


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
            OSError(errno.ENOSPC, "No space left on device", "page.html"),
            ("page.html cannot be read", "Free some space"),
        ),
        (OSError(errno.EBADF, "Bad file descriptor"), ("The results could not be printed.", "Send it elsewhere")),
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


def test_a_disk_that_is_full_inside_a_compiled_library_is_said_of_the_file(tmp_path):
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
    assert error.value.problem.startswith("A trained model cannot be stored in the folder of temporary files")
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


BAD = ["a\x00b", "a\x01b", "a\x1b[31mb", "a\x9bb", "a\ufffeb", "a\U0001fffeb", "a\ud800b", "a\x7fb"]


@pytest.mark.parametrize("word", BAD)
def test_a_figure_with_such_a_word_is_drawn_as_svg_and_png(word):
    """The renderer ends the whole process on them, so that a failure here is an abort."""
    rows = [{"at": 1, "word": word}]
    chart = charts.overlay(word, charts.chart_of("m", rows).mark_text().encode(alt.X("at:Q"), alt.Text("word:N")))
    text = render.svg(alt.concat(chart), "x")
    assert text.count(safe(word)) >= 2  # the title and the mark
    assert word not in text
    assert render.png(text).startswith(b"\x89PNG")


def test_a_word_that_only_looks_like_rows_is_a_word():
    chart = charts.overlay('[{"\\u', charts.chart_of("m", [{"at": 1}]).mark_point().encode(alt.X("at:Q")))
    assert "<svg" in render.svg(alt.concat(chart), "x")


@pytest.mark.parametrize("word", BAD)
def test_a_page_with_such_a_word_can_be_written(word, tmp_path):
    (tmp_path / "t.html").write_text("<p>{{ word }}</p>")
    page = sheet.fill(tmp_path / "t.html", "", word=word)
    assert page == f"<p>{safe(word)}</p>"
    assert write_document(tmp_path / "page.html", Document("page.html", word)).read_text() == safe(word)


@given(st.text(alphabet=st.characters(codec=None)))
def test_what_is_safe_stays_and_is_xml(text):
    made = safe(text)
    assert safe(made) == made
    assert len(made) == len(text)
    made.encode()
    for before, after in zip(text, made, strict=True):
        allowed = before in "\t\n\r" or (before >= " " and not "\x7f" <= before <= "\x9f")
        allowed = allowed and not "\ud800" <= before <= "\udfff" and ord(before) & 0xFFFE != 0xFFFE
        assert (before == after) == allowed


def test_two_controls_stay_two_and_data_are_safe_inside():
    assert safe("\x00\x1b\x7f") == "␀␛␡"
    assert safe_data({"a\x00": ["\x1b", 1, None, True, ["x\x00"]]}) == {"a␀": ["␛", 1, None, True, ["x␀"]]}


LONG = "x" * 5_000
ROW = f"1\t{LONG}\t_\t_\t_\t_\t_\t_\t_\t_\n"


def put(folder, name, text):
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


CALLS = {
    "a column": lambda t: open_texts(put(t, "test.conllu", f"{LONG} {LONG}\n").parent),
    "an id": lambda t: open_texts(put(t, "test.conllu", LONG + ROW[1:]).parent),
    "features": lambda t: open_labels(put(t, "test.conllu", f"1\ta\t_\t_\t_\t{LONG}\t0\tx\t_\t_\n").parent, "test"),
    "a link": lambda t: bitext.read_links(put(t, "g", LONG), [(1, 1)]),
    "a number of a link": lambda t: bitext.read_links(put(t, "g", f"{'1' * 5_000}-1"), [(1, 1)]),
    "a base": lambda t: pairs.read_pairs(put(t, "p", json.dumps({"base": [LONG], "donor": "a"}))),
    "a field": lambda t: pairs.read_pairs(put(t, "p", json.dumps({"base": "a", "donor": "b", LONG: 1}))),
    "an answer": lambda t: pairs.read_pairs(put(t, "p", json.dumps({"base": "a", "donor": "b", "answers": {LONG: 1}}))),
    "an answer's text": lambda t: pairs.read_pairs(
        put(t, "p", json.dumps({"base": "a", "donor": "b", "answers": {"q": [LONG]}}))
    ),
    "no JSON": lambda t: pairs.read_pairs(put(t, "p", LONG)),
    "pairs": lambda t: pairs.as_pairs(LONG),
    "a question": lambda t: birth_places.name_in(LONG),
    "blank texts": lambda t: as_texts(["a", " " * 5_000]),
    "a text of a pair": lambda t: trisect.load(tinyhf.gpt2(), tinyhf.tokenizer(False), quiet=True).read((LONG, LONG)),
    "a split": lambda t: open_texts("embedded", LONG),
    "a reader": lambda t: open_texts(t, "test", LONG),
    "a name": lambda t: trisect.texts(LONG),
    "a dataset": lambda t: trisect.texts(f"hf:{LONG}:"),
}


@pytest.mark.parametrize("name", CALLS)
def test_errors_quote_what_was_given_by_its_beginning(name, tmp_path):
    with pytest.raises(TrisectError) as caught:
        CALLS[name](tmp_path)
    for sign in ("x", " ", "1"):
        assert sign * 201 not in str(caught.value)
    assert all((caught.value.problem, caught.value.reason, caught.value.todo))
