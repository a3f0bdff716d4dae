"""One training step of the paper's model (28,782 types, 20 x 35 tokens) against eager torch, one thread each.

python bench/step.py
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from paired import Ratio, paired
from plain import names, plain_of, zipf_corpus_ids

from trisect.core.spec import Run
from trisect.experiments.study.presets import find_experiment
from trisect.lm.feed import training_piece
from trisect.lm.fleet import views
from trisect.lm.matmul import fast_products
from trisect.lm.train import Trainer
from trisect.text.corpus import Corpus, Split

VOCABULARY, TOKENS = 28_782, 20 * 36 * 12


def corpus() -> Corpus:
    """Zipf-distributed ids over the types of WikiText-2: enough for a dozen steps."""
    ids = zipf_corpus_ids(VOCABULARY, TOKENS).numpy().astype(np.int32)
    words = tuple(str(i) for i in range(VOCABULARY))
    return Corpus.make("zipf", words, {}, {"train": Split(ids, {}), "valid": Split(ids[:720], {})}, ())


def trainer(text: Corpus, dropout: float, clip: float = 0.5, dtype: torch.dtype = torch.float32) -> Trainer:
    """A fleet of one: the paper's baseline."""
    paper = find_experiment("paper")
    model, training = replace(paper.model, dropout=dropout), replace(paper.training, clip=clip, train_sample=700)
    return Trainer([Run(text.fingerprint, model, training, 1)], text, dtype=dtype)


def eager_step(text: Corpus, dropout: float) -> Callable[[], None]:
    """The tutorial's step: forward, CrossEntropyLoss, backward, clip_grad_norm_, SGD."""
    like = trainer(text, dropout)
    one = {n: v[0].clone() for n, v in views(like.flat, like.places).items()}
    model = plain_of(like.model, VOCABULARY, one, dropout)
    optimizer = torch.optim.SGD(model.parameters(), lr=5.0)
    criterion = torch.nn.CrossEntropyLoss()
    steps = iter(range(10**9))

    def step() -> None:
        piece = training_piece(text, like.training, next(steps) % like.steps_per_epoch, (), "cpu")
        optimizer.zero_grad()
        loss = criterion(model(piece.inputs).flatten(0, 1), piece.targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()

    return step


def our_step(text: Corpus, dropout: float) -> Callable[[], None]:
    """The product's own step."""
    own = trainer(text, dropout)

    def step() -> None:
        own.step()

    return step


def gradient_errors(text: Corpus) -> tuple[float, float]:
    """Relative error of one step's gradient against float64: eager's and ours, without dropout and clipping."""
    like = trainer(text, 0.0, clip=1e30)
    one = {n: v[0].clone() for n, v in views(like.flat, like.places).items()}
    piece = training_piece(text, like.training, 0, (), "cpu")

    def eager(dtype: torch.dtype) -> torch.Tensor:
        model = plain_of(like.model, VOCABULARY, {n: v.to(dtype) for n, v in one.items()})
        torch.nn.functional.cross_entropy(model(piece.inputs).flatten(0, 1), piece.targets).backward()
        own = dict(model.named_parameters())
        found = [own[theirs].grad for theirs in names(like.model, VOCABULARY).values()]
        return torch.cat([g.double().flatten() for g in found if g is not None])

    exact, plain = eager(torch.float64), eager(torch.float32)
    like.step()
    ours = like.gradient[0].double()
    return float((plain - exact).norm() / exact.norm()), float((ours - exact).norm() / exact.norm())


def _memory(key: str) -> float:
    """MiB of this process, from the kernel's account (Linux)."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(key))
    return int(line.split()[1]) / 1024


def _grown(way: str) -> None:
    """Print by how many MiB steps raise this process's memory at their highest, over what model and text hold."""
    torch.set_num_threads(1)
    text = corpus()
    with fast_products():
        step = {"plain": eager_step, "ours": our_step}[way](text, 0.2)
        Path("/proc/self/clear_refs").write_text("5")
        before = _memory("VmRSS")
        for _ in range(5):
            step()
    print(json.dumps(_memory("VmHWM") - before))


def peak(way: str) -> float:
    """MiB that steps need beyond what the model and its text hold, measured in a process of its own."""
    found = subprocess.run([sys.executable, __file__, way], capture_output=True, text=True, check=True)
    return float(json.loads(found.stdout))


def rows(rounds: int = 15) -> list[dict[str, object]]:
    """The table's row: milliseconds, ratio, gradient errors, peak memory."""
    torch.set_num_threads(1)
    text = corpus()
    with fast_products() as setting:
        errors = gradient_errors(text)
        found: Ratio = paired(eager_step(text, 0.2), our_step(text, 0.2), rounds)
    return [
        {
            "what": "one training step, 28,782 types, 20 x 35 tokens",
            "plain": f"{found.plain * 1e3:.0f} ms",
            "ours": f"{found.ours * 1e3:.0f} ms",
            "ratio": found.ratio,
            "low": found.low,
            "high": found.high,
            "notes": [
                f"gradient's relative error against float64: eager {errors[0]:.1e}, ours {errors[1]:.1e}",
                f"memory that steps need beside the weights: eager {peak('plain'):.0f} MiB, ours {peak('ours'):.0f} MiB",
                f"float32 products: {setting} (chosen by the self-check); the same are in use in both ways",
                "the aim is 2.2; where eager's own products already run at the processor's speed they bound the ratio",
            ],
        }
    ]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _grown(sys.argv[1])
    else:
        print(json.dumps(rows(), indent=1))
