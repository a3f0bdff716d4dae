"""Norms behind the feed-forward block: every position's part of what attention adds, by integrated gradients through the block.

Norms and sums are linear once the deviation of the whole vector is given. The activation is taken along the straight path
from 0 to its operand: elementwise, a part's share is its operand's share times the mean slope on the path, which
needs no steps where there is no gate. Parts and biases sum to what the block gives, exactly.
Source: Kobayashi et al. 2024, Analyzing Feed-Forward Blocks in Transformers through the Lens of Attention Maps.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from trisect.core.errors import ModelError
from trisect.core.trace import FeedForward, Rescaling, ResidualBlock, Trace
from trisect.measure import mixing
from trisect.measure.activations import activation
from trisect.measure.mixing import Mixed
from trisect.measure.norms import output_projection, project, single, within

KIND = "feed-forward"
ROOM = 1 << 24  # numbers of the largest array in between: 64 MiB in single precision
NODES = 32  # of Gauss and Legendre's quadrature, for the path of a gate
SMALL = 1e-3  # operands below this share of 1, where a quotient would lose digits


class _Stage(NamedTuple):
    """What of a layer all queries share: W_O, values, weights, the block and its feed-forward block, in one precision."""

    w_o: Float[Tensor, "H E D"]
    block: ResidualBlock
    forward: FeedForward


def block_norms(trace: Trace, kind: str) -> Float[Tensor, "B T S"]:
    """mixing.norms, and for the kind 'feed-forward' the same behind the feed-forward block."""
    return norms(trace) if kind == KIND else mixing.norms(trace, kind)


def block_ratio(trace: Trace, kind: str) -> Float[Tensor, "B T"]:
    """mixing.mixing_ratio, and for the kind 'feed-forward' the same behind the feed-forward block."""
    return mixing.ratio_of(trace, mixed(trace)) if kind == KIND else mixing.mixing_ratio(trace, kind)


@torch.no_grad()
def norms(trace: Trace) -> Float[Tensor, "B T S"]:
    """‖F_ij‖ of what position i's vector behind the feed-forward block takes from j; where i = j the residual is with it.

    In cross-attention the residual is no position's. 0 at padding. Takes about as many passes through the feed-forward
    block as there are positions. Raises ModelError where no such block was found.
    """
    stage = _stage(trace)
    rows, _, queries, keys = trace.weights.shape
    found = single(trace.weights).new_zeros(rows, queries, keys)
    step = max(1, ROOM // ((keys + 1) * len(stage.forward.inner)))
    for row in range(rows):
        for start in range(0, queries, step):
            some = torch.arange(start, min(start + step, queries), device=found.device)
            found[row, some] = _parts(stage, trace, row, some)[:, :keys].norm(dim=-1)
    return within(trace, found)


@torch.no_grad()
def mixed(trace: Trace) -> Mixed:
    """What position i's vector behind the feed-forward block takes from itself, and from all others. Errors as `norms`."""
    stage = _stage(trace)
    own, context = [], []
    for row in range(len(trace.weights)):
        weights, values = single(trace.weights[row]), single(trace.values[row])
        itself = torch.zeros_like(weights) if trace.crosses else torch.diag_embed(torch.diagonal(weights, 0, 1, 2))
        both = [project((part @ values)[None], stage.w_o)[0] for part in (itself, weights - itself)]
        one, other, _ = _through(
            stage, trace, row, torch.stack(both, 1), torch.arange(len(both[0]), device=both[0].device), 0
        ).unbind(1)
        own.append(one)
        context.append(other)
    return Mixed(torch.stack(own), torch.stack(context))


@torch.no_grad()
def parts(trace: Trace, row: int, queries: Tensor) -> Float[Tensor, "Q P D"]:
    """The vectors behind the feed-forward block of some queries of a row, as a part of every key and a last one of all biases.

    They sum to what the block gives. In cross-attention the residual is in the last. Errors as `norms`.
    """
    return _parts(_stage(trace), trace, row, queries)


def _parts(stage: _Stage, trace: Trace, row: int, queries: Tensor) -> Float[Tensor, "Q P D"]:
    weights, values = single(trace.weights[row])[:, queries], single(trace.values[row])
    f = values @ stage.w_o
    whole = torch.einsum("hqs,hsd->qsd", weights, f)
    return _through(stage, trace, row, whole, queries, None)


def _through(
    stage: _Stage, trace: Trace, row: int, given: Float[Tensor, "Q P D"], queries: Tensor, own: int | None
) -> Float[Tensor, "Q P1 D"]:
    """Parts of what W_O makes, through all that follows; the residual goes to part `own`, null for the part of the query itself."""
    block, forward = stage.block, stage.forward
    made = torch.cat([given, torch.zeros_like(given[:, :1])], 1)
    _shift(made, trace.projections.b_o)
    made = _rescaled(made, block.after)
    residual, index = single(block.residual[row])[queries], torch.arange(len(queries), device=queries.device)
    last = made.shape[1] - 1
    place = (
        torch.full_like(queries, last) if trace.crosses else queries if own is None else torch.full_like(queries, own)
    )
    made[index, place] += residual
    if block.kind == "post":
        made = _rescaled(made, Rescaling(block.gamma, block.beta, block.epsilon, block.centred))
    inside = _rescaled(made, forward.before)
    hidden = _hidden(forward, inside)
    added = hidden @ forward.outer.T
    _shift(added, forward.outer_bias)
    return _rescaled(made + _rescaled(added, forward.behind), forward.after)


def _hidden(forward: FeedForward, inside: Float[Tensor, "Q P D"]) -> Float[Tensor, "Q P F"]:
    """The parts of the hidden units: of each operand the parts times the mean slope of the activation on the path."""
    operand = inside @ forward.inner.T
    _shift(operand, forward.inner_bias)
    whole = operand.sum(1)
    if forward.gate is None:
        hidden = operand * mean_slope(forward.activation, whole)[:, None]
        hidden[:, -1] += activation(forward.activation)(torch.zeros_like(whole))
        return hidden
    beside = inside @ forward.gate.T
    _shift(beside, forward.gate_bias)
    slopes = gated_slopes(forward.activation, whole, beside.sum(1))
    return operand * slopes[0][:, None] + beside * slopes[1][:, None]


def mean_slope(name: str, x: Tensor) -> Tensor:
    """∫ φ'(αx) dα over α from 0 to 1: (φ(x) − φ(0)) / x, and the slope at x / 2 where x is small."""
    phi = activation(name)
    near = x.abs() < SMALL
    quotient = (phi(x) - phi(torch.zeros_like(x))) / torch.where(near, 1.0, x)
    return torch.where(near, slope(name, x / 2), quotient)


def gated_slopes(name: str, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """∫ φ'(αa) αb dα and ∫ φ(αa) dα: what parts of a and of b are multiplied by, for φ(a) b along the straight path.

    The second by quadrature, the first from it by parts, so that both together give φ(a) b whatever the quadrature missed.
    """
    phi = activation(name)
    points, weights = np.polynomial.legendre.leggauss(NODES)
    mean = sum(float(w) / 2 * phi(a * ((float(p) + 1) / 2)) for p, w in zip(points, weights, strict=True))
    assert isinstance(mean, Tensor)
    near = a.abs() < SMALL
    quotient = (phi(a) - mean) / torch.where(near, 1.0, a)
    return b * torch.where(near, slope(name, 2 * a / 3) / 2, quotient), mean


def slope(name: str, x: Tensor) -> Tensor:
    """φ'(x)."""
    with torch.enable_grad():
        at = x.detach().clone().requires_grad_()
        (found,) = torch.autograd.grad(activation(name)(at).sum(), at)
    return found


def _shift(made: Float[Tensor, "Q P D"], bias: Tensor | None) -> None:
    """Add a bias to the last part."""
    if bias is not None:
        made[:, -1] += single(bias).to(made)


def _rescaled(made: Float[Tensor, "Q P D"], norm: Rescaling | None) -> Float[Tensor, "Q P D"]:
    """Parts behind a norm or a factor: linear, given the deviation of their sum."""
    if norm is None:
        return made
    whole = made.sum(1)
    made = made - made.mean(-1, keepdim=True) if norm.centred else made
    if norm.epsilon is not None:
        spread = whole.var(-1, unbiased=False) if norm.centred else whole.square().mean(-1)
        made = made * (spread + norm.epsilon).rsqrt()[:, None, None]
    made = made * single(norm.gamma).to(made)
    _shift(made, norm.beta)
    return made


def _stage(trace: Trace) -> _Stage:
    w_o, block = output_projection(trace.projections), trace.block
    if block is None or block.forward is None:
        given = f"The kind '{KIND}' needs the feed-forward block behind attention at {trace.address}."
        known = (
            "Verification found none there that is one map, an activation it knows (perhaps gated), and a second map."
        )
        raise ModelError(given, known, "Use 'attention', 'residual' or 'full'.")
    own = {f.name: getattr(block.forward, f.name) for f in fields(block.forward)}
    # they lie where the model does
    near = {name: single(t).to(w_o) for name, t in own.items() if isinstance(t, Tensor)}
    return _Stage(w_o, block, replace(block.forward, **near))
