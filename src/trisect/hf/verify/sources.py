"""Whose positions the keys of an attention call are, in their order, and which calls are layers of one stack."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations, pairwise
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from torch.autograd.graph import Node

from trisect.core.errors import ModelError, reraise_out_of_memory
from trisect.core.subject import ModelInputs, Parts
from trisect.core.trace import Address
from trisect.hf.hooks.calls import Arguments, Call, CallHook, Edits, NamedArguments, gradients_of
from trisect.hf.locate.output_projection import OTHER_AXIS

SELF, CROSS, MERGED = "self", "cross", "merged"
PARTS = ("queries", "keys", "values")


class Met(NamedTuple):
    """One attention call as far as its stack follows from it: the nth use of its module, and whose positions its keys are.

    It `asks` from and `sees` so many positions. `order` says which of its parts is displaced along the sequence; empty where
    none is, or where no gradient says so.
    """

    module: str
    nth: int
    kind: str
    asks: int
    sees: int
    order: str = ""


class EnteredFloats:
    """The floats that entered the module around the call under way, each cut from its graph."""

    def __init__(self) -> None:
        self.inside: str | None = None
        self.floats: list[Tensor] = []
        self.leaves: list[Tensor] = []
        self.before: dict[int, tuple[Tensor, Tensor]] = {}
        self.uses: dict[str, int] = {}
        # places in lists and dictionaries of the model's own, what stood there, and what stands there now
        self.put: list[tuple[dict[Any, Any] | list[Any], Any, Any, Any]] = []

    def enter(self, name: str, args: Arguments, kwargs: NamedArguments) -> tuple[Arguments, NamedArguments] | None:
        """A module that attends, or one around it, begins; the outermost that is given floats is cut off."""
        self.uses[name] = self.uses.get(name, -1) + 1
        if self.inside is not None:
            return None
        leaves: list[tuple[Tensor, Tensor]] = []
        replaced = _with_leaves((args, dict(kwargs)), {}, leaves, self.put)
        if not leaves:
            self.restore()
            return None
        self.inside, self.floats, self.leaves = name, [t for t, _ in leaves], [leaf for _, leaf in leaves]
        self.before |= {id(leaf): (t, leaf) for t, leaf in leaves}
        return replaced

    def words(self, which: Iterable[int]) -> set[Node]:
        """The look-ups of embeddings that some of those floats are made of, the cuts before them put together again."""
        open_, seen, lookups = [self.floats[i].grad_fn for i in which], set[Node](), set[Node]()
        while open_:
            node = open_.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if type(node).__name__.startswith("EmbeddingBackward"):
                lookups.add(node)
            cut = self.before.get(id(getattr(node, "variable", None)))
            open_ += [earlier for earlier, _ in node.next_functions] + ([] if cut is None else [cut[0].grad_fn])
        return lookups

    def leave(self, name: str) -> None:
        """That module is done."""
        if self.inside == name:
            self.inside, self.floats, self.leaves = None, [], []
            self.restore()

    def restore(self) -> None:
        """What was put into lists and dictionaries of the model's own is as it was, where the model put nothing else there."""
        for holder, place, before, copy in self.put:
            if (place in holder if isinstance(holder, dict) else place < len(holder)) and holder[place] is copy:
                holder[place] = before
        self.put.clear()


def _with_leaves(
    nest: Any, copies: dict[int, Any], leaves: list[tuple[Tensor, Tensor]], put: list[tuple[Any, Any, Any, Any]]
) -> Any:
    """The same nest of arguments, in which lists and dictionaries stay the model's own, with a fresh leaf's copy for every float tensor."""
    if isinstance(nest, Tensor):
        if not nest.is_floating_point() or nest.dim() < 2:
            return nest
        if id(nest) not in copies:
            leaf = nest.detach().requires_grad_()
            leaves.append((nest, leaf))
            copies[id(nest)] = leaf.clone()
        return copies[id(nest)]
    if type(nest) is tuple:
        return tuple(_with_leaves(item, copies, leaves, put) for item in nest)
    if type(nest) in (list, dict) and id(nest) not in copies:
        copies[id(nest)] = nest
        for place, item in list(enumerate(nest) if type(nest) is list else nest.items()):
            copy = _with_leaves(item, copies, leaves, put)
            if copy is not item:
                nest[place] = copy
                put.append((nest, place, item, copy))
    return nest


def _find_sources(model: nn.Module, inputs: ModelInputs, hook: CallHook, calls: Sequence[Call]) -> tuple[Met, ...]:
    """Whose positions the keys of every call are, in order; what no gradient says is decided by lengths."""
    # the modules that attend, and those around one of them alone
    attending = {call.module for call in calls}
    names = {name[:i] for name in attending for i, letter in enumerate(name) if letter == "."} | attending
    around = [n for n in names if n and sum(m == n or m.startswith(f"{n}.") for m in attending) == 1]
    cut, sources = EnteredFloats(), list[Met]()

    def leave(name: str, *_inner: object) -> None:
        sources.extend(_source(call, cut) for call in recorded[len(sources) :])
        cut.leave(name)

    try:
        with torch.enable_grad(), hook(model, Edits()) as recorded, contextlib.ExitStack() as stack:
            stack.callback(cut.restore)
            for name in around:
                module = model.get_submodule(name)
                enter = lambda _m, a, k, name=name: cut.enter(name, a, k)  # noqa: E731
                stack.callback(module.register_forward_pre_hook(enter, with_kwargs=True).remove)
                stack.callback(module.register_forward_hook(lambda _m, _a, _o, name=name: leave(name)).remove)
            model(**inputs)
            leave("")
    except RuntimeError as error:  # a model that cannot be derived
        reraise_out_of_memory(error)
        sources = []
    if len(sources) != len(calls):
        return tuple(Met(call.module, 0, _by_length(call), call.q.shape[2], call.k.shape[2]) for call in calls)
    return tuple(sources)


def _source(call: Call, cut: EnteredFloats) -> Met:
    """A call with whose positions its keys are by gradients, and what is wrong with their order."""
    asks, gives = _leaves_of(call.q, cut.leaves), _leaves_of(call.v, cut.leaves)
    if not gives or not asks:  # learned queries, or nothing that is known
        kind = _by_length(call)
    elif asks & gives:
        kind = MERGED if gives - asks and call.k.shape[2] > call.q.shape[2] else SELF
    else:
        # a shorter sequence made of the other one just before, as Funnel's
        pairs = [(cut.floats[a], cut.floats[b]) for a in asks for b in gives]
        is_pooled = any(_leaves_of(a, [b]) or _leaves_of(b, [a]) for a, b in pairs)
        # where no position sees a later one, one sequence made in two ways may be read, as by norms of their own
        weights, length = call.weights, call.q.shape[2]
        causal = weights is not None and 1 < length == call.k.shape[2] and not bool(weights.triu(1).any())
        kind = SELF if is_pooled or (causal and cut.words(asks) == cut.words(gives)) else CROSS
    order = _other_axis(call, cut.leaves) or _part_shift(call, kind, cut.leaves)
    return Met(call.module, cut.uses.get(call.module, 0), kind, call.q.shape[2], call.k.shape[2], order)


def _part_shift(call: Call, kind: str, leaves: Sequence[Tensor]) -> str:
    """Whether keys or values are displaced against queries of their sequence, in words: made of nothing that entered at that place."""
    parts = dict(zip(PARTS, (call.q, call.k, call.v), strict=True))
    if kind != SELF or call.q.shape[2] != call.k.shape[2]:
        del parts["queries"]
    if call.k.shape[2] != call.v.shape[2] or not leaves or not all(t.requires_grad for t in parts.values()):
        return ""
    (first, reference), *others = parts.items()
    length = reference.shape[2]
    positions = sorted({0, min(1, length - 1), length // 2, length - 1})
    expected = {position: _support(reference[:, :, position], leaves) for position in positions}
    for name, t in others:
        support = {position: _support(t[:, :, position], leaves) for position in positions}
        apart = [p for p in positions if bool(support[p].any()) and not bool((expected[p] & support[p]).any())]
        # two parts of one longer sequence have no place in common
        everywhere = _support(t, leaves) if apart else None
        for position in apart:
            if everywhere is not None and bool((expected[position] & everywhere).any()):
                return f"its {name} are displaced: that at position {position} is made of nothing that its {first} there are made of"
    return ""


def _other_axis(call: Call, leaves: Sequence[Tensor]) -> str:
    """Whether a call attends over units or heads, in words: two far queries are then made of all positions, two units of one each."""

    def apart(t: Tensor, axis: int) -> bool:
        """Whether the first and the last along an axis have no place in common, of as many in the leaves as there are."""
        count = t.shape[axis]
        ends = (t.select(axis, i)[0] for i in (0, count - 1))
        first, last = ([None if g is None else g.ne(0) for g in gradients_of(end, leaves)] for end in ends)
        for first_places, last_places in zip(first, last, strict=True):
            if first_places is None or last_places is None or not first_places.any() or not last_places.any():
                continue
            for start, end in combinations(range(first_places.dim() + 1), 2):
                shape = first_places.shape[:start].numel(), first_places.shape[start:end].numel(), -1
                places = (seen.reshape(shape).any(2).any(0) for seen in (first_places, last_places))
                if (axis == 2 or shape[1] == count) and not bool(torch.logical_and(*places).any()):
                    return True
        return False

    t = next((t for t in (call.q, call.k) if t.requires_grad and _leaves_of(t, leaves)), None)
    if t is None or t.shape[2] == 1 or apart(t, 2):
        return ""
    other = next((words for axis, words in ((3, "units"), (1, "heads")) if t.shape[axis] > 1 and apart(t, axis)), "")
    return other and OTHER_AXIS.format(other)


def _support(t: Tensor, leaves: Sequence[Tensor]) -> Bool[Tensor, " N"]:
    """What of the leaves the first row of a part [B H T E] is made of: all their numbers but for the last axis, one after another."""
    pairs = zip(leaves, gradients_of(t[0], leaves), strict=True)
    gradients = (torch.zeros_like(leaf) if grad is None else grad for leaf, grad in pairs)
    return torch.cat([grad.ne(0).any(-1).flatten().cpu() for grad in gradients])


def _leaves_of(t: Tensor, leaves: Sequence[Tensor]) -> set[int]:
    return {i for i, grad in enumerate(gradients_of(t, leaves)) if grad is not None and bool(grad.any())}


def _by_length(call: Call) -> str:
    return SELF if call.q.shape[2] == call.k.shape[2] else CROSS


PLACE = 1  # the first may be a special token's
TRIES = 8  # orders that are drawn until one rises and falls


@torch.no_grad()
def find_position_shifts(
    name: str, model: nn.Module, inputs: ModelInputs, hook: CallHook, addresses: Sequence[Address]
) -> tuple[dict[int, str], ModelError | None]:
    """Calls whose queries, keys or values are not at the positions of the tokens, in words, by their order; and why a model is refused.

    With values of 0 no attention carries anything from one position to another, so that another token changes queries, keys and
    values where it stands, in every layer that it enters. What lies between layers may reach further, as convolutions do.
    A model that turns, sorts or shifts its tokens by itself is refused as a whole.
    """

    def run(inputs: ModelInputs) -> list[Parts]:
        met: dict[int, Parts] = {}

        def silence(order: int, parts: Parts) -> Parts:
            met[order] = Parts(*(t.clone() for t in parts))
            return parts._replace(v=torch.zeros_like(parts.v))

        with hook(model, Edits({n: functools.partial(silence, n) for n in range(len(addresses))})):
            model(**inputs)
        return [met[n] for n in range(len(addresses))]

    shifts: dict[int, str] = {}
    # which parts of which calls are of the positions of which tokens
    stacks = list(enumerate(address.stack for address in addresses))
    crossing = [n for n, stack in stacks if stack.endswith(CROSS)]
    first: dict[int, Sequence[str]] = {n: PARTS for n, stack in stacks if stack == stacks[0][1]}
    second: dict[int, Sequence[str]] = {n: PARTS for n, stack in stacks if stack.endswith("dec")}
    first, second = first | dict.fromkeys(crossing, PARTS[1:]), second | dict.fromkeys(crossing, PARTS[:1])
    try:
        for tokens, fed in (("input_ids", first), ("decoder_input_ids", second)):
            changed = _with_another_token(inputs.get(tokens))
            if changed is None:
                continue
            before, after = run(inputs), run({**inputs, tokens: changed})
            if tokens == "input_ids":
                try:
                    refusal = _find_reordering(
                        name, inputs, before, after, lambda ids: run({**inputs, "input_ids": ids})
                    )
                except Exception as error:
                    # some take no other order of their tokens; their layers are looked at all the same
                    reraise_out_of_memory(error)
                    refusal = None
                if refusal is not None:
                    return {}, refusal
            for n, part in ((n, part) for n, names in fed.items() for part in names):
                was, now = (parts[n][PARTS.index(part)] for parts in (before, after))
                if fault := _part_fault(part, was, now, changed):
                    shifts.setdefault(n, fault)
    except Exception as error:
        # of some nothing can be replaced, and tokens may stand for images, of which there are as many
        reraise_out_of_memory(error)
    return shifts, None


def _part_fault(part: str, was: Tensor, now: Tensor, changed: Int[Tensor, "B T"]) -> str:
    """What is wrong with the positions of a part [B H T E] of which one token changed, in words; empty where nothing is."""
    if was.shape == now.shape and (was.shape[2], was.shape[0]) == tuple(changed.shape) != (1, len(was)):
        moved = was.ne(now).any(3).any(1)
        is_usual = moved.shape == changed.shape and bool(moved[-1, PLACE])
        if not is_usual and moved.T[-1, PLACE] and int(moved.sum()) == 1:
            return OTHER_AXIS.format("texts")
    for head in () if _change_at(was, now, changed) is None else was.ne(now).any(3).unbind(1):
        if bool(head.any()) and not head[-1, PLACE]:
            words = f"its {part} are not at the positions of its tokens: the token at position {PLACE} of row"
            return f"{words} {len(changed) - 1} is at {_first(head)} there"
    return ""


def _find_reordering(
    name: str,
    inputs: ModelInputs,
    before: Sequence[Parts],
    after: Sequence[Parts],
    run: Callable[[Int[Tensor, "B T"]], Sequence[Parts]],
) -> ModelError | None:
    """Why a model is refused that moves its tokens: those of the last row, one changed (`after`) or in another order, change elsewhere."""
    ids: Tensor = inputs["input_ids"]
    row = len(ids) - 1

    def moves(was_parts: Sequence[Parts], now_parts: Sequence[Parts]) -> Bool[Tensor, "B T"] | None:
        for was, now in zip(was_parts, now_parts, strict=True):
            places = [m for a, b in zip(was, now, strict=True) if (m := _change_at(a, b, ids)) is not None]
            if places and bool((moved := torch.stack(places).any(0)).any()):
                return moved
        return None

    def of_row(tokens: Int[Tensor, " T"]) -> Sequence[Parts]:
        return run(torch.cat([ids[:-1], tokens[None]]))

    if (moved := moves(before, after)) is None:
        return None
    words = f"{name} does not read its tokens where they are given."
    todo = "Give the part of it that attends, with tokens in the order in which that takes them."
    if not moved[row, PLACE]:
        reason = f"A token at position {PLACE} of row {row}, counted from 0, changes what attention is given at {_first(moved)}."
        return ModelError(words, reason, todo)
    row_tokens, swaps = _swaps(ids[row], inputs.get("attention_mask"))
    base = before if torch.equal(row_tokens, ids[row]) else of_row(row_tokens) if swaps else []
    for other in swaps:
        moved = moves(base, of_row(other))
        places = row_tokens.ne(other).nonzero().flatten().tolist()
        for place in (p for p in places if moved is None or not moved[row, p]):
            # two tokens may be alike to the model; then neither says anything where it stands
            alone = row_tokens.index_copy(0, torch.tensor([place], device=row_tokens.device), other[place : place + 1])
            if moves(base, of_row(alone)) is not None:
                reason = f"Two tokens of row {row} change places, and what attention is given at position {place}, "
                return ModelError(words, reason + "the place of one of them, counted from 0, stays as it was.", todo)
    return None


def _change_at(was: Tensor, now: Tensor, ids: Tensor) -> Bool[Tensor, "B T"] | None:
    """Where a part [B H T E] changed; None where it has other positions than the tokens."""
    if was.shape != now.shape or (was.shape[0], was.shape[2]) != tuple(ids.shape):
        return None
    return was.ne(now).any(3).any(1)


def _with_another_token(ids: object) -> Int[Tensor, "B T"] | None:
    """Token ids with another token of the last row in one place of it; None where there are none, or no other."""
    if not isinstance(ids, Tensor) or ids.dim() != 2 or ids.is_floating_point() or ids.shape[1] <= PLACE:
        return None
    others, changed = ids[-1][ids[-1] != ids[-1, PLACE]], ids.clone()
    if not len(others):
        return None
    changed[-1, PLACE] = others[-1]
    return changed


def _swaps(tokens: Int[Tensor, " T"], mask: object) -> tuple[Int[Tensor, " T"], list[Int[Tensor, " T"]]]:
    """The tokens in an order that is not sorted, padding in its place, and those again with pairs of unlike ones swapped, in two halves."""
    real = torch.ones_like(tokens, dtype=torch.bool)
    if isinstance(mask, Tensor) and mask.dim() == 2 and mask.shape[1] == len(tokens):
        real = mask[-1].bool()
    free = real.nonzero().flatten().tolist()
    order, draw = tokens.clone(), torch.Generator().manual_seed(0)
    for _ in range(TRIES):
        if bool((order.diff() > 0).any()) and bool((order.diff() < 0).any()):
            break
        order[free] = tokens[free][torch.randperm(len(free), generator=draw).to(tokens.device)]
    pairs: list[tuple[int, int]] = []
    while free:
        here = free.pop(0)
        partner = next((p for p in reversed(free) if order[p] != order[here]), None)
        if partner is not None:
            free.remove(partner)
            pairs.append((here, partner))
    swaps = []
    for swapped in (pairs[::2], pairs[1::2]):
        other = order.clone()
        for here, partner in swapped:
            other[here], other[partner] = order[partner], order[here]
        swaps += [other] if swapped else []
    return order, swaps


def _first(moved: Bool[Tensor, "B T"]) -> str:
    row, place = moved.nonzero()[0].tolist()
    return f"position {place} of row {row}"


# words of a module's name that say whose tower it is in; the first that is met counts
TOWERS = {
    "qformer": ("qformer",),
    "resampler": ("resampler", "perceiver", "abstractor"),
    "memory": ("memory",),
    "prompt": ("prompt",),
    "mask": ("mask",),
    "vision": ("vision", "visual", "visn", "image", "img", "pixel"),
    "video": ("video",),
    "audio": ("audio", "speech", "acoustic"),
    "text": ("text", "language", "lang", "llm"),
}
PLAIN = {"attention", "attn", "self", "att", "layer", "layers", "block", "blocks", "module", "model", "transformer"}
PLAIN |= {"encoder", "decoder", "cross", "crossattention", "base", "inner", "multihead", "mha", "h", "tower"}


def words_of(path: str) -> list[str]:
    """The words of a dotted name, without numbers."""
    return [w for w in re.split(r"[._]", re.sub(r"([a-z])([A-Z])", r"\1_\2", path).lower()) if w and not w.isdigit()]


def _tower_of(path: str) -> str:
    """The tower that a name says; empty where it says none."""
    words = set(words_of(path))
    return next((tower for tower, names in TOWERS.items() if words & set(names)), "")


def _container(module: str) -> str:
    """The name of the list of layers that a module is in: what stands before its first number, else before its last word."""
    parts = module.split(".")
    number = next((i for i, part in enumerate(parts) if part.isdigit()), len(parts) - 1)
    return ".".join(parts[:number])


def name_stacks(met: Sequence[Met], towers: Sequence[str]) -> list[str]:
    """The stack of every call, given the tower of each; calls of a tower are split by their part in it."""
    names = [""] * len(met)
    for tower in dict.fromkeys(towers):
        of_tower = [i for i, t in enumerate(towers) if t == tower]
        roles = _roles([met[i] for i in of_tower], [m for m, t in zip(met, towers, strict=True) if t != tower])
        for i, role in zip(of_tower, roles, strict=True):
            inner = "" if role == "dec" and "enc" not in roles else role  # a tower that reads another one
            names[i] = (role or "plain") if not tower else f"{tower}_{inner}" if inner else tower
    return names


def _roles(met: Sequence[Met], others: Sequence[Met]) -> list[str]:
    """Of the calls of one tower: enc, dec, cross and merged, or empty where they are layers of one stack."""
    away = {m.asks for m in others if m.kind == SELF}
    crossing = {_container(m.module) for m in met if m.kind != SELF}
    roles = []
    for i, call in enumerate(met):
        place = _container(call.module)
        if call.kind in (CROSS, MERGED):
            roles.append(call.kind)
        elif place in crossing:
            feeds = any(m.kind == SELF and _container(m.module) not in crossing for m in met)
            fed = _feeding(met, place, away)
            roles.append("dec" if fed or not feeds else "")
        else:
            later = {_container(m.module) for m in met[i:] if m.kind != SELF}
            roles.append("enc" if any(place in _feeding(met, c, away) for c in later) else "")
    return roles


def _feeding(met: Sequence[Met], place: str, away: set[int]) -> set[str]:
    """The lists of layers whose positions the cross-attention of `place` sees; `away` are lengths of other towers."""
    sees = {
        m.sees - (m.asks if m.kind == MERGED else 0) for m in met if m.kind != SELF and _container(m.module) == place
    }
    first = next(i for i, m in enumerate(met) if m.kind != SELF and _container(m.module) == place)
    before = [m for m in met[:first] if m.kind == SELF and _container(m.module) != place]
    long = {_container(m.module) for m in before if m.asks in sees}
    if long or sees & away:
        return long
    return {c for m in before if "encoder" in words_of(c := _container(m.module))}  # padded, or pooled


def number_layers(met: Sequence[Met], stacks: Sequence[str]) -> list[tuple[str, int]]:
    """The stack and the layer of every call; a stack with two calls in each layer is split by what they are called."""
    numbered: dict[int, tuple[str, int]] = {}
    used = set(stacks)
    for stack in dict.fromkeys(stacks):
        of_stack = [i for i, s in enumerate(stacks) if s == stack]
        uses = list(dict.fromkeys((met[i].module, met[i].nth) for i in of_stack))
        layers = {use: (name, n) for use, name, n in _split_stack(stack, uses, met, of_stack, used)}
        seen: dict[tuple[str, int], int] = {}
        for i in of_stack:
            use = met[i].module, met[i].nth
            part = seen[use] = seen.get(use, 0) + 1  # a layer that attends twice, as DiffLlama's
            name, number = layers[use]
            numbered[i] = name if part == 1 else f"{'part' if name == 'plain' else name}{part}", number
    return [numbered[i] for i in range(len(met))]


Use = tuple[str, int]


def _split_stack(
    stack: str, uses: Sequence[Use], met: Sequence[Met], of_stack: Sequence[int], used: set[str]
) -> list[tuple[Use, str, int]]:
    numbers = layer_numbers([m for m, _ in uses])
    if numbers is not None:
        return [(use, stack, n) for use, n in zip(uses, numbers, strict=True)]
    length = {(met[i].module, met[i].nth): met[i].asks for i in of_stack}
    for key in (lambda u: ".".join(part for part in u[0].split(".") if not part.isdigit()), lambda u: _container(u[0])):
        groups: dict[str, list[Use]] = {}
        for use in uses:
            groups.setdefault(key(use), []).append(use)
        counted = {key: layer_numbers([m for m, _ in group]) for key, group in groups.items()}
        places = {_container(group[0][0]) for group in groups.values()}
        apart = len(places) == 1 or len({length[group[0]] for group in groups.values()}) > 1
        apart = apart or list(uses) != [use for group in groups.values() for use in group]
        if len(groups) > 1 and apart and all(n is not None for n in counted.values()):
            names = _names(stack, list(groups), used)
            return [
                (use, name, n)
                for (key, group), name in zip(groups.items(), names, strict=True)
                for use, n in zip(group, counted[key] or (), strict=True)
            ]
    return [(use, stack, n) for n, use in enumerate(uses, 1)]


def _names(stack: str, keys: Sequence[str], used: set[str]) -> list[str]:
    """A name for each part of a stack: one without a word of its own keeps the stack's, else the first."""
    common = set.intersection(*(set(words_of(key)) for key in keys))
    words_alone = {key: [w for w in dict.fromkeys(words_of(key)) if w not in common] for key in keys}
    parts = {key: next((w[:3] for w in ("encoder", "decoder") if w in words), "") for key, words in words_alone.items()}
    labels = {key: "_".join(w for w in words if w not in PLAIN) or parts[key] for key, words in words_alone.items()}
    first = next((key for key, name in labels.items() if not name), keys[0])
    names = []
    for number, key in enumerate(keys, 1):
        name = labels[key] or f"part{number}"
        name = stack if key == first else name if stack == "plain" else f"{stack}_{name}"
        while key != first and name in used:
            name += "2"
        used.add(name)
        names.append(name)
    return names


def layer_numbers(modules: Sequence[str]) -> list[int] | None:
    """A layer number from 1 for each module name, by the number in it that counts; in order where none has a number.

    None where they have numbers, and none of those counts.
    """
    paths = [[int(part) for part in name.split(".") if part.isdigit()] for name in modules]
    for place in range(max((len(path) for path in paths), default=0)):
        if all(len(path) > place for path in paths):
            numbers = [path[place] + 1 for path in paths]
            if all(a < b for a, b in pairwise(numbers)):
                return numbers
    return [1] if len(modules) == 1 else None


def find_addresses(
    name: str, model: nn.Module, calls: Sequence[Call], inputs: ModelInputs, hook: CallHook
) -> tuple[tuple[Address, ...], tuple[str, ...]]:
    """The address of every call of one forward pass, in order, and what is wrong with the order of its keys and values, if anything is.

    Whose positions a call's keys are says whether it is cross-attention, its module's name which tower and layer it is in.
    A tower of text that all others flow into is the main one, without a name.
    """
    met, ids = _find_sources(model, inputs, hook, calls), inputs.get("input_ids")
    floats = {n: t for n, t in inputs.items() if isinstance(t, Tensor) and t.is_floating_point() and t.dim() == 3}
    lengths = {tower: t.shape[1] for n, t in floats.items() if (tower := _tower_of(n))}
    lengths = {"text": ids.shape[-1], **lengths} if isinstance(ids, Tensor) and lengths else {}
    towers: list[str] = []
    for call in met:  # by the module's name, else by the input that has as many positions as it asks from
        # cross-attention may be called by what it reads
        tower = _tower_of(call.module if call.kind == SELF else _container(call.module))
        towers.append(tower or next((tower for tower, n in lengths.items() if n == call.asks), ""))
    towers = _main(met, towers, model, calls, inputs, hook)
    addresses = tuple(Address(stack, layer) for stack, layer in number_layers(met, name_stacks(met, towers)))
    assert len(set(addresses)) == len(addresses), f"{name}: two calls with one address"
    return addresses, tuple(call.order for call in met)


def _main(
    met: Sequence[Met], towers: list[str], model: nn.Module, calls: Sequence[Call], inputs: ModelInputs, hook: CallHook
) -> list[str]:
    """The towers, the main one without a name: the only one, or that of text which all others flow into."""
    names = list(dict.fromkeys(towers))
    if len(names) == 1:
        return [""] * len(towers)
    # nameless layers that read another sequence, and none among them that make one
    nameless = [m for m, tower in zip(met, towers, strict=True) if not tower]
    crossing = {_container(m.module) for m in nameless if m.kind != SELF}
    if "text" in names and crossing and all(_container(m.module) in crossing for m in nameless):
        return ["" if tower == "text" else tower for tower in towers]  # the encoder of a decoder without a name
    if "" in names or "text" not in names:
        return towers

    @torch.no_grad()
    def flows(source: int, later: Call) -> bool:
        """Whether the queries of a later call change when the values of one do."""
        write = lambda parts: Parts(parts.q, parts.k, -2 * parts.v)  # noqa: E731
        with hook(model, Edits(write={source: write})) as changed:
            model(**inputs)
        return not torch.equal(changed[later.order].q, later.q)

    last = max(i for i, tower in enumerate(towers) if tower == "text")
    for other in names:
        source = max((i for i, tower in enumerate(towers) if tower == other and i < last), default=None)
        later = [c for i, c in enumerate(calls) if towers[i] == "text" and source is not None and i > source]
        if other != "text" and (source is None or not flows(source, later[0])):
            return towers
    return ["" if tower == "text" else tower for tower in towers]
