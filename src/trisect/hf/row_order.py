"""Whether the rows of attention's weights are in the order of the positions that they are asked from, by where their output goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from trisect.hf.affine import Passed
from trisect.hf.calls import Call

DIGIT = 100  # whole numbers up to it are exact in half precision


def misplaced(call: Call, consumers: Sequence[Passed]) -> str:
    """What is wrong with the order of a call's rows, in words; empty where nothing is, or where that does not show.

    What row t of weights makes has to enter the next map at position t; where that map takes more positions, as far
    from it as every other row's. Attention of queries that are chosen by what they are (as Informer's) puts each row
    where its query came from, so that row t is no position's that anyone could name.
    """
    rows, length = call.output.shape[0], call.output.shape[2]
    number = _numbers(call)
    for passed in consumers if number is not None else ():
        given = _by_position(passed.x, rows)
        if number is None or given is None or given.shape[1] < length:
            continue
        offsets: dict[int, tuple[int, int]] = {}
        for position in sorted({0, 1, length // 2, length - 1, given.shape[1] - 1} & set(range(given.shape[1]))):
            found = _rows_at(given[0, position], call, number)
            if found is None:
                return ""
            offsets |= {position - t: (t, position) for t in found}
        wrong = [places for by, places in offsets.items() if by]
        if wrong and (given.shape[1] == length or len(offsets) > 1):
            t, position = wrong[0]
            return f"its rows are not in the order of positions: what row {t} makes goes to position {position}"
        return ""
    return ""


def mixed_texts(parts: Mapping[str, Tensor], uses: Sequence[Passed]) -> str:
    """Which of q, k and v of the first text is made of other texts, in words; empty where none is, or where that does not show.

    Heads and texts may lie in one axis, heads first, so that a row of what was recorded is no text's.
    """
    for name, t in parts.items():
        if t.shape[0] == 1 or not t.requires_grad or not uses:
            continue
        mixed = 1 + torch.rand(t[0].shape, generator=torch.Generator().manual_seed(0)).to(t)
        leaves = [use.leaf for use in uses]
        made = torch.autograd.grad((t[0] * mixed).sum(), leaves, retain_graph=True, allow_unused=True)
        for use, gradient in zip(uses, made, strict=True):
            texts = [] if gradient is None else _by_text(gradient, t.shape[0])
            if texts and all(bool(one[1:].any()) for one in texts):
                return f"{name} of one text is made of what {use.name} makes of others, as where heads come before texts in one axis"
    return ""


def _by_text(gradient: Tensor, rows: int) -> list[Tensor]:
    """A gradient with texts first, in each way in which they may lie in it."""
    if gradient.dim() == 2 and len(gradient) % rows == 0:
        gradient = gradient.unflatten(0, (rows, -1))
        return [gradient, gradient.flatten(0, 1).unflatten(0, (-1, rows)).transpose(0, 1)]
    if gradient.dim() != 3:
        return []
    return [gradient.movedim(axis, 0) for axis in (0, 1) if gradient.shape[axis] == rows]


def _numbers(call: Call) -> Tensor | None:
    """For each number of a call's raw output its head and position, counted from 1, in the first text, and 0 in others."""
    raw, output = call.raw, call.output
    if raw is None or not raw.requires_grad or not output.requires_grad or raw.numel() != output.numel():
        return None
    heads, length = output.shape[1:3]
    codes = torch.arange(1, heads * length + 1, device=output.device).view(heads, length, 1)
    whole = torch.zeros(raw.shape, dtype=torch.long, device=raw.device)
    for place in (1, DIGIT, DIGIT**2):
        digits = torch.zeros_like(output)
        digits[0] = (codes // place % DIGIT).to(output)
        (found,) = torch.autograd.grad((output * digits).sum(), raw, retain_graph=True, allow_unused=True)
        if found is None:
            return None
        whole += found.round().long() * place
    return whole


def _by_position(x: Tensor, rows: int) -> Tensor | None:
    """What enters a map as [B T D]; null where its texts and positions do not show."""
    if not x.requires_grad or x.dim() not in (2, 3):
        return None
    if x.dim() == 2:
        return x.unflatten(0, (rows, -1)) if len(x) % rows == 0 else None
    if x.shape[0] == rows:
        return x
    return x.transpose(0, 1) if x.shape[1] == rows else None


def _rows_at(vector: Tensor, call: Call, number: Tensor) -> list[int] | None:
    """The row of each head that a vector is made of; null where that is several of one head, or another text's."""
    assert call.raw is not None
    draw = torch.Generator().manual_seed(0)
    mixed = (1 + torch.rand(vector.shape, generator=draw)).to(vector)
    (found,) = torch.autograd.grad((vector * mixed).sum(), call.raw, retain_graph=True, allow_unused=True)
    if found is None:
        return []
    places = number[found.ne(0)].unique()
    heads, rows = (places - 1) // call.output.shape[2], (places - 1) % call.output.shape[2]
    return None if bool(places.eq(0).any()) or len(heads.unique()) < len(heads) else rows.tolist()
