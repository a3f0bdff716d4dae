"""The matrix: 98 tiny models of as many kinds, with sharpened random weights, for whoever reads attention.

Weights and biases are drawn large enough that a missing softcap, bias or scale changes the answer. No download.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import torch
import transformers
from torch import nn
from transformers import AutoConfig

WIDTH, HEADS, GROUPS, LAYERS, INNER, WORDS, LONG = 32, 4, 2, 2, 64, 99, 64
SHARP = 0.3  # spread added to every weight: scores of about ten, far from uniform weights


class Kind(NamedTuple):
    """One kind of model: the automatic class that makes it, its type, and its configuration."""

    maker: str
    type: str
    options: dict[str, Any]


def _special(**more: Any) -> dict[str, Any]:
    return {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, **more}


def _sizes(width: str, layers: str, heads: str, inner: str = "", **more: Any) -> dict[str, Any]:
    """The usual sizes by the names that a type has for them."""
    sizes = {"vocab_size": WORDS, width: WIDTH, layers: LAYERS, heads: HEADS} | ({inner: INNER} if inner else {})
    return sizes | more


PLACES: dict[str, Any] = {"max_position_embeddings": LONG}
DRY: dict[str, Any] = {"dropout": 0.0, "attention_dropout": 0.0}
HIDDEN = _sizes("hidden_size", "num_hidden_layers", "num_attention_heads")
BASE = _special(**HIDDEN, **PLACES, intermediate_size=INNER)
GROUPED = BASE | {"num_key_value_heads": GROUPS}
NARROW = GROUPED | {"head_dim": 8}
ENCODER = BASE | {"type_vocab_size": 2, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
NAMED_N = _special(**_sizes("n_embd", "n_layer", "n_head"), n_positions=LONG)
DRY_N = NAMED_N | {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
ENCODING = _sizes("d_model", "encoder_layers", "encoder_attention_heads", "encoder_ffn_dim", decoder_start_token_id=2)
DECODING = {"decoder_layers": LAYERS, "decoder_attention_heads": HEADS, "decoder_ffn_dim": INNER}
PAIR = _special(**ENCODING, **DECODING, **PLACES, **DRY, activation_dropout=0.0)
T5 = _sizes("d_model", "num_layers", "num_heads", "d_ff", d_kv=8, num_decoder_layers=LAYERS, dropout_rate=0.0)
T5 |= {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
IMAGE = {n: size for n, size in HIDDEN.items() if n != "vocab_size"}
IMAGE |= {"intermediate_size": INNER, "image_size": 16, "patch_size": 4}
SPARSE = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
LATENT = {"num_key_value_heads": HEADS, "qk_rope_head_dim": 4}
LATENT |= dict.fromkeys(("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "v_head_dim"), 8)
LATENT |= {"n_shared_experts": 1, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
LATENT |= {"first_k_dense_replace": 1, "topk_group": 1}
ROLLED = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
SMALL_MAMBA = {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1}
SQUEEZED: dict[str, Any] = dict.fromkeys(
    ("k_groups", "post_attention_groups", "intermediate_groups", "output_groups"), 1
)
SQUEEZED |= {"q_groups": 2, "v_groups": 2}


def _masked(type_: str, base: dict[str, Any] = ENCODER, **options: Any) -> Kind:
    return Kind("AutoModelForMaskedLM", type_, base | options)


def _causal(type_: str, base: dict[str, Any] = GROUPED, **options: Any) -> Kind:
    return Kind("AutoModelForCausalLM", type_, base | options)


def _pair(type_: str, base: dict[str, Any] = PAIR, **options: Any) -> Kind:
    return Kind("AutoModelForSeq2SeqLM", type_, base | options)


def _image(type_: str, **options: Any) -> Kind:
    return Kind("AutoModel", type_, IMAGE | options)


ENCODERS = {
    **{name: _masked(name) for name in ("bert", "roberta", "camembert", "nomic_bert", "rembert", "mpnet")},
    "xlm_roberta": _masked("xlm-roberta"),
    "distilbert": _masked(
        "distilbert", _sizes("dim", "n_layers", "n_heads", "hidden_dim", **PLACES, **DRY), pad_token_id=0
    ),
    "electra": _masked("electra", embedding_size=WIDTH),
    "albert": _masked("albert", embedding_size=16, num_hidden_groups=1),
    "mobilebert": _masked(
        "mobilebert", embedding_size=WIDTH, true_hidden_size=WIDTH, intra_bottleneck_size=WIDTH, use_bottleneck=True
    ),
    "modernbert": _masked("modernbert", BASE, global_attn_every_n_layers=2, local_attention=8, reference_compile=False),
    "deberta": _masked("deberta", **ROLLED, max_relative_positions=32, position_biased_input=False),
    "deberta_v2": _masked("deberta-v2", **ROLLED, position_buckets=16, norm_rel_ebd="layer_norm", share_att_key=True),
    "squeezebert": _masked("squeezebert", embedding_size=WIDTH, **SQUEEZED),
    "funnel": _masked(
        "funnel",
        {"vocab_size": WORDS, "d_model": WIDTH, "n_head": HEADS, "d_head": 8, "d_inner": INNER},
        block_sizes=[1, 1],
        num_decoder_layers=1,
        **dict.fromkeys(("hidden_dropout", "attention_dropout"), 0.0),
    ),
    "xlm": _masked("xlm", _sizes("emb_dim", "n_layers", "n_heads", **PLACES, **DRY), pad_index=0),
    "esm": _masked("esm", position_embedding_type="rotary", mask_token_id=3, token_dropout=False),
    "roformer": _masked("roformer", embedding_size=WIDTH),
    "convbert": _masked("convbert", embedding_size=WIDTH),
    "megatron_bert": _masked("megatron-bert"),
    "big_bird": _masked("big_bird", attention_type="original_full"),
    "longformer": _masked("longformer", attention_window=[4, 4]),
}
DECODERS = {
    **{name: _causal(name, NARROW) for name in ("gemma", "nemotron", "glm4")},
    **{name: _causal(name) for name in ("llama", "qwen2", "phi", "phi3", "olmo", "olmo2")},
    **{name: _causal(name) for name in ("stablelm", "cohere", "granite", "smollm3", "starcoder2", "bitnet")},
    **{name: _causal(name, BASE) for name in ("gpt_neox", "persimmon")},
    "gpt2": _causal("gpt2", DRY_N),
    "gpt_neo": _causal(
        "gpt_neo",
        _sizes("hidden_size", "num_layers", "num_heads", "intermediate_size", **PLACES),
        attention_types=[[["global", "local"], 1]],
        window_size=4,
        **dict.fromkeys(("embed_dropout", "attention_dropout", "resid_dropout"), 0.0),
    ),
    "gptj": _causal("gptj", DRY_N, rotary_dim=4),
    "codegen": _causal("codegen", DRY_N, rotary_dim=4),
    "mistral": _causal("mistral", sliding_window=3),
    "mixtral": _causal("mixtral", num_local_experts=2),
    "qwen3": _causal("qwen3", head_dim=16),
    "qwen3_moe": _causal("qwen3_moe", NARROW, **SPARSE),
    "qwen3_next": _causal(
        "qwen3_next", NARROW, **SPARSE, shared_expert_intermediate_size=16, layer_types=["full_attention"] * LAYERS
    ),
    "gemma2": _causal("gemma2", NARROW, query_pre_attn_scalar=8, sliding_window=4, attn_logit_softcapping=5.0),
    "gemma3": _causal("gemma3_text", NARROW, query_pre_attn_scalar=8, sliding_window=4),
    "gemma4": _causal("gemma4_text", NARROW, sliding_window=4),
    "cohere2": _causal("cohere2", sliding_window=4),
    "gpt_oss": _causal("gpt_oss", NARROW, num_local_experts=2, num_experts_per_tok=1, sliding_window=4),
    "llama4": _causal("llama4_text", NARROW, num_local_experts=2, intermediate_size_mlp=INNER),
    "deepseek_v2": _causal("deepseek_v2", BASE, **LATENT, n_routed_experts=2, n_group=1),
    "deepseek_v3": _causal("deepseek_v3", BASE, **LATENT, n_routed_experts=4, n_group=2),
    "opt": _causal("opt", _special(**HIDDEN, **PLACES), ffn_dim=INNER, word_embed_proj_dim=WIDTH, dropout=0.0),
    "bloom": _causal("bloom", _sizes("hidden_size", "n_layer", "n_head")),
    "falcon": _causal("falcon", BASE, multi_query=True, new_decoder_architecture=False),
    "falcon_new": _causal("falcon", BASE, num_kv_heads=GROUPS, new_decoder_architecture=True),
    "mpt": _causal("mpt", _sizes("d_model", "n_layers", "n_heads"), max_seq_len=LONG, expansion_ratio=2),
    "gpt_bigcode": _causal("gpt_bigcode", DRY_N, multi_query=True),
    "gpt_bigcode_mha": _causal("gpt_bigcode", DRY_N, multi_query=False),
    "ctrl": _causal("ctrl", NAMED_N, dff=INNER, resid_pdrop=0.0, embd_pdrop=0.0),
    "openai_gpt": _causal("openai-gpt", DRY_N),
    "xlnet": _causal("xlnet", _sizes("d_model", "n_layer", "n_head"), d_inner=INNER, dropout=0.0),
    "biogpt": _causal(
        "biogpt",
        BASE,
        **dict.fromkeys(
            ("activation_dropout", "hidden_dropout_prob", "attention_probs_dropout_prob", "layerdrop"), 0.0
        ),
    ),
    "xglm": _causal(
        "xglm", _sizes("d_model", "num_layers", "attention_heads", "ffn_dim", **PLACES, **DRY), pad_token_id=0
    ),
    "jamba": _causal(
        "jamba", GROUPED | SMALL_MAMBA, num_experts=2, use_mamba_kernels=False, mamba_d_state=4, mamba_dt_rank=4
    ),
    "mamba": _causal("mamba", {"vocab_size": WORDS, "hidden_size": WIDTH, "num_hidden_layers": LAYERS}, state_size=4),
    "zamba2": _causal(
        "zamba2",
        layers_block_type=["mamba", "hybrid"],
        mamba_d_state=4,
        n_mamba_heads=4,
        mamba_ngroups=1,
        use_mem_rope=False,
    ),
    "reformer": _causal(
        "reformer",
        {"vocab_size": WORDS, "hidden_size": WIDTH, "attention_head_size": 8, "num_attention_heads": HEADS},
        attn_layers=["local", "local"],
        axial_pos_shape=(4, 16),
        axial_pos_embds_dim=(16, 16),
        feed_forward_size=INNER,
        max_position_embeddings=LONG,
        is_decoder=True,
        local_attn_chunk_length=12,
        pad_token_id=0,
        eos_token_id=2,
        hidden_dropout_prob=0.0,
        local_attention_probs_dropout_prob=0.0,
    ),
    "rwkv": _causal(
        "rwkv",
        {"vocab_size": WORDS, "hidden_size": WIDTH, "num_hidden_layers": LAYERS},
        attention_hidden_size=WIDTH,
        intermediate_size=INNER,
    ),
    "recurrent_gemma": _causal(
        "recurrent_gemma", lru_width=WIDTH, attention_window_size=8, block_types=["recurrent", "attention"]
    ),
}
PAIRS = {
    **{name: _pair(name) for name in ("bart", "mbart", "pegasus", "m2m_100", "blenderbot", "mvp")},
    **{name: _pair(name, T5) for name in ("t5", "mt5", "umt5")},
    "longt5": _pair("longt5", T5, local_radius=4, encoder_attention_type="local"),
    "switch": _pair("switch_transformers", T5, num_experts=2, num_sparse_encoder_layers=1, num_sparse_decoder_layers=1),
    "marian": _pair("marian", decoder_vocab_size=WORDS),
    "nllb_moe": _pair("nllb-moe", num_experts=2, encoder_sparse_step=2, decoder_sparse_step=2),
    "led": _pair(
        "led", max_encoder_position_embeddings=LONG, max_decoder_position_embeddings=LONG, attention_window=[4, 4]
    ),
    "prophetnet": _pair(
        "prophetnet",
        _special(**_sizes("hidden_size", "num_encoder_layers", "num_encoder_attention_heads", "encoder_ffn_dim")),
        num_decoder_layers=LAYERS,
        num_decoder_attention_heads=HEADS,
        decoder_ffn_dim=INNER,
        decoder_start_token_id=2,
        **PLACES,
        **DRY,
    ),
    "fsmt": _pair("fsmt", PAIR, langs=["en", "de"], src_vocab_size=WORDS, tgt_vocab_size=WORDS),
    "t5gemma": Kind("T5Gemma", "t5gemma", NARROW | {"query_pre_attn_scalar": 8, "sliding_window": 4}),
}
OTHERS = {
    **{name: _image(name) for name in ("vit", "deit", "dinov2")},
    "whisper": Kind(
        "WhisperForConditionalGeneration",
        "whisper",
        PAIR | {"num_mel_bins": 8, "max_source_positions": 16, "max_target_positions": LONG},
    ),
    "clip_vision": _image("clip_vision_model"),
    "wav2vec2": Kind(
        "AutoModel",
        "wav2vec2",
        {
            **{n: IMAGE[n] for n in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")},
            **{"conv_dim": [8, 8], "conv_stride": [4, 4], "conv_kernel": [8, 8], "num_feat_extract_layers": 2},
            **{"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "mask_time_prob": 0.0},
            **{"hidden_dropout": 0.0, "attention_dropout": 0.0, "feat_proj_dropout": 0.0, "layerdrop": 0.0},
        },
    ),
}
ZOO: dict[str, Kind] = ENCODERS | DECODERS | PAIRS | OTHERS


def build(name: str, seed: int = 0, **options: Any) -> Any:
    """A tiny model of that kind, ready to be read; `options` change its configuration."""
    kind = ZOO[name]
    torch.manual_seed(seed)
    given = kind.options | options
    if kind.maker == "T5Gemma":
        module = transformers.T5GemmaModuleConfig(**given)
        config = transformers.T5GemmaConfig(encoder=module, decoder=module, vocab_size=WORDS, is_encoder_decoder=True)
        model = transformers.T5GemmaForConditionalGeneration(config)
    elif kind.maker.startswith("Auto"):
        config = AutoConfig.for_model(kind.type, **given)
        with warnings.catch_warnings(action="ignore"):  # MobileBERT makes a weight without elements
            model = getattr(transformers, kind.maker).from_config(config)
    else:
        config = AutoConfig.for_model(kind.type, **given)
        model = getattr(transformers, kind.maker)(config)
    return sharpen(model, seed)


@torch.no_grad()
def sharpen(model: nn.Module, seed: int = 0) -> Any:
    """Add noise to whatever a model learns, biases included, which are made as zeros and would hide mistakes."""
    draw = torch.Generator().manual_seed(seed + 1)
    for parameter in model.parameters():
        if parameter.is_floating_point() and parameter.requires_grad:
            size = SHARP if parameter.dim() > 1 else 0.1
            parameter.add_(size * torch.randn(parameter.shape, generator=draw).to(parameter))
    return model.eval()
