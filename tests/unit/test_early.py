"""What is wrong with a command whatever its model is refused before a model is loaded; what depends on the model, before computing."""

import json

import pytest
from click.testing import CliRunner
from tests import tinyhf

from trisect.cli import main

SITES = [
    ("zz@1", "'zz@1' is not a site: 'zz' is no component."),
    ("q@0", "'q@0' is not a site: layers and heads count from 1."),
    ("q@1.hx", "'q@1.hx' is not a site"),
    ("", "'' is not a site"),
]
OTHERS = [
    (["erase"], ["--labels", "nosuch"], "bank, train has no label column 'nosuch'."),
    (["erase"], ["--split", "nosuch"], "split is 'nosuch'."),
    (["erase"], ["--reader", "nosuch"], "Unknown reader 'nosuch'."),
    (["profile"], ["--labels", "pos,nosuch"], "bank, train has no label 'nosuch'."),
    (["profile"], ["--labels", "previous.nosuch"], "bank, train has no label 'previous.nosuch'."),
    (["profile"], ["--split", "test"], "bank has no test split."),
    (["patch"], ["--positions", "nosuch"], "positions is 'nosuch'."),
    (["patch"], ["--positions", "5-3"], "positions is '5-3'."),
    (["pairs"], ["--how", "both"], "p.jsonl, line 1"),
    (["align"], ["--gold", "nosuch"], "nosuch"),
    (["norms"], ["--dtype", "nosuch"], "dtype"),
    (["norms"], ["--device", "nosuch"], "device"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("early")
    tinyhf.save(tinyhf.gpt2(), root / "model", False)
    (root / "bank").mkdir()
    words = "".join(f"{i}\tw{i}\tw{i}\t{'NOUN' if i % 2 else 'VERB'}\tX\t_\t0\troot\t_\t_\n" for i in range(1, 5))
    for split in ("train", "dev"):
        (root / "bank" / f"{split}.conllu").write_text(f"{words}\n" * 3)
    (root / "p.jsonl").write_text(json.dumps({"base": "w1"}))
    (root / "one").write_text("w1 w2\n")
    return root


def call(place, command, *words):
    text = ["--text", "w1 w2 w3"]
    rest = {
        "erase": ["--corpus", place / "bank", "--split", "valid"],
        "profile": ["--corpus", place / "bank"],
        "patch": ["--base", "w1 w2", "--donor", "w1 w3"],
        "pairs": ["--pairs", place / "p.jsonl"],
        "align": ["--source", place / "one", "--target", place / "one"],
        "rewind": ["--initial", "bank", "--final", "model", *text],
    }.get(command, text)
    name, model = ("patch" if command == "pairs" else command), place if command == "rewind" else place / "model"
    done = CliRunner().invoke(main, [str(w) for w in (name, model, *rest, *words, "--out", place / "out")])
    assert done.exit_code == 2, done.output
    assert not (place / "out").exists()
    lines = done.stderr.splitlines()
    return lines[[line.startswith("trisect: ") for line in lines].index(True) :]


@pytest.fixture
def unloaded(monkeypatch):
    def loading(words):
        raise AssertionError(f"{words}: a model is loaded")

    monkeypatch.setattr("trisect.hf.files.fetch.report_step", loading)


@pytest.mark.parametrize("command", ["ablate", "erase", "patch", "rewind"])
@pytest.mark.parametrize(("site", "given"), SITES)
def test_what_is_no_site_is_refused_before_a_model_is_loaded(place, unloaded, command, site, given):
    first, known, todo = call(place, command, "--sites", site)
    assert given in first
    assert "A site reads [stack.][pre.]component@layer[.hHEAD]" in known
    assert "Write for example k@3" in todo


@pytest.mark.parametrize(("commands", "words", "given"), OTHERS, ids=lambda one: " ".join(one)[:30])
def test_so_is_what_names_no_label_split_file_or_position(place, unloaded, commands, words, given):
    lines = call(place, *commands, *words)
    assert len(lines) == 3
    assert given in lines[0]


def test_several_models_are_not_loaded_either(place, unloaded):
    words = ["ablate", place / "model", place / "model", "--text", "w1", "--sites", "zz@1", "--out", place / "out"]
    done = CliRunner().invoke(main, list(map(str, words)))
    assert done.exit_code == 2
    assert "'zz@1' is not a site" in done.stderr


@pytest.mark.parametrize("command", ["ablate", "erase", "patch"])
@pytest.mark.parametrize(("site", "known"), [("v@9", "layers 1, 2"), ("v@1.h9", "4 heads"), ("cross.v@1", "")])
def test_a_site_that_a_model_lacks_is_refused_before_any_text_is_read(place, monkeypatch, command, site, known):
    def passed(*_, **__):
        raise AssertionError("a text is read")

    monkeypatch.setattr("trisect.hf.load.Pretrained.batches", passed)
    lines = call(place, command, "--sites", site)
    assert site.split("@")[0] in lines[0]
    assert known in " ".join(lines[1:])


def test_a_profile_of_a_checkpoint_that_is_not_there_computes_nothing(place, monkeypatch):
    monkeypatch.setattr("trisect.experiments.profile.run.read_words", None)
    lines = call(place, "profile", "--checkpoints", "model,nosuch")
    assert "nosuch" in lines[0]
