"""Word alignment from attention scores of subword tokens, and its alignment error rate (AER) against gold links."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from trisect.core.errors import CorpusError
from trisect.core.trace import Trace
from trisect.measure.norms import to_single_precision, transformed_and_layer_norms

NO_LINK = -1  # in place of a word's index: a special token, or no link
Links: TypeAlias = AbstractSet[tuple[int, int]]
KINDS = ("weight", "norm")


class _Views(NamedTuple):
    """Scores of source and target pieces by weight and by norm; N is the layer itself, then its heads from 1."""

    weight: Float[Tensor, "B N T S"]
    norm: Float[Tensor, "B N T S"]


class _GoldTable(NamedTuple):
    """Gold links of one sentence pair as tables; the last column is of no word, and never a link. P contains S."""

    sure: Bool[np.ndarray, "J I1"]
    possible: Bool[np.ndarray, "J I1"]


def aer(links: Any, sure: Any, possible: Any) -> float:
    """Alignment error rate 1 − (|A∩S| + |A∩P|) / (|A| + |S|), from 0 (no error) to 1.

    A are the `links`, S the `sure` and P the `possible` gold links: each a set of (source, target) pairs of one
    sentence, or each a list of such sets, one a sentence, whose counts are added up first (micro-average). P need not
    hold S. Raises CorpusError for lists of different length, for what is no pair, and where there is neither a link
    nor a sure one. Source: Och & Ney 2000, Improved Statistical Alignment Models.
    """
    parts = links, sure, possible
    is_single = [_is_sentence(part) for part in parts]
    if any(is_single):
        corpora = [[_pairs(part, None)] for part in parts]
    else:
        corpora = [[_pairs(pairs, i) for i, pairs in enumerate(part, 1)] for part in parts]
    sizes = [len(corpus) for corpus in corpora]
    if len(set(sizes)) > 1:
        problem = (
            f"Links of {sizes[0]} sentences, sure links of {sizes[1]} and possible links of {sizes[2]} were given."
        )
        raise CorpusError(problem, "A corpus has one set of each for every sentence.", "Give lists of the same length.")
    counts = np.zeros(4)
    for a, s, p in zip(*corpora, strict=True):
        counts += (len(a & s), len(a & (s | p)), len(a), len(s))
    if not counts[2:].any():
        reason = "The rate divides by the number of links and of sure links together, which is 0 here."
        raise CorpusError("There is no link and no sure link.", reason, "Give gold links, or leave such sentences out.")
    return float(error_rates(counts))


def error_rates(counts: Float[np.ndarray, "... 4"]) -> Float[np.ndarray, "*C"]:
    """Alignment error rates from counts (|A∩S|, |A∩P|, |A|, |S|), added up over sentences; NaN without any link."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(1 - (counts[..., 0] + counts[..., 1]) / (counts[..., 2] + counts[..., 3]))


def precisions(counts: Float[np.ndarray, "... 4"]) -> Float[np.ndarray, "*C"]:
    """The share of links that are possible, |A∩P| / |A|; NaN without links."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(counts[..., 1] / counts[..., 2])


def recalls(counts: Float[np.ndarray, "... 4"]) -> Float[np.ndarray, "*C"]:
    """The share of sure links that were found, |A∩S| / |S|; NaN without sure links."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(counts[..., 0] / counts[..., 3])


def views(trace: Trace) -> _Views:
    """Scores of one cross-attention layer: a, its mean over heads first, and ‖a f(x)‖, that of the layer first.

    The layer's norm is ‖Σ_h a^h_ij f_h(x_j)‖. 0 where query or key is padding. Raises ModelError where the layer's
    output projection is unknown.
    """
    real = trace.query_real[:, None, :, None] & trace.key_real[:, None, None]
    weights = to_single_precision(trace.weights).masked_fill(~real, 0.0)
    transformed, layer = transformed_and_layer_norms(trace)
    norms = weights.to(transformed.dtype) * transformed[:, :, None]
    return _Views(
        torch.cat([weights.mean(1, keepdim=True), weights], 1), torch.cat([layer[:, None].to(norms.dtype), norms], 1)
    )


def word_scores(
    scores: Float[Tensor, "*C T S"], target: Int[Tensor, " T"], source: Int[Tensor, " S"], words: tuple[int, int]
) -> Float[Tensor, "*C J X"]:
    """Scores of words from scores of pieces: the sum over a source word's pieces, the mean over a target word's.

    `target` and `source` are the index (from 0) of each piece's word, −1 for special tokens; `words` the numbers of words of
    source and target. The columns are the source's words, then each of its special tokens. A word without a piece has
    score 0. Source: Kobayashi et al. 2020, section 5, and Zenkel et al. 2019.
    """
    special = source < 0
    columns = torch.where(special, words[0] + special.cumsum(0) - 1, source)
    sums = torch.nn.functional.one_hot(columns, words[0] + int(special.sum())).to(scores.dtype)
    means = torch.nn.functional.one_hot(target + 1, words[1] + 1)[:, 1:].to(scores.dtype)
    return (means / means.sum(0).clamp_min(1)).T @ scores @ sums


def best_links(scores: Float[Tensor, "*C J X"], words: int) -> Int[np.ndarray, "*C J"]:
    """The source word with the highest score for every target word, the first of equals; −1 for no link.

    That is where a special piece has it, such as the end of the sentence, or where no score is above 0.
    """
    place = scores.argmax(-1)
    highest = scores.gather(-1, place[..., None])[..., 0]
    return torch.where((place < words) & (highest > 0), place, NO_LINK).cpu().numpy()


def link_directions(forward: Float[Tensor, "*C J I"], backward: Float[Tensor, "*C I J"]) -> tuple[np.ndarray, ...]:
    """Links of J target words that look at source words, of I source words that look at target words, of target words by both scores
    added, and those of the first two that agree; each is the place of the other side's word, −1 for none. Source: Och & Ney 2003,
    section 4.
    """
    targets, sources = forward.shape[-2:]
    ahead, back = best_links(forward, sources), best_links(backward, targets)
    returned = np.take_along_axis(back, np.maximum(ahead, 0), -1)
    common = np.where((ahead != NO_LINK) & (returned == np.arange(targets)), ahead, NO_LINK)
    return ahead, back, best_links(forward + backward.mT, sources), common


def diagonal(words: tuple[int, int]) -> Int[np.ndarray, " J"]:
    """Link every target word to the source word at the same relative position: a baseline without a model."""
    return ((np.arange(words[1]) + 0.5) * words[0] / words[1]).astype(np.int64)


def gold_tables(sure: Links, possible: Links, words: tuple[int, int]) -> _GoldTable:
    """Gold links (from 0) as tables; raises CorpusError for a link outside the pair."""
    tables = []
    for pairs in (sure, frozenset(sure) | frozenset(possible)):
        table = np.zeros((words[1], words[0] + 1), dtype=bool)
        for source, target in pairs:
            if not (0 <= source < words[0] and 0 <= target < words[1]):
                reason = (
                    f"Counted from 0, the last word of its source is {words[0] - 1}, and of its target {words[1] - 1}."
                )
                raise CorpusError(
                    f"The link {source}-{target} lies outside its pair.", reason, "Correct the gold links."
                )
            table[target, source] = True
        tables.append(table)
    return _GoldTable(*tables)


def count_hits(best: Int[np.ndarray, "*C J"], gold: _GoldTable) -> Float[np.ndarray, "*C 4"]:
    """The counts (|A∩S|, |A∩P|, |A|, |S|) of one sentence pair, as `error_rates` takes them."""
    rows = np.arange(best.shape[-1])
    hits = [table[rows, best].sum(-1) for table in gold]
    linked = (best != NO_LINK).sum(-1)
    return np.stack([*hits, linked, np.full_like(linked, gold.sure.sum())], -1).astype(float)


def as_links(best: Int[np.ndarray, " J"]) -> frozenset[tuple[int, int]]:
    """Links as a set of (source, target) pairs, from 0."""
    return frozenset((int(source), target) for target, source in enumerate(best) if source != NO_LINK)


def _is_sentence(links: Any) -> bool:
    if isinstance(links, AbstractSet):
        return True
    if not isinstance(links, Sequence) or isinstance(links, str):
        reason = "Links are a set of (source, target) pairs, or a list of such sets."
        raise CorpusError(f"{str(links)[:60]!r} was given as links.", reason, "Give one of these.")
    return len(links) > 0 and all(map(_is_pair, links))


def _is_pair(link: Any) -> bool:
    return isinstance(link, tuple) and len(link) == 2 and all(isinstance(i, (int, np.integer)) for i in link)


def _pairs(links: Any, sentence: int | None) -> frozenset[tuple[int, int]]:
    where = "" if sentence is None else f" of sentence {sentence}"
    links = list(links) if isinstance(links, Iterable) and not isinstance(links, str) else [links]
    if wrong := [link for link in links if not _is_pair(link)]:
        reason = "A link is a pair of whole numbers, the source word and the target word."
        raise CorpusError(f"Among the links{where} is {wrong[0]!r}.", reason, "Give for example {(0, 0), (1, 2)}.")
    return frozenset((int(source), int(target)) for source, target in links)
