"""Words for the sites and directions of an interchange."""

from __future__ import annotations

from typing import TypeAlias

from trisect.report.subject import stack_order

SiteKey: TypeAlias = tuple[str, int, int | None, str, str]  # stack, layer, head, component, group of the table measures

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


def place_of(stack: str, layer: int, head: int | None, component: str, group: str) -> str:
    """A site as it is spelt."""
    some = group.partition("heads ")[2]
    heads = f".h{head or some}" if head or some else ""
    return f"{'' if stack == 'plain' else f'{stack}.'}{component}@{layer}{heads}"


def site_order(key: SiteKey) -> tuple[bool, tuple[int, str], int, int, int, int, str]:
    """Denoising first, then by stack, layer, head, and q, k, v before what joins them."""
    stack, layer, head, component, group = key
    joined = component.count("+"), "qkv".find(component[0])
    return (group.startswith("noise"), stack_order(stack), layer, head or 0, *joined, group)
