"""Effects at the size of `quick` by float32 library and by precision, beside their spread over seeds.

python bench/precision.py FILE          goes on where it stopped; a table at the end
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

import torch

from trisect.core.spec import Run
from trisect.experiments.study.presets import find_experiment
from trisect.lm.train import Trainer
from trisect.text.corpus import Corpus
from trisect.text.sources import load_text

SEEDS = (1, 2, 3)
WAYS = {  # name -> PyTorch's setting of float32 products, narrower products
    "float32, oneDNN": ("medium", None),
    "float32, PyTorch's default": ("highest", None),
    "bfloat16": ("medium", torch.bfloat16),
}
SITES = {"freeze": ("k@1", "v@1"), "attack": ("k@1", "v@1", "v@5")}


def fleets(seed: int) -> tuple[list[list[Run]], Corpus]:
    """The baseline with what is frozen, and what is attacked, of one seed."""
    quick = find_experiment("quick")
    corpus = load_text(quick.text)
    runs = [run for run in quick.runs(corpus.fingerprint) if run.seed == seed]
    found: list[list[Run]] = [[run for run in runs if run.edit is None], []]
    for run in runs:
        if run.edit is not None and str(run.edit.site) in SITES.get(run.edit.kind, ()) and _plain(run):
            found[run.edit.kind == "attack"].append(run)
    return found, corpus


def _plain(run: Run) -> bool:
    return (
        run.edit is not None and run.edit.column in (None, "pos") and getattr(run.edit, "variant", "plain") == "plain"
    )


def losses(seed: int, way: str) -> dict[str, float]:
    """Validation loss of each run after its last epoch."""
    setting, narrow = WAYS[way]
    torch.set_float32_matmul_precision(setting)
    teams, corpus = fleets(seed)
    found: dict[str, float] = {}
    for runs in teams:
        trainer = Trainer(runs, corpus, products=narrow)
        for _ in range(trainer.training.epochs * trainer.steps_per_epoch):
            trainer.step()
        for slot, rows in trainer.evaluate().items():
            edit = runs[slot].edit
            name = "baseline" if edit is None else f"{edit.kind} {edit.site}"
            found[name] = next(value for split, what, value in rows if (split, what) == ("valid", "loss_nats"))
    return found


def table(kept: dict[str, dict[str, float]]) -> str:
    """Effects (nats), mean over seeds, by way; their spread over seeds; the largest difference of two ways in one seed."""
    lines = ["| effect on validation loss, nats | " + " | ".join(WAYS) + " | spread over seeds | largest change |"]
    lines.append("| --- |" + " --- |" * (len(WAYS) + 2))
    names = [name for name in kept[f"{next(iter(WAYS))}/{SEEDS[0]}"] if name != "baseline"]
    for name in names:
        of = {w: [kept[f"{w}/{s}"][name] - kept[f"{w}/{s}"]["baseline"] for s in SEEDS] for w in WAYS}
        first, *others = of.values()
        change = [max(abs(a - b) for a, b in zip(first, other, strict=True)) for other in others]
        means = " | ".join(f"{statistics.mean(values):+.3f}" for values in of.values())
        lines.append(f"| {name} | {means} | {statistics.stdev(first):.3f} | {change[0]:.3f}, {change[1]:.3f} |")
    return "\n".join(lines)


def main(place: Path) -> None:
    """Measure what the file does not have yet, and print the table."""
    torch.set_num_threads(1)
    kept: dict[str, dict[str, float]] = json.loads(place.read_text()) if place.exists() else {}
    for seed in SEEDS:
        for way in WAYS:
            if f"{way}/{seed}" not in kept:
                kept[f"{way}/{seed}"] = losses(seed, way)
                place.write_text(json.dumps(kept, indent=1))
    print(table(kept))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
