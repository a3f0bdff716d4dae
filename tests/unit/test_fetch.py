"""Fetching: what is loaded from a folder, by which head, and what is refused before it is opened."""

import importlib.util
import json
from typing import Any

import pytest
import torch
from tests import tinyhf

from trisect.core.errors import ModelError, on_step
from trisect.hf.files import fetch as files_fetch
from trisect.hf.files.fetch import Options, fetch, objective_of

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
    assert objective == name == objective_of(model)
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


def test_a_damaged_file_is_named(folders, tmp_path):
    place = tinyhf.save(tinyhf.gpt2(), tmp_path / "damaged", False)
    (place / "model.safetensors").write_bytes((place / "model.safetensors").read_bytes()[:100])
    assert refused(place).problem == f"The weights {place / 'model.safetensors'} cannot be read."


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


def test_a_name_that_is_no_folder(monkeypatch, tmp_path):
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
        ("GatedRepoError", None, "The model 'nobody/nothing' was refused."),
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
    assert asked == [files_fetch.ANSWER]
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
