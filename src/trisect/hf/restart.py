"""Passes that restart at the layer they edit: what the layers below gave is reused from an unedited pass over the same batch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from trisect.hf.arguments import ModelOutput
from trisect.hf.calls import Call, Calls

TOGETHER = 1 << 20  # numbers that are hashed at once
LEAST, SHARE = 64 * 2**20, 0.2  # bytes of outputs that may be kept: at least, and as a share of the weights'


class RestartBlock(NamedTuple):
    """A module of a list of layers as it ran: the calls of attention before it and after it, and what it gave (or null).

    `row` is the list that it stands in.
    """

    module: nn.Module
    row: str
    before: int
    after: int
    output: Any


class RestartPoint(NamedTuple):
    """Where a pass may begin: after block `last`, `calls` calls of attention being left out; `given` says what blocks give."""

    last: int
    calls: int
    given: Mapping[nn.Module, ModelOutput]


@dataclass(eq=False)
class Restarts:
    """What is known of one model's restarts. `works` turns false for good where one gave another answer than a whole pass.

    `checked` are the blocks after which a restart was compared with a whole pass, bit for bit, and whether an edit below had
    been run before: a model may keep what it computed there on the side. `apart` says why edits are
    made one at a time, once several in one pass did not do; `compared` are the calls for which their numbers were looked at.
    """

    works: bool = True
    checked: set[tuple[int, bool]] = field(default_factory=set)
    apart: str = ""
    compared: set[int] = field(default_factory=set)


class Prefix:
    """One unedited pass over one batch: the blocks that ran, in their order, and what they gave.

    Of a model too large to keep all, every so manieth output is kept, and the last of each list of layers.
    """

    def __init__(self, model: nn.Module, attention: Sequence[str]) -> None:
        self.blocks: list[RestartBlock] = []
        self.usable = True
        self._rows = _rows_of(model, attention)
        self._room = max(LEAST, int(SHARE * sum(p.numel() * p.element_size() for p in model.parameters())))
        self._open = 0

    @contextmanager
    def recording(self, calls: Calls) -> Iterator[None]:
        """Note every block of the pass inside; `calls` grows by the calls of attention."""
        hooks, begun = [], dict[nn.Module, int]()

        def enter(module: nn.Module, _given: Any) -> None:
            self.usable = self.usable and not self._open and module not in begun  # none inside another, none twice
            self._open += 1
            begun[module] = len(calls)

        def leave(row: str) -> Callable[[nn.Module, Any, Any], None]:
            def note(module: nn.Module, _given: Any, output: Any) -> None:
                self._open -= 1
                self.blocks.append(RestartBlock(module, row, begun[module], len(calls), output))
                self._thin()

            return note

        try:
            for row, modules in self._rows.items():
                for module in modules:
                    hooks += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave(row))]
            yield
        finally:
            for hook in hooks:
                hook.remove()
        self.usable = self.usable and _in_a_row(self.blocks)

    def _thin(self) -> None:
        """Let go of outputs that are too many to be kept."""
        total, block = sum(map(len, self._rows.values())), self.blocks[-1]
        size = _bytes(block.output)
        self.usable = self.usable and size is not None
        every = max(1, -(-total * (size or 0) // self._room))
        if len(self.blocks) > 1 and (len(self.blocks) - 1) % every and self.blocks[-2].row == block.row:
            self.blocks[-2] = self.blocks[-2]._replace(output=None)

    def before(self, order: int) -> RestartPoint | None:
        """The last place from which a pass that edits call `order` may begin; null where it has to be a whole one."""
        if not self.usable:
            return None
        below = [i for i, block in enumerate(self.blocks) if block.after <= order]
        for last in reversed(range(len(below))):
            ends = {block.row: block for block in self.blocks[: last + 1]}
            if all(_stands_in(block, ends[block.row]) for block in self.blocks[: last + 1]):
                outputs = [block.output for block in self.blocks[: last + 1]]
                rest = [
                    ends[block.row].output if one is None else one
                    for block, one in zip(self.blocks, outputs, strict=False)
                ]
                given = {block.module: one for block, one in zip(self.blocks, rest, strict=False)}
                return RestartPoint(last, self.blocks[last].after, given)
        return None


@contextmanager
def restarted(point: RestartPoint) -> Iterator[None]:
    """The model with the blocks below giving what they gave, without being run; afterwards it is as it was."""
    fresh = {id(output): _copied(output) for output in point.given.values()}
    before = {module: module.__dict__.get("forward") for module in point.given}
    try:
        for module, output in point.given.items():
            module.forward = _giving(fresh[id(output)])
        yield
    finally:
        for module, forward in before.items():
            if forward is None:
                module.__dict__.pop("forward", None)
            else:
                module.forward = forward


def left_out(point: RestartPoint, modules: Sequence[str]) -> Iterator[Call]:
    """Places of the calls that a restarted pass does not make; `modules` are those of all calls in their order."""
    nothing = torch.empty(0, device="meta")
    for order, module in enumerate(modules[: point.calls]):
        yield Call(module, order, nothing, nothing, nothing, None, nothing, None)


def mark_of_bits(given: Tensor) -> str:
    """A hash of a tensor: the same for the same bits, zeros of either sign and whatever is no number being one each."""
    found = hashlib.blake2b(str((tuple(given.shape), given.dtype)).encode(), digest_size=16)
    for part in given.detach().flatten().split(TOGETHER):
        kept = torch.where(part.isnan(), torch.nan, part) + 0.0
        found.update(kept.cpu().view(torch.uint8).numpy().data)
    return found.hexdigest()


def _giving(output: Any) -> Callable[..., Any]:
    return lambda *_given, **_named: output


def _rows_of(model: nn.Module, attention: Sequence[str]) -> dict[str, list[nn.Module]]:
    """The lists of layers in which attention modules stand, the innermost of each, by their dotted names."""
    known = dict(model.named_modules())
    rows: dict[str, list[nn.Module]] = {}
    for name in attention:
        parts = name.split(".")
        for end in reversed(range(1, len(parts))):
            row = ".".join(parts[:end])
            if isinstance(listed := known.get(row), nn.ModuleList):
                rows.setdefault(row, list(listed))
                break
    return rows


def _in_a_row(blocks: Sequence[RestartBlock]) -> bool:
    """Whether every call of attention up to the last block is made in one of the blocks."""
    ends = [0, *(block.after for block in blocks)]
    return bool(blocks) and all(block.before == end for block, end in zip(blocks, ends, strict=False))


def _stands_in(block: RestartBlock, end: RestartBlock) -> bool:
    """Whether what a block gave is known, or what passes on to the last of its list can be that one's, of a layer alike."""
    return block.output is not None or (end.output is not None and type(end.module) is type(block.module))


def _bytes(output: Any) -> int | None:
    """How large the tensors of an output are; null where it holds something else than tensors, tuples, lists and nothing."""
    if isinstance(output, Tensor):
        return output.numel() * output.element_size()
    if output is None or isinstance(output, bool | int | float | str):
        return 0
    if type(output) not in (tuple, list):
        return None
    sizes = [_bytes(one) for one in output]
    return None if None in sizes else sum(size or 0 for size in sizes)


def _copied(output: Any) -> Any:
    """A copy that may be written to."""
    if isinstance(output, Tensor):
        return output.clone()
    return type(output)(map(_copied, output)) if isinstance(output, tuple | list) else output
