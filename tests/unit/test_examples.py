"""Examples of inputs, whose names and sizes fit a forward; tokenizers, and the drawing library, that end badly."""

import base64
import json
import subprocess
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import transformers
from tests import tinyhf
from tokenizers import Regex, normalizers, pre_tokenizers
from transformers.models.whisper.configuration_whisper import WhisperConfig
from transformers.models.whisper.modeling_whisper import WhisperForConditionalGeneration

from trisect.core.errors import ModelError, StudyError
from trisect.hf.files.tokenizers import load_tokenizer, tokenize
from trisect.hf.load import load
from trisect.hf.verify.examples import input_groups
from trisect.report import render


def made(takes: tuple[str, ...], **settings: object) -> list[dict[str, torch.Tensor]]:
    return list(input_groups(SimpleNamespace(**settings), takes, torch.Generator().manual_seed(0)))


def test_patches_are_as_many_as_their_grid_has_places():
    sizes = {"in_channels": 3, "patch_size": 4, "temporal_patch_size": 2, "spatial_merge_size": 2}
    found = made(("hidden_states", "grid_thw", "merge_sizes"), **sizes)
    shapes = [(24, 96), (24, 3, 4, 4), (24, 3, 2, 4, 4), (24, 48)]
    assert [tuple(given["hidden_states"].shape) for given in found] == shapes
    assert all(int(given["grid_thw"].prod()) == 24 and given["merge_sizes"].tolist() == [2] for given in found)


def test_a_series_is_as_long_as_its_context_and_its_furthest_lag():
    takes = ("past_values", "past_time_features", "past_observed_mask", "future_values", "future_time_features")
    sizes: dict[str, Any] = {"context_length": 8, "prediction_length": 3, "lags_sequence": [1, 4]}
    sizes |= {"num_time_features": 2, "input_size": 1}
    whole, alone = made(takes, **sizes)
    assert tuple(whole) == takes
    assert [tuple(whole[name].shape) for name in takes] == [(2, 12), (2, 12, 2), (2, 12), (2, 3), (2, 3, 2)]
    assert tuple(alone) == ("past_values",)
    channels = made(takes[:3], context_length=8, num_input_channels=5)
    assert [tuple(group["past_values"].shape) for group in channels] == [(2, 8, 5)] * 2
    assert made(("past_values",)) == []


def test_trajectories_and_vectors_to_attend_to_are_as_wide_as_the_settings_say():
    (found,) = made(("states", "actions", "timesteps"), state_dim=7, act_dim=3)
    assert (found["states"].shape[-1], found["actions"].shape[-1]) == (7, 3)
    (found,) = made(("query_embeds", "encoder_hidden_states"), hidden_size=6, encoder_hidden_size=9)
    assert (found["query_embeds"].shape[-1], found["encoder_hidden_states"].shape[-1]) == (6, 9)
    assert made(("input_ids", "attention_mask"), hidden_size=6) == []


def whisper(positions: int = 100) -> WhisperForConditionalGeneration:
    config = WhisperConfig(
        vocab_size=60, num_mel_bins=8, d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, max_source_positions=positions,
        max_target_positions=12, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=3,
    )  # fmt: skip
    torch.manual_seed(0)
    return WhisperForConditionalGeneration(config).eval()


def spectra(positions: int = 100) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(6, 60, (1, 5), generator=draw)
    return {"input_features": torch.randn(1, 8, 2 * positions, generator=draw), "decoder_input_ids": ids}


def test_a_model_of_one_length_is_verified_on_a_few_positions_and_read_over_all_of_them():
    model, lengths = whisper(), list[int]()
    encoder = model.model.encoder
    with encoder.layers[0].register_forward_pre_hook(lambda _m, args: lengths.append(args[0].shape[1])):
        subject = load(model)
    assert set(lengths) == {20}
    assert (model.config.max_source_positions, encoder.embed_positions.num_embeddings) == (100, 100)
    reading = subject.read(spectra())
    with torch.no_grad():
        model.set_attn_implementation("eager")
        made = model(**spectra(), output_attentions=True)
    for stack, own in (("enc", made.encoder_attentions), ("cross", made.cross_attentions)):
        traces = [trace for trace in reading.traces if trace.address.stack == stack]
        assert [torch.allclose(t.weights, w, atol=1e-6) for t, w in zip(traces, own, strict=True)] == [True, True]


@pytest.mark.parametrize("name", ["v_proj", "out_proj", "k_proj"])
def test_what_it_computes_otherwise_over_its_whole_length_is_refused_at_the_first_read(name):
    model: Any = whisper()
    module = model.model.encoder.layers[1].self_attn.get_submodule(name)
    module.register_forward_hook(lambda _m, args, out: out.roll(1, 1) if args[0].shape[1] > 50 else None)
    subject = load(model)
    with pytest.raises(ModelError, match="does not compute what was found on loading"):
        subject.read(spectra())


def test_where_a_few_positions_are_not_taken_the_whole_length_is_the_example():
    model, lengths = cast(Any, whisper()), list[int]()
    positions = model.model.encoder.embed_positions
    positions.forward = lambda _: positions.weight  # as many as ever
    with model.model.encoder.layers[0].register_forward_pre_hook(lambda _m, args: lengths.append(args[0].shape[1])):
        load(model)
    assert set(lengths) == {100}


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
    with pytest.raises(ModelError, match="The tokenizer of the model fails on") as error:
        tokenize("the model", made, "a" * 40 + " w1")
    assert "PanicException" in error.value.reason
    assert error.value.todo
    capfd.readouterr()


@pytest.mark.parametrize("normalizer", [BOMB, precompiled({"a": "a" * 300_000})], ids=["replace", "table"])
def test_a_tokenizer_that_makes_gigabytes_of_a_word_is_refused_before_it_does(normalizer):
    made = with_normalizer(normalizer)
    text = "a word " * 8
    with pytest.raises(ModelError, match="makes too many characters") as error:
        tokenize("the model", made, text)
    assert "more than 10,000,000 characters of these 56" in error.value.reason


def test_a_tokenizer_whose_own_tokens_explode_is_refused_before_it_is_loaded(tmp_path):
    with_normalizer(BOMB).save_pretrained(tmp_path)
    path = tmp_path / "tokenizer.json"
    body = json.loads(path.read_text())
    body["added_tokens"].append(body["added_tokens"][0] | {"id": 99, "content": "aa", "normalized": True})
    path.write_text(json.dumps(body))
    with pytest.raises(ModelError, match="makes too many characters of 'aa'"):
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
    program = "from trisect.cli import main; main(['corpus', 'show', 'nowhere'])"
    done = subprocess.run([sys.executable, option, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert ("PYTHONOPTIMIZE" in done.stderr) is (option == "-OO")
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 3
