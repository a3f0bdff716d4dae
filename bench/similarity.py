"""Similarity of a 12 × 12 model with 20,000 draws of every null, against drawing the random matrices whole.

python bench/similarity.py
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import numpy as np
import torch
from paired import one_core, summary

from trisect.core.trace import Address, Origin, Projections
from trisect.experiments.similarity.run import Nulls, compare_with_nulls, draws_needed, measure_weights
from trisect.measure.similarity import (
    angles,
    product_rank,
    random_forms,
    random_product_ranks,
    random_subspaces,
    span,
    symmetric_share,
    white_cka,
)

LAYERS, HEADS, WIDTH, INNER = 12, 12, 768, 64
DRAWS, ROUNDS = 20_000, 3
WHOLE = 100  # random heads of each round are drawn whole; the cost of a draw is the same for all


def model(seed: int) -> list[Projections]:
    """Random heads with biases, of BERT-base's shape."""
    draw, origin, made = torch.Generator().manual_seed(seed), Origin("rows", "random"), []

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw)

    for n in range(1, LAYERS + 1):
        maps = [normal(HEADS, WIDTH, INNER) for _ in "qkv"]
        shifts = [normal(HEADS, INNER) for _ in "qkv"]
        out = normal(HEADS, INNER, WIDTH)
        origins = dict.fromkeys("qkvo", origin)
        made.append(Projections(Address("plain", n), origins, *maps, out, *shifts, normal(WIDTH)))
    return made


def seconds(work: Callable[[], object]) -> float:
    """CPU seconds of one call."""
    began = time.process_time()
    work()
    return time.process_time() - began


def drawn_whole(seed: int) -> None:
    """Random matrices as they are, and everything that is measured of two of them."""
    draw = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(WHOLE, WIDTH, INNER, generator=draw, dtype=torch.float64) for _ in "qk")
    angles(span(q), span(k))
    for measure in (white_cka, symmetric_share, product_rank):
        measure(q, k)


def drawn_small(seed: int) -> None:
    """The same numbers through small matrices."""
    draw = np.random.default_rng(seed)
    random_subspaces(draw, WIDTH, INNER, INNER, DRAWS)
    random_forms(draw, WIDTH, INNER, INNER, DRAWS)
    random_product_ranks(draw, WIDTH, INNER, DRAWS)


@one_core()
def rows() -> list[dict[str, object]]:
    """One row for the nulls of a shape in one thread, one for the whole of a 12 × 12 model."""
    pairs = [
        (seconds(lambda s=s: drawn_whole(s)) * DRAWS / WHOLE, seconds(lambda s=s: drawn_small(s)))
        for s in range(ROUNDS)
    ]
    found = summary(pairs)
    nulls = {
        "what": f"nulls of one shape: {DRAWS:,} pairs of random {WIDTH} × {INNER} matrices",
        "plain": f"{found.plain:.0f} s",
        "ours": f"{found.ours:.1f} s",
        "ratio": found.ratio,
        "low": found.low,
        "high": found.high,
        "notes": [
            f"Plain: Gaussian matrices drawn whole, {WHOLE} a round, times {DRAWS // WHOLE}. Both: overlap, least angle, CKA, symmetric "
            "share, effective rank of the product. The two have the same distribution (tests/property/test_null_laws.py)."
        ],
    }
    made = model(0)

    def everything() -> None:
        compare_with_nulls(measure_weights(made), Nulls(DRAWS, 0, LAYERS * HEADS), lambda done: None)

    whole = seconds(everything)
    model_row = {
        "what": f"similarity of a {LAYERS} × {HEADS} model, width {WIDTH}: every measure, null, z, p and Holm",
        "plain": "–",
        "ours": f"{whole:.1f} s",
        "ratio": None,
        "notes": [
            f"In one thread, with biases, {DRAWS:,} draws of every null at least and {draws_needed(LAYERS * HEADS):,} of those "
            "that verdicts rest on. Less than a minute was asked for."
        ],
    }
    return [nulls, model_row]


if __name__ == "__main__":
    print(json.dumps(rows(), indent=2, ensure_ascii=False))
