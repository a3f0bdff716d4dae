"""Norm-based analysis of attention: norms of the vectors that it sums, optionally with residual, layer norm and feed-forward block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from trisect.core.errors import ModelError, SpecError
from trisect.core.trace import FeedForward, Projections, Rescaling, ResidualBlock, Trace

BLOCK_NUMBERS = 1 << 18  # numbers in a block of weights: 2 MiB in double precision, which a processor's cache can hold
BLOCK_QUERIES = 32  # in a block, at least
QR_NUMBERS = 1 << 22  # numbers that are decomposed at once: 16 MiB in single precision
_GPU_BLOCK_NUMBERS = 1 << 25  # the same on a GPU: 256 MiB in double precision


def transformed_norms(trace: Trace) -> Float[Tensor, "B H S"]:
    """‖f_h(x_j)‖ of every head and position, f_h(x) = v_h W_O^h with the value's bias and without the output's.

    By W_O^h = L_h Q_h with orthonormal rows in Q_h, ‖v W_O^h‖ = ‖v L_h‖, so no array is wider than a head. 0 at padding.
    If a norm or a factor follows W_O, f_h includes its linear part (`effective_projection`), without the division by the deviation,
    which depends on the query (`query_scale`). Raises ModelError where the layer's output projection is unknown.
    Source: Kobayashi et al. 2020, f(x) and its norm.
    """
    return projected_norms(trace.values, effective_projection(trace)).masked_fill(~trace.key_real[:, None], 0.0)


def head_norms(trace: Trace) -> Float[Tensor, "B H T S"]:
    """‖a^h_ij f_h(x_j)‖ = a^h_ij ‖f_h(x_j)‖, as added up; 0 where query or key is padding. Raises ModelError as transformed_norms."""
    norms = transformed_norms(trace)
    added = _effective_weights(trace).to(norms.dtype) * norms[:, :, None]
    return added.masked_fill(~trace.query_real[:, None, :, None], 0.0)


def summed_norms(trace: Trace) -> Float[Tensor, "B T S"]:
    """‖Σ_h a^h_ij f_h(x_j)‖: the norm of the sum of the heads' vectors, which is what the residual stream receives.

    0 where query or key is padding. Raises ModelError as transformed_norms. Source: Kobayashi et al. 2020.
    """
    return transformed_and_layer_norms(trace)[1]


def transformed_and_layer_norms(trace: Trace) -> tuple[Float[Tensor, "B H S"], Float[Tensor, "B T S"]]:
    """`transformed_norms` and `summed_norms`, computed together in the time of `summed_norms`. Raises ModelError as transformed_norms."""
    per_head, pairs = sum_norms(trace.weights, trace.values, effective_projection(trace))
    scale = query_scale(trace)
    pairs = pairs if scale is None else pairs.mul_(scale[..., None].to(pairs))
    return per_head.masked_fill(~trace.key_real[:, None], 0.0), _mask_padding(trace, pairs)


class _WeightBlock(NamedTuple):
    """Weights of some rows and queries, in double precision and 0 at padding, and the keys beyond which they are all 0."""

    rows: slice
    queries: slice
    keys: slice
    weights: Float[Tensor, "R H Q K"]


def _block_spans(weights: Float[Tensor, "B H T S"]) -> Iterator[tuple[slice, slice, slice]]:
    """Rows, queries and the keys that these can see, so that a block of weights stays in the processor's cache."""
    texts, heads, queries, keys = weights.shape
    is_here = weights.device.type == "cpu"  # to look at numbers of a GPU is to wait for it
    size = BLOCK_NUMBERS if is_here else _GPU_BLOCK_NUMBERS
    rows, step = max(1, size // (heads * queries * keys)), max(BLOCK_QUERIES, size // (heads * keys))
    for row in range(0, texts, rows):
        for start in range(0, queries, step):
            at = slice(row, row + rows), slice(start, end := min(start + step, queries))
            later = weights[at[0], :, at[1], end:]
            is_causal = is_here and queries == keys and end < keys and later.amax() == 0 and later.amin() == 0
            yield *at, slice(0, end if is_causal else keys)


def _weight_blocks(trace: Trace) -> Iterator[_WeightBlock]:
    is_padded = _is_padded(trace)
    for rows, queries, keys in _block_spans(trace.weights):
        weights = trace.weights[rows, :, queries, keys].double()
        if is_padded:
            weights *= trace.query_real[rows, None, queries, None] & trace.key_real[rows, None, None, keys]
        yield _WeightBlock(rows, queries, keys, weights)


class _OutputParts(NamedTuple):
    """o_i / ‖o_i‖² of some queries in the space of a head's values: that of each head, and that of the layer."""

    heads: Float[Tensor, "R H Q E"]
    layer: Float[Tensor, "R H Q E"]
    residual: Float[Tensor, "R Q"]  # x_i·o_i / ‖o_i‖², where the layer's o_i has the residual x_i in it


class _ContributionTerms(NamedTuple):
    """What contributions of a trace are computed from, in double precision: W_O, W_O W_Oᵀ per head, `query_scale`, residual."""

    w_o: Float[Tensor, "H E D"]
    gram: Float[Tensor, "H E E"]
    scale: Float[Tensor, "B T"] | None
    residual: Float[Tensor, "B T D"] | None

    @classmethod
    def of(cls, trace: Trace, residual: bool = False) -> _ContributionTerms:
        """Raises ModelError as `layer_contributions`."""
        w_o, scale = effective_projection(trace).double(), query_scale(trace)
        x = to_single_precision(_block_of(trace, "residual").residual).double() if residual else None
        return cls(w_o, w_o @ w_o.mT, None if scale is None else scale.double(), x)

    def parts(self, trace: Trace, block: _WeightBlock, output: Float[Tensor, "R H Q E"]) -> _OutputParts:
        """The parts of a block of queries from weights times v; 0 at padding and where o_i is 0; times the query's scale."""
        at = block.rows, block.queries
        if self.scale is not None:
            output = output * self.scale[at][:, None, :, None]
        projected, total = output @ self.gram, project(output, self.w_o)
        x = torch.zeros_like(total) if self.residual is None else self.residual[at]
        total = (total + x) * trace.query_real[at][..., None]

        def divide(part: Tensor, size: Tensor) -> Tensor:
            return torch.where(size > 0, part / size.clamp_min(torch.finfo(torch.float64).tiny), 0.0)

        size = total.square().sum(-1, keepdim=True)
        heads = divide(projected, (projected * output).sum(-1, keepdim=True))
        inner = (total @ self.w_o.reshape(-1, total.shape[-1]).T).unflatten(-1, self.w_o.shape[:2]).transpose(1, 2)
        parts = _OutputParts(heads, divide(inner, size[:, None]), divide((x * total).sum(-1), size[..., 0]))
        if self.scale is None:
            return parts
        factor = self.scale[at][:, None, :, None]
        return parts._replace(heads=parts.heads * factor, layer=parts.layer * factor)


@torch.no_grad()
def contributions(trace: Trace) -> tuple[Float[Tensor, "B H T S"], Float[Tensor, "B T S"]]:
    """Contribution weights a_ij f(x_j)·o_i / ‖o_i‖² of every head, o_i = Σ_j a_ij f(x_j), and of the layer, whose o_i is the heads' sum.

    The share of query i's output o_i that comes from key j. Shares sum to 1 over j; one is negative if the vector from j points away
    from o_i. 0 at padding, and where o_i is 0. In double precision. Raises ModelError as transformed_norms. Source:
    arXiv 2606.07604, contribution weights.
    """
    heads = torch.zeros_like(trace.weights, dtype=torch.float64)
    return heads, _layer_shares(trace, heads=heads)


class AttentionSums(NamedTuple):
    """Sums over queries, by key: contributions by head and by layer, weights as they are and times `query_scale`, and queries that may
    attend to it (weights of exactly 0 in every head are masked ones). By query: weights times v, and their sum. 0 at padding.
    """

    heads: Float[Tensor, "B H S"]
    layer: Float[Tensor, "B S"]
    weights: Float[Tensor, "B H S"]
    scaled: Float[Tensor, "B H S"]
    allowed: Int[Tensor, "B S"]
    output: Float[Tensor, "B H T E"]
    total: Float[Tensor, "B H T"]


@torch.no_grad()
def attention_sums(trace: Trace) -> AttentionSums:
    """All sums in one pass over the weights, in double precision, with no array of all pairs. Errors as transformed_norms."""
    basis, values = _ContributionTerms.of(trace), trace.values.double()
    texts, heads, queries, keys = trace.weights.shape
    width = values.shape[-1]
    by_key = values.new_zeros(texts, heads, keys, 2 * width + 2)
    by_query = values.new_zeros(texts, heads, queries, width + 1)
    values = torch.cat([values, torch.ones_like(values[..., :1])], -1)
    allowed = torch.zeros_like(trace.key_real, dtype=torch.long)
    for block in _weight_blocks(trace):
        rows, at, seen, weights = block
        mixed = torch.matmul(weights, values[rows, :, seen])
        parts, ones = basis.parts(trace, block, mixed[..., :-1]), torch.ones_like(mixed[..., :1])
        scale = ones if basis.scale is None else ones * basis.scale[rows, at][:, None, :, None]
        received = by_key[rows, :, seen]
        received += weights.mT @ torch.cat([parts.heads, parts.layer, ones, scale], -1)
        by_query[rows, :, at] = mixed
        attending = allowed[rows, seen]
        attending += (weights.amax(1) > 0).sum(1)
    by_head, by_layer = ((part * values[..., :-1]).sum(-1) for part in by_key[..., :-2].split(width, -1))
    received, scaled = by_key[..., -2:].unbind(-1)
    return AttentionSums(by_head, by_layer.sum(1), received, scaled, allowed, by_query[..., :-1], by_query[..., -1])


@torch.no_grad()
def layer_contributions(trace: Trace, residual: bool = False) -> Float[Tensor, "B T S"]:
    """The layer's `contributions`; with `residual`, x_i is added to its o_i, and is a share of position i (of none in stack 'cross').

    Raises ModelError as transformed_norms, and with `residual` if the block is not known.
    """
    return _layer_shares(trace, residual)


def _layer_shares(
    trace: Trace, residual: bool = False, heads: Float[Tensor, "B H T S"] | None = None
) -> Float[Tensor, "B T S"]:
    """The shares of every head's values in the layer's outputs, summed head by head; each head's in its own are written to `heads`."""
    basis, values = _ContributionTerms.of(trace, residual), trace.values.double()
    layer = values.new_zeros(*trace.weights.shape[:1], *trace.weights.shape[2:])
    for block in _weight_blocks(trace):
        rows, at, seen, weights = block
        v = values[rows, :, seen]
        parts = basis.parts(trace, block, weights @ v)
        layer[rows, at, seen] = (parts.layer @ v.mT).mul_(weights).sum(1)
        if heads is not None:
            heads[rows, :, at, seen] = (parts.heads @ v.mT).mul_(weights)
        if residual and not trace.crosses:
            torch.diagonal(layer[rows, at, at], dim1=1, dim2=2).add_(parts.residual)
    return layer


@torch.no_grad()
def rollout_step(trace: Trace, kind: str) -> Float[Tensor, "B T T"]:
    """How much of position i after attention and residual comes from j, by `kind` 'weight', 'norm' or 'contribution'; rows sum to 1.

    'weight': half the mean of a over heads, half the position itself. 'norm': `norms` with the residual. 'contribution': the layer's
    contribution weights with the residual, negative ones set to 0. A rollout is the product of these matrices, last layer first:
    Abnar & Zuidema 2020; by norm Modarressi et al. 2022 (GlobEnc); by contribution after Ferrando et al. 2022 (ALTI). Raises
    ModelError if the block is not known.
    """
    if kind == "weight":
        step = _mask_padding(trace, to_single_precision(trace.weights).mean(1).double())
        step /= step.sum(-1, keepdim=True).clamp_min(1e-30)
        torch.diagonal(step, dim1=1, dim2=2).add_(trace.query_real)
    elif kind == "norm":
        step = norms(trace, "residual").double()
    else:
        step = layer_contributions(trace, residual=True).clamp_min_(0.0)
    return step.div_(step.sum(-1, keepdim=True).clamp_min(1e-30))


def _mask_padding(trace: Trace, pairs: Float[Tensor, "B T S"]) -> Float[Tensor, "B T S"]:
    """`pairs`, changed in place, with 0 where query or key is padding."""
    if _is_padded(trace):
        pairs.masked_fill_(~(trace.query_real[:, :, None] & trace.key_real[:, None]), 0.0)
    return pairs


def _is_padded(trace: Trace) -> bool:
    """Whether a text may be padded; on a GPU, which would have to be waited for, every text may."""
    return trace.weights.device.type != "cpu" or not bool(trace.query_real.all() & trace.key_real.all())


def output_projection(projections: Projections) -> Float[Tensor, "H E D"]:
    """W_O per head; raises ModelError with the proof's reason if attention's output has no plain projection."""
    if projections.w_o is None:
        origin = projections.origins.get("o")
        reason = f"The proof says of its output: {origin.words}." if origin else "The proof found no output projection."
        todo = "Norms need a plain output projection; weights, similarity and ablation work without it."
        raise ModelError(f"The output projection of {projections.address} is not known per head.", reason, todo)
    return to_single_precision(projections.w_o)


def effective_projection(trace: Trace) -> Float[Tensor, "H E D"]:
    """W_O times the linear part of a norm or a factor that follows it. Raises ModelError as output_projection."""
    w_o, after = output_projection(trace.projections), None if trace.block is None else trace.block.after
    return w_o if after is None else _centre(w_o, after) * to_single_precision(after.gamma)


def query_scale(trace: Trace) -> Float[Tensor, "B T"] | None:
    """One over the deviation of W_O's result at every query, the factor in a norm that follows W_O; None if none follows.

    With this factor fixed the norm is linear, so that it scales all terms of the sum alike.
    """
    after = None if trace.block is None else trace.block.after
    if after is None or after.epsilon is None:
        return None
    return _inverse_deviation(attention_output(trace), after)


def _effective_weights(trace: Trace) -> Float[Tensor, "B H T S"]:
    """The weights times `query_scale`; together with `effective_projection` they give the vectors added to the residual."""
    weights, scale = to_single_precision(trace.weights), query_scale(trace)
    return weights if scale is None else weights * scale[:, None, :, None]


@torch.no_grad()
def attention_output(trace: Trace) -> Float[Tensor, "B T D"]:
    """The result of W_O with its bias: Σ_h output_h W_O^h + b_O. Raises ModelError as output_projection."""
    y = project(to_single_precision(trace.output), output_projection(trace.projections))
    return y if trace.projections.b_o is None else y + to_single_precision(trace.projections.b_o)


def effective_bias(trace: Trace) -> Float[Tensor, "B T D"]:
    """The constant part of attention's result: b_O, passed through the norm or factor that follows, plus the bias of that norm.

    Added to Σ_j Σ_h a f_h(x_j), it gives the whole result.
    """
    w_o, b_o = output_projection(trace.projections), trace.projections.b_o
    y = to_single_precision(trace.output).new_zeros(*trace.output.shape[::2], w_o.shape[2])
    y = y if b_o is None else y + to_single_precision(b_o)
    after = None if trace.block is None else trace.block.after
    if after is None:
        return y
    y = _centre(y, after) * to_single_precision(after.gamma) * _query_factor(trace)
    return y if after.beta is None else y + to_single_precision(after.beta)


def project(parts: Float[Tensor, "B H T E"], w_o: Float[Tensor, "H E D"]) -> Float[Tensor, "B T D"]:
    """Σ_h parts_h w_o[h] as one product."""
    heads, inner, width = w_o.shape
    return parts.transpose(1, 2).reshape(*parts.shape[:1], parts.shape[2], heads * inner) @ w_o.reshape(-1, width)


def _precision(trace: Trace) -> torch.dtype:
    """That of what is measured of a trace: single for half precision."""
    return to_single_precision(trace.weights[:0]).dtype


def to_single_precision(values: Tensor) -> Tensor:
    """Half precision converted to single, which sums of hundreds of squares need; other dtypes unchanged."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


@torch.no_grad()
def projected_norms(v: Float[Tensor, "B H S E"], w_o: Float[Tensor, "H E D"]) -> Float[Tensor, "B H S"]:
    """‖v_h w_o[h]‖ by the LQ decomposition of each head's w_o."""
    lower = torch.linalg.qr(w_o.mT, mode="r").R.mT
    return torch.linalg.vector_norm(to_single_precision(v) @ lower, dim=-1)


@torch.no_grad()
def sum_norms(
    weights: Float[Tensor, "B H T S"], v: Float[Tensor, "B H S E"], w_o: Float[Tensor, "H E D"]
) -> tuple[Float[Tensor, "B H S"], Float[Tensor, "B T S"]]:
    """‖v_j^h w_o[h]‖ of every head and j, and ‖Σ_h weights_ij^h v_j^h w_o[h]‖ for every i and j, in blocks of queries.

    With f_j as D × H and f_j = Q_j R_j, the norm of the sum is ‖R_j a_ij‖, and those of the heads are the lengths of R_j's columns.
    R_j is computed from f_j, not from f_jᵀ f_j, whose condition number is squared: where heads cancel, single precision would
    leave no correct digit.
    """
    weights, v = to_single_precision(weights), to_single_precision(v)
    if v.device.type != "cpu":
        return _norms_by_gram(weights, v, w_o)
    texts, heads, queries, keys = weights.shape
    sums, per_head = weights.new_zeros(texts, queries, keys), weights.new_empty(texts, heads, keys)
    buffer = weights.new_empty(0)
    for text in range(texts):
        upper = _triangular_factors(v[text], w_o)
        per_head[text] = torch.linalg.vector_norm(upper, dim=1).T
        for _, at, seen in _block_spans(weights[text : text + 1]):
            block = weights[text, :, at]
            # head by head, since a plane is transposed quickly
            transposed = buffer.resize_(heads, keys, block.shape[1])
            for plane, by_query in zip(transposed, block, strict=True):
                plane.copy_(by_query.T)
            mixed = torch.bmm(upper[seen], transposed[:, seen].transpose(0, 1))
            sums[text, at, seen] = mixed.square_().sum(1).sqrt_().T.contiguous()
    return per_head, sums


def _triangular_factors(v: Float[Tensor, "H S E"], w_o: Float[Tensor, "H E D"]) -> Float[Tensor, "S R H"]:
    """R_j of f_j = Q_j R_j at every position j, min(D, H) rows, in blocks of positions."""
    heads, keys, width = len(w_o), v.shape[1], w_o.shape[2]
    step = min(keys, max(1, QR_NUMBERS // (heads * width)))
    buffers = v.new_empty(step, heads, width), v.new_empty(step, min(heads, width))
    upper = v.new_empty(keys, min(heads, width), heads)
    for start in range(0, keys, step):
        part = slice(start, min(start + step, keys))
        f, scales = (buffer[: part.stop - start] for buffer in buffers)
        for head, projection in enumerate(w_o):
            torch.mm(v[head, part], projection, out=f[:, head])
        # in place, since allocating an array of this size takes as long as the decomposition
        torch.geqrf(f.mT, out=(f.mT, scales))
        torch.triu(f.mT[:, : scales.shape[1]], out=upper[part])
    return upper


def _norms_by_gram(
    weights: Float[Tensor, "B H T S"], v: Float[Tensor, "B H S E"], w_o: Float[Tensor, "H E D"]
) -> tuple[Float[Tensor, "B H S"], Float[Tensor, "B T S"]]:
    """`sum_norms` by a_ijᵀ (f_j f_jᵀ) a_ij in double precision, which is enough for its squared condition number.

    For GPUs, where many small products run at once but QR decompositions one by one.
    """
    texts, heads, queries, keys = weights.shape
    step = max(1, _GPU_BLOCK_NUMBERS // (texts * heads * max(w_o.shape[2], queries)))
    sums, per_head = weights.new_empty(texts, queries, keys), weights.new_empty(texts, heads, keys)
    for start in range(0, keys, step):
        part = slice(start, start + step)
        f = (v[:, :, part] @ w_o).transpose(1, 2).double()
        gram, a = f @ f.mT, weights[..., part].permute(0, 3, 1, 2).double()
        sums[..., part] = ((gram @ a) * a).sum(2).clamp_min_(0).sqrt_().mT
        per_head[..., part] = gram.diagonal(dim1=2, dim2=3).sqrt().mT
    return per_head, sums


KINDS = ("attention", "residual", "full")
# tolerances for v against x W_V, relative to its size: a norm's ε is known to about 1e-3
TOLERANCES, HALF_TOLERANCE = {torch.float64: 5e-3, torch.float32: 5e-3}, 5e-2


class _Expansion(NamedTuple):
    """Factors by which affine maps lengthen a vector of unit variance: that of the layer, and that of every head."""

    layer: float
    heads: Float[Tensor, " H"]


class _MixingParts(NamedTuple):
    """Position i's new vector as the part from position i and the part from all other positions."""

    self_part: Float[Tensor, "B T D"]
    context: Float[Tensor, "B T D"]


def norms(trace: Trace, kind: str = "attention") -> Float[Tensor, "B T S"]:
    """‖F_ij‖, the norm of the part of position i's new vector that comes from position j.

    For 'attention', F_ij = Σ_h a f_h(x_j). 'residual' adds x_i where i = j. 'full' also applies the layer norm: it subtracts the mean,
    scales by γ and divides by the deviation of the whole sum; in a pre-LN block the norm is part of f, and 'full' is 'residual'.
    In stack 'cross' the residual belongs to no position. 0 at padding. Raises ModelError if the block is not known,
    SpecError for another kind. 'feed-forward' is `feed_forward_norms`. Source: Kobayashi et al. 2021 (Attn-N, AttnRes-N,
    AttnResLn-N).
    """
    if kind == FEED_FORWARD:
        return feed_forward_norms(trace)
    pairs = sum_norms(_effective_weights(trace), trace.values, _projection(trace, kind))[1]
    if kind != "attention":
        if not trace.crosses:
            torch.diagonal(pairs, dim1=1, dim2=2).copy_(torch.linalg.vector_norm(_self_part(trace, kind), dim=-1))
        pairs *= _scale(trace, kind)[..., None]
    return _mask_padding(trace, pairs)


def mixing_ratio(trace: Trace, kind: str = "attention", sums: AttentionSums | None = None) -> Float[Tensor, "B T"]:
    """‖context‖ / (‖context‖ + ‖own‖): 0 if a position's new vector comes from itself alone, 1 if all comes from others.

    0 at padding. Errors as `norms`. Source: Kobayashi et al. 2021, mixing ratio.
    """
    self_part, context = (torch.linalg.vector_norm(part, dim=-1) for part in mixing_parts(trace, kind, sums))
    total = self_part + context
    return torch.where(trace.query_real & (total > 0), context / total.clamp_min(torch.finfo(total.dtype).tiny), 0.0)


def mixing_by_weights(trace: Trace, kind: str = "attention", sums: AttentionSums | None = None) -> Float[Tensor, "B T"]:
    """The mixing ratio by weights alone: Σ_{j≠i} a_ij, mean over heads; half of that for other kinds, the residual counting as weight 1."""
    from_others = (sums or attention_sums(trace)).total
    from_others = from_others if trace.crosses else from_others - _self_weights(trace)
    return from_others.mean(1).to(_precision(trace)) * (1.0 if kind == "attention" else 0.5)


@torch.no_grad()
def mixing_parts(trace: Trace, kind: str = "attention", sums: AttentionSums | None = None) -> _MixingParts:
    """Every position's new vector as its own part and that of the context, without β and b_O; `sums` if they are known.

    The context's is 0 at padding. Errors as `norms`.
    """
    if kind == FEED_FORWARD:
        return feed_forward_mixing(trace)
    w_o = _projection(trace, kind)
    from_others = (sums or attention_sums(trace)).output
    if not trace.crosses:
        from_others = from_others - _self_weights(trace)[..., None] * trace.values
    context = project(from_others.to(w_o), w_o) * _query_factor(trace)
    scale = 1.0 if kind == "attention" else _scale(trace, kind)[..., None]
    return _MixingParts(_self_part(trace, kind) * scale, context * scale)


def expansion_rate(projections: Projections) -> _Expansion:
    """‖M‖ / √(D + 1) in Frobenius' norm, M being the affine map x ↦ Σ_h (x W_V^h + b_V^h) W_O^h + b_O on (x, 1).

    √ of the mean squared length of the output over that of the input, for inputs (x, 1) of independent unit variance.
    Rates of heads leave b_O out. Raises ModelError if values or output have no plain projection.
    Source: Kobayashi et al. 2021, expansion rate; the layer's M has the 1 in its corner, as in their numbers.
    """
    w_o, w_v, b_v = output_projection(projections).double(), projections.w_v, projections.b_v
    if w_v is None:
        reason = f"The proof says of its values: {projections.origins['v'].words}."
        problem = f"The value projection of {projections.address} is not known per head."
        raise ModelError(problem, reason, "The expansion rate needs a plain value projection; norms from texts do not.")
    group = w_o.shape[0] // w_v.shape[0]
    into = w_v.double() if b_v is None else torch.cat([w_v.double(), b_v.double()[:, None]], 1)
    into = into.repeat_interleave(group, 0)
    each = torch.linalg.matrix_norm(into @ torch.linalg.qr(w_o.mT, mode="r").R.mT)
    joint = torch.einsum("hde,hef->df", into, w_o)
    if projections.b_o is not None:
        shift = projections.b_o.double()
        joint = torch.cat([joint, shift[None]]) if b_v is None else torch.cat([joint[:-1], joint[-1:] + shift])
    root = (w_v.shape[1] + 1) ** 0.5
    return _Expansion(float((joint.square().sum() + 1).sqrt()) / root, each / root)


def layer_input(trace: Trace) -> Float[Tensor, "B T D"] | None:
    """The vectors x that attention projects, which in a pre-LN block are normed; None if the block is not known."""
    block = trace.block
    if block is None or block.kind != "pre":
        return None if block is None else block.residual
    x = to_single_precision(block.residual)
    normed = _centre(x, block) * _inverse_deviation(x, block)[..., None] * to_single_precision(block.gamma)
    return normed if block.beta is None else normed + to_single_precision(block.beta)


def values_match_input(trace: Trace, x: Float[Tensor, "B T D"]) -> Bool[Tensor, "B S"]:
    """Positions at which v = x W_V + b_V up to rounding; all false if W_V is not known.

    It fails if the model changes x between the residual block's input and W_V.
    """
    w, b, v = trace.projections.w_v, trace.projections.b_v, to_single_precision(trace.v)
    if w is None or x.shape[:2] != trace.key_real.shape or x.shape[2] != w.shape[1]:
        return torch.zeros_like(trace.key_real)
    expected = torch.einsum("bsd,kde->bkse", x.to(v), w.to(v))
    expected = expected if b is None else expected + b.to(v)[:, None]
    size = expected.norm(dim=(1, 3)) + x.to(v).norm(dim=2) * w.to(v).norm() / w.shape[1] ** 0.5
    origin = trace.projections.origins.get("v")
    rounding = max(TOLERANCES.get(trace.v.dtype, HALF_TOLERANCE), 4 * ((origin and origin.rounding) or 0.0))
    return (expected - v).norm(dim=(1, 3)) <= rounding * size


def _block_of(trace: Trace, kind: str) -> ResidualBlock:
    if trace.block is None:
        problem = f"The kind '{kind}' needs the residual and the layer norm around attention at {trace.address}."
        reason = "The proof found neither a norm after the residual sum nor one before attention there."
        raise ModelError(problem, reason, "Use the kind 'attention', which needs neither.")
    return trace.block


def _projection(trace: Trace, kind: str) -> Float[Tensor, "H E D"]:
    """`effective_projection`, times the linear part of the layer norm for 'full': centring and γ."""
    if kind not in KINDS:
        reason = f"There are {', '.join((*KINDS, FEED_FORWARD))}."
        raise SpecError(f"The kind of block '{kind}' is not known.", reason, "Use one of them.")
    w_o = effective_projection(trace)
    return w_o if kind == "attention" else _linear(w_o, _block_of(trace, kind), kind)


def _linear(vectors: Tensor, block: ResidualBlock, kind: str) -> Tensor:
    if kind != "full" or block.kind != "post":
        return vectors
    return _centre(vectors, block) * to_single_precision(block.gamma)


def _scale(trace: Trace, kind: str) -> Float[Tensor, "B T"]:
    """One over the deviation of what enters the layer norm; 1 where no norm follows."""
    block = _block_of(trace, kind)
    if kind != "full" or block.kind != "post":
        return torch.ones_like(to_single_precision(block.residual[..., 0]))
    summed = project(to_single_precision(trace.output), effective_projection(trace)) * _query_factor(
        trace
    ) + effective_bias(trace)
    return _inverse_deviation(summed + to_single_precision(block.residual), block)


def _query_factor(trace: Trace) -> Float[Tensor, "B T 1"] | float:
    """`query_scale` with a last axis, 1 if no norm follows W_O."""
    return 1.0 if (scale := query_scale(trace)) is None else scale[..., None]


def _centre(x: Float[Tensor, "*N D"], norm: Rescaling | ResidualBlock) -> Float[Tensor, "*N D"]:
    """x less its mean over D, unless the norm is an RMS norm."""
    return x - x.mean(-1, keepdim=True) if norm.centred else x


def _inverse_deviation(x: Float[Tensor, "*N D"], norm: Rescaling | ResidualBlock) -> Float[Tensor, "*N"]:
    """One over the standard deviation of x over D (the root mean square in an RMS norm), with the norm's ε."""
    assert norm.epsilon is not None
    variance = x.var(-1, unbiased=False) if norm.centred else x.square().mean(-1)
    return (variance + norm.epsilon).rsqrt()


def _self_part(trace: Trace, kind: str) -> Float[Tensor, "B T D"]:
    """The part of a position's new vector that comes from itself, before division by the deviation."""
    w_o = _projection(trace, kind)
    if trace.crosses:
        part = torch.zeros_like(project(to_single_precision(trace.output), w_o))
    else:
        self_weights = torch.diagonal(to_single_precision(trace.weights), dim1=2, dim2=3)
        part = project(self_weights[..., None] * to_single_precision(trace.values), w_o) * _query_factor(trace)
    if kind == "attention":
        return part
    block = _block_of(trace, kind)
    return part + _linear(to_single_precision(block.residual), block, kind)


def _self_weights(trace: Trace) -> Float[Tensor, "B H T"]:
    """The weight on a position itself, in double precision; 0 at padding."""
    return torch.diagonal(trace.weights, dim1=2, dim2=3).double() * trace.query_real[:, None]


_ACTIVATION_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "relu": torch.relu,
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu2": lambda x: torch.relu(x).square(),
    "tanh": torch.tanh,
    "linear": lambda x: x,
}
ACTIVATIONS = tuple(_ACTIVATION_FUNCTIONS)


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """The function of that name, one of NAMES."""
    return _ACTIVATION_FUNCTIONS[name]


FEED_FORWARD = "feed-forward"
MAX_NUMBERS = 1 << 24  # numbers in the largest temporary array: 64 MiB in single precision
NODES = 32  # nodes of Gauss-Legendre quadrature along the path of a gate
SMALL_OPERAND = 1e-3  # operands below this, for which a quotient would lose digits


class _BlockStage(NamedTuple):
    """A layer's W_O, residual block and feed-forward block, on one device and in one precision."""

    w_o: Float[Tensor, "H E D"]
    block: ResidualBlock
    forward: FeedForward


@torch.no_grad()
def feed_forward_norms(trace: Trace) -> Float[Tensor, "B T S"]:
    """‖F_ij‖ of position i's vector after the feed-forward block, for the part from j; where i = j it includes the residual.

    In cross-attention the residual belongs to no position. 0 at padding. Costs about as many passes through the feed-forward
    block as there are positions. Raises ModelError if no such block was found.
    """
    stage = _block_stage(trace)
    rows, _, queries, keys = trace.weights.shape
    pair_norms = to_single_precision(trace.weights).new_zeros(rows, queries, keys)
    step = max(1, MAX_NUMBERS // ((keys + 1) * len(stage.forward.inner)))
    for row in range(rows):
        for start in range(0, queries, step):
            some_queries = torch.arange(start, min(start + step, queries), device=pair_norms.device)
            pair_norms[row, some_queries] = feed_forward_parts(trace, row, some_queries, stage)[:, :keys].norm(dim=-1)
    return _mask_padding(trace, pair_norms)


@torch.no_grad()
def feed_forward_mixing(trace: Trace) -> _MixingParts:
    """Position i's vector after the feed-forward block as the part from itself and the part from all others. Errors as `norms`."""
    stage = _block_stage(trace)
    self_part, context = [], []
    for row in range(len(trace.weights)):
        weights, values = to_single_precision(trace.weights[row]), to_single_precision(trace.values[row])
        diagonal = torch.zeros_like(weights) if trace.crosses else torch.diag_embed(torch.diagonal(weights, 0, 1, 2))
        both = [project((part @ values)[None], stage.w_o)[0] for part in (diagonal, weights - diagonal)]
        queries = torch.arange(len(both[0]), device=both[0].device)
        first, second, _ = _pass_through_block(stage, trace, row, torch.stack(both, 1), queries, 0).unbind(1)
        self_part.append(first)
        context.append(second)
    return _MixingParts(torch.stack(self_part), torch.stack(context))


@torch.no_grad()
def feed_forward_parts(
    trace: Trace, row: int, queries: Tensor, stage: _BlockStage | None = None
) -> Float[Tensor, "Q P D"]:
    """For some queries of a row, the block's output as one part for each key and a last part for all biases.

    The parts sum to the output. In cross-attention the last part includes the residual. Errors as `norms`.
    """
    stage = stage or _block_stage(trace)
    weights, values = to_single_precision(trace.weights[row])[:, queries], to_single_precision(trace.values[row])
    parts = torch.einsum("hqs,hsd->qsd", weights, values @ stage.w_o)
    return _pass_through_block(stage, trace, row, parts, queries, None)


def _pass_through_block(
    stage: _BlockStage, trace: Trace, row: int, parts: Float[Tensor, "Q P D"], queries: Tensor, at: int | None
) -> Float[Tensor, "Q P1 D"]:
    """Pass parts of W_O's output through the rest of the block; the residual joins part `at`, or the query's own part if None."""
    block, forward = stage.block, stage.forward
    parts = torch.cat([parts, torch.zeros_like(parts[:, :1])], 1)
    _add_bias(parts, trace.projections.b_o)
    parts = rescale_parts(parts, block.after)
    if trace.crosses:
        at = parts.shape[1] - 1
    index = torch.arange(len(queries), device=queries.device)
    parts[index, queries if at is None else at] += to_single_precision(block.residual[row])[queries]
    if block.kind == "post":
        parts = rescale_parts(parts, Rescaling(block.gamma, block.beta, block.epsilon, block.centred))
    added = _inner_units(forward, rescale_parts(parts, forward.input_norm)) @ forward.outer.T
    _add_bias(added, forward.outer_bias)
    return rescale_parts(parts + rescale_parts(added, forward.output_norm), forward.sum_norm)


def _inner_units(forward: FeedForward, block_input: Float[Tensor, "Q P D"]) -> Float[Tensor, "Q P F"]:
    """The hidden units in parts: each operand's parts times the mean slope of the activation along the path from 0."""
    operand = block_input @ forward.inner.T
    _add_bias(operand, forward.inner_bias)
    total = operand.sum(1)
    if forward.gate is None:
        hidden = operand * _mean_slope(forward.activation, total)[:, None]
        hidden[:, -1] += activation(forward.activation)(torch.zeros_like(total))
        return hidden
    gate_input = block_input @ forward.gate.T
    _add_bias(gate_input, forward.gate_bias)
    slopes = _gate_slopes(forward.activation, total, gate_input.sum(1))
    return operand * slopes[0][:, None] + gate_input * slopes[1][:, None]


def _mean_slope(name: str, x: Tensor) -> Tensor:
    """∫ φ'(αx) dα over α from 0 to 1: (φ(x) − φ(0)) / x, and the slope at x / 2 where x is small."""
    phi = activation(name)
    is_small = x.abs() < SMALL_OPERAND
    quotient = (phi(x) - phi(torch.zeros_like(x))) / torch.where(is_small, 1.0, x)
    return torch.where(is_small, slope(name, x / 2), quotient)


def _gate_slopes(name: str, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """∫ φ'(αa) αb dα and ∫ φ(αa) dα, the factors for parts of a and of b in φ(a) b along the straight path from 0.

    The second is computed by quadrature, the first from it by integration by parts, so that an error of the quadrature cancels in the sum.
    """
    phi = activation(name)
    points, weights = np.polynomial.legendre.leggauss(NODES)
    mean = sum(float(w) / 2 * phi(a * ((float(p) + 1) / 2)) for p, w in zip(points, weights, strict=True))
    assert isinstance(mean, Tensor)
    is_small = a.abs() < SMALL_OPERAND
    quotient = (phi(a) - mean) / torch.where(is_small, 1.0, a)
    return b * torch.where(is_small, slope(name, 2 * a / 3) / 2, quotient), mean


def slope(name: str, x: Tensor) -> Tensor:
    """φ'(x)."""
    with torch.enable_grad():
        at = x.detach().clone().requires_grad_()
        (gradient,) = torch.autograd.grad(activation(name)(at).sum(), at)
    return gradient


def _add_bias(parts: Float[Tensor, "Q P D"], bias: Tensor | None) -> None:
    """Add a bias to the last part."""
    if bias is not None:
        parts[:, -1] += to_single_precision(bias).to(parts)


def rescale_parts(parts: Float[Tensor, "Q P D"], norm: Rescaling | None) -> Float[Tensor, "Q P D"]:
    """Parts after a norm or a factor, which is linear for a given deviation of their sum; the norm's bias joins the last part."""
    if norm is None:
        return parts
    scale = 1.0 if norm.epsilon is None else _inverse_deviation(parts.sum(1), norm)[:, None, None]
    parts = _centre(parts, norm) * scale * to_single_precision(norm.gamma).to(parts)
    _add_bias(parts, norm.beta)
    return parts


def _block_stage(trace: Trace) -> _BlockStage:
    w_o, block = output_projection(trace.projections), trace.block
    if block is None or block.forward is None:
        problem = f"The kind '{FEED_FORWARD}' needs the feed-forward block behind attention at {trace.address}."
        reason = (
            "None was found there that is a linear map, a known activation (perhaps gated) and a second linear map."
        )
        raise ModelError(problem, reason, "Use 'attention', 'residual' or 'full'.")
    tensors = ((f.name, getattr(block.forward, f.name)) for f in fields(block.forward))
    # they may be on another device
    converted = {name: to_single_precision(t).to(w_o) for name, t in tensors if isinstance(t, Tensor)}
    return _BlockStage(w_o, block, replace(block.forward, **converted))
