"""Fetching: what is loaded from a folder, by which head, what is refused before it is opened, and files that lie."""

import importlib.util
import json
import shutil
import struct
from functools import partial
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests import tinyhf

import trisect
from trisect.core.errors import ModelError, on_step
from trisect.hf.files import fetch as files_fetch
from trisect.hf.files.fetch import Options, check_sizes, fetch, objective_of
from trisect.hf.files.model_errors import check_finite, check_ids, loading_error, translate_errors

SAVED = {
    "masked": tinyhf.bert,
    "output": lambda: tinyhf.bert(head=False),
    "causal": tinyhf.gpt2,
    "seq2seq": tinyhf.bart,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    base = tmp_path_factory.mktemp("models")
    for name, make in SAVED.items():
        tinyhf.save(make(), base / name, name != "causal")
    return base


@pytest.mark.parametrize("name", SAVED)
def test_a_folder_gives_the_model_that_was_saved_with_its_own_objective(folders, name):
    model, tokenizer, objective = fetch(folders / name, Options())
    assert objective == name == objective_of(type(model).__name__, model.config)
    assert not model.training
    assert tokenizer is not None
    assert tokenizer("w1")["input_ids"][-2:] != []
    for key, tensor in SAVED[name]().state_dict().items():
        assert torch.equal(model.state_dict()[key], tensor), key


def test_the_dtype_is_passed_on(folders):
    model, _, _ = fetch(folders / "causal", Options(dtype="bfloat16"))
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


def refused(where, **options):
    with pytest.raises(ModelError) as error:
        fetch(where, Options(**options))
    return error.value


def test_folders_that_are_no_models(folders, tmp_path):
    assert refused(tmp_path).problem == f"{tmp_path} is no model's folder."
    assert refused(tmp_path).reason == "A model's folder has a config.json; this one holds nothing."
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.json").write_text((folders / "masked" / "config.json").read_text())
    assert refused(bare).problem == f"{bare} has no weights."
    (bare / "config.json").write_text(json.dumps({"model_type": "no such family"}))
    (bare / "model.safetensors").write_bytes(b"")
    assert refused(bare).problem == f"The weights {bare / 'model.safetensors'} cannot be read."
    (bare / "model.safetensors").write_bytes((folders / "masked" / "model.safetensors").read_bytes())
    assert refused(bare).problem == f"The model {bare} cannot be loaded."


def test_a_pickle_is_opened_only_when_it_is_allowed(folders, tmp_path):
    place = tmp_path / "pickled"
    place.mkdir()
    model = tinyhf.gpt2()
    (place / "config.json").write_text((folders / "causal" / "config.json").read_text())
    torch.save(model.state_dict(), place / "pytorch_model.bin")
    error = refused(place)
    assert error.problem == f"{place} has no safetensors."
    assert error.reason == "Its weights are pytorch_model.bin: a pickle can run any code when it is opened."
    found, _, _ = fetch(place, Options(pickle=True))
    key = "transformer.wte.weight"
    assert torch.equal(found.state_dict()[key], model.state_dict()[key])


def test_a_broken_tokenizer_is_said_and_a_missing_one_is_none(folders, tmp_path):
    place = tinyhf.save(tinyhf.gpt2(), tmp_path / "broken", False)
    (place / "tokenizer.json").write_text("{")
    assert refused(place).problem == f"The tokenizer of {place} cannot be read: tokenizer.json."
    for file in place.glob("tokenizer*"):
        file.unlink()
    assert fetch(place, Options())[1] is None
    assert refused(place / "config.json").problem == f"{place / 'config.json'} is a file."


def test_options_that_cannot_be(folders):
    assert refused(folders / "causal", dtype="int3").problem == "Unknown dtype 'int3'."
    assert refused(folders / "causal", device="tpu").problem == "Unknown device 'tpu'."
    assert files_fetch._device("auto") == torch.device("cuda" if torch.cuda.is_available() else "cpu")
    assert refused(folders / "causal", device="cuda:99").problem == "Unknown device 'cuda:99'."
    if importlib.util.find_spec("accelerate") is None:
        error = refused(folders / "causal", device_map="auto")
        assert error.problem == f"{folders / 'causal'} cannot be loaded with a device map."
    error = refused(folders / "causal", revision="step1")
    assert error.problem == f"Revision 'step1' of the folder {folders / 'causal'} was asked for."


def test_a_name_that_is_no_folder(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert refused("no folder/of such/a name").problem == "'no folder/of such/a name' is no model."
    monkeypatch.setattr(files_fetch, "_reachable", lambda name, revision: False)
    error = refused("nobody/nothing")
    assert error.problem == "The model nobody/nothing cannot be loaded."
    assert error.todo == "Check the name, the revision and the network; a folder works without one."


@pytest.mark.parametrize(
    ("kind", "revision", "given"),
    [
        ("RepositoryNotFoundError", None, "'nobody/nothing' is no model."),
        ("RevisionNotFoundError", "step7", "Revision 'step7' of 'nobody/nothing'."),
        ("GatedRepoError", None, "No access to the model 'nobody/nothing'."),
    ],
)
def test_what_a_hub_says_of_a_name(monkeypatch, kind, revision, given):
    import httpx
    from huggingface_hub import HfApi, errors

    def model_info(self, *args, **named):
        response = httpx.Response(404, request=httpx.Request("GET", "https://hub.test"))
        raise getattr(errors, kind)("no", response=response)

    monkeypatch.setattr(HfApi, "model_info", model_info)
    monkeypatch.setattr(files_fetch, "_NO_ANSWER", {})
    assert refused("nobody/nothing", revision=revision).problem == given


def test_a_hub_without_an_answer_is_asked_once_and_said_to_be_silent(monkeypatch):
    from huggingface_hub import HfApi

    asked, said = [], []

    def model_info(self, *args, timeout: float, **named):
        asked.append(timeout)
        raise ConnectionError("no route")

    monkeypatch.setattr(HfApi, "model_info", model_info)
    monkeypatch.setattr(files_fetch, "_NO_ANSWER", {})
    with on_step(said.append):
        assert [files_fetch._reachable("nobody/nothing", None) for _ in range(3)] == [False] * 3
    assert asked == [files_fetch.HUB_TIMEOUT]
    assert [words.split(" http")[0] for words in said] == ["Asking", "No answer from"]
    error = refused("nobody/nothing-of-this-name")
    assert error.reason.startswith(f"{HfApi().endpoint} gave no answer, and is not asked again for 60 seconds.")
    assert len(asked) == 1


def timed_out():
    import huggingface_hub.utils._http as own  # whichever of httpx and httpx2 it is built on

    return next(kind for kind in own._DEFAULT_RETRY_ON_EXCEPTIONS if kind.__name__ == "TimeoutException")("slow")


def too_many():
    import httpx
    from huggingface_hub.errors import HfHubHTTPError

    response: Any = httpx.Response(429)  # or httpx2's, as the installed hub has it
    return HfHubHTTPError("429 Too Many Requests", response=response)


@pytest.mark.parametrize(("raised", "times"), [(timed_out, 1), (too_many, 2), (lambda: ValueError("no JSON"), 2)])
def test_an_answer_of_no_use_is_of_its_own_model_and_silence_of_the_hub(monkeypatch, raised, times):
    from huggingface_hub import HfApi

    asked, said = [], []

    def model_info(self, name, **named):
        asked.append(name)
        raise raised()

    monkeypatch.setattr(HfApi, "model_info", model_info)
    monkeypatch.setattr(files_fetch, "_NO_ANSWER", {})
    with on_step(said.append):
        assert not files_fetch._reachable("nobody/nothing", None)
        assert not files_fetch._reachable("nobody/other", None)
    assert asked == ["nobody/nothing", "nobody/other"][:times]
    assert sum("No answer" in words for words in said) == (times == 1)


def test_offline_no_hub_is_asked_and_none_is_said_to_be(monkeypatch):
    from huggingface_hub import constants

    said = []
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(files_fetch, "_NO_ANSWER", {})
    with on_step(said.append):
        assert not files_fetch._reachable("nobody/nothing", None)
    assert said == []
    assert files_fetch._NO_ANSWER == {}


def test_an_adapter_of_peft_is_named_with_its_base(tmp_path):
    body = {"peft_type": "LORA", "base_model_name_or_path": "org/base"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(body))
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    error = refused(tmp_path)
    assert error.problem == f"{tmp_path} holds an adapter of PEFT, and no model."
    assert "'org/base'" in error.reason
    assert "merge_and_unload" in error.todo


WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return tinyhf.save(tinyhf.gpt2(), tmp_path_factory.mktemp("m") / "gpt2", False)


@pytest.fixture
def model(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "gpt2")


def refused_by_norms(folder):
    with pytest.raises(ModelError) as error:
        trisect.norms(folder, ["w1 w2 w3"], out=folder.parent / "out", quiet=True)
    assert all((error.value.problem, error.value.reason, error.value.todo))
    assert not (folder.parent / "out").exists() or not any((folder.parent / "out").glob("*.html"))
    return error.value


def change(folder, **fields):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.mark.parametrize("text", ["null", "5", "[]", '"a"', "{", "[" * 100_000, "\x00"])
def test_a_configuration_that_is_no_object(model, text):
    (model / "config.json").write_text(text)
    assert refused_by_norms(model).problem == f"{model / 'config.json'} is no configuration."


FIELDS = [
    ("n_head", 0, "n_head of"),
    ("n_head", "4", "'n_head' expected int, got str"),
    ("n_layer", 10**9, "too few for that"),
    ("n_layer", 5, "would be random numbers"),
    ("n_embd", 0, "ZeroDivisionError"),
    ("n_embd", 64, "other shapes than its config.json says"),
    ("n_inner", -5, "negative dimension"),
    ("n_positions", 10**9, "n_positions of"),
    ("architectures", [5], "class names"),
    ("model_type", 5, "model type `5`"),
    ("dtype", 9, "cannot be loaded"),
]


@pytest.mark.parametrize(("field", "value", "said"), FIELDS)
def test_a_field_that_cannot_be(model, field, value, said):
    change(model, **{field: value})
    assert said in str(refused_by_norms(model))


def test_a_quantised_model_without_its_package_says_that(model):
    change(model, quantization_config={"quant_method": "gptq", "bits": 4})
    error = refused_by_norms(model)
    assert error.problem == f"{model} is quantised, and cannot be loaded here."
    assert "'gptq'" in error.reason
    assert "Install the package" in error.todo


def _dangling(folder):
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).symlink_to("nowhere")


def _folder(folder):
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).mkdir()


def _cut(folder):
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[: len(content) // 2])


def _indexed(content):
    def do(folder):
        (folder / WEIGHTS).rename(folder / "one.safetensors")
        (folder / INDEX).write_text(json.dumps(content))

    return do


def _header(content, length=None):
    def do(folder):
        (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(content) if length is None else length) + content)

    return do


def _cast(kind):
    def do(folder):
        weights = {name: t.to(kind) for name, t in load_file(folder / WEIGHTS).items()}
        save_file(weights, folder / WEIGHTS, {"format": "pt"})

    return do


FILES = {
    "a link to nothing": (_dangling, "It does not exist, or is a broken link."),
    "a folder": (_folder, "It is a folder."),
    "nothing in it": (lambda folder: (folder / WEIGHTS).write_bytes(b""), "not a complete safetensors file"),
    "a pointer": (
        lambda folder: (folder / WEIGHTS).write_text(
            "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
        ),
        "git lfs pull",
    ),
    "half of it": (_cut, "not a complete safetensors file"),
    "a header without end": (_header(b"{}", 2**60), "not a complete safetensors file"),
    "a tensor without a shape": (_header(b'{"a":{"dtype":"F32"}}'), "not a complete safetensors file"),
    "an index that is a list": (_indexed([]), "no JSON object"),
    "an index without a map": (_indexed({"weight_map": []}), "no weight_map"),
    "an index of a missing file": (_indexed({"weight_map": {"a": "two.safetensors"}}), "It does not exist"),
    "an index that leads out": (_indexed({"weight_map": {"a": "../gpt2/one.safetensors"}}), "in its own folder"),
    "another name": (
        lambda folder: (folder / WEIGHTS).rename(folder / "x.safetensors"),
        "nor an index says that this is",
    ),
    "whole numbers": (_cast(torch.int32), "none holds floating-point numbers"),
    "no tensor": (lambda folder: save_file({}, folder / WEIGHTS, {"format": "pt"}), "none holds floating-point"),
}


@pytest.mark.parametrize(("do", "said"), FILES.values(), ids=FILES)
def test_weights_that_are_none(model, do, said):
    do(model)
    assert said in str(refused_by_norms(model))


def test_an_index_of_files_that_are_there_is_read(model):
    names = list(load_file(model / WEIGHTS))
    _indexed({"metadata": {}, "weight_map": dict.fromkeys(names, "one.safetensors")})(model)
    assert trisect.load(model).shape.layers("plain") == (1, 2)


@pytest.mark.parametrize(("value", "word"), [(float("nan"), "1 NaN"), (float("-inf"), "1 infinite")])
def test_weights_that_are_no_numbers_are_called_that(model, value, word):
    weights = load_file(model / WEIGHTS)
    weights["transformer.h.0.attn.c_attn.weight"].view(-1)[7] = value
    save_file(weights, model / WEIGHTS, {"format": "pt"})
    error = refused_by_norms(model)
    assert error.problem == f"Weights of {model} are not finite."
    assert error.reason == f"transformer.h.0.attn.c_attn.weight holds {word} of 3,072 numbers."
    module = tinyhf.gpt2()
    with torch.no_grad():
        module.get_parameter("transformer.wte.weight")[0, 0] = value
    with pytest.raises(ModelError, match="Weights of GPT2LMHeadModel are not finite"):
        trisect.load(module)


def test_weights_so_large_that_the_answer_is_none_are_called_that_and_not_random(model):
    weights = load_file(model / WEIGHTS)
    weights["transformer.ln_f.weight"][:] = 3e38
    save_file(weights, model / WEIGHTS, {"format": "pt"})
    error = refused_by_norms(model)
    assert error.problem == "GPT2LMHeadModel returns NaN."
    assert "numbers of its output are NaN" in error.reason
    assert "float64" in error.todo


def test_large_finite_weights_are_numbers():
    module = torch.nn.Linear(2, 2)
    with torch.no_grad():
        module.weight.fill_(3e38)
    check_finite("m", module)


def _vocabulary(folder, change):
    path = folder / "tokenizer.json"
    body = json.loads(path.read_text())
    body["model"]["vocab"] = change(body["model"]["vocab"])
    path.write_text(json.dumps(body))


@pytest.mark.parametrize("command", ["norms", "explore", "ablate", "similarity"])
def test_a_tokenizer_with_ids_beyond_the_vocabulary(model, command, tmp_path):
    _vocabulary(model, lambda words: {word: number * 1000 for word, number in words.items()})

    def run():
        if command == "explore":
            return trisect.load(model).read("w1 w2")
        return getattr(trisect, command)(model, ["w1 w2"], out=tmp_path / "o", quiet=True)

    with pytest.raises(ModelError) as error:
        run()
    assert error.value.problem == "The token 'w2', id 9000, is not in the vocabulary of gpt2."
    assert error.value.reason == "The model has a row for each of the ids 0 to 46."


def test_ids_of_a_users_own_are_looked_at_too():
    module = tinyhf.gpt2()
    for number in (47, -1):
        with pytest.raises(ModelError, match=f"The token id {number} is not"):
            check_ids("m", module, None, {"input_ids": torch.tensor([[1, number]])})
    check_ids("m", module, None, {"input_ids": torch.tensor([[0, 46]]), "pixels": torch.zeros(1)})


@pytest.mark.parametrize("text", ["null", "[]", "{}", '{"model": 5}'])
def test_a_tokenizer_that_is_none(model, text):
    (model / "tokenizer.json").write_text(text)
    assert "tokenizer" in refused_by_norms(model).problem


@pytest.mark.parametrize("length", [[24], "24", {}, True])
def test_a_tokenizer_of_no_length(model, length):
    place = model / "tokenizer_config.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | {"model_max_length": length}))
    with pytest.raises(ModelError) as error:
        trisect.load(model)
    assert error.value.problem == f"model_max_length of {model} is {length!r}."
    assert error.value.reason == "It is a number of tokens."


def test_a_tokenizer_that_fails_at_a_text(model):
    _vocabulary(model, lambda words: {})
    error = refused_by_norms(model)
    assert error.problem == "The tokenizer of gpt2 fails on 'w1 w2 w3'."


def test_only_what_other_libraries_raise_is_turned():
    for raised in (PermissionError("a"), MemoryError(), ModelError("a", "b", "c"), KeyboardInterrupt()):
        with pytest.raises(type(raised)) as error, translate_errors(partial(loading_error, "m", None)):
            raise raised
        assert error.value is raised
    with (
        pytest.raises(ModelError, match="cannot be loaded with a device map") as error,
        translate_errors(partial(loading_error, "m", None)),
    ):
        raise ValueError("When passing device_map as a string, the value needs to be 'auto' but found nonsense.")
    assert "leave it out" in error.value.todo
    with pytest.raises(ModelError, match="ZeroDivisionError"), translate_errors(partial(loading_error, "m", None)):
        raise ZeroDivisionError("x")


def test_sizes_inside_a_configuration_and_of_a_hubs_model():
    for body in ({"text_config": {"num_hidden_layers": 10**9}}, {"encoder_layers": 10**9}, {"hidden_size": 10**12}):
        with pytest.raises(ModelError, match="whole number from 0 to"):
            check_sizes("m", body, None)
    check_sizes("m", {"n_layer": 12, "hidden_size": 768, "num_key_value_heads": None, "use_heads": True}, None)
