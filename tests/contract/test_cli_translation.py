"""translate-train, align and erase from the command line to their files, and what they refuse."""

import importlib.util
import json

import polars as pl
import pytest
from click.testing import CliRunner
from tests import tinyhf

from trisect.cli import main
from trisect.core.tables import read_table

TINY = {"width": 16, "inner": 16, "layers": 1, "heads": 2, "pieces": 60, "epochs": 1, "warmup_steps": 2}
SET = [word for name, value in TINY.items() for word in ("--set", f"{name}={value}")]
SIDES = [("the big dog", "le gros chien"), ("a dog", "un chien"), ("the dog eats", "le chien mange")] * 12
GOLD = ["1-1 2-3 3-2", "1-1 2p2", "1-1 2-2 3-3"] * 12


def call(*words):
    return CliRunner().invoke(main, [str(w) for w in words])


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    base = tmp_path_factory.mktemp("translation")
    for i, end in enumerate(("en", "fr")):
        (base / f"t.{end}").write_text("".join(f"{words[i]}\n" for words in SIDES), encoding="utf-8")
    (base / "t.talp").write_text("".join(f"{line}\n" for line in GOLD), encoding="utf-8")
    sides = ("--source", base / "t.en", "--target", base / "t.fr")
    done = call("translate-train", *sides, *SET, "--seeds", "1,", "--workers", 0, "--out", base / "made", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout.splitlines()[-1])["models"] == [str(base / "made" / "seed-1")]
    return base


def test_a_model_that_was_trained_is_aligned_from_the_command_line(place, tmp_path):
    trio = (place / "t.en", place / "t.fr", place / "t.talp")
    given = ("--source", trio[0], "--target", trio[1], "--gold", trio[2], "--trial", *trio)
    done = call("align", place / "made" / "seed-1", *given, "--limit", 33, "--out", tmp_path, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout.splitlines()[-1])["report"] == str(tmp_path / "report.html")
    whole = read_table(tmp_path / "tables", "measures").filter(pl.col("layer").is_null(), measure="aer")
    assert set(whole["group"].drop_nulls()) == {"awi weight", "awi norm", "awo weight", "awo norm"}
    assert whole["n"].unique().to_list() == [33]
    assert read_table(tmp_path / "tables", "claims")["claim"].unique().to_list() == ["C-5"]
    assert "t.talp counts words from 1" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_the_terminal_shows_what_was_learnt_from_and_where_models_lie(place):
    sides = ("--source", place / "t.en", "--target", place / "t.fr")
    done = call("translate-train", *sides, *SET, "--seeds", "1,", "--workers", 0, "--out", place / "made")
    assert done.exit_code == 0, done.output
    assert f"model  {place / 'made' / 'seed-1'}" in done.stdout
    notes, *found = done.stdout.splitlines()
    assert notes.startswith("Learnt from are 3 different train pairs")
    assert found[0].startswith("seed-1: smoothed loss on train ")


def refused(*words):
    done = call(*words)
    assert done.exit_code == 2
    assert "\ntrisect: " in f"\n{done.stderr}"  # behind the steps that were begun
    assert "Traceback" not in done.output
    return done.stderr


def test_what_align_and_translate_train_refuse(place, tmp_path):
    model, files = place / "made" / "seed-1", ("--source", place / "t.en", "--target", place / "t.fr")
    assert "--source t.en was given." in refused("translate-train", "--source", "t.en")
    assert "Give one or the other." in refused("translate-train", "--data", "embedded", *files)
    (tmp_path / "short").write_text("le chien\n")
    said = refused("align", model, "--source", place / "t.en", "--target", tmp_path / "short")
    assert "t.en" in said
    assert f"{len(SIDES)}" in said
    (tmp_path / "gold").write_text("9-1\n" + "1-1\n" * (len(SIDES) - 1))
    said = refused("align", model, *files, "--gold", tmp_path / "gold")
    assert "gold, line 1" in said
    (tmp_path / "few").write_text("1-1\n")
    assert "few" in refused("align", model, *files, "--gold", tmp_path / "few")
    tinyhf.save(tinyhf.bert(), tmp_path / "encoder")
    assert "no cross-attention" in refused("align", tmp_path / "encoder", *files)


@pytest.mark.skipif(importlib.util.find_spec("concept_erasure") is None, reason="needs the extra trisect[erase]")
def test_erase_from_the_command_line(tmp_path):
    tinyhf.save(tinyhf.bert(), tmp_path / "model")
    words = ("erase", tmp_path / "model", "--corpus", "embedded", "--labels", "pos", "--limit", 40, "--draws", 2)
    done = call(*words, "--sites", "k@1", "v@2", "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-1] == f"report  {tmp_path / 'out' / 'report.html'}"
    rows = read_table(tmp_path / "out" / "tables", "measures")
    assert set(rows["component"].drop_nulls()) == {"k", "v"}
