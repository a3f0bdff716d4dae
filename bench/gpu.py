"""Member-steps a second on a GPU: a fleet with narrow products and recorded passes, against eager single runs.

python bench/gpu.py
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from plain import plain_of
from step import VOCABULARY, corpus

from trisect.core.spec import Run
from trisect.experiments.study.presets import find_experiment
from trisect.lm.feed import training_piece
from trisect.lm.fleet import views
from trisect.lm.replay import CudaGraph
from trisect.lm.train import Trainer
from trisect.text.corpus import Corpus

MEMBERS, STEPS, ROUNDS = 16, 20, 5


def runs(text: Corpus) -> list[Run]:
    """The baseline and the freezing runs of the paper's preset, one seed."""
    paper = replace(find_experiment("paper"), seeds=(1,), attack=None, rewind=None)
    paper = replace(paper, training=replace(paper.training, train_sample=700))
    return list(paper.runs(text.fingerprint))[:MEMBERS]


def _eager(text: Corpus, run: Run, device: str) -> Callable[[], None]:
    like = Trainer([run], text)
    model = plain_of(like.model, VOCABULARY, {n: v[0] for n, v in views(like.flat, like.places).items()}, 0.2)
    model = model.to(device)
    optimizer, criterion = torch.optim.SGD(model.parameters(), lr=5.0), torch.nn.CrossEntropyLoss()
    pieces = [training_piece(text, run.training, i, (), device) for i in range(4)]
    count = iter(range(10**9))

    def step() -> None:
        piece = pieces[next(count) % len(pieces)]
        optimizer.zero_grad()
        criterion(model(piece.inputs).flatten(0, 1), piece.targets).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()

    return step


def _rate(step: Callable[[], object], members: int, device: str) -> float:
    def sync() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    step()
    sync()
    began = time.perf_counter()
    for _ in range(STEPS):
        step()
    sync()
    return members * STEPS / (time.perf_counter() - began)


def rows(device: str = "cuda") -> list[dict[str, object]]:
    """The table's row; none where there is no GPU."""
    if device == "cuda" and not torch.cuda.is_available():
        return []
    text = corpus()
    own = runs(text)
    single = _eager(text, own[0], device)
    narrow = torch.bfloat16 if device == "cuda" else None
    fleet = Trainer(own, text, device, products=narrow, recorder=CudaGraph() if device == "cuda" else None)
    rates = [(_rate(single, 1, device), _rate(fleet.step, len(own), device)) for _ in range(ROUNDS)]
    ratios = sorted(b / a for a, b in rates)
    plain, ours = (sorted(column)[ROUNDS // 2] for column in zip(*rates, strict=True))
    return [
        {
            "what": f"member-steps a second of the paper's model on a GPU, a fleet of {len(own)} (wall time)",
            "plain": f"{plain:.0f} /s",
            "ours": f"{ours:.0f} /s",
            "ratio": ratios[ROUNDS // 2],
            "low": ratios[0],
            "high": ratios[-1],
            "notes": [
                f"products in {narrow or torch.float32}",
                "passes recorded" if fleet.replay and fleet.replay.usable else "passes not recorded",
                "the fleet is the baseline and the freezing runs of one seed; fleets under attack are never recorded",
            ],
        }
    ]


if __name__ == "__main__":
    print(json.dumps(rows(), indent=1) if torch.cuda.is_available() else "There is no CUDA device here.")
