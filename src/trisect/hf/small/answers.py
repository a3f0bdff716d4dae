"""Answers of a small character model to questions, with their probability and other measures of confidence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trisect.core.errors import CorpusError, ModelError
from trisect.core.subject import Parts, Shape, Writer
from trisect.core.trace import Address
from trisect.hf.batches import BOUNDLESS
from trisect.hf.load import Pretrained, load
from trisect.hf.small.gpt import ids_of
from trisect.measure.ablation import Means

LONGEST = 64  # characters of an answer; a longer one has lost its way
TOGETHER = 128  # questions of one length that are answered at once
STRANGE = "\N{REPLACEMENT CHARACTER}"  # for a mark inside an answer


class GeneratedAnswer(NamedTuple):
    """An answer, the natural logarithm of its probability (its end included), and three other measures of how sure it is.

    `mean_log_probability` is per character, `entropy` the mean over positions of the next character's distribution, both
    in nats; `margin` the smallest lead of the first over the second choice, in log-probability. `unknown` are the
    characters of the question that the model has no token for.
    """

    text: str
    log_probability: float
    mean_log_probability: float
    entropy: float
    margin: float
    unknown: tuple[str, ...]


class _Asked(NamedTuple):
    """Questions of one length, by their places in the list, and their ids with the mask behind them."""

    places: list[int]
    ids: Tensor


@dataclass(frozen=True, eq=False)
class Answerer:
    """A character-level model that answers what stands before a mask, up to the next mask."""

    subject: Pretrained

    @classmethod
    def open(cls, folder: str | Path, device: str = "cpu") -> Answerer:
        """A model from its folder, proved as `load` proves it; raises ModelError where it is not there, or refused."""
        subject = load(folder, device=device)
        marks = [getattr(subject.tokenizer, f"{mark}_token_id", None) for mark in ("mask", "pad", "unk")]
        if subject.objective != "causal" or None in marks:
            known = (
                "It has to be a causal language model, with a tokenizer that has a mask, a pad and an unknown token."
            )
            raise ModelError(
                f"{subject.name} answers no questions.", known, "Give a model that 'trisect recall' trained."
            )
        return cls(subject)

    @property
    def shape(self) -> Shape:
        """Layers and heads."""
        return self.subject.shape

    @property
    def block(self) -> int:
        """Characters that it reads at once."""
        return int(min(BOUNDLESS, self.subject.tokenizer.model_max_length))

    def unknown(self, text: str) -> tuple[str, ...]:
        """The characters of a text that the model has no token for, each as often as it stands there."""
        vocabulary = self.subject.tokenizer.get_vocab()
        return tuple(c for c in text if c not in vocabulary)

    def answer(self, questions: Sequence[str]) -> list[GeneratedAnswer]:
        """The likeliest next character again and again, until a mask; raises CorpusError for what does not fit the block."""
        found: list[GeneratedAnswer | None] = [None] * len(questions)
        for asked in self._asked(questions):
            for place, (ids, numbers) in zip(asked.places, self._greedy(asked.ids), strict=True):
                total = float(numbers[:, 0].sum())
                found[place] = GeneratedAnswer(
                    self._text(ids),
                    total,
                    total / len(numbers),
                    float(numbers[:, 1].mean()),
                    float(numbers[:, 2].min()),
                    self.unknown(questions[place]),
                )
        return [answer for answer in found if answer is not None]

    def represent(self, questions: Sequence[str]) -> Float[np.ndarray, "N D"]:
        """The last hidden state at the mask behind each question: what the model makes of it before it answers."""
        rows: dict[int, np.ndarray] = {}
        for asked in self._asked(questions):
            with torch.no_grad():
                made = self.subject.model(input_ids=asked.ids, use_cache=False, output_hidden_states=True)
            rows |= dict(zip(asked.places, made.hidden_states[-1][:, -1].double().cpu().numpy(), strict=True))
        return np.stack([rows[i] for i in range(len(questions))])

    def means(self, questions: Sequence[str], answers: Sequence[str]) -> dict[Address, Parts]:
        """The mean q, k and v of every layer over all characters of the questions with their answers."""
        found = {address: Means() for address in self.subject.addresses}
        for ids, real, _ in self._answered(questions, answers):

            def note(address: Address, parts: Parts, real: Tensor = real) -> Parts:
                found[address].add(parts, real, real)
                return parts

            self.subject.predict({"input_ids": ids}, {a: lambda p, a=a, n=note: n(a, p) for a in found})
        return {address: means.parts() for address, means in found.items()}

    def reproduces(
        self, questions: Sequence[str], answers: Sequence[str], write: Mapping[Address, Writer] | None = None
    ) -> Bool[np.ndarray, " N"]:
        """Whether the model, with q, k or v replaced, still gives each answer: every next character is its first choice.

        One forward pass says the same as answering again, since a first choice that differs ends the same answer.
        """
        found: list[bool] = []
        for ids, real, starts in self._answered(questions, answers):
            choice = self.subject.predict({"input_ids": ids}, write).logits.argmax(-1)[:, :-1]
            place = torch.arange(ids.shape[1] - 1, device=ids.device)
            counts = (place >= torch.tensor(starts, device=ids.device)[:, None]) & real[:, 1:]
            found += ((choice == ids[:, 1:]) | ~counts).all(1).tolist()
        return np.array(found, dtype=bool)

    def _asked(self, questions: Sequence[str]) -> Iterator[_Asked]:
        """Questions of one length together, so that nothing is padded."""
        lengths: dict[int, list[int]] = {}
        for place, question in enumerate(questions):
            if len(question) + 2 > self.block:
                known = f"The model reads {self.block} characters at once, the mask and an answer among them."
                raise CorpusError(f"The question {question[:60]!r} is too long.", known, "Ask a shorter one.")
            lengths.setdefault(len(question), []).append(place)
        for places in lengths.values():
            for start in range(0, len(places), TOGETHER):
                some = places[start : start + TOGETHER]
                yield _Asked(
                    some, self._tensor([[*ids_of(questions[i], self.subject.tokenizer), self._mask] for i in some])
                )

    def _answered(self, questions: Sequence[str], answers: Sequence[str]) -> Iterator[tuple[Tensor, Tensor, list[int]]]:
        """Ids of questions with their answers and the mask that ends them, what of them is real, and where answers begin."""
        tokenizer = self.subject.tokenizer
        for start in range(0, len(questions), TOGETHER):
            pairs = list(zip(questions[start : start + TOGETHER], answers[start : start + TOGETHER], strict=True))
            rows = [
                [*ids_of(q, tokenizer), self._mask, *ids_of(a, tokenizer), self._mask][: self.block] for q, a in pairs
            ]
            longest = max(map(len, rows))
            pad = tokenizer.pad_token_id
            ids = self._tensor([[*row, *[pad] * (longest - len(row))] for row in rows])
            real = torch.arange(longest) < torch.tensor([len(row) for row in rows])[:, None]
            yield ids, real.to(ids.device), [len(q) for q, _ in pairs]

    @torch.no_grad()
    def _greedy(self, ids: Tensor) -> list[tuple[list[int], np.ndarray]]:
        """Per row the answer's ids, and per position (the end's with them) log-probability, entropy and margin."""
        model, steps = self.subject.model, min(LONGEST, self.block - ids.shape[1])
        chosen, numbers = [], []
        made = model(input_ids=ids, use_cache=True)
        ended = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
        for step in range(steps):
            logs = made.logits[:, -1].double().log_softmax(-1)
            two = logs.topk(2).values
            choice = logs.argmax(-1)
            chosen.append(choice)
            numbers.append(torch.stack([two[:, 0], -(logs.exp() * logs).sum(-1), two[:, 0] - two[:, 1]], 1))
            ended |= choice == self._mask
            if bool(ended.all()) or step + 1 == steps:
                break
            made = model(input_ids=choice[:, None], past_key_values=made.past_key_values, use_cache=True)
        rows, values = torch.stack(chosen, 1).tolist(), torch.stack(numbers, 1).cpu().numpy()
        ends = [row.index(self._mask) if self._mask in row else len(row) for row in rows]
        return [(row[:end], value[: end + 1]) for row, value, end in zip(rows, values, ends, strict=True)]

    def _text(self, ids: Sequence[int]) -> str:
        tokens = self.subject.tokenizer.convert_ids_to_tokens(list(ids))
        return "".join(token if len(token) == 1 else STRANGE for token in tokens)

    def _tensor(self, rows: Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor(rows, device=next(self.subject.model.parameters()).device)

    @property
    def _mask(self) -> int:
        return int(self.subject.tokenizer.mask_token_id)
