"""The plain way: the same language model out of torch's own modules, for benches and tests to be measured against."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from trisect.core.spec import Model
from trisect.lm.fleet import layout

LONGEST = 64  # tokens of a window at most
NAMES = {
    "in.weight": "self_attn.in_proj_weight",
    "in.bias": "self_attn.in_proj_bias",
    "out.weight": "self_attn.out_proj.weight",
    "out.bias": "self_attn.out_proj.bias",
    "norm1.weight": "norm1.weight",
    "norm1.bias": "norm1.bias",
    "up.weight": "linear1.weight",
    "up.bias": "linear1.bias",
    "down.weight": "linear2.weight",
    "down.bias": "linear2.bias",
    "norm2.weight": "norm2.weight",
    "norm2.bias": "norm2.bias",
}


class Plain(torch.nn.Module):
    """Embedding, positions, `nn.TransformerEncoder` and a linear decoder, as a tutorial writes them."""

    def __init__(self, model: Model, vocabulary: int, dropout: float) -> None:
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(model.width, model.heads, model.feedforward, dropout, batch_first=True)
        self.embed = torch.nn.Embedding(vocabulary, model.width)
        self.dropout = torch.nn.Dropout(dropout)
        self.encoder = torch.nn.TransformerEncoder(layer, model.layers, enable_nested_tensor=False)
        self.decoder = torch.nn.Linear(model.width, vocabulary)
        where = torch.arange(LONGEST, dtype=torch.float64)[:, None]
        rate = torch.exp(torch.arange(0, model.width, 2, dtype=torch.float64) * (-math.log(1e4) / model.width))
        self.positions = torch.zeros(LONGEST, model.width, dtype=torch.float64)
        self.positions[:, 0::2], self.positions[:, 1::2] = torch.sin(where * rate), torch.cos(where * rate)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits [B T V]."""
        length, like = inputs.shape[1], self.embed.weight
        x = self.embed(inputs) * math.sqrt(like.shape[1]) + self.positions[:length].to(like)
        mask = torch.nn.Transformer.generate_square_subsequent_mask(length, device=like.device, dtype=like.dtype)
        return self.decoder(self.encoder(self.dropout(x), mask, is_causal=True))


def names(model: Model, vocabulary: int) -> dict[str, str]:
    """trisect's name of each parameter -> the plain model's."""
    plain_names = {}
    for name in layout(model, vocabulary):
        if name.startswith("layers."):
            _, layer, rest = name.split(".", 2)
            plain_names[name] = f"encoder.layers.{int(layer) - 1}.{NAMES[rest]}"
        else:
            plain_names[name] = name
    return plain_names


def plain_of(model: Model, vocabulary: int, weights: Mapping[str, Tensor], dropout: float = 0.0) -> Plain:
    """The plain model with one member's weights, in their precision."""
    plain = Plain(model, vocabulary, dropout).to(weights["decoder.bias"].dtype)
    plain.load_state_dict({theirs: weights[ours] for ours, theirs in names(model, vocabulary).items()})
    return plain


def zipf_corpus_ids(vocabulary: int, tokens: int, seed: int = 0) -> Tensor:
    """Token ids with the frequencies of Zipf's law."""
    share = 1 / torch.arange(1, vocabulary + 1, dtype=torch.float64)
    draw = torch.Generator().manual_seed(seed)
    return torch.multinomial(share, tokens, replacement=True, generator=draw)
