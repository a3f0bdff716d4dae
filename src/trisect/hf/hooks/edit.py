"""Edit q, k and v by user functions in a model's calls, in generation and in trisect's passes; edit the residual stream."""

from __future__ import annotations

import functools
import itertools
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from transformers.cache_utils import Cache

from trisect.core.errors import ModelError
from trisect.core.subject import (
    QKV,
    EditFunction,
    Shape,
    StreamPoint,
    StreamWriters,
    Writer,
    describe_edits,
    write_in_order,
)
from trisect.core.trace import Address, spell_addresses
from trisect.hf.hooks.calls import (
    RECORDING,
    Arguments,
    Call,
    CallHook,
    Calls,
    Edits,
    NamedArguments,
    check_not_nested,
    outline,
    without_compile,
    without_recompute,
)
from trisect.hf.hooks.interface_hook import record_interface

EDITABLE_MODELS: WeakKeyDictionary[nn.Module, _EditableModel] = WeakKeyDictionary()
BOUND = "_compiled_call_impl"  # attribute that nn.Module.__call__ uses instead of _call_impl if it is set


class _OpenEdit:
    """The functions of one `with` block, by the order of calls of a full pass, and the calls at which they ran."""

    def __init__(self, words: str, writers: Mapping[int, Writer]) -> None:
        self.words = words
        self.now: set[int] = set()  # in the pass under way
        self.ever: set[int] = set()
        self.writers = {order: functools.partial(self._run, order, writer) for order, writer in writers.items()}

    def _run(self, order: int, writer: Writer, parts: QKV) -> QKV:
        self.now.add(order)
        return writer(parts)


class _ModuleCalls(Calls):
    """The calls of a pass of a model or of a submodule; each has the index of its module's nth call in a full pass."""

    def __init__(self, prefix: str, places: Mapping[tuple[str, int], int]) -> None:
        super().__init__(outline)
        self._prefix, self._places, self._uses = prefix, places, defaultdict[str, Iterator[int]](itertools.count)

    def order(self, module: str) -> int:
        """The index of a module's next call; −1 for a call that a full pass does not make."""
        name = f"{self._prefix}{module}"
        return self._places.get((name, next(self._uses[name])), -1)

    def at_orders(self, write: Mapping[int, Writer], rehearsed: Sequence[Call]) -> Mapping[int, Writer]:
        """Writers by the order of the calls that a rehearsal made."""
        self._uses.clear()
        places = {call.order: self.order(call.module) for call in rehearsed}
        return {order: write[place] for order, place in places.items() if place in write}


class _EditableModel:
    """A model whose calls are redirected to `_run` while blocks of edits are open; each thread has its own blocks."""

    def __init__(self, name: str, model: nn.Module, addresses: Mapping[Address, str], hook: CallHook) -> None:
        self.name, self.model = name, model
        self.addresses = tuple(addresses)
        uses = defaultdict[str, Iterator[int]](itertools.count)
        self.places = {(module, next(uses[module])): order for order, module in enumerate(addresses.values())}
        self.blocks: dict[int, list[_OpenEdit]] = {}
        self._busy: set[int] = set()
        self._replaced: dict[nn.Module, Any] = {}
        # edits need no weights, so the model's own attention implementation stays
        self._in_pieces = bool(getattr(hook, "keywords", {}).get("pieces"))
        self._hook = functools.partial(record_interface, as_loaded=True) if hook is record_interface else hook

    @property
    def here(self) -> list[_OpenEdit]:
        """The blocks of this thread, the outermost first."""
        return self.blocks.get(threading.get_ident(), [])

    def bind(self) -> None:
        """Redirect calls of every module around or at attention to `_run`; raises ModelError if another edited model shares one."""
        names = {name for name, _ in self.places}
        parts = {".".join(name.split(".")[:end]) for name in names for end in range(len(name.split(".")) + 1)}
        modules = {self.model.get_submodule(part): part for part in sorted(parts)}
        for module in modules:
            if getattr(module.__dict__.get(BOUND), "func", None) is _EditableModel._run:
                reason = "Another model that shares a module with it is being edited."
                raise ModelError(f"{self.name} cannot be edited now.", reason, "Leave that block first.")
        for module, part in modules.items():
            self._replaced[module] = module.__dict__.get(BOUND)
            module.__dict__[BOUND] = functools.partial(_EditableModel._run, self, part, module)

    def release(self) -> None:
        """Undo `bind`."""
        for module, before in self._replaced.items():
            module.__dict__.pop(BOUND, None)
            if before is not None:
                module.__dict__[BOUND] = before
        self._replaced.clear()

    def writers(self) -> dict[int, Writer]:
        """The edits of this thread's blocks at each call, in sequence."""
        orders = sorted({order for block in self.here for order in block.writers})
        by_order = {n: tuple(block.writers[n] for block in self.here if n in block.writers) for n in orders}
        return {order: functools.partial(write_in_order, writers) for order, writers in by_order.items()}

    @contextmanager
    def passing(self) -> Iterator[None]:
        """One pass of this thread, inside which modules are not redirected; a pass that fails counts as reaching no site."""
        thread = threading.get_ident()
        check_not_nested(thread in self._busy)
        self._busy.add(thread)
        for block in self.here:
            block.now.clear()
        try:
            yield
            for block in self.here:
                block.ever |= block.now
        finally:
            self._busy.discard(thread)

    def _run(self, part: str, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Run a call of the model or of a submodule; as a pass with edits if this thread has open blocks and is in no pass."""
        forward: Callable[..., Any] = module._call_impl
        with RECORDING:
            if threading.get_ident() in self._busy or not self.here:
                return forward(*args, **kwargs)
            prefix = f"{part}." if part else ""
            inside = {order for (name, _), order in self.places.items() if f"{name}.".startswith(prefix)}
            if self._in_pieces and part:  # the hook knows module names of the full model only
                for block in self.here:
                    block.now.clear()
                self._check(inside, goes_on=False)
                return forward(*args, **kwargs)
            calls: Calls = Calls(outline) if self._in_pieces else _ModuleCalls(prefix, self.places)
            caches = [value for value in kwargs.values() if isinstance(value, Cache)]
            # a pass that continues an earlier one, by a filled cache or an encoder's output
            goes_on = kwargs.get("encoder_outputs") is not None or any(cache.get_seq_length() for cache in caches)
            with self.passing(), without_recompute(), self._hook(module, Edits(self.writers()), calls=calls):
                output = forward(*args, **kwargs)
            self._check(inside, goes_on)
        return output

    def _check(self, inside: set[int], goes_on: bool) -> None:
        """Raise ModelError for a site that neither this pass nor the earlier one that it continues has reached."""
        for block in self.here:
            reached = block.now | (block.ever if goes_on else set())
            if missed := sorted(inside & block.writers.keys() - reached):
                self._refuse(block, missed, "Not every pass")

    def _refuse(self, block: _OpenEdit, missed: Sequence[int], where: str) -> None:
        places = spell_addresses([self.addresses[order] for order in missed])
        reason = f"{where} of {self.name} made the verified attention call{'s' * (len(missed) > 1)} of {places}."
        todo = "Give inputs that reach it, call the model itself in the thread of the block, or leave the site out."
        raise ModelError(f"The edit of {block.words} was not made.", reason, todo)

    def close(self, block: _OpenEdit, thread: int, failed: bool) -> None:
        """End a block; raises ModelError for a site that no pass inside it reached."""
        with RECORDING:
            blocks = self.blocks[thread]
            blocks.remove(block)
            if not blocks:
                del self.blocks[thread]
            if not self.blocks:
                self.release()
                EDITABLE_MODELS.pop(self.model, None)
        if not failed and (missed := sorted(block.writers.keys() - block.ever)):
            self._refuse(block, missed, "No pass in this thread")


def open_edits(model: nn.Module) -> list[_OpenEdit]:
    """This thread's open edits of a model, the outermost first."""
    return EDITABLE_MODELS[model].here if model in EDITABLE_MODELS else []


@contextmanager
def beside_edits(model: nn.Module, edits: Edits) -> Iterator[Edits]:
    """Edits for one of trisect's own passes: the open edits first, then its own; open edits are not applied again inside."""
    if not open_edits(model):
        yield edits
        return
    editable = EDITABLE_MODELS[model]
    first = editable.writers()
    both = {n: tuple(maps[n] for maps in (first, edits.write) if n in maps) for n in sorted({*first, *edits.write})}
    with editable.passing():
        yield edits._replace(write={n: functools.partial(write_in_order, writers) for n, writers in both.items()})


@contextmanager
def editing(
    name: str,
    model: nn.Module,
    addresses: Mapping[Address, str],
    hook: CallHook,
    shape: Shape,
    edits: Mapping[str, EditFunction],
) -> Iterator[None]:
    """Run functions at sites in every pass of this thread inside; `addresses` maps a full pass's calls to their modules.

    Raises SiteError, SpecError; and ModelError if a site was not reached.
    """
    order = {address: n for n, address in enumerate(addresses)}
    writers = {order[address]: writer for address, writer in shape.writers(edits).items()}
    block, thread, failed = _OpenEdit(describe_edits(edits), writers), threading.get_ident(), True
    with without_compile():
        with RECORDING:
            if model not in EDITABLE_MODELS:
                editable = _EditableModel(name, model, addresses, hook)
                editable.bind()
                EDITABLE_MODELS[model] = editable
            editable = EDITABLE_MODELS[model]
            editable.blocks.setdefault(thread, []).append(block)
        try:
            yield
            failed = False
        finally:
            editable.close(block, thread, failed)


Change = Callable[[Tensor], Tensor]


def list_around(model: nn.Module, module: str) -> str | None:
    """The dotted name of the innermost ModuleList around a module; None if there is none."""
    parts = module.split(".")
    names = (".".join(parts[:end]) for end in reversed(range(1, len(parts))))
    return next((name for name in names if isinstance(model.get_submodule(name), nn.ModuleList)), None)


@contextmanager
def edited_streams(
    name: str, model: nn.Module, calls: Sequence[tuple[Address, str]], streams: StreamWriters
) -> Iterator[None]:
    """Edit the residual stream at the points of `streams` in forward passes inside; `calls` are (address, module) pairs.

    A module that several layers share is edited once per layer, in order.
    """
    edited, blocks = {point.address for point in streams}, dict[str, None]()
    for module in (module for address, module in calls if address in edited):
        if (row := list_around(model, module)) is None:
            problem = f"The residual stream of {name} cannot be edited."
            raise ModelError(problem, f"Its attention {module!r} is in no list of layers.", "Choose another model.")
        blocks[".".join(module.split(".")[: row.count(".") + 2])] = None  # the item of that list
    with ExitStack() as hooks:
        for block in blocks:
            inside: dict[str, list[Address]] = {}
            for address, module in calls:
                if module.startswith(f"{block}."):
                    inside.setdefault(address.stack, []).append(address)
            hooks.enter_context(_hooked(model.get_submodule(block), inside, streams, "input", "output"))
            for part, module in model.get_submodule(block).named_children():
                if not any(inner.startswith(f"{block}.{part}") for _, inner in calls):
                    hooks.enter_context(_hooked(module, inside, streams, "", "parts"))
        for point, change in streams.items():
            for module in model.modules() if point.where == "embeddings" else ():
                if isinstance(module, nn.Embedding):
                    hooks.enter_context(module.register_forward_hook(lambda _m, _a, out, inner=change: inner(out)))
        for module in dict.fromkeys(m for address, m in calls if StreamPoint(address, "attention") in streams):
            inner = {"": [address for address, m in calls if m == module]}
            hooks.enter_context(_hooked(model.get_submodule(module), inner, streams, "", "attention"))
        yield


@contextmanager
def _hooked(
    module: nn.Module, layers: Mapping[str, Sequence[Address]], streams: StreamWriters, before: str, after: str
) -> Iterator[None]:
    """Edit a module's input and output at its nth use, for the nth layer of each stack inside it."""
    uses = {"in": 0, "out": 0}

    def changes(kind: str, where: str) -> list[Change]:
        nth, uses[kind] = uses[kind], uses[kind] + 1
        points = (StreamPoint(addresses[nth % len(addresses)], where) for addresses in layers.values())
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
