"""Token categories: [CLS], [SEP], period or comma, first token, or any other, by the tokens alone."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from trisect.core.trace import Side

CATEGORIES = ("cls", "sep", "first", "punctuation", "other")
OTHER = CATEGORIES.index("other")
MARKED = tuple(map(CATEGORIES.index, ("cls", "sep", "punctuation")))  # what claim C-2 is about
MARKS = ("Ġ", "▁", "##")  # how tokenizers write the start, or the inside, of a word


def find_categories(side: Side, causal: bool = False) -> Int[Tensor, "B S"]:
    """The category of every position, as a place in CATEGORIES; padding is 'other'.

    A special token that opens a text is its [CLS] and every later one a [SEP], whatever the tokenizer calls them (<s>,
    </s>). Where attention is `causal`, the first token of a window is 'first', special or not. Science C2.
    """
    real, special = side.real.cpu(), (side.special & side.real).cpu()
    found = torch.full(real.shape, OTHER)
    for row, tokens in enumerate(side.tokens):
        marks = [place for place, token in enumerate(tokens) if bare(token) in (".", ",")]
        found[row, marks] = CATEGORIES.index("punctuation")
    start = torch.arange(real.shape[1]) == real.int().argmax(1, keepdim=True)
    found[special] = CATEGORIES.index("sep")
    found[special & start] = CATEGORIES.index("cls")
    if causal:
        found[start & real] = CATEGORIES.index("first")
    return found.masked_fill(~real, OTHER)


def find_words(side: Side) -> Bool[Tensor, "B S"]:
    """Which positions hold a word or a piece of one: something with a letter or a digit that the tokenizer did not add."""
    found = (side.real & ~side.special).cpu()
    for row, tokens in enumerate(side.tokens):
        marks = [place for place, token in enumerate(tokens) if not any(map(str.isalnum, bare(token)))]
        found[row, marks] = False
    return found


def bare(token: str) -> str:
    """A tokenizer's piece without the marks and spaces of a word's start."""
    for mark in MARKS:
        token = token.removeprefix(mark)
    return token.strip()
