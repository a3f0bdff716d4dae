"""Bounds of what is asked: upper bounds, options, machines and memory; refused as early as it can be known."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from annotated_types import Le
from click.testing import CliRunner
from tests import tiny, tinyhf
from tests.raw import read_json

import trisect
from trisect.cli import main
from trisect.core import files, machine, schema
from trisect.core.errors import CorpusError, DamagedFileError, ModelError, SpecError, StudyError, is_out_of_memory
from trisect.core.files import write_json
from trisect.core.methods import Erase, Probe
from trisect.core.schema import flat_settings, read_word
from trisect.core.spec import Model, Rewind, Training, to_json_data
from trisect.experiments import EXPERIMENTS, UTILITIES
from trisect.experiments.recall.settings import RecallRecipe
from trisect.experiments.study import plan as planning
from trisect.experiments.study.plan import join_ledger
from trisect.experiments.translate.settings import TranslationRecipe
from trisect.hf.files.model_errors import LOAD_ADVICE, MEMORY_ADVICE, ModelOutOfMemoryError, memory_guard
from trisect.hf.load import Pretrained, load
from trisect.lab.folder import Folder
from trisect.text import birth_places, pairs
from trisect.text.bitext import read_pairs
from trisect.text.lines import open_text

NUMBERS = [
    (one, field)
    for one in (*(e.settings for e in (*EXPERIMENTS, *UTILITIES)), RecallRecipe, TranslationRecipe)
    for field in flat_settings(one)
    if field.item is int and field.option.many != "seeds"
]


def call(*words):
    return CliRunner().invoke(main, [str(word) for word in words], catch_exceptions=False)


@pytest.mark.parametrize(("settings", "field"), NUMBERS, ids=lambda one: getattr(one, "__name__", None) or one.name)
def test_every_whole_number_has_an_upper_bound_and_says_it(settings, field):
    most: Any
    (most,) = (bound.le for bound in field.info.metadata if isinstance(bound, Le))
    for value in (most + 1, 10**20, 10**5000):
        with pytest.raises(SpecError) as error:
            read_word(field, value)
        assert f"{most:,}" in error.value.reason
        assert len(str(error.value)) < 1_000
    assert read_word(field, most) == most


@pytest.mark.parametrize("name", [*schema.MODEL_BOUNDS, *schema.TRAINING_BOUNDS])
def test_so_have_the_numbers_of_a_statement(name):
    kind: Any
    kind, most = (
        (Model, schema.MODEL_BOUNDS[name]) if name in schema.MODEL_BOUNDS else (Training, schema.TRAINING_BOUNDS[name])
    )
    for value in (most + 1, 10**5000):
        with pytest.raises(SpecError, match=f"{name} is") as error:
            kind(**{name: value})
        assert f"{most:,}" in error.value.reason


def test_more_runs_than_a_study_holds_are_refused_before_they_are_counted_out():
    with pytest.raises(SpecError) as error:
        trisect.plan("quick", seeds=10_000)
    assert error.value.problem == f"More than {schema.MAX_RUNS:,} runs are asked for."


def test_a_plan_says_its_memory_and_what_the_machine_lacks_is_refused_unless_forced(tmp_path, monkeypatch):
    (tmp_path / "tiny.json").write_text(json.dumps(to_json_data(tiny.EXPERIMENT)))
    assert "memory    roughly" in call("plan", tmp_path / "tiny.json").stdout
    assert json.loads(call("plan", tmp_path / "tiny.json", "--json").stdout)["memory_bytes"] > 0
    for name, what in (("memory_bytes", "memory in one worker"), ("free_bytes", "disk in")):
        with monkeypatch.context() as patch:
            patch.setattr(machine, name, lambda *_: 1000)
            for words in (("plan",), ("study", "--out", tmp_path / "o")):
                refused = call(words[0], tmp_path / "tiny.json", *words[1:])
                assert refused.exit_code == 2
                assert what in refused.stderr
                assert "--force" in refused.stderr
            assert call("plan", tmp_path / "tiny.json", "--force").exit_code == 0
    assert not (tmp_path / "o").exists()


def test_more_of_everything_takes_more_memory():
    small = planning.memory_bytes(tiny.EXPERIMENT, 100, 1)
    assert planning.memory_bytes(tiny.EXPERIMENT, 100, 8) > small
    assert planning.memory_bytes(tiny.EXPERIMENT, 10_000, 1) > small


def test_the_machine_is_asked():
    assert (machine.memory_bytes() or 10**9) > 10**8
    assert machine.free_bytes(Path("a/place/to/be/made")) is not None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"name": "a", "name": "b"}', "'name' is given twice"),
        ('[{"a": {"b": 1, "b": 1}}]', "'b' is given twice"),
        ("[NaN]", "NaN is no number of JSON"),
        ("[" * 100_000, "too deep"),
        ("{", "Expecting"),
    ],
)
def test_json_of_others_is_read_strictly(text, said, tmp_path):
    with pytest.raises(ValueError, match=said):
        files.parse(text)
    (tmp_path / "x.json").write_text(text)
    result = call("plan", tmp_path / "x.json")
    assert (result.exit_code, said in result.stderr) == (2, True)


def test_a_key_that_stands_twice_is_found_among_a_hundred_thousand():
    keys = ", ".join(f'"k{i}": {i}' for i in range(100_000))
    with pytest.raises(ValueError, match="'k99999' is given twice"):
        files.parse(f'{{{keys}, "k99999": 1}}')


def test_json_that_is_too_large_is_not_read(tmp_path):
    with (tmp_path / "x.json").open("wb") as file:
        file.truncate(schema.MAX_JSON_BYTES + 1)  # a hole: it takes no room
    result = call("plan", tmp_path / "x.json")
    assert f"up to {schema.MAX_JSON_BYTES:,} are read" in result.stderr


def test_one_word_that_does_not_end_is_refused(tmp_path):
    (tmp_path / "train.txt").write_text("x" * (1 << 20) + "y")
    (tmp_path / "valid.txt").write_text("a b c")
    with pytest.raises(CorpusError, match="without white space"):
        trisect.corpus(tmp_path)


def test_options_that_could_not_be_heeded_are_refused(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("trisect.hf.files.fetch._reachable", lambda *name: asked.append(name) or False)
    for words, said in (
        (("--text", "a", "--split", "train"), "--split and --text"),
        (("--text", "a", "--reader", "plain"), "--reader and --text"),
        (("--corpus", "embedded", "--reader", "nosuch"), "Unknown reader 'nosuch'"),
        (("--corpus", "embedded", "--reader", "plain"), "The reader 'plain' was named for 'embedded'"),
        (("--text", "a", "--split", "nosuch"), "Unknown split 'nosuch'"),
    ):
        result = call("ablate", "no/model", *words)
        assert result.exit_code == 2
        assert said in result.stderr
    assert asked == []  # a hub is asked for the model's mark only when the rest is right
    assert call("ablate", "no/model", "--text", "a").exit_code == 2
    assert {name for name, _ in asked} == {"no/model"}
    for where in ("embedded", "roles"):
        with pytest.raises(CorpusError, match="Leave --reader out"):
            trisect.corpus(where, "plain")
    (tmp_path / "s").write_text("a b\n")
    with pytest.raises(CorpusError, match="no gold links"):
        read_pairs(tmp_path / "s", tmp_path / "s", None, 1)


@pytest.mark.parametrize("content", ["\n\n", " \n\t\n"])
def test_a_gold_file_of_blank_lines_is_no_gold(content, tmp_path):
    (tmp_path / "gold").write_text(content)
    (tmp_path / "s").write_text("a b\nc d\n")
    with pytest.raises(CorpusError, match="so that it is no gold"):
        read_pairs(tmp_path / "s", tmp_path / "s", tmp_path / "gold")
    (tmp_path / "gold").write_text("0-0\n\n")
    assert len(read_pairs(tmp_path / "s", tmp_path / "s", tmp_path / "gold").pairs) == 2


def forged(**changes):
    return lambda body: body | {"asked": [body["asked"][0] | changes]}


FORGERIES = {
    "fleets are a number": lambda b: b | {"fleets": 5},
    "no fleets": lambda b: {k: v for k, v in b.items() if k != "fleets"},
    "another seed": forged(seeds=[99]),
    "seeds that were never run": forged(seeds=[1, 2, 3]),
    "billions of layers": forged(model={"layers": 10**9}),
    "wider models": lambda b: forged(model=b["asked"][0]["model"] | {"width": 16})(b),
    "another text": lambda b: b | {"corpus": "0" * 16},
    "a fleet of nobody": lambda b: b | {"fleets": [*b["fleets"], ["nobody-s1-00000000"]]},
    "a path for an id": lambda b: b | {"fleets": [["../../x"]]},
    "a run in two fleets": lambda b: b | {"fleets": [*b["fleets"], b["fleets"][0]]},
    "a fleet of numbers": lambda b: b | {"fleets": [1, 2]},
    "fleets without end": lambda b: b | {"fleet": 10**12},
    "nothing asked": lambda b: b | {"asked": []},
    "a statement that is a number": lambda b: b | {"asked": [5]},
    "a probe that is a number": forged(probe=5),
    "designs of two models": lambda b: b | {"asked": [*b["asked"], b["asked"][0] | {"model": {}}]},
    "designs that rewind in two ways": lambda b: (
        b | {"asked": [*b["asked"], b["asked"][0] | {"rewind": b["asked"][0]["rewind"] | {"points": 51}}]}
    ),
    "a step that is a word": lambda b: b | {"step": "x"},
    "a precision of its own": lambda b: b | {"precision": "float7"},
}


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES)
def test_a_forged_ledger_with_a_right_checksum_is_no_ledger(forge, tmp_path):
    folder = Folder(tmp_path / "study")
    join_ledger(folder, [tiny.EXPERIMENT], "text")
    write_json(folder.ledger, forge(read_json(folder.ledger, "")))
    with pytest.raises(DamagedFileError, match="no study's ledger"):
        folder.read_ledger()


@pytest.mark.parametrize("command", ["study", "report", "check"])
def test_every_command_says_that_a_forged_ledger_is_none(command, tmp_path):
    (tmp_path / "tiny.json").write_text(json.dumps(to_json_data(tiny.EXPERIMENT)))
    folder = Folder(tmp_path / "study")
    join_ledger(folder, [tiny.EXPERIMENT], trisect.plan(tmp_path / "tiny.json").corpus.fingerprint)
    write_json(folder.ledger, FORGERIES["another seed"](read_json(folder.ledger, "")))
    result = call(command, *([tmp_path / "tiny.json", "--out"] if command == "study" else []), folder.path)
    assert result.exit_code == 2
    assert "is no study's ledger" in result.stderr
    assert "Delete" in result.stderr


def leaves(value, path=()):
    """Every value of an object that holds no others, and where it lies."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    else:
        yield path, value


def with_another(body, path):
    """The object with something else in one place."""
    if not path:
        return "another" if isinstance(body, str) else [*body, "another"] if isinstance(body, list) else (body or 0) + 1
    return {key: with_another(item, path[1:]) if key == path[0] else item for key, item in body.items()}


def test_every_value_by_which_runs_are_trained_is_held_against_a_ledgers_runs(tmp_path):
    folder = Folder(tmp_path / "study")
    join_ledger(folder, [tiny.EXPERIMENT], "text")
    whole: Any = read_json(folder.ledger, "")
    (design,) = whole["asked"]
    found = [path for path, _ in leaves(design) if path[0] in ("model", "training", "seeds", "attack", "freeze")]
    assert {path[0] for path in found} == {"model", "training", "seeds", "attack", "freeze"}
    for path in found:
        write_json(folder.ledger, whole | {"asked": [with_another(design, path)]})
        with pytest.raises(DamagedFileError, match="no study's ledger"):
            folder.read_ledger()
    write_json(folder.ledger, whole)
    assert to_json_data(folder.read_ledger()) == whole


WAYS = [
    replace(tiny.EXPERIMENT, seeds=(3,), probe=Probe((tiny.SITES[0],), ("pos",))),
    replace(tiny.EXPERIMENT, seeds=(3,), probe=Probe(labels=("pos",), kinds=("linear",))),
    replace(tiny.EXPERIMENT, seeds=(3,), erase=Erase(tiny.SITES[:1], ("pos",), draws=3)),
    replace(tiny.EXPERIMENT, seeds=(3,), erase=Erase(tiny.SITES[:1], ("pos",), draws=2, shrinkage=False)),
    replace(tiny.EXPERIMENT, seeds=(3,), rewind=Rewind(tiny.SITES, points=7)),
    replace(tiny.EXPERIMENT, seeds=(3,), rewind=Rewind(tiny.SITES, points=11, epsilon=0.2)),
]


@pytest.mark.parametrize("other", WAYS)
def test_a_study_evaluates_in_one_way(other, tmp_path):
    folder = Folder(tmp_path / "study")
    erase = Erase(tiny.SITES[:1], ("pos",), draws=2)
    first = replace(tiny.EXPERIMENT, probe=Probe(labels=("pos",)), erase=erase)
    whole: Any = to_json_data(join_ledger(folder, [first], "text"))
    with pytest.raises(StudyError, match="belongs to another study"):
        join_ledger(folder, [other], "text")
    write_json(folder.ledger, whole | {"asked": [*whole["asked"], to_json_data(other)]})
    with pytest.raises(DamagedFileError, match=r"no study's ledger(?s:.*)Its designs differ in"):
        folder.read_ledger()


def links(path):
    read_pairs(path.with_name("s"), path.with_name("t"), path)


def people(path):
    for name in birth_places.FILES.values():
        (path.parent / name).write_text("Where was Ann Lee born?\tRome\n")
    birth_places.open_people(path.parent)


@pytest.mark.parametrize(
    ("name", "read_it", "most"),
    [
        ("p.jsonl", pairs.read_pairs, schema.MAX_LINE_BYTES),
        ("g", links, schema.MAX_LINE_BYTES),
        (birth_places.WIKI, people, schema.MAX_LINE_BYTES),
    ],
)
def test_a_line_that_is_too_long_is_said(tmp_path, name, read_it, most):
    path = tmp_path / name
    with path.open("wb") as file:
        file.write(b"a b\n")
        file.truncate(most + 10)  # a line of zeros that takes no place on the disk
    for one in ("s", "t"):
        (tmp_path / one).write_text("a b")
    with pytest.raises(CorpusError) as error:
        read_it(path)
    assert error.value.problem == f"{path}, line 2, is too long."
    assert error.value.reason == f"A line has at most {most:,} bytes."


@pytest.mark.parametrize("sizes", [(5, 5, 5), (7, 2**20, 3), (0, 0, 2**20 + 5, 1), (2**20 - 1, 9)])
def test_the_longest_line_of_a_file_is_what_counts_wherever_it_is_cut(tmp_path, sizes):
    path = tmp_path / "x"
    path.write_bytes(b"\n".join(b"a" * size for size in sizes))

    def read(longest):
        with open_text(path, longest, 2**30) as file:
            return file.read()

    assert len(read(max(sizes))) == path.stat().st_size
    with pytest.raises(CorpusError, match=f"line {sizes.index(max(sizes)) + 1}, is too long"):
        read(max(sizes) - 1)


def test_only_a_line_feed_ends_a_line_of_pairs(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text('{"base": "a\u2028b", "donor": "c\x85d"}\n', encoding="utf-8")
    assert [(pair.base, pair.donor) for pair in pairs.read_pairs(path)] == [("a\u2028b", "c\x85d")]


@pytest.mark.parametrize(
    "words",
    [("check", ""), ("report", " "), ("norms", "", "--text", "a"), ("corpus", "show", ""), ("similarity", "")],
    ids=lambda words: words[0],
)
def test_an_empty_name_is_not_the_folder_that_one_is_in(tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    found = CliRunner().invoke(main, list(words), catch_exceptions=False)
    assert found.exit_code == 2
    given, known, todo = found.stderr.removeprefix("trisect: ").strip().splitlines()[-3:]
    assert given.startswith("The name of a ")
    assert given.endswith((" is ''.", " is ' '."))
    assert "the folder that you are in" in known
    assert "Write ." in todo
    assert list(tmp_path.iterdir()) == []


OTHERS = [
    *(
        ([command], ["--sites", "zz@1"], "'zz@1' is not a site: 'zz' is no component.")
        for command in ("ablate", "erase", "patch", "rewind")
    ),
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


def early_call(place, command, *words):
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


@pytest.mark.parametrize(("commands", "words", "given"), OTHERS, ids=lambda one: " ".join(one)[:30])
def test_what_names_no_site_label_split_file_or_position_is_refused_before_a_model_is_loaded(
    place, unloaded, commands, words, given
):
    lines = early_call(place, *commands, *words)
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
    lines = early_call(place, command, "--sites", site)
    assert site.split("@")[0] in lines[0]
    assert known in " ".join(lines[1:])


TOO_MANY = 2**60


def allocate() -> None:
    """What no machine has: PyTorch's own error, whatever its words are here."""
    torch.empty(TOO_MANY, dtype=torch.uint8)


def gpu() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")


def python() -> None:
    raise MemoryError


FAILURES = [allocate, gpu, python]


@pytest.fixture(scope="module")
def subject() -> Pretrained:
    return load(tinyhf.llama())


@pytest.fixture
def failing(subject: Pretrained) -> Any:
    """The model, whose second layer does what it is given before it runs."""
    now: list[Callable[[], None]] = []

    def meet(*_given: Any) -> None:
        for fail in now:
            fail()

    handle = subject.model.get_submodule("model.layers.1").register_forward_pre_hook(meet)
    yield now
    handle.remove()


@pytest.mark.parametrize("fail", FAILURES)
def test_reading_and_running_without_enough_memory_say_what_makes_a_pass_smaller(subject, failing, fail):
    ids = torch.arange(6, 20).view(2, 7)
    batch = subject.batch_of({"input_ids": ids})
    failing.append(fail)
    for call in (
        lambda: subject.read({"input_ids": ids}),
        lambda: subject.batch_of({"input_ids": ids}),
        lambda: subject.score(batch),
        lambda: subject.each(batch, lambda trace: None),
    ):
        with pytest.raises(ModelOutOfMemoryError) as found:
            call()
        given, known, todo = found.value.problem, found.value.reason, found.value.todo
        assert "input_ids of 2×7" in given
        assert "needs more memory than there is" in given
        assert known.startswith("The system ")
        assert todo == MEMORY_ADVICE
        assert all(option in todo for option in ("--batch", "--window", "--dtype"))
        assert "failed with the inputs" not in str(found.value)


@pytest.mark.parametrize("fail", FAILURES)
def test_a_model_that_memory_does_not_suffice_for_is_not_refused_as_one_that_cannot_be_verified(fail):
    model = tinyhf.llama()
    model.get_submodule("model.layers.1").register_forward_pre_hook(lambda *_: fail())
    with pytest.raises(ModelOutOfMemoryError, match="Verifying LlamaForCausalLM") as found:
        load(model)
    assert "cannot be tried out" not in str(found.value)


def test_what_is_wrong_with_inputs_is_still_said_of_them(subject, failing):
    def wrong() -> None:
        raise RuntimeError("shapes cannot be multiplied")

    failing.append(wrong)
    with pytest.raises(ModelError, match="failed with the inputs") as found:
        subject.batch_of({"input_ids": torch.arange(6, 13)[None]})
    assert not isinstance(found.value, ModelOutOfMemoryError)


def test_loading_names_what_loads_less():
    refused = pytest.raises(ModelOutOfMemoryError, match="Loading M needs more memory")
    with refused as found, memory_guard("M", "Loading"):
        gpu()
    assert found.value.todo == LOAD_ADVICE
    assert "--dtype" in LOAD_ADVICE


def test_other_errors_pass_as_they_are():
    with pytest.raises(RuntimeError, match=r"^no$"), memory_guard("M", "Running"):
        raise RuntimeError("no")
    assert not is_out_of_memory(ValueError("out of memory"))
    assert is_out_of_memory(RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"))
