"""Positions of a text pair: where its answer is predicted, and which positions are patched."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from trisect.core.errors import CorpusError
from trisect.core.subject import Batch
from trisect.core.trace import Side


class PatchedSides(NamedTuple):
    """Which positions of the source and of the target are patched; null where there is no target."""

    source: Bool[Tensor, "B S"]
    target: Bool[Tensor, "B T"] | None

    def queries(self, stack: str) -> Bool[Tensor, "B T"]:
        """Those of a stack's queries."""
        return self.target if self.target is not None and stack in ("dec", "cross") else self.source

    def keys(self, stack: str) -> Bool[Tensor, "B S"]:
        """Those of a stack's keys and values."""
        return self.target if self.target is not None and stack == "dec" else self.source


def answer_places(batch: Batch, mask: str | None) -> Int[Tensor, " B"] | None:
    """Where each row's answer is predicted: at its one mask, else at its last own token, the decoder's where there is one.

    Null where a masked language model is given a text without exactly one mask.
    """
    side = batch.source if batch.target is None else batch.target
    if mask is None:
        return _last(side)
    found = torch.tensor([[token == mask for token in row] for row in side.tokens])
    return found.int().argmax(1) if bool((found.sum(1) == 1).all()) else None


def patched_sides(
    run: Batch, other: Batch, wanted: tuple[int, ...] | str, places: Int[Tensor, " B"] | None
) -> PatchedSides:
    """The positions of a batch that are patched from another one of the same lengths."""
    answering = None if places is None else places
    if run.target is None or other.target is None:
        return PatchedSides(_chosen(run.source, other.source, wanted, answering), None)
    source = _chosen(run.source, other.source, wanted, None)
    return PatchedSides(source, _chosen(run.target, other.target, wanted, answering))


def own_tokens(side: Side) -> Bool[Tensor, "B T"]:
    """Positions that are a text's own, neither padding nor added by the tokenizer."""
    return side.real & ~side.special


def _last(side: Side) -> Int[Tensor, " B"]:
    """Each row's last own token, or its last real one where it has none of its own."""
    own = own_tokens(side)
    own = torch.where(own.any(1, keepdim=True), own, side.real)
    return (own.long() * torch.arange(1, own.shape[1] + 1)).argmax(1)


def _chosen(
    run: Side, other: Side, wanted: tuple[int, ...] | str, places: Int[Tensor, " B"] | None
) -> Bool[Tensor, "B T"]:
    if wanted == "all":
        return run.real
    if wanted == "last":
        at = _last(run) if places is None else places
        return torch.arange(run.real.shape[1]) == at[:, None]
    if wanted == "differ":
        return _differing(run, other)
    chosen = torch.zeros_like(run.real)
    longest = int(run.real.sum(1).min())
    if beyond := [n for n in wanted if not isinstance(n, int) or n > longest]:
        known = f"The shortest text has {longest} tokens."
        raise CorpusError(f"Position {beyond[0]} was named.", known, "Name positions that every text has.")
    chosen[:, [int(n) - 1 for n in wanted]] = True
    return chosen & run.real


def _differing(run: Side, other: Side) -> Bool[Tensor, "B T"]:
    shared = min(run.real.shape[1], other.real.shape[1])
    found = torch.zeros_like(run.real)
    for row, (own, donor) in enumerate(zip(run.tokens, other.tokens, strict=True)):
        found[row, :shared] = torch.tensor([a != b for a, b in zip(own[:shared], donor[:shared], strict=True)])
    return found & run.real
