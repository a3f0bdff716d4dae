"""Tokenize texts into batches: windows, padding and special tokens, as the model's own tokenizer has them."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from trisect.core.errors import ModelError
from trisect.core.subject import Batch, TextOrPair, check_text
from trisect.core.trace import Side
from trisect.hf.refusal import not_tokenized, saying

LONGEST = 512  # tokens a window where neither model nor tokenizer has a limit
USUAL = 1_024  # tokens a window at most, where none is asked for: weights grow with its square
BOUNDLESS = 1_000_000  # tokenizers without a limit report a very large one
MASKED_SHARE = 0.15
OFFSET = ("roberta", "xlm-roberta", "camembert", "mpnet", "longformer")
IGNORED = -100  # of labels: not predicted


class TokenWindow(NamedTuple):
    """One row of a batch: which text, where in it, its token ids, and which of them the tokenizer added.

    `alike` says that one text was given, so that source and target are the same.
    """

    text: int
    start: int
    ids: list[int]
    special: list[bool]
    target: list[int]
    target_special: list[bool]
    alike: bool


@dataclass(frozen=True, eq=False)
class Desk:
    """What is needed to make texts ready for one model; `limit` is how long it reads, null where nothing says."""

    name: str
    tokenizer: Any
    objective: str
    window: int
    accepts: frozenset[str]
    start: int
    device: torch.device
    limit: int | None = None

    @classmethod
    def of(cls, name: str, model: nn.Module, tokenizer: Any, objective: str, window: int | None) -> Desk:
        """The desk of a model; `window` overrides what model and tokenizer say of their longest input."""
        config = getattr(model, "config", None)
        accepts = taken_by(model)
        start = getattr(config, "decoder_start_token_id", None)
        if start is None:
            start = getattr(config, "bos_token_id", None) or getattr(config, "pad_token_id", None) or 0
        device, limit = next(model.parameters()).device, longest_window(config, tokenizer)
        chosen = choose_window(name, window, limit)
        return cls(name, tokenizer, objective, chosen, accepts, int(start), device, limit)

    def batches(self, texts: Iterable[TextOrPair], size: int, scored: bool) -> Iterator[Batch]:
        """Batches of at most `size` windows, in the order of the texts."""
        if self.tokenizer is None:
            known = "It came without a tokenizer, or takes no text at all."
            raise ModelError(f"A text was given to {self.name}.", known, "Give its own inputs as a dict of tensors.")
        held: list[TokenWindow] = []
        for number, text in enumerate(texts):
            for window in self._windows(number, text):
                held.append(window)
                if len(held) == size:
                    yield self._batch(held, scored)
                    held = []
        if held:
            yield self._batch(held, scored)

    def _windows(self, number: int, text: TextOrPair) -> Iterator[TokenWindow]:
        paired = self.objective == "seq2seq" or "decoder_input_ids" in self.accepts
        source, target = check_text(self.name, number, text, paired)
        pieces, aims = list(self._cut(source)), list(self._cut(target, True)) if paired else []
        if aims and len(aims) != len(pieces):
            given = f"Text {number + 1} is {len(pieces)} windows of source and {len(aims)} of target."
            raise ModelError(
                given, "Each window of a source is read with its own of the target.", "Give shorter texts."
            )
        for i, (start, ids, special) in enumerate(pieces):
            _, aim, aim_special = aims[i] if aims else (0, [], [])
            yield TokenWindow(number, start, ids, special, aim, aim_special, not isinstance(text, tuple))

    def _cut(self, text: str, aim: bool = False) -> Iterator[tuple[int, list[int], list[bool]]]:
        """Windows of a text: where each begins, its ids, and which of them are special; specials stand in every window.

        `aim` says that it is a target: some tokenizers cut those by the rules of another language.
        """
        named = {"text_target": text} if aim else {"text": text}
        with saying(not_tokenized(self.name, text)):
            made = self.tokenizer(**named, add_special_tokens=True, return_special_tokens_mask=True, verbose=False)
        ids, special = list(made["input_ids"]), [bool(m) for m in made["special_tokens_mask"]]
        if len(ids) <= self.window:
            if not ids:
                known = "The tokenizer makes no token of it."
                raise ModelError(f"The text {text[:40]!r} is empty.", known, "Give a text with words that it knows.")
            yield 0, ids, special
            return
        own = [i for i, s in enumerate(special) if not s]
        before, after = ids[: own[0]], ids[own[-1] + 1 :]
        room = self.window - len(before) - len(after)
        if room < 1:
            known = f"The tokenizer adds {len(before) + len(after)} tokens to every text."
            raise ModelError(f"A window of {self.window} tokens.", known, "Use a longer window.")
        inner, flags = ids[own[0] : own[-1] + 1], special[own[0] : own[-1] + 1]
        for start in range(0, len(inner), room):
            piece = inner[start : start + room]
            marks = [True] * len(before) + flags[start : start + room] + [True] * len(after)
            yield start, [*before, *piece, *after], marks

    def _batch(self, rows: list[TokenWindow], scored: bool) -> Batch:
        ids, real = self._pad([row.ids for row in rows])
        special = _flags([row.special for row in rows], ids.shape[1])
        shown = ids
        inputs: dict[str, Tensor] = {}
        if scored and self.objective == "masked":
            ids, labels = self._hide(ids, real & ~special, rows)
            inputs["labels"] = labels
        inputs |= {"input_ids": ids, "attention_mask": real.long()}
        target = None
        if rows[0].target:
            aim, aim_real = self._pad([row.target for row in rows])
            given = torch.cat([torch.full_like(aim[:, :1], self.start), aim[:, :-1]], 1)
            inputs |= {"decoder_input_ids": given, "labels": torch.where(aim_real, aim, IGNORED)}
            flags = _flags([[True, *row.target_special[:-1]] for row in rows], aim.shape[1])
            target = Side(self._pieces(given, aim_real), aim_real, flags, given)
        notes = []
        if rows[0].target and any(row.alike for row in rows):
            notes.append("A single text was given where the model takes two: it is both source and target.")
        if any(row.start for row in rows):
            asked = self.window != USUAL or self.limit is None or self.limit <= USUAL
            more = "" if asked else f" The model reads up to {self.limit:,}: choose a longer window for that."
            notes.append(
                f"Texts longer than {self.window:,} tokens were cut into windows that do not see each other.{more}"
            )
        kept = {name: t.to(self.device) for name, t in inputs.items() if name in self.accepts or name == "labels"}
        source = Side(self._pieces(shown, real), real, special, shown)
        return Batch(kept, source, target, tuple((row.text, row.start) for row in rows), tuple(notes))

    def _pad(self, rows: list[list[int]]) -> tuple[Tensor, Tensor]:
        filler = self.tokenizer.pad_token_id
        longest = max(len(row) for row in rows)
        ids = torch.full((len(rows), longest), 0 if filler is None else int(filler))
        real = torch.zeros(len(rows), longest, dtype=torch.bool)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row)
            real[i, : len(row)] = True
        return ids, real

    def _pieces(self, ids: Tensor, real: Tensor) -> tuple[tuple[str, ...], ...]:
        rows = []
        for own, there in zip(ids.tolist(), real.tolist(), strict=True):
            pieces = self.tokenizer.convert_ids_to_tokens(own)
            rows.append(
                tuple("" if not ok or piece is None else piece for piece, ok in zip(pieces, there, strict=True))
            )
        return tuple(rows)

    def _hide(self, ids: Tensor, may: Tensor, rows: list[TokenWindow]) -> tuple[Tensor, Tensor]:
        """Replace 15 % of each row's own tokens, at least one, by the mask; a function of text and window alone."""
        mask = self.tokenizer.mask_token_id
        if mask is None:
            known = "Its tokenizer has no mask token."
            raise ModelError(
                f"The loss of {self.name} cannot be computed.", known, "Use the tokenizer it was trained with."
            )
        hidden, labels = ids.clone(), torch.full_like(ids, IGNORED)
        for i, row in enumerate(rows):
            draw = torch.Generator().manual_seed(row.text * 1_000_003 + row.start)
            places = may[i].nonzero().flatten()
            count = max(1, round(MASKED_SHARE * len(places)))
            chosen = places[torch.randperm(len(places), generator=draw)[:count]]
            labels[i, chosen] = ids[i, chosen]
            hidden[i, chosen] = mask
        return hidden, labels


def taken_by(model: nn.Module) -> frozenset[str]:
    """The names that a model's forward takes, as far as it says."""
    kinds = inspect.Parameter
    given = inspect.signature(model.forward).parameters.values()
    return frozenset(p.name for p in given if p.kind not in (kinds.VAR_KEYWORD, kinds.VAR_POSITIONAL))


def takes_any(model: nn.Module) -> bool:
    """Whether its forward takes names that it does not list."""
    given = inspect.signature(model.forward).parameters.values()
    return any(p.kind is inspect.Parameter.VAR_KEYWORD for p in given)


def _flags(rows: list[list[bool]], width: int) -> Tensor:
    return torch.tensor([[*row, *[True] * (width - len(row))] for row in rows])


def longest_window(config: Any, tokenizer: Any) -> int | None:
    """The longest input that model and tokenizer both allow; null where neither says."""
    # RoBERTa and its kin count positions from the padding index on, so that two of them are never used
    offset = 2 if getattr(config, "model_type", "") in OFFSET else 0
    limits = [getattr(config, name, None) for name in ("max_position_embeddings", "n_positions", "max_seq_len")]
    limits = [n - offset if isinstance(n, int) else None for n in limits]
    limits.append(getattr(tokenizer, "model_max_length", None))
    return min((int(n) for n in limits if isinstance(n, (int, float)) and 0 < n < BOUNDLESS), default=None)


def choose_window(name: str, window: int | None, limit: int | None) -> int:
    """The window asked for, else the limit, but 1,024 at most; raises ModelError where it does not fit."""
    if window is None:
        return min(limit or LONGEST, USUAL)
    if not isinstance(cast(object, window), int) or window < 1 or (limit is not None and window > limit):
        known = "A window is 1 token or more" + ("." if limit is None else f", and {name} reads at most {limit}.")
        raise ModelError(f"A window of {window} tokens.", known, "Choose another, or leave it out.")
    return window
