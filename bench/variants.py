"""Models of a grammar of attention variants, half of them wrong by construction: how many are read, refused, or read wrong.

PYTHONPATH=. OMP_NUM_THREADS=1 python bench/variants.py [--count 200] [--seed 0] [--show refused]
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence

from tests import judged, variants


def tabulate(models: Sequence[variants.Variant], found: Sequence[tuple[str, str]]) -> str:
    """The counts of outcomes, of right models and of wrong ones, as a table in Markdown."""
    columns = ("read", "in part", "refused", "wrong")
    lines = [f"| models | drawn | {' | '.join(columns)} |", "| --- " * (2 + len(columns)) + "|"]
    for words, is_wrong in (("right", False), ("wrong by construction", True)):
        counts = Counter(how for model, (how, _) in zip(models, found, strict=True) if bool(model.wrong) == is_wrong)
        lines.append(f"| {words} | {sum(counts.values())} | {' | '.join(str(counts[n]) for n in columns)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", action="append", default=["wrong"], help="outcomes whose models are printed")
    given = parser.parse_args()
    models = variants.draw_models(given.count, given.seed)
    with judged.quiet():
        found = [variants.judge(model) for model in models]
    for model, (how, why) in zip(models, found, strict=True):
        if how in given.show:
            rules = {n: rule for n, rule in model.rules.items() if rule != variants.GRAMMAR[n][0]}
            print(f"{how}: {model.wrong or 'right'} (layer {model.where + 1}; {rules}): {why}")
    print(tabulate(models, found))
