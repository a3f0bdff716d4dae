"""A fleet's losses and accuracies on whole splits, its attackers' likewise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from trisect.core.spec import Model
from trisect.lm.adversary import Attackers
from trisect.lm.feed import Piece
from trisect.lm.fleet import Block, forward
from trisect.lm.loss import token_scores

Found = dict[int, list[tuple[str, str, float]]]  # slot -> (split, name, value)


def evaluate(
    parameters: Mapping[str, Tensor],
    model: Model,
    pieces: Mapping[str, Sequence[Piece]],
    attackers: Sequence[Attackers],
    keep: Sequence[Block],
    work: Float[Tensor, " S"],
) -> Found:
    """Mean loss and accuracy over the tokens of each split, without dropout; attackers' over labelled tokens.

    `keep` names the blocks that the attackers read; `work` is room for a block of logits.
    """
    members = parameters["decoder.bias"].shape[0]
    found: Found = {slot: [] for slot in range(members)}
    for split, own in pieces.items():
        totals = torch.zeros(2, members, dtype=torch.float64)
        against = {t.slot: torch.zeros(3, dtype=torch.float64) for g in attackers for t in g.targets}
        for piece in own:
            totals += _measure(parameters, model, piece, attackers, keep, work, against)
        count = sum(p.targets.numel() for p in own)
        for slot, rows in found.items():
            rows += [
                (split, "loss_nats", float(totals[0, slot]) / count),
                (split, "accuracy", float(totals[1, slot]) / count),
            ]
        for slot, (loss, correct, labelled) in against.items():
            if labelled > 0:
                found[slot] += [
                    (split, "adversary_loss_nats", float(loss / labelled)),
                    (split, "adversary_accuracy", float(correct / labelled)),
                ]
    return found


def _measure(
    parameters: Mapping[str, Tensor],
    model: Model,
    piece: Piece,
    attackers: Sequence[Attackers],
    keep: Sequence[Block],
    work: Float[Tensor, " S"],
    against: dict[int, Tensor],
) -> Float[Tensor, "2 F"]:
    with torch.no_grad():
        passed = forward(parameters, piece.inputs, model, blocks=keep)
    scores = token_scores(
        passed.hidden.flatten(1, 2), parameters["decoder.weight"], parameters["decoder.bias"], piece.targets, work
    )
    for group in attackers:
        verdicts = group.judge(group.gather(passed.kept), group.answers(piece.targets, piece.labels))
        for target, loss, correct in zip(group.targets, verdicts.loss, verdicts.correct, strict=True):
            against[target.slot] += torch.tensor(
                [loss.double().sum(), correct.sum(), correct.numel()], dtype=torch.float64
            )
    return torch.stack([scores.loss.double().sum(1), scores.correct.double().sum(1)]).cpu()
