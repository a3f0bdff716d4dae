"""The update of a fleet's parameters: AdamW, or gradient descent in which clipping is part of the step's length."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from trisect.core.spec import Training


class Descent:
    """The optimiser over a fleet's flat parameters; every one of its rules is elementwise, so members never mix."""

    def __init__(self, flat: Float[Tensor, "F P"], training: Training) -> None:
        self.flat, self.decay, self.rate = flat, training.weight_decay, training.rate
        adamw = training.optimizer == "adamw"
        self.optimizer = torch.optim.AdamW([flat], weight_decay=self.decay, fused=True) if adamw else None

    def step(self, gradient: Float[Tensor, "F P"], share: Float[Tensor, " F"], rate: float, look: bool = True) -> None:
        """One step along each member's `share` of its gradient, which may be changed on the way.

        With `look` a share of 1 of all saves work; to look makes a GPU wait.
        """
        self.rate = rate
        if self.optimizer is None:
            if self.decay:
                self.flat.mul_(1 - rate * self.decay)
            self.flat.addcmul_(gradient, (share * -rate)[:, None])
            return
        if not look or bool((share < 1).any()):
            gradient.mul_(share[:, None])
        self.flat.grad = gradient
        self.optimizer.param_groups[0]["lr"] = rate
        self.optimizer.step()

    def state(self) -> dict[str, Tensor]:
        """Everything that the next step depends on beside the parameters, for a snapshot."""
        return {} if self.optimizer is None else moments(self.optimizer, self.flat)

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a snapshot."""
        if self.optimizer is not None:
            restore_moments(self.optimizer, self.flat, state)


def moments(optimizer: torch.optim.Optimizer, flat: Tensor) -> dict[str, Tensor]:
    """What an optimiser keeps of its parameters, by names that begin with 'optimizer.'."""
    return {f"optimizer.{k}": v for k, v in optimizer.state[flat].items() if isinstance(v, Tensor)}


def restore_moments(optimizer: torch.optim.Optimizer, flat: Tensor, state: Mapping[str, Tensor]) -> None:
    """Put back what `moments` gave, where the optimiser keeps it now: a recorded pass goes on writing there.

    Before the first step there is nothing, which is the same as zeros.
    """
    found = {k.removeprefix("optimizer."): v for k, v in state.items() if k.startswith("optimizer.")}
    if flat not in optimizer.state:
        if found:
            optimizer.state[flat] = {k: v.to(flat.device, copy=True) for k, v in found.items()}
        return
    for name, kept in optimizer.state[flat].items():
        if name in found:
            kept.copy_(found[name])
        else:
            kept.zero_()
