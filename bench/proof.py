"""How long the proof of a BERT-base-size model takes, beside one of its own forward passes.

python bench/proof.py [THREADS]; medians of five.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch
from transformers import BertConfig, BertForMaskedLM, BertModel, GPT2Config, GPT2LMHeadModel

from trisect.hf.verify.examples import example_inputs
from trisect.hf.verify.proof import prove


def seconds(work: Callable[[], object], times: int = 5) -> float:
    """Median wall time."""
    found = []
    for _ in range(times + 1):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return statistics.median(found[1:])


def rows(threads: int = 2) -> list[dict[str, object]]:
    """A row per model: seconds of a proof, beside a forward pass over the same inputs."""
    torch.set_num_threads(threads)
    models = {
        "BERT-base": BertModel(BertConfig()),
        "BERT-base with its MLM head": BertForMaskedLM(BertConfig()),
        "GPT-2 small": GPT2LMHeadModel(GPT2Config()),
    }
    found: list[dict[str, object]] = []
    for name, model in models.items():
        model.eval()
        inputs = example_inputs(name, model)
        verdicts = {row["verdict"] for row in prove(name, model).rows()}
        with torch.no_grad():
            passed = seconds(lambda model=model, inputs=inputs: model(**inputs))
        proof = seconds(lambda name=name, model=model: prove(name, model))
        found.append(
            {
                "what": f"the proof of {name}, random weights, {threads} threads, wall time",
                "plain": "",
                "ours": f"{proof:.2f} s",
                "notes": [
                    f"one forward pass over the same inputs: {passed:.3f} s",
                    f"verdicts: {', '.join(sorted(verdicts))}",
                ],
            }
        )
    return found


if __name__ == "__main__":
    for row in rows(int(sys.argv[1]) if len(sys.argv) > 1 else 2):
        print(row)
