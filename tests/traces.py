"""Random Traces that keep every law of a Trace: weights that sum to 1, output = weights @ v, heads in groups, padding."""

from __future__ import annotations

import torch
from torch import Tensor

from trisect.core.trace import Address, Origin, Projections, Rescaling, ResidualBlock, Side, Trace

PLAIN = Origin("rows", "rows of one linear module")


def random_projections(
    seed: int = 0,
    *,
    heads: int = 4,
    groups: int | None = None,
    inner: int = 3,
    width: int = 10,
    address: Address | None = None,
    bias: bool = True,
    dtype: torch.dtype = torch.float64,
) -> Projections:
    """Weights of one attention layer; `groups` is the number of key/value heads (None: as many as heads)."""
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64).to(dtype)

    few = groups or heads
    root = width**0.5
    weights = {"w_q": (heads, width, inner), "w_k": (few, width, inner), "w_v": (few, width, inner)}
    made: dict[str, Tensor] = {name: normal(*shape) / root for name, shape in weights.items()}
    made["w_o"] = normal(heads, inner, width) / (heads * inner) ** 0.5
    if bias:
        made |= {
            "b_q": normal(heads, inner),
            "b_k": normal(few, inner),
            "b_v": normal(few, inner),
            "b_o": normal(width),
        }
    return Projections(address or Address("plain", 1), dict.fromkeys("qkvo", PLAIN), **made)  # type: ignore[arg-type]


def random_trace(
    seed: int = 0,
    *,
    texts: int = 2,
    queries: int = 5,
    keys: int | None = None,
    heads: int = 4,
    groups: int | None = None,
    inner: int = 3,
    width: int = 10,
    address: Address | None = None,
    causal: bool = False,
    padding: int = 0,
    bias: bool = True,
    block: str | None = None,
    centred: bool = True,
    after: tuple[float | None, bool] | None = None,
    dtype: torch.dtype = torch.float64,
) -> Trace:
    """A Trace from random inputs and weights, by the formulas themselves.

    The last `padding` positions of the last text are padding (with weights 0 on them, and rows of their own that count
    for nothing). `keys` other than `queries` makes a cross-attention. `block` is 'pre', 'post', 'bare' or None; in a pre-LN
    block the layer norm is applied to the residual before it is projected. `after` puts a norm of that ε (None: a factor)
    behind the output projection, centred or not.
    """
    cross = keys is not None
    where = address or Address("cross" if cross else "plain", 1)
    size = keys if keys is not None else queries
    draw = torch.Generator().manual_seed(seed + 1)
    made = random_projections(
        seed, heads=heads, groups=groups, inner=inner, width=width, address=where, bias=bias, dtype=torch.float64
    )
    residual = torch.randn(texts, queries, width, generator=draw, dtype=torch.float64) + 0.3
    around, x = None, residual
    if block is not None:
        gamma = 1 + 0.5 * torch.randn(width, generator=draw, dtype=torch.float64)
        beta = torch.randn(width, generator=draw, dtype=torch.float64) if centred else None
        behind = None
        if after is not None:
            more = torch.randn(2, width, generator=draw, dtype=torch.float64)
            behind = Rescaling(more[0], more[1] if after[1] else None, *after)
        around = ResidualBlock(block, residual, gamma, beta, 1e-5, centred, behind)
        x = _normed(residual, around) if block == "pre" else residual
    source = torch.randn(texts, size, width, generator=draw, dtype=torch.float64) if cross else x
    real = torch.ones(texts, queries, dtype=torch.bool)
    key_real = torch.ones(texts, size, dtype=torch.bool)
    if padding:
        key_real[-1, size - padding :] = False
        if not cross:
            real = key_real

    def project(inputs: Tensor, weight: Tensor | None, shift: Tensor | None) -> Tensor:
        assert weight is not None
        out = torch.einsum("btd,hde->bhte", inputs, weight)
        return out if shift is None else out + shift[:, None]

    q = project(x, made.w_q, made.b_q)
    k, v = project(source, made.w_k, made.b_k), project(source, made.w_v, made.b_v)
    group = heads // v.shape[1]
    scores = q @ k.repeat_interleave(group, 1).mT * inner**-0.5
    scores = scores.masked_fill(~key_real[:, None, None], -torch.inf)
    if causal:
        scores = scores.masked_fill(torch.ones(queries, size, dtype=torch.bool).triu(1), -torch.inf)
    weights = torch.softmax(2 * scores, -1)
    trace = Trace(
        address=where,
        q=q,
        k=k,
        v=v,
        weights=weights,
        output=weights @ v.repeat_interleave(group, 1),
        query_real=real,
        key_real=key_real,
        projections=made,
        scale=inner**-0.5,
        block=around,
    )
    return trace if dtype == torch.float64 else cast(trace, dtype)


def cast(trace: Trace, dtype: torch.dtype) -> Trace:
    """The same Trace in another precision."""

    def to(value: object) -> object:
        return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value

    weights = Projections(**{name: to(value) for name, value in vars(trace.projections).items()})  # type: ignore[arg-type]
    around = trace.block
    if around is not None:
        behind = around.after
        if behind is not None:
            behind = Rescaling(**{name: to(value) for name, value in vars(behind).items()})  # type: ignore[arg-type]
        around = ResidualBlock(**{name: to(value) for name, value in vars(around).items()} | {"after": behind})  # type: ignore[arg-type]
    rest = {name: to(value) for name, value in vars(trace).items()} | {"projections": weights, "block": around}
    return Trace(**rest)  # type: ignore[arg-type]


def random_side(tokens: tuple[tuple[str, ...], ...], special: Tensor, ids: Tensor | None = None) -> Side:
    """A Side of these tokens; '' is padding."""
    real = torch.tensor([[bool(token) for token in row] for row in tokens])
    return Side(tokens, real, special | ~real, ids)


def _normed(x: Tensor, block: ResidualBlock) -> Tensor:
    centred = x - x.mean(-1, keepdim=True) if block.centred else x
    spread = x.var(-1, unbiased=False) if block.centred else x.square().mean(-1)
    normed = centred / (spread + block.epsilon).sqrt()[..., None] * block.gamma
    return normed if block.beta is None else normed + block.beta
