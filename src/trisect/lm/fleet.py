"""Fleet: many small language models as one, every tensor leading with a member axis F.

Axes: F member, B batch, T token, D width, H head, E head width, V vocabulary, W three widths (q, k, v side by side).
A single model is a fleet of one, on the same path. Weights are [F, out, in], the convention of `torch.nn.Linear`.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from trisect.core.files import digest
from trisect.core.site import Site
from trisect.core.spec import Model

# scores worked on at once: on a CPU 1 MB in float32, about what stays in a core's own cache; on a GPU few launches
SCORES_PER_BLOCK = {"cpu": 250_000, "cuda": 100_000_000}


def attend(
    qkv: Float[Tensor, "F B T W"],
    heads: int,
    mask: Float[Tensor, "T T"],
    factor: Float[Tensor, "BH T T"] | None = None,
) -> Float[Tensor, "F B T D"]:
    """softmax(q kᵀ / sqrt(E) + mask) v over all heads (Vaswani et al. 2017, equation 1).

    `factor` multiplies the weights (dropout); it is shared by all members. q, k, v lie side by side in `qkv`.
    """
    if torch.is_grad_enabled() and qkv.requires_grad:
        with torch.autocast(qkv.device.type, enabled=False):
            return cast(Tensor, _Attention.apply(qkv, heads, mask, factor))
    mixed = qkv.new_empty(*qkv.shape[:3], qkv.shape[3] // 3)
    for chunk in _chunks(qkv, heads):
        _forward(_to_heads(qkv[chunk], heads), mask, factor, mixed[chunk])
    return mixed


def _chunks(qkv: Float[Tensor, "F B T W"], heads: int) -> Iterator[slice]:
    members, batch, length, _ = qkv.shape
    size = max(1, SCORES_PER_BLOCK[qkv.device.type] // (batch * heads * length * length))
    for start in range(0, members, size):
        yield slice(start, start + size)


def _to_heads(chunk: Float[Tensor, "F B T W"], heads: int) -> Float[Tensor, "3 FBH T E"]:
    members, batch, length, wide = chunk.shape
    parts = chunk.view(members * batch, length, 3, heads, wide // 3 // heads).permute(2, 0, 3, 1, 4)
    return parts.reshape(3, members * batch * heads, length, -1)


def _merge(parts: Float[Tensor, "P FBH T E"], into: Float[Tensor, "F B T PD"]) -> None:
    count, each = parts.shape[0], parts.shape[-1]
    members, batch, length, _ = into.shape
    place = into.view(members * batch, length, count, -1, each)
    place.copy_(parts.view(count, members * batch, -1, length, each).permute(1, 3, 0, 2, 4))


def _times(
    weights: Float[Tensor, "FBH T T"], factor: Float[Tensor, "BH T T"] | None, out: Tensor | None = None
) -> Tensor:
    if factor is None:
        return weights
    shape = (-1, *factor.shape)
    return torch.mul(weights.view(shape), factor, out=None if out is None else out.view(shape)).view_as(weights)


def _forward(
    parts: Float[Tensor, "3 FBH T E"],
    mask: Float[Tensor, "T T"],
    factor: Tensor | None,
    into: Float[Tensor, "F B T D"],
) -> Float[Tensor, "FBH T T"]:
    q, k, v = parts
    scores = torch.bmm(q * q.shape[-1] ** -0.5, k.transpose(1, 2)).add_(mask)
    weights = torch.softmax(scores, -1)
    _merge(torch.bmm(_times(weights, factor, scores), v)[None], into)
    return weights


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, heads: int, mask: Tensor, factor: Tensor | None) -> Tensor:
        mixed = qkv.new_empty(*qkv.shape[:3], qkv.shape[3] // 3)
        saved: list[Tensor] = []
        for chunk in _chunks(qkv, heads):
            parts = _to_heads(qkv[chunk], heads)
            saved += [parts, _forward(parts, mask, factor, mixed[chunk])]
        ctx.save_for_backward(factor, *saved)
        ctx.heads, ctx.shape = heads, qkv.shape
        return mixed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        factor, *saved = ctx.saved_tensors
        gradient = gradients[0].new_empty(ctx.shape)
        for chunk, parts, weights in zip(_chunks(gradient, ctx.heads), saved[::2], saved[1::2], strict=True):
            q, k, v = parts
            members, batch, length, wide = gradients[0][chunk].shape
            g = gradients[0][chunk].reshape(members * batch, length, ctx.heads, wide // ctx.heads)
            g = g.transpose(1, 2).reshape(-1, length, wide // ctx.heads)
            dw = torch.bmm(g, v.transpose(1, 2))
            dw = _times(dw, factor, dw)
            ds = torch.ops.aten._softmax_backward_data(dw, weights, -1, weights.dtype).mul_(q.shape[-1] ** -0.5)
            of_parts = torch.empty_like(parts)
            torch.bmm(ds, k, out=of_parts[0])
            torch.bmm(ds.transpose(1, 2), q, out=of_parts[1])
            torch.bmm(_times(weights, factor, dw).transpose(1, 2), g, out=of_parts[2])
            _merge(of_parts, gradient[chunk])
        return gradient, None, None, None


COMPONENT_ROW = {"q": 0, "k": 1, "v": 2}
Index = tuple[slice, ...]  # rows, or rows and columns, of a matrix; all of it where empty
Block = tuple[str, int]  # in, qkv, o, attn or ffn, and a layer: a place where a forward pass can be read
BLOCKS = {"o": ("out",), "attn": ("in", "out"), "ffn": ("up", "down")}  # component -> its matrices


class Place(NamedTuple):
    """The place of a parameter in a member's flat row, and its shape."""

    start: int
    stop: int
    shape: tuple[int, ...]


def layout(model: Model, vocabulary: int) -> dict[str, Place]:
    """Name -> place of every parameter of one member."""
    wide, inner = model.width, model.feedforward
    layer = {"in": (3 * wide, wide), "out": (wide, wide), "norm1": (wide,)}
    layer |= {"up": (inner, wide), "down": (wide, inner), "norm2": (wide,)}
    shapes: dict[str, tuple[int, ...]] = {"embed.weight": (vocabulary, wide)}
    for n in range(1, model.layers + 1):
        for name, shape in layer.items():
            shapes |= {f"layers.{n}.{name}.weight": shape, f"layers.{n}.{name}.bias": shape[:1]}
    shapes |= {"decoder.weight": (vocabulary, wide), "decoder.bias": (vocabulary,)}
    places, start = {}, 0
    for name, shape in shapes.items():
        places[name] = Place(start, start + math.prod(shape), shape)
        start += math.prod(shape)
    return places


def count_parameters(model: Model, vocabulary: int) -> int:
    """Number of parameters of one member."""
    return max(place.stop for place in layout(model, vocabulary).values())


def derive_seed(*key: object) -> int:
    """A generator's seed that is a function of `key` alone: of seed and step, never of a slot in the fleet."""
    return int(digest("/".join(map(str, key)), 8), 16) >> 1


def generator(*key: object, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator seeded by `number`."""
    return torch.Generator(device).manual_seed(derive_seed(*key))


def initial(model: Model, vocabulary: int, seed: int) -> Float[Tensor, " P"]:
    """One member's parameters before training (definitions A2), in float32.

    Embedding and decoder U(-0.1, 0.1); in-projection Xavier-uniform over [3D, D] and the other matrices
    U(±1/sqrt(in)), as `nn.TransformerEncoderLayer` draws them; biases 0, layer norms 1 and 0.
    """
    places = layout(model, vocabulary)
    flat = torch.zeros(count_parameters(model, vocabulary))
    draw = generator("initial", seed)
    for name, place in places.items():
        if name.endswith("bias"):
            continue
        values = flat[place.start : place.stop]
        if "norm" in name:
            values.fill_(1.0)
        elif name in ("embed.weight", "decoder.weight"):
            values.uniform_(-0.1, 0.1, generator=draw)
        else:
            out, into = place.shape
            bound = math.sqrt(6 / (out + into)) if ".in." in name else 1 / math.sqrt(into)
            values.uniform_(-bound, bound, generator=draw)
    return flat


def views(flat: Shaped[Tensor, "F P"], places: Mapping[str, Place]) -> dict[str, Tensor]:
    """Name -> view [F, *shape] into a fleet's flat parameters."""
    return {n: flat[:, p.start : p.stop].view(flat.shape[0], *p.shape) for n, p in places.items()}


def weights_of(site: Site, model: Model, n: int) -> list[tuple[str, Index]]:
    """The parameters of layer n that belong to a resolved site, by their names within the layer.

    A head's are its rows of q, k or v, and its columns of o; attn is the in- and the output projection, ffn both its
    matrices.
    """
    weights: list[tuple[str, Index]] = []
    for part in site.parts():
        if (part.layers[0] if part.layers else 1) != n:
            continue
        component, each = part.components[0], model.width // model.heads
        starts = [(head - 1) * each for head in part.heads or ()]
        if component in COMPONENT_ROW:
            first = COMPONENT_ROW[component] * model.width
            rows = [slice(first + s, first + s + each) for s in starts] or [slice(first, first + model.width)]
            weights += [(f"in.{kind}", (span,)) for kind in ("weight", "bias") for span in rows]
        elif starts:
            weights += [("out.weight", (slice(None), slice(s, s + each))) for s in starts]
        else:
            weights += [(f"{name}.{kind}", ()) for name in BLOCKS[component] for kind in ("weight", "bias")]
    return weights


def mark(site: Site, model: Model, places: Mapping[str, Place]) -> Bool[Tensor, " P"]:
    """Masks of a member's parameters that are the weights and biases of a resolved site."""
    marks = torch.zeros(max(p.stop for p in places.values()), dtype=torch.bool)
    matrices = views(marks[None], places)
    for n in site.layers or ():
        for name, part in weights_of(site, model, n):
            matrices[f"layers.{n}.{name}"][(0, *part)] = True
    return marks


class Member:
    """A member before its first step: P parameters in one row, which its edit may freeze or share.

    `constants` are places in the row with the values that stay there; `ties` are places of the components that are one parameter.
    """

    def __init__(self, model: Model, places: Mapping[str, Place], row: Float[Tensor, " P"]) -> None:
        self.model, self.places, self.row = model, places, row
        self.constants: list[tuple[Tensor, Tensor]] = []
        self.ties: list[list[Tensor]] = []

    def blank(self) -> Bool[Tensor, " P"]:
        """An empty mask of parameters, on the CPU."""
        return torch.zeros(len(self.row), dtype=torch.bool)

    def views(self, row: Tensor) -> dict[str, Tensor]:
        """Views of a row of values or masks, by the parameters' names and in their shapes."""
        return {name: view[0] for name, view in views(row[None], self.places).items()}

    def mark(self, site: Site) -> Bool[Tensor, " P"]:
        """A mask of the weights and biases of a resolved site, on the CPU."""
        return mark(site, self.model, self.places)

    def hold(self, marks: Bool[Tensor, " P"]) -> None:
        """Freeze the masked parameters: they are not updated, and do not count in the gradient's norm."""
        where = marks.nonzero()[:, 0]
        self.constants.append((where, self.row[where.to(self.row.device)]))

    def share(self, site: Site) -> None:
        """Make the components of a resolved site one parameter in each layer, initialised as the first of q, k, v."""
        sites = [Site((component,), site.layers, site.heads) for component in site.components]
        self.ties.append([self.mark(part).nonzero()[:, 0] for part in sites])


@functools.lru_cache(maxsize=8)
def _positions(length: int, width: int, dtype: torch.dtype, device: torch.device | str) -> Float[Tensor, "T D"]:
    """Sinusoidal positions (Vaswani et al. 2017, section 3.5), cached; do not write to them."""
    rates = torch.exp(torch.arange(0, width, 2, dtype=torch.float64) * (-math.log(10_000.0) / width))
    angles = torch.arange(length, dtype=torch.float64)[:, None] * rates
    return torch.stack((angles.sin(), angles.cos()), -1).view(length, width).to(device, dtype)


def causal(length: int, dtype: torch.dtype, device: torch.device | str) -> Float[Tensor, "T T"]:
    """Additive mask: 0 for the token itself and those before it, -inf after it."""
    return torch.full((length, length), -math.inf, dtype=dtype, device=device).triu(1)


class Dropout:
    """Dropout masks of one training step, shared by all members: a function of a generator and of the order of calls.

    Each mask is cut from 16-bit slices of 64-bit draws, which is several times faster than `bernoulli_` on a CPU;
    the share kept is therefore rounded to 1/65536.
    """

    def __init__(self, share: float, draw: torch.Generator) -> None:
        self.cut = round(share * 65536)
        self.scale = 65536 / (65536 - self.cut)
        self.draw = draw

    def factor(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor | None:
        """The next mask: 0 for dropped elements, 1 / (share kept) elsewhere; None without dropout."""
        if self.cut == 0:
            return None
        count = math.prod(shape)
        bits = torch.empty((count + 3) // 4, dtype=torch.int64, device=self.draw.device)
        bits.random_(-(2**63), None, generator=self.draw)
        # written as numbers at once: a mask of truth values is several times slower to make and to turn into them
        keep = torch.ge(bits.view(torch.int16)[:count], -32768 + self.cut, out=bits.new_empty(count, dtype=dtype))
        return keep.mul_(self.scale).view(shape)

    def __call__(self, x: Tensor) -> Tensor:
        """x [F, ...] with elements of one shared [1, ...] mask set to zero and the others scaled up."""
        factor = self.factor((1, *x.shape[1:]), x.dtype)
        return x if factor is None else x * factor


def linear(x: Float[Tensor, "X N I"], w: Float[Tensor, "F O I"], b: Float[Tensor, "F O"]) -> Float[Tensor, "G N O"]:
    """Each member's own linear map; x or the weights may be shared (a leading axis of 1). The result is as precise as x."""
    if w.shape[0] == 1:
        # squeeze, not [0], whose gradient would be copied into a tensor of zeros
        return F.linear(x, w.squeeze(0), b.squeeze(0)).to(x.dtype)
    # adding the bias in place afterwards: baddbmm first copies it out row by row, which costs more than the product
    return torch.bmm(x.expand(w.shape[0], -1, -1), w.transpose(1, 2)).to(x.dtype).add_(b[:, None])


def _norm(x: Float[Tensor, "X N D"], w: Float[Tensor, "F D"], b: Float[Tensor, "F D"]) -> Float[Tensor, "G N D"]:
    """Layer normalisation with each member's own scale and shift."""
    if w.shape[0] == 1:
        return F.layer_norm(x, (x.shape[-1],), w.squeeze(0), b.squeeze(0))
    return torch.addcmul(b[:, None], F.layer_norm(x, (x.shape[-1],)), w[:, None])


def embedding_rows(table: Float[Tensor, "F V D"], inputs: Int[Tensor, "B T"]) -> Float[Tensor, "F B T D"]:
    """The rows of each member's embedding for the inputs, whose gradient avoids one of the whole table."""
    return table.index_select(1, inputs.flatten()).view(table.shape[0], *inputs.shape, table.shape[2])


def embed(rows: Float[Tensor, "F B T D"], inputs: Int[Tensor, "B T"], drop: Dropout | None) -> Float[Tensor, "F B T D"]:
    """Word embedding scaled by sqrt(D), plus positions, with dropout."""
    width = rows.shape[-1]
    x = rows * math.sqrt(width) + _positions(inputs.shape[1], width, rows.dtype, rows.device)
    return drop(x) if drop else x


def project(p: Mapping[str, Tensor], n: int, x: Float[Tensor, "X B T D"]) -> Float[Tensor, "G B T W"]:
    """q, k and v of layer n, side by side, all heads concatenated, as they enter the dot product."""
    flat = linear(x.flatten(1, 2), p[f"layers.{n}.in.weight"], p[f"layers.{n}.in.bias"])
    return flat.view(flat.shape[0], *x.shape[1:3], -1)


def finish(
    p: Mapping[str, Tensor],
    n: int,
    x: Float[Tensor, "X B T D"],
    mixed: Float[Tensor, "G B T D"],
    drop: Dropout | None,
    seen: dict[Block, Tensor] | None = None,
    idle: tuple[int, ...] = (),
) -> Float[Tensor, "G B T D"]:
    """The rest of a post-LN layer after attention: output projection, residual, norm, feed-forward, residual, norm.

    What the attention block and the feed-forward block add to the residual stream, before dropout, is put into `seen`.
    In the layers that are `idle` the attention block adds nothing.
    """
    through = drop or (lambda y: y)
    shape = (*mixed.shape[:3], -1)
    out = linear(mixed.flatten(1, 2), p[f"layers.{n}.out.weight"], p[f"layers.{n}.out.bias"]).view(shape)
    if n in idle:
        out = out * 0.0
    if seen is not None:
        seen["o", n], seen["attn", n] = mixed, out
    y = (x + through(out)).flatten(1, 2)
    y = _norm(y, p[f"layers.{n}.norm1.weight"], p[f"layers.{n}.norm1.bias"])
    inner = torch.relu(linear(y, p[f"layers.{n}.up.weight"], p[f"layers.{n}.up.bias"]))
    inner = through(inner.view(*shape[:3], -1)).flatten(1, 2)
    out = linear(inner, p[f"layers.{n}.down.weight"], p[f"layers.{n}.down.bias"]).view(shape)
    if seen is not None:
        seen["ffn", n] = out
    z = _norm((y.view(shape) + through(out)).flatten(1, 2), p[f"layers.{n}.norm2.weight"], p[f"layers.{n}.norm2.bias"])
    return z.view(shape)


class _Pass(NamedTuple):
    """The result of a forward pass: the last hidden states, and the blocks that were read.

    A layer's blocks are in, what enters it; qkv, side by side; o, what enters the output projection; attn and ffn, what the
    attention block and the feed-forward block add to the residual stream (before dropout).
    """

    hidden: Float[Tensor, "F B T D"]
    blocks: dict[Block, Tensor]


def forward(
    p: Mapping[str, Tensor],
    inputs: Int[Tensor, "B T"],
    model: Model,
    drop: Dropout | None = None,
    mask: Float[Tensor, "T T"] | None = None,
    blocks: Iterable[Block] = (),
    rows: Float[Tensor, "F B T D"] | None = None,
    put: Mapping[int, Float[Tensor, "F B T W"]] | None = None,
) -> _Pass:
    """All layers, for all members at once; `blocks` names what is returned besides.

    Dropout is applied where `drop` is given (training) and nowhere else; `mask` defaults to the causal one; `rows`
    stands in for the rows of the embedding where the caller wants their gradient alone; `put` for q, k and v, side by
    side, of the layers that it names.
    """
    x = embed(embedding_rows(p["embed.weight"], inputs) if rows is None else rows, inputs, drop)
    mask = causal(inputs.shape[1], x.dtype, x.device) if mask is None else mask
    names, read = set(blocks), {}
    for n in range(1, model.layers + 1):
        qkv = put[n] if put and n in put else project(p, n, x)
        seen = {("in", n): x, ("qkv", n): qkv}
        factor = drop and drop.factor((x.shape[1] * model.heads, *mask.shape), x.dtype)
        x = finish(p, n, x, attend(qkv, model.heads, mask, factor), drop, seen, model.idle)
        read |= {block: seen[block] for block in seen if block in names}
    return _Pass(x, read)


def _cuts(site: Site, model: Model) -> list[tuple[Block, slice]]:
    """The columns of blocks that make the representation of a resolved site, by component and head."""
    cuts, each = [], model.width // model.heads
    for part in site.parts():
        component, layer = part.components[0], part.layers[0] if part.layers else 0
        block = ("qkv" if component in COMPONENT_ROW else component, layer)
        start = COMPONENT_ROW.get(component, 0) * model.width
        if part.heads is None:
            cuts.append((block, slice(start, start + model.width)))
        else:
            starts = [start + (head - 1) * each for head in part.heads]
            cuts += [(block, slice(s, s + each)) for s in starts]
    return cuts


def width_of(site: Site, model: Model) -> int:
    """Dimensions of the representation of a resolved site."""
    return sum(columns.stop - columns.start for _, columns in _cuts(site, model))


def blocks_of(sites: Iterable[Site], model: Model) -> list[Block]:
    """The blocks that a forward pass has to keep for the resolved sites."""
    return sorted({block for site in sites for block, _ in _cuts(site, model)})


def representation(blocks: Mapping[Block, Tensor], slot: int, site: Site, model: Model) -> Float[Tensor, "I N"]:
    """One member's representation at a resolved site, with its parts stacked, one column per token (batch-major)."""
    return torch.cat([blocks[block][slot, ..., columns].flatten(0, 1).T for block, columns in _cuts(site, model)])


class Representations:
    """Those of several members, each at a resolved site of its own, equally wide: read and written block by block, in as many
    operations as there are blocks, however many members there are.
    """

    def __init__(self, members: Sequence[tuple[int, Site]], model: Model, device: torch.device | str) -> None:
        self.width = width_of(members[0][1], model)
        entries: dict[Block, list[tuple[int, int, int]]] = {}
        for number, (slot, site) in enumerate(members):
            rows = itertools.count(number * self.width)
            for block, cut in _cuts(site, model):
                entries.setdefault(block, []).extend(
                    (slot, column, next(rows)) for column in range(cut.start, cut.stop)
                )
        self.at: dict[Block, tuple[Tensor, Tensor]] = {}
        order = torch.cat([torch.tensor(places)[:, 2] for places in entries.values()])
        for block, places in entries.items():
            slots, columns, _ = torch.tensor(places, device=device).T
            self.at[block] = slots, columns
        in_order = torch.equal(order, torch.arange(len(order)))
        self.rows = None if in_order else order.to(device)  # None where blocks give all rows in their order
        self.back = None if in_order else torch.argsort(order).to(device)

    def read(self, blocks: Mapping[Block, Tensor]) -> Float[Tensor, "A I N"]:
        """The `representation` of each member."""
        rows = torch.cat([_flat(blocks[block])[slots, :, columns] for block, (slots, columns) in self.at.items()])
        rows = rows if self.back is None else rows[self.back]
        return rows.view(-1, self.width, rows.shape[1])

    def add(self, gradient: Float[Tensor, "A I N"], into: Mapping[Block, Tensor]) -> None:
        """Add a gradient of `read` to the gradients of the blocks; no element is written twice."""
        rows = gradient.flatten(0, 1)
        rows = rows if self.rows is None else rows[self.rows]
        parts = rows.split([len(slots) for slots, _ in self.at.values()])
        for (block, (slots, columns)), part in zip(self.at.items(), parts, strict=True):
            _flat(into[block])[slots, :, columns] += part


def _flat(block: Float[Tensor, "F B T W"]) -> Float[Tensor, "F N W"]:
    return block.view(block.shape[0], -1, block.shape[3])  # a view: what is written there is written in the block
