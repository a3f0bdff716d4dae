"""Align the same sentence pairs without a neural network, for comparison: IBM Model 1, and eflomal where it is installed.

python tools/aligners.py FOLDER --longest 15 --out results/alignment/aligners
eflomal is a development tool (pip install 'trisect[aligners]'); without it, IBM Model 1 stands alone.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trisect.core.files import replace_file, write_json
from trisect.experiments.align.run import LENGTHS
from trisect.measure.alignment import aer, as_links, diagonal
from trisect.text.bitext import SentencePair, open_bitext, write_links

ROUNDS = 5
BEYOND = 10**6  # words; no sentence has so many
Links = list[frozenset[tuple[int, int]]]
Words = Sequence[Sequence[str]]


def ibm1(source: Words, target: Words, rounds: int = ROUNDS) -> Links:
    """Links (source, target) of every pair by IBM Model 1 with an empty word: each target word's most probable source word.

    Source: Brown et al. 1993, The Mathematics of Statistical Machine Translation, section 4.1. The empty word means no link.
    """
    ids: list[dict[str, int]] = [{"": 0}, {}]
    numbers = [
        [[known.setdefault(w, len(known)) for w in words] for words in side]
        for known, side in zip(ids, (source, target), strict=True)
    ]
    parts = [
        (np.repeat([0, *s], len(t)), np.tile(t, len(s) + 1), np.tile(np.arange(len(t)), len(s) + 1))
        for s, t in zip(*numbers, strict=True)
    ]
    sizes = [len(t) for t in numbers[1]]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    given, said = (np.concatenate([p[k] for p in parts]) for k in (0, 1))
    place = np.concatenate([p[2] + start for p, start in zip(parts, starts[:-1], strict=True)])
    _, kind = np.unique(given * len(ids[1]) + said, return_inverse=True)
    source_of = np.zeros(kind.max() + 1, dtype=np.int64)
    source_of[kind] = given
    table = np.ones(len(source_of))
    for _ in range(rounds):
        share = table[kind] / np.bincount(place, table[kind])[place]
        counts = np.bincount(kind, share)
        table = counts / np.bincount(source_of, counts)[source_of]
    found, at = [], 0
    for s, t in zip(*numbers, strict=True):
        block = table[kind[at : at + (len(s) + 1) * len(t)]].reshape(len(s) + 1, len(t))
        at += block.size
        found.append(as_links(block.argmax(0) - 1))
    return found


def eflomal(source: Words, target: Words) -> tuple[Links, Links]:
    """Links of every pair by eflomal's default model, in both directions, each (source, target)."""
    from eflomal import Aligner  # pyright: ignore[reportMissingImports]

    with tempfile.TemporaryDirectory() as scratch:
        names = [Path(scratch) / name for name in ("forward", "reverse")]
        lines = [[" ".join(words) + "\n" for words in side] for side in (source, target)]
        Aligner().align(*lines, links_filename_fwd=str(names[0]), links_filename_rev=str(names[1]), quiet=True)
        return _read(names[0]), _read(names[1])


def _read(path: Path) -> Links:
    rows = path.read_text(encoding="utf-8").splitlines()
    return [frozenset((int(a), int(b)) for a, b in (link.split("-") for link in row.split())) for row in rows]


def grow(forward: frozenset[tuple[int, int]], reverse: frozenset[tuple[int, int]]) -> frozenset[tuple[int, int]]:
    """grow-diag-final-and: what both have, then neighbours of it that one has, then links of two words that have none.

    Source: Koehn et al. 2005, Edinburgh System Description for the 2005 IWSLT Speech Translation Evaluation.
    """
    found, either = set(forward & reverse), sorted(forward | reverse)
    near = [(a, b) for a in (-1, 0, 1) for b in (-1, 0, 1) if (a, b) != (0, 0)]
    grown = True
    while grown:
        grown = False
        for s, t in sorted(found):
            for a, b in near:
                one = (s + a, t + b)
                free = all(one[0] != x for x, _ in found) or all(one[1] != y for _, y in found)
                if one in either and one not in found and free:
                    found.add(one)
                    grown = True
    for some in (forward, reverse):
        for s, t in sorted(some):
            if all(s != x for x, _ in found) and all(t != y for _, y in found):
                found.add((s, t))
    return frozenset(found)


def aligned(source: Words, target: Words, test: int) -> dict[str, Links]:
    """Links of the first `test` pairs by every way that there is."""
    turned = [frozenset((s, t) for t, s in links) for links in ibm1(target, source)]
    found = {"IBM Model 1": (ibm1(source, target), turned)}
    if importlib.util.find_spec("eflomal") is not None:
        found["eflomal"] = eflomal(source, target)
    ways: dict[str, Callable[[Any, Any], Any]] = {
        "source to target": lambda f, r: f,
        "target to source": lambda f, r: r,
        "intersection": lambda f, r: f & r,
        "grow-diag-final-and": grow,
    }
    rows: dict[str, Links] = {
        "diagonal": [as_links(diagonal((len(s), len(t)))) for s, t in zip(source[:test], target[:test], strict=True)]
    }
    for name, (forward, reverse) in found.items():
        for way, of in ways.items():
            both = zip(forward[:test], reverse[:test], strict=True)
            rows[f"{name}, {way}"] = [of(f, r) for f, r in both]
    return rows


def buckets(test: Sequence[SentencePair]) -> dict[str, list[int]]:
    """The places of all test pairs, and of those of each length by the longer side, as a page of alignments has them."""
    found = {"all": list(range(len(test)))}
    for low, high in zip((0, *LENGTHS), (*LENGTHS, BEYOND), strict=True):
        name = f"up to {high}" if not low else f"{low + 1} to {high}" if high < BEYOND else f"{low + 1} and more"
        if some := [i for i, pair in enumerate(test) if low < pair.longest <= high]:
            found[name] = some
    return found


def rates(links: Links, test: Sequence[SentencePair]) -> dict[str, float]:
    """Error rates on all pairs, and by their length."""
    return {
        name: aer([links[i] for i in some], [test[i].sure for i in some], [test[i].possible for i in some])
        for name, some in buckets(test).items()
    }


def table(found: dict[str, dict[str, float]], counts: dict[str, int]) -> str:
    """Error rates in % as a Markdown table."""
    columns = list(next(iter(found.values())))
    lines = [["AER, %", *columns], ["---"] * (len(columns) + 1)]
    lines += [["pairs", *(str(counts[c]) for c in columns)]]
    lines += [[name, *(f"{100 * row[c]:.1f}" for c in columns)] for name, row in found.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def main(words: Sequence[str]) -> None:
    """Read, align, score, write OUT/aligners.json and .md and the links of the test pairs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bitext", type=Path, help="a folder with train and test sentences and gold links")
    parser.add_argument("--longest", type=int, default=BEYOND, help="words of either side of a train pair, at most")
    parser.add_argument("--out", type=Path, default=Path("aligners"))
    given = parser.parse_args(words)
    bitext = open_bitext(given.bitext)
    test, train = bitext.test, bitext.training_pairs(given.longest)
    print(f"{len(test)} test pairs and {len(train)} different train pairs of at most {given.longest} words a side")
    every = (*test, *train)
    links = aligned([pair.source for pair in every], [pair.target for pair in every], len(test))
    found = {name: rates(some, test) for name, some in links.items()}
    counts = {name: len(some) for name, some in buckets(test).items()}
    said = table(found, counts)
    print(said)
    body = {"longest": given.longest, "train_pairs": len(train), "pairs": counts, "aer": found}
    write_json(given.out / "aligners.json", body)
    replace_file(given.out / "aligners.md", lambda scratch: scratch.write_text(said, encoding="utf-8"))
    for name, some in links.items():
        file = given.out / "links" / f"{name.replace(', ', '-').replace(' ', '-').lower()}.pharaoh"
        write_links(file, [(one, ()) for one in some], 0)


if __name__ == "__main__":
    main(sys.argv[1:])
