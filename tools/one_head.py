"""The numbers of docs/one-head.md: python tools/one_head.py MODEL; its pictures are of tools/gallery.py."""

from __future__ import annotations

import sys

import trisect
from trisect.measure import norms

TEXT = "The nurse gave the boy his coat, because he was cold."
LAYER, HEAD, QUERY = 3, 8, "he"


def numbers(subject: object) -> list[str]:
    """Per token: the length of its transformed vector, and what QUERY takes from it by weight and by norm."""
    reading = subject.read(TEXT)  # pyright: ignore[reportAttributeAccessIssue]
    trace = next(t for t in reading.traces if t.layer == LAYER)
    tokens, special = reading.source.tokens[0], reading.source.special[0]
    weights, sized = trace.weights[0, HEAD - 1], norms.head_norms(trace)[0, HEAD - 1]
    lengths, row = norms.transformed_norms(trace)[0, HEAD - 1], tokens.index(QUERY)
    said = [f"{'token':<10}{'|f(x)|':>8}{'weight':>9}{'norm':>8}"]
    said += [
        f"{token:<10}{float(lengths[j]):8.2f}{float(weights[row, j]):9.3f}{float(sized[row, j]):8.3f}"
        for j, token in enumerate(tokens)
    ]
    for name, view in (("weight", weights), ("norm", sized)):
        said.append(f"share of special tokens by {name}: {float(view[:, special].sum() / view.sum()):.3f}")
    score = float(trace.scale * trace.q[0, HEAD - 1, row] @ trace.keys[0, HEAD - 1, 1])
    said.append(f"score of {QUERY!r} with the first {tokens[1]!r}: {score:.2f}")
    return said


if __name__ == "__main__":
    print("\n".join(numbers(trisect.load(sys.argv[1]))))
