"""Models of a grammar of attention variants, half of them wrong by construction: how many are read, refused, or read wrong.

PYTHONPATH=. OMP_NUM_THREADS=1 python bench/variants.py [--count 200] [--seed 0] [--show refused]
"""

import argparse
from collections import Counter

from tests import judged, variants

COLUMNS = ("read", "in part", "refused", "wrong")

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", action="append", default=["wrong"], help="outcomes whose models are printed")
    options, counts = parser.parse_args(), Counter[tuple[bool, str]]()
    for model in variants.draw_models(options.count, options.seed):
        with judged.quiet():
            how, why = variants.judge(model)
        counts[bool(model.wrong), how] += 1
        if how in options.show:
            print(f"{how}: {model.wrong or 'right'} (layer {model.where + 1}; {model.rules}): {why}")
    print(f"| models | {' | '.join(COLUMNS)} |\n{'| --- ' * (1 + len(COLUMNS))}|")
    for words, is_wrong in (("right", False), ("wrong by construction", True)):
        print(f"| {words} | {' | '.join(str(counts[is_wrong, how]) for how in COLUMNS)} |")
