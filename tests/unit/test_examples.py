"""Examples of inputs: their names are those that a forward takes, their sizes agree, and they are no longer than has to be."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from transformers.models.whisper.configuration_whisper import WhisperConfig
from transformers.models.whisper.modeling_whisper import WhisperForConditionalGeneration

from trisect.core.errors import ModelError
from trisect.hf.load import load
from trisect.hf.verify.examples import input_groups


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
