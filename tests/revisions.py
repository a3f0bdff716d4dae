"""Checkpoints small enough for a test: tiny random models of several kinds, saved as subfolders of one folder."""

from pathlib import Path
from typing import Any, cast

import torch
import transformers
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from tests import tinyhf

tf = cast(Any, transformers)
WORDS = [f"w{i}" for i in range(30)]
VOCABULARY = (*tinyhf.SPECIALS, *WORDS)
SIZE = len(VOCABULARY)
SHAPE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 16}


def make(kind: str, seed: int, wide: int = 16) -> PreTrainedModel:
    """A model with sharp random weights and biases; in float64, but for a family that computes in float32 anyway."""
    torch.manual_seed(seed)
    shape: dict[str, Any] = SHAPE | {"hidden_size": wide, "vocab_size": SIZE, "max_position_embeddings": 16}
    if kind == "fused":  # one Conv1D makes q, k and v
        model: Any = tf.GPT2LMHeadModel(
            tf.GPT2Config(
                vocab_size=SIZE, n_positions=16, n_embd=wide, n_layer=2, n_head=4, bos_token_id=2, eos_token_id=3
            )
        )
    elif kind == "grouped":  # two key/value heads, no biases
        model = tf.LlamaForCausalLM(
            tf.LlamaConfig(**shape, num_key_value_heads=2, bos_token_id=2, eos_token_id=3, pad_token_id=0)
        )
    elif kind == "masked":
        model = tf.BertForMaskedLM(tf.BertConfig(**shape))
    elif kind == "shared":  # one layer's weights for both layers
        model = tf.AlbertForMaskedLM(tf.AlbertConfig(**shape, embedding_size=8))
    elif kind == "paired":  # encoder, decoder and cross-attention
        sizes: dict[str, Any] = {
            f"{side}_{name}": n
            for side in ("encoder", "decoder")
            for name, n in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 16))
        }
        ids: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 2}
        model = tf.BartForConditionalGeneration(
            tf.BartConfig(vocab_size=SIZE, d_model=wide, max_position_embeddings=16, **sizes, **ids)
        )
    else:
        model = tf.BertModel(tf.BertConfig(**shape))  # no loss
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in (model if kind == "grouped" else model.double()).parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=draw, dtype=parameter.dtype)
    return model.eval()


def tokenizer() -> PreTrainedTokenizerFast:
    """A word is a token; [CLS] and [SEP] stand around a text."""
    return tinyhf.tokenizer(vocabulary=VOCABULARY, longest=16)


def save(folder: Path, kind: str, revisions: dict[str, int], wide: int = 16) -> Path:
    """A model at every revision, each made from its own seed."""
    for revision, seed in revisions.items():
        make(kind, seed, wide).save_pretrained(folder / revision)
        tokenizer().save_pretrained(folder / revision)
    return folder


def lines(count: int, seed: int = 0) -> list[str]:
    """Texts of 3 to 20 words; the longer ones are longer than the models' window."""
    draw = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        length = int(torch.randint(3, 20, (1,), generator=draw))
        found.append(" ".join(WORDS[int(i)] for i in torch.randint(len(WORDS), (length,), generator=draw)))
    return found
