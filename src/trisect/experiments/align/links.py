"""Link words: the alignment that every layer and head gives for sentence pairs, by weight and by norm."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int

from trisect.core.errors import ModelError
from trisect.measure.alignment import KINDS, best_links, count_hits, gold_of, views, word_scores
from trisect.papers.norms import SETTINGS

if TYPE_CHECKING:
    from trisect.hf.load import Pretrained
    from trisect.hf.sentence_pairs import Crossed
    from trisect.text.bitext import SentencePair

LinkProgress: TypeAlias = Callable[[int, int], Any]


class Column(NamedTuple):
    """One way to get links: which decoder position a word has, by weight or by norm, and of which layer and head.

    `head` is null for the layer itself.
    """

    setting: str
    kind: str
    layer: int
    head: int | None

    @property
    def group(self) -> str:
        """Setting and kind, as rows of the table `measures` have them."""
        return f"{self.setting} {self.kind}"


class Linked(NamedTuple):
    """The links of one model: for every pair that it read the source word of each target word (−1: none), per column."""

    subject: str
    columns: tuple[Column, ...]
    best: Mapping[int, Int[np.ndarray, "C J"]]


def link(subject: Pretrained, pairs: Sequence[SentencePair], batch: int, step: LinkProgress) -> Linked:
    """Read every pair with the gold target before the decoder; memory grows by a whole number a word and column.

    Raises ModelError where the model has no cross-attention whose norms can be taken.
    """
    from trisect.hf.sentence_pairs import cross_batches

    layers = _layers(subject)
    columns = tuple(
        Column(setting, kind, layer, head)
        for layer, heads in layers.items()
        for setting in SETTINGS
        for kind in KINDS
        for head in (None, *range(1, heads + 1))
    )
    best: dict[int, Int[np.ndarray, "C J"]] = {}
    for crossed in cross_batches(subject, [(pair.source, pair.target) for pair in pairs], batch)[0]:
        best |= _read(subject, crossed, pairs, layers)
        step(len(best), len(pairs))
    return Linked(subject.name, columns, best)


@torch.no_grad()
def _read(
    subject: Pretrained, crossed: Crossed, pairs: Sequence[SentencePair], layers: Mapping[int, int]
) -> dict[int, Int[np.ndarray, "C J"]]:
    """One batch: the links of each of its pairs."""
    found: dict[int, list[Int[np.ndarray, "N J"]]] = {number: [] for number in crossed.pairs}
    for trace in subject.trace(crossed.batch).traces:
        if trace.stack != "cross" or trace.layer not in layers:
            continue
        seen = views(trace)
        for row, number in enumerate(crossed.pairs):
            words = len(pairs[number].source), len(pairs[number].target)
            source = crossed.source[row][trace.key_real[row]]
            queries = int(trace.query_real[row].sum())
            for positions in (crossed.given, crossed.asked):
                target = positions[row, :queries]
                for scores in seen:
                    whole = word_scores(scores[row, :, :queries, : len(source)], target, source, words)
                    found[number].append(best_links(whole, words[0]))
    return {number: np.concatenate(parts).astype(np.int16) for number, parts in found.items()}


def _layers(subject: Pretrained) -> dict[int, int]:
    """Cross-attention layers whose norms can be computed, and their heads."""
    from trisect.hf.sentence_pairs import check_crossing

    check_crossing(subject)
    heads = {
        p.address.layer: len(p.w_o) for p in subject.projections() if p.address.stack == "cross" and p.w_o is not None
    }
    if not heads:
        known = " ".join(subject.notes) or "Its output is not a plain projection of the values."
        raise ModelError(f"No norm can be computed in the cross-attention of {subject.name}.", known, "Choose another.")
    return heads


def left_out(subject: Pretrained) -> tuple[str, ...]:
    """Cross-attention layers that give no links, in words."""
    used = _layers(subject)
    have = [p for p in subject.projections() if p.address.stack == "cross" and p.address.layer not in used]
    said = (
        f"{p.address}: {p.origins['o'].words if 'o' in p.origins else 'no output projection was found'}" for p in have
    )
    return (*subject.notes, *(f"Left out, {words}." for words in said))


def hits(linked: Linked, pairs: Sequence[SentencePair], kept: Sequence[int]) -> Float[np.ndarray, "N C 4"]:
    """Counts against the gold links of the `kept` pairs, as measure.alignment.error_rates takes them."""
    counts = []
    for number in kept:
        pair = pairs[number]
        assert pair.sure is not None
        assert pair.possible is not None
        gold = gold_of(pair.sure, pair.possible, (len(pair.source), len(pair.target)))
        counts.append(count_hits(linked.best[number], gold))
    return np.stack(counts) if counts else np.zeros((0, len(linked.columns), 4))
