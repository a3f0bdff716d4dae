"""A fleet's forward and backward pass as one CUDA graph, recorded once and replayed; eager wherever that fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from torch import Tensor

if TYPE_CHECKING:
    from trisect.lm.training_edit import Objective

TOLERANCE = 1e-3  # between a replayed gradient and an eager one; sums by atomic adds differ in their last digits
WARMUP_PASSES = 3  # passes before recording, so that libraries have chosen their kernels and workspaces

_Work = Callable[[], tuple[Tensor, ...]]


@runtime_checkable
class Recorder(Protocol):
    """Records work so that it can be repeated on the same tensors."""

    def record(self, work: _Work, draw: torch.Generator) -> tuple[Callable[[], None], tuple[Tensor, ...]]:
        """The replay, and the tensors that each replay writes to."""
        ...


class CudaGraph:
    """Records by CUDA graph: a replay costs one launch instead of some hundreds."""

    def record(self, work: _Work, draw: torch.Generator) -> tuple[Callable[[], None], tuple[Tensor, ...]]:
        """Warm up on a side stream, then capture."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARMUP_PASSES):
                work()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(draw)
        with torch.cuda.graph(graph):
            outputs = work()
        return graph.replay, outputs


class Replay:
    """A pass over windows of one shape. `usable` is False if recording failed or the replay differs.

    `work` returns outputs, and writes the gradient in place. Recording runs it several times; the state of the objectives in
    `changing` is restored after that.
    """

    def __init__(
        self,
        work: Callable[[Sequence[Tensor]], tuple[Tensor, ...]],
        inputs: Sequence[Tensor],
        draw: torch.Generator,
        gradient: Tensor,
        changing: Sequence[Objective],
        recorder: Recorder,
    ) -> None:
        self.inputs = [tensor.clone() for tensor in inputs]
        self.changing = changing
        self.usable, self.reason = False, ""
        before = self._state()
        try:
            self._replay, self._outputs = recorder.record(lambda: work(self.inputs), draw)
        except RuntimeError as error:
            self.reason = f"it could not be recorded ({str(error).splitlines()[0]})"
            self._restore(before)
            return
        seed = draw.initial_seed()
        self._restore(before)
        draw.manual_seed(seed)
        work(self.inputs)
        eager = [gradient.clone(), *self._values()]
        self._restore(before)
        gradient.zero_()
        draw.manual_seed(seed)
        self._replay()
        pairs = zip([gradient, *self._values()], eager, strict=True)
        difference = max(float((now - exact).norm() / exact.norm().clamp(min=1e-30)) for now, exact in pairs)
        self._restore(before)
        self.usable = difference < TOLERANCE
        self.reason = "" if self.usable else f"a replayed gradient differs from an eager one by {difference:.1e}"

    def fits(self, inputs: Sequence[Tensor]) -> bool:
        """Whether this window has the recorded shape."""
        return self.usable and all(new.shape == old.shape for new, old in zip(inputs, self.inputs, strict=True))

    def __call__(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Run the recorded pass on another window; its outputs are overwritten by the next call."""
        torch.ops.aten._foreach_copy_(self.inputs, list(inputs))
        self._replay()
        return self._outputs

    def _state(self) -> list[dict[str, Tensor]]:
        return [{name: value.clone() for name, value in objective.state().items()} for objective in self.changing]

    def _restore(self, before: Sequence[Mapping[str, Tensor]]) -> None:
        for objective, state in zip(self.changing, before, strict=True):
            objective.restore(state)

    def _values(self) -> list[Tensor]:
        return [state[name] for state in self._state() for name in sorted(state)]
