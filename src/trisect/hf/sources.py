"""Whose positions an attention call's keys are: those of its queries, another sequence's, or both joined.

Decided by gradients: what floats enter the module around a call are cut from their graph there, and it is asked which
of them the queries depend on, and which of them the values. Names are not asked; of lengths, and of whether later
positions are seen, only where that does not say which.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from trisect.core.memory import pass_memory
from trisect.core.subject import ModelInputs, Parts
from trisect.hf.arguments import Arguments, NamedArguments
from trisect.hf.calls import Call, CallHook, Edits

SELF, CROSS, MERGED = "self", "cross", "merged"


class CallSource(NamedTuple):
    """Where a call stands: the nth use of its module in the pass, and whose positions its keys are."""

    module: str
    nth: int
    kind: str


class EnteredFloats:
    """The floats that entered the module around the call under way, each cut from its graph."""

    def __init__(self) -> None:
        self.inside: str | None = None
        self.given: list[Tensor] = []
        self.leaves: list[Tensor] = []
        self.before: dict[int, tuple[Tensor, Tensor]] = {}
        self.uses: dict[str, int] = {}
        self.put: list[_Slot] = []

    def enter(self, name: str, args: Arguments, kwargs: NamedArguments) -> tuple[Arguments, NamedArguments] | None:
        """A module that attends, or one around it, begins; the outermost that is given floats is cut off."""
        self.uses[name] = self.uses.get(name, -1) + 1
        if self.inside is not None:
            return None
        made: dict[int, Any] = {}
        leaves: list[tuple[Tensor, Tensor]] = []
        given = _mapped((args, dict(kwargs)), made, leaves, self.put)
        if not leaves:
            self.restore()
            return None
        self.inside, self.given, self.leaves = name, [own for own, _ in leaves], [leaf for _, leaf in leaves]
        self.before |= {id(leaf): (own, leaf) for own, leaf in leaves}
        return given

    def words(self, which: Iterable[int]) -> set[Node]:
        """The look-ups of embeddings that some of those floats are made of, the cuts before them put together again."""
        open_, seen, found = [self.given[i].grad_fn for i in which], set[Node](), set[Node]()
        while open_:
            node = open_.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if type(node).__name__.startswith("EmbeddingBackward"):
                found.add(node)
            cut = self.before.get(id(getattr(node, "variable", None)))
            open_ += [one for one, _ in node.next_functions] + ([] if cut is None else [cut[0].grad_fn])
        return found

    def leave(self, name: str) -> None:
        """That module is done."""
        if self.inside == name:
            self.inside, self.given, self.leaves = None, [], []
            self.restore()

    def restore(self) -> None:
        """What was put into lists and dictionaries of the model's own is as it was, where the model put nothing else there."""
        for held, place, own, copy in self.put:
            if (place in held if isinstance(held, dict) else place < len(held)) and held[place] is copy:
                held[place] = own
        self.put.clear()


class _Slot(NamedTuple):
    """A place in a list or dictionary, what stood there, and what stands there now, made of leaves' copies."""

    held: dict[Any, Any] | list[Any]
    place: Any
    own: Any
    copy: Any


def _mapped(given: Any, made: dict[int, Any], leaves: list[tuple[Tensor, Tensor]], put: list[_Slot]) -> Any:
    """The same nest of arguments, with a fresh leaf's copy in place of every float tensor; one object stays one.

    Lists and dictionaries stay the model's own, since a layer may leave in them what a later one takes out. `made` is
    what stands for each object by its id, so that one that is given twice, or holds itself, is gone through once.
    """
    if isinstance(given, Tensor):
        if not given.is_floating_point() or given.dim() < 2:
            return given
        if id(given) not in made:
            leaf = given.detach().requires_grad_()
            leaves.append((given, leaf))
            made[id(given)] = leaf.clone()
        return made[id(given)]
    if type(given) is tuple:
        return tuple(_mapped(one, made, leaves, put) for one in given)
    if type(given) in (list, dict) and id(given) not in made:
        made[id(given)] = given
        for place, own in list(enumerate(given) if type(given) is list else given.items()):
            copy = _mapped(own, made, leaves, put)
            if copy is not own:
                given[place] = copy
                put.append(_Slot(given, place, own, copy))
    return given


def find_sources(
    model: nn.Module, inputs: ModelInputs, hook: CallHook, calls: Sequence[Call]
) -> tuple[CallSource, ...]:
    """Whose positions the keys of every call are, in order; what no gradient says is decided by lengths."""
    around = _around([call.module for call in calls])
    cut, found = EnteredFloats(), list[CallSource]()
    try:
        with torch.enable_grad(), hook(model, Edits()) as made, _watching(model, around, cut, made, found):
            model(**inputs)
    except RuntimeError as error:  # a model that cannot be derived
        pass_memory(error)
        found = []
    if len(found) != len(calls):
        return tuple(CallSource(call.module, 0, _by_length(call)) for call in calls)
    return tuple(found)


def _around(modules: Sequence[str]) -> list[str]:
    """The modules that attend, and those around one of them alone."""
    own = set(modules)
    names = {name[:i] for name in own for i, letter in enumerate(name) if letter == "."} | own
    return [n for n in names if n and sum(m == n or m.startswith(f"{n}.") for m in own) == 1]


@contextlib.contextmanager
def _watching(
    model: nn.Module, names: Sequence[str], cut: EnteredFloats, calls: Sequence[Call], found: list[CallSource]
) -> Iterator[None]:
    def leave(name: str) -> None:
        found.extend(_source(call, cut) for call in calls[len(found) :])
        cut.leave(name)

    with contextlib.ExitStack() as stack:
        stack.callback(cut.restore)
        for name in names:
            module = model.get_submodule(name)
            before = lambda _m, a, k, name=name: cut.enter(name, a, k)  # noqa: E731
            stack.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
            stack.callback(module.register_forward_hook(lambda _m, _a, _o, name=name: leave(name)).remove)
        yield
        found.extend(_source(call, cut) for call in calls[len(found) :])


def _source(call: Call, cut: EnteredFloats) -> CallSource:
    return CallSource(call.module, cut.uses.get(call.module, 0), _kind(call, cut))


def _kind(call: Call, cut: EnteredFloats) -> str:
    asks, gives = _reached(call.q, cut.leaves), _reached(call.v, cut.leaves)
    if not gives or not asks:  # learned queries, or nothing that is known
        return _by_length(call)
    if asks & gives:
        return MERGED if gives - asks and call.k.shape[2] > call.q.shape[2] else SELF
    # a shorter sequence made of the other one just before, as Funnel's
    pooled = any(
        _reached(cut.given[a], [cut.given[b]]) or _reached(cut.given[b], [cut.given[a]]) for a in asks for b in gives
    )
    return SELF if pooled or (_in_step(call) and cut.words(asks) == cut.words(gives)) else CROSS


def _in_step(call: Call) -> bool:
    """Whether no position sees a later one: then one sequence made in two ways may be read, as by norms of their own."""
    weights, length = call.weights, call.q.shape[2]
    return weights is not None and 1 < length == call.k.shape[2] and not bool(weights.triu(1).any())


def _reached(t: Tensor, leaves: Sequence[Tensor]) -> set[int]:
    if not t.requires_grad or not leaves:
        return set()
    draw = torch.Generator().manual_seed(0)
    mixed = (t * torch.randn(t.shape, generator=draw).to(t)).sum()
    found = torch.autograd.grad(mixed, leaves, retain_graph=True, allow_unused=True)
    return {i for i, grad in enumerate(found) if grad is not None and bool(grad.any())}


def _by_length(call: Call) -> str:
    return SELF if call.q.shape[2] == call.k.shape[2] else CROSS


@torch.no_grad()
def flows(model: nn.Module, inputs: ModelInputs, hook: CallHook, source: int, later: Call) -> bool:
    """Whether what one call gives reaches a later one: whether its queries change when the values of the first do."""

    def write(parts: Parts) -> Parts:
        return Parts(parts.q, parts.k, -2 * parts.v)

    with hook(model, Edits(write={source: write})) as calls:
        model(**inputs)
    return not torch.equal(calls[later.order].q, later.q)
