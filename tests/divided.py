"""A configuration made small in other ways: every width divided by one number, or heads as wide as they are and few."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeGuard

import torch
from torch import nn
from transformers.configuration_utils import PreTrainedConfig

WORDS, LAYERS = 120, 2
WIDE = (
    *("hidden", "dim", "dims", "width", "inner", "ffn", "embed", "embd", "channels", "rank", "filters", "intermediate"),
    *("dmodel", "dff", "dkv", "dinner", "neck", "bottleneck", "sizes", "planes", "feature", "features", "embedding"),
    *("projection", "channel", "feats"),
)  # fmt: skip
NOT_WIDE = (
    *("vocab", "layers", "layer", "position", "positions", "heads", "kernel", "experts", "image", "patch", "act", "pos"),
    *("dropout", "prob", "eps", "std", "window", "tokens", "id", "stride", "scale", "mel", "bins", "audio", "num"),
)  # fmt: skip
STAGES = ("depths", "num_blocks", "decoder_blocks", "encoder_blocks", "blocks")
PLACES = ("indexes", "indices", "idx")  # of layers


def parts(config: Any, depth: int = 0) -> Iterator[Any]:
    """A configuration and all those inside it."""
    yield config
    for value in list(vars(config).values()):
        if isinstance(value, PreTrainedConfig) and depth < 4:
            yield from parts(value, depth + 1)


def put(config: Any, name: str, value: Any) -> None:
    """Set one setting, whatever its configuration thinks of it."""
    try:
        setattr(config, name, value)
    except Exception:  # a property without a setter, or a check of its own
        vars(config)[name] = value


def known(config: Any, name: str) -> Any:
    """A setting; null where there is none, or one for each layer."""
    try:
        return getattr(config, name, None)
    except Exception:  # settings that differ by layer refuse to be asked for one
        return None


def is_width(name: str) -> bool:
    """Whether a setting of that name says how wide something is."""
    words = name.replace("d_", "d", 1).split("_") if name.startswith("d_") else name.split("_")
    if name in (
        "hidden_size_per_layer_input",
        "num_filters",
        "audio_dim",
        "layer_embed_dim",
        "d_latents",
        "base_channels",
    ):
        return True
    if name.endswith("hidden_size"):
        return True
    return any(w in WIDE for w in words) and not any(w in NOT_WIDE for w in words)


def divide(config: Any, by: int, fixed: dict[str, Any]) -> Any:
    """A configuration with every width divided by one number; what is no width is set down to what is fixed, heads are kept."""
    for one in parts(config):
        for name, value in list(vars(one).items()):
            if isinstance(value, bool):
                if isinstance(fixed.get(name), bool):
                    put(one, name, fixed[name])
            elif name in fixed and isinstance(value, (int, float)):
                put(one, name, min(value, fixed[name]) if isinstance(value, int) else fixed[name])
            elif is_width(name) and isinstance(value, int) and value >= 2 * by:
                put(one, name, max(32 if name == "base_channels" else 1, round(value / by)))
            elif is_width(name) and _whole(value) and min(value) >= by:
                put(one, name, [max(1, round(v / by)) for v in value])
        fit(one)
        for name in ("rope_parameters", "rope_scaling"):
            _sections(known(one, name), by)
    return config


FILL: dict[str, Any] = {
    **{"vocab_size": WORDS, "pad_token_id": 0, "rope_theta": 10000.0, "moe_intermediate_size": 16, "n_group": 1, "topk_group": 1},
    **dict.fromkeys(("n_routed_experts", "num_local_experts"), 4),
    **dict.fromkeys(("n_shared_experts", "num_experts_per_tok"), 1),
    **{"mlp_layer_types": ["dense"] * LAYERS, "deepstack_layer_map": [], "norm_topk_prob": True},
}  # fmt: skip


def fill(config: Any, rope: bool = True) -> Any:
    """A configuration with what has no default, and sections of rotary positions, where a type asks for them."""
    for one in parts(config):
        heads, width = known(one, "num_attention_heads"), known(one, "hidden_size")
        if isinstance(heads, int) and isinstance(width, int) and vars(one).get("head_dim", 0) is None:
            put(one, "head_dim", width // heads)
        if vars(one).get("num_key_value_heads", 0) is None:
            put(one, "num_key_value_heads", heads)
        for name, value in FILL.items():
            if name in vars(one) and vars(one)[name] is None:
                put(one, name, value)
        own = known(one, "rope_parameters")
        each = known(one, "head_dim") or (width // heads if isinstance(width, int) and isinstance(heads, int) else 0)
        if rope and isinstance(own, dict) and "rope_type" in own and isinstance(each, int):
            half = int(each * own.get("partial_rotary_factor", 1.0)) // 2
            own["mrope_section"] = [half - 2 * (half // 3), half // 3, half // 3]
    return config


def sharpen(model: nn.Module) -> Any:
    """Noise on whatever a model learns, as `zoo.sharpen`, less of it where more is summed, so that scores stay in range."""
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point() and parameter.requires_grad and parameter.numel():
                summed = parameter[0].numel() if parameter.dim() > 1 else 9 * 32
                spread = 0.3 * min(1.0, (32 / summed) ** 0.5)
                parameter.add_(spread * torch.randn(parameter.shape, generator=draw).to(parameter))
        for name, buffer in model.named_buffers():
            if name.endswith("codebook.embed"):  # of zeros until they are learned, so that all codes are one
                buffer.add_(torch.randn(buffer.shape, generator=draw).to(buffer))
    return model.eval()


def narrow(config: Any, heads: int, widths: dict[str, Any], fixed: dict[str, Any]) -> Any:
    """A configuration with few heads that are as wide as they are by default, where rotary positions ask for that."""
    for one in parts(config):
        many = known(one, "num_attention_heads") or known(one, "num_heads")
        width = known(one, "hidden_size") or known(one, "embed_dim")
        each = known(one, "head_dim") or (width // many if isinstance(width, int) and isinstance(many, int) else None)
        for name, value in list(vars(one).items()):
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                continue
            if name in fixed and not isinstance(fixed[name], bool):
                put(one, name, min(value, fixed[name]) if isinstance(value, int) else fixed[name])
            elif name in ("num_attention_heads", "num_heads", "num_key_value_heads"):
                put(one, name, heads)
            elif name in ("hidden_size", "embed_dim", "out_hidden_size") and isinstance(each, int):
                put(one, name, heads * each)
            elif name in widths and "head" not in name and "rope" not in name:
                put(one, name, widths[name])
        fit(one)
    return config


def fit(one: Any) -> None:
    """What has to go with few layers and few words: lists by layer or by stage, ids of special tokens, a smaller image."""
    for name, value in list(vars(one).items()):
        if name in STAGES and _whole(value):
            put(one, name, [1] * len(value))
        elif (
            name.split("_")[-1] in PLACES
            and "out_" not in name
            and _whole(value)
            and max(value) >= LAYERS
            and min(value) >= 0
        ):
            put(one, name, sorted({min(v, LAYERS - 1) for v in value}))
        elif name.endswith(("layer_types", "block_type", "attention_types")) and isinstance(value, list):
            names = list(dict.fromkeys(value))[::-1]
            put(one, name, (names * LAYERS)[:LAYERS])
    many = 20
    for name, value in list(vars(one).items()):
        if name.endswith(("_token_id", "_token_index", "_token")) and isinstance(value, int) and value >= many:
            many += 1
            put(one, name, many)
    patch, side = known(one, "patch_size"), known(one, "image_size")
    if isinstance(side, int) and side > 224:
        put(one, "image_size", 8 * patch if isinstance(patch, int) and patch > 1 else 224)
        if isinstance(known(one, "image_embedding_size"), int):
            put(one, "image_embedding_size", 8)


def _whole(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, (list, tuple)) and bool(value) and all(type(v) is int for v in value)


def _sections(rope: Any, by: int) -> None:
    """The sections of rotary positions, whose sum goes with the width of a head."""
    for one in [rope, *rope.values()] if isinstance(rope, dict) else []:
        sections = one.get("mrope_section") if isinstance(one, dict) else None
        if _whole(sections):
            made = [max(1, v // by) for v in sections]
            made[0] += sum(sections) // by - sum(made)
            one["mrope_section"] = made
