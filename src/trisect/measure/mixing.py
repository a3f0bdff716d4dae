"""Mixing ratio: norms with the residual connection and the layer norm around attention, and expansion of vectors by weights."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trisect.core.errors import ModelError, SpecError
from trisect.core.trace import Projections, ResidualBlock, Trace
from trisect.measure.norms import (
    added_bias,
    added_projection,
    added_weights,
    output_projection,
    project,
    query_scale,
    single,
    summed,
    within,
)

KINDS = ("attention", "residual", "full")
# what share of its size v may differ by from what W_V makes of x: a norm's ε is known to about 1e-3
NEAR, COARSE = {torch.float64: 5e-3, torch.float32: 5e-3}, 5e-2


class Expansion(NamedTuple):
    """By how much an affine map lengthens a vector of unit variance: of the whole layer, and of every head alone."""

    layer: float
    heads: Float[Tensor, " H"]


class Mixed(NamedTuple):
    """What position i's new vector takes from itself, and what from the other positions; in the layer's own width."""

    own: Float[Tensor, "B T D"]
    context: Float[Tensor, "B T D"]


def norms(trace: Trace, kind: str = "attention") -> Float[Tensor, "B T S"]:
    """‖F_ij‖ of what position i takes from j: Σ_h a f_h(x_j), where i = j plus x_i, then through the layer norm.

    'attention' stops at the sum, 'residual' adds x_i, 'full' also subtracts the mean, scales by γ and divides by the
    deviation of the sum that enters the norm; in a pre-LN block the norm is inside f already, and 'full' is 'residual'.
    In stack 'cross' the residual is no position's. 0 at padding. Raises ModelError where the block is not known,
    SpecError for another kind. Source: Kobayashi et al. 2021 (Attn-N, AttnRes-N, AttnResLn-N).
    """
    found = summed(added_weights(trace), trace.values, _projection(trace, kind))
    if kind != "attention":
        if not trace.crosses:
            own = torch.linalg.vector_norm(_own(trace, kind), dim=-1)
            torch.diagonal(found, dim1=1, dim2=2).copy_(own)
        found = found * _scale(trace, kind)[..., None]
    return within(trace, found)


def mixing_ratio(trace: Trace, kind: str = "attention") -> Float[Tensor, "B T"]:
    """‖context‖ / (‖context‖ + ‖own‖): 0 where a position keeps only itself, 1 where nothing of it is left.

    0 at padding. Errors as `norms`. Source: Kobayashi et al. 2021, mixing ratio.
    """
    return ratio_of(trace, mixed(trace, kind))


def ratio_of(trace: Trace, parts: Mixed) -> Float[Tensor, "B T"]:
    """‖context‖ / (‖context‖ + ‖own‖) of both parts; 0 at padding."""
    own, context = (torch.linalg.vector_norm(part, dim=-1) for part in parts)
    whole = own + context
    return torch.where(trace.query_real & (whole > 0), context / whole.clamp_min(torch.finfo(whole.dtype).tiny), 0.0)


def mixing_by_weights(trace: Trace, kind: str = "attention") -> Float[Tensor, "B T"]:
    """The same from the weights alone, mean over heads: Σ_{j≠i} a_ij; half of it where the residual counts as a weight 1."""
    away = single(_others(trace)).sum(-1).mean(1) * (1.0 if kind == "attention" else 0.5)
    return away.masked_fill(~trace.query_real, 0.0)


@torch.no_grad()
def mixed(trace: Trace, kind: str = "attention") -> Mixed:
    """Both parts of every position's new vector, without β and the output's bias. Errors as `norms`."""
    w_o = _projection(trace, kind)
    context = project(single(_others(trace)) @ single(trace.values), w_o) * _behind(trace)
    scale = 1.0 if kind == "attention" else _scale(trace, kind)[..., None]
    return Mixed(_own(trace, kind) * scale, context * scale)


def expansion_rate(projections: Projections) -> Expansion:
    """‖M‖ / √(D + 1) in Frobenius' norm, M being the affine map x ↦ Σ_h (x W_V^h + b_V^h) W_O^h + b_O on (x, 1).

    √ of the mean squared length of the output over that of the input, for inputs (x, 1) of independent unit variance.
    A head's is without b_O. Raises ModelError where values or output are not plainly projected.
    Source: Kobayashi et al. 2021, expansion rate; the layer's M has the 1 in its corner, as in their numbers.
    """
    w_o, w_v, b_v = output_projection(projections).double(), projections.w_v, projections.b_v
    if w_v is None:
        known = f"The proof says of its values: {projections.origins['v'].words}."
        given = f"The value projection of {projections.address} is not known per head."
        raise ModelError(given, known, "The expansion rate needs a plain value projection; norms from texts do not.")
    group = w_o.shape[0] // w_v.shape[0]
    into = w_v.double() if b_v is None else torch.cat([w_v.double(), b_v.double()[:, None]], 1)
    into = into.repeat_interleave(group, 0)
    each = torch.linalg.matrix_norm(into @ torch.linalg.qr(w_o.mT, mode="r").R.mT)
    whole = torch.einsum("hde,hef->df", into, w_o)
    if projections.b_o is not None:
        shift = projections.b_o.double()
        whole = torch.cat([whole, shift[None]]) if b_v is None else torch.cat([whole[:-1], whole[-1:] + shift])
    root = (w_v.shape[1] + 1) ** 0.5
    return Expansion(float((whole.square().sum() + 1).sqrt()) / root, each / root)


def layer_input(trace: Trace) -> Float[Tensor, "B T D"] | None:
    """The vectors x that attention projects, as far as the block gives them: behind the norm in a pre-LN block."""
    block = trace.block
    if block is None or block.kind != "pre":
        return None if block is None else block.residual
    x = single(block.residual)
    centred = x - x.mean(-1, keepdim=True) if block.centred else x
    normed = centred * _deviation(x, block)[..., None] * single(block.gamma)
    return normed if block.beta is None else normed + single(block.beta)


def makes_values(trace: Trace, x: Float[Tensor, "B T D"]) -> Bool[Tensor, "B S"]:
    """At which positions v = x W_V + b_V, to rounding; at none where W_V is not known.

    What stands between the block's input and W_V, and changes what enters it, is not part of the block.
    """
    w, b, v = trace.projections.w_v, trace.projections.b_v, single(trace.v)
    if w is None or x.shape[:2] != trace.key_real.shape or x.shape[2] != w.shape[1]:
        return torch.zeros_like(trace.key_real)
    made = torch.einsum("bsd,kde->bkse", x.to(v), w.to(v))
    made = made if b is None else made + b.to(v)[:, None]
    size = made.norm(dim=(1, 3)) + x.to(v).norm(dim=2) * w.to(v).norm() / w.shape[1] ** 0.5
    origin = trace.projections.origins.get("v")
    rounding = max(NEAR.get(trace.v.dtype, COARSE), 4 * ((origin and origin.rounding) or 0.0))
    return (made - v).norm(dim=(1, 3)) <= rounding * size


def _known(trace: Trace, kind: str) -> ResidualBlock:
    if trace.block is None:
        given = f"The kind '{kind}' needs the residual and the layer norm around attention at {trace.address}."
        known = "The proof found neither a norm after the residual sum nor one before attention there."
        raise ModelError(given, known, "Use the kind 'attention', which needs neither.")
    return trace.block


def _projection(trace: Trace, kind: str) -> Float[Tensor, "H E D"]:
    """W_O and what is linear behind it, followed by what of the layer norm is: centring and γ."""
    if kind not in KINDS:
        known = f"There are {', '.join(KINDS)}."
        raise SpecError(f"The kind of block '{kind}' is not known.", known, "Use one of them.")
    w_o = added_projection(trace)
    return w_o if kind == "attention" else _linear(w_o, _known(trace, kind), kind)


def _linear(vectors: Tensor, block: ResidualBlock, kind: str) -> Tensor:
    if kind != "full" or block.kind != "post":
        return vectors
    centred = vectors - vectors.mean(-1, keepdim=True) if block.centred else vectors
    return centred * single(block.gamma)


def _scale(trace: Trace, kind: str) -> Float[Tensor, "B T"]:
    """One over the deviation of what enters the layer norm; 1 where no norm follows."""
    block = _known(trace, kind)
    if kind != "full" or block.kind != "post":
        return torch.ones_like(single(block.residual[..., 0]))
    made = project(single(trace.output), added_projection(trace)) * _behind(trace) + added_bias(trace)
    return _deviation(made + single(block.residual), block)


def _behind(trace: Trace) -> Float[Tensor, "B T 1"] | float:
    """What a norm behind W_O multiplies every query's parts by."""
    scale = query_scale(trace)
    return 1.0 if scale is None else scale[..., None]


def _deviation(x: Float[Tensor, "B T D"], block: ResidualBlock) -> Float[Tensor, "B T"]:
    spread = x.var(-1, unbiased=False) if block.centred else x.square().mean(-1)
    return (spread + block.epsilon).rsqrt()


def _own(trace: Trace, kind: str) -> Float[Tensor, "B T D"]:
    """What a position takes from itself, before the scale: its own weight's share, and the residual."""
    w_o = _projection(trace, kind)
    if trace.crosses:
        own = torch.zeros_like(project(single(trace.output), w_o))
    else:
        itself = torch.diagonal(single(trace.weights), dim1=2, dim2=3)
        own = project(itself[..., None] * single(trace.values), w_o) * _behind(trace)
    if kind == "attention":
        return own
    block = _known(trace, kind)
    return own + _linear(single(block.residual), block, kind)


def _others(trace: Trace) -> Float[Tensor, "B H T S"]:
    """The weights on other positions that are real; in stack 'cross' all keys are other positions."""
    weights = trace.weights * trace.key_real[:, None, None]
    if trace.crosses:
        return weights
    same = torch.eye(weights.shape[2], weights.shape[3], dtype=torch.bool, device=weights.device)
    return weights.masked_fill(same, 0.0)
