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
        count, totals = sum(p.tokens for p in own), totals.cpu()  # the first that a GPU is waited for
        for slot, rows in found.items():
            rows += [
                (split, "loss_nats", float(totals[0, slot]) / count),
                (split, "accuracy", float(totals[1, slot]) / count),
            ]
        for objective, sums in zip(objectives, against, strict=True):
            for slot, total in sums.items():
                found[slot] += [(split, name, value) for name, value in objective.summary(total.cpu())]
    return found


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
