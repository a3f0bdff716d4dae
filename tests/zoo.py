"""The matrix: 98 tiny models of as many kinds, with sharpened random weights, for whoever reads attention.

Sizes are those of tests/shrunk.py; here stand the settings that make a kind what it is, where its default ones do not. Weights and
biases are drawn large enough that a missing softcap, bias or scale changes the answer. No download.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
import transformers
from torch import nn
from transformers import AutoConfig

from tests import shrunk

WIDTH, LAYERS = shrunk.HIDDEN, shrunk.LAYERS
SHARP = 0.3  # spread added to every weight: scores of about ten, far from uniform weights
ROLLED = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "type_vocab_size": 2}
KINDS = {
    "AutoModelForMaskedLM": "bert roberta camembert nomic_bert rembert mpnet xlm_roberta distilbert electra albert mobilebert "
    "modernbert deberta deberta_v2 squeezebert funnel xlm esm roformer convbert megatron_bert big_bird longformer",
    "AutoModelForCausalLM": "gemma nemotron glm4 llama qwen2 phi phi3 olmo olmo2 stablelm cohere granite smollm3 starcoder2 bitnet "
    "gpt_neox persimmon gpt2 gpt_neo gptj codegen mistral mixtral qwen3 qwen3_moe qwen3_next gemma2 gemma3 gemma4 cohere2 gpt_oss "
    "llama4 deepseek_v2 deepseek_v3 opt bloom falcon falcon_new mpt gpt_bigcode gpt_bigcode_mha ctrl openai_gpt xlnet biogpt xglm "
    "jamba mamba zamba2 reformer rwkv recurrent_gemma",
    "AutoModelForSeq2SeqLM": "bart mbart pegasus m2m_100 blenderbot mvp t5 mt5 umt5 longt5 switch marian nllb_moe led prophetnet "
    "fsmt t5gemma",
    "AutoModel": "vit deit dinov2 clip_vision wav2vec2",
    "AutoModelForSpeechSeq2Seq": "whisper",
}
ZOO = {name: maker for maker, names in KINDS.items() for name in names.split()}
TYPES = {
    **{
        name: name.replace("_", "-")
        for name in ("xlm_roberta", "deberta_v2", "megatron_bert", "openai_gpt", "nllb_moe")
    },
    **{"gemma3": "gemma3_text", "gemma4": "gemma4_text", "llama4": "llama4_text", "clip_vision": "clip_vision_model"},
    **{"falcon_new": "falcon", "gpt_bigcode_mha": "gpt_bigcode", "switch": "switch_transformers"},
}
SETTINGS: dict[str, dict[str, Any]] = {
    "albert": {"embedding_size": 16},
    "mpnet": {"type_vocab_size": 2},
    "modernbert": {"reference_compile": False},
    "deberta": ROLLED | {"max_relative_positions": 32, "position_biased_input": False, "pooler_hidden_size": WIDTH},
    "deberta_v2": ROLLED
    | {"position_buckets": 16, "norm_rel_ebd": "layer_norm", "share_att_key": True, "pooler_hidden_size": WIDTH},
    "squeezebert": dict.fromkeys(("k_groups", "post_attention_groups", "intermediate_groups", "output_groups"), 1)
    | {"q_groups": 2, "v_groups": 2},
    "funnel": {"block_sizes": [1, 1], "num_decoder_layers": 1},
    "esm": {"position_embedding_type": "rotary", "mask_token_id": 3, "token_dropout": False},
    "big_bird": {"attention_type": "original_full"},
    "longformer": {"attention_window": [4, 4]},
    "gpt_neo": {"num_layers": LAYERS, "attention_types": [[["global", "local"], 1]], "window_size": 4},
    "mistral": {"sliding_window": 3},
    "qwen3": {"head_dim": 16},
    "qwen3_next": {"num_hidden_layers": LAYERS, "layer_types": ["full_attention"] * LAYERS},
    "gemma2": {"attn_logit_softcapping": 5.0, "sliding_window": 4},
    **{name: {"sliding_window": 4} for name in ("gemma3", "gemma4", "cohere2", "gpt_oss")},
    "deepseek_v3": {"n_group": 2},
    "falcon_new": {"new_decoder_architecture": True},
    "gpt_bigcode_mha": {"multi_query": False, "num_key_value_heads": 4},
    "jamba": {"mamba_dt_rank": 4},
    "zamba2": {
        "num_hidden_layers": LAYERS,
        "layers_block_type": ["linear_attention", "hybrid"],
        "mamba_headdim": 16,
        "attention_head_dim": 16,
        "attention_hidden_size": 64,
    },
    "reformer": {"attn_layers": ["local", "local"], "local_attn_chunk_length": 12},
    **{name: {"decoder_start_token_id": 0} for name in ("t5", "mt5", "umt5")},
    "longt5": {"decoder_start_token_id": 0, "vocab_size": 99, "local_radius": 4, "encoder_attention_type": "local"},
    "switch": {"decoder_start_token_id": 0, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1},
    "nllb_moe": {"encoder_sparse_step": 2, "decoder_sparse_step": 2},
    "led": {"attention_window": [4, 4]},
    "t5gemma": {"decoder.cross_attention_hidden_size": WIDTH},
    **{name: {"image_size": 16, "patch_size": 4} for name in ("vit", "deit", "dinov2", "clip_vision")},
    "wav2vec2": {
        **{"conv_dim": [8, 8], "conv_stride": [4, 4], "conv_kernel": [8, 8], "num_feat_extract_layers": 2},
        **{"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "mask_time_prob": 0.0},
    },
}


def build(name: str, seed: int = 0, **options: Any) -> Any:
    """A tiny model of that kind, ready to be read; `options` change its configuration."""
    kind, own = TYPES.get(name, name), SETTINGS.get(name, {}) | options
    given = {option: value for option, value in own.items() if "." not in option}
    config = shrunk.fill(shrunk.shrink(AutoConfig.for_model(kind, **shrunk.MORE.get(kind, {}) | given)), rope=False)
    shrunk.settle(config, shrunk.SETTINGS.get(kind, {}) | own)
    torch.manual_seed(seed)
    with warnings.catch_warnings(action="ignore"):  # MobileBERT makes a weight without elements
        return sharpen(getattr(transformers, ZOO[name]).from_config(config), seed)


@torch.no_grad()
def sharpen(model: nn.Module, seed: int = 0) -> Any:
    """Add noise to whatever a model learns, biases included, which are made as zeros and would hide mistakes."""
    draw = torch.Generator().manual_seed(seed + 1)
    for parameter in model.parameters():
        if parameter.is_floating_point() and parameter.requires_grad:
            size = SHARP if parameter.dim() > 1 else 0.1
            parameter.add_(size * torch.randn(parameter.shape, generator=draw).to(parameter))
    return model.eval()
