"""A GPT-2 that recalls by construction: its weights are set by hand, so that it is known what q, k and v of each layer do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

KEYS, VALUES = tuple(f"k{i}" for i in range(6)), tuple(f"v{i}" for i in range(6))
WORDS = (*KEYS, *VALUES)
BINDINGS = 4
LONGEST = 2 * BINDINGS + 1
SHARP = 40.0  # of the products of a match, in which softmax gives nothing to anything else


class Facts(NamedTuple):
    """What a text says: keys in order, the value of each, and the key that is asked for."""

    keys: tuple[str, ...]
    values: tuple[str, ...]
    asked: str

    @property
    def text(self) -> str:
        return " ".join([*(word for pair in zip(self.keys, self.values, strict=True) for word in pair), self.asked])


def tokenizer(words: Sequence[str] = WORDS, longest: int = LONGEST) -> PreTrainedTokenizerFast:
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, words[0]))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, model_max_length=longest)


def inductor(words: Sequence[str], longest: int) -> GPT2LMHeadModel:
    """The same with any word before any other: … A B … A, and then B."""
    return recaller(words, longest, range(len(words)), range(len(words)))


def recaller(
    words: Sequence[str] = WORDS,
    longest: int = LONGEST,
    keys: range = range(len(KEYS)),
    values: range = range(len(KEYS), len(WORDS)),
) -> GPT2LMHeadModel:
    """Layer 1 copies the key before a value to the value's place; layer 2 looks for the asked key there and takes the value."""
    word, place = range(len(words)), range(len(words), len(words) + longest)
    before = range(place.stop, place.stop + len(keys))
    answer = range(before.stop, before.stop + len(values))
    width = answer.stop
    config = GPT2Config(
        vocab_size=len(words), n_positions=longest, n_embd=width, n_layer=2, n_head=1, n_inner=4, tie_word_embeddings=False,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "ln_" not in name:
                parameter.zero_()
        body = model.transformer
        body.wte.weight[:, list(word)] = torch.eye(len(words), dtype=torch.float64)
        body.wpe.weight[:, list(place)] = torch.eye(longest, dtype=torch.float64)

        def maps(layer: int) -> list[torch.Tensor]:
            """W_Q, W_K, W_V and W_O of a layer, [in, out] each, to be written to."""
            joined, out = (body.get_parameter(f"h.{layer}.attn.{name}.weight") for name in ("c_attn", "c_proj"))
            return [*joined.split(width, 1), out]

        q, k, v, o = maps(0)
        for i in range(1, longest):
            q[place[i], place[i - 1]] = SHARP
        for i in range(longest):
            k[place[i], place[i]] = 1.0
        for i, key in enumerate(keys):
            v[word[key], before[i]] = o[before[i], before[i]] = 1.0
        q, k, v, o = maps(1)
        for i, key in enumerate(keys):
            q[word[key], before[i]] = SHARP
            k[before[i], before[i]] = 1.0
        for i, value in enumerate(values):
            v[word[value], answer[i]] = o[answer[i], answer[i]] = 1.0
            model.lm_head.weight[word[value], answer[i]] = 1.0
    return model


def facts(count: int, seed: int = 0) -> list[tuple[Facts, Facts]]:
    """Base and donor with the same words in other orders, whose answer and those that q, k and v predict all differ."""
    draw, found = np.random.default_rng(seed), []
    while len(found) < count:
        keys, values = _some(draw, KEYS), _some(draw, VALUES)
        base = Facts(keys, values, str(draw.choice(keys)))
        order = _some(draw, keys)
        donor = Facts(order, _some(draw, values), str(draw.choice(order)))
        if len({predicted(base, donor)[name] for name in ("base", "q", "k", "v")}) == 4:
            found.append((base, donor))
    return found


def predicted(base: Facts, donor: Facts) -> dict[str, str]:
    """The answer where q, k, v or several are the donor's; written without a look at the product's own way of saying it."""
    found = {}
    for name in ("base", "q", "k", "v", "q+k", "q+v", "k+v", "donor"):
        asked = (donor if "q" in name or name == "donor" else base).asked
        where = (donor if "k" in name or name == "donor" else base).keys.index(asked)
        found[name] = (donor if "v" in name or name == "donor" else base).values[where]
    return found


def _some(draw: np.random.Generator, words: Sequence[str]) -> tuple[str, ...]:
    return tuple(map(str, draw.permutation(words)[:BINDINGS]))
