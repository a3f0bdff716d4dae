"""What stands at the positions of a dict of the model's own inputs: a side for every stack, as long as its attention is.

A text's mask is taken for the text's positions alone; where nothing says which positions of another stack are padding,
they are those that no query gives any weight to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trisect.core.subject import ModelInputs
from trisect.core.trace import Address, Side, crosses, key_side_of, keys_of, side_of
from trisect.hf.batches import IGNORED
from trisect.hf.calls import Call

MAIN = ("plain", "part", "enc", "dec", "cross", "merged")
MASKS = {"input_ids": "attention_mask", "decoder_input_ids": "decoder_attention_mask"}
PLACEHOLDERS = ("image", "video", "audio")


class Sides(NamedTuple):
    """The sides of a batch: those of the text, or of what stands for it, and of the stacks beside."""

    source: Side
    target: Side | None
    beside: dict[str, Side]


@dataclass(frozen=True, eq=False)
class Stack:
    """The calls of one stack, as far as their positions go."""

    name: str
    calls: Sequence[Call]

    @property
    def asks(self) -> tuple[int, int]:
        """Rows, and the most positions that are asked from."""
        return self.calls[0].q.shape[0], max(c.q.shape[2] for c in self.calls)

    @property
    def sees(self) -> tuple[int, int]:
        """Rows, and the most positions that are seen."""
        return self.calls[0].k.shape[0], max(c.k.shape[2] for c in self.calls)

    @property
    def main(self) -> bool:
        """Whether it is one of those whose positions are a text's, where the model is given a text."""
        return self.name.rstrip("0123456789") in MAIN or self.name.split("_")[0] == "text"

    def seen(self) -> Tensor:
        """Which keys any query gives weight to, in any layer that sees the most positions."""
        rows, length = self.sees
        given = [c.weights for c in self.calls if c.weights is not None and c.weights.shape[3] == length]
        own = [w.detach().ne(0).flatten(1, 2).any(1).cpu() for w in given if w.shape[0] == rows]
        return torch.stack(own).any(0) if own else torch.ones(rows, length, dtype=torch.bool)


def find_sides(inputs: ModelInputs, tokenizer: Any, calls: Sequence[Call], addresses: Sequence[Address]) -> Sides:
    """The sides of a dict of the model's own inputs, for as many positions as its attention saw."""
    stacks = [
        Stack(name, [c for c, a in zip(calls, addresses, strict=True) if a.stack == name])
        for name in dict.fromkeys(a.stack for a in addresses)
    ]
    by_name = {one.name: one for one in stacks}
    named = next((n for n in ("enc", "plain", "text") if n in by_name), stacks[0].name)
    first, made = by_name[named], {one.name: one for one in stacks if one.name in ("dec", "merged")}
    # an encoder without attention: cross-attention still sees its positions
    if named == stacks[0].name and crosses(named):
        source = _side(inputs, "input_ids", tokenizer, first, first.sees)
    else:
        source = _side(inputs, "input_ids", tokenizer, first, first.asks)
    target = None
    for one in made.values():
        target = target or _side(inputs, "decoder_input_ids", tokenizer, one, one.asks)
    beside: dict[str, Side] = {}
    for one in stacks:
        usual = side_of(one.name, source, target, beside)
        if one.name == named or (one.main and tuple(usual.real.shape) == one.asks):
            continue
        text = _side(inputs, "input_ids", tokenizer, one, one.asks)
        beside[one.name] = text
    for one in stacks:
        beside |= _keys(one, source, target, beside)
    return Sides(source, target, beside)


def _keys(one: Stack, source: Side, target: Side | None, beside: Mapping[str, Side]) -> dict[str, Side]:
    """The side of a stack's keys, where it is not the usual one."""
    usual = key_side_of(one.name, source, target, beside)
    joined = one.name.split("_")[-1] == "merged"
    if not joined and tuple(usual.real.shape) == one.sees and (one.main or not crosses(one.name)):
        return {}
    asks = side_of(one.name, source, target, beside)
    if joined and asks.real.shape[0] == one.sees[0] == source.real.shape[0]:
        both = [asks, source] if _self_first(one) else [source, asks]
        if sum(side.real.shape[1] for side in both) == one.sees[1]:
            return {keys_of(one.name): _joined(both)}
    others = [s for name, s in beside.items() if name != one.name] + [source] if crosses(one.name) else []
    fitting = [side for side in others if tuple(side.real.shape) == one.sees]
    return {keys_of(one.name): fitting[0] if fitting else _nameless(one.seen())}


def _self_first(one: Stack) -> bool:
    """Whether of keys that are joined the queries' own come first: they are then not looked ahead to."""
    length = one.asks[1]
    return all(c.weights is not None and not bool(c.weights[..., :length].triu(1).any()) for c in one.calls)


def _joined(sides: Sequence[Side]) -> Side:
    tokens = tuple(
        tuple(token for part in row for token in part) for row in zip(*(s.tokens for s in sides), strict=True)
    )
    known = [s.ids for s in sides if s.ids is not None]
    ids = torch.cat(known, 1) if len(known) == len(sides) else None
    return Side(tokens, torch.cat([s.real for s in sides], 1), torch.cat([s.special for s in sides], 1), ids)


def _side(inputs: ModelInputs, key: str, tokenizer: Any, one: Stack, shape: tuple[int, int]) -> Side:
    given, mask = inputs.get(key), inputs.get(MASKS[key])
    fits = one.main and isinstance(given, Tensor) and tuple(given.shape) == shape
    masked = one.main and isinstance(mask, Tensor) and tuple(mask.shape) == shape
    if not fits:
        seen = one.seen() if one.sees == shape and not crosses(one.name) else torch.ones(shape, dtype=torch.bool)
        return _nameless(mask.bool().cpu() if masked and isinstance(mask, Tensor) else seen)
    assert isinstance(given, Tensor)
    ids = given.cpu()
    real = mask.bool().cpu() if masked and isinstance(mask, Tensor) else torch.ones(shape, dtype=torch.bool)
    special = ~real
    if tokenizer is None:
        return Side(tuple(tuple(str(i) for i in row) for row in ids.tolist()), real, special, ids)
    known = set(tokenizer.all_special_ids)
    tokens = tuple(tuple(tokenizer.convert_ids_to_tokens(row)) for row in ids.tolist())
    return Side(tokens, real, special | torch.tensor([[i in known for i in row] for row in ids.tolist()]), ids)


def _nameless(real: Tensor) -> Side:
    rows, length = real.shape
    return Side(tuple(tuple(f"position {n + 1}" for n in range(length)) for _ in range(rows)), real, ~real)


def labelled(inputs: ModelInputs, config: Any) -> dict[str, object]:
    """The inputs; where token ids stand for images, sounds or videos, with labels that leave those out."""
    ids, own = inputs.get("input_ids"), dict(inputs)
    names = [f"{kind}_token_{end}" for kind in PLACEHOLDERS for end in ("id", "index")]
    held = [n for name in names if isinstance(n := getattr(config, name, None), int)]
    if isinstance(ids, Tensor) and held:
        there = torch.isin(ids, torch.tensor(held, device=ids.device))
        if bool(there.any()):
            own.setdefault("labels", ids.masked_fill(there, IGNORED))
    return own
