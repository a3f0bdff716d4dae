"""Windows of a corpus as tensors: one for each training step, larger pieces for evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from trisect.core.spec import Training
from trisect.text.corpus import Corpus, WindowBatch, batch, sample_steps

PIECE = 2_100  # tokens evaluated at once: enough for the products to be efficient, few enough to stay in a cache


class Piece(NamedTuple):
    """Inputs [B T], and flattened in the same order the next words and the next words' labels (-1 for none).

    `scored` marks the next words that are to be predicted, null being all; the label columns in `own` speak of the word
    that is read. `starts` is where in the split each row begins, null where a piece was not cut from one.
    """

    inputs: Int[Tensor, "B T"]
    targets: Int[Tensor, " N"]
    labels: dict[str, Int[Tensor, " N"]]
    scored: Bool[Tensor, " N"] | None = None
    own: tuple[str, ...] = ()
    starts: Int[np.ndarray, " B"] | None = None

    @property
    def gold(self) -> Int[Tensor, " M"]:
        """The next words that are to be predicted."""
        return self.targets if self.scored is None else self.targets[self.scored]

    def counted(self, hidden: Float[Tensor, "F N D"]) -> Float[Tensor, "F M D"]:
        """The states from which they are to be predicted."""
        return hidden if self.scored is None else hidden[:, self.scored]

    @property
    def tokens(self) -> int:
        """How many are to be predicted."""
        return self.targets.numel() if self.scored is None else int(self.scored.sum())

    def spoken(self, columns: Sequence[str]) -> Int[Tensor, " N"]:
        """The words that those label columns speak of: what is read, or what comes next."""
        return self.inputs.flatten() if columns and set(columns) <= set(self.own) else self.targets

    def some_rows(self, rows: Sequence[int]) -> Piece:
        """The piece with those rows alone."""
        shape = self.inputs.shape

        def mine(flat: Tensor) -> Tensor:
            return flat.view(shape)[list(rows)].flatten()

        labels = {name: mine(ids) for name, ids in self.labels.items()}
        scored = None if self.scored is None else mine(self.scored)
        starts = None if self.starts is None else self.starts[list(rows)]
        return Piece(self.inputs[list(rows)], mine(self.targets), labels, scored, self.own, starts)


def _piece(batches: Sequence[WindowBatch], corpus: Corpus, device: torch.device | str) -> Piece:
    def join(arrays: Sequence[np.ndarray]) -> Tensor:
        return torch.from_numpy(np.concatenate(arrays).astype(np.int64)).to(device)

    labels = {name: join([b.labels[name] for b in batches]).flatten() for name in batches[0].labels}
    marks = [b.scored for b in batches if b.scored is not None]
    scored = torch.from_numpy(np.concatenate(marks)).to(device).flatten() if marks else None
    own = () if corpus.documents is None else corpus.documents.own
    starts = np.concatenate([b.starts for b in batches])
    targets = join([b.targets for b in batches]).flatten()
    return Piece(join([b.inputs for b in batches]), targets, labels, scored, own, starts)


def training_piece(
    corpus: Corpus, training: Training, step: int, labels: tuple[str, ...], device: torch.device | str
) -> Piece:
    """The window of one training step."""
    return _piece([batch(corpus.splits["train"], training.columns, training.window, step, labels)], corpus, device)


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
            pieces.append(_piece(pending, corpus, device))
            pending = []
        pending.append(one)
    return [*pieces, _piece(pending, corpus, device)]
