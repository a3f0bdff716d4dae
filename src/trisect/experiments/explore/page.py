"""The explorer of one text in one model, as a self-contained HTML file and in a notebook."""

from __future__ import annotations

import json
import zlib
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
from markupsafe import Markup

from trisect.core.errors import CorpusError, is_installed
from trisect.core.files import Json
from trisect.core.finding import About, Finding
from trisect.core.trace import crosses
from trisect.report import format as words
from trisect.report import sheet
from trisect.report.format import count, stack_words
from trisect.report.sheet import Document

if TYPE_CHECKING:
    from anywidget import AnyWidget
    from jaxtyping import Float, Int, UInt8


@dataclass(frozen=True, eq=False)
class Layer:
    """One attention layer on one text, without padding.

    `weights` [H T S], `q` [H T E] and `k` [K S E] as they enter the dot product, `norms` [H S] the ‖f_h(x_j)‖ and
    `summed` [T S] the ‖Σ_h a_h f_h(x_j)‖, both None where the layer has no output projection to take them by.
    `lacking` says why, or why contributions are missing. `scale` multiplies q·k, None where unknown; `plain` tells whether the
    softmax of scale·q·k is the weights, so that nothing else (a position bias, a cap) enters the scores. `v` is what the weights
    weigh. `sources` are the f_h(x_j) of each head along axes of its own, the widest first, and `contributions` the layer's
    contribution weights; both None where `norms` is, and where the text is too long for them.
    """

    stack: str
    layer: int
    weights: Float[np.ndarray, "H T S"]
    q: Float[np.ndarray, "H T E"]
    k: Float[np.ndarray, "K S E"]
    norms: Float[np.ndarray, "H S"] | None = None
    summed: Float[np.ndarray, "T S"] | None = None
    scale: float | None = None
    plain: bool = True
    lacking: str = ""
    v: Float[np.ndarray, "K S V"] | None = None
    sources: Float[np.ndarray, "H R S"] | None = None
    contributions: Float[np.ndarray, "T S"] | None = None

    @property
    def received(self) -> Float[np.ndarray, "H S"]:
        """The mean weight of each key over queries."""
        return self.weights.mean(axis=1)


class LongLayer(NamedTuple):
    """One attention layer of a long text as a page stores it: of each query the keys with the largest weights alone.

    `facts` and `pixels` are its part of the manifest and of the small pictures, `chunk` the stored weights and norms.
    `received` [H S] is the mean weight of each key over queries, `norms` [H S] as in Layer.
    """

    stack: str
    layer: int
    facts: dict[str, Json]
    pixels: np.ndarray
    chunk: bytes
    received: Float[np.ndarray, "H S"]
    norms: Float[np.ndarray, "H S"] | None


@dataclass(frozen=True)
class Words:
    """The tokens along one axis, and which of them the tokenizer added."""

    pieces: tuple[str, ...]
    special: tuple[bool, ...]


@dataclass(frozen=True, eq=False)
class TokenLogits:
    """Contributions of heads to the logits at the positions from `first` on, and predictions after each layer.

    `heads` holds for each layer the numbers [T H P] among `tokens` of those that a head raises most, then of as many that it lowers
    most, `logits` by how much. `lens` [N T M] are the likeliest tokens before the first layer and after each, `shares` their
    probabilities.
    """

    tokens: tuple[str, ...]
    first: int
    heads: Sequence[Int[np.ndarray, "T _ P"]]
    logits: Sequence[Float[np.ndarray, "T _ P"]]
    lens: Int[np.ndarray, "N T M"]
    shares: Float[np.ndarray, "N T M"]


@dataclass(frozen=True, eq=False)
class ExplorerPicture:
    """A text read by a model: its layers in order, and the tokens at their positions.

    `target` is None where there is one sequence; with two, layers of the stack 'dec' lie within the target and those
    of 'cross' read from source to target. `facts` are pairs of name and value for the foot of the page. `logits` is None
    where it is not known what heads add to them. `long_layers` stand in place of `layers` where the text is long.
    """

    model: str
    layers: Sequence[Layer]
    source: Words
    target: Words | None = None
    notes: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    logits: TokenLogits | None = None
    long_layers: Sequence[LongLayer] = ()

    def sides(self, layer: Layer | LongLayer) -> tuple[int, int]:
        """The axis of a layer's queries and that of its keys: 0 source, 1 target."""
        if self.target is None:
            return 0, 0
        return int(layer.stack in ("dec", "cross")), int(layer.stack == "dec")


def shrink(maps: Float[np.ndarray, "N T S"], side: int) -> tuple[UInt8[np.ndarray, "N t s"], list[float]]:
    """Reduce each map to at most `side` squares a side, each the largest value in it; also returns each map's largest.

    Pixels are 255·√(largest value of a square / largest of the map).
    """
    for axis in (1, 2):
        length, squares = maps.shape[axis], min(maps.shape[axis], side)
        maps = np.maximum.reduceat(maps, np.arange(squares) * length // squares, axis=axis)
    tops = maps.max(axis=(1, 2))
    share = maps / np.where(tops > 0, tops, 1)[:, None, None]
    return np.rint(255 * np.sqrt(share)).astype(np.uint8), [float(t) for t in tops]


# the byte behind each character of a byte-level vocabulary: printable ones stand for themselves, others from U+0100
_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_BYTES = {chr(b): b for b in _PRINTABLE}
_BYTES |= {chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in _PRINTABLE)}


def _decode(piece: str) -> str:
    """Decode a byte-level piece; bytes that are no complete character are written as ‹e2 80›."""
    if any(c not in _BYTES for c in piece):
        return piece
    raw = bytes(_BYTES[c] for c in piece)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return f"‹{raw.hex(' ')}›"


def readable(pieces: Sequence[str], special: Sequence[bool]) -> tuple[tuple[str, bool], ...]:
    """The pieces as text, by their tokenizer's marks: ## inside a word, Ġ or ▁ before one, or none.

    Beside each stands whether it is glued to the one before: no space stands between them.
    """
    plain = [p for p, added in zip(pieces, special, strict=True) if not added]
    opens = next((mark for mark in "Ġ▁" if any(p.startswith(mark) for p in plain)), "")
    inner = "" if opens else next((mark for mark in ("##", "@@") if any(mark in p[:2] + p[-2:] for p in plain)), "")
    bytewise = opens == "Ġ" or any("Ċ" in p for p in plain)
    texts: list[tuple[str, bool]] = []
    cut = True
    for i, (piece, added) in enumerate(zip(pieces, special, strict=True)):
        text, glued = piece, i == 0
        if added:
            pass
        elif opens or bytewise:
            begins = piece.startswith(opens) if opens else False
            text = piece[1:] if begins and len(piece) > 1 else piece.replace("▁", " ")
            text = _decode(text) if bytewise else text
            glued = glued or not (begins or special[i - 1])
        elif inner == "##" and piece.startswith("##") and len(piece) > 2:
            text, glued = piece[2:], True
        elif inner == "@@":
            text, glued = piece.removesuffix("@@") or piece, glued or cut
            cut = piece.endswith("@@")
        if not text.strip():  # as signs, since a piece of white space would be nothing to see or to point at
            text = text.replace("\n", "↵").replace("\t", "⇥").replace("\r", "␍").replace(" ", "␣")
        texts.append((text or "∅", glued))
    return tuple(texts)


MAX_BYTES = 44_000_000  # bytes: in base64 a third more, which with the script leaves the page below 60 MB
MAX_VECTOR_NUMBERS = 30_000_000  # numbers of q, k and v, and twice those of f(x), that a page holds
MAX_FINE_NUMBERS = 3_000_000  # numbers up to which each takes two bytes
MAX_DENSE_WEIGHTS = 250_000_000  # weights of a text up to which all are stored
MAX_WEIGHTS = 2_500_000_000
# of one layer, which is in memory several times, and of one head, which a browser unpacks to numbers
MAX_LAYER_WEIGHTS, MAX_MAP = 600_000_000, 25_000_000
STORED_WEIGHTS = 12_000_000  # weights of a longer text, which take three bytes before they are squeezed
LONG_LEVELS = 255
TOO_LONG = "the text is too long for them"
EFFORT = 6
LADDER = (255, 180, 127, 90, 63, 53, 45, 31, 22, 15)
SIZE_TOLERANCE = 1.05  # how far the guess of a size may be off


class _Packed(NamedTuple):
    """The explorer's data: small numbers as JSON, and chunks of raw deflate.

    Chunk 0 holds the small pictures of all maps; layer n (from 0) has its maps in chunk 1 + 2n and its q, k and v in the
    next, which is empty where q, k and v are left out. What heads add to logits comes last. `levels` is the number of steps of √a.
    """

    manifest: dict[str, Json]
    chunks: tuple[bytes, ...]
    levels: int


def levels_of(values: np.ndarray, levels: int, top: float = 1.0) -> np.ndarray:
    """The nearest of `levels` even steps of √(value / top); the error is at most (√(v·top) + top/4L)/L."""
    share = np.sqrt(np.clip(values / (top or 1.0), 0, 1))
    return np.rint(share * levels).astype(np.uint8 if levels < 256 else np.uint16)


def to_steps(values: np.ndarray, bits: int) -> tuple[Int[np.ndarray, "H T E"], Float[np.ndarray, "H E"]]:
    """Quantise each dimension of each head to even steps of its largest magnitude: integers, and the step sizes."""
    top_level = 2 ** (bits - 1) - 1
    steps = (np.abs(values).max(axis=1) / top_level).astype(np.float32)
    ints = np.rint(values / np.where(steps > 0, steps, 1)[:, None, :])
    return np.clip(ints, -top_level, top_level).astype(np.int8 if bits == 8 else np.int16), steps


def pack(picture: ExplorerPicture, size: int = MAX_BYTES, effort: int = EFFORT) -> _Packed:
    """Pack the picture in at most `size` bytes, in the finest steps that fit; `effort` is zlib's, from 0 to 9.

    Raises CorpusError where the text is too long for any page, or is empty.
    """
    layers = picture.layers
    count = sum(layer.weights.size for layer in layers)
    if not (count or picture.long_layers):
        raise CorpusError("There is nothing to show.", "The reading has no attention weights.", "Give a text.")
    check_length(picture.model, [layer.weights.shape for layer in layers])
    vectors = sum(part.size for layer in layers for part in (layer.q, layer.k, layer.v) if part is not None)
    sources = sum(layer.sources.size for layer in layers if layer.sources is not None)
    if count > MAX_DENSE_WEIGHTS:
        keys, heads = count_keys(n.weights.shape[:2] for n in layers), sum(len(n.weights) for n in layers)
        picture = replace(picture, long_layers=[trim_layer(picture, n, keys, heads, effort) for n in layers])
    elif vectors + 2 * sources > MAX_VECTOR_NUMBERS:
        layers = [replace(n, sources=None, contributions=None, lacking=n.lacking or TOO_LONG) for n in layers]
        picture = replace(picture, layers=layers)
    manifest, small = _front(picture, effort)
    has_vectors = not picture.long_layers and vectors <= MAX_VECTOR_NUMBERS
    manifest["vectors"] = has_vectors
    last_chunk, logits = (), picture.logits
    if logits is not None:
        manifest["logits"] = {
            "tokens": [text for text, _ in readable(logits.tokens, (False,) * len(logits.tokens))],
            "first": logits.first,
            "shape": [logits.lens.shape[1], logits.heads[0].shape[2], logits.lens.shape[2]],
        }
        numbers = [part.astype("<i4") for part in (*logits.heads, logits.lens)]
        # half precision is enough to be read, and packs better
        values = [part.astype(np.float16).astype("<f4") for part in (*logits.logits, logits.shares)]
        last_chunk = (_deflate(_raw(*numbers, *values), effort),)
    if picture.long_layers:
        chunks = (small, *(chunk for layer in picture.long_layers for chunk in (layer.chunk, b"")), *last_chunk)
        return _Packed({**manifest, "levels": LONG_LEVELS, "bits": 8}, chunks, LONG_LEVELS)
    fine = has_vectors and count + vectors <= MAX_FINE_NUMBERS
    with ThreadPoolExecutor(2) as pool:
        pack_vectors = lambda layer: _deflate(_vectors(layer, 16 if fine else 8), effort)  # noqa: E731
        rest = list(pool.map(pack_vectors, layers)) if has_vectors else [b""] * len(layers)
        fixed = sum(map(len, rest)) + len(small)
        for levels in (65535,) if fine else LADDER:
            last = fine or levels == LADDER[-1]
            if not last:  # a guess, from a few heads of three layers
                places = {0, len(layers) // 2, len(layers) - 1}
                chosen = [layers[i].weights[::5] for i in places]
                sizes = [len(_deflate(levels_of(sample.transpose(0, 2, 1), levels))) / sample.size for sample in chosen]
                if fixed + sum(sizes) / len(sizes) * count > size * SIZE_TOLERANCE:
                    continue
            maps = list(pool.map(lambda layer, levels=levels: _deflate(_maps(layer, levels), effort), layers))
            chunks = (small, *(chunk for pair in zip(maps, rest, strict=True) for chunk in pair), *last_chunk)
            if last or sum(map(len, chunks)) <= size:
                return _Packed({**manifest, "levels": levels, "bits": 16 if levels > 255 else 8}, chunks, levels)
    raise AssertionError


def check_length(model: str, shapes: Sequence[tuple[int, ...]]) -> None:
    """Raise CorpusError for a text with more attention weights than a page holds, by the shape (H, T, S) of each layer."""
    sizes = [(heads * queries * keys, queries * keys) for heads, queries, keys in shapes]
    count, tokens = sum(size for size, _ in sizes), max((keys for _, _, keys in shapes), default=0)
    limits = [
        (count, MAX_WEIGHTS),
        *((size, MAX_LAYER_WEIGHTS) for size, _ in sizes),
        *((n, MAX_MAP) for _, n in sizes),
    ]
    excess = max(size / limit for size, limit in limits)
    if excess > 1:
        text = f"A text of {tokens:,} tokens has {count:,} attention weights in {model!r}."
        reason = f"A page holds {int(tokens / excess**0.5):,} tokens of this model."
        raise CorpusError(text, reason, "Give a shorter text.")


def count_keys(shapes: Iterable[tuple[int, int]]) -> int:
    """How many keys of each query a page of a long text stores, for the heads and the queries of every layer."""
    return max(1, STORED_WEIGHTS // sum((heads + 1) * queries for heads, queries in shapes))


def trim_layer(picture: ExplorerPicture, layer: Layer, keys: int, heads: int, effort: int = EFFORT) -> LongLayer:
    """Store a layer as a page of a long text does: of each query the `keys` largest weights of every head, and as many summed norms.

    `heads` is the number of heads in all layers. The chunk holds the norms as float32; then, of all heads and of the layer, the low
    and the high bytes of the gaps between keys, and the steps.
    """
    planes = [(head, 1.0) for head in layer.weights]
    if layer.summed is not None:
        planes.append((layer.summed, float(layer.summed.max())))
    keys, gaps, steps, stored = min(keys, layer.weights.shape[2]), [], [], 0.0
    for n, (cells, top) in enumerate(planes):
        places = np.sort(np.argpartition(cells, -keys, axis=1)[:, -keys:], axis=1)
        values = np.take_along_axis(cells, places, axis=1)
        stored += float(values.sum()) if n < len(layer.weights) else 0
        gaps.append(np.diff(places, axis=1, prepend=0).astype(np.uint16))
        steps.append(levels_of(values, LONG_LEVELS, top))
    norms = [] if layer.norms is None else [layer.norms.astype("<f4")]
    low, high = ((np.stack(gaps) >> bits & 255).astype(np.uint8) for bits in (0, 8))
    chunk = _deflate(_raw(*norms, low, high, *steps), effort)
    facts, pixels = _layer(picture, replace(layer, v=None, sources=None), heads)
    received = layer.received
    share = stored / max(float(received.sum()) * layer.weights.shape[1], 1e-30)
    facts |= {"stored": keys, "share": round(share, 4), "lacking": layer.lacking or TOO_LONG}
    return LongLayer(layer.stack, layer.layer, facts, pixels, chunk, received, layer.norms)


def _deflate(values: np.ndarray | bytes, effort: int = EFFORT) -> bytes:
    squeezer = zlib.compressobj(effort, zlib.DEFLATED, -15)
    return squeezer.compress(values if isinstance(values, bytes) else values.tobytes()) + squeezer.flush()


def _raw(*arrays: np.ndarray) -> np.ndarray:
    return np.concatenate([np.ascontiguousarray(a).view(np.uint8).ravel() for a in arrays])


def _maps(layer: Layer, levels: int) -> np.ndarray:
    """Norms as float32, then weights and summed norms in steps, key by key, since all queries often read the same key."""
    by_key = [levels_of(layer.weights.transpose(0, 2, 1), levels)]
    if layer.norms is None or layer.summed is None:
        return _raw(*by_key)
    by_key.append(levels_of(layer.summed.T, levels, float(layer.summed.max())))
    return _raw(layer.norms.astype("<f4"), *by_key)


def _vectors(layer: Layer, bits: int) -> np.ndarray:
    """q and k, their steps first, then v and its steps; then f_h(x_j), whose unit is left out since contribution weights have none,
    and those of the layer: the largest size of each query, and steps of its root with the sign.
    """
    (q, q_steps), (k, k_steps) = to_steps(layer.q, bits), to_steps(layer.k, bits)
    parts = [q_steps.astype("<f4"), k_steps.astype("<f4"), q, k]
    if layer.v is not None:
        v, v_steps = to_steps(layer.v, bits)
        parts += [v_steps.astype("<f4"), v]
    if layer.sources is not None and layer.contributions is not None:
        f, _ = to_steps(layer.sources.reshape(len(layer.sources), -1, 1), 13)
        tops = np.abs(layer.contributions).max(axis=1)
        steps = levels_of(np.abs(layer.contributions) / np.where(tops > 0, tops, 1)[:, None], 127).astype(np.int8)
        parts += [f, tops.astype("<f4"), np.sign(layer.contributions).astype(np.int8) * steps]
    return _raw(*parts)


def _front(picture: ExplorerPicture, effort: int) -> tuple[dict[str, Json], bytes]:
    """The manifest, and the chunk of small pictures."""
    heads = sum(len(layer.weights) for layer in picture.layers)
    sides = []
    for axis in filter(None, (picture.source, picture.target)):
        shown, special = readable(axis.pieces, axis.special), [int(s) for s in axis.special]
        sides.append({"tokens": [text for text, _ in shown], "glued": [int(g) for _, g in shown], "special": special})
    parts = [(layer.facts, layer.pixels) for layer in picture.long_layers]
    parts = parts or [_layer(picture, layer, heads) for layer in picture.layers]
    layers, small = zip(*parts, strict=True)
    first = _first_stack(picture)
    _, n, head = _most_weight(first)
    place = next(i for i, layer in enumerate(picture.long_layers or picture.layers) if layer is first[n])
    manifest = {
        "model": picture.model,
        "sides": sides,
        "layers": layers,
        "first": [place, head],  # the head that the page opens with, which its first sentence names
        "notes": picture.notes,
        "facts": picture.facts,
    }
    return manifest, _deflate(np.concatenate(small), effort)


def _layer(picture: ExplorerPicture, layer: Layer, count: int) -> tuple[dict[str, Any], np.ndarray]:
    """A layer's part of the manifest, and the small pictures of its heads, of a model with `count` heads."""
    side = next((side for limit, side in ((200, 64), (800, 40)) if count <= limit), 24)
    queries, keys = picture.sides(layer)
    heads, tokens, sources = layer.weights.shape
    square = tokens == sources > 1 and not crosses(layer.stack)
    pictures = [shrink(layer.weights, side), shrink(layer.weights.mean(axis=0, keepdims=True), side)]
    if layer.norms is not None and layer.summed is not None:
        pictures.append(shrink(layer.weights * layer.norms[:, None, :], side))
        pictures.append(shrink(layer.summed[None], side))
    tops = [[float(f"{top:.6g}") for top in tops] for _, tops in pictures] + [None] * (4 - len(pictures))
    facts = {
        "stack": layer.stack,
        "layer": layer.layer,
        "queries": queries,
        "keys": keys,
        "shape": [heads, len(layer.k), tokens, sources, layer.q.shape[2]],
        "values": 0 if layer.v is None else layer.v.shape[2],
        "sources": 0 if layer.sources is None else layer.sources.shape[1],
        "thumb": pictures[0][0].shape[1:],
        "tops": dict(zip(("weights", "mean", "norms", "summed"), tops, strict=True)),
        "scale": layer.scale,
        "plain": layer.plain,
        "causal": square and not np.triu(layer.weights.max(axis=0), 1).any(),  # nothing is read from a later position
        "lacking": layer.lacking,
    }
    # The scale of what is stored in steps must be the one that they are read by, to the last bit.
    facts["summed"] = None if layer.summed is None else float(layer.summed.max())
    return facts, _raw(*(pixels for pixels, _ in pictures))


HERE = Path(__file__).parent
EXCERPT = 90  # characters of the text above the fold
SCRIPTS = ("data.js", "paint.js", "grid.js", "map.js", "words.js", "cell.js", "save.js", "explorer.js", "frame.js")


def page(tables: Mapping[str, pl.DataFrame], about: About[Any]) -> Document:
    """The explorer's page, the same for the same picture; raises CorpusError for a text that is too long."""
    picture: ExplorerPicture = about.facts.picture  # ExploreFacts, which are declared of it
    return Document("explorer.html", html(picture, about.command), answer=answer(picture))


def findings(tables: Mapping[str, pl.DataFrame], about: About[Any]) -> tuple[Finding, ...]:
    """None: the page shows data alone."""
    return ()


def html(picture: ExplorerPicture, command: str = "") -> str:
    """The whole page as text: words, then small maps, the script, and the chunks.

    The model is called by the name of its folder where the `command` says that it is one.
    """
    packed = pack(picture)
    steps = 65_535 if packed.manifest["bits"] == 16 else 255
    exactness = (
        f"Weights a are kept in {count(packed.levels)} steps of √a: a shown one is off by at most "
        f"√a/{packed.levels} + 1/(4·{packed.levels}²); a head's norms inherit it from their weight, "
        f"a layer's norms are kept in as many steps of √(norm / largest). "
    )
    layers: Any = packed.manifest["layers"]
    if keys := max(layer.get("stored", 0) for layer in layers):
        share = words.share(sum(layer["share"] for layer in layers) / len(layers))
        exactness += (
            f"Of this long text up to {count(keys)} weights of each query in each head are kept, the largest: {share} of the weight of a "
            "layer on average; and as many norms of a layer. Others are shown as 0, with how large they may be. "
        )
    if packed.manifest["vectors"]:
        exactness += f"q, k and v are kept in {count(steps)} steps for each head and dimension, between minus and plus its largest size. "
    else:
        exactness += f"q, k and v are left out: {TOO_LONG}. "
    if any(layer["sources"] for layer in layers):
        exactness += (
            "Contribution weights of a head are computed in the page from its weights and from f(x) in 4,095 steps of its largest size; "
            "a layer's are kept in 127 steps of their root."
        )
    return sheet.fill(
        HERE / "explorer.html",
        style(),
        sheet.wrap_scripts(sheet.SAVE, *(HERE / name for name in (*SCRIPTS, "page.js"))),
        picture=picture,
        model=words.display_name(picture.model, command),
        answer=answer(picture),
        summary=summary(picture, command),
        texts=tuple(_text(side) for side in (picture.source, picture.target) if side is not None),
        facts=(*picture.facts, *(("Note", note) for note in picture.notes), ("Exactness", exactness)),
        # Inside <script>, "<" could end the block; as an escape it is the same text.
        manifest=Markup(manifest(packed).replace("<", "\\u003c")),
        chunks=[Markup(b64encode(chunk).decode()) for chunk in packed.chunks],
    )


def script() -> str:
    """The explorer's script, the same in the page, in notebooks and in the served page."""
    return "".join(map(sheet.read, (sheet.SAVE, *(HERE / name for name in SCRIPTS))))


def style() -> str:
    """The explorer's style sheet; rules apply within the class `explorer`, but for the page's body."""
    return sheet.read(HERE / "explorer.css")


def manifest(packed: _Packed) -> str:
    """The words and small numbers as JSON."""
    return json.dumps(packed.manifest, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def answer(picture: ExplorerPicture) -> str:
    """The token with most of the weight in the stack that the page opens with, its share of weights and norms, and the head with most.

    A share is the mean over heads: of the mean weight over queries, and of the token's part of the sum of all norms ‖a f(x)‖.
    """
    layers = _first_stack(picture)
    side = (picture.source, picture.target)[picture.sides(layers[0])[1]]
    assert side is not None
    token, n, head = _most_weight(layers)
    heads, stack = [float(a[token]) for layer in layers for a in layer.received], layers[0].stack
    norms = [x for layer in layers if layer.norms is not None for x in layer.received * layer.norms]
    parts = [float(x[token] / x.sum()) for x in norms if x.any()]
    where, largest = f"layer {layers[n].layer} head {head + 1}", float(layers[n].received[head, token])
    return (
        f"Most attention goes to {readable(side.pieces, side.special)[token][0]} (token {token + 1}): "
        f"{words.share(float(np.mean(heads)))} of the weight of {words.quantity(len(heads), 'head')}"
        f"{f' ({name})' if (name := stack_words(stack)) else ''}"
        f"{f', {words.share(float(np.mean(parts)))} of the norm' if parts else ''}; most in {where}, {words.share(largest)} of its weight."
    )


def _first_stack(picture: ExplorerPicture) -> list[Layer | LongLayer]:
    """The layers of the stack that the page opens with."""
    layers = picture.long_layers or picture.layers
    return [layer for layer in layers if layer.stack == layers[0].stack]


def _most_weight(layers: Sequence[Layer | LongLayer]) -> tuple[int, int, int]:
    """The token with most of the weight over all heads, and the layer and head, counted from 0, that give it most."""
    token = int(np.concatenate([layer.received for layer in layers]).mean(axis=0).argmax())
    largest = [layer.received[:, token] for layer in layers]
    n = int(np.argmax([weights.max() for weights in largest]))
    return token, n, int(largest[n].argmax())


def _text(side: Words) -> str:
    """The beginning of a text as it is read."""
    pieces = readable(side.pieces, side.special)
    text = "".join(piece if glued else f" {piece}" for piece, glued in pieces)
    return text if len(text) <= EXCERPT else f"{text[:EXCERPT]}…"


def summary(picture: ExplorerPicture, command: str = "") -> str:
    """Model and text in one line."""
    stacks: dict[str, list[int]] = {}
    for layer in picture.long_layers or picture.layers:
        stacks.setdefault(layer.stack, []).append(len(layer.received))
    parts = []
    for stack, heads in stacks.items():
        name = f"{name}: " if (name := stack_words(stack)) else ""
        each = str(heads[0]) if len(set(heads)) == 1 else f"{min(heads)} to {max(heads)}"
        parts.append(f"{name}{words.quantity(len(heads), 'layer')} × {each} heads")
    tokens = " and ".join(count(len(side.pieces)) for side in (picture.source, picture.target) if side is not None)
    return f"{words.display_name(picture.model, command)} · {', '.join(parts)} · {tokens} tokens"


class Framed:
    """The explorer's page in a frame, shown in notebooks without anywidget."""

    def __init__(self, picture: ExplorerPicture) -> None:
        self._picture = picture

    def __repr__(self) -> str:
        return f"<Explorer {summary(self._picture)}>"

    def _repr_html_(self) -> str:
        frame = '<iframe title="trisect explorer" style="width:100%;height:52rem;border:0" srcdoc="{}"></iframe>'
        return str(Markup(frame).format(html(self._picture)))


def show(picture: ExplorerPicture) -> AnyWidget | Framed:
    """Show the explorer in a notebook: a widget of anywidget (`trisect[notebook]`), else an object with HTML.

    Raises CorpusError where the text is too long to be shown.
    """
    if not is_installed("anywidget"):
        return Framed(picture)
    packed = pack(picture)
    starts = [0, *accumulate(map(len, packed.chunks))]
    return _widget()(manifest=manifest(packed), starts=str(starts), data=b"".join(packed.chunks))


@cache
def _widget() -> type[Any]:
    import anywidget
    import traitlets

    class Explorer(anywidget.AnyWidget):
        """The explorer as a widget: the page's script, with data from the kernel."""

        _esm = script() + sheet.read(HERE / "widget.js")
        _css = style()
        manifest = traitlets.Unicode().tag(sync=True)
        starts = traitlets.Unicode().tag(sync=True)
        data = traitlets.Bytes().tag(sync=True)

    return Explorer
