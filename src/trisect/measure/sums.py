"""Moments and rank correlations of any number of texts in memory that does not grow, ready for the bootstrap."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from trisect.stats.bootstrap import DrawnEstimate
from trisect.stats.describe import spearman_of_cells, spearman_of_counts

ROOM = 1 << 15  # pairs, of all series together, that are kept until the bins are fixed


class Sums:
    """Sums per group of texts: a row per group, so that texts can be resampled after they are gone.

    `group_of` says which group a text belongs to: with no more texts than groups, a group is a text. What lies on another
    device is added up there, and leaves it when the rows are asked for.
    """

    def __init__(self, groups: int, *shape: int) -> None:
        self._rows = np.zeros((groups, *shape))
        self._there: Tensor | None = None

    @property
    def rows(self) -> Float[np.ndarray, "G ..."]:
        """The sums so far."""
        if self._there is not None:
            self._rows += self._there.cpu().numpy()
            self._there = None
        return self._rows

    def add(self, group: Int[Tensor, " B"], values: Float[Tensor, "B ..."]) -> None:
        """Add a row per text of a batch to the rows of their groups."""
        if values.device.type == "cpu":
            np.add.at(self._rows, group.numpy(), values.double().numpy())
            return
        # a product, since CUDA adds rows of one group to each other in no fixed order
        belongs = group[:, None] == torch.arange(len(self._rows), device=values.device)
        found = (belongs.double().T @ values.double().reshape(len(values), -1)).view(self._rows.shape)
        self._there = found if self._there is None else self._there.add_(found.to(self._there.device))

    def total(self, used: int) -> Float[np.ndarray, "*S"]:
        """The sum over the first `used` groups."""
        return np.asarray(self.rows[:used].sum(0))

    def drawn(self, times: Float[np.ndarray, "R G"]) -> Float[np.ndarray, "R ..."]:
        """The sum in every draw of the first G groups."""
        rows = self.rows[: times.shape[1]]
        return (times @ rows.reshape(len(rows), -1)).reshape(len(times), *rows.shape[1:])


def group_of(numbers: Int[Tensor, " B"], texts: int, groups: int) -> Int[Tensor, " B"]:
    """The group of each text by its number from 0, of `texts` in all: texts that follow one another are one group.

    Texts of one article are alike, so that dealing them to groups in turn would make intervals too narrow.
    """
    return numbers * min(groups, texts) // max(1, texts)


def moments(values: Float[Tensor, "B ... T"], real: Tensor) -> Float[Tensor, "B ... 3"]:
    """Number, sum and sum of squares over the last axis where `real` (broadcast to `values`)."""
    kept = torch.where(real, values.double(), 0.0)
    count = real.expand_as(values).sum(-1).double()
    return torch.stack([count, kept.sum(-1), kept.square().sum(-1)], -1)


class Ranks:
    """Spearman's rank correlation of streamed pairs for S series at once, by their joint counts in bins of rank.

    The first pairs fix each series' bins, ROOM / S of them: `bins` parts of equal weight for x and for y, or one for each
    value where there are fewer values. Pairs within a bin count as tied: with 64 bins and one series ρ of continuous
    values moves by less than 0.001, with 32 bins and 12 series by less than 0.003; where later pairs lie one standard
    deviation off those that fixed the bins by less than 0.001 and 0.005, two off by less than 0.003 and 0.015. Each of
    `groups` groups of texts has its own counts.
    """

    def __init__(self, series: int = 1, groups: int = 1, bins: int = 64) -> None:
        self.series, self.groups, self.bins = series, groups, bins
        self.counts = torch.zeros(series * groups * bins * bins, dtype=torch.int32)
        self._edges: tuple[Tensor, Tensor] | None = None
        self._waiting: list[tuple[Tensor, Tensor, Tensor]] = []
        self._kept = 0

    def add(self, x: Float[Tensor, "S N"], y: Float[Tensor, "S N"], group: Int[Tensor, " N"]) -> None:
        """Add N pairs to every series; `group` says which group of texts each is from. They are counted where the first of them lie."""
        if not x.shape[1]:
            return
        home = self._home(x.device)
        pairs = (x.float().to(home), y.float().to(home), group.to(home))
        if self._edges is not None:
            self._count(*pairs, self._edges)
            return
        self._waiting.append(pairs)
        self._kept += x.shape[1]
        if self._kept * self.series >= ROOM:
            self._fix()

    def estimate(self, times: Float[np.ndarray, "R G"] | None = None, used: int | None = None) -> DrawnEstimate:
        """ρ of every series on the first `used` groups, and in every draw of groups (none without `times`).

        NaN where x or y has one value only.
        """
        if self._edges is None and self._waiting:
            self._fix()
        counts = self.counts.cpu().numpy().reshape(self.series, self.groups, self.bins * self.bins)
        used = self.groups if used is None else used
        value = self._correlate(counts[:, :used].sum(1, dtype=float))
        if times is None:
            return DrawnEstimate(value, np.empty((0, self.series)))
        drawn = [self._drawn(times, one[: times.shape[1]]) for one in counts]
        return DrawnEstimate(value, np.stack(drawn, -1))

    def _drawn(self, times: Float[np.ndarray, "R G"], counts: Int[np.ndarray, "G C"]) -> Float[np.ndarray, " R"]:
        """ρ of one series in every draw, a block of draws at a time: all of them together would need a gigabyte.

        Of few pairs most cells of the joint counts are empty in every group, and are left out: whole numbers, so the same ρ.
        """
        filled = np.flatnonzero(counts.any(0))
        across, down = np.divmod(filled, self.bins)
        whole, cells = counts.reshape(-1, self.bins, self.bins), counts[:, filled].astype(float)
        x, y = (whole.sum(axis, dtype=float) for axis in (2, 1))
        blocks = np.array_split(times, max(1, len(times) // 500))
        if 2 * len(filled) > counts.shape[1]:
            every = counts.astype(float)
            return np.concatenate([self._correlate(some @ every) for some in blocks])
        return np.concatenate(
            [spearman_of_cells(some @ cells, (across, down), (some @ x, some @ y)) for some in blocks]
        )

    def _home(self, first: torch.device) -> torch.device:
        """The device that pairs are kept and counted on, of a model that lies on several too."""
        if self._edges is not None:
            return self._edges[0].device
        return self._waiting[0][0].device if self._waiting else first

    def _fix(self) -> None:
        x, y, _ = (torch.cat(parts, -1) for parts in zip(*self._waiting, strict=True))
        self._edges = (_edges(x, self.bins), _edges(y, self.bins))
        self.counts = self.counts.to(x.device)
        for pairs in self._waiting:
            self._count(*pairs, self._edges)
        self._waiting.clear()

    def _count(self, x: Tensor, y: Tensor, group: Tensor, edges: tuple[Tensor, Tensor]) -> None:
        across = torch.searchsorted(edges[0], x.contiguous(), right=True)
        down = torch.searchsorted(edges[1], y.contiguous(), right=True)
        place = torch.arange(self.series, device=x.device)[:, None] * self.groups + group % self.groups
        flat = ((place * self.bins + across) * self.bins + down).reshape(-1)
        self.counts.index_add_(0, flat, torch.ones_like(flat, dtype=torch.int32))

    def _correlate(self, joint: Float[np.ndarray, "N C"]) -> Float[np.ndarray, " N"]:
        return spearman_of_counts(joint.reshape(-1, self.bins, self.bins))


def _edges(values: Float[Tensor, "S N"], bins: int) -> Float[Tensor, "S E"]:
    """Inner edges of bins; a value that equals an edge lies above it. Unneeded edges lie beyond all values."""
    found = torch.full((len(values), bins - 1), torch.inf, device=values.device)
    for row, mine in enumerate(values):
        distinct = torch.unique(mine)
        if len(distinct) > bins:
            ranks = torch.arange(1, bins, device=values.device) * len(mine) // bins
            distinct = torch.cat([distinct[:1], torch.unique(mine.sort().values[ranks])])
        found[row, : len(distinct[1:bins])] = distinct[1:bins]
    return found
