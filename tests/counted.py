"""What became of every type of transformers, as rows of docs/types.csv, and the table of their counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

# what a refusal, or the errors of a type that is not built, say; and why that is so, the first that fits
REASONS = {
    "refused": {
        "makes no softmax": "no softmax of queries and keys at all",
        "within windows": "attention within windows of sequences",
        "without a softmax of one product": "attention that is no softmax of queries and keys",
        "in two ways": "the same inputs are answered in two ways",
        "": "another reason",
    },
    "not built": {
        "ImportError": "a package is missing",
        "cannot be tried out": "built, but no example of inputs passes",
        "MemoryError": "more than 13 million numbers are left",
        "": "sizes that were set down do not fit one another, or a setting has no default",
    },
}


LAST = {
    "wrong": "wrong without a word",
    "ended in an error": "built, and ended in an error of the reader or of its process",
    "too slow": "too slow",
}


class Row(NamedTuple):
    """A type, what became of it, and why."""

    type: str
    outcome: str
    why: str


def row(kind: str, how: str, said: str) -> Row:
    """The row of one type; only a failure has a reason."""
    first = said.split(" | ")
    only = [w for w in first if "MemoryError" not in w] or first  # ways that were too large may have fitted otherwise
    text = " | ".join(only) if how == "not built" else said
    why = next((why for words, why in REASONS.get(how, {}).items() if words in text), "")
    return Row(kind, how, why)


def share(rows: Iterable[Row]) -> tuple[int, int]:
    """How many types are read, of how many that run and attend."""
    rows = list(rows)
    read = sum(r.outcome == "read" for r in rows)
    refused = sum(r.outcome == "refused" and r.why != REASONS["refused"]["makes no softmax"] for r in rows)
    return read, read + refused + sum(r.outcome in ("wrong", "ended in an error") for r in rows)


def table(rows: Iterable[Row]) -> list[str]:
    """The counts as lines of a table."""
    rows = list(rows)
    counts: Mapping[tuple[str, str], int] = Counter((r.outcome, r.why) for r in rows)
    lines = [f"| of {len(rows)} types | |", "| --- | --- |"]
    lines.append(f"| read as they compute | {counts['read', '']} |")
    for how in ("refused", "not built"):
        lines += [f"| {how}: {why} | {counts[how, why]} |" for why in REASONS[how].values() if counts[how, why]]
    return lines + [f"| {said} | {counts[how, '']} |" for how, said in LAST.items()]
