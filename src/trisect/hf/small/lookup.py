"""A small language model of attention alone, or with feed-forward networks, and how far its heads look up what came before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor, nn

from trisect.core.errors import SpecError
from trisect.hf.files.fetch import OwnTokenizer
from trisect.hf.small.gpt import PAD, UNKNOWN, check_sizes, random_model
from trisect.hf.small.translator import learn_pieces

ROWS = 32  # of random pieces that induction is measured on


@dataclass(frozen=True)
class LookupShape:
    """`layers` of `heads`, `width` (residual stream), `inner` (feed-forward, 0: none) and `block` (pieces read at once).

    Weights begin with the standard deviation `spread`; positions are rotary, the slowest with a period of about 2π · `base`.
    """

    layers: int = 2
    heads: int = 4
    width: int = 128
    inner: int = 0
    block: int = 96
    spread: float = 0.1
    base: float = 100.0
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_sizes(self.dropout, layers=self.layers, heads=self.heads, width=self.width, block=self.block)
        if self.width % (2 * self.heads):
            known = f"{self.width} is shared by {self.heads} heads, evenly for rotary positions."
            raise SpecError(f"A width of {self.width}.", known, "Give an even multiple of the number of heads.")


def learn_tokenizer(lines: Sequence[str], size: int, block: int) -> OwnTokenizer:
    """A fast tokenizer of about `size` byte-pair pieces of words, which adds nothing to a text."""
    return learn_pieces(lines, size, block, pad_token=PAD, unk_token=UNKNOWN)


def make_model(architecture: LookupShape, tokenizer: OwnTokenizer, seed: int) -> nn.Module:
    """A llama with random weights, a function of the seed; without feed-forward networks theirs add nothing and stay as they are."""
    import transformers

    a = architecture
    positions: dict[str, Any] = {"rope_theta": a.base}
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        max_position_embeddings=a.block,
        hidden_size=a.width,
        intermediate_size=a.inner or 1,
        num_hidden_layers=a.layers,
        num_attention_heads=a.heads,
        initializer_range=a.spread,
        **positions,
        attention_dropout=a.dropout,
        attention_bias=True,  # by which a head can attend to a place, whatever stands there
        tie_word_embeddings=False,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = random_model(transformers.AutoModelForCausalLM, config, seed)
    for name, p in model.named_parameters():
        if not a.inner and ".mlp." in name:
            p.requires_grad_(False)
            if "down_proj" in name:
                nn.init.zeros_(p)
    return model


class HeadWeights(NamedTuple):
    """Of one head the mean attention weight on the piece before (`previous`), and on the one after an earlier copy (`induction`)."""

    layer: int
    head: int
    previous: float
    induction: float


class InductionMeasure(NamedTuple):
    """Loss in nats on a text, on random pieces when they come first and when they come again, and what each head attends to then."""

    text: float
    first: float
    second: float
    heads: tuple[HeadWeights, ...]


@torch.no_grad()
def measure_induction(model: Any, windows: Int[Tensor, "R T"], pieces: Int[Tensor, " P"]) -> InductionMeasure:
    """How a model predicts windows of a text, and as wide rows of random `pieces` repeated once (Olsson et al. 2022); which heads look
    back in those. Pieces that the model never read would say nothing of it.
    """
    half, device = windows.shape[1] // 2, model.get_input_embeddings().weight.device
    draw = torch.Generator().manual_seed(5)
    ids = pieces[torch.randint(len(pieces), (ROWS, half), generator=draw)].repeat(1, 2).to(device)

    def losses(ids: Tensor, logits: Tensor) -> Tensor:
        rows = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="none")
        return rows.view(len(ids), -1)

    windows = windows.to(device)
    text = losses(windows, model(input_ids=windows, use_cache=False).logits)
    made = model(input_ids=ids, use_cache=False, output_attentions=True)
    random = losses(ids, made.logits)
    at = torch.arange(half, 2 * half - 1, device=device)
    heads = [
        HeadWeights(
            layer,
            head,
            float(weights[:, head - 1, at, at - 1].mean()),
            float(weights[:, head - 1, at, at - half + 1].mean()),
        )
        for layer, weights in enumerate(made.attentions, start=1)
        for head in range(1, weights.shape[1] + 1)
    ]
    return InductionMeasure(
        float(text.mean()), float(random[:, : half - 1].mean()), float(random[:, half:].mean()), tuple(heads)
    )
