"""Sentence pairs of words as batches of an encoder–decoder, with the word that each subword piece belongs to."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from jaxtyping import Int
from torch import Tensor

from trisect.core.errors import ModelError
from trisect.core.subject import Batch
from trisect.core.trace import Side
from trisect.hf.batches import IGNORED
from trisect.hf.files.model_errors import not_tokenized, saying
from trisect.hf.load import Pretrained

SPECIAL, PADDING = -1, -2  # in the place of a word
MARK = "▁"  # before the first piece of a word, in the vocabularies of slow tokenizers
WordTuple: TypeAlias = tuple[str, ...]


class Crossed(NamedTuple):
    """A batch of sentence pairs, and the word (from 0) that every piece is of: −1 special, −2 padding.

    `given` is of what the decoder reads at a position, `asked` of what it is to say there; `pairs` numbers the rows.
    """

    batch: Batch
    source: Int[Tensor, "B S"]
    given: Int[Tensor, "B T"]
    asked: Int[Tensor, "B T"]
    pairs: tuple[int, ...]


class SentencePieces(NamedTuple):
    """A sentence as the tokenizer has it: its ids, and the word of each, −1 for special ones."""

    ids: list[int]
    words: list[int]


def check_crossing(
    subject: Pretrained, why: str = "Word alignments are read from attention between a source and a target."
) -> None:
    """Raise ModelError, naming the model, where it is no encoder–decoder or has no tokenizer; `why` says what it is asked for."""
    if "cross" not in subject.shape.stacks:
        known = f"{subject.shape.words()} {why}"
        raise ModelError(f"{subject.name} has no cross-attention.", known, "Choose an encoder–decoder model.")
    if subject.tokenizer is None:
        known = "Sentences are cut into pieces by the model's own."
        raise ModelError(f"{subject.name} came without a tokenizer.", known, "Give a folder that holds one.")


def cross_batches(
    subject: Pretrained, pairs: Sequence[tuple[WordTuple, WordTuple]], size: int = 16
) -> tuple[list[Crossed], tuple[int, ...]]:
    """Batches of at most `size` pairs of about the same length, and the numbers of pairs too long for the model.

    The decoder reads the target itself, shifted as the model's own training shifts it. Raises ModelError where
    there is no cross-attention, or where a piece cannot be assigned to one word.
    """
    check_crossing(subject)
    made = {i: (cut(subject, pair[0], False), cut(subject, pair[1], True)) for i, pair in enumerate(pairs)}
    window = subject.desk.window
    fitting = [i for i, both in made.items() if max(len(p.ids) for p in both) <= window]
    fitting.sort(key=lambda i: (len(made[i][0].ids) + len(made[i][1].ids), i))
    parts = (fitting[start : start + size] for start in range(0, len(fitting), size))
    batches = [_batch(subject, some, [made[i] for i in some]) for some in parts]
    return batches, tuple(i for i in made if i not in set(fitting))


def cut(subject: Pretrained, words: WordTuple, target: bool) -> SentencePieces:
    """A sentence of words as pieces; a target ends in a special piece, so that every word is read by the decoder once."""
    tokenizer, text = subject.tokenizer, " ".join(words)
    options: dict[str, Any] = {"add_special_tokens": True, "return_special_tokens_mask": True, "verbose": False}
    options |= {"text_target" if target else "text": text} | (
        {"return_offsets_mapping": True} if tokenizer.is_fast else {}
    )
    with saying(not_tokenized(subject.name, text)):
        made = tokenizer(**options)
    if tokenizer.is_fast:
        found = _by_offsets(text, words, made["offset_mapping"], made["special_tokens_mask"])
    else:
        found = _by_marks(tokenizer, words, list(made["input_ids"]), made["special_tokens_mask"], target)
    ids = [int(i) for i in made["input_ids"]]
    if found is None:
        known = "A piece that is of no word, or of several, has no place in a word alignment."
        todo = "Use a tokenizer that keeps words apart at white space."
        given = f"The pieces that {subject.name} cuts {text[:60]!r} into are not of single words."
        raise ModelError(given, known, todo)
    if target and (not found or found[-1] != SPECIAL):
        end = getattr(tokenizer, "eos_token_id", None)
        ids, found = [*ids, subject.desk.start if end is None else int(end)], [*found, SPECIAL]
    return SentencePieces(ids, found)


def _by_offsets(text: str, words: WordTuple, offsets: Sequence[Any], special: Sequence[int]) -> list[int] | None:
    """The word that each piece's first character other than a space is of; null where a piece goes beyond its word."""
    ends = list(itertools.accumulate((len(word) for word in words), lambda end, size: end + 1 + size))
    found: list[int] = []
    for (start, end), added in zip(offsets, special, strict=True):
        if added:
            found.append(SPECIAL)
            continue
        while start < len(text) and text[start] == " ":
            start += 1
        word = next((i for i, e in enumerate(ends) if start < e), None)
        if word is None or end > ends[word] + 1:
            return None
        found.append(word)
    return found


def _by_marks(
    tokenizer: Any, words: WordTuple, ids: list[int], special: Sequence[int], target: bool
) -> list[int] | None:
    """The word of each piece, from words cut one by one, else from where pieces say that a word begins; else null.

    A word may begin several times, at a no-break space, or never, where it is nothing to the tokenizer.
    """
    inner = [i for i, added in zip(ids, special, strict=True) if not added]
    numbers, alone, begun = list[int](), list[int](), list[int]()
    for number, word in enumerate(words):
        named = {"text_target": word} if target else {"text": word}
        pieces = tokenizer(**named, add_special_tokens=False)["input_ids"]
        alone += pieces
        numbers += [number] * len(pieces)
        begun += [number for piece in tokenizer.convert_ids_to_tokens(pieces) if str(piece).startswith(MARK)]
    if alone != inner:
        # pieces of equal score may be chosen otherwise in a sentence; its marks then say where words begin
        begins = [str(piece).startswith(MARK) for piece in tokenizer.convert_ids_to_tokens(inner)]
        if sum(begins) != len(begun) or not begins[0]:
            return None
        numbers = [begun[sum(begins[: i + 1]) - 1] for i in range(len(begins))]
    left = iter(numbers)
    return [SPECIAL if added else next(left) for added in special]


def _batch(
    subject: Pretrained, numbers: Sequence[int], rows: Sequence[tuple[SentencePieces, SentencePieces]]
) -> Crossed:
    desk = subject.desk
    filler = getattr(desk.tokenizer, "pad_token_id", None)
    ids, words = _pad([source for source, _ in rows], 0 if filler is None else int(filler))
    labels, asked = _pad([target for _, target in rows], IGNORED)
    shown = _shift(subject, labels, 0 if filler is None else int(filler))
    given = torch.cat([torch.full_like(asked[:, :1], SPECIAL), asked[:, :-1]], 1)
    given = torch.where(asked == PADDING, PADDING, given)
    real, aim = words != PADDING, asked != PADDING
    inputs = {"input_ids": ids, "attention_mask": real.long(), "decoder_input_ids": shown, "labels": labels}
    kept = {name: t.to(desk.device) for name, t in inputs.items() if name in desk.accepts or name == "labels"}
    read = [[desk.tokenizer.convert_ids_to_tokens(row) for row in side.tolist()] for side in (ids, shown)]
    source, target = (tuple(tuple(str(token) for token in row) for row in rows) for rows in read)
    sides = Side(source, real, words < 0, ids), Side(target, aim, given < 0, shown)
    return Crossed(Batch(kept, *sides, tuple((i, 0) for i in numbers)), words, given, asked, tuple(numbers))


def _pad(rows: Sequence[SentencePieces], filler: int) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B T"]]:
    longest = max(len(row.ids) for row in rows)
    ids = torch.full((len(rows), longest), filler)
    words = torch.full((len(rows), longest), PADDING)
    for i, row in enumerate(rows):
        ids[i, : len(row.ids)] = torch.tensor(row.ids)
        words[i, : len(row.words)] = torch.tensor(row.words)
    return ids, words


def _shift(subject: Pretrained, labels: Int[Tensor, "B T"], filler: int) -> Int[Tensor, "B T"]:
    """What the decoder reads so that it is to say `labels`: as the model itself shifts them, where it says how."""
    own = getattr(subject.model, "prepare_decoder_input_ids_from_labels", None)
    if own is not None:
        shown = own(labels=labels.to(subject.desk.device)).cpu()
        if torch.equal(shown[:, 1:][labels[:, 1:] != IGNORED], labels[:, :-1][labels[:, 1:] != IGNORED]):
            return shown
    start = torch.full_like(labels[:, :1], subject.desk.start)
    return torch.cat([start, labels[:, :-1].masked_fill(labels[:, :-1] == IGNORED, filler)], 1)
