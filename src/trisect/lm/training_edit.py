"""The interface of training edits: site, parameters, and what is added to the language loss."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, runtime_checkable

from trisect.core.edits import Edit
from trisect.core.errors import SpecError
from trisect.core.schema import record
from trisect.core.site import Site

if TYPE_CHECKING:
    import torch
    from jaxtyping import Float, Int
    from torch import Tensor

    from trisect.core.spec import Model
    from trisect.lm.fleet import Block, Member
    from trisect.text.corpus import Corpus

# what a gradient at a site trains: all below it too, or the site's own projection alone
Reach = Literal["below", "site"]
# where an adversary's output is pushed: away from the right label, or towards the prior
Aim = Literal["wrong", "prior"]
ROW = tuple[str, str, float]  # split, name, value


@runtime_checkable
class Objective(Protocol):
    """An objective of some members of a fleet besides the language loss, on representations at sites."""

    @property
    def sites(self) -> Sequence[Site]:
        """The resolved sites whose representations are read."""
        ...

    @property
    def columns(self) -> tuple[str, ...]:
        """The label columns that are read."""
        ...

    @property
    def reach(self) -> Reach:
        """The parameters that its gradient trains."""
        ...

    def push(
        self,
        blocks: Mapping[Block, Tensor],
        words: Int[Tensor, " N"],
        labels: Mapping[str, Int[Tensor, " N"]],
        into: Mapping[Block, Tensor],
    ) -> Mapping[int, Mapping[str, Tensor]]:
        """One training window: learn from it, and add the gradient of what is added to members' mean loss to `into`.

        Returns by slot what the window's rows are to say, by name: tensors of one number, left where they are, so that a
        GPU need not wait. `feed.label_positions` gives the places of tokens with a label.
        """
        ...

    def measure(
        self, blocks: Mapping[Block, Tensor], words: Int[Tensor, " N"], labels: Mapping[str, Int[Tensor, " N"]]
    ) -> dict[int, Float[Tensor, " S"]]:
        """Sums over a piece of a split in evaluation mode, by slot, to be added over pieces."""
        ...

    def summary(self, sums: Float[Tensor, " S"]) -> list[tuple[str, float]]:
        """A summary of a split's sums, by name; empty without data."""
        ...

    def start_rows(self) -> dict[int, list[ROW]]:
        """Rows recorded once before training, by slot."""
        ...

    def recordable(self, labels: Mapping[str, Int[Tensor, " N"]]) -> bool:
        """Whether windows as this one can be learned from in a recorded pass: no shape and no branch depends on what stands in
        them, only tensors are returned, and state is put back in place. A GPU need not be waited for to tell.
        """
        ...

    def state(self) -> dict[str, Tensor]:
        """Everything that training changes, for a checkpoint."""
        ...

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Resume from a checkpoint."""
        ...


class Trained(NamedTuple):
    """The fleet of the objectives."""

    model: Model
    corpus: Corpus
    seed: int
    device: torch.device | str
    dtype: torch.dtype


@record
class TrainingEdit(Edit):
    """An edit for training small language models; an incomplete kind cannot be instantiated."""

    @abstractmethod
    def prepare(self, member: Member) -> None:
        """Set, hold and share parameters of the edit's member, before the first step and again before a checkpoint is
        read: what is held or shared is a function of the edit and of initialisation alone.
        """

    @classmethod
    @abstractmethod
    def objectives(cls, edits: Mapping[int, TrainingEdit], fleet: Trained) -> Sequence[Objective]:
        """What the members with edits of this kind are trained on beside the language loss; `edits` are all of the fleet's
        by slot, of any kind.
        """


def check_trainable(edit: Edit) -> TrainingEdit:
    """The edit, if small language models can be trained with it; raises SpecError otherwise."""
    if not isinstance(edit, TrainingEdit):
        reason = f"{type(edit).__name__} states what is done and says nothing of how."
        todo = "Make it a TrainingEdit, in a file of trisect/lm/edits, and name it in the tuple there."
        raise SpecError(f"The edit {edit.kind} at {edit.site} cannot be trained.", reason, todo)
    return edit
