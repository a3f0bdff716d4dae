"""A text to learn from, and questions put behind windows of it whose answers stand in the window: pairs to patch between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int

from trisect.core.errors import CorpusError
from trisect.core.files import digest
from trisect.text.pairs import TextPair
from trisect.text.sources import open_texts

START = "▁"  # in front of a word's first piece
FIRST = 4  # positions of a window that nothing is asked about
ANSWERED = ("base", "q", "k", "v", "k+v", "donor")  # what is from the donor, where an answer is known
WINDOWS = 30  # windows for each pair that is asked for
TRIES = 4000  # draws of two windows for each pair that is asked for


@dataclass(frozen=True)
class TrainingText:
    """Lines to learn from and lines to ask about, with a fingerprint of both."""

    name: str
    train: tuple[str, ...]
    valid: tuple[str, ...]
    notes: tuple[str, ...] = ()
    fingerprint: str = ""


def open_training_text(where: str | Path, reader: str | None = None) -> TrainingText:
    """The train and valid lines of a corpus, words apart as it was published; raises CorpusError where a split is missing or empty."""
    parts = {split: open_texts(where, split, reader, published=True) for split in ("train", "valid")}
    lines = {
        split: tuple(words for text in of.texts() if isinstance(text, str) and (words := " ".join(text.split())))
        for split, of in parts.items()
    }
    name = parts["train"].name.rpartition(", ")[0]
    for split, split_lines in lines.items():
        if not split_lines:
            raise CorpusError(f"{name} has no {split} text.", "It is what a model learns from.", "Use another corpus.")
    mark = digest("\n\n".join("\n".join(split_lines) for split_lines in lines.values()), 8)
    return TrainingText(name, lines["train"], lines["valid"], tuple(parts["train"].notes), mark)


def repeat_rows(
    ids: Int[np.ndarray, " N"],
    rows: int,
    length: int,
    draw: np.random.Generator,
    share: float,
    shortest: int,
    longest: int,
) -> Int[np.ndarray, "R T"]:
    """Windows of a text of that length, of which the first `share` repeat a segment of `shortest` to `longest` ids to the end.

    Raises CorpusError for a text that is shorter than a window.
    """
    if len(ids) < length:
        facts = f"A window has {length:,} pieces."
        raise CorpusError(f"The train text has {len(ids):,} pieces.", facts, "Give a longer text, or --set block=N.")
    starts = draw.integers(0, len(ids) - length + 1, size=rows)
    windows = ids[starts[:, None] + np.arange(length)]
    count = round(share * rows)
    periods = draw.integers(shortest, longest + 1, size=count)
    windows[:count] = np.take_along_axis(windows[:count], np.arange(length) % periods[:, None], 1)
    return windows


def draw_lookups(
    ids: Int[np.ndarray, " N"], pieces: Sequence[str], length: int, count: int, seed: int
) -> tuple[TextPair, ...]:
    """So many pairs of windows of `length` pieces that each end in a question: a word that stood in the window once; its answer is
    the word that followed it there.

    `ids` are the text, `pieces` the spelling of each id. Base and donor are other passages that share the two words that they ask
    about, at other places. With q, k or v from the donor the answer is: the base's word after the donor's question (q), the
    base's word where the donor has the base's question (k), the donor's word where the base has it (v); these, the base's and the
    donor's own and that of k+v all differ. Raises CorpusError where the text has too few such windows.
    """
    # whether a piece begins a word, one more for the end of the text; and how many before each place are unknown
    begins = np.append(np.array([piece.startswith(START) for piece in pieces])[ids], True)
    unknown = np.array([not piece.lstrip(START) or piece == "<unk>" for piece in pieces])
    before = np.concatenate([[0], np.cumsum(unknown[ids])])
    windows = np.arange(len(ids) - length - 1)
    fits = begins[windows] & begins[windows + length] & (before[windows + length] == before[windows])
    draw, pairs = np.random.default_rng([seed, 42]), list[TextPair]()
    starts = draw.permutation(windows[fits])[: WINDOWS * count]
    words_of = dict[int, dict[int, int]]()
    for _ in range(TRIES * count if len(starts) > 1 else 0):
        base, donor = (int(start) for start in draw.choice(starts, 2))
        if abs(base - donor) < 2 * length:
            continue
        for start in (base, donor):
            if start not in words_of:
                words_of[start] = _single_words(ids[start : start + length + 1], begins[start : start + length + 2])
        shared = sorted(words_of[base].keys() & words_of[donor].keys())
        questions = [
            (shared[int(i)], shared[int(k)])
            for i in draw.permutation(len(shared))
            for k in draw.permutation(len(shared))
        ]
        places = words_of[base], words_of[donor]
        candidates = (
            _pair_of(ids, begins, pieces, (base, donor), both, places, length)
            for both in questions
            if both[0] != both[1]
        )
        if (pair := next((candidate for candidate in candidates if candidate is not None), None)) is not None:
            pairs.append(TextPair(*pair, place=f"pair {len(pairs) + 1} of lookup", kind="lookup"))
        if len(pairs) == count:
            return tuple(pairs)
    known_words = (
        f"{len(starts):,} windows of {length} pieces hold whole words alone, and {len(pairs)} pairs were found in them."
    )
    raise CorpusError(
        f"The text has too few windows for {count} questions.", known_words, "Give a longer text, or shorter windows."
    )


def _single_words(window: Int[np.ndarray, " T"], begins: Bool[np.ndarray, " U"]) -> dict[int, int]:
    """The words of one piece that stand in a window once and are followed by another such word, with their places."""
    values, places, counts = np.unique(window[:-1], return_index=True, return_counts=True)
    is_word = begins[:-1] & begins[1:]
    return {
        int(value): int(place)
        for value, place, many in zip(values, places, counts, strict=True)
        if many == 1 and FIRST <= place < len(window) - 2 and is_word[place] and is_word[place + 1]
    }


def _pair_of(
    ids: Int[np.ndarray, " N"],
    begins: Bool[np.ndarray, " N+1"],
    pieces: Sequence[str],
    starts: tuple[int, int],
    questions: tuple[int, int],
    places: tuple[Mapping[int, int], Mapping[int, int]],
    length: int,
) -> tuple[str, str, Mapping[str, str]] | None:
    """Both texts and every answer; None where answers are the same, or no words of one piece."""
    answers = dict[str, int]()
    for name in ANSWERED:
        parts = {"base": "", "donor": "q+k+v"}.get(name, name)
        q, k, v = (int(part in parts) for part in "qkv")
        at = starts[v] + places[k][questions[q]] + 1
        answers[name] = int(ids[at]) if begins[at] and begins[at + 1] else -1
    if -1 in answers.values() or len(set(answers.values())) < len(answers):
        return None
    base, donor = (
        "".join(pieces[i] for i in (*ids[start : start + length], question)).replace(START, " ").strip()
        for start, question in zip(starts, questions, strict=True)
    )
    return base, donor, {name: pieces[i].replace(START, " ") for name, i in answers.items()}
