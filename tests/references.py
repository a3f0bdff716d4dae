# pyright: basic, reportAttributeAccessIssue=false, reportArgumentType=false
"""Reference values for trisect.stats, by SciPy and plain loops that share no code with it: tests/unit/references.json.

python -m tests.references
"""

import json
import math
from pathlib import Path

import numpy as np
from scipy import stats

PLACE = Path(__file__).parent / "unit" / "references.json"


def holm(p: list[float]) -> list[float]:
    """Holm 1979 as R's p.adjust has it, value by value."""
    order = sorted(range(len(p)), key=p.__getitem__)
    steps = [min(1.0, (len(p) - rank) * p[i]) for rank, i in enumerate(order)]
    return [max(steps[: order.index(i) + 1]) for i in range(len(p))]


def pairing_p(table: np.ndarray) -> float:
    """The share of all pairings of rows and columns that agree at least as often as the diagonal."""
    found = stats.permutation_test(
        (np.arange(len(table)),), lambda order: table[np.arange(len(table)), order].sum(), permutation_type="pairings",
        n_resamples=np.inf, alternative="greater", vectorized=False,
    )  # fmt: skip
    return float(found.pvalue)


def spearman_p(x: np.ndarray, y: np.ndarray, side: str) -> float:
    """The exact one-sided p of Spearman's rho over all orders."""
    found = stats.permutation_test(
        (x,), lambda order: stats.spearmanr(order, y).statistic, permutation_type="pairings", n_resamples=np.inf,
        alternative=side, vectorized=False,
    )  # fmt: skip
    return float(found.pvalue)


def main() -> None:
    """Write the values with the inputs that they are of."""
    draw, found = np.random.default_rng(41), {}
    replicates = draw.normal(0.3, 1.0, 400).round(4)
    tails = {
        (n, q): stats.norm.cdf(-math.sqrt(n / (n - 1)) * stats.t.isf(q, n - 1))
        for n in (2, 5, 30)
        for q in (0.025, 0.005)
    }
    ends = {
        key: stats.mstats.mquantiles(replicates, [tail, 1 - tail], alphap=1, betap=1) for key, tail in tails.items()
    }
    found["replicates"] = replicates.tolist()
    found["percentile"] = [[n, 1 - 2 * q, *map(float, of)] for (n, q), of in ends.items()]
    found["expanded"] = [
        [r, 2000, n, float(stats.t.cdf(stats.norm.ppf((1 + r) / 2001) * math.sqrt((n - 1) / n), n - 1))]
        for n in (2, 5, 30) for r in (0, 7, 60, 1000, 1999)
    ]  # fmt: skip
    found["predicted"] = [[v, float(stats.ttest_ind([v], replicates).pvalue)] for v in (0.3, 1.5, -4.0, 9.0)]
    found["predicted of five"] = [[v, float(stats.ttest_ind([v], replicates[:5]).pvalue)] for v in (0.3, 3.0, -4.0)]
    sample = draw.normal(0.4, 1.0, 9).round(4)
    found["sample"] = sample.tolist()
    for level in (0.95, 0.99):
        found[f"t {level}"] = list(map(float, stats.ttest_1samp(sample, 0).confidence_interval(level)))
    for name, bound, side in (
        ("above", 0.1, "greater"),
        ("below", 0.1, "less"),
        ("beyond", -0.5, "greater"),
        ("short", 0.5, "less"),
    ):
        found[f"t {name}"] = float(stats.ttest_1samp(sample, bound, alternative=side).pvalue)
    p = [0.01, 0.04, 0.03, 0.005, 0.03, 0.9]
    found["holm"] = [p, holm(p)]
    table = draw.random((5, 5)).round(3) + 0.2 * np.eye(5)
    found["pairings"] = [table.tolist(), pairing_p(table)]
    x, y = draw.permutation(7).astype(float), draw.normal(size=7).round(3)
    found["spearman"] = [x.tolist(), y.tolist(), spearman_p(x, y, "less"), spearman_p(x, y, "greater")]
    found["wilson"], found["jeffreys"], found["upper"] = [], [], []
    for hits, units in ((0, 8), (3, 8), (8, 8), (41, 100)):
        test = stats.binomtest(hits, units)
        found["wilson"].append([hits, units, *map(float, test.proportion_ci(method="wilson"))])
        found["jeffreys"].append([hits, units, *map(float, stats.beta.interval(0.95, hits + 0.5, units - hits + 0.5))])
        one = stats.binomtest(hits, units, alternative="less").proportion_ci(0.95, "exact")
        found["upper"].append([hits, units, float(one.high)])
    PLACE.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
