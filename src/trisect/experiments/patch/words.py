"""Words for the sites and directions of an interchange."""

from __future__ import annotations

import re
from typing import TypeAlias

from trisect.report.subject import stack_order

# stack, layer (null: several at once), head, component, group of the table measures
SiteKey: TypeAlias = tuple[str, int | None, int | None, str, str]

DOES = {
    "q": ("what is looked for", "the answer to the donor's question, in the base's text"),
    "k": ("where a thing can be found", "what the base has at the place where the donor has the thing asked for"),
    "v": ("what is handed over", "what the donor has at the place where the base has the thing asked for"),
}
NUMBERS = {
    "own": "its own answer, share of pairs",
    "logit_change": "change of the logit difference, share of the way to the other text",
    "output_change": "change of the output, share",
}
TITLES = {
    "own": "own answer",
    "logit_change": "change of the logit difference",
    "output_change": "change of the output",
}
UNITS = {"own": "share", "logit_change": "share of the way", "output_change": "share"}
RUNS = {"denoise": "the donor's into the base", "noise": "the base's into the donor"}


def place_of(stack: str, layer: int | None, head: int | None, component: str, group: str) -> str:
    """A site as it is spelt."""
    return f"{'' if stack == 'plain' else f'{stack}.'}{component}@{layers_of(layer, group)}{heads_of(head, group)}"


def layers_of(layer: int | None, group: str) -> str:
    """The layer, or those that are patched at once, as a site spells them."""
    return f"{layer or _several('layers', group)}"


def heads_of(head: int | None, group: str) -> str:
    """The heads as a site spells them behind its layer; nothing where all are meant."""
    some = head or _several("heads", group)
    return f".h{some}" if some else ""


def _several(what: str, group: str) -> str:
    """The numbers that a group names: of 'denoise, layers 1-2, heads 1,3' the layers are '1-2'."""
    found = re.search(rf"{what} ([0-9,-]+?)(?=, [a-z]|$)", group)
    return found[1] if found else ""


def site_order(key: SiteKey) -> tuple[bool, tuple[int, str], int, int, int, int, str]:
    """Denoising first, then by stack, layer, head, and q, k, v before what joins them."""
    stack, layer, head, component, group = key
    joined = component.count("+"), "qkv".find(component[0])
    return (group.startswith("noise"), stack_order(stack), layer or 0, head or 0, *joined, group)
