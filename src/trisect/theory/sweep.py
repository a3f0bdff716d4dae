"""Sweep a construction over β: its error or its variance, beside the law."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from trisect.theory.constructions import (
    average,
    copying,
    identity_attention,
    key_query_value,
    random_keys_one_head,
    random_keys_two_heads,
    stretched_key_one_head,
    stretched_key_two_heads,
)
from trisect.theory.result import Array, Construction

CONSTRUCTIONS: Mapping[str, Callable[..., Construction]] = {
    made.__name__: made
    for made in (
        copying,
        average,
        random_keys_one_head,
        stretched_key_one_head,
        random_keys_two_heads,
        stretched_key_two_heads,
        identity_attention,
        key_query_value,
    )
}
SPANS = {"identity_attention": (0.5, 5.0), "key_query_value": (0.5, 1.9)}  # of β; beyond, errors are too small to draw
SPAN, POINTS, SAMPLES = (0.5, 50.0), 25, 5_000


class ErrorCurve(NamedTuple):
    """What a construction gives at several β: errors, what the law says of them, and the variances of construction 6."""

    beta: Array
    error: Array
    expected: Array
    variances: tuple[Array, Array, Array, Array] | None  # one head, two heads, the law of one, the law of two


def sweep(result: Construction, betas: Sequence[float] | None = None) -> ErrorCurve:
    """The same construction at other β: all else as in `result`, but at most 5,000 samples, drawn from seed 0.

    Without `betas`, 25 of them over the span in which the law shows.
    """
    low, high = SPANS.get(result.name, SPAN)
    grid = np.geomspace(low, high, POINTS) if betas is None else np.asarray(betas, dtype=float)
    settings: dict[str, Any] = {k: v for k, v in result.settings.items() if k != "beta"}
    if "samples" in settings:
        settings["samples"] = min(int(settings["samples"]), SAMPLES)
    if "keys" in settings:
        settings["values"] = result.inputs["values"]
    found = [CONSTRUCTIONS[result.name](beta=float(b), **settings) for b in grid]
    variances = [(v.one, v.two, v.one_law, v.two_law) for one in found if (v := one.variances) is not None]
    columns = np.array(variances).T
    return ErrorCurve(
        grid,
        np.array([one.error for one in found]),
        np.array([one.expected for one in found]),
        (columns[0], columns[1], columns[2], columns[3]) if variances else None,
    )
