"""translate-train, align and erase from the command line to their files, and what they refuse."""

import json

import pytest
from click.testing import CliRunner
from tests import tinyhf

from trisect.cli import main

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


def test_the_terminal_shows_what_was_learnt_from_and_where_models_lie(place):
    sides = ("--source", place / "t.en", "--target", place / "t.fr")
    done = call("translate-train", *sides, *SET, "--seeds", "1,", "--workers", 0, "--out", place / "made")
    assert done.exit_code == 0, done.output
    assert f"model  {place / 'made' / 'seed-1'}" in done.stdout
    answer, *others = done.stdout.splitlines()
    assert answer.startswith("seed-1: smoothed loss on train ")
    assert any(line.startswith("Learnt from are 3 different train pairs") for line in others)


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
