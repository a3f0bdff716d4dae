"""Translate with a small trained encoder-decoder: its loss on sentence pairs, and greedy decoding of a sentence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from trisect.hf.small.training import padded
from trisect.hf.small.translator import Translating, TranslationIds, WordSides, encode
from trisect.text.corruption import IGNORED

ROWS = 64  # read at once
EXTRA_PIECES = 10  # pieces that a translation may have beyond twice the pieces of its sentence


class TranslationScore(NamedTuple):
    """Mean loss per target piece in nats, and the share of pieces that were the likeliest, the target being given."""

    loss_nats: float
    accuracy: float


@dataclass(frozen=True, eq=False)
class Translator:
    """A model in its folder, opened to translate."""

    model: nn.Module
    tokenizer: Any

    @classmethod
    def open(cls, folder: Path, device: str = "cpu") -> Translator:
        """Read a model's folder; raises ModelError for one that cannot be read."""
        from trisect.hf.fetch import Options, fetch

        model, tokenizer, _ = fetch(folder, Options(device=device))
        return cls(model.eval(), tokenizer)

    @torch.no_grad()
    def score(self, pairs: Sequence[WordSides]) -> TranslationScore:
        """Loss and accuracy over all target pieces of some pairs, ends included."""
        lecture = Translating(self.tokenizer.pad_token_id)
        loss, right, count = 0.0, 0, 0
        for rows in _alike(encode(pairs, self.tokenizer)):
            logits = lecture.logits(self.model, rows).flatten(0, 1)
            labels = padded([row.target for row in rows], IGNORED).to(logits.device).flatten()
            loss += float(F.cross_entropy(logits, labels, reduction="sum"))
            right += int((logits.argmax(-1) == labels).sum())
            count += int((labels != IGNORED).sum())
        return TranslationScore(loss / count, right / count)

    @torch.no_grad()
    def translate(self, sentences: Sequence[Sequence[str]]) -> list[str]:
        """The likeliest piece after the likeliest piece (greedy), until each translation ends; words stand apart by spaces."""
        made = []
        for words in sentences:
            ids = self.tokenizer([list(words)], is_split_into_words=True, return_tensors="pt").input_ids
            ids = ids.to(next(self.model.parameters()).device)
            out = [self.tokenizer.pad_token_id]
            for _ in range(2 * ids.shape[1] + EXTRA_PIECES):
                begun = torch.tensor([out], device=ids.device)
                out.append(
                    int(self.model(input_ids=ids, decoder_input_ids=begun, use_cache=False).logits[0, -1].argmax())
                )
                if out[-1] == self.tokenizer.eos_token_id:
                    break
            made.append(self.tokenizer.decode(out, skip_special_tokens=True).strip())
        return made


def _alike(rows: Sequence[TranslationIds]) -> Iterator[Sequence[TranslationIds]]:
    """Rows of like size together, so that little of what is read is padding."""
    ordered = sorted(rows, key=lambda row: row.size)
    for start in range(0, len(ordered), ROWS):
        yield ordered[start : start + ROWS]
