"""Sizes that were tried for `quick`: validation loss, what attention is worth, seconds on one core.

python bench/quick_size.py
"""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from trisect.experiments.study.presets import find_experiment
from trisect.lm.fleet import views
from trisect.lm.rewind import self_only_loss
from trisect.lm.train import Trainer
from trisect.text.sources import load_text

# train tokens, window, columns, epochs, rate, decay
SIZES = (
    (20_000, 32, 10, 5, 3e-3, 0.8),
    (20_000, 32, 10, 5, 6e-3, 0.7),
    (20_000, 32, 10, 6, 5e-3, 0.7),
    (24_000, 32, 20, 8, 6e-3, 0.75),
    (24_000, 16, 20, 5, 5e-3, 0.7),
)


def main() -> None:
    """Train the baseline of seed 1 at each size."""
    torch.set_num_threads(1)
    quick = find_experiment("quick")
    print("tokens  window x columns  epochs  rate   valid  self-only  seconds")
    for tokens, window, columns, epochs, rate, decay in SIZES:
        training = replace(quick.training, window=window, columns=columns, epochs=epochs, rate=rate, decay=decay)
        corpus = load_text(replace(quick.text, train_tokens=tokens))
        run = next(iter(replace(quick, training=training).runs(corpus.fingerprint)))
        trainer, began = Trainer([run], corpus), time.perf_counter()
        for _ in range(epochs * trainer.steps_per_epoch):
            trainer.step()
        seconds = time.perf_counter() - began
        valid = next(v for split, name, v in trainer.evaluate()[0] if (split, name) == ("valid", "loss_nats"))
        final = views(trainer.flat, trainer.places)
        cut = self_only_loss(final, run.model, trainer.pieces["valid"]).loss_nats[0]
        print(
            f"{tokens:<8}{window:>4} x {columns:<10} {epochs:<6}{rate:<7g}{valid:.3f}  {cut - valid:+.3f}     {seconds:.1f}"
        )


if __name__ == "__main__":
    main()
