"""Whether a model answers read as it does unread, over texts longer than the example that it was verified with."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trisect.core.errors import ModelError
from trisect.core.subject import ModelInputs
from trisect.hf.arguments import ModelOutput
from trisect.hf.calls import Call, sparing
from trisect.hf.losses import first_tensor
from trisect.hf.opened import eagerly, evaluating
from trisect.hf.room import room

LOOSE = 4  # sums over more positions round more
AT_ONCE = 1 << 17  # numbers of an answer that are compared at once
TINY = torch.finfo(torch.float32).tiny
MASKS = ("attention_mask", "decoder_attention_mask")  # which say what is padding; others say something else


@dataclass(eq=False)
class Agreement:
    """Over how many positions the two answers were compared, what share of an answer's length is rounding, and under which autocast."""

    longest: int
    allowed: float
    autocast: str = ""

    def check_autocast(self, name: str, model: nn.Module) -> None:
        """Raise ModelError where a pass would be under another autocast than the verification was."""
        if (now := autocast_of(model)) == self.autocast:
            return
        here, there = (
            f"inside torch.autocast, in {own}" if own else "outside torch.autocast" for own in (now, self.autocast)
        )
        given = f"{name} is run {here}."
        known = f"It was verified {there}: its numbers round otherwise there."
        raise ModelError(given, known, "Load it and read it both inside torch.autocast, or both outside.")

    def confirm(
        self, name: str, model: nn.Module, inputs: ModelInputs, calls: Sequence[Call], made: ModelOutput
    ) -> None:
        """Run the model by itself where its attention saw more positions than ever before, and compare; raises ModelError.

        What is read is its eager attention, with hooks in place: another implementation, or a model that looks for hooks,
        may compute something else as soon as a text is long.
        """
        masks = [t for name, t in inputs.items() if name in MASKS and isinstance(t, Tensor) and t.dim() == 2]
        length = longest(calls) - min((t.shape[1] - int(t.bool().sum(1).max()) for t in masks), default=0)
        if length <= self.longest:
            return
        with ExitStack() as around:
            quiet = (torch.no_grad(), evaluating(model), sparing(model), eagerly())
            for one in (room(name, "Running", inputs), *quiet):
                around.enter_context(one)
            own = first_tensor(model(**inputs))
            share = apart(first_tensor(made), own, masks)
        if not share <= LOOSE * self.allowed:
            known = f"Over {length} positions the two answers are apart by a share of {share:.1e}; "
            known += f"on loading, over {self.longest}, they agreed."
            todo = (
                "Read shorter texts, or find what in it depends on the length, its attention's implementation or hooks."
            )
            raise ModelError(f"{name} does not answer the same while it is read.", known, todo)
        self.longest = length


def autocast_of(model: nn.Module) -> str:
    """The precisions of torch.autocast in which a model's operations are, by its devices; empty where it is off."""
    kinds = sorted({p.device.type for p in model.parameters() if not p.is_meta})
    own = [
        str(torch.get_autocast_dtype(kind)).removeprefix("torch.") for kind in kinds if torch.is_autocast_enabled(kind)
    ]
    return " and ".join(dict.fromkeys(own))


def longest(calls: Sequence[Call]) -> int:
    """The most positions that any call asks from or sees."""
    return max((max(call.q.shape[2], call.k.shape[2]) for call in calls), default=0)


def apart(made: Tensor, own: Tensor, masks: Sequence[Tensor]) -> float:
    """How long the difference of two answers is, beside the answer, where no padding stands; a part at a time.

    Infinite where they are of other shapes, where one holds numbers and the other none, and where only padding stands.
    """
    if made.shape != own.shape or not own.numel():
        return float("inf")
    real = torch.ones(own.shape[:2] if own.dim() > 2 else own.shape[:1], dtype=torch.bool, device=own.device)
    for mask in masks:
        if mask.shape == real.shape:
            real &= mask.bool().to(real.device)
    places, (one, other) = real.flatten(), (t.reshape(real.numel(), -1) for t in (made, own))
    off = size = 0.0
    for part in places.nonzero().flatten().split(max(1, AT_ONCE // one.shape[1])):
        here, there = one[part].float(), other[part].to(one.device).float()
        kept = here.isfinite()
        if not torch.equal(kept, there.isfinite()):
            return float("inf")
        off += float((here - there).masked_fill_(~kept, 0).double().square().sum())
        size += float(there.masked_fill(~kept, 0).double().square().sum())
    return (off / max(size, TINY)) ** 0.5 if bool(places.any()) else float("inf")
