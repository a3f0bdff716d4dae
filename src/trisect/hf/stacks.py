"""Names of stacks: which attention calls are layers of one stack, and what it is called, from the tree of modules.

The main stacks are called plain, enc, dec and cross; a tower beside them has a name of its own (vision, audio, …),
and so has what attends twice in every layer (temporal).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from trisect.hf.sources import CROSS, MERGED, SELF

# words of a module's name that say whose tower it is in; the first that is met counts
WORDS = {
    **dict.fromkeys(("qformer",), "qformer"),
    **dict.fromkeys(("resampler", "perceiver", "abstractor"), "resampler"),
    **dict.fromkeys(("memory",), "memory"),
    **dict.fromkeys(("prompt",), "prompt"),
    **dict.fromkeys(("mask",), "mask"),
    **dict.fromkeys(("vision", "visual", "visn", "image", "img", "pixel"), "vision"),
    **dict.fromkeys(("video",), "video"),
    **dict.fromkeys(("audio", "speech", "acoustic"), "audio"),
    **dict.fromkeys(("text", "language", "lang", "llm"), "text"),
}
PLAIN = {"attention", "attn", "self", "att", "layer", "layers", "block", "blocks", "module", "model", "transformer"}
PLAIN |= {"encoder", "decoder", "cross", "crossattention", "base", "inner", "multihead", "mha", "h", "tower"}
ROLES = ("enc", "dec", "cross", "plain", "pre")


class Met(NamedTuple):
    """One attention call, as far as its stack follows from it."""

    module: str
    nth: int
    kind: str
    asks: int
    sees: int


def words_of(path: str) -> list[str]:
    """The words of a dotted name, without numbers."""
    return [w for w in re.split(r"[._]", re.sub(r"([a-z])([A-Z])", r"\1_\2", path).lower()) if w and not w.isdigit()]


def tower_of(path: str) -> str:
    """The tower that a name says; empty where it says none."""
    said = [WORDS[w] for w in words_of(path) if w in WORDS]
    return min(said, key=list(dict.fromkeys(WORDS.values())).index) if said else ""


def container(module: str) -> str:
    """The name of the list of layers that a module is in: what stands before its first number, else before its last word."""
    parts = module.split(".")
    number = next((i for i, part in enumerate(parts) if part.isdigit()), len(parts) - 1)
    return ".".join(parts[:number])


def name_stacks(met: Sequence[Met], towers: Sequence[str]) -> list[str]:
    """The stack of every call, given the tower of each; calls of a tower are split by their part in it."""
    found = [""] * len(met)
    for tower in dict.fromkeys(towers):
        own = [i for i, t in enumerate(towers) if t == tower]
        roles = _roles([met[i] for i in own], [m for m, t in zip(met, towers, strict=True) if t != tower])
        for i, role in zip(own, roles, strict=True):
            inner = "" if role == "dec" and "enc" not in roles else role  # a tower that reads another one
            found[i] = (role or "plain") if not tower else f"{tower}_{inner}" if inner else tower
    return found


def _roles(met: Sequence[Met], others: Sequence[Met]) -> list[str]:
    """Of the calls of one tower: enc, dec, cross and merged, or empty where they are layers of one stack."""
    away = {m.asks for m in others if m.kind == SELF}
    crossing = {container(m.module) for m in met if m.kind != SELF}
    roles = []
    for i, one in enumerate(met):
        place = container(one.module)
        if one.kind in (CROSS, MERGED):
            roles.append(one.kind)
        elif place in crossing:
            feeds = any(m.kind == SELF and container(m.module) not in crossing for m in met)
            fed = _feeding(met, place, away)
            roles.append("dec" if fed or not feeds else "")
        else:
            later = {container(m.module) for m in met[i:] if m.kind != SELF}
            roles.append("enc" if any(place in _feeding(met, c, away) for c in later) else "")
    return roles


def _feeding(met: Sequence[Met], place: str, away: set[int]) -> set[str]:
    """The lists of layers whose positions the cross-attention of `place` sees; `away` are lengths of other towers."""
    sees = {
        m.sees - (m.asks if m.kind == MERGED else 0) for m in met if m.kind != SELF and container(m.module) == place
    }
    first = next(i for i, m in enumerate(met) if m.kind != SELF and container(m.module) == place)
    before = [m for m in met[:first] if m.kind == SELF and container(m.module) != place]
    long = {container(m.module) for m in before if m.asks in sees}
    if long or sees & away:
        return long
    return {c for m in before if "encoder" in words_of(c := container(m.module))}  # padded, or pooled


def number_layers(met: Sequence[Met], stacks: Sequence[str]) -> list[tuple[str, int]]:
    """The stack and the layer of every call; a stack with two calls in each layer is split by what they are called."""
    found: dict[int, tuple[str, int]] = {}
    taken = set(stacks)
    for stack in dict.fromkeys(stacks):
        own = [i for i, s in enumerate(stacks) if s == stack]
        uses = list(dict.fromkeys((met[i].module, met[i].nth) for i in own))
        layers = {use: (name, n) for use, name, n in _split(stack, uses, met, own, taken)}
        seen: dict[tuple[str, int], int] = {}
        for i in own:
            use = met[i].module, met[i].nth
            part = seen[use] = seen.get(use, 0) + 1  # a layer that attends twice, as DiffLlama's
            name, number = layers[use]
            found[i] = name if part == 1 else f"{'part' if name == 'plain' else name}{part}", number
    return [found[i] for i in range(len(met))]


Use = tuple[str, int]


def _split(
    stack: str, uses: Sequence[Use], met: Sequence[Met], own: Sequence[int], taken: set[str]
) -> list[tuple[Use, str, int]]:
    numbers = layer_numbers([m for m, _ in uses])
    if numbers is not None:
        return [(use, stack, n) for use, n in zip(uses, numbers, strict=True)]
    length = {(met[i].module, met[i].nth): met[i].asks for i in own}
    for groups in (_grouped(uses, _leaf), _grouped(uses, lambda u: container(u[0]))):
        counted = {key: layer_numbers([m for m, _ in group]) for key, group in groups.items()}
        places = {container(group[0][0]) for group in groups.values()}
        apart = len(places) == 1 or len({length[group[0]] for group in groups.values()}) > 1
        apart = apart or not _one_by_one(uses, groups)
        if len(groups) > 1 and apart and all(n is not None for n in counted.values()):
            names = _names(stack, list(groups), taken)
            return [
                (use, name, n)
                for (key, group), name in zip(groups.items(), names, strict=True)
                for use, n in zip(group, counted[key] or (), strict=True)
            ]
    return [(use, stack, n) for n, use in enumerate(uses, 1)]


def _one_by_one(uses: Sequence[Use], groups: Mapping[str, Sequence[Use]]) -> bool:
    """Whether each group ends before the next begins, as the stages of one stack do."""
    return list(uses) == [use for group in groups.values() for use in group]


def _grouped(uses: Sequence[Use], key: object) -> dict[str, list[Use]]:
    assert callable(key)
    groups: dict[str, list[Use]] = {}
    for use in uses:
        groups.setdefault(str(key(use)), []).append(use)
    return groups


def _leaf(use: Use) -> str:
    return ".".join(part for part in use[0].split(".") if not part.isdigit())


def _names(stack: str, keys: Sequence[str], taken: set[str]) -> list[str]:
    """A name for each part of a stack: one without a word of its own keeps the stack's, else the first."""
    common = set.intersection(*(set(words_of(key)) for key in keys))
    own = {key: [w for w in dict.fromkeys(words_of(key)) if w not in common] for key in keys}
    said = {key: "_".join(w for w in words if w not in PLAIN) or _role(words) for key, words in own.items()}
    first = next((key for key, name in said.items() if not name), keys[0])
    names = []
    for number, key in enumerate(keys, 1):
        name = said[key] or f"part{number}"
        name = stack if key == first else name if stack == "plain" else f"{stack}_{name}"
        while key != first and name in taken:
            name += "2"
        taken.add(name)
        names.append(name)
    return names


def _role(words: Sequence[str]) -> str:
    return next((role for word, role in (("encoder", "enc"), ("decoder", "dec")) if word in words), "")


def layer_numbers(modules: Sequence[str]) -> list[int] | None:
    """A layer number from 1 for each module name, by the number in it that counts; in order where none has a number.

    Null where they have numbers, and none of those counts.
    """
    paths = [[int(part) for part in name.split(".") if part.isdigit()] for name in modules]
    for place in range(max((len(path) for path in paths), default=0)):
        if all(len(path) > place for path in paths):
            numbers = [path[place] + 1 for path in paths]
            if all(a < b for a, b in pairwise(numbers)):
                return numbers
    return [1] if len(modules) == 1 else None
