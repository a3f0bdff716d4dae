"""The residual stream at the blocks that attention layers stand in, read and edited in a forward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from trisect.core.errors import ModelError
from trisect.core.subject import StreamPoint, StreamWriters
from trisect.core.trace import Address
from trisect.hf.hooks.calls import Arguments, NamedArguments

Change = Callable[[Tensor], Tensor]


def block_of(name: str, model: nn.Module, module: str) -> str:
    """The dotted name of the block that an attention module stands in: the item of the innermost list around it.

    Raises ModelError where it stands in no list of layers.
    """
    known, parts = dict(model.named_modules()), module.split(".")
    for end in reversed(range(1, len(parts))):
        if isinstance(known.get(".".join(parts[:end])), nn.ModuleList):
            return ".".join(parts[: end + 1])
    given = f"The residual stream of {name} was asked for."
    raise ModelError(given, f"Its attention {module!r} stands in no list of layers.", "Choose another model.")


@contextmanager
def edited_streams(
    name: str, model: nn.Module, calls: Sequence[tuple[Address, str]], streams: StreamWriters
) -> Iterator[None]:
    """Forward passes inside go on with what `streams` make of the stream at their points; `calls` are addresses and their modules.

    A module that several layers share is met once for each of them, in their order.
    """
    wanted = {point.address for point in streams}
    with ExitStack() as hooks:
        for block in dict.fromkeys(block_of(name, model, module) for address, module in calls if address in wanted):
            inside: dict[str, list[Address]] = {}
            for address, module in calls:
                if module.startswith(f"{block}."):
                    inside.setdefault(address.stack, []).append(address)
            hooks.enter_context(_hooked(model.get_submodule(block), inside, streams, "input", "output"))
            for part, module in model.get_submodule(block).named_children():
                if not any(own.startswith(f"{block}.{part}") for _, own in calls):
                    hooks.enter_context(_hooked(module, inside, streams, "", "parts"))
        for point, change in streams.items():
            for module in model.modules() if point.where == "embeddings" else ():
                if isinstance(module, nn.Embedding):
                    hooks.enter_context(module.register_forward_hook(lambda _m, _a, out, own=change: own(out)))
        for module in dict.fromkeys(m for address, m in calls if StreamPoint(address, "attention") in streams):
            own = {"": [address for address, m in calls if m == module]}
            hooks.enter_context(_hooked(model.get_submodule(module), own, streams, "", "attention"))
        yield


@contextmanager
def _hooked(
    module: nn.Module, layers: Mapping[str, Sequence[Address]], streams: StreamWriters, before: str, after: str
) -> Iterator[None]:
    """Change what enters and leaves a module at its nth use, for the nth layer of each stack that stands in it."""
    uses = {"in": 0, "out": 0}

    def changes(kind: str, where: str) -> list[Change]:
        nth, uses[kind] = uses[kind], uses[kind] + 1
        points = (StreamPoint(own[nth % len(own)], where) for own in layers.values())
        return [streams[point] for point in points if point in streams]

    def enter(_m: nn.Module, args: Arguments, kwargs: NamedArguments) -> tuple[Arguments, NamedArguments] | None:
        for change in changes("in", before):
            place = next((i for i, value in enumerate(args) if _is_stream(value)), None)
            if place is not None:
                args = (*args[:place], change(args[place]), *args[place + 1 :])
            else:
                key = next(n for n, value in kwargs.items() if _is_stream(value))
                kwargs = {**kwargs, key: change(kwargs[key])}
        return args, kwargs

    def leave(_m: nn.Module, _args: Any, output: Any) -> Any:
        for change in changes("out", after) if isinstance(output, Tensor | tuple | list) else ():
            output = change(output) if isinstance(output, Tensor) else type(output)((change(output[0]), *output[1:]))
        return output

    with ExitStack() as hooks:
        if before:
            hooks.enter_context(module.register_forward_pre_hook(enter, with_kwargs=True))
        hooks.enter_context(module.register_forward_hook(leave))
        yield


def _is_stream(value: object) -> bool:
    return isinstance(value, Tensor) and value.dim() == 3 and value.is_floating_point()
