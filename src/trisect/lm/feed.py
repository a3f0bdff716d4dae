"""Windows of a corpus as tensors: one for each training step, larger pieces for evaluation."""

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
    """Label columns [N] of a window, and the places at which each has a label, found on the host: a GPU need not wait."""

    def __init__(self, columns: Mapping[str, Tensor], known: Mapping[str, Tensor]) -> None:
        super().__init__(columns)
        self.known = dict(known)


def label_positions(labels: Mapping[str, Tensor], column: str) -> Int[Tensor, " K"]:
    """The places at which a column has a label."""
    if isinstance(labels, PlacedLabels) and column in labels.known:
        return labels.known[column]
    return (labels[column] >= 0).nonzero()[:, 0]


class Piece(NamedTuple):
    """Inputs [B T], and flattened in the same order the next words and the next words' labels (-1 for none).

    `scored` are the places of next words that are to be predicted, None being all; the label columns in `own` speak of the word
    that is read. `starts` is where in the split each row begins, None where a piece was not cut from one.
    """

    inputs: Int[Tensor, "B T"]
    targets: Int[Tensor, " N"]
    labels: Mapping[str, Int[Tensor, " N"]]
    scored: Int[Tensor, " M"] | None = None
    own: tuple[str, ...] = ()
    starts: Int[np.ndarray, " B"] | None = None

    @property
    def gold(self) -> Int[Tensor, " M"]:
        """The next words that are to be predicted."""
        return self.targets if self.scored is None else self.targets[self.scored]

    def target_states(self, hidden: Float[Tensor, "F N D"]) -> Float[Tensor, "F M D"]:
        """The states from which they are to be predicted."""
        return hidden if self.scored is None else hidden[:, self.scored]

    def spread(self, gradient: Float[Tensor, "F M D"], hidden: Float[Tensor, "F N D"]) -> Float[Tensor, "F N D"]:
        """A gradient of the counted states as one of all states, 0 elsewhere."""
        if self.scored is None:
            return gradient
        whole = torch.zeros_like(hidden)
        whole[:, self.scored] = gradient
        return whole

    @property
    def tokens(self) -> int:
        """How many are to be predicted."""
        return self.targets.numel() if self.scored is None else self.scored.numel()

    def label_words(self, columns: Sequence[str]) -> Int[Tensor, " N"]:
        """The words that those label columns speak of: what is read, or what comes next."""
        return self.inputs.flatten() if columns and set(columns) <= set(self.own) else self.targets

    def some_rows(self, rows: Sequence[int]) -> Piece:
        """The piece with those rows alone."""
        shape = self.inputs.shape

        def mine(flat: Tensor) -> Tensor:
            return flat.view(shape)[list(rows)].flatten()

        labels = {name: mine(ids) for name, ids in self.labels.items()}
        scored = None
        if self.scored is not None:
            marks = torch.zeros_like(self.targets, dtype=torch.bool).index_fill_(0, self.scored, True)
            scored = mine(marks).nonzero()[:, 0]
        starts = None if self.starts is None else self.starts[list(rows)]
        return Piece(self.inputs[list(rows)], mine(self.targets), labels, scored, self.own, starts)


def _piece(batches: Sequence[WindowBatch], corpus: Corpus, device: torch.device | str) -> Piece:
    def put(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array.astype(np.int64)).to(device)

    def join(arrays: Sequence[np.ndarray]) -> np.ndarray:
        return np.concatenate(arrays).ravel()

    columns = {name: join([b.labels[name] for b in batches]) for name in batches[0].labels}
    known = {name: put(np.flatnonzero(column >= 0)) for name, column in columns.items()}
    labels = PlacedLabels({name: put(column) for name, column in columns.items()}, known)
    marks = [b.scored for b in batches if b.scored is not None]
    scored = put(np.flatnonzero(join(marks))) if marks else None
    own = () if corpus.documents is None else corpus.documents.own
    inputs, targets = np.concatenate([b.inputs for b in batches]), join([b.targets for b in batches])
    starts = np.concatenate([b.starts for b in batches])
    return Piece(put(inputs), put(targets), labels, scored, own, starts)


def training_piece(
    corpus: Corpus, training: Training, step: int, labels: tuple[str, ...], device: torch.device | str
) -> Piece:
    """The window of one training step."""
    return _piece([batch(corpus.splits["train"], training.columns, training.window, step, labels)], corpus, device)


class Windows:
    """The windows of training; off the CPU each is copied once and kept on the device (32 bytes a token and label column)."""

    def __init__(self, corpus: Corpus, training: Training, labels: tuple[str, ...], device: torch.device | str) -> None:
        self.corpus, self.training, self.labels, self.device = corpus, training, labels, device
        self.stay = torch.device(device).type != "cpu"
        self._kept: dict[int, Piece] = {}

    def __getitem__(self, window: int) -> Piece:
        if window in self._kept:
            return self._kept[window]
        piece = training_piece(self.corpus, self.training, window, self.labels, self.device)
        return self._kept.setdefault(window, piece) if self.stay else piece


def evaluation_pieces(
    corpus: Corpus, training: Training, split: str, labels: tuple[str, ...], device: torch.device | str
) -> list[Piece]:
    """All of a split (of train: a fixed sample of whole windows), windows of equal length put together."""
    columns = training.columns if split == "train" else training.eval_columns
    sample = training.train_sample if split == "train" else None
    chosen = sample_steps(corpus.splits[split], columns, training.window, sample)
    pieces, pending = [], []
    for step in chosen:
        one = batch(corpus.splits[split], columns, training.window, step, labels)
        longer = pending and pending[0].inputs.shape[1] != one.inputs.shape[1]
        if longer or sum(b.inputs.size for b in pending) >= PIECE:
            pieces.append(_piece(pending, corpus, device))
            pending = []
        pending.append(one)
    return [*pieces, _piece(pending, corpus, device)]
