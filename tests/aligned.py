"""Alignments without a model: counts with planted error rates, links of made-up pairs, and what a page is made from."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import polars as pl

from trisect.core.finding import About
from trisect.core.tables import frame
from trisect.experiments.align.run import (
    AlignmentCounts,
    Column,
    ModelLinks,
    alignment_rows,
    choose_layers,
    choose_picture,
    judge_alignment,
)
from trisect.experiments.align.settings import AlignFacts
from trisect.measure.alignment import KINDS
from trisect.papers.norms import SETTINGS
from trisect.stats.bootstrap import CrossedBootstrap
from trisect.text.bitext import SentencePair

COLUMNS = tuple(
    Column(setting, kind, layer, head) for layer, setting, kind, head in product((1, 2), SETTINGS, KINDS, (None, 1))
)


def planted(
    weight: tuple[float, float], norm: tuple[float, float], models: int = 1, pairs: int = 40, seed: int = 0
) -> AlignmentCounts:
    """Counts of sentence pairs with these numbers of right links out of ten, by layer; heads as their layers."""
    draw = np.random.default_rng(seed)
    counts = []
    for _ in range(models):
        right = np.array([(weight if c.kind == "weight" else norm)[c.layer - 1] for c in COLUMNS])
        hits = draw.binomial(10, right, size=(pairs, len(COLUMNS))).astype(float)
        ten = np.full_like(hits, 10.0)
        counts.append(np.stack([hits, hits, ten, ten], -1))
    chosen = tuple(choose_layers(one, COLUMNS) for one in counts)
    lengths = np.array([5, 12, 18, 25, 40] * (pairs // 5))
    diagonal = np.tile([3.0, 3.0, 10.0, 10.0], (pairs, 1))
    names = tuple(f"seed-{i + 1}" for i in range(models))
    return AlignmentCounts(names, COLUMNS, tuple(counts), chosen, lengths, diagonal)


def pictured(numbers: Sequence[int], gold: bool = True) -> tuple[ModelLinks, list[SentencePair]]:
    """Pairs of five words where norms have so many right links, and weights two."""
    columns = tuple(Column(s, k, layer, None) for layer in (1, 2, 3) for s in SETTINGS for k in KINDS)
    words = tuple("abcde")
    sure = frozenset((i, i) for i in range(5))
    pairs = [SentencePair(words, words, sure, sure) if gold else SentencePair(words, words) for _ in numbers]
    best = {
        n: np.array([np.where(np.arange(5) < (right if c.kind == "norm" else 2), np.arange(5), -1) for c in columns])
        for n, right in enumerate(numbers)
    }
    return ModelLinks("m", columns, best), pairs


def tables(scored: AlignmentCounts, draws: int = 300) -> dict[str, pl.DataFrame]:
    """The tables measures and claims of planted counts."""
    redrawn = CrossedBootstrap(0, draws)
    return {
        "measures": frame("measures", alignment_rows(scored, redrawn)),
        "claims": judge_alignment(scored, {"models": "planted"}),
    }


def about(scored: AlignmentCounts, corpus: str = "made-up pairs") -> About[AlignFacts]:
    """What stands in align.json beside such tables."""
    linked, pairs = pictured([3, 5, 0, 2, 4])
    chosen = {"AWI by weight": 2, "AWI by norm": 1, "AWO by weight": 2, "AWO by norm": 1}
    facts = AlignFacts(
        scored.name,
        dict.fromkeys(scored.models, "0123456789abcdef"),
        "Layers 1, 2 with 1 head.",
        corpus,
        "0123456789abcdef",
        37,
        True,
        len(scored.lengths),
        0,
        300,
        dict.fromkeys(scored.models, chosen),
        choose_picture(linked, pairs, range(5), None),
    )
    command = "trisect align MODEL --source test.en --target test.fr --gold test.talp"
    notes = ("test.talp counts words from 1: line 1 has an index as large as the sentence (2-2).",)
    return About("align", command, 12.0, notes, {"trisect": "0.1.0"}, "0123456789abcdef", facts)
