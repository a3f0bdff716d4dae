"""Tiny pretrained models with random weights, and a tokenizer of whole words; saved as folders, nothing is fetched."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn
from transformers import PreTrainedTokenizerFast

tf = cast(Any, transformers)
SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
VOCABULARY = (*SPECIALS, ".", ",", *(f"w{i}" for i in range(40)))
WIDTH, LAYERS, HEADS, INNER, LONGEST = 32, 2, 4, 48, 24


def tokenizer(
    specials: bool = True,
    vocabulary: Sequence[str] = VOCABULARY,
    longest: int = LONGEST,
    kind: type[models.WordLevel | models.WordPiece] = models.WordLevel,
) -> PreTrainedTokenizerFast:
    """Whole words, or pieces; with `specials` every text stands between [CLS] and [SEP], else nothing is added."""
    inner = Tokenizer(kind({word: i for i, word in enumerate(vocabulary)}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    names = {}
    if specials:
        inner.post_processor = processors.TemplateProcessing(
            "[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]", [("[CLS]", 2), ("[SEP]", 3)]
        )
        names = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]", model_max_length=longest, **names)


def _made(kind: Callable[[Any], nn.Module], config: Any, seed: int) -> nn.Module:
    """A model with larger random weights and biases than it is born with, so that what is forgotten shows."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = kind(config)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.15 * torch.randn(p.shape))
    model.eval()
    return model


def bert(seed: int = 1, head: bool = True, layers: int = LAYERS, **settings: Any) -> nn.Module:
    """A masked LM, or without its head a plain encoder."""
    config = tf.BertConfig(
        vocab_size=len(VOCABULARY), hidden_size=WIDTH, num_hidden_layers=layers, num_attention_heads=HEADS,
        intermediate_size=INNER, max_position_embeddings=LONGEST, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        pad_token_id=0, **settings,
    )  # fmt: skip
    return _made(tf.BertForMaskedLM if head else tf.BertModel, config, seed)


def gpt2(seed: int = 1) -> nn.Module:
    """A causal LM with one fused Conv1D for q, k and v."""
    config = tf.GPT2Config(
        vocab_size=len(VOCABULARY), n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_positions=LONGEST, n_inner=INNER,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=2, eos_token_id=3,
    )  # fmt: skip
    return _made(tf.GPT2LMHeadModel, config, seed)


def llama(seed: int = 1) -> nn.Module:
    """A causal LM with grouped queries, rotary positions and RMS norms."""
    config = tf.LlamaConfig(
        vocab_size=len(VOCABULARY), hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        num_key_value_heads=HEADS // 2, intermediate_size=INNER, max_position_embeddings=LONGEST, attention_bias=True,
        bos_token_id=2, eos_token_id=3, pad_token_id=0,
    )  # fmt: skip
    return _made(tf.LlamaForCausalLM, config, seed)


def bart(seed: int = 1) -> nn.Module:
    """An encoder-decoder."""
    config = tf.BartConfig(
        vocab_size=len(VOCABULARY), d_model=WIDTH, encoder_layers=LAYERS, decoder_layers=LAYERS + 1, encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS, encoder_ffn_dim=INNER, decoder_ffn_dim=INNER, max_position_embeddings=LONGEST, dropout=0.0,
        pad_token_id=0, bos_token_id=2, eos_token_id=3, decoder_start_token_id=3,
    )  # fmt: skip
    return _made(tf.BartForConditionalGeneration, config, seed)


def save(model: Any, folder: Path, specials: bool = True) -> Path:
    """A model's folder with its tokenizer, as save_pretrained writes them."""
    model.save_pretrained(folder)
    tokenizer(specials).save_pretrained(folder)
    return folder
