"""Small inputs that once were misread, each with the right value: prints the item, what is expected and what is got.

python tools/cases.py FOLDER     a folder with mwt, textcomment, nospaceafter, ids, underscore, nbsp, u3000, simalign, gemma4_shared_kv
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

import trisect
from trisect.core.errors import TrisectError
from trisect.text.bitext import read_pairs
from trisect.text.sources import open_labels


def _texts(folder: Path) -> str:
    return " | ".join(text.text for text in open_labels(folder, "test").texts())


def _words(folder: Path, name: str) -> str:
    """The numbers of words of each pair's sides, and of its sure links."""
    pairs = read_pairs(folder / f"{name}.src", folder / f"{name}.tgt", folder / f"{name}.gold").pairs
    return " | ".join(f"{len(pair.source)}-{len(pair.target)}, {len(pair.sure)} links" for pair in pairs)


def _albert() -> str:
    """Heads that claim D-1 counts in six layers that share one set of matrices with four heads."""
    import transformers

    torch.manual_seed(0)
    sizes = {"embedding_size": 8, "hidden_size": 16, "num_hidden_layers": 6, "num_attention_heads": 4}
    config = transformers.AlbertConfig(vocab_size=50, intermediate_size=16, **sizes)
    with tempfile.TemporaryDirectory() as out:
        model = trisect.load(transformers.AlbertModel(config), quiet=True)
        rows = trisect.similarity(model, out=Path(out) / "albert", quiet=True).tables["claims"].to_dicts()
        return f"{next(row['n'] for row in rows if row['claim'] == 'D-1')} heads"


def _shared_keys(folder: Path) -> str:
    """What is said of layers that share keys and values."""
    return " ".join(note for note in trisect.load(str(folder), quiet=True).notes if "share" in note)


def _cases(folder: Path) -> list[tuple[str, str, Callable[[], str]]]:
    comment, plain = "It works!", "Stop , said Anna. | I'm. | 他喜欢音乐。 | Stop , said"
    return [
        ("mwt", "Wir gehen zum Arzt.", lambda: _texts(folder / "mwt")),
        ("textcomment", f"{comment} | {comment}", lambda: _texts(folder / "textcomment")),
        ("nospaceafter", plain, lambda: _texts(folder / "nospaceafter")),
        ("ids", "refused, line 3", lambda: _texts(folder / "ids")),
        ("underscore", "refused: every word is '_'", lambda: _texts(folder / "underscore")),
        ("nbsp", "5-5, 5 links", lambda: _words(folder / "nbsp", "nbsp")),
        ("u3000", "5-5, 5 links", lambda: _words(folder / "u3000", "s")),
        ("u3000, silent", "5-5, 3 links | 2-2, 2 links", lambda: _words(folder / "u3000", "silent")),
        ("simalign", "3-4, 3 links | 2-2, 2 links", lambda: _words(folder / "simalign", "s")),
        ("albert", "4 heads", _albert),
        (
            "gemma4_shared_kv",
            "Layers 1, 3 share one k and v. Layers 2, 4 share one k and v.",
            lambda: _shared_keys(folder / "gemma4_shared_kv"),
        ),
    ]


def main() -> None:
    """Print a line of JSON for each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    for item, expected, run in _cases(parser.parse_args().folder):
        try:
            got = run()
        except TrisectError as error:
            got = f"refused: {error.problem}"
        print(json.dumps({"item": item, "expected": expected, "got": got}, ensure_ascii=False))


if __name__ == "__main__":
    main()
