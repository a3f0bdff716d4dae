"""What it costs that every read looks at the laws of attention in its own batch: reads with and without, in turn.

python bench/checking.py
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import torch
from paired import paired
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel

from trisect.hf.load import Pretrained, load
from trisect.lm.matmul import one_thread

ROUNDS = 7
SIZES = {"8 texts of 128 tokens": (8, 128), "1 text of 512 tokens": (1, 512), "1 text of 16 tokens": (1, 16)}


def without(one: Pretrained) -> Pretrained:
    """The same model, read without a look at its laws."""
    found = tuple(replace(f, laws=None) for f in one.proof.found)
    return replace(one, proof=replace(one.proof, found=found))


def rows() -> list[dict[str, object]]:
    """A row per model and size: reads without the look (plain) and with it."""
    models = {"BERT-base": BertModel(BertConfig()), "GPT-2 small": GPT2LMHeadModel(GPT2Config())}
    found: list[dict[str, object]] = []
    with one_thread():
        for name, model in models.items():
            looked = load(model)
            blind = without(looked)
            for size, shape in SIZES.items():
                ids = {"input_ids": torch.randint(10, 20_000, shape)}
                took = paired(partial(blind.read, ids), partial(looked.read, ids), ROUNDS)
                found.append(
                    {
                        "what": f"a read of {name}, all layers, {size}: without a look at the laws (plain), and with it",
                        "plain": f"{took.plain * 1000:.0f} ms",
                        "ours": f"{took.ours * 1000:.0f} ms",
                        "ratio": took.ratio,
                        "low": took.low,
                        "high": took.high,
                        "notes": [f"{100 / took.ratio - 100:.1f} % more CPU time in the median round; the aim is 10 %"],
                    }
                )
    return found


if __name__ == "__main__":
    print(json.dumps(rows(), indent=1))
