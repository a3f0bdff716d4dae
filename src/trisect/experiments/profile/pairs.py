"""Read words of sentence pairs: what cross-attention takes in at target words (queries) and at source words (keys and values)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from trisect.core.errors import CorpusError, ModelError, SpecError
from trisect.core.subject import Subject
from trisect.core.trace import Trace
from trisect.experiments.profile.reading import (
    RARE,
    RUN,
    UNFOUND,
    LayerCollector,
    LayerInputs,
    ReadSide,
    SidePlaces,
    WordsRead,
    classes_of,
    is_plain,
    refuse_side,
    taken_in,
)
from trisect.experiments.profile.settings import ProfileSettings
from trisect.text.pair_classes import PairLabeller, PairTexts
from trisect.text.word_classes import unread

if TYPE_CHECKING:
    from trisect.hf.load import Pretrained
    from trisect.hf.sentence_pairs import Crossed
    from trisect.text.bitext import SentencePair

WHY = "A profile of cross-attention is of sentence pairs, which a source and a target side read."
TOGETHER = 64  # batches whose pieces are in memory at once
SIDES = (("target", ("q",)), ("source", ("k", "v")))
WHOSE = (
    "Queries are of words of the target, where the decoder reads their last piece; keys and values of words of the source, at their "
    "first piece in the encoder's output."
)
GAINS = (
    "Since q is of other words than k and v, q is compared with them by gains over random maps, each of what the component itself reads; "
    "k and v are of the same words."
)


def crossing(subject: Subject) -> Pretrained:
    """The model, if it reads a source and a target; raises ModelError for one of another kind, by name."""
    from trisect.hf.load import Pretrained
    from trisect.hf.sentence_pairs import check_crossing

    if not isinstance(subject, Pretrained):
        known = f"{subject.shape.words()} {WHY}"
        raise ModelError(f"{subject.name} has no cross-attention.", known, "Choose an encoder–decoder model.")
    check_crossing(subject, WHY)
    return subject


def read_pairs(
    subject: Subject,
    texts: PairTexts,
    label: PairLabeller,
    settings: ProfileSettings,
    advance: Callable[[int, int], object],
) -> WordsRead:
    """Read pairs until their longer side has `words` words; memory holds the labels and a few batches' pieces.

    The decoder reads the target itself. A word of the target is read at its last piece, which alone has seen all of it, one of
    the source at its first. Raises CorpusError where too few words are read, ModelError where no layer can be.
    """
    model = crossing(subject)
    pairs, collector = _wanted(texts, settings.limit, settings.words), LayerCollector.of(subject)
    names: list[dict[str, list[str | None]]] = [{name: [] for name in label.labels} for _ in SIDES]
    numbers: list[list[int]] = [[] for _ in SIDES]
    same: dict[str | None, str | None] = {}  # one string for all words of a class
    long = read = 0
    with torch.no_grad():
        for start, crossed, left in _batches(model, pairs, settings.batch):
            long += left
            if crossed is None:
                continue
            met = _words(crossed, [pairs[start + n] for n in crossed.pairs])
            read += len(crossed.pairs)
            if not all(met):  # a batch in which one side has no word that is read
                continue
            collector.read(subject, crossed.batch, *_asked(model, crossed, met))
            for row, number in enumerate(crossed.pairs):
                given = label(pairs[start + number])[::-1]  # target, source
                for side, own in enumerate(met):
                    for word in (w for r, w, _ in own if r == row):
                        numbers[side].append(start + number)
                        for name, kept in names[side].items():
                            kept.append(same.setdefault(given[side][name][word], given[side][name][word]))
            advance(min(max(map(len, numbers)), settings.words), settings.words)
    collector.check(subject)
    sides = tuple(
        ReadSide(components, classes_of(of), _groups(own, len(pairs), settings.folds), name)
        for (name, components), of, own in zip(SIDES, names, numbers, strict=True)
    )
    for side in sides:
        refuse_side(f"{texts.name} ({side.name})", side)
    lost = f"{long:,} of {len(pairs):,} sentence pairs have more pieces than the model reads, and are left out."
    notes = (*texts.notes, *subject.notes, *([lost] if long else []), WHOSE, GAINS, f"{RARE[0].upper()}{RARE[1:]}")
    notes += tuple(_carried(sides))
    return WordsRead(collector.layers, sides, read, (*notes, *collector.notes()))


def _carried(sides: Sequence[ReadSide]) -> Iterator[str]:
    """How many words carry a label that not all of them do."""
    for labels in zip(*(side.labels for side in sides), strict=True):
        counts = [int((label.y >= 0).sum()) for label in labels]
        if any(count < len(label.y) for count, label in zip(counts, labels, strict=True)):
            each = (f"{count:,} of the {side.name}" for count, side in zip(counts, sides, strict=True))
            yield f"Words that carry '{labels[0].name}': {', '.join(each)}."


def _wanted(texts: PairTexts, limit: int | None, words: int) -> tuple[SentencePair, ...]:
    """The first `limit` pairs, until their longer side has so many words."""
    found, counts = list["SentencePair"](), [0, 0]
    for pair in texts.pairs[:limit]:
        if max(counts) >= words:
            break
        found.append(pair)
        counts = [count + len(side) for count, side in zip(counts, pair.sides, strict=True)]
    return tuple(found)


def _batches(model: Pretrained, pairs: Sequence[SentencePair], size: int) -> Iterator[tuple[int, Crossed | None, int]]:
    """Batches, each with the number of the pair that its own count from; then how many pairs were too long, with no batch."""
    from trisect.hf.sentence_pairs import cross_batches

    for start in range(0, len(pairs), size * TOGETHER):
        batches, long = cross_batches(model, [pair.sides for pair in pairs[start : start + size * TOGETHER]], size)
        yield from ((start, crossed, 0) for crossed in batches)
        yield start, None, len(long)


_Met = list[tuple[int, int, int]]  # row, word, position


def _words(crossed: Crossed, pairs: Sequence[SentencePair]) -> tuple[_Met, _Met]:
    """Where each word of the target, and each of the source, is read; row by row."""
    target: _Met = []
    source: _Met = []
    for row, pair in enumerate(pairs):
        last = {word: at for at, word in enumerate(crossed.given[row].tolist()) if word >= 0}
        first = {word: -at for at, word in enumerate(reversed(crossed.source[row].tolist()), 1) if word >= 0}
        length = crossed.source.shape[1]
        target += [(row, w, at) for w, at in sorted(last.items()) if not unread(pair.target[w])]
        source += [(row, w, length + at) for w, at in sorted(first.items()) if not unread(pair.source[w])]
    return target, source


def _asked(
    model: Pretrained, crossed: Crossed, met: tuple[_Met, _Met]
) -> tuple[list[SidePlaces], Callable[[Trace], LayerInputs]]:
    """Where words stand in a batch, and what gives the inputs of a layer there: of q the decoder's, of k and v the encoder's output."""
    sides = [
        SidePlaces(components, torch.tensor([at[0] for at in own]), torch.tensor([at[2] for at in own]))
        for (_, components), own in zip(SIDES, met, strict=True)
    ]
    output: Float[Tensor, "B S D"] | None = getattr(
        model.predict(crossed.batch.inputs), "encoder_last_hidden_state", None
    )

    def inputs(trace: Trace) -> LayerInputs:
        if trace.stack != "cross":
            return ""
        asks = taken_in(trace)
        if asks is None or output is None or asks.shape[:2] != trace.query_real.shape:
            return UNFOUND
        answers = output.float().to(trace.q.device)
        if answers.shape[:2] != trace.key_real.shape or not any(is_plain(trace, c, answers) for c in ("k", "v")):
            return "neither its keys nor its values are a plain map of the encoder's output"
        return asks, answers

    return sides, inputs


def _groups(numbers: Sequence[int], pairs: int, folds: int) -> Int[np.ndarray, " N"]:
    """Runs of pairs that follow one another, shorter ones where there are few; the same pairs on both sides."""
    return np.array(numbers, dtype=np.int64) // max(1, min(RUN, pairs // (2 * folds)))


def check_pairs(settings: ProfileSettings) -> None:
    """Raise SpecError for what has no meaning with cross-attention."""
    refused = {
        "--causal": (settings.causal, "The causal twin erases labels of the words of one text."),
        "--reader": (settings.reader, "A bitext is two files of sentences, which no reader is chosen for."),
    }
    for name, (value, known) in refused.items():
        if value is not None:
            given = f"{name} {value} was given with --attention cross."
            raise SpecError(given, known, "Leave it out.")


def no_bitext(error: CorpusError) -> CorpusError:
    """The error where a bitext was given to be read as one text."""
    known = "It is a bitext, sentences of two languages, and self-attention is read over one text."
    return CorpusError(error.given, known, "Say --attention cross to profile cross-attention, or give another corpus.")
