"""Similarity of a model: why three matrices — every head's maps against random ones, and its scores on texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import torch
from jaxtyping import Float

from trisect.claims.heads import Against, ResampledHeads, judge_heads
from trisect.core.errors import CorpusError, ModelError
from trisect.core.finding import About
from trisect.core.subject import Batch, Texts
from trisect.core.tables import NewRow, frame
from trisect.core.trace import Address, Trace
from trisect.experiments.similarity.rows import (
    PAIRS,
    MapMeasure,
    Marks,
    Nulls,
    compare_with_nulls,
    draws_needed,
    matrix_marks,
    measure_weights,
    why_counted_once,
    why_left_out,
)
from trisect.experiments.similarity.settings import SimilarityFacts, SimilaritySettings
from trisect.lab.experiment import Bench, Measured
from trisect.measure.scores import SUMS, PartMoments, score_row
from trisect.papers import matrices
from trisect.stats.bootstrap import drawn_means, drawn_ratios, percentile_interval
from trisect.stats.ratios import ratios
from trisect.stats.tested import ALPHA, number

CORPUS = "corpus"


@dataclass
class LayerReading:
    """What was read of one attention layer over texts: moments of q, k and v, and per text the sums and counts of its scores.

    `group` query heads share a key/value head.
    """

    group: int
    moments: PartMoments = field(default_factory=PartMoments)
    texts: dict[int, Float[np.ndarray, "7 H"]] = field(default_factory=dict)
    pairs: dict[int, int] = field(default_factory=dict)


class OnTexts(NamedTuple):
    """What the scores of one layer are like over all texts: a value per head and measure, and the same in R draws of texts."""

    values: Float[np.ndarray, "4 H"]
    draws: Float[np.ndarray, "R 4 H"]
    texts: int


SCORES = ("score_unequal_share", "score_correlation", "self_first_share", "self_ahead_share")


def measure(settings: SimilaritySettings, bench: Bench) -> Measured[SimilarityFacts]:
    """Compare W_Q, W_K and W_V of every head with each other and with random matrices.

    With texts also what needs them: linear CKA of q, k and v as the model used them, and whether a score is a similarity
    (s_ij against s_ji, a word's score with itself against others), with intervals over texts. `draws` is how many random
    matrices of each shape are compared at least. Raises ModelError, CorpusError.
    """
    subject, texts, seed = bench.subject, bench.given_texts, settings.seed
    every, known = subject.projections(), subject.shape.heads  # copied layer by layer, whenever it is gone through
    found = measure_weights(p for p in every if p.address in known)
    marks = {p.address: matrix_marks(p) for p in every if p.address in known}
    left_out = why_left_out(p for p in every if p.address in known)
    notes = dict.fromkeys((*subject.notes, *left_out, *why_counted_once(marks)))
    if not found:
        known = " ".join(notes) or "It has no attention layer."
        raise ModelError(f"{subject.name} has no head whose matrices can be compared.", known, "Choose another model.")
    nulls = Nulls(settings.draws, seed, _heads(found))
    with bench.progress("matrices") as step:
        rows = compare_with_nulls(found, nulls, lambda done: step(done, len(found)))
    read: dict[Address, LayerReading] = {}
    if texts is not None:
        notes |= dict.fromkeys(texts.notes)
        with bench.progress("texts") as step:
            read = _read(bench, texts, settings.batch, notes, step)
    scored = {address: _on_texts(r, seed) for address, r in read.items() if r.texts}
    rows += [row for address, r in read.items() for row in _cka_rows(address, r)]
    rows += [row for address, s in scored.items() for row in _score_rows(address, s)]
    measures = frame("measures", [row | {"subject": subject.name} for row in rows])
    evidence = {**_excess(found, nulls), **_over_heads(found, scored, marks, seed)}

    def judge(about: About[SimilarityFacts]) -> pl.DataFrame:
        names = ("subject", "fingerprint", "corpus", "corpus_fingerprint", "texts", "seed", "draws")
        return judge_heads(matrices.SOURCE, evidence, {name: getattr(about.facts, name) for name in names})

    return Measured({"measures": measures}, _facts(settings, bench, read, nulls), tuple(notes), judge, "head")


def _heads(found: Sequence[MapMeasure]) -> int:
    """How many heads the component or pair with most of them has over all layers."""
    counts: Counter[tuple[str, str]] = Counter()
    for m in found:
        counts[m.component, m.measure] += len(m.values) if m.group is None else 0
    return max(counts.values(), default=0)


def _read(
    bench: Bench, texts: Texts, batch: int, notes: dict[str, None], step: Callable[[int, int], object]
) -> dict[Address, LayerReading]:
    """Read every text once; memory grows by a few numbers a text and head."""
    read, subject = dict[Address, LayerReading](), bench.subject
    count = sum(1 for _ in texts.texts())
    if not count:
        raise CorpusError(f"The texts {texts.name!r} are none.", "At least one is needed.", "Give texts to read.")
    with torch.no_grad():
        for one in subject.batches(texts.texts(), batch):
            notes |= dict.fromkeys(one.notes)
            subject.each(one, partial(_add, read, one))
            step(_last(one) + 1, count)
    return read


def _add(read: dict[Address, LayerReading], batch: Batch, trace: Trace) -> None:
    """One layer of one batch into its sums."""
    mine = read.setdefault(trace.address, LayerReading(trace.group))
    mine.moments.add(trace)
    for row, (text, _) in enumerate(batch.rows):
        if (score := score_row(trace, row)) is not None:
            counts = np.full((1, trace.heads), float(score.queries))
            sums = np.concatenate([score.sums.cpu().numpy(), counts])
            mine.texts[text] = mine.texts[text] + sums if text in mine.texts else sums
            mine.pairs[text] = mine.pairs.get(text, 0) + score.pairs


def _last(batch: Batch) -> int:
    return batch.rows[-1][0] if batch.rows else 0


def _on_texts(read: LayerReading, seed: int) -> OnTexts:
    """Sums over texts into shares and a correlation, for the texts as they are and for draws of them."""
    sums = np.stack([read.texts[text] for text in sorted(read.texts)])
    pairs = np.array([read.pairs[text] for text in sorted(read.texts)], dtype=float)
    queries, flat = sums[:, -1, 0], sums[:, :-1].reshape(len(sums), -1)
    shape = (len(SUMS), sums.shape[2])
    values = _statistics(ratios(flat, pairs).reshape(1, *shape), ratios(flat, queries).reshape(1, *shape))[0]
    # one seed for both, so that a draw is the same texts whatever is counted
    drawn = [drawn_ratios(flat, counts, seed).reshape(-1, *shape) for counts in (pairs, queries)]
    return OnTexts(values, _statistics(*drawn), len(sums))


def _statistics(
    per_pair: Float[np.ndarray, "R 6 H"], per_query: Float[np.ndarray, "R 6 H"]
) -> Float[np.ndarray, "R 4 H"]:
    """The four of SCORES; the correlation is that of s_ij and s_ji over pairs, 1 for a symmetric score."""
    unequal, product, square, total = (per_pair[:, i] for i in range(4))
    spread = square - total**2
    correlation = np.divide(product - total**2, spread, out=np.full_like(spread, np.nan), where=spread > 0)
    return np.stack([unequal, correlation, per_query[:, 4], per_query[:, 5]], 1)


def _cka_rows(address: Address, read: LayerReading) -> list[NewRow]:
    rows = []
    for one, other in PAIRS:
        found = read.moments.cka(one, other)
        values = [] if found is None else found[:: read.group if one == "k" else 1].tolist()
        for head, value in enumerate(values, start=1):
            named = {"stack": address.stack, "layer": address.layer, "head": head, "component": f"{one}-{other}"}
            rows.append(named | {"measure": "cka", "group": CORPUS, "value": number(value), "n": read.moments.count})
    return rows


def _score_rows(address: Address, scored: OnTexts) -> list[NewRow]:
    rows = []
    named = {"stack": address.stack, "layer": address.layer, "component": "q-k", "group": CORPUS, "n": scored.texts}
    for i, measure in enumerate(SCORES):
        ends = percentile_interval(scored.draws[:, i], scored.texts)
        for head, found in enumerate(zip(scored.values[i], ends.low, ends.high, strict=True), start=1):
            said = dict(zip(("value", "low", "high"), map(number, found), strict=True))
            rows.append(named | {"head": head, "measure": measure} | said)
    return rows


def _excess(found: Sequence[MapMeasure], nulls: Nulls) -> dict[str, Against]:
    """For each pair every head's overlap less the mean of its null, and what the null says of the claim's margin.

    Heads whose null has no spread, because two spans of their size fill the model, are left out.
    """
    family, evidence = matrices.SOURCE.family, {}
    for one, other in PAIRS:
        mine = [m for m in found if m.measure == "overlap" and m.group is None and m.component == f"{one}-{other}"]
        columns = [_against(v, nulls, key, family) for m in mine for v, key in zip(m.values, m.keys, strict=True)]
        kept = np.array([c for c in columns if c is not None]).reshape(-1, 7).T
        if mine:
            evidence[f"overlap_excess_{one}-{other}"] = Against(kept[0], kept[1], kept[2], kept[3:])
    return evidence


def _against(value: float, nulls: Nulls, key: Any, family: int) -> list[float] | None:
    null = None if key is None else nulls.get(key, "overlap")
    if null is None or not null.spread > 0:
        return None
    beyond = np.array([value - matrices.MARGIN])
    ends = [float(end) for alpha in (ALPHA, ALPHA / family) for end in null.excess_interval(value, alpha)]
    return [value - null.mean, float(null.below(beyond)[0]), float(null.above(beyond)[0]), *ends]


def _over_heads(
    found: Sequence[MapMeasure], scored: Mapping[Address, OnTexts], marks: Mapping[Address, Marks], seed: int
) -> dict[str, ResampledHeads]:
    """Means over heads with heads resampled; where texts are behind them, heads and texts.

    A head whose queries and keys several layers make by the same matrices is one, with the mean over these layers.
    """
    draw, evidence = np.random.default_rng([seed, 1]), {}
    shares = [m.values[np.isfinite(m.values)] for m in found if m.measure == "symmetric_share" and m.group is None]
    if shares and (whole := np.concatenate(shares)).size:
        evidence["symmetric_share"] = ResampledHeads(float(whole.mean()), drawn_means(whole, draw), len(whole))
    for pair in ("-".join(pair) for pair in PAIRS):
        mine = [m.values for m in found if (m.measure, m.component) == ("overlap_among", pair)]
        if mine and (less := np.concatenate(mine)).size > 1 and np.isfinite(less).all():
            evidence[f"overlap_among_{pair}"] = ResampledHeads(float(less.mean()), drawn_means(less, draw), less.size)
    if scored:
        heads_of: dict[object, list[OnTexts]] = {}
        for address, layer in scored.items():
            maps = [marks.get(address, {}).get(name) for name in "qk"]
            heads_of.setdefault(address if None in maps else tuple(maps), []).append(layer)
        first = np.concatenate([np.mean([s.draws[:, 2] for s in layers], 0) for layers in heads_of.values()], 1)
        heads, fewest = first.shape[1], min(s.texts for s in scored.values())
        values = [np.mean([s.values[2] for s in layers], 0) for layers in heads_of.values()]
        mean = float(np.concatenate(values).mean())
        unit = "head" if heads <= fewest else "text"
        evidence["self_first_share"] = ResampledHeads(
            mean, drawn_means(first, draw, len(first)), min(heads, fewest), unit
        )
    return evidence


def _facts(
    settings: SimilaritySettings, bench: Bench, read: Mapping[Address, LayerReading], nulls: Nulls
) -> SimilarityFacts:
    texts = bench.given_texts
    return SimilarityFacts(
        bench.subject.name,
        bench.subject.fingerprint,
        None if texts is None else texts.name,
        None if texts is None else texts.fingerprint,
        None if texts is None else max((len(r.texts) for r in read.values()), default=0),
        max((r.moments.count for r in read.values()), default=None),
        settings.draws,
        max(nulls.draws, draws_needed(nulls.heads)),
        settings.seed,
    )
