"""Every type of model that transformers can build, made small: its default configuration with every size set down."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator
from itertools import islice
from typing import Any, cast

import torch
import transformers
from torch import nn

from tests import divided, fitted
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
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 8),
    **dict.fromkeys(("hidden_size_per_layer_input", "query_pre_attn_scalar"), 8),
}  # fmt: skip
HEADED: dict[str, Any] = {
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"), HEADS),
    **dict.fromkeys(("decoder_attention_heads", "attention_heads", "encoder_num_attention_heads", "nhead"), HEADS),
    **dict.fromkeys(("num_encoder_attention_heads", "num_decoder_attention_heads", "decoder_num_attention_heads"), HEADS),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "n_kv_heads", "decoder_num_key_value_heads"), 2),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads", "n_mamba_heads"), 4),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads"), 2),
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


def shrink(config: Any, depth: int = 0) -> Any:
    """The configuration with every size that it has set down, and those of its parts."""
    for name, value in list(vars(config).items()):
        if isinstance(value, tf.PretrainedConfig) and depth < 4:
            shrink(value, depth + 1)
        elif name in SIZES and isinstance(value, (int, float)) and value is not None and not isinstance(value, str):
            small = SIZES[name]
            if isinstance(value, bool) == isinstance(small, bool):
                divided.put(config, name, min(value, small) if name in LEAST else small)
    lists = {n: v for n, v in vars(config).items() if isinstance(v, list)}
    for name in ("layer_types", "layers_block_type", "mlp_layer_types", "attention_types"):
        if isinstance(lists.get(name), list) and len(lists[name]) > LAYERS and isinstance(lists[name][0], str):
            kinds = list(dict.fromkeys(lists[name]))[::-1]
            divided.put(config, name, (kinds * LAYERS)[:LAYERS] if len(kinds) > 1 else kinds * LAYERS)
    _agree(config)
    for name in TOKENS:
        if isinstance(getattr(config, name, None), int):
            divided.put(config, name, 5)
    return config


def _agree(config: Any) -> None:
    """Sizes that have to fit one another: heads of latent attention, sections of rotary positions, sizes by stage."""
    heads = divided.known(config, "num_attention_heads") or HEADS
    if hasattr(config, "qk_rope_head_dim"):
        for name, value in (("num_key_value_heads", heads), ("head_dim", 4), ("qk_head_dim", 12)):
            if hasattr(config, name):
                divided.put(config, name, value)
    width = divided.known(config, "head_dim") or HIDDEN // HEADS
    rope = [r for n in ("rope_parameters", "rope_scaling") if isinstance(r := getattr(config, n, None), dict)]
    for one in [*rope, *(v for r in rope for v in r.values() if isinstance(v, dict))]:
        if isinstance(sections := one.get("mrope_section"), list):
            half = int(width * one.get("partial_rotary_factor", 1.0)) // 2
            one["mrope_section"] = [half - (len(sections) - 1) * (half // len(sections))] + [half // len(sections)] * (
                len(sections) - 1
            )
    if isinstance(getattr(config, "attn_layer_period", None), int):
        divided.put(config, "attn_layer_period", 2)
        divided.put(config, "attn_layer_offset", 1)
    if isinstance(indices := getattr(config, "attn_layer_indices", None), list) or hasattr(config, "mamba_n_heads"):
        divided.put(config, "attn_layer_indices", [1]) if indices is not None else None
    for name in ("hidden_sizes", "embed_dims", "encoder_hidden_sizes"):
        if isinstance(sizes := getattr(config, name, None), (list, tuple)) and len(sizes) > 1:
            divided.put(config, name, [16 * min(2, i + 1) for i in range(len(sizes))])
    for name in ("depths", "num_blocks"):
        if isinstance(sizes := getattr(config, name, None), (list, tuple)) and all(isinstance(n, int) for n in sizes):
            divided.put(config, name, [1] * len(sizes))
    if isinstance(windows := getattr(config, "attention_window", None), (int, list)):
        divided.put(config, "attention_window", [4] * LAYERS if isinstance(windows, list) else 4)
    for name in ("mamba_d_ssm", "mamba_intermediate_size"):
        if isinstance(getattr(config, name, None), int):
            divided.put(config, name, 64)


LEAST = ("num_key_value_heads", "sliding_window")


def size(model: nn.Module) -> int:
    """How many numbers a model learns."""
    return sum(p.numel() for p in model.parameters())


def ways(kind: str) -> Iterator[Any]:
    """Small configurations of that type, made in one way after another: sizes of known names, or all widths divided."""
    yield lambda: fitted.settle(shrink(_default(kind)), kind)
    for rope in (True, False):
        yield lambda rope=rope: divided.fill(shrink(_default(kind)), rope)
    for by, rope in ((16, False), (8, False), (4, False), (16, True), (12, False), (32, False), (32, True)):
        yield lambda by=by, rope=rope: divided.fill(divided.divide(_default(kind), by, KEPT), rope)
    yield lambda: divided.fill(divided.narrow(_default(kind), 2, SIZES, KEPT), rope=False)


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
        return divided.sharpen(model)


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
    if kind not in fitted.INPUTS:
        return example_inputs(kind, model)
    given = fitted.INPUTS[kind](model.config)
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


def takes(model: nn.Module) -> list[str]:
    """The names that a model's forward takes."""
    return list(inspect.signature(model.forward).parameters)
