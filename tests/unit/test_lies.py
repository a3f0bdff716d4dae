"""Models whose files lie: each is one error of three parts that is true, before anything large is built."""

import json
import shutil
import struct
from functools import partial

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests import tinyhf

import trisect
from trisect.core.errors import ModelError
from trisect.hf.files.fetch import check_sizes
from trisect.hf.files.model_errors import check_finite, check_ids, not_loaded, saying

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return tinyhf.save(tinyhf.gpt2(), tmp_path_factory.mktemp("m") / "gpt2", False)


@pytest.fixture
def model(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "gpt2")


def refused(folder):
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
    assert refused(model).problem == f"{model / 'config.json'} is no configuration."


FIELDS = [
    ("n_head", 0, "n_head of"),
    ("n_head", -4, "n_head of"),
    ("n_head", "4", "'n_head' expected int, got str"),
    ("n_layer", -1, "n_layer of"),
    ("n_layer", 10**9, "too few for that"),
    ("n_layer", 65, "too few for that"),
    ("n_layer", None, "'n_layer' expected int"),
    ("n_layer", 5, "would be random numbers"),
    ("n_embd", 0, "ZeroDivisionError"),
    ("n_embd", 10**12, "too few for that"),
    ("n_embd", 64, "other shapes than its config.json says"),
    ("n_inner", -5, "negative dimension"),
    ("vocab_size", 10**30, "too few for that"),
    ("n_positions", 10**9, "n_positions of"),
    ("architectures", 5, "names of classes"),
    ("architectures", [5], "names of classes"),
    ("architectures", "GPT2LMHeadModel", "names of classes"),
    ("model_type", 5, "model type `5`"),
    ("model_type", ["a"], "cannot be loaded"),
    ("auto_map", 5, "cannot be loaded"),
    ("dtype", 9, "cannot be loaded"),
    ("quantization_config", 5, "cannot be loaded"),
    ("activation_function", 7, "expected str, got int"),
    ("layer_norm_epsilon", "a", "expected float, got str"),
    ("tie_word_embeddings", "no", "expected bool, got str"),
]


@pytest.mark.parametrize(("field", "value", "said"), FIELDS)
def test_a_field_that_cannot_be(model, field, value, said):
    change(model, **{field: value})
    assert said in str(refused(model))


def test_a_quantised_model_without_its_package_says_that(model):
    change(model, quantization_config={"quant_method": "gptq", "bits": 4})
    error = refused(model)
    assert error.problem == f"{model} is quantised, and cannot be loaded as it is."
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
    "a link to nothing": (_dangling, "It is not there, or a link to nothing."),
    "a folder": (_folder, "It is a folder."),
    "nothing in it": (lambda folder: (folder / WEIGHTS).write_bytes(b""), "no whole file of safetensors"),
    "a pointer": (
        lambda folder: (folder / WEIGHTS).write_text(
            "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
        ),
        "git lfs pull",
    ),
    "half of it": (_cut, "no whole file of safetensors"),
    "a header without end": (_header(b"{}", 2**60), "no whole file of safetensors"),
    "a header that is no JSON": (_header(b"{{{{{{{{"), "no whole file of safetensors"),
    "a header that is a list": (_header(b"[1,2,3]"), "no whole file of safetensors"),
    "a tensor without a shape": (_header(b'{"a":{"dtype":"F32"}}'), "no whole file of safetensors"),
    "a shape of texts": (
        _header(b'{"a":{"dtype":"F32","shape":["1"],"data_offsets":[0,4]}}'),
        "no whole file of safetensors",
    ),
    "an index that is a list": (_indexed([]), "no JSON object"),
    "an index without a map": (_indexed({"weight_map": []}), "no weight_map"),
    "an index of numbers": (_indexed({"weight_map": {"a": 5}}), "no weight_map"),
    "an index of a missing file": (_indexed({"weight_map": {"a": "two.safetensors"}}), "It is not there"),
    "an index that leads out": (_indexed({"weight_map": {"a": "../gpt2/one.safetensors"}}), "in its own folder"),
    "another name": (lambda folder: (folder / WEIGHTS).rename(folder / "x.safetensors"), "which nothing says to be"),
    "whole numbers": (_cast(torch.int32), "none holds floating-point numbers"),
    "no tensor": (lambda folder: save_file({}, folder / WEIGHTS, {"format": "pt"}), "none holds floating-point"),
}


@pytest.mark.parametrize(("do", "said"), FILES.values(), ids=FILES)
def test_weights_that_are_none(model, do, said):
    do(model)
    assert said in str(refused(model))


def test_an_index_of_files_that_are_there_is_read(model):
    names = list(load_file(model / WEIGHTS))
    _indexed({"metadata": {}, "weight_map": dict.fromkeys(names, "one.safetensors")})(model)
    assert trisect.load(model).shape.layers("plain") == (1, 2)


@pytest.mark.parametrize(("value", "word"), [(float("nan"), "1 NaN"), (float("-inf"), "1 infinite")])
def test_weights_that_are_no_numbers_are_called_that(model, value, word):
    weights = load_file(model / WEIGHTS)
    weights["transformer.h.0.attn.c_attn.weight"].view(-1)[7] = value
    save_file(weights, model / WEIGHTS, {"format": "pt"})
    error = refused(model)
    assert error.problem == f"Weights of {model} are no numbers."
    assert error.reason == f"transformer.h.0.attn.c_attn.weight holds {word} of 3,072 numbers."
    module = tinyhf.gpt2()
    with torch.no_grad():
        module.get_parameter("transformer.wte.weight")[0, 0] = value
    with pytest.raises(ModelError, match="Weights of GPT2LMHeadModel are no numbers"):
        trisect.load(module)


def test_weights_so_large_that_the_answer_is_none_are_called_that_and_not_random(model):
    weights = load_file(model / WEIGHTS)
    weights["transformer.ln_f.weight"][:] = 3e38
    save_file(weights, model / WEIGHTS, {"format": "pt"})
    error = refused(model)
    assert error.problem == "GPT2LMHeadModel answers with what are no numbers."
    assert "numbers of its answer are NaN" in error.reason
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
    assert "tokenizer" in refused(model).problem


@pytest.mark.parametrize("length", [[24], "24", {}, True])
def test_a_tokenizer_of_no_length(model, length):
    place = model / "tokenizer_config.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | {"model_max_length": length}))
    with pytest.raises(ModelError) as error:
        trisect.load(model)
    assert error.value.problem == f"model_max_length of {model} is {length!r}."
    assert error.value.reason == "It is a number of tokens."
    assert error.value.todo == "Correct tokenizer_config.json, or save the tokenizer again beside the model."


def test_a_tokenizer_that_fails_at_a_text(model):
    _vocabulary(model, lambda words: {})
    error = refused(model)
    assert error.problem == "The tokenizer of gpt2 cannot cut 'w1 w2 w3'."


def test_only_what_other_libraries_raise_is_turned():
    for raised in (PermissionError("a"), MemoryError(), ModelError("a", "b", "c"), KeyboardInterrupt()):
        with pytest.raises(type(raised)) as error, saying(partial(not_loaded, "m", None)):
            raise raised
        assert error.value is raised
    with (
        pytest.raises(ModelError, match="cannot be loaded with a device map") as error,
        saying(partial(not_loaded, "m", None)),
    ):
        raise ValueError("When passing device_map as a string, the value needs to be 'auto' but found nonsense.")
    assert "leave it out" in error.value.todo
    with pytest.raises(ModelError, match="ZeroDivisionError"), saying(partial(not_loaded, "m", None)):
        raise ZeroDivisionError("x")


def test_sizes_inside_a_configuration_and_of_a_hubs_model():
    for body in ({"text_config": {"num_hidden_layers": 10**9}}, {"encoder_layers": 10**9}, {"hidden_size": 10**12}):
        with pytest.raises(ModelError, match="whole number from 0 to"):
            check_sizes("m", body, None)
    check_sizes("m", {"n_layer": 12, "hidden_size": 768, "num_key_value_heads": None, "use_heads": True}, None)
