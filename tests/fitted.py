"""Settings and inputs of types that the general ways of making a type small do not fit: one entry for each type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests import divided

ROPE = {"rope_type": "default", "rope_theta": 10000.0}
PROMPTED: dict[str, Any] = {
    **{"prompt_encoder_config.image_embedding_size": 4, "prompt_encoder_config.image_size": 32},
    **{"vision_config.output_channels": 32, "vision_config.num_pos_feats": 16},
}
# settings of a configuration or of a part of it, once all its sizes have been set down
SETTINGS: dict[str, dict[str, Any]] = {
    "bailing_hybrid": {"num_experts": 4, "n_group": 1, "num_group": 1, "topk_group": 1},
    "blip-2": {"image_token_index": 5},
    "cohere_compass_text": {"rope_parameters": {"full_attention": ROPE, "sliding_attention": ROPE}},
    "dbrx": {"attn_config.rope_theta": 10000.0, "attn_config.clip_qkv": 8.0},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "instructblip": {"image_token_index": 5},
    "longcat_flash": {"zero_expert_num": 2, "moe_topk": 2},
    "mobilevit": {"image_size": 128},
    "moonshine_streaming": {"num_key_value_heads": 4},
    "pocket_tts_audio_tokenizer": {"upsample_groups": 32},
    "reformer": {"axial_pos_embds": False},
    "sam": PROMPTED,
    "sam_hq": {**PROMPTED, "mask_decoder_config.vit_dim": 32},
    "step3p7": {"text_config.sliding_window": 8},
    "t5gemma2_encoder": {"text_config.dropout_rate": 0.0},
}


def settle(config: Any, kind: str) -> Any:
    """The configuration with what its type needs beyond the general sizes."""
    for name, value in SETTINGS.get(kind, {}).items():
        *way, last = name.split(".")
        part = config
        for step in way:
            part = getattr(part, step)
        divided.put(part, last, value)
    return config


def _normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def _ids(length: int) -> Tensor:
    return torch.randint(6, 100, (2, length), generator=torch.Generator().manual_seed(0))


def _pixels(config: Any) -> Tensor:
    side = getattr(config, "vision_config", config).image_size
    return _normal(2, 3, side, side)


def _placed(config: Any) -> Tensor:
    """A text that begins with as many places of an image as there are queries."""
    text = _ids(config.num_query_tokens + 7)
    text[:, : config.num_query_tokens] = config.image_token_index
    return text


def _kosmos(config: Any) -> dict[str, Tensor]:
    length = config.latent_query_num + 5
    places = (torch.arange(length) < config.latent_query_num).expand(2, -1)
    return {"pixel_values": _pixels(config), "input_ids": _ids(length), "image_embeds_position_mask": places}


def _masked(config: Any) -> dict[str, Tensor]:
    return {"pixel_values": _pixels(config), "noise": torch.rand(2, (config.image_size // config.patch_size) ** 2)}


def _forecast(config: Any) -> dict[str, Tensor]:
    past = _normal(2, config.context_length)
    return {"past_values": past, "past_values_padding": torch.zeros_like(past).long(), "freq": torch.zeros(2, 1).long()}


# inputs that have to fit one another, of a model's own configuration
INPUTS: dict[str, Callable[[Any], dict[str, Tensor]]] = {
    "blip-2": lambda c: {"pixel_values": _pixels(c), "input_ids": _placed(c)},
    "idefics": lambda c: {
        "input_ids": _ids(7),
        "pixel_values": _pixels(c)[:, None],
        "image_attention_mask": torch.ones(2, 7, 1),
    },
    "instructblip": lambda c: {
        "pixel_values": _pixels(c),
        "qformer_input_ids": _ids(5),
        "input_ids": _placed(c),
    },
    "kosmos-2": _kosmos,
    "clap": lambda c: {"input_ids": _ids(7), "input_features": _normal(2, 1, 1001, c.audio_config.num_mel_bins)},
    "qwen3_asr_encoder": lambda c: {
        "input_features": _normal(2, c.num_mel_bins, 4 * c.n_window),
        "input_features_mask": torch.ones(2, 4 * c.n_window).long(),
    },
    "timesfm": _forecast,
    "vit_mae": _masked,
}
