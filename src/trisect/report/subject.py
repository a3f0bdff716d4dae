"""Words about the model and the texts that a page speaks of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trisect.report import format as words

FEW_TEXTS = 30


LOSSES = {
    "causal": "the model's own loss, of each next token",
    "masked": "the model's own loss, of tokens hidden from it",
    "seq2seq": "the model's own loss, of each token of the target",
    "output": "the model's output, since it has no loss",
}


STACKS = {"plain": "", "enc": "encoder", "dec": "decoder", "cross": "cross-attention"}


def spoken(value: float | None, low: float | None, high: float | None, signed: bool = True) -> str:
    """A number and its interval, as in `+0.120 (95 %: +0.0100 to +0.230)`."""
    if low is None or high is None:
        return words.number(value, signed)
    return f"{words.number(value, signed)} (95\u00a0%: {words.number(low, signed)} to {words.number(high, signed)})"


def corpus(about: Mapping[str, Any]) -> str:
    """The texts by name, number and fingerprint."""
    mark = f", fingerprint {about['corpus_fingerprint']}" if about["corpus_fingerprint"] else ""
    return f"{about['corpus']}: {words.several(about['texts'], 'text')}{mark}"
