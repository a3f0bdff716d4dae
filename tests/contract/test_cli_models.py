"""Commands from the command line to their files: about models, a study, and translation; and what they refuse."""

import json
import re
import shutil

import pytest
from tests import tiny, tinyhf
from tests.raw import call, write_splits

from trisect.core.files import write_json
from trisect.core.spec import to_json_data
from trisect.lab import subject

TEXTS = [f"w{i} w{i + 1} , w{i + 2} w{(3 * i) % 40} ." for i in range(36)]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    base = tmp_path_factory.mktemp("cli")
    tinyhf.save(tinyhf.bert(), base / "masked")
    tinyhf.save(tinyhf.gpt2(), base / "causal", False)
    for name, seed in (("step0", 1), ("step1", 2), ("step2", 3)):
        tinyhf.save(tinyhf.gpt2(seed), base / "steps" / name, False)
    write_splits(base / "texts", "\n".join(TEXTS))
    return base


def refusing(place):
    """Whether a folder is a study's, where the system refuses one of them."""

    def refused(folder):
        if folder == place:
            raise PermissionError(13, "Permission denied", str(folder))
        return False

    return refused


def test_a_folder_with_models_in_it_names_them(place, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for command in ("explore", "check"):
        done = call(command, place, *(["w1"] if command == "explore" else []))
        assert done.exit_code == 2, done.output
        lines = done.stderr.splitlines()
        assert lines[-3:] == [
            f"trisect: {place} is no model's folder.",
            "  It has models in it: causal, masked, steps/step0, steps/step1, steps/step2.",
            f"  Give one of them, such as {place / 'causal'}.",
        ]
    for n in range(8):
        (tmp_path / "many" / f"m{n}").mkdir(parents=True)
        for name in ("config.json", "model.safetensors"):
            (tmp_path / "many" / f"m{n}" / name).touch()
    (tmp_path / "many" / ".hidden").symlink_to(tmp_path / "many" / "m0")
    (tmp_path / "many" / "again").symlink_to(tmp_path / "many")  # a link is not followed
    (tmp_path / "many" / "plain").mkdir()
    (tmp_path / "many" / "plain" / "config.json").touch()  # no weights: no model
    assert "It has models in it: m0, m1, m2, m3, m4, m5 and 2 more." in call("check", tmp_path / "many").stderr
    monkeypatch.setattr(subject, "is_study", refusing(tmp_path / "many" / "m0"))
    assert "It has models in it: m1, m2, m3, m4, m5, m6 and 1 more." in call("check", tmp_path / "many").stderr
    deep = tmp_path / "deep" / "a" / "b" / "c" / "d"  # four levels down nothing is looked for
    deep.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (deep / name).touch()
    assert "A model's folder has a config.json; this one holds a." in call("check", tmp_path / "deep").stderr


def test_the_folder_of_a_training_that_did_not_finish_is_named(place, tmp_path):
    folder = tmp_path / "recall"
    write_json(folder / "people.json", {"names": []})
    write_json(folder / "recall.json", {"recipe": {}, "seeds": [1], "wall_seconds": 2.0})
    for models in (False, True):
        if models:
            shutil.copytree(place / "causal", folder / "models" / "a")
        said = call("check", folder).stderr
        assert "It has recall.json: a command trains models there, and was interrupted or is running." in said
        assert "Call the same command again: it goes on from there." in said
        assert ("Give one of them, such as" in said) is models


def test_check_prints_the_proof(place):
    done = call("check", place / "masked")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["layer", "module", "hook", "laws", *"qkvo", "cause", "verdict"]
    assert [line.split()[-1] for line in lines[1 : tinyhf.LAYERS + 1]] == ["verified"] * tinyhf.LAYERS
    assert lines[-1] == f"{tinyhf.LAYERS} of {tinyhf.LAYERS} layers are verified."
    data = json.loads(call("check", place / "causal", "--json").stdout)
    assert [row["verdict"] for row in data["rows"]] == ["verified"] * tinyhf.LAYERS
    assert data["refused"] is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("norms", "{}/masked"), "No text was given."),
        (("norms", "{}/masked", "--text", " "), "Text 1 is ' '."),
        (("norms", "{}/nothing", "--text", "w1"), "'{}/nothing' is no model."),
        (("ablate", "{}/causal", "--text", "w1 w2", "--how", "half"), "'half'"),
        (("ablate", "{}/causal", "--text", "w1 w2", "--hold", "all"), "--hold all was given."),
        (("ablate", "{}/causal", "--text", "w1"), "Give texts of more than one token."),
        (("explore", "{}/masked", "a", "b", "c"), "3 texts were given."),
        (("norms", "{}/masked", "--text", "w1", "--corpus", "{}/texts"), "--corpus and --text were both given."),
        (("check", "{}/texts"), "{}/texts was given as a model."),
    ],
)  # fmt: skip
def test_bad_input_is_one_message_and_exit_2(place, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    done = call(*(w.format(place) for w in words))
    assert done.exit_code == 2
    assert "Traceback" not in done.output
    assert said.format(place) in done.output


def test_the_tiny_study_from_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.json").write_text(json.dumps(to_json_data(tiny.EXPERIMENT)))
    plan = call("plan", "tiny.json", "--runs")
    assert plan.exit_code == 0
    assert len([line for line in plan.stdout.splitlines() if re.search(r"-s[12]-[0-9a-f]{8}$", line)]) == 14
    options = ("--only", "freeze", "--sites", "v@all", "--out", "out", "--workers", 0)
    words = ("study", "tiny.json", "--seeds", 1, *options)
    done = call(*words, "--json")
    assert done.exit_code == 0
    said = json.loads(done.stdout)
    assert said["runs"] == {"finished": 2}
    assert set(said["verdicts"]) == {f"A-{i}" for i in range(1, 16)}
    again = call(*words)
    assert again.stdout.splitlines()[-1].endswith("out/report.html")
    assert "claims: 15 not tested (" in again.stdout
    whole = json.loads((tmp_path / "out" / "experiment.json").read_text())
    assert (whole["seeds"], whole["attack"], whole["freeze"]["sites"]) == ([1], None, ["v@1-2"])
    runs = json.loads(call("plan", "out/experiment.json", "--json").stdout)["runs"]
    assert sorted(runs) == sorted(p.name for p in (tmp_path / "out" / "runs").iterdir())
    assert call("report", "out").stdout.strip().endswith("out/report.html")
    other = call("study", "tiny.json", "--epochs", "1", "--out", "out")
    assert other.exit_code == 2
    assert "training.epochs (there 2, here 1)" in other.stderr


TINY = {"width": 16, "inner": 16, "layers": 1, "heads": 2, "pieces": 60, "epochs": 1, "warmup_steps": 2}
SET = [word for name, value in TINY.items() for word in ("--set", f"{name}={value}")]
SIDES = [("the big dog", "le gros chien"), ("a dog", "un chien"), ("the dog eats", "le chien mange")] * 12
GOLD = ["1-1 2-3 3-2", "1-1 2p2", "1-1 2-2 3-3"] * 12


@pytest.fixture(scope="module")
def bitext_place(tmp_path_factory):
    base = tmp_path_factory.mktemp("translation")
    for i, end in enumerate(("en", "fr")):
        (base / f"t.{end}").write_text("".join(f"{words[i]}\n" for words in SIDES), encoding="utf-8")
    (base / "t.talp").write_text("".join(f"{line}\n" for line in GOLD), encoding="utf-8")
    sides = ("--source", base / "t.en", "--target", base / "t.fr")
    done = call("translate-train", *sides, *SET, "--seeds", "1,", "--workers", 0, "--out", base / "made", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout.splitlines()[-1])["models"] == [str(base / "made" / "seed-1")]
    return base


def test_the_terminal_shows_what_was_learnt_from_and_where_models_lie(bitext_place):
    sides = ("--source", bitext_place / "t.en", "--target", bitext_place / "t.fr")
    done = call("translate-train", *sides, *SET, "--seeds", "1,", "--workers", 0, "--out", bitext_place / "made")
    assert done.exit_code == 0, done.output
    assert f"model  {bitext_place / 'made' / 'seed-1'}" in done.stdout
    answer, *others = done.stdout.splitlines()
    assert answer.startswith("seed-1: smoothed loss on train ")
    assert any(line.startswith("Learnt from are 3 different train pairs") for line in others)


def refused(*words):
    done = call(*words)
    assert done.exit_code == 2
    assert "\ntrisect: " in f"\n{done.stderr}"  # behind the steps that were begun
    assert "Traceback" not in done.output
    return done.stderr


def test_what_align_and_translate_train_refuse(bitext_place, tmp_path):
    model, files = (
        bitext_place / "made" / "seed-1",
        ("--source", bitext_place / "t.en", "--target", bitext_place / "t.fr"),
    )
    assert "--source t.en was given." in refused("translate-train", "--source", "t.en")
    assert "Give one or the other." in refused("translate-train", "--data", "embedded", *files)
    (tmp_path / "short").write_text("le chien\n")
    said = refused("align", model, "--source", bitext_place / "t.en", "--target", tmp_path / "short")
    assert "t.en" in said
    assert f"{len(SIDES)}" in said
    (tmp_path / "gold").write_text("9-1\n" + "1-1\n" * (len(SIDES) - 1))
    said = refused("align", model, *files, "--gold", tmp_path / "gold")
    assert "gold, line 1" in said
    (tmp_path / "few").write_text("1-1\n")
    assert "few" in refused("align", model, *files, "--gold", tmp_path / "few")
    tinyhf.save(tinyhf.bert(), tmp_path / "encoder")
    assert "no cross-attention" in refused("align", tmp_path / "encoder", *files)
