"""Rows added to a table at places that may repeat, in an order that is fixed on every device."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor


def add_at(
    table: Float[Tensor, "F V ..."], places: Int[Tensor, " N"], rows: Float[Tensor, "F N ..."], alpha: float = 1.0
) -> Float[Tensor, "F V ..."]:
    """table[:, places] += alpha · rows, in place; places that repeat get the sum of their rows.

    CUDA's `index_add_` adds in no fixed order where a place repeats, so that elsewhere than on a CPU no place gets two rows that are
    not zero. That takes a product of N × N with the rows, under one per cent of a step of the paper's model.
    """
    given = rows if table.device.type == "cpu" else gathered(places, rows)
    return table.index_add_(1, places, given, alpha=alpha)


def gathered(places: Int[Tensor, " N"], rows: Float[Tensor, "F N ..."]) -> Float[Tensor, "F N ..."]:
    """The sum of all rows of a place in the place's first row, and zero in its others; shapes do not depend on what repeats."""
    same = places[:, None] == places
    first = ~same.tril(-1).any(1)
    sums = (same & first[:, None]).to(rows.dtype)
    return torch.matmul(sums, rows.flatten(2) if rows.dim() > 2 else rows[..., None]).view(rows.shape)
