"""Compare components by paired differences: which is largest, which are alike within a margin, and how many units would decide."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from trisect.core.finding import MOST_UNITS, Comparison, PairedDifference
from trisect.stats.paired import Sample, summary, t_interval, t_test
from trisect.stats.tested import ALPHA, holm, number, two_sided


def compare(values: Mapping[str, Sequence[float]] | Mapping[str, Float[np.ndarray, " N"]], margin: float) -> Comparison:
    """Compare components over units that all of them were measured on (same seed, text or head), by paired differences.

    Each pair's difference is a Student t test against 0, Holm over the pairs, and two one-sided tests against ±`margin`
    (in the values' own unit) for being alike. Units where a component has no finite number are left out.
    """
    names = list(values)
    table = np.stack([np.asarray(values[name], dtype=float) for name in names])
    table = table[:, np.isfinite(table).all(0)]
    n = table.shape[1]
    if n == 0:
        return Comparison("uncertain", tuple(names), (), 0, margin)
    order = np.argsort(-table.mean(1), kind="stable")
    names, table = [names[i] for i in order], table[order]
    couples = list(itertools.combinations(range(len(names)), 2))
    samples = [summary(table[a] - table[b]) for a, b in couples]
    p_holm = holm([float(two_sided(t_test(sample, "above", 0.0))) for sample in samples])
    pairs = []
    for (a, b), sample, p in zip(couples, samples, p_holm, strict=True):
        low, high = (number(end) for end in t_interval(sample))
        mean, alike = float(sample.mean), float(t_test(sample, "within", margin).p_for) < ALPHA
        same = not bool(sample.testable) and int(sample.n) > 1 and abs(mean) <= margin
        above = bool(p < ALPHA) and not alike and mean > 0
        pairs.append(PairedDifference(names[a], names[b], mean, low, high, float(p), alike or same, above))
    if all(pair.alike for pair in pairs):
        kind = "alike"
    elif all(pair.above for pair in pairs if pair.first == names[0]):
        kind = "most"
    else:
        kind = "above" if any(pair.above for pair in pairs) else "uncertain"
    needed = None
    if kind == "uncertain" and all(bool(sample.testable) for sample in samples):
        # the fewest units, more than there are, with which some pair would be distinguished or all would be alike
        counts = np.arange(max(2, n + 1), MOST_UNITS + 1, dtype=float)
        distinct, alike = np.zeros(len(counts), bool), np.ones(len(counts), bool)
        for sample in samples:
            ahead = Sample(counts, np.full_like(counts, sample.mean), np.full_like(counts, sample.spread))
            same = t_test(ahead, "within", np.asarray(margin)).p_for < ALPHA
            distinct |= (len(pairs) * two_sided(t_test(ahead, "above", 0.0)) < ALPHA) & ~same
            alike &= same
        enough = np.flatnonzero(distinct | alike)
        needed = int(counts[enough[0]]) if len(enough) else None
    return Comparison(kind, tuple(names), tuple(pairs), n, margin, needed)
