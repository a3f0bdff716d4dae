"""Norm-based analysis of attention: the lengths of the vectors that attention adds up, per head and per layer."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from trisect.core.errors import ModelError
from trisect.core.trace import Projections, Trace

BLOCK = 1 << 22  # numbers of the largest array in between: 16 MiB in single precision
WIDE_BLOCK = 1 << 25  # the same on a GPU: 256 MiB in double precision


def transformed_norms(trace: Trace) -> Float[Tensor, "B H S"]:
    """‖f_h(x_j)‖ of every head and position, f_h(x) = v_h W_O^h with the value's bias and without the output's.

    By W_O^h = L_h Q_h with orthonormal rows in Q_h, ‖v W_O^h‖ = ‖v L_h‖, so nothing is wider than a head; 0 at padding.
    Where a norm or a factor lies behind W_O, f_h goes on through what of it is linear; a norm's deviation is a query's, and
    not in it (`query_scale`). Raises ModelError where the layer's output projection is unknown.
    Source: Kobayashi et al. 2020, f(x) and its norm.
    """
    found = lengths(trace.values, added_projection(trace))
    return found.masked_fill(~trace.key_real[:, None], 0.0)


def per_head(trace: Trace) -> Float[Tensor, "B H T S"]:
    """‖a^h_ij f_h(x_j)‖ = a^h_ij ‖f_h(x_j)‖, as it is added; 0 where query or key is padding. Raises ModelError as transformed_norms."""
    norms = transformed_norms(trace)
    return (added_weights(trace).to(norms.dtype) * norms[:, :, None]).masked_fill(
        ~trace.query_real[:, None, :, None], 0.0
    )


def per_layer(trace: Trace) -> Float[Tensor, "B T S"]:
    """‖Σ_h a^h_ij f_h(x_j)‖: the heads' vectors added, as the residual stream gets them, then the norm.

    0 where query or key is padding. Raises ModelError as transformed_norms. Source: Kobayashi et al. 2020.
    """
    return both(trace).layer


class Both(NamedTuple):
    """‖f_h(x_j)‖ of every head, and ‖Σ_h a^h_ij f_h(x_j)‖ of the layer; 0 at padding."""

    transformed: Float[Tensor, "B H S"]
    layer: Float[Tensor, "B T S"]


def both(trace: Trace) -> Both:
    """`transformed_norms` and `per_layer` in the time of the second. Raises ModelError as transformed_norms."""
    alone, pairs = _summed(trace.weights, trace.values, added_projection(trace))
    scale = query_scale(trace)
    pairs = pairs if scale is None else pairs.mul_(scale[..., None].to(pairs))
    return Both(alone.masked_fill(~trace.key_real[:, None], 0.0), within(trace, pairs))


def within(trace: Trace, pairs: Float[Tensor, "B T S"]) -> Float[Tensor, "B T S"]:
    """The same numbers, 0 where query or key is padding."""
    return pairs.masked_fill(~(trace.query_real[:, :, None] & trace.key_real[:, None]), 0.0)


def output_projection(projections: Projections) -> Float[Tensor, "H E D"]:
    """W_O per head; raises ModelError, in the proof's words, where attention's output is not simply projected."""
    if projections.w_o is None:
        origin = projections.origins.get("o")
        known = f"The proof says of its output: {origin.words}." if origin else "The proof found no output projection."
        todo = "Norms need a plain output projection; weights, similarity and ablation work without it."
        raise ModelError(f"The output projection of {projections.address} is not known per head.", known, todo)
    return single(projections.w_o)


def added_projection(trace: Trace) -> Float[Tensor, "H E D"]:
    """W_O, followed by what is linear of the norm or the factor behind it. Raises ModelError as output_projection."""
    w_o, after = output_projection(trace.projections), None if trace.block is None else trace.block.after
    if after is None:
        return w_o
    w_o = w_o - w_o.mean(-1, keepdim=True) if after.centred else w_o
    return w_o * single(after.gamma)


def query_scale(trace: Trace) -> Float[Tensor, "B T"] | None:
    """One over the deviation of W_O's result at every query, by which a norm behind it multiplies; null where there is none.

    Given it the norm is linear, so that every part of what is added is scaled alike.
    """
    after = None if trace.block is None else trace.block.after
    if after is None or after.epsilon is None:
        return None
    y = written(trace)
    spread = y.var(-1, unbiased=False) if after.centred else y.square().mean(-1)
    return (spread + after.epsilon).rsqrt()


def added_weights(trace: Trace) -> Float[Tensor, "B H T S"]:
    """The weights, times `query_scale`: with `added_projection` they give what is added."""
    scale = query_scale(trace)
    return single(trace.weights) if scale is None else single(trace.weights) * scale[:, None, :, None]


@torch.no_grad()
def written(trace: Trace) -> Float[Tensor, "B T D"]:
    """What W_O makes, with its bias: Σ_h output_h W_O^h + b_O. Raises ModelError as output_projection."""
    y = project(single(trace.output), output_projection(trace.projections))
    return y if trace.projections.b_o is None else y + single(trace.projections.b_o)


def added_bias(trace: Trace) -> Float[Tensor, "B T D"]:
    """What is added without coming from any position: the output's bias behind the norm or factor, and that norm's own bias.

    With the parts Σ_h a f_h(x_j) it makes the whole.
    """
    y = torch.zeros_like(project(single(trace.output), output_projection(trace.projections)))
    y = y if trace.projections.b_o is None else y + single(trace.projections.b_o)
    after, scale = None if trace.block is None else trace.block.after, query_scale(trace)
    if after is None:
        return y
    y = y - y.mean(-1, keepdim=True) if after.centred else y
    y = y * single(after.gamma) * (1.0 if scale is None else scale[..., None])
    return y if after.beta is None else y + single(after.beta)


def project(parts: Float[Tensor, "B H T E"], w_o: Float[Tensor, "H E D"]) -> Float[Tensor, "B T D"]:
    """Σ_h parts_h w_o[h] as one product."""
    heads, inner, width = w_o.shape
    return parts.transpose(1, 2).reshape(*parts.shape[:1], parts.shape[2], heads * inner) @ w_o.reshape(-1, width)


def single(values: Tensor) -> Tensor:
    """Half precision as single; norms of hundreds of squares need it. Other precisions stay."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


@torch.no_grad()
def lengths(v: Float[Tensor, "B H S E"], w_o: Float[Tensor, "H E D"]) -> Float[Tensor, "B H S"]:
    """‖v_h w_o[h]‖ by the LQ decomposition of each head's w_o."""
    lower = torch.linalg.qr(w_o.mT, mode="r").R.mT
    return torch.linalg.vector_norm(single(v) @ lower, dim=-1)


def summed(
    weights: Float[Tensor, "B H T S"], v: Float[Tensor, "B H S E"], w_o: Float[Tensor, "H E D"]
) -> Float[Tensor, "B T S"]:
    """‖Σ_h weights_ij^h v_j^h w_o[h]‖ for every i and j, in blocks of positions j.

    With f_j as D × H and f_j = Q_j R_j, the norm is ‖R_j a_ij‖. R_j comes from f_j itself, not from f_jᵀ f_j, whose
    condition is the square: where heads cancel, single precision would leave nothing right there.
    """
    return _summed(weights, v, w_o)[1]


@torch.no_grad()
def _summed(
    weights: Float[Tensor, "B H T S"], v: Float[Tensor, "B H S E"], w_o: Float[Tensor, "H E D"]
) -> tuple[Float[Tensor, "B H S"], Float[Tensor, "B T S"]]:
    """The lengths of the heads' own vectors, which are those of R_j's columns, and those of their weighted sums."""
    weights, v = single(weights), single(v)
    if v.device.type != "cpu":
        return _summed_by_products(weights, v, w_o)
    texts, heads, queries, keys = weights.shape
    width = w_o.shape[2]
    step = min(keys, max(1, BLOCK // (heads * max(width, queries))))
    found, alone = weights.new_empty(texts, queries, keys), weights.new_empty(texts, heads, keys)
    room = v.new_empty(step, heads, width), v.new_empty(step, min(heads, width))
    for text in range(texts):
        for start in range(0, keys, step):
            some = slice(start, min(start + step, keys))
            upper = _triangles(v[text, :, some], w_o, *room)
            mixed = torch.bmm(upper, weights[text, :, :, some].permute(2, 0, 1).contiguous())
            found[text, :, some] = mixed.square_().sum(1).sqrt_().T
            alone[text, :, some] = upper.square_().sum(1).sqrt_().T
    return alone, found


def _summed_by_products(
    weights: Float[Tensor, "B H T S"], v: Float[Tensor, "B H S E"], w_o: Float[Tensor, "H E D"]
) -> tuple[Float[Tensor, "B H S"], Float[Tensor, "B T S"]]:
    """The same by a_ijᵀ (f_j f_jᵀ) a_ij in double precision, in which its square of a condition does no harm.

    For GPUs, which multiply many small matrices at once but decompose tall ones one by one.
    """
    texts, heads, queries, keys = weights.shape
    step = max(1, WIDE_BLOCK // (texts * heads * max(w_o.shape[2], queries)))
    found, alone = weights.new_empty(texts, queries, keys), weights.new_empty(texts, heads, keys)
    for start in range(0, keys, step):
        some = slice(start, start + step)
        f = (v[:, :, some] @ w_o).transpose(1, 2).double()
        gram, a = f @ f.mT, weights[..., some].permute(0, 3, 1, 2).double()
        found[..., some] = ((gram @ a) * a).sum(2).clamp_min_(0).sqrt_().mT
        alone[..., some] = gram.diagonal(dim1=2, dim2=3).sqrt().mT
    return alone, found


def _triangles(
    v: Float[Tensor, "H J E"], w_o: Float[Tensor, "H E D"], f: Float[Tensor, "N H D"], scales: Float[Tensor, "N R"]
) -> Float[Tensor, "J R H"]:
    """R_j of every position: R = min(D, H) rows, upper triangular. `f` and `scales` are room that is used again."""
    f, scales = f[: v.shape[1]], scales[: v.shape[1]]
    for head, mine in enumerate(w_o):
        torch.mm(v[head], mine, out=f[:, head])
    # In its own place: a fresh array of this size would cost as much as the decomposition.
    torch.geqrf(f.mT, out=(f.mT, scales))
    return f.mT[:, : scales.shape[1]].triu()
