"""A fleet's forward and backward pass as one CUDA graph, recorded once and replayed; eager wherever that fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from trisect.lm.loss import Scores

TOLERANCE = 1e-3  # between a replayed gradient and an eager one; sums by atomic adds differ in their last digits
WARM = 3  # passes before recording, so that libraries have chosen their kernels and workspaces

RecordedPass = Callable[
    [Tensor, Tensor], Scores
]  # inputs [B T], targets [N] -> scores; the gradient goes to a fixed place


@runtime_checkable
class Recorder(Protocol):
    """What records a piece of work so that it can be run again on the same tensors."""

    def record(self, work: Callable[[], Scores], draw: torch.Generator) -> tuple[Callable[[], None], Scores]:
        """The replay, and the tensors into which each replay writes."""
        ...


class CudaGraph:
    """Records by CUDA graph: a replay costs one launch instead of some hundreds."""

    def record(self, work: Callable[[], Scores], draw: torch.Generator) -> tuple[Callable[[], None], Scores]:
        """Warm up on a side stream, then capture."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM):
                work()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(draw)
        with torch.cuda.graph(graph):
            scores = work()
        return graph.replay, scores


class Replay:
    """One pass over windows of one shape. `usable` is false where recording failed or the replay is not the same."""

    def __init__(
        self,
        work: RecordedPass,
        inputs: Tensor,
        targets: Tensor,
        draw: torch.Generator,
        gradient: Tensor,
        recorder: Recorder,
    ) -> None:
        self.inputs, self.targets = inputs.clone(), targets.clone()
        self.usable, self.reason = False, ""
        try:
            self._replay, self._scores = recorder.record(lambda: work(self.inputs, self.targets), draw)
        except RuntimeError as error:
            self.reason = f"it could not be recorded ({str(error).splitlines()[0]})"
            return
        state = draw.initial_seed()
        draw.manual_seed(state)
        work(self.inputs, self.targets)
        eager = gradient.clone()
        gradient.zero_()
        draw.manual_seed(state)
        self._replay()
        difference = float((gradient - eager).norm() / eager.norm().clamp(min=1e-30))
        self.usable = difference < TOLERANCE
        self.reason = "" if self.usable else f"a replayed gradient differs from an eager one by {difference:.1e}"

    def fits(self, inputs: Tensor) -> bool:
        """Whether these inputs have the recorded shape."""
        return self.usable and inputs.shape == self.inputs.shape

    def __call__(self, inputs: Tensor, targets: Tensor) -> Scores:
        """Run the recorded pass on other inputs; the scores are overwritten by the next call."""
        self.inputs.copy_(inputs)
        self.targets.copy_(targets)
        self._replay()
        return self._scores
