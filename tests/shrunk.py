"""Every type of model that transformers can build, made small: its default configuration with every size set down.

Where sizes of known names do not give a model that runs, all widths are divided by one number, or heads stay as wide as they are and
few; settings and inputs of types that none of this fits have an entry each.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, TypeGuard, cast

import torch
import transformers
from torch import Tensor, nn
from transformers.configuration_utils import PreTrainedConfig

from trisect.hf.verify.examples import example_inputs

tf = cast(Any, transformers)
HIDDEN, HEADS, LAYERS, WORDS = 32, 4, 2, 120
WIDTHS: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "emb_dim", "hidden_dim", "embed_dim", "model_dim"), HIDDEN),
    **dict.fromkeys(("embedding_size", "word_embed_proj_dim", "decoder_hidden_size", "encoder_hidden_size"), HIDDEN),
    **dict.fromkeys(("projection_dim", "lru_width", "attention_hidden_size", "q_hidden_size", "output_dim"), HIDDEN),
    **dict.fromkeys(("width", "mm_hidden_size", "true_hidden_size", "intra_bottleneck_size", "fpn_feature_size"), HIDDEN),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "d_inner", "n_inner", "encoder_ffn_dim", "decoder_ffn_dim"), 64),
    **dict.fromkeys(("hidden_dim_ffn", "dff", "feed_forward_size", "decoder_intermediate_size", "mlp_dim", "ffn_hidden_size"), 64),
    **dict.fromkeys(("intermediate_size_mlp", "dim_feedforward", "decoder_ffn_hidden"), 64),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"), 16),
    **dict.fromkeys(("head_dim", "d_kv", "attention_head_size", "d_head", "v_head_dim", "qk_nope_head_dim", "kv_channels"), 8),
    **dict.fromkeys(("global_head_dim", "attention_key_size", "swa_head_dim"), 8),
    **dict.fromkeys(("qk_rope_head_dim", "rotary_dim"), 4),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 8),
    **dict.fromkeys(("state_size", "mamba_d_state", "ssm_state_size"), 8),
    **dict.fromkeys(("mamba_d_head", "mamba_head_dim"), 16),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "linear_head_dim"), 8),
    **dict.fromkeys(("hidden_size_per_layer_input", "query_pre_attn_scalar"), 8),
}  # fmt: skip
HEADED: dict[str, Any] = {
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"), HEADS),
    **dict.fromkeys(("decoder_attention_heads", "attention_heads", "encoder_num_attention_heads", "nhead"), HEADS),
    **dict.fromkeys(("num_encoder_attention_heads", "num_decoder_attention_heads", "decoder_num_attention_heads"), HEADS),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "n_kv_heads", "decoder_num_key_value_heads"), 2),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads", "n_mamba_heads"), 4),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads", "linear_num_heads"), 2),
}  # fmt: skip
COUNTS: dict[str, Any] = {
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers"), LAYERS),
    **dict.fromkeys(("num_encoder_layers", "num_decoder_layers", "decoder_num_hidden_layers", "depth"), LAYERS),
    **dict.fromkeys(("encoder_num_hidden_layers", "num_layer", "l_layers", "x_layers", "r_layers"), LAYERS),
    **dict.fromkeys(("vocab_size", "text_vocab_size", "vocab_size_per_layer_input", "decoder_vocab_size"), WORDS),
    **dict.fromkeys(("src_vocab_size", "tgt_vocab_size", "entity_vocab_size"), WORDS),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx", "max_target_positions"), 64),
    **dict.fromkeys(("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts", "n_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "num_experts_per_token", "moe_topk", "top_k_experts"), 1),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts"), 1),
    **dict.fromkeys(("image_size",), 32),
    **dict.fromkeys(("patch_size",), 8),
    **dict.fromkeys(("num_mel_bins",), 16),
    **dict.fromkeys(("max_source_positions",), 20),
    **dict.fromkeys(("dropout", "attention_dropout", "hidden_dropout", "attention_probs_dropout_prob", "activation_dropout"), 0.0),
    **dict.fromkeys(("hidden_dropout_prob", "resid_pdrop", "embd_pdrop", "attn_pdrop", "dropout_rate", "layerdrop"), 0.0),
    **dict.fromkeys(("encoder_layerdrop", "decoder_layerdrop", "drop_path_rate", "feat_proj_dropout"), 0.0),
    **dict.fromkeys(("pad_token_id",), 0),
    **dict.fromkeys(("bos_token_id", "decoder_start_token_id", "cls_token_id"), 1),
    **dict.fromkeys(("eos_token_id", "sep_token_id"), 2),
    **dict.fromkeys(("first_k_dense_replace",), 1),
    **dict.fromkeys(("use_timm_backbone", "use_mamba_kernels", "use_pretrained_backbone"), False),
    **dict.fromkeys(("num_queries", "num_query_tokens", "num_latents", "resampler_n_latents"), 6),
    **dict.fromkeys(("num_self_attends_per_block", "num_blocks_per_stage"), LAYERS),
    **dict.fromkeys(("encoder_hash_byte_group_vocab", "bigram_vocab_size"), WORDS),
    **dict.fromkeys(("sliding_window", "attention_window_size", "local_attention"), 8),
}  # fmt: skip
SIZES = WIDTHS | HEADED | COUNTS
KEPT = {n: v for n, v in COUNTS.items() if n not in ("image_size", "patch_size", "num_mel_bins")}
MORE: dict[str, dict[str, Any]] = {  # settings that have no default
    **{kind: {"prediction_length": 6, "context_length": 12} for kind in ("autoformer", "informer", "time_series_transformer")},
    "bamba": {"attn_layer_indices": [1], "num_hidden_layers": 2},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"], "num_hidden_layers": 2},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"], "num_hidden_layers": 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2},
    "chameleon": {"vocabulary_map": {"<image>": 5}},
    "reformer": {"is_decoder": True},
    "xmod": {"default_language": "en_XX"},
    "hrm_text": {"use_cache": False},
}  # fmt: skip
TOKENS = ("image_token_id", "image_token_index", "video_token_id", "audio_token_id", "audio_token_index", "image_token")


WIDE = (
    *("hidden", "dim", "dims", "width", "inner", "ffn", "embed", "embd", "channels", "rank", "filters", "intermediate"),
    *("dmodel", "dff", "dkv", "dinner", "neck", "bottleneck", "sizes", "planes", "feature", "features", "embedding"),
    *("projection", "channel", "feats"),
)  # fmt: skip
NOT_WIDE = (
    *("vocab", "layers", "layer", "position", "positions", "heads", "kernel", "experts", "image", "patch", "act", "pos"),
    *("dropout", "prob", "eps", "std", "window", "tokens", "id", "stride", "scale", "mel", "bins", "audio", "num"),
)  # fmt: skip
ALSO = ("hidden_size_per_layer_input", "num_filters", "audio_dim", "layer_embed_dim", "d_latents", "base_channels")
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
    """A setting; None where there is none, or one for each layer."""
    try:
        return getattr(config, name, None)
    except Exception:  # settings that differ by layer refuse to be asked for one
        return None


def is_width(name: str) -> bool:
    """Whether a setting of that name says how wide something is."""
    words = name.replace("d_", "d", 1).split("_") if name.startswith("d_") else name.split("_")
    if name in ALSO or name.endswith("hidden_size"):
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


def settle(config: Any, settings: dict[str, Any]) -> Any:
    """The configuration with settings of its own and of its parts, as PART.SETTING."""
    for name, value in settings.items():
        *way, last = name.split(".")
        part = config
        for step in way:
            part = getattr(part, step)
        put(part, last, value)
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
    "instructblip": lambda c: {"pixel_values": _pixels(c), "qformer_input_ids": _ids(5), "input_ids": _placed(c)},
    "kosmos-2": _kosmos,
    "clap": lambda c: {"input_ids": _ids(7), "input_features": _normal(2, 1, 1001, c.audio_config.num_mel_bins)},
    "qwen3_asr_encoder": lambda c: {
        "input_features": _normal(2, c.num_mel_bins, 4 * c.n_window),
        "input_features_mask": torch.ones(2, 4 * c.n_window).long(),
    },
    "timesfm": _forecast,
    "vit_mae": _masked,
}


def shrink(config: Any, depth: int = 0) -> Any:
    """The configuration with every size that it has set down, and those of its parts."""
    for name, value in list(vars(config).items()):
        if isinstance(value, PreTrainedConfig) and depth < 4:
            shrink(value, depth + 1)
        elif name in SIZES and isinstance(value, (int, float)) and value is not None and not isinstance(value, str):
            small = SIZES[name]
            if isinstance(value, bool) == isinstance(small, bool):
                put(config, name, min(value, small) if name in LEAST else small)
    lists = {n: v for n, v in vars(config).items() if isinstance(v, list)}
    for name in ("layer_types", "layers_block_type", "mlp_layer_types", "attention_types"):
        if isinstance(lists.get(name), list) and len(lists[name]) > LAYERS and isinstance(lists[name][0], str):
            kinds = list(dict.fromkeys(lists[name]))[::-1]
            put(config, name, (kinds * LAYERS)[:LAYERS] if len(kinds) > 1 else kinds * LAYERS)
    _agree(config)
    for name in TOKENS:
        if isinstance(getattr(config, name, None), int):
            put(config, name, 5)
    return config


def _agree(config: Any) -> None:
    """Sizes that have to fit one another: heads of latent attention, sections of rotary positions, sizes by stage."""
    heads = known(config, "num_attention_heads") or HEADS
    if hasattr(config, "qk_rope_head_dim"):
        for name, value in (("num_key_value_heads", heads), ("head_dim", 4), ("qk_head_dim", 12)):
            if hasattr(config, name):
                put(config, name, value)
    width = known(config, "head_dim") or HIDDEN // HEADS
    rope = [r for n in ("rope_parameters", "rope_scaling") if isinstance(r := getattr(config, n, None), dict)]
    for one in [*rope, *(v for r in rope for v in r.values() if isinstance(v, dict))]:
        if isinstance(sections := one.get("mrope_section"), list):
            half = int(width * one.get("partial_rotary_factor", 1.0)) // 2
            one["mrope_section"] = [half - (len(sections) - 1) * (half // len(sections))] + [half // len(sections)] * (
                len(sections) - 1
            )
    if isinstance(getattr(config, "attn_layer_period", None), int):
        put(config, "attn_layer_period", 2)
        put(config, "attn_layer_offset", 1)
    if isinstance(indices := getattr(config, "attn_layer_indices", None), list) or hasattr(config, "mamba_n_heads"):
        put(config, "attn_layer_indices", [1]) if indices is not None else None
    for name in ("hidden_sizes", "embed_dims", "encoder_hidden_sizes"):
        if isinstance(sizes := getattr(config, name, None), (list, tuple)) and len(sizes) > 1:
            put(config, name, [16 * min(2, i + 1) for i in range(len(sizes))])
    for name in ("depths", "num_blocks"):
        if isinstance(sizes := getattr(config, name, None), (list, tuple)) and all(isinstance(n, int) for n in sizes):
            put(config, name, [1] * len(sizes))
    if isinstance(windows := getattr(config, "attention_window", None), (int, list)):
        put(config, "attention_window", [4] * LAYERS if isinstance(windows, list) else 4)
    for name in ("mamba_d_ssm", "mamba_intermediate_size"):
        if isinstance(getattr(config, name, None), int):
            put(config, name, 64)


LEAST = ("num_key_value_heads", "sliding_window")


def size(model: nn.Module) -> int:
    """How many numbers a model learns."""
    return sum(p.numel() for p in model.parameters())


def ways(kind: str) -> Iterator[Any]:
    """Small configurations of that type, made in one way after another: sizes of known names, or all widths"""
    yield lambda: settle(shrink(_default(kind)), SETTINGS.get(kind, {}))
    for rope in (True, False):
        yield lambda rope=rope: fill(shrink(_default(kind)), rope)
    for by, rope in ((16, False), (8, False), (4, False), (16, True), (12, False), (32, False), (32, True)):
        yield lambda by=by, rope=rope: fill(divide(_default(kind), by, KEPT), rope)
    yield lambda: fill(narrow(_default(kind), 2, SIZES, KEPT), rope=False)


def _default(kind: str) -> Any:
    return transformers.AutoConfig.for_model(kind, **MORE.get(kind, {}))


def build(kind: str, most: int = 4_000_000) -> Any:
    """A small model of that type by the first automatic class that has it; raises what transformers raises."""
    return _built(shrink(_default(kind)), kind, most)


def _built(config: Any, kind: str, most: int) -> Any:
    with warnings.catch_warnings(action="ignore"):
        maker = next(m for m in MAKERS if type(config) in getattr(tf, m)._model_mapping)
        with torch.device("meta"):
            if size(getattr(tf, maker).from_config(config)) > most:
                raise MemoryError(kind)
        torch.manual_seed(0)
        model = getattr(tf, maker).from_config(config)
        return sharpen(model)


def build_and_run(kind: str, tries: int = 11) -> tuple[Any, dict[str, torch.Tensor]]:
    """A small model of that type that runs, with an example of its inputs; raises what the first way of making it raised."""
    said: Exception | None = None
    most = 13_000_000 if tries > 1 else 4_000_000
    for way in islice(ways(kind), tries):
        try:
            with warnings.catch_warnings(action="ignore"):
                model = _built(way(), kind, most)
                return model, _inputs(kind, model)
        except ImportError:
            raise
        except Exception as error:  # whatever a configuration that nobody uses runs into
            said = said or error
            said.add_note(f"{type(error).__name__}: {error}"[:300])
    raise said or StopIteration(kind)


def _inputs(kind: str, model: Any) -> dict[str, torch.Tensor]:
    """Inputs that a model runs with: those of its type where there are some, else an example by name."""
    if kind not in INPUTS:
        return example_inputs(kind, model)
    given = INPUTS[kind](model.config)
    with torch.no_grad():
        model(**given)
    return given


MAKERS = (
    "AutoModelForCausalLM", "AutoModelForSeq2SeqLM", "AutoModelForMaskedLM", "AutoModelForImageTextToText",
    "AutoModelForSpeechSeq2Seq", "AutoModelForTextToSpectrogram", "AutoModel", "AutoModelForImageClassification",
    "AutoModelForObjectDetection", "AutoModelForMaskGeneration",
)  # fmt: skip


def kinds(every: int = 1) -> list[str]:
    """Every type of model, or every so-manieth, that transformers knows and one of MAKERS builds."""
    found = []
    for kind in list(tf.models.auto.configuration_auto.CONFIG_MAPPING_NAMES)[::every]:
        try:
            config = transformers.AutoConfig.for_model(kind)
        except Exception:
            continue
        if any(type(config) in getattr(tf, m)._model_mapping for m in MAKERS):
            found.append(kind)
    return found
