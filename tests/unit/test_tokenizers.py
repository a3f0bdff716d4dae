"""Tokenizers, and the drawing library, that end badly: each in an error of three parts, and nothing for those that do not."""

import base64
import json
import subprocess
import sys

import pytest
import transformers
from tests import tinyhf
from tokenizers import Regex, normalizers, pre_tokenizers

from trisect.core.errors import ModelError, StudyError
from trisect.hf.files.tokenizers import load_tokenizer, tokenize
from trisect.report import render

PATTERN = r"(a*)*b|(a|aa)+$"  # which Oniguruma gives up on
BOMB = normalizers.Sequence([normalizers.Replace("a", "a" * 50)] * 6)


def with_normalizer(normalizer):
    made = tinyhf.tokenizer(False)
    made.backend_tokenizer.normalizer = normalizer
    return made


def precompiled(table: dict[str, str]):
    """A table of what characters become, as SentencePiece keeps it: this one has an end and no beginning."""
    words = b"\0".join(value.encode() for value in table.values()) + b"\0"
    statement = base64.b64encode((4).to_bytes(4, "little") + bytes(4) + words).decode()
    made = normalizers.NFC()
    made.__setstate__(json.dumps({"type": "Precompiled", "precompiled_charsmap": statement}).encode())
    return made


def test_a_tokenizer_that_panics_is_an_error_that_names_it(capfd):
    made = tinyhf.tokenizer(False)
    made.backend_tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(PATTERN), "isolated")
    with pytest.raises(ModelError, match="The tokenizer of the model cannot cut") as error:
        tokenize("the model", made, "a" * 40 + " w1")
    assert "PanicException" in error.value.reason
    assert error.value.todo
    capfd.readouterr()


@pytest.mark.parametrize("normalizer", [BOMB, precompiled({"a": "a" * 300_000})], ids=["replace", "table"])
def test_a_tokenizer_that_makes_gigabytes_of_a_word_is_refused_before_it_does(normalizer):
    made = with_normalizer(normalizer)
    text = "a word " * 8
    with pytest.raises(ModelError, match="makes too much") as error:
        tokenize("the model", made, text)
    assert "more than 10,000,000 characters of these 56" in error.value.reason


def test_a_tokenizer_whose_own_tokens_explode_is_refused_before_it_is_loaded(tmp_path):
    with_normalizer(BOMB).save_pretrained(tmp_path)
    path = tmp_path / "tokenizer.json"
    body = json.loads(path.read_text())
    body["added_tokens"].append(body["added_tokens"][0] | {"id": 99, "content": "aa", "normalized": True})
    path.write_text(json.dumps(body))
    with pytest.raises(ModelError, match="makes too much of 'aa'"):
        load_tokenizer(str(tmp_path), {"revision": None, "trust_remote_code": False})


def test_what_could_grow_and_does_not_is_cut_as_it_was():
    chain = [
        normalizers.NFKC(),
        *(normalizers.Replace(mark, "...") for mark in "…‥⁞⋯"),
        normalizers.Replace(Regex(" +"), " "),
    ]
    made = with_normalizer(normalizers.Sequence(chain * 3))
    assert tokenize("the model", made, "w1…  w2")["input_ids"] == made("w1…  w2")["input_ids"]
    long = "w1 w2 " * 20_000
    assert tokenize("the model", made, long)["input_ids"] == made(long)["input_ids"]


def test_a_tokenizer_without_the_library_is_left_as_it_is():
    made = transformers.ByT5Tokenizer()  # pyright: ignore[reportAttributeAccessIssue]
    assert tokenize("the model", made, "ab", add_special_tokens=False)["input_ids"] == [100, 101]


BOUND = "import resource; resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))\n"
SPEC = {"data": {"values": [{"a": 1}]}, "mark": "point", "encoding": {"x": {"field": "a", "type": "quantitative"}}}


def test_a_drawing_library_that_dies_is_an_error_and_the_next_chart_is_drawn(monkeypatch):
    renderer = render._Renderer()
    monkeypatch.setattr(render, "_PROGRAM", BOUND + render._PROGRAM)
    with pytest.raises(StudyError, match="figures cannot be drawn") as error:
        renderer.draw("svg", SPEC)
    assert "SIGTRAP" in error.value.reason
    assert "ulimit" not in error.value.reason
    monkeypatch.setattr(render.resource, "getrlimit", lambda kind: (8 << 30, 8 << 30))
    with pytest.raises(StudyError) as error:
        renderer.draw("svg", SPEC)
    assert "ulimit -v" in error.value.reason
    assert "ulimit -v unlimited" in error.value.todo
    monkeypatch.undo()
    assert renderer.draw("svg", SPEC).startswith("<svg")
    assert renderer._end() == 0


@pytest.mark.parametrize("option", ["-OO", "-O"])
def test_python_without_docstrings_is_refused(option):
    program = "from trisect.cli import main; main(['norms', 'nowhere'])"
    done = subprocess.run([sys.executable, option, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert ("PYTHONOPTIMIZE" in done.stderr) is (option == "-OO")
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 3
