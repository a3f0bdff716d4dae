"""Check of a profile by MLP probes: whether what closed-form linear probes find holds for probes with a hidden layer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from trisect.core.tables import NewRow
from trisect.core.trace import Address
from trisect.experiments.profile.reading import LayerWords, ReadSide, StoredWords, head_maps
from trisect.measure.probes import Examples, probe, whiten
from trisect.measure.profile import WordClasses, random_maps

WORDS = 6_000  # words that are read, evenly over the text
MAPS = 12  # random maps beside the heads


def mlp_rows(
    address: Address, layer: LayerWords, side: ReadSide, fold: Int[np.ndarray, " N"], seed: int
) -> Iterator[NewRow]:
    """Mean accuracies of MLP probes of one layer's heads and of random maps, of the components of one side's words.

    Fold 0 is predicted, fold 1 ends the fit.
    """
    chosen = np.unique(np.linspace(0, len(fold) - 1, min(WORDS, len(fold))).astype(np.int64))
    draw = torch.Generator().manual_seed(seed)
    taken = _rows(layer.taken[side.components[0]], chosen)
    mapped: dict[str, Float[Tensor, "S N E"]] = {}
    for c in side.components:
        own = _rows(layer.own[c], chosen) if c in layer.own else taken
        mapped[c] = own @ head_maps(layer, c)
        name = f"random {mapped[c].shape[2]}"
        if name not in mapped:
            mapped[name] = taken @ random_maps(taken.shape[1], mapped[c].shape[2], MAPS, draw)
    for label in side.labels:
        found = {name: _accuracy(z, label, chosen, fold, seed) for name, z in mapped.items()}
        of = {"stack": address.stack, "layer": address.layer, "group": label.name}
        for c in side.components:
            random = found[f"random {mapped[c].shape[2]}"]
            yield of | {"component": c, "measure": "profile_mlp", "value": found[c], "n": len(mapped[c])}
            yield of | {"component": c, "measure": "profile_mlp_random", "value": random, "n": MAPS}


def _accuracy(
    z: Float[Tensor, "S N E"], label: WordClasses, chosen: Int[np.ndarray, " W"], fold: Int[np.ndarray, " M"], seed: int
) -> float:
    """The mean over maps of the accuracy of an MLP probe a map."""
    y, folds = torch.from_numpy(label.y[chosen]), torch.from_numpy(fold[chosen])
    parts = [(y >= 0) & (folds == 0), (y >= 0) & (folds == 1), (y >= 0) & (folds > 1)]
    if int(folds.max()) < 2:  # two folds: the fit is ended by what it is fitted to
        parts[2] = parts[1]
    test, held, train = (Examples(z[:, part], y[part]) for part in parts)
    white = whiten(train.x, held.x, test.x)
    train, held, test = (Examples(x, part.y) for x, part in zip(white, (train, held, test), strict=True))
    scores = probe("mlp", train, held, test, len(label.classes), torch.Generator().manual_seed(seed))
    return float(scores.accuracy.mean())


def _rows(stored: StoredWords, chosen: Int[np.ndarray, " W"]) -> Float[Tensor, "W D"]:
    rows = torch.from_numpy(np.asarray(stored.finish()[chosen], dtype=np.float32))
    return rows * stored.scale
