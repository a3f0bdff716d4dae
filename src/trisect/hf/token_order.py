"""Whether a model reads its tokens where they are given: where queries, keys and values change with a token."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trisect.core.errors import ModelError
from trisect.core.memory import pass_memory
from trisect.core.subject import ModelInputs
from trisect.hf.calls import Call, CallHook

PLACE = 1  # the first may be a special token's


@torch.no_grad()
def reordered(
    name: str, model: nn.Module, inputs: ModelInputs, hook: CallHook, calls: Sequence[Call]
) -> ModelError | None:
    """Why a model is refused that turns, sorts or shifts its tokens by itself; null where that does not show.

    One token of the last row is replaced by another of that row. The first queries, keys or values that are as many as
    tokens and change have to change there: else a trace's positions are not those of the tokens beside them.
    """
    ids = inputs.get("input_ids")
    if not isinstance(ids, Tensor) or ids.dim() != 2 or ids.is_floating_point() or ids.shape[1] <= PLACE:
        return None
    row = ids.shape[0] - 1
    others = ids[row][ids[row] != ids[row, PLACE]]
    if not len(others):
        return None
    changed = ids.clone()
    changed[row, PLACE] = others[-1]
    try:
        with hook(model) as made:
            model(**{**inputs, "input_ids": changed})
    except Exception as error:
        pass_memory(error)
        return None  # tokens may stand for images, of which there are as many
    for was, now in zip(calls, made, strict=False):
        pairs = [(a.detach(), b) for a, b in ((was.q, now.q), (was.k, now.k), (was.v, now.v)) if a.shape == b.shape]
        found = [a.ne(b).any(3).any(1) for a, b in pairs if (a.shape[0], a.shape[2]) == tuple(ids.shape)]
        if found and bool((moved := torch.stack(found).any(0)).any()):
            return None if bool(moved[row, PLACE]) else _refusal(name, row, moved)
    return None


def _refusal(name: str, row: int, moved: Tensor) -> ModelError:
    to_row, to_place = moved.nonzero()[0].tolist()
    given = f"{name} does not read its tokens where they are given."
    there = f"position {to_place} of row {to_row}"
    known = f"A token at position {PLACE} of row {row}, counted from 0, changes what attention is given at {there}."
    todo = "Give the part of it that attends, with tokens in the order in which that takes them."
    return ModelError(given, known, todo)
