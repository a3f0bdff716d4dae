"""One attention call of a forward pass as a Trace, on the device that computed it or on the CPU."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from trisect.core.subject import Batch
from trisect.core.trace import Projections, ResidualBlock, Trace
from trisect.hf.calls import Call

CPU = torch.device("cpu")
SINGLE = ("mps",)  # devices without float64, in which norms are added up


class Seen(NamedTuple):
    """One attention call that was read, and the residual around it, on one device."""

    projections: Projections
    call: Call
    block: ResidualBlock | None


def computed_at(call: Call) -> torch.device:
    """Where measures of a call are computed: where the call was, if that device has float64; else the CPU."""
    return CPU if call.q.device.type in SINGLE else call.q.device


def seen_at(
    device: torch.device, projections: Projections, call: Call, block: ResidualBlock | None, kept: bool
) -> Seen:
    """A call with copies of its weights, all on a device; what is `kept` beyond the call is copied, as the model may write to it."""
    weights = None if call.weights is None else call.weights.detach().to(device, copy=kept)
    q, k, v, output = (t.detach().to(device, copy=kept) for t in (call.q, call.k, call.v, call.output))
    moved = Call(call.module, call.order, q, k, v, weights, output, call.scale)
    return Seen(projections.copied(device), moved, None if block is None else _block_at(device, block))


def trace_of(batch: Batch, seen: Seen) -> Trace:
    """The Trace of a call of one batch."""
    projections, call, block = seen
    address, weights = projections.address, call.weights
    assert weights is not None
    real = (
        _fit(batch.queries(address.stack).real, call.q),
        _fit(batch.keys(address.stack).real, call.k),
    )
    parts = (call.q, call.k, call.v, weights, call.output)
    return Trace(address, *parts, *real, projections, call.scale, block)


def _block_at(device: torch.device, block: ResidualBlock) -> ResidualBlock:
    """A block on a device; its feed-forward block stays where the model has it, which few measures need."""
    after, beta = block.after, None if block.beta is None else block.beta.to(device)
    if after is not None:
        shift = None if after.beta is None else after.beta.to(device)
        after = replace(after, gamma=after.gamma.to(device), beta=shift)
    residual, gamma = block.residual.to(device), block.gamma.to(device)
    return replace(block, residual=residual, gamma=gamma, beta=beta, after=after)


def _fit(real: Tensor, part: Tensor) -> Tensor:
    """Which positions are real, for a layer that sees another number of them (pooled, or patched): all of them."""
    shape = part.shape[0], part.shape[2]
    fits = real.shape == shape
    return real.to(part.device) if fits else torch.ones(shape, dtype=torch.bool, device=part.device)
