"""Windows of a corpus as tensors: one for each training step, larger pieces for evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from trisect.core.spec import Training
from trisect.text.corpus import Corpus, WindowBatch, batch, sample_steps

PIECE = 2_100  # tokens evaluated at once: enough for the products to be efficient, few enough to stay in a cache


class Piece(NamedTuple):
    """Inputs [B T], and flattened in the same order the next words and the next words' labels (-1 for none)."""

    inputs: Int[Tensor, "B T"]
    targets: Int[Tensor, " N"]
    labels: dict[str, Int[Tensor, " N"]]


def _piece(batches: Sequence[WindowBatch], device: torch.device | str) -> Piece:
    def join(arrays: Sequence[np.ndarray]) -> Tensor:
        return torch.from_numpy(np.concatenate(arrays).astype(np.int64)).to(device)

    labels = {name: join([b.labels[name] for b in batches]).flatten() for name in batches[0].labels}
    return Piece(join([b.inputs for b in batches]), join([b.targets for b in batches]).flatten(), labels)


def training_piece(
    corpus: Corpus, training: Training, step: int, labels: tuple[str, ...], device: torch.device | str
) -> Piece:
    """The window of one training step."""
    return _piece([batch(corpus.splits["train"], training.columns, training.window, step, labels)], device)


def evaluation_pieces(
    corpus: Corpus, training: Training, split: str, labels: tuple[str, ...], device: torch.device | str
) -> list[Piece]:
    """All of a split (of train: a fixed sample of whole windows), windows of equal length put together."""
    columns = training.columns if split == "train" else training.eval_columns
    chosen = sample_steps(
        corpus.splits[split], columns, training.window, training.train_sample if split == "train" else None
    )
    pieces, pending = [], []
    for step in chosen:
        one = batch(corpus.splits[split], columns, training.window, step, labels)
        full = pending and (
            pending[0].inputs.shape[1] != one.inputs.shape[1] or sum(b.inputs.size for b in pending) >= PIECE
        )
        if full:
            pieces.append(_piece(pending, device))
            pending = []
        pending.append(one)
    return [*pieces, _piece(pending, device)]
