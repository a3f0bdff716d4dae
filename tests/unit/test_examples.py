"""Examples of inputs that go together, without any model: their names are those that a forward takes, their sizes agree."""

from types import SimpleNamespace

import torch

from trisect.hf.verify.examples import grouped


def made(takes: tuple[str, ...], **settings: object) -> list[dict[str, torch.Tensor]]:
    return list(grouped(SimpleNamespace(**settings), takes, torch.Generator().manual_seed(0)))


def test_patches_are_as_many_as_their_grid_has_places():
    sizes = {"in_channels": 3, "patch_size": 4, "temporal_patch_size": 2, "spatial_merge_size": 2}
    found = made(("hidden_states", "grid_thw", "merge_sizes"), **sizes)
    assert [tuple(given["hidden_states"].shape) for given in found] == [
        (24, 96),
        (24, 3, 4, 4),
        (24, 3, 2, 4, 4),
        (24, 48),
    ]
    assert all(int(given["grid_thw"].prod()) == 24 and given["merge_sizes"].tolist() == [2] for given in found)


def test_a_series_is_as_long_as_its_context_and_its_furthest_lag():
    takes = ("past_values", "past_time_features", "past_observed_mask", "future_values", "future_time_features")
    sizes = {
        "context_length": 8,
        "prediction_length": 3,
        "lags_sequence": [1, 4],
        "num_time_features": 2,
        "input_size": 1,
    }
    whole, alone = made(takes, **sizes)
    assert tuple(whole) == takes
    assert [tuple(whole[name].shape) for name in takes] == [(2, 12), (2, 12, 2), (2, 12), (2, 3), (2, 3, 2)]
    assert tuple(alone) == ("past_values",)
    assert [tuple(g["past_values"].shape) for g in made(takes[:3], context_length=8, num_input_channels=5)] == [
        (2, 8, 5),
        (2, 8, 5),
    ]
    assert made(("past_values",)) == []


def test_trajectories_and_vectors_to_attend_to_are_as_wide_as_the_settings_say():
    (found,) = made(("states", "actions", "timesteps"), state_dim=7, act_dim=3)
    assert (found["states"].shape[-1], found["actions"].shape[-1]) == (7, 3)
    (found,) = made(("query_embeds", "encoder_hidden_states"), hidden_size=6, encoder_hidden_size=9)
    assert (found["query_embeds"].shape[-1], found["encoder_hidden_states"].shape[-1]) == (6, 9)
    assert made(("input_ids", "attention_mask"), hidden_size=6) == []
