"""Find which sequence the keys of an attention call come from, whether positions are in order, and which calls form a stack."""

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
from trisect.core.subject import QKV, ModelInputs
from trisect.core.trace import Address
from trisect.hf.hooks.calls import (
    Arguments,
    Call,
    CallHook,
    Edits,
    NamedArguments,
    ProductMemo,
    gradients_of,
)
from trisect.hf.locate.output_projection import OTHER_AXIS

SELF, CROSS, MERGED = "self", "cross", "merged"
PARTS = ("queries", "keys", "values")


class KeySource(NamedTuple):
    """The source of an attention call's keys: `kind` self, cross or merged, for the nth use of `module`.

    `order` says which of q, k and v is shifted along the sequence; empty if none is, or if gradients do not show it.
    """

    module: str
    nth: int
    kind: str
    query_count: int
    key_count: int
    order: str = ""


class EnteredFloats:
    """The floating-point inputs of the module around the running call, each detached from its graph."""

    def __init__(self) -> None:
        self.inside: str | None = None
        self.floats: list[Tensor] = []
        self.leaves: list[Tensor] = []
        self.before: dict[int, tuple[Tensor, Tensor]] = {}
        self.uses: dict[str, int] = {}
        # replaced items of the model's own lists and dicts: holder, key or index, original, replacement
        self.put: list[tuple[dict[Any, Any] | list[Any], Any, Any, Any]] = []

    def enter(self, name: str, args: Arguments, kwargs: NamedArguments) -> tuple[Arguments, NamedArguments] | None:
        """Enter an attention module, or one around it; inputs of the outermost with floating-point tensors are detached."""
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

    def embedding_nodes(self, which: Iterable[int]) -> set[Node]:
        """The graph nodes of embedding look-ups on which some of those inputs depend, followed across earlier cuts."""
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
        """Leave a module."""
        if self.inside == name:
            self.inside, self.floats, self.leaves = None, [], []
            self.restore()

    def restore(self) -> None:
        """Restore the items of the model's own lists and dicts that it has not replaced itself."""
        for holder, place, before, copy in self.put:
            if (place in holder if isinstance(holder, dict) else place < len(holder)) and holder[place] is copy:
                holder[place] = before
        self.put.clear()


def _with_leaves(
    nest: Any, copies: dict[int, Any], leaves: list[tuple[Tensor, Tensor]], put: list[tuple[Any, Any, Any, Any]]
) -> Any:
    """Replace every floating-point tensor in nested arguments by a copy of a new leaf; the model's lists and dicts are changed in place."""
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


def _find_sources(
    model: nn.Module, inputs: ModelInputs, hook: CallHook, calls: Sequence[Call]
) -> tuple[KeySource, ...]:
    """Find the source of every call's keys by gradients, or by lengths if there are none."""
    # attention modules, and modules around exactly one of them
    attending = {call.module for call in calls}
    names = {name[:i] for name in attending for i, letter in enumerate(name) if letter == "."} | attending
    around = [n for n in names if n and sum(m == n or m.startswith(f"{n}.") for m in attending) == 1]
    cut, sources = EnteredFloats(), list[KeySource]()

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
    except RuntimeError as error:  # a model without gradients
        reraise_out_of_memory(error)
        sources = []
    if len(sources) != len(calls):
        return tuple(KeySource(call.module, 0, _by_length(call), call.q.shape[2], call.k.shape[2]) for call in calls)
    return tuple(sources)


class _Inputs:
    """The leaves on which q, k and v of one call depend, by gradients."""

    def __init__(self, call: Call, leaves: Sequence[Tensor]) -> None:
        self.parts: dict[str, Tensor] = dict(zip(PARTS, (call.q, call.k, call.v), strict=True))
        self.leaves = leaves
        self._at = dict[tuple[str, int], list[Tensor | None]]()

    def reaching(self, t: Tensor) -> list[Tensor | None]:
        """The numbers of each leaf on which a tensor depends; None for a leaf that is not in its graph."""
        return [None if grad is None else grad.ne(0) for grad in gradients_of(t, self.leaves)]

    def vectors(self, reached: Sequence[Tensor | None]) -> Bool[Tensor, " N"]:
        """The vectors of the leaves of which a number is reached, over all axes but the last, flattened."""
        pairs = zip(self.leaves, reached, strict=True)
        masks = (torch.zeros_like(leaf, dtype=torch.bool) if seen is None else seen for leaf, seen in pairs)
        return torch.cat([seen.any(-1).flatten().cpu() for seen in masks])

    def at(self, part: str, position: int) -> list[Tensor | None]:
        """The numbers of each leaf on which the first row of a part [B H T E] depends at one position."""
        if (part, position) not in self._at:
            self._at[part, position] = self.reaching(self.parts[part][0, :, position])
        return self._at[part, position]

    def of(self, part: str) -> set[int]:
        """The leaves on which a part depends."""
        at_first = {i: seen for i, seen in enumerate(self.at(part, 0)) if seen is not None}
        return set(at_first) if all(map(torch.any, at_first.values())) else _leaves_of(self.parts[part], self.leaves)


def _source(call: Call, cut: EnteredFloats) -> KeySource:
    """The source of one call's keys by gradients, with any fault in their order."""
    inputs = _Inputs(call, cut.leaves)
    asks, gives = inputs.of("queries"), inputs.of("values")
    if not gives or not asks:  # learned queries, or unknown inputs
        kind = _by_length(call)
    elif asks & gives:
        kind = MERGED if gives - asks and call.k.shape[2] > call.q.shape[2] else SELF
    else:
        # one sequence is pooled from the other, as in Funnel
        pairs = [(cut.floats[a], cut.floats[b]) for a in asks for b in gives]
        is_pooled = any(_leaves_of(a, [b]) or _leaves_of(b, [a]) for a, b in pairs)
        # with a causal mask q and k may come from the same sequence through different norms
        weights, length = call.weights, call.q.shape[2]
        causal = weights is not None and 1 < length == call.k.shape[2] and not bool(weights.triu(1).any())
        kind = SELF if is_pooled or (causal and cut.embedding_nodes(asks) == cut.embedding_nodes(gives)) else CROSS
    order = _other_axis(inputs, asks) or _part_shift(inputs, kind)
    return KeySource(call.module, cut.uses.get(call.module, 0), kind, call.q.shape[2], call.k.shape[2], order)


def _part_shift(inputs: _Inputs, kind: str) -> str:
    """Whether keys or values are shifted against queries of their sequence, in words: at a position they share no inputs with them."""
    parts, (q, k, v) = dict(inputs.parts), inputs.parts.values()
    if kind != SELF or q.shape[2] != k.shape[2]:
        del parts["queries"]
    if k.shape[2] != v.shape[2] or not inputs.leaves or not all(t.requires_grad for t in parts.values()):
        return ""
    (first, reference), *others = parts.items()
    length = reference.shape[2]
    positions = sorted({0, min(1, length - 1), length // 2, length - 1})
    expected = {position: inputs.vectors(inputs.at(first, position)) for position in positions}
    for name, t in others:
        support = {position: inputs.vectors(inputs.at(name, position)) for position in positions}
        distant = [p for p in positions if bool(support[p].any()) and not bool((expected[p] & support[p]).any())]
        # two parts of one longer sequence share no inputs
        everywhere = inputs.vectors(inputs.reaching(t[0])) if distant else None
        for position in distant:
            if everywhere is not None and bool((expected[position] & everywhere).any()):
                return f"its {name} are shifted: those at position {position} depend on other inputs than its {first} there"
    return ""


def _other_axis(inputs: _Inputs, asks: set[int]) -> str:
    """Whether a call attends over units or heads, in words: then two distant queries depend on all positions, two units on one each."""
    part = "queries" if asks else "keys"
    t = inputs.parts[part]

    def apart(axis: int) -> bool:
        """Whether the first and the last along an axis depend on disjoint parts of an equally long axis of the leaves."""
        count = t.shape[axis]
        ends = (inputs.at(part, i) if axis == 2 else inputs.reaching(t.select(axis, i)[0]) for i in (0, count - 1))
        for first, last in zip(*ends, strict=True):
            if first is None or last is None or not first.any() or not last.any():
                continue
            for start, end in combinations(range(first.dim() + 1), 2):
                shape = first.shape[:start].numel(), first.shape[start:end].numel(), -1
                places = (seen.reshape(shape).any(2).any(0) for seen in (first, last))
                if (axis == 2 or shape[1] == count) and not bool(torch.logical_and(*places).any()):
                    return True
        return False

    if not (asks or inputs.of(part)) or t.shape[2] == 1 or apart(2):
        return ""
    other = next((words for axis, words in ((3, "units"), (1, "heads")) if t.shape[axis] > 1 and apart(axis)), "")
    return other and OTHER_AXIS.format(other)


def _leaves_of(t: Tensor, leaves: Sequence[Tensor]) -> set[int]:
    return {i for i, grad in enumerate(gradients_of(t, leaves)) if grad is not None and bool(grad.any())}


def _by_length(call: Call) -> str:
    return SELF if call.q.shape[2] == call.k.shape[2] else CROSS


PLACE = 1  # position of the changed token; position 0 may be a special token's
TRIES = 8  # permutations that are drawn until one is not sorted


@torch.no_grad()
def find_position_shifts(
    name: str, model: nn.Module, inputs: ModelInputs, hook: CallHook, addresses: Sequence[Address], memo: ProductMemo
) -> tuple[dict[int, str], ModelError | None]:
    """Calls whose queries, keys or values are not at the positions of their tokens, in words by order; and an error for the whole model.

    With values of 0 attention carries nothing from one position to another, so that another token changes queries, keys and
    values at its own position, in every layer. Maps between layers may reach further, as convolutions do.
    A model that reverses, sorts or shifts its tokens is an error as a whole.
    """

    def run(inputs: ModelInputs) -> list[QKV]:
        met: dict[int, QKV] = {}

        def silence(order: int, parts: QKV) -> QKV:
            met[order] = QKV(*(t.clone() for t in parts))
            return parts._replace(v=torch.zeros_like(parts.v))

        with memo.by_rows(), hook(model, Edits({n: functools.partial(silence, n) for n in range(len(addresses))})):
            model(**inputs)
        return [met[n] for n in range(len(addresses))]

    shifts: dict[int, str] = {}
    # which parts of which calls have the positions of input_ids, and which those of decoder_input_ids
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
                    again = lambda ids: run({**inputs, "input_ids": ids})  # noqa: E731
                    refusal = _find_reordering(name, inputs, before, after, again)
                except Exception as error:
                    # some models take no other order of tokens; their layers are checked all the same
                    reraise_out_of_memory(error)
                    refusal = None
                if refusal is not None:
                    return {}, refusal
            for n, part in ((n, part) for n, names in fed.items() for part in names):
                was, now = (parts[n][PARTS.index(part)] for parts in (before, after))
                if fault := _part_fault(part, was, now, changed):
                    shifts.setdefault(n, fault)
    except Exception as error:
        # some models cannot be edited, and tokens may be placeholders of equally many images
        reraise_out_of_memory(error)
    return shifts, None


def _part_fault(part: str, was: Tensor, now: Tensor, changed: Int[Tensor, "B T"]) -> str:
    """The fault in the positions of a part [B H T E] after one token changed, in words; empty if there is none."""
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
    before: Sequence[QKV],
    after: Sequence[QKV],
    run: Callable[[Int[Tensor, "B T"]], Sequence[QKV]],
) -> ModelError | None:
    """The error for a model that moves its tokens: changed or permuted tokens of the last row change parts at other positions."""
    ids: Tensor = inputs["input_ids"]
    row = len(ids) - 1

    def moves(was_parts: Sequence[QKV], now_parts: Sequence[QKV]) -> Bool[Tensor, "B T"] | None:
        for was, now in zip(was_parts, now_parts, strict=True):
            places = [m for a, b in zip(was, now, strict=True) if (m := _change_at(a, b, ids)) is not None]
            if places and bool((moved := torch.stack(places).any(0)).any()):
                return moved
        return None

    def of_row(tokens: Int[Tensor, " T"]) -> Sequence[QKV]:
        return run(torch.cat([ids[:-1], tokens[None]]))

    if (moved := moves(before, after)) is None:
        return None
    words = f"{name} moves its tokens to other positions."
    todo = "Give the submodule with attention, with tokens in the order in which it takes them."
    if not moved[row, PLACE]:
        reason = f"A token at position {PLACE} of row {row}, counted from 0, changes the inputs of attention at {_first(moved)}."
        return ModelError(words, reason, todo)
    row_tokens, swaps = _swaps(ids[row], inputs.get("attention_mask"))
    base = before if torch.equal(row_tokens, ids[row]) else of_row(row_tokens) if swaps else []
    for other in swaps:
        moved = moves(base, of_row(other))
        places = row_tokens.ne(other).nonzero().flatten().tolist()
        for place in (p for p in places if moved is None or not moved[row, p]):
            # two tokens may be equivalent to the model; then a swap changes nothing
            tokens = row_tokens.index_copy(0, torch.tensor([place], device=row_tokens.device), other[place : place + 1])
            if moves(base, of_row(tokens)) is not None:
                reason = f"Two tokens of row {row} are swapped, but the input of attention at position {place}, "
                return ModelError(words, reason + "that of one of them, counted from 0, does not change.", todo)
    return None


def _change_at(was: Tensor, now: Tensor, ids: Tensor) -> Bool[Tensor, "B T"] | None:
    """Where a part [B H T E] changed; None if it has another number of positions than the tokens."""
    if was.shape != now.shape or (was.shape[0], was.shape[2]) != tuple(ids.shape):
        return None
    return was.ne(now).any(3).any(1)


def _with_another_token(ids: object) -> Int[Tensor, "B T"] | None:
    """Token ids with one token of the last row replaced by another of that row; None if that is impossible."""
    if not isinstance(ids, Tensor) or ids.dim() != 2 or ids.is_floating_point() or ids.shape[1] <= PLACE:
        return None
    others, changed = ids[-1][ids[-1] != ids[-1, PLACE]], ids.clone()
    if not len(others):
        return None
    changed[-1, PLACE] = others[-1]
    return changed


def _swaps(tokens: Int[Tensor, " T"], mask: object) -> tuple[Int[Tensor, " T"], list[Int[Tensor, " T"]]]:
    """The tokens in an unsorted order, padding fixed, and two copies of it, each with half of the pairs of unequal tokens swapped."""
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
        place = free.pop(0)
        partner = next((p for p in reversed(free) if order[p] != order[place]), None)
        if partner is not None:
            free.remove(partner)
            pairs.append((place, partner))
    swaps = []
    for swapped in (pairs[::2], pairs[1::2]):
        other = order.clone()
        for place, partner in swapped:
            other[place], other[partner] = order[partner], order[place]
        swaps += [other] if swapped else []
    return order, swaps


def _first(moved: Bool[Tensor, "B T"]) -> str:
    row, place = moved.nonzero()[0].tolist()
    return f"position {place} of row {row}"


# words of a module's name that identify its tower; the first match counts
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
    """The tower that a module name states; empty if none."""
    words = set(words_of(path))
    return next((tower for tower, names in TOWERS.items() if words & set(names)), "")


def _container(module: str) -> str:
    """The name of a module's list of layers: the part before its first number, else before its last word."""
    parts = module.split(".")
    number = next((i for i, part in enumerate(parts) if part.isdigit()), len(parts) - 1)
    return ".".join(parts[:number])


def name_stacks(met: Sequence[KeySource], towers: Sequence[str]) -> list[str]:
    """Name the stack of every call, given the tower of each; a tower's calls are split by their role in it."""
    names = [""] * len(met)
    for tower in dict.fromkeys(towers):
        of_tower = [i for i, t in enumerate(towers) if t == tower]
        roles = _roles([met[i] for i in of_tower], [m for m, t in zip(met, towers, strict=True) if t != tower])
        for i, role in zip(of_tower, roles, strict=True):
            inner = "" if role == "dec" and "enc" not in roles else role  # a tower with cross-attention to another
            names[i] = (role or "plain") if not tower else f"{tower}_{inner}" if inner else tower
    return names


def _roles(met: Sequence[KeySource], others: Sequence[KeySource]) -> list[str]:
    """Roles of the calls of one tower: enc, dec, cross and merged, or empty for layers of a plain stack."""
    away = {m.query_count for m in others if m.kind == SELF}
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


def _feeding(met: Sequence[KeySource], place: str, away: set[int]) -> set[str]:
    """The lists of layers to which the cross-attention of `place` attends; `away` are lengths of other towers."""
    at = [i for i, m in enumerate(met) if m.kind != SELF and _container(m.module) == place]
    sees = {met[i].key_count - (met[i].query_count if met[i].kind == MERGED else 0) for i in at}
    before = [m for m in met[: at[0]] if m.kind == SELF and _container(m.module) != place]
    long = {_container(m.module) for m in before if m.query_count in sees}
    if long or sees & away:
        return long
    return {c for m in before if "encoder" in words_of(c := _container(m.module))}  # padded, or pooled


def number_layers(met: Sequence[KeySource], stacks: Sequence[str]) -> list[tuple[str, int]]:
    """The stack and the layer of every call; a stack with two calls per layer is split by module names."""
    numbered: dict[int, tuple[str, int]] = {}
    used = set(stacks)
    for stack in dict.fromkeys(stacks):
        of_stack = [i for i, s in enumerate(stacks) if s == stack]
        uses = list(dict.fromkeys((met[i].module, met[i].nth) for i in of_stack))
        layers = {use: (name, n) for use, name, n in _split_stack(stack, uses, met, of_stack, used)}
        seen: dict[tuple[str, int], int] = {}
        for i in of_stack:
            use = met[i].module, met[i].nth
            part = seen[use] = seen.get(use, 0) + 1  # a layer with two attention calls, as DiffLlama's
            name, number = layers[use]
            numbered[i] = name if part == 1 else f"{'part' if name == 'plain' else name}{part}", number
    return [numbered[i] for i in range(len(met))]


Use = tuple[str, int]


def _split_stack(
    stack: str, uses: Sequence[Use], met: Sequence[KeySource], of_stack: Sequence[int], used: set[str]
) -> list[tuple[Use, str, int]]:
    numbers = layer_numbers([m for m, _ in uses])
    if numbers is not None:
        return [(use, stack, n) for use, n in zip(uses, numbers, strict=True)]
    length = {(met[i].module, met[i].nth): met[i].query_count for i in of_stack}
    for key in (lambda u: ".".join(part for part in u[0].split(".") if not part.isdigit()), lambda u: _container(u[0])):
        groups: dict[str, list[Use]] = {}
        for use in uses:
            groups.setdefault(key(use), []).append(use)
        counted = {key: layer_numbers([m for m, _ in group]) for key, group in groups.items()}
        places = {_container(group[0][0]) for group in groups.values()}
        is_split = len(places) == 1 or len({length[group[0]] for group in groups.values()}) > 1
        is_split = is_split or list(uses) != [use for group in groups.values() for use in group]
        if len(groups) > 1 and is_split and all(n is not None for n in counted.values()):
            names = _names(stack, list(groups), used)
            return [
                (use, name, n)
                for (key, group), name in zip(groups.items(), names, strict=True)
                for use, n in zip(group, counted[key] or (), strict=True)
            ]
    return [(use, stack, n) for n, use in enumerate(uses, 1)]


def _names(stack: str, keys: Sequence[str], used: set[str]) -> list[str]:
    """A name for each part of a stack: the part without a distinctive word keeps the stack's, else the first does."""
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
    """A layer number from 1 for each module name, by the number in it that rises; 1 for a single module without a number.

    None if no number rises along the names.
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
    """The address of every call of one forward pass, in order, and the fault in the order of its keys and values, or empty.

    The source of a call's keys decides whether it is cross-attention, its module's name its tower and layer.
    A text tower to which all others lead is the main one, without a name.
    """
    met, ids = _find_sources(model, inputs, hook, calls), inputs.get("input_ids")
    floats = {n: t for n, t in inputs.items() if isinstance(t, Tensor) and t.is_floating_point() and t.dim() == 3}
    lengths = {tower: t.shape[1] for n, t in floats.items() if (tower := _tower_of(n))}
    lengths = {"text": ids.shape[-1], **lengths} if isinstance(ids, Tensor) and lengths else {}
    towers: list[str] = []
    for call in met:  # by the module's name, else by the input with as many positions as its queries
        # cross-attention may be named after its source
        tower = _tower_of(call.module if call.kind == SELF else _container(call.module))
        towers.append(tower or next((tower for tower, n in lengths.items() if n == call.query_count), ""))
    towers = _main(met, towers, model, calls, inputs, hook)
    addresses = tuple(Address(stack, layer) for stack, layer in number_layers(met, name_stacks(met, towers)))
    assert len(set(addresses)) == len(addresses), f"{name}: two calls with one address"
    return addresses, tuple(call.order for call in met)


def _main(
    met: Sequence[KeySource],
    towers: list[str],
    model: nn.Module,
    calls: Sequence[Call],
    inputs: ModelInputs,
    hook: CallHook,
) -> list[str]:
    """The towers with an empty name for the main one: the only tower, or the text tower to which all others lead."""
    names = list(dict.fromkeys(towers))
    if len(names) == 1:
        return [""] * len(towers)
    # all unnamed lists of layers have cross-attention
    nameless = [m for m, tower in zip(met, towers, strict=True) if not tower]
    crossing = {_container(m.module) for m in nameless if m.kind != SELF}
    if "text" in names and crossing and all(_container(m.module) in crossing for m in nameless):
        return ["" if tower == "text" else tower for tower in towers]  # the encoder of a decoder without a name
    if "" in names or "text" not in names:
        return towers

    @torch.no_grad()
    def flows(source: int, later: Call) -> bool:
        """Whether the queries of a later call change when the values of one do."""
        write = lambda parts: QKV(parts.q, parts.k, -2 * parts.v)  # noqa: E731
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
