"""Whether a model reads its tokens where they are given: where queries, keys and values change with a token."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from trisect.core.errors import ModelError
from trisect.core.memory import pass_memory
from trisect.core.subject import ModelInputs
from trisect.core.trace import Address
from trisect.hf.calls import Call, CallHook, Calls, Edits, copied

PLACE = 1  # the first may be a special token's
TRIES = 8  # orders that are drawn until one rises and falls


@torch.no_grad()
def reordered(
    name: str, model: nn.Module, inputs: ModelInputs, hook: CallHook, calls: Sequence[Call]
) -> ModelError | None:
    """Why a model is refused that turns, sorts or shifts its tokens by itself; null where that does not show.

    One token of the last row is replaced by another of that row; then that row is put in an order of no sort, in which tokens
    change places. The first queries, keys or values that are as many as tokens and change have to change there: else a
    trace's positions are not those of the tokens beside them.
    """
    ids = inputs.get("input_ids")
    if not isinstance(ids, Tensor) or ids.dim() != 2 or ids.is_floating_point() or ids.shape[1] <= PLACE:
        return None
    row = ids.shape[0] - 1
    others = ids[row][ids[row] != ids[row, PLACE]]
    if not len(others):
        return None

    def called(tokens: Int[Tensor, " T"]) -> Sequence[Call]:
        given = ids.clone()
        given[row] = tokens
        with hook(model) as made:
            model(**{**inputs, "input_ids": given})
        return list(made)

    changed = ids[row].clone()
    changed[PLACE] = others[-1]
    try:
        moved = _moved(calls, called(changed), ids)
        if moved is None:
            return None
        if not moved[row, PLACE]:
            known = f"A token at position {PLACE} of row {row}, counted from 0, changes what attention is given at {_first(moved)}."
            return _refusal(name, known)
        one, swaps = _swaps(ids[row], inputs.get("attention_mask"))
        base = called(one) if swaps else []
        still: list[int] = []
        for other in swaps:
            moved = _moved(base, called(other), ids)
            places = one.ne(other).nonzero().flatten().tolist()
            places = [p for p in places if moved is None or not moved[row, p]]
            # two tokens may be alike to the model; then neither says anything where it stands
            still += [p for p in places if _moved(base, called(_with(one, p, other)), ids) is not None]
    except Exception as error:
        pass_memory(error)
        return None  # tokens may stand for images, of which there are as many
    if not still:
        return None
    known = f"Two tokens of row {row} change places, and what attention is given at position {still[0]}, "
    return _refusal(name, known + "the place of one of them, counted from 0, stays as it was.")


@torch.no_grad()
def displaced(model: nn.Module, inputs: ModelInputs, hook: CallHook, addresses: Sequence[Address]) -> dict[int, str]:
    """Calls whose positions are not those of the tokens, in words, by their order; those of the first stack alone.

    With values of 0 no attention carries anything from one position to another, so that another token changes queries and keys where
    it stands, in every layer. What lies between layers may reach further, as convolutions do.
    """
    ids = inputs.get("input_ids")
    if not isinstance(ids, Tensor) or ids.dim() != 2 or ids.is_floating_point() or ids.shape[1] <= PLACE:
        return {}
    own = [n for n, address in enumerate(addresses) if address.stack == addresses[0].stack]
    row, others = ids.shape[0] - 1, ids[-1][ids[-1] != ids[-1, PLACE]]
    if len(own) < 2 or not len(others):
        return {}
    changed = ids.clone()
    changed[row, PLACE] = others[-1]
    silent = Edits({n: lambda parts: parts._replace(v=torch.zeros_like(parts.v)) for n in range(len(addresses))})
    passes: list[list[Call]] = []
    try:
        for given in (ids, changed):
            with hook(model, silent, calls=Calls(copied)) as made:
                model(**{**inputs, "input_ids": given})
            passes.append(list(made))
    except Exception as error:
        pass_memory(error)
        return {}  # of some nothing can be replaced, and tokens may stand for images
    before, after = passes
    if len(before) != len(addresses) or len(after) != len(addresses):
        return {}
    found: dict[int, str] = {}
    for n in own:
        moved = _moved(before[n : n + 1], after[n : n + 1], ids)
        if moved is not None and not moved[row, PLACE]:
            found[n] = (
                f"its positions are not those of its tokens: the token at position {PLACE} of row {row} is at {_first(moved)} there"
            )
    return found


def _with(tokens: Int[Tensor, " T"], place: int, others: Int[Tensor, " T"]) -> Int[Tensor, " T"]:
    found = tokens.clone()
    found[place] = others[place]
    return found


def _moved(calls: Sequence[Call], others: Sequence[Call], ids: Int[Tensor, "B T"]) -> Bool[Tensor, "B T"] | None:
    """Where the first queries, keys or values that change do so, of those that are as many as tokens; null where none do."""
    for was, now in zip(calls, others, strict=False):
        pairs = [(a.detach(), b) for a, b in ((was.q, now.q), (was.k, now.k), (was.v, now.v)) if a.shape == b.shape]
        found = [a.ne(b).any(3).any(1) for a, b in pairs if (a.shape[0], a.shape[2]) == tuple(ids.shape)]
        if found and bool((moved := torch.stack(found).any(0)).any()):
            return moved
    return None


def _swaps(tokens: Int[Tensor, " T"], mask: object) -> tuple[Int[Tensor, " T"], list[Int[Tensor, " T"]]]:
    """The tokens in an order that is not sorted, and those again with pairs of unlike ones swapped: in each other pairs.

    Padding stays where it is. Of what is moved as a whole where one token moves, one swap may show everywhere.
    """
    real = torch.ones_like(tokens, dtype=torch.bool)
    if isinstance(mask, Tensor) and mask.dim() == 2 and mask.shape[1] == len(tokens):
        real = mask[-1].bool()
    free = real.nonzero().flatten().tolist()
    one, draw = tokens.clone(), torch.Generator().manual_seed(0)
    for _ in range(TRIES):
        one[free] = tokens[free][torch.randperm(len(free), generator=draw).to(tokens.device)]
        if bool((one.diff() > 0).any()) and bool((one.diff() < 0).any()):
            break
    pairs: list[tuple[int, int]] = []
    while free:
        here = free.pop(0)
        there = next((p for p in reversed(free) if one[p] != one[here]), None)
        if there is not None:
            free.remove(there)
            pairs.append((here, there))
    swaps = []
    for some in (pairs[::2], pairs[1::2]):
        other = one.clone()
        for here, there in some:
            other[here], other[there] = one[there], one[here]
        swaps += [other] if some else []
    return one, swaps


def _first(moved: Bool[Tensor, "B T"]) -> str:
    row, place = moved.nonzero()[0].tolist()
    return f"position {place} of row {row}"


def _refusal(name: str, known: str) -> ModelError:
    given = f"{name} does not read its tokens where they are given."
    todo = "Give the part of it that attends, with tokens in the order in which that takes them."
    return ModelError(given, known, todo)
