"""Trace: q, k, v, weights, output and projections of one attention layer over a batch, and how they are printed, cut and saved."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trisect.core.errors import SiteError, SpecError, import_optional, join_words
from trisect.core.files import Json, digest, replace_file
from trisect.core.site import Site, format_spans

if TYPE_CHECKING:
    import numpy as np
    import torch
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

NAMES = ("q", "k", "v", "o")
AXES = {
    "q": ("row", "head", "query", "width"),
    "k": ("row", "key_head", "key", "width"),
    "v": ("row", "key_head", "key", "value_width"),
    "weights": ("row", "head", "query", "key"),
    "output": ("row", "head", "query", "value_width"),
}
WEIGHTS = tuple(f"{kind}_{name}" for kind in "wb" for name in NAMES)


class Address(NamedTuple):
    """An attention layer of a model; layers count from 1 within their stack."""

    stack: str
    layer: int

    @property
    def site(self) -> Site:
        """The attention module at this address."""
        return Site(("attn",), (self.layer,), stack="" if self.stack == "plain" else self.stack)

    def __str__(self) -> str:
        return f"layer {self.layer}" if self.stack == "plain" else f"{self.stack} layer {self.layer}"


@dataclass(frozen=True, eq=False)
class Side:
    """A sequence axis of a batch: the tokens at its positions.

    `tokens` [B][T] are the tokenizer's pieces; `real` is false at padding, `special` true at tokens that the tokenizer
    adds and at padding; `ids` is None where the model takes no token ids.
    """

    tokens: tuple[tuple[str, ...], ...]
    real: Bool[Tensor, "B T"]
    special: Bool[Tensor, "B T"]
    ids: Int[Tensor, "B T"] | None = None


def keys_of(stack: str) -> str:
    """The key in `sides` for a stack's keys, if they are at other positions than its queries."""
    return f"{stack} keys"


def side_of(stack: str, source: Side, target: Side | None, sides: Mapping[str, Side]) -> Side:
    """The side whose positions are the queries of a stack."""
    if stack in sides:
        return sides[stack]
    return target if target is not None and stack in ("dec", "cross", "merged") else source


def key_side_of(stack: str, source: Side, target: Side | None, sides: Mapping[str, Side]) -> Side:
    """The side whose positions are the keys and values of a stack."""
    if keys_of(stack) in sides:
        return sides[keys_of(stack)]
    if stack in sides and not crosses(stack):
        return sides[stack]
    return target if target is not None and stack == "dec" else source


def crosses(stack: str) -> bool:
    """Whether the keys of a stack come from another sequence than its queries."""
    return bool({"cross", "merged"} & set(re.split(r"[_0-9]", stack)))


@dataclass(frozen=True, eq=False)
class Origin:
    """The origin of q, k, v or the output's map, as verified.

    `how` is 'rows' if it is a selection of rows of one affine module's [out, in] weight (columns for o), else 'normed',
    'mixed', 'gated' or 'unknown'; `words` is the same as a phrase. `parameter` is the owning
    weight's name in the state dict, `rows` [H, E] its output units (for o: its input units) per head, `transposed`
    whether the stored array is [in, out]. `scale` is an additional factor of q or k (usually 1). `rounding` is the
    largest change of a quantised map's output by rounding of its input, relative to the largest output, measured on loading;
    rounding in layers below is not included.
    """

    how: str
    words: str
    parameter: str | None = None
    bias: str | None = None
    rows: Int[Tensor, "H E"] | None = None
    transposed: bool = False
    scale: float = 1.0
    residual: float | None = None
    rounding: float | None = None


class NormedMap(NamedTuple):
    """Weights and bias whose result a norm rescales (as in QK norm): they set its direction, the norm its length."""

    weight: Float[Tensor, "H D E"]
    bias: Float[Tensor, "H E"] | None


@dataclass(frozen=True, eq=False)
class Projections:
    """The weights of one attention layer, per head: q_h = x w_q[h] + b_q[h], f_h(x) = (x w_v[h] + b_v[h]) w_o[h].

    K may be smaller than H (grouped queries): head h uses key/value head h // (H / K). A matrix is None if it is no
    selection of rows of a weight; `origins` then says what it is, and `normed` has q, k or v that a norm follows.
    """

    address: Address
    origins: Mapping[str, Origin]
    w_q: Float[Tensor, "H D E"] | None = None
    w_k: Float[Tensor, "K D E"] | None = None
    w_v: Float[Tensor, "K D E"] | None = None
    w_o: Float[Tensor, "H E D"] | None = None
    b_q: Float[Tensor, "H E"] | None = None
    b_k: Float[Tensor, "K E"] | None = None
    b_v: Float[Tensor, "K E"] | None = None
    b_o: Float[Tensor, " D"] | None = None
    normed: Mapping[str, NormedMap] = field(default_factory=dict)

    def copy_to(self, device: torch.device, copies: bool = True) -> Projections:
        """The same with its weights on a device; `copies` clones those that are there, so that they do not change with the model's."""
        tensors: dict[str, Tensor | None] = {name: getattr(self, name) for name in WEIGHTS}
        return replace(self, **{n: None if t is None else t.to(device, copy=copies) for n, t in tensors.items()})

    def hashes(self) -> dict[str, tuple[str, str]]:
        """Hashes of weight and bias of q, k, v and o, equal for equal numbers; those without a matrix are left out."""
        maps = {n: (getattr(self, f"w_{n}"), getattr(self, f"b_{n}")) for n in NAMES}
        maps |= {n: (under.weight, under.bias) for n, under in self.normed.items()}
        return {n: (_hash(weight), _hash(bias)) for n, (weight, bias) in maps.items() if weight is not None}


def _hash(t: Tensor | None) -> str:
    if t is None:
        return ""
    return digest(t.detach().double().cpu().contiguous().numpy().tobytes()) + f"{tuple(t.shape)}{t.dtype}"


def find_shared_weights(layers: Mapping[Address, Mapping[str, Hashable]]) -> tuple[str, ...]:
    """A sentence for each set of layers that use the same matrices, and for each of q, k, v and o that are one matrix.

    `layers` maps q, k, v and o of every layer to a key, such as a hash: equal keys mean one matrix.
    """
    users: dict[tuple[str, Hashable], list[Address]] = {}
    users_within: dict[tuple[str, ...], list[Address]] = {}
    for address, matrices in layers.items():
        names_of: dict[Hashable, list[str]] = {}
        for name, matrix in matrices.items():
            users.setdefault((name, matrix), []).append(address)
            names_of.setdefault(matrix, []).append(name)
        for names in names_of.values():
            users_within.setdefault(tuple(names), []).append(address)
    names_shared: dict[tuple[Address, ...], list[str]] = {}
    for (name, _), where in users.items():
        names_shared.setdefault(tuple(where), []).append(name)
    across = (
        f"{spell_layers(where)} share {'one set of weights' if len(names) == len(layers[where[0]]) else f'one {join_words(names)}'}."
        for where, names in names_shared.items()
        if len(where) > 1
    )
    within = (
        f"{spell_layers(where)}: {join_words(names)} are one matrix."
        for names, where in users_within.items()
        if len(names) > 1
    )
    return tuple(f"{words[0].upper()}{words[1:]}" for words in (*across, *within))


def spell_addresses(where: Sequence[Address]) -> str:
    """Addresses as a list; if there are more than four, the first three and the number of the others."""
    named = [str(address) for address in where]
    return ", ".join(named) if len(named) <= 4 else f"{', '.join(named[:3])} and {len(named) - 3} more"


def spell_layers(where: Sequence[Address]) -> str:
    """Addresses in words: 'layers 1–3', 'enc layer 1 and dec layers 1, 4'."""
    stacks: dict[str, list[int]] = {}
    for address in where:
        stacks.setdefault("" if address.stack == "plain" else f"{address.stack} ", []).append(address.layer)
    spelled = {
        stack: format_spans(tuple(sorted(numbers))).replace("-", "–").replace(",", ", ")
        for stack, numbers in stacks.items()
    }
    return " and ".join(f"{stack}layer{'s'[: len(stacks[stack]) > 1]} {numbers}" for stack, numbers in spelled.items())


@dataclass(frozen=True, eq=False)
class Rescaling:
    """A norm or a factor applied to a vector y, such as W_O's result before it is added: γ (y − mean) / deviation + β.

    It is γ y if `epsilon` is None. The mean is subtracted only if `centred`.
    """

    gamma: Float[Tensor, " D"]
    beta: Float[Tensor, " D"] | None = None
    epsilon: float | None = None
    centred: bool = False


@dataclass(frozen=True, eq=False)
class FeedForward:
    """The feed-forward block that follows an attention layer: z + N(W_2 φ(W_1 u + b_1) + b_2), where u is z or its norm.

    With a `gate`, W_2 is applied to φ(W_1 u + b_1) (W_3 u + b_3). `input_norm` is the norm from z to u, `output_norm` is N, and
    `sum_norm` a norm of the sum; each is None if the block has none. `activation` names φ, one of measure.activations.NAMES.
    """

    activation: str
    inner: Float[Tensor, "F D"]
    inner_bias: Float[Tensor, " F"] | None
    gate: Float[Tensor, "F D"] | None
    gate_bias: Float[Tensor, " F"] | None
    outer: Float[Tensor, "D F"]
    outer_bias: Float[Tensor, " D"] | None
    input_norm: Rescaling | None = None
    output_norm: Rescaling | None = None
    sum_norm: Rescaling | None = None


@dataclass(frozen=True, eq=False)
class ResidualBlock:
    """The surroundings of an attention layer: the residual that is added to its output, and the layer norm before or after it.

    `kind` is 'post': LN(x + attention(x)); 'pre': x + attention(LN(x)); or 'bare': x + attention(x), with γ = 1. `centred`
    is False for RMS norms, which do not subtract the mean; `beta` is None if the norm has no shift. `after` is applied
    between W_O and the sum, `forward` after the sum.
    """

    kind: str
    residual: Float[Tensor, "B T D"]
    gamma: Float[Tensor, " D"]
    beta: Float[Tensor, " D"] | None
    epsilon: float
    centred: bool = True
    after: Rescaling | None = None
    forward: FeedForward | None = None


class StreamWriter(NamedTuple):
    """A term of the residual stream: the embedding, the positions, a head, a feed-forward block or a bias (head 0)."""

    name: str
    layer: int = 0
    head: int = 0

    @property
    def is_bias(self) -> bool:
        """Whether it is the bias of a layer's output projection, which is the same for every text."""
        return self.name.endswith(".bias")


@dataclass(frozen=True, eq=False)
class WrittenStream:
    """The residual stream of one batch as a sum of its writers' contributions; that they sum to it was verified.

    `inputs` are what enters each layer's block, `output` what leaves the last one, `written` the contribution of each writer; all
    [B T D], on the device where the model computes. `stream["3.h2"]` is that of head 2 of layer 3, `stream["3.mlp"]` that of the
    feed-forward block, `stream["3.bias"]` the bias of W_O; `stream["embedding"]` (and "position") make up the input of the first
    attention layer.
    """

    inputs: Mapping[int, Float[Tensor, "B T D"]]
    output: Float[Tensor, "B T D"]
    written: Mapping[StreamWriter, Float[Tensor, "B T D"]]
    traces: Mapping[int, Trace]

    def __repr__(self) -> str:
        names = [writer.name for writer in self.written]
        return f"<WrittenStream {list(self.output.shape)}: {len(names)} writers, {names[0]!r} to {names[-1]!r}>"

    def __getitem__(self, name: str) -> Float[Tensor, "B T D"]:
        """The contribution of the writer with this name; raises SiteError if there is none."""
        by_name = {writer.name: values for writer, values in self.written.items()}
        if name not in by_name:
            reason = f"The stream is written by {', '.join(list(by_name)[:8])}{', …' * (len(by_name) > 8)}."
            raise SiteError(f"{name!r} was asked for.", reason, "Name one of them.")
        return by_name[name]

    def writers_before(self, layer: int) -> tuple[StreamWriter, ...]:
        """The writers that a layer's attention reads, without the biases."""
        return tuple(writer for writer in self.written if writer.layer < layer and not writer.is_bias)


class Unembedding(NamedTuple):
    """How a model computes logits from the last layer's output x: N(x) weightᵀ + bias, where N is the final norm."""

    norm: Rescaling
    weight: Float[Tensor, "V D"]
    bias: Float[Tensor, " V"] | None


@dataclass(frozen=True, eq=False)
class Trace:
    """The arrays of one attention layer over one batch, as the model itself used them, and where they come from.

    q and k are what enters the dot product (after rotary positions), before key/value heads are repeated; `scale`
    multiplies q·k in the scores (None if unknown). Weights are after the softmax; their rows sum to 1 at
    real positions, to less if the model has learned sinks. Keys are from the same sequence except in cross-attention.
    """

    address: Address
    q: Float[Tensor, "B H T E"]
    k: Float[Tensor, "B K S E"]
    v: Float[Tensor, "B K S E"]
    weights: Float[Tensor, "B H T S"]
    output: Float[Tensor, "B H T E"]
    query_real: Bool[Tensor, "B T"]
    key_real: Bool[Tensor, "B S"]
    projections: Projections
    scale: float | None = None
    block: ResidualBlock | None = None

    def __repr__(self) -> str:
        rows, heads, queries, keys = self.weights.shape
        return f"<Trace of {self.address}: {rows} rows, {heads} heads, {queries} queries × {keys} keys>"

    @property
    def stack(self) -> str:
        """The stack: plain, enc, dec, cross, or a tower's name."""
        return self.address.stack

    @property
    def crosses(self) -> bool:
        """Whether its keys come from another sequence than its queries."""
        return crosses(self.stack)

    @property
    def layer(self) -> int:
        """The layer's number in its stack, from 1."""
        return self.address.layer

    @property
    def site(self) -> Site:
        """The attention module that this is a trace of."""
        return self.address.site

    @property
    def heads(self) -> int:
        """Number of query heads."""
        return self.weights.shape[1]

    @property
    def group(self) -> int:
        """Number of query heads that share one key/value head."""
        return self.weights.shape[1] // self.v.shape[1]

    @property
    def values(self) -> Float[Tensor, "B H S E"]:
        """v for every query head, with key/value heads repeated."""
        return self.v.repeat_interleave(self.group, 1) if self.group > 1 else self.v

    @property
    def keys(self) -> Float[Tensor, "B H S E"]:
        """k for every query head, with key/value heads repeated."""
        return self.k.repeat_interleave(self.weights.shape[1] // self.k.shape[1], 1)

    @property
    def w_q(self) -> Float[Tensor, "H D E"] | None:
        """Query projection per head."""
        return self.projections.w_q

    @property
    def w_k(self) -> Float[Tensor, "K D E"] | None:
        """Key projection per key/value head."""
        return self.projections.w_k

    @property
    def w_v(self) -> Float[Tensor, "K D E"] | None:
        """Value projection per key/value head."""
        return self.projections.w_v

    @property
    def w_o(self) -> Float[Tensor, "H E D"] | None:
        """Output projection per head."""
        return self.projections.w_o


@dataclass(frozen=True, eq=False)
class Reading:
    """One batch of texts read by a model: a Trace per layer and stack, and what the positions are.

    `rows` has, for each row of the batch, the number of its text and of the token at which its window begins (from 0).
    `notes` say how texts were changed (cut into windows, used as both source and target). `sides` are those of stacks
    with positions of their own, see `side_of`. `output` is the model's output
    if it was read with gradients, `stream` the contributions of writers if requested.
    """

    model: str
    traces: tuple[Trace, ...]
    source: Side
    target: Side | None = None
    rows: tuple[tuple[int, int], ...] = ()
    notes: tuple[str, ...] = ()
    objective: str = "output"
    facts: Mapping[str, str] = field(default_factory=dict)
    sides: Mapping[str, Side] = field(default_factory=dict)
    output: Float[Tensor, "B T V"] | None = field(default=None, repr=False)
    stream: WrittenStream | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        rows = len(self.source.tokens)
        longest = max((len(row) for row in self.source.tokens), default=0)
        where = ", ".join(repr(str(trace.address)) for trace in self.traces[:2])
        more = f", … ({len(self.traces)})" if len(self.traces) > 2 else ""
        return f"<Reading of {self.model}: {rows} × {longest} tokens; reading[…] of {where}{more}>"

    def __getitem__(self, where: str | Site | Address) -> Trace:
        """The trace of an address, as in `reading["layer 3"]`, `reading["enc layer 1"]` and `reading["enc.k@1"]`.

        A site with heads gives a trace of these heads, as in `reading["q@1.h2"]`; a head of k or v comes with all query heads that
        share it. Raises SiteError for layers that were not read, and for components that a trace does not have.
        """
        return _trace_at(self.traces, where)

    def layer(self, number: int, stack: str | None = None) -> Trace:
        """The trace of a layer, from 1; `stack` is needed where the model has several."""
        stacks = list(dict.fromkeys(trace.stack for trace in self.traces))
        if stack is None and len(stacks) > 1:
            reason = f"The reading has the stacks {', '.join(stacks)}."
            raise SiteError(
                f"Layer {number} was asked for.", reason, f"Name one: reading.layer({number}, {stacks[0]!r})."
            )
        return _trace_at(self.traces, Address(stack or (stacks or ["plain"])[0], number))

    def save(self, path: str | Path) -> Path:
        """Write q, k, v, weights and output of every trace into one safetensors file, with the tokens beside them.

        Contributions to the residual stream, if they were read, are stored as 'stream.3.h2' and so on.
        """
        from safetensors.torch import save_file

        path = Path(path)
        if path.suffix != ".safetensors":
            problem, reason = f"{path.name!r} was given.", "A reading is saved as safetensors."
            raise SpecError(problem, reason, "Give a name that ends in .safetensors.")
        header: dict[str, Json] = {"model": self.model, "objective": self.objective, "notes": list(self.notes)}
        header["source"] = [list(row) for row in self.source.tokens]
        header["target"] = None if self.target is None else [list(row) for row in self.target.tokens]
        tensors = {f"{at}.{name}": values.detach().contiguous().clone() for at, name, values in self._arrays()}
        written = {} if self.stream is None else self.stream.written
        tensors |= {f"stream.{writer.name}": t.detach().contiguous().clone() for writer, t in written.items()}
        replace_file(path, lambda scratch: save_file(tensors, scratch, {"reading": json.dumps(header)}))
        return path

    def to_xarray(self) -> Any:
        """q, k, v, weights and output of every trace as one xarray.Dataset; needs the package xarray.

        An axis is named by its kind and length, such as 'head_12', since layers may differ in size.
        """
        xarray = import_optional("xarray")
        variables: dict[str, Any] = {}
        for at, name, values in self._arrays():
            if name in AXES:
                axes = tuple(f"{axis}_{n}" for axis, n in zip(AXES[name], values.shape, strict=True))
                variables[f"{at}.{name}".replace(" ", "_")] = (axes, values.detach().float().cpu().numpy())
        return xarray.Dataset(variables, attrs={"model": self.model, "notes": list(self.notes)})

    def to_dict(self) -> dict[str, dict[str, np.ndarray]]:
        """q, k, v, weights and output of every trace as NumPy arrays, by address and name: `to_dict()["layer 1"]["q"]`."""
        arrays: dict[str, dict[str, np.ndarray]] = {}
        for at, name, values in self._arrays():
            arrays.setdefault(str(at), {})[name] = (values.float() if name in AXES else values).detach().cpu().numpy()
        return arrays

    def to_pandas(self) -> Any:
        """The weights as a pandas.DataFrame, a row for each query and key of each head; needs the package pandas.

        Rows of the batch and positions count from 0, layers and heads from 1; padding is left out.
        """
        names = ("stack", "layer", "head", "row", "query", "key", "query_token", "key_token", "weight")
        rows: list[tuple[object, ...]] = []
        for trace in self.traces:
            queries, keys = self.queries(trace).tokens, self.keys(trace).tokens
            real = (trace.query_real[:, None, :, None] & trace.key_real[:, None, None, :]).expand_as(trace.weights)
            weights = trace.weights.detach()[real].tolist()
            for (row, head, query, key), weight in zip(real.nonzero().tolist(), weights, strict=True):
                tokens = queries[row][query], keys[row][key]
                rows.append((trace.stack, trace.layer, head + 1, row, query, key, *tokens, weight))
        return import_optional("pandas").DataFrame(rows, columns=names)

    def _arrays(self) -> Iterator[tuple[Address, str, Tensor]]:
        for trace in self.traces:
            for name in (*AXES, "query_real", "key_real"):
                yield trace.address, name, getattr(trace, name)

    def queries(self, trace: Trace) -> Side:
        """The side whose positions are the queries of a trace."""
        return side_of(trace.stack, self.source, self.target, self.sides)

    def keys(self, trace: Trace) -> Side:
        """The side whose positions are the keys and values of a trace."""
        return key_side_of(trace.stack, self.source, self.target, self.sides)


def _trace_at(traces: Sequence[Trace], where: str | Site | Address) -> Trace:
    """The trace at an address, cut to the heads that a site names; raises SiteError if there is none."""
    by_name = {str(trace.address): trace for trace in traces}
    if (trace := by_name.get(str(where))) is not None:
        return trace
    problem = f"{str(where)!r} was asked for."
    site = where if isinstance(where, Site) else Site.parse(where) if isinstance(where, str) and "@" in where else None
    if site is not None and site.layers is not None and len(site.layers) == 1:
        trace = by_name.get(str(Address(site.stack or "plain", site.layers[0])))
    if site is None or trace is None:
        listed = ", ".join(list(by_name)[:4]) + (f", … {list(by_name)[-1]}" if len(by_name) > 4 else "")
        raise SiteError(problem, f"The reading has {listed or 'no trace'}.", "Name one of them.")
    problem, layer = f"{str(site)!r} was asked for.", f"reading[{str(trace.address)!r}]"
    if missing := [c for c in site.components if c not in ("q", "k", "v", "attn")]:
        reason = f"A trace has q, k, v, weights and output of attention, and no {' or '.join(missing)}."
        todo = f"Use {layer}: its output is multiplied by w_o, and block.forward is the feed-forward block."
        raise SiteError(problem, reason, todo)
    if site.pre:
        reason = "A trace has q, k and v as attention takes them, after norms and rotary positions."
        todo = f"Leave 'pre.' out, or multiply the input of attention by {layer}.projections."
        raise SiteError(problem, reason, todo)
    return trace if site.heads is None else _trace_of_heads(trace, site, problem)


def _trace_of_heads(trace: Trace, site: Site, problem: str) -> Trace:
    """A trace of some heads, numbered as heads of the site's component; it has neither output bias nor residual block."""
    counts = {c: getattr(trace, c).shape[1] for c in site.components}
    reason = f"{str(trace.address).capitalize()} has {', '.join(f'heads 1-{n} of {c}' for c, n in counts.items())}."
    if len(set(counts.values())) > 1:
        raise SiteError(problem, reason, "Name heads of one component, since their numbers differ.")
    count, heads = next(iter(counts.values())), trace.heads
    chosen = [h - 1 for h in site.heads or ()]
    if chosen[-1] >= count:
        raise SiteError(problem, reason, "Choose heads in that range.")
    queries = [h * (heads // count) + i for h in chosen for i in range(heads // count)]

    def pick(t: Tensor, axis: int) -> Tensor:
        size = t.shape[axis]
        index = chosen if size == count else [h // (heads // size) for h in queries]
        return t[(slice(None),) * axis + (index,)]

    layer = trace.projections
    origins = {n: o if o.rows is None else replace(o, rows=pick(o.rows, 0)) for n, o in layer.origins.items()}
    parts = {n: None if (t := getattr(layer, n)) is None else pick(t, 0) for n in WEIGHTS if n != "b_o"}
    if trace.block is not None and trace.block.after is not None:
        words = "only some heads are read, and the norm behind W_O takes the sum of all"
        origins["o"], parts["w_o"] = Origin("mixed", words), None
    normed = {
        n: NormedMap(pick(m.weight, 0), None if m.bias is None else pick(m.bias, 0)) for n, m in layer.normed.items()
    }
    arrays = {n: pick(getattr(trace, n), 1) for n in ("q", "k", "v", "weights", "output")}
    projections = replace(layer, origins=origins, normed=normed, b_o=None, **parts)
    return replace(trace, **arrays, projections=projections, block=None)
