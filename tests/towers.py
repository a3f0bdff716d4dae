"""Tiny models of several towers, or with attention of several kinds in a layer, with inputs of their own. No download."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple, cast

import torch
import transformers
from torch import Tensor

from tests import zoo

tf = cast(Any, transformers)
WIDTH, WORDS = 32, 99
TEXT = {
    "vocab_size": WORDS, "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GROUPED = TEXT | {"num_key_value_heads": 2}
IMAGE = {
    "hidden_size": WIDTH, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64, "image_size": 16,
    "patch_size": 4, "num_channels": 3,
}  # fmt: skip


class Towered(NamedTuple):
    """A model, inputs of its own, and the addresses that its attention has."""

    model: Any
    inputs: dict[str, Tensor]
    addresses: tuple[str, ...]


def ids(rows: int = 2, length: int = 7, seed: int = 0) -> Tensor:
    """Token ids without special ones."""
    return torch.randint(6, 90, (rows, length), generator=torch.Generator().manual_seed(seed))


def pixels(side: int = 16, rows: int = 2) -> Tensor:
    """Images of noise."""
    return torch.randn(rows, 3, side, side, generator=torch.Generator().manual_seed(1))


def layers(count: int, stack: str = "") -> tuple[str, ...]:
    """The words of so many layers of a stack."""
    return tuple(f"{stack} layer {n}".strip() for n in range(1, count + 1))


def clip(patches: int = 17) -> Towered:
    """CLIP: two towers that do not see each other; 16 patches and one more, or as many as tokens."""
    side = 4 * round((patches - 1) ** 0.5)
    config = tf.CLIPConfig(text_config=TEXT, vision_config=IMAGE | {"image_size": side}, projection_dim=16)
    given = {"input_ids": ids(length=9 if patches != 17 else 7), "pixel_values": pixels(side)}
    return Towered(tf.CLIPModel(config), given, (*layers(3, "vision"), *layers(2, "text")))


def llava() -> Towered:
    """LLaVA: a vision tower that a causal language model sees."""
    config = tf.LlavaConfig(
        vision_config=tf.CLIPVisionConfig(**IMAGE), text_config=tf.LlamaConfig(**GROUPED), image_token_id=5,
        vision_feature_layer=-1,
    )  # fmt: skip
    text = torch.cat([ids(length=2), torch.full((2, 16), 5), ids(length=5)], 1)
    given = {"input_ids": text, "attention_mask": torch.ones_like(text), "pixel_values": pixels()}
    return Towered(tf.LlavaForConditionalGeneration(config), given, (*layers(3, "vision"), *layers(2)))


def detr() -> Towered:
    """DETR: a backbone with an 'encoder' of its own, then an encoder and a decoder."""
    backbone = tf.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", out_features=["stage2"]
    )
    config = tf.DetrConfig(
        backbone_config=backbone, use_timm_backbone=False, d_model=WIDTH, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, num_queries=6,
        dropout=0.0, use_pretrained_backbone=False, backbone=None,
    )  # fmt: skip
    crossing = ("dec layer 1", "cross layer 1", "dec layer 2", "cross layer 2")
    return Towered(tf.DetrModel(config), {"pixel_values": pixels(32)}, (*layers(2, "enc"), *crossing))


def diffllama() -> Towered:
    """DiffLlama: every layer attends twice, once for each half of its values."""
    model = tf.DiffLlamaForCausalLM(tf.DiffLlamaConfig(**GROUPED))
    return Towered(model, {"input_ids": ids()}, ("layer 1", "part2 layer 1", "layer 2", "part2 layer 2"))


def blip2() -> Towered:
    """BLIP-2: a vision tower, a Q-Former that reads it by cross-attention, and a language model."""
    qformer = {k: v for k, v in TEXT.items() if k != "max_position_embeddings"}
    config = tf.Blip2Config(
        vision_config=tf.Blip2VisionConfig(**IMAGE),
        qformer_config=tf.Blip2QFormerConfig(**qformer, encoder_hidden_size=WIDTH, cross_attention_frequency=1),
        text_config=tf.OPTConfig(
            vocab_size=WORDS, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=4, ffn_dim=64,
            max_position_embeddings=64, word_embed_proj_dim=WIDTH, dropout=0.0,
        ),
        num_query_tokens=4, image_token_index=5,
    )  # fmt: skip
    text = torch.cat([torch.full((2, 4), 5), ids(length=5)], 1)
    between = ("qformer layer 1", "qformer_cross layer 1", "qformer layer 2", "qformer_cross layer 2")
    given = {"pixel_values": pixels(), "input_ids": text, "attention_mask": torch.ones_like(text)}
    return Towered(tf.Blip2ForConditionalGeneration(config), given, (*layers(3, "vision"), *between, *layers(2)))


def lxmert() -> Towered:
    """LXMERT: text and boxes, and layers in which each of them reads the other."""
    few = {n: v for n, v in TEXT.items() if n != "num_hidden_layers"}
    config = tf.LxmertConfig(**few, l_layers=1, x_layers=1, r_layers=1, visual_feat_dim=8, visual_pos_dim=4)
    draw = torch.Generator().manual_seed(2)
    given = {
        "input_ids": ids(), "visual_feats": torch.randn(2, 5, 8, generator=draw),
        "visual_pos": torch.randn(2, 5, 4, generator=draw),
    }  # fmt: skip
    read = ("text_cross layer 1", "vision_cross layer 1")
    named = ("text layer 1", "vision layer 1", *read, "text layer 2", "vision layer 2")
    return Towered(tf.LxmertModel(config), given, named)


def timesformer() -> Towered:
    """TimeSformer: every layer attends over time, then over space."""
    config = tf.TimesformerConfig(**IMAGE | {"num_hidden_layers": 2}, num_frames=3)
    video = torch.randn(2, 3, 3, 16, 16, generator=torch.Generator().manual_seed(2))
    named = ("temporal layer 1", "layer 1", "temporal layer 2", "layer 2")
    return Towered(tf.TimesformerModel(config), {"pixel_values": video}, named)


def t5gemma2() -> Towered:
    """T5Gemma 2: its decoder attends to itself and to the encoder in one softmax."""
    narrow = GROUPED | {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 4}
    config = tf.T5Gemma2Config(
        encoder=tf.T5Gemma2EncoderConfig(
            text_config=tf.T5Gemma2TextConfig(**narrow), vision_config=tf.SiglipVisionConfig(**IMAGE)
        ),
        decoder=tf.T5Gemma2DecoderConfig(**narrow), image_token_index=5, eoi_token_index=4,
    )  # fmt: skip
    given = {"input_ids": ids(), "decoder_input_ids": ids(length=5, seed=1)}
    return Towered(tf.T5Gemma2ForConditionalGeneration(config), given, (*layers(2, "enc"), *layers(2, "merged")))


TOWERS = {f.__name__: f for f in (clip, llava, detr, diffllama, blip2, lxmert, timesformer, t5gemma2)}


def build(name: str) -> Towered:
    """One of them, with random weights that are not close to zero."""
    torch.manual_seed(0)
    with warnings.catch_warnings(action="ignore"):
        made = TOWERS[name]()
    zoo.sharpen(made.model)
    return made
