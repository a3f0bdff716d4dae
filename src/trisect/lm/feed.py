"""Windows of a corpus as tensors: one per training step, larger pieces for evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from trisect.core.spec import Training
from trisect.text.corpus import Corpus, WindowBatch, batch, sample_steps

PIECE = 2_100  # tokens evaluated at once: enough for the products to be efficient, few enough to stay in a cache


class PlacedLabels(dict[str, Tensor]):
    """Label columns [N] of a window, and the positions at which each has a label, computed on the host: a GPU need not wait."""

    def __init__(self, columns: Mapping[str, Tensor], positions: Mapping[str, Tensor]) -> None:
        super().__init__(columns)
        self.positions = positions


def label_positions(labels: Mapping[str, Tensor], column: str) -> Int[Tensor, " K"]:
    """The positions at which a column has a label."""
    if isinstance(labels, PlacedLabels):
        return labels.positions[column]
    return (labels[column] >= 0).nonzero()[:, 0]


class Piece(NamedTuple):
    """Inputs [B T], and flattened in the same order the next words and the next words' labels (-1 for none).

    `scored` are the positions of next words that are to be predicted, None being all; the columns in `input_labels` label the word
    that is read. `starts` is where in the split each row begins, None where a piece was not cut from one.
    """

    inputs: Int[Tensor, "B T"]
    targets: Int[Tensor, " N"]
    labels: Mapping[str, Int[Tensor, " N"]]
    scored: Int[Tensor, " M"] | None = None
    input_labels: tuple[str, ...] = ()
    starts: Int[np.ndarray, " B"] | None = None

    @property
    def gold(self) -> Int[Tensor, " M"]:
        """The next words, which are predicted."""
        return self.targets if self.scored is None else self.targets[self.scored]

    def target_states(self, hidden: Float[Tensor, "F N D"]) -> Float[Tensor, "F M D"]:
        """The states from which they are predicted."""
        return hidden if self.scored is None else hidden[:, self.scored]

    @property
    def tokens(self) -> int:
        """The number of predicted words."""
        return self.targets.numel() if self.scored is None else self.scored.numel()

    def label_words(self, columns: Sequence[str]) -> Int[Tensor, " N"]:
        """The words of label columns: input words, or next words."""
        return self.inputs.flatten() if columns and set(columns) <= set(self.input_labels) else self.targets

    def some_rows(self, rows: Sequence[int]) -> Piece:
        """The piece with the given rows alone."""
        chosen = list(rows)

        def select(flat: Tensor) -> Tensor:
            return flat.view(self.inputs.shape)[chosen].flatten()

        scored = None
        if self.scored is not None:
            marks = torch.zeros_like(self.targets, dtype=torch.bool).index_fill_(0, self.scored, True)
            scored = select(marks).nonzero()[:, 0]
        return Piece(
            self.inputs[chosen],
            select(self.targets),
            {name: select(column) for name, column in self.labels.items()},
            scored,
            self.input_labels,
            None if self.starts is None else self.starts[chosen],
        )


def _piece(batches: Sequence[WindowBatch], corpus: Corpus, device: torch.device | str) -> Piece:
    def put(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array.astype(np.int64)).to(device)

    columns = {name: np.concatenate([b.labels[name] for b in batches]).ravel() for name in batches[0].labels}
    positions = {name: put(np.flatnonzero(column >= 0)) for name, column in columns.items()}
    marks = [b.scored for b in batches if b.scored is not None]
    return Piece(
        put(np.concatenate([b.inputs for b in batches])),
        put(np.concatenate([b.targets for b in batches]).ravel()),
        PlacedLabels({name: put(column) for name, column in columns.items()}, positions),
        put(np.flatnonzero(np.concatenate(marks))) if marks else None,
        () if corpus.documents is None else corpus.documents.own,
        np.concatenate([b.starts for b in batches]),
    )


class Windows:
    """The windows of training; on a GPU each is copied once and stays there (32 bytes per token and label column)."""

    def __init__(self, corpus: Corpus, training: Training, labels: tuple[str, ...], device: torch.device | str) -> None:
        self.corpus, self.training, self.labels, self.device = corpus, training, labels, device
        self.caches = torch.device(device).type != "cpu"
        self._on_device: dict[int, Piece] = {}

    def __getitem__(self, window: int) -> Piece:
        if window in self._on_device:
            return self._on_device[window]
        size = self.training.columns, self.training.window
        piece = _piece([batch(self.corpus.splits["train"], *size, window, self.labels)], self.corpus, self.device)
        if self.caches:
            self._on_device[window] = piece
        return piece


def evaluation_pieces(
    corpus: Corpus, training: Training, split: str, labels: tuple[str, ...], device: torch.device | str
) -> list[Piece]:
    """All of a split (of train, a fixed sample of whole windows), with windows of equal length joined."""
    columns = training.columns if split == "train" else training.eval_columns
    sample = training.train_sample if split == "train" else None
    pieces, pending = [], list[WindowBatch]()
    for step in sample_steps(corpus.splits[split], columns, training.window, sample):
        window = batch(corpus.splits[split], columns, training.window, step, labels)
        changes = pending and pending[0].inputs.shape[1] != window.inputs.shape[1]
        if changes or sum(b.inputs.size for b in pending) >= PIECE:
            pieces.append(_piece(pending, corpus, device))
            pending = []
        pending.append(window)
    return [*pieces, _piece(pending, corpus, device)]
