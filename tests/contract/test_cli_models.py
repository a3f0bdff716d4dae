"""The commands about models: each from the command line to its files, and what they refuse."""

import json

import pytest
from click.testing import CliRunner
from tests import tinyhf

from trisect.cli import main
from trisect.lab import subject

TEXTS = [f"w{i} w{i + 1} , w{i + 2} w{(3 * i) % 40} ." for i in range(36)]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    base = tmp_path_factory.mktemp("cli")
    tinyhf.save(tinyhf.bert(), base / "masked")
    tinyhf.save(tinyhf.gpt2(), base / "causal", False)
    for name, seed in (("step0", 1), ("step1", 2), ("step2", 3)):
        tinyhf.save(tinyhf.gpt2(seed), base / "steps" / name, False)
    texts = base / "texts"
    texts.mkdir()
    for split in ("train", "valid", "test"):
        (texts / f"{split}.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    return base


def call(*words):
    return CliRunner().invoke(main, [str(w) for w in words])


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
        (("norms", "{}/texts", "--text", "w1"), "{}/texts was given as a model."),
        (("ablate", "{}/causal", "--text", "w1 w2", "--sites", "v@9"), "The site 'v@9' lies outside the model: layer 9."),
        (("ablate", "{}/causal", "--text", "w1 w2", "--sites", "v9"), "'v9' is not a site"),
        (("ablate", "{}/causal", "--text", "w1 w2", "--how", "half"), "'half'"),
        (("ablate", "{}/causal", "--text", "w1 w2", "--hold", "all"), "--hold all."),
        (("ablate", "{}/causal", "--text", "w1"), "Give texts of more than one token."),
        (("rewind", "{}/steps", "--initial", "step9", "--final", "step2", "--text", "w1 w2"), "step9"),
        (("explore", "{}/masked", "a", "b", "c"), "3 texts were given."),
        (("norms", "{}/masked", "--text", "w1", "--corpus", "{}/texts"), "--corpus and --text were both given."),
        (("norms", "{}/masked", "--corpus", "{}/texts", "--split", "tset"), "Unknown split 'tset'; did you mean 'test'?"),
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
