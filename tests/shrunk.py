"""Every type of model that transformers can build, made small: its default configuration with every size set down."""

from __future__ import annotations

import inspect
import warnings
from typing import Any, cast

import torch
import transformers
from torch import nn

from tests import zoo

tf = cast(Any, transformers)
HIDDEN, HEADS, LAYERS, WORDS = 32, 4, 2, 120
SIZES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "emb_dim", "hidden_dim", "embed_dim", "model_dim"), HIDDEN),
    **dict.fromkeys(("embedding_size", "word_embed_proj_dim", "decoder_hidden_size", "encoder_hidden_size"), HIDDEN),
    **dict.fromkeys(("projection_dim", "lru_width", "attention_hidden_size", "q_hidden_size", "output_dim"), HIDDEN),
    **dict.fromkeys(("width", "mm_hidden_size", "true_hidden_size", "intra_bottleneck_size", "fpn_feature_size"), HIDDEN),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"), HEADS),
    **dict.fromkeys(("decoder_attention_heads", "attention_heads", "encoder_num_attention_heads", "nhead"), HEADS),
    **dict.fromkeys(("num_encoder_attention_heads", "num_decoder_attention_heads", "decoder_num_attention_heads"), HEADS),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "n_kv_heads", "decoder_num_key_value_heads"), 2),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers"), LAYERS),
    **dict.fromkeys(("num_encoder_layers", "num_decoder_layers", "decoder_num_hidden_layers", "depth"), LAYERS),
    **dict.fromkeys(("encoder_num_hidden_layers", "num_layer", "l_layers", "x_layers", "r_layers"), LAYERS),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "d_inner", "n_inner", "encoder_ffn_dim", "decoder_ffn_dim"), 64),
    **dict.fromkeys(("hidden_dim_ffn", "dff", "feed_forward_size", "decoder_intermediate_size", "mlp_dim", "ffn_hidden_size"), 64),
    **dict.fromkeys(("intermediate_size_mlp", "dim_feedforward", "decoder_ffn_hidden"), 64),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"), 16),
    **dict.fromkeys(("head_dim", "d_kv", "attention_head_size", "d_head", "v_head_dim", "qk_nope_head_dim", "kv_channels"), 8),
    **dict.fromkeys(("global_head_dim", "attention_key_size", "swa_head_dim"), 8),
    **dict.fromkeys(("qk_rope_head_dim", "rotary_dim"), 4),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 8),
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
    **dict.fromkeys(("state_size", "mamba_d_state", "ssm_state_size"), 8),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads", "n_mamba_heads"), 4),
    **dict.fromkeys(("mamba_d_head", "mamba_head_dim"), 16),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads"), 2),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 8),
    **dict.fromkeys(("sliding_window", "attention_window_size", "local_attention"), 8),
    **dict.fromkeys(("hidden_size_per_layer_input", "query_pre_attn_scalar"), 8),
}  # fmt: skip
TOKENS = ("image_token_id", "image_token_index", "video_token_id", "audio_token_id", "audio_token_index", "image_token")


def shrink(config: Any, depth: int = 0) -> Any:
    """The configuration with every size that it has set down, and those of its parts."""
    for name, value in list(vars(config).items()):
        if isinstance(value, tf.PretrainedConfig) and depth < 4:
            shrink(value, depth + 1)
        elif name in SIZES and isinstance(value, (int, float)) and value is not None and not isinstance(value, str):
            small = SIZES[name]
            if isinstance(value, bool) == isinstance(small, bool):
                _set(config, name, min(value, small) if name in LEAST else small)
    lists = {n: v for n, v in vars(config).items() if isinstance(v, list)}
    for name in ("layer_types", "layers_block_type", "mlp_layer_types", "attention_types"):
        if isinstance(lists.get(name), list) and len(lists[name]) > LAYERS and isinstance(lists[name][0], str):
            kinds = list(dict.fromkeys(lists[name]))[::-1]
            _set(config, name, (kinds * LAYERS)[:LAYERS] if len(kinds) > 1 else kinds * LAYERS)
    _agree(config)
    for name in TOKENS:
        if isinstance(getattr(config, name, None), int):
            _set(config, name, 5)
    return config


def _agree(config: Any) -> None:
    """Sizes that have to fit one another: heads of latent attention, sections of rotary positions, sizes by stage."""
    heads = getattr(config, "num_attention_heads", HEADS)
    if hasattr(config, "qk_rope_head_dim"):
        for name, value in (("num_key_value_heads", heads), ("head_dim", 4), ("qk_head_dim", 12)):
            if hasattr(config, name):
                _set(config, name, value)
    width = getattr(config, "head_dim", None) or HIDDEN // HEADS
    rope = [r for n in ("rope_parameters", "rope_scaling") if isinstance(r := getattr(config, n, None), dict)]
    for one in [*rope, *(v for r in rope for v in r.values() if isinstance(v, dict))]:
        if isinstance(sections := one.get("mrope_section"), list):
            half = int(width * one.get("partial_rotary_factor", 1.0)) // 2
            one["mrope_section"] = [half - (len(sections) - 1) * (half // len(sections))] + [half // len(sections)] * (
                len(sections) - 1
            )
    if isinstance(getattr(config, "attn_layer_period", None), int):
        _set(config, "attn_layer_period", 2)
        _set(config, "attn_layer_offset", 1)
    if isinstance(indices := getattr(config, "attn_layer_indices", None), list) or hasattr(config, "mamba_n_heads"):
        _set(config, "attn_layer_indices", [1]) if indices is not None else None
    for name in ("hidden_sizes", "embed_dims", "encoder_hidden_sizes"):
        if isinstance(sizes := getattr(config, name, None), (list, tuple)) and len(sizes) > 1:
            _set(config, name, [16 * min(2, i + 1) for i in range(len(sizes))])
    for name in ("depths", "num_blocks"):
        if isinstance(sizes := getattr(config, name, None), (list, tuple)) and all(isinstance(n, int) for n in sizes):
            _set(config, name, [1] * len(sizes))
    if isinstance(windows := getattr(config, "attention_window", None), (int, list)):
        _set(config, "attention_window", [4] * LAYERS if isinstance(windows, list) else 4)
    for name in ("mamba_d_ssm", "mamba_intermediate_size"):
        if isinstance(getattr(config, name, None), int):
            _set(config, name, 64)


LEAST = ("num_key_value_heads", "sliding_window")


def _set(config: Any, name: str, value: Any) -> None:
    try:
        setattr(config, name, value)
    except Exception:  # a property without a setter, or a check of its own
        vars(config)[name] = value


def size(model: nn.Module) -> int:
    """How many numbers a model learns."""
    return sum(p.numel() for p in model.parameters())


def build(kind: str, most: int = 4_000_000) -> Any:
    """A small model of that type by the first automatic class that has it; raises what transformers raises."""
    with warnings.catch_warnings(action="ignore"):
        config = shrink(transformers.AutoConfig.for_model(kind))
        maker = next(m for m in MAKERS if type(config) in getattr(tf, m)._model_mapping)
        with torch.device("meta"):
            if size(getattr(tf, maker).from_config(config)) > most:
                raise MemoryError(kind)
        torch.manual_seed(0)
        return zoo.sharpen(getattr(tf, maker).from_config(config))


MAKERS = (
    "AutoModelForCausalLM", "AutoModelForSeq2SeqLM", "AutoModelForMaskedLM", "AutoModelForImageTextToText",
    "AutoModelForSpeechSeq2Seq", "AutoModelForTextToSpectrogram", "AutoModel", "AutoModelForImageClassification",
    "AutoModelForObjectDetection", "AutoModelForMaskGeneration",
)  # fmt: skip


def kinds() -> list[str]:
    """Every type of model that transformers knows and one of MAKERS builds."""
    found = []
    for kind in tf.models.auto.configuration_auto.CONFIG_MAPPING_NAMES:
        try:
            config = transformers.AutoConfig.for_model(kind)
        except Exception:
            continue
        if any(type(config) in getattr(tf, m)._model_mapping for m in MAKERS):
            found.append(kind)
    return found


def takes(model: nn.Module) -> list[str]:
    """The names that a model's forward takes."""
    return list(inspect.signature(model.forward).parameters)
