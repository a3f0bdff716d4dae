"""Examples of inputs that go together: patches with their grid, time series, trajectories, vectors that are attended to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

TEXTS, LONG = 2, 5


def grouped(config: Any, takes: Sequence[str], draw: torch.Generator) -> Iterator[dict[str, Tensor]]:
    """Groups of inputs for a forward that takes those names, in the shapes that kinds of models have; none for most."""
    if "grid_thw" in takes:
        yield from _patches(config, takes, draw)
    if {"pixel_values", "pixel_attention_mask", "spatial_shapes"} <= set(takes):
        yield _rows_of_patches(config, takes, draw)
    if "flattened_patches" in takes:
        yield _flattened(config, draw)
    if "pixel_position_ids" in takes:
        width = (_number(config, "num_channels") or 3) * (_number(config, "patch_size") or 16) ** 2
        side = _number(config, "pooling_kernel_size") or 1
        places = torch.cartesian_prod(torch.arange(2 * side), torch.arange(3 * side)).expand(TEXTS, -1, 2)
        rows = torch.randn(TEXTS, places.shape[1], width, generator=draw)
        yield {"pixel_values": rows, "pixel_position_ids": places}
    if "input_features_mask" in takes or "audio_mel_mask" in takes:
        yield from _heard(config, takes, draw)
    if "past_values" in takes:
        yield from _series(config, takes, draw)
    if {"states", "actions", "timesteps"} <= set(takes):
        yield _trajectories(config, draw)
    if {"query_embeds", "encoder_hidden_states"} <= set(takes):
        widths = _number(config, "hidden_size") or 1, _number(config, "encoder_hidden_size") or 1
        asking, asked = (
            torch.randn(TEXTS, n, w, generator=draw) for n, w in zip((LONG, LONG + 2), widths, strict=True)
        )
        yield {"query_embeds": asking, "encoder_hidden_states": asked}


def _number(config: Any, *names: str) -> int | None:
    """The first of those settings that is a number, or the last of two."""
    for name in names:
        value = getattr(config, name, None)
        if isinstance(value, (list, tuple)) and value:
            value = value[-1]
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def _patches(config: Any, takes: Sequence[str], draw: torch.Generator) -> Iterator[dict[str, Tensor]]:
    """The patches of one picture, one after another, each as a row or as a square."""
    merged = _number(config, "spatial_merge_size", "merge_kernel_size", "merge_size") or 1
    high, wide = 2 * merged, 3 * merged
    grid = torch.tensor([[1, high, wide]])
    bands = _number(config, "in_channels", "in_chans", "num_channels") or 3
    side, frames = _number(config, "patch_size") or 14, _number(config, "temporal_patch_size") or 1
    shapes: list[tuple[int, ...]] = [(bands * frames * side * side,), (bands, side, side), (bands, frames, side, side)]
    shapes.append((bands * (2 if frames == 1 else 1) * side * side,))
    name = next((n for n in ("hidden_states", "pixel_values", "pixel_values_videos") if n in takes), None)
    beside = {"grid_thw": grid} | ({"merge_sizes": torch.tensor([merged])} if "merge_sizes" in takes else {})
    for shape in shapes if name is not None else ():
        yield {str(name): torch.randn(high * wide, *shape, generator=draw)} | beside


def _rows_of_patches(config: Any, takes: Sequence[str], draw: torch.Generator) -> dict[str, Tensor]:
    """Patches as rows, as many for every picture, with how many of them are high and wide; and a text where there is one."""
    sizes = getattr(config, "vision_config", None) or config
    width = (_number(sizes, "num_channels") or 3) * (_number(sizes, "patch_size") or 16) ** 2
    made = {
        "pixel_values": torch.randn(TEXTS, 6, width, generator=draw),
        "pixel_attention_mask": torch.ones(TEXTS, 6, dtype=torch.long),
        "spatial_shapes": torch.tensor([[2, 3]] * TEXTS),
    }
    if "input_ids" in takes:
        made["input_ids"] = torch.randint(6, 20, (TEXTS, LONG + 2), generator=draw)
    return made


def _flattened(config: Any, draw: torch.Generator) -> dict[str, Tensor]:
    """Patches as rows that begin with their place, and the beginning of a text about them."""
    sizes = getattr(config, "vision_config", None) or config
    width = 3 * (_number(sizes, "patch_size") or 16) ** 2
    places = torch.cartesian_prod(torch.arange(1, 3), torch.arange(1, 4)).float().expand(TEXTS, 6, 2)
    made = torch.cat((places, torch.randn(TEXTS, 6, width, generator=draw)), -1)
    text = torch.randint(6, 20, (TEXTS, LONG), generator=draw)
    return {"flattened_patches": made, "attention_mask": torch.ones(TEXTS, 6), "decoder_input_ids": text}


def _heard(config: Any, takes: Sequence[str], draw: torch.Generator) -> Iterator[dict[str, Tensor]]:
    """Spectra, bins first and frames first, with a mask of frames."""
    bins = _number(config, "num_mel_bins", "input_feat_size", "n_mels", "input_size", "feature_size") or 128
    frames = 2 * (_number(config, "max_source_positions") or 64)
    if "audio_mel_mask" in takes:
        spectra = torch.randn(TEXTS, 64, bins, generator=draw)
        yield {"audio_mel": spectra, "audio_mel_mask": torch.zeros(TEXTS, 64, dtype=torch.bool)}
        return
    for shape in ((TEXTS, bins, frames), (TEXTS, frames, bins)):
        mask = torch.ones(TEXTS, frames, dtype=torch.long)
        yield {"input_features": torch.randn(shape, generator=draw), "input_features_mask": mask}


def _series(config: Any, takes: Sequence[str], draw: torch.Generator) -> Iterator[dict[str, Tensor]]:
    """Values of the past with what else a forecast is made from."""
    context, ahead = _number(config, "context_length"), _number(config, "prediction_length") or 1
    if context is None:
        return
    if _number(config, "num_input_channels") is None and not {"future_values", "past_observed_mask"} & set(takes):
        made = {"past_values": torch.randn(TEXTS, context, generator=draw)}
        rest = {"past_values_padding": torch.zeros(TEXTS, context, dtype=torch.long), "freq": torch.zeros(TEXTS).long()}
        yield made | {n: t for n, t in rest.items() if n in takes}
        return
    lags = getattr(config, "lags_sequence", None)
    past = context + (max(lags) if isinstance(lags, (list, tuple)) and lags else 0)
    wide = _number(config, "num_input_channels")
    apart = _number(config, "input_size") or 1
    known = _number(config, "num_time_features") or 0
    classes = _number(config, "num_static_categorical_features") or 0
    shape = (TEXTS, past, wide) if wide is not None else (TEXTS, past) if apart == 1 else (TEXTS, past, apart)
    made = {"past_values": torch.randn(shape, generator=draw)}
    future = (TEXTS, ahead, *shape[2:])
    rest = {
        "past_time_features": torch.randn(TEXTS, past, known, generator=draw),
        "past_observed_mask": torch.ones(shape),
        "future_values": torch.randn(future, generator=draw),
        "future_time_features": torch.randn(TEXTS, ahead, known, generator=draw),
    }
    if classes:
        rest["static_categorical_features"] = torch.zeros(TEXTS, classes, dtype=torch.long)
    yield made | {n: t for n, t in rest.items() if n in takes}
    yield made


def _trajectories(config: Any, draw: torch.Generator) -> dict[str, Tensor]:
    """States, actions and rewards of two short trajectories."""
    widths = {"states": _number(config, "state_dim") or 1, "actions": _number(config, "act_dim") or 1}
    made = {n: torch.randn(TEXTS, LONG, w, generator=draw) for n, w in widths.items()}
    made |= {n: torch.randn(TEXTS, LONG, 1, generator=draw) for n in ("rewards", "returns_to_go")}
    return made | {"timesteps": torch.arange(LONG).expand(TEXTS, LONG), "attention_mask": torch.ones(TEXTS, LONG)}
