"""A fleet's losses and accuracies on whole splits, and what its other objectives measure there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from trisect.core.spec import Model
from trisect.lm.edits.base import Objective
from trisect.lm.feed import Piece
from trisect.lm.fleet import Block, forward
from trisect.lm.loss import token_scores

Found = dict[int, list[tuple[str, str, float]]]  # slot -> (split, name, value)


def evaluate(
    parameters: Mapping[str, Tensor],
    model: Model,
    pieces: Mapping[str, Sequence[Piece]],
    objectives: Sequence[Objective],
    keep: Sequence[Block],
    work: Float[Tensor, " S"],
) -> Found:
    """Mean loss and accuracy over the tokens of each split, without dropout, and the rows of other objectives.

    `keep` names the blocks that the objectives read; `work` is room for a block of logits.
    """
    members = parameters["decoder.bias"].shape[0]
    found: Found = {slot: [] for slot in range(members)}
    for split, own in pieces.items():
        totals = torch.zeros(2, members, dtype=torch.float64, device=parameters["decoder.bias"].device)
        against: list[dict[int, Tensor]] = [{} for _ in objectives]
        for piece in own:
            totals += _measure(parameters, model, piece, objectives, keep, work, against)
        count = sum(p.tokens for p in own)
        totals, *said = _gathered([totals, *(total for sums in against for total in sums.values())])
        summed = iter(said)
        for slot, rows in found.items():
            rows += [
                (split, "loss_nats", float(totals[0, slot]) / count),
                (split, "accuracy", float(totals[1, slot]) / count),
            ]
        for objective, sums in zip(objectives, against, strict=True):
            for slot in sums:
                found[slot] += [(split, name, value) for name, value in objective.summary(next(summed))]
    return found


def _gathered(sums: Sequence[Tensor]) -> list[Tensor]:
    """The sums on the host, by one copy: the only thing that a GPU is waited for."""
    flat = torch.cat([one.double().flatten() for one in sums]).cpu()
    parts = flat.split([one.numel() for one in sums])
    return [part.view(one.shape).to(one.dtype) for part, one in zip(parts, sums, strict=True)]


def _measure(
    parameters: Mapping[str, Tensor],
    model: Model,
    piece: Piece,
    objectives: Sequence[Objective],
    keep: Sequence[Block],
    work: Float[Tensor, " S"],
    against: list[dict[int, Tensor]],
) -> Float[Tensor, "2 F"]:
    with torch.no_grad():
        passed = forward(parameters, piece.inputs, model, blocks=keep)
    hidden = piece.counted(passed.hidden.flatten(1, 2))
    scores = token_scores(hidden, parameters["decoder.weight"], parameters["decoder.bias"], piece.gold, work)
    for objective, sums in zip(objectives, against, strict=True):
        for slot, one in objective.measure(passed.kept, piece.spoken(objective.columns), piece.labels).items():
            sums[slot] = sums[slot] + one if slot in sums else one
    return torch.stack([scores.loss.double().sum(1), scores.correct.double().sum(1)])
