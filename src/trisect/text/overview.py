"""What a corpus holds, in numbers: its splits, and every class of its label columns."""

from __future__ import annotations

from collections.abc import Mapping

from typing_extensions import TypedDict

from trisect.text import arrays
from trisect.text.corpus import Corpus


class SplitSize(TypedDict):
    """One split in numbers; `unknown` are tokens whose type train lacks."""

    split: str
    tokens: int
    types: int
    unknown: int
    columns: int
    rows: int


class CorpusFacts(TypedDict):
    """What a corpus holds, JSON-ready: its splits, and a row for each split, label column and class (null: no label)."""

    name: str
    fingerprint: str
    types: int
    splits: list[SplitSize]
    labels: list[dict[str, str | int | None]]
    notes: list[str]


def describe(corpus: Corpus, columns: Mapping[str, int] | None = None) -> CorpusFacts:
    """What `trisect corpus show` prints, JSON-ready.

    `splits`: one row a split with tokens, types, unknown (tokens whose type train lacks), columns and rows (20 columns
    for train and 10 for the others, unless given); `labels`: one row for each split, column and class with its
    count, most frequent in train first, and a row of class null for tokens without label.
    """
    columns = {"train": 20, "valid": 10, "test": 10} | dict(columns or {})
    seen = {name: arrays.counts(split.tokens, len(corpus.vocabulary)) for name, split in corpus.splits.items()}
    splits: list[SplitSize] = []
    labels: list[dict[str, str | int | None]] = []
    for name, split in corpus.splits.items():
        n = len(split.tokens)
        splits.append(
            {
                "split": name,
                "tokens": n,
                "types": int((seen[name] > 0).sum()),
                "unknown": int(seen[name][seen["train"] == 0].sum()),
                "columns": columns[name],
                "rows": n // columns[name],
            }
        )
        for column, classes in corpus.labels.items():
            train = arrays.counts(corpus.splits["train"].labels[column], len(classes))
            here = arrays.counts(split.labels[column], len(classes))
            order = sorted(range(len(classes)), key=lambda i: (-train[i], classes[i]))
            rows = [(classes[i], int(here[i])) for i in order] + [(None, n - int(here.sum()))]
            labels += [{"split": name, "label": column, "class": c, "count": k} for c, k in rows]
    return {
        "name": corpus.name,
        "fingerprint": corpus.fingerprint,
        "types": len(corpus.vocabulary),
        "splits": splits,
        "labels": labels,
        "notes": list(corpus.notes),
    }
