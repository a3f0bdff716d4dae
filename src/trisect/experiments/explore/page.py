"""The explorer as one self-contained HTML file that asks for nothing."""

from __future__ import annotations

import json
import zlib
from base64 import b64encode
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
from markupsafe import Markup

from trisect.core.errors import CorpusError
from trisect.core.files import Json
from trisect.core.finding import About, Finding
from trisect.experiments.explore.picture import (
    KINDS,
    ExplorerPicture,
    Layer,
    Words,
    is_causal,
    readable,
    shares,
    thumbs,
)
from trisect.report import format as words
from trisect.report import sheet
from trisect.report.format import count, stack_words
from trisect.report.sheet import Document

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from trisect.experiments.explore.settings import ExploreFacts


ROOM = 20_800_000  # bytes: in base64 a third more, which with the script leaves the page below 28 MB
FINE = 3_000_000  # numbers up to which each takes two bytes
MOST = 250_000_000  # weights
EFFORT = 6
LADDER = (255, 180, 127, 90, 63, 53, 45, 31, 22, 15)
NEAR = 1.05  # how far the guess of a size may be off


class Packed(NamedTuple):
    """What the explorer's script reads: words and small numbers, and chunks of raw deflate.

    Chunk 0 holds the small pictures of all maps; layer n (from 0) has its maps in chunk 1 + 2n and its q, k and v in the
    next. `levels` is the number of steps of √a.
    """

    manifest: dict[str, Json]
    chunks: tuple[bytes, ...]
    levels: int


class Vectors(NamedTuple):
    """Vectors as whole numbers: a value is `ints` times its head's and dimension's step."""

    ints: Int[np.ndarray, "H T E"]
    steps: Float[np.ndarray, "H E"]


def levels_of(values: np.ndarray, levels: int, top: float = 1.0) -> np.ndarray:
    """Which of `levels` even steps of √(value / top) comes nearest; a value is then off by (√(v·top) + top/4L)/L at most."""
    share = np.sqrt(np.clip(values / (top or 1.0), 0, 1))
    return np.rint(share * levels).astype(np.uint8 if levels < 256 else np.uint16)


def vectors(values: np.ndarray, bits: int) -> Vectors:
    """Each dimension of each head in even steps from minus to plus its largest size."""
    most = 2 ** (bits - 1) - 1
    steps = (np.abs(values).max(axis=1) / most).astype(np.float32)
    ints = np.rint(values / np.where(steps > 0, steps, 1)[:, None, :])
    return Vectors(np.clip(ints, -most, most).astype(np.int8 if bits == 8 else np.int16), steps)


def pack(picture: ExplorerPicture, room: int = ROOM, effort: int = EFFORT) -> Packed:
    """The picture in at most `room` bytes, in the finest steps that fit; `effort` is zlib's, from 0 to 9.

    Raises CorpusError where the text is too long for any page, or is empty.
    """
    count = sum(layer.weights.size for layer in picture.layers)
    if not count:
        raise CorpusError("There is nothing to show.", "The reading has no attention weights.", "Give a text.")
    if count > MOST:
        most = int((MOST / sum(len(layer.weights) for layer in picture.layers)) ** 0.5)
        tokens = max(layer.weights.shape[2] for layer in picture.layers)
        given = f"A text of {tokens:,} tokens has {count:,} attention weights in {picture.model!r}."
        raise CorpusError(given, f"A page holds {MOST:,}: {most:,} tokens of this model.", "Give a shorter text.")
    front, rest = _front(picture, effort), [np.concatenate([_vectors(layer, 8)]) for layer in picture.layers]
    numbers = count + sum(
        part.size for layer in picture.layers for part in (layer.q, layer.k, layer.v) if part is not None
    )
    if numbers <= FINE:
        return _packed(picture, front, [_vectors(layer, 16) for layer in picture.layers], 65535, effort)
    with ThreadPoolExecutor(2) as pool:
        taken = sum(map(len, pool.map(_deflate, rest))) + len(front[1])
    for levels in LADDER:
        if taken + _guess(picture, levels) > room * NEAR and levels != LADDER[-1]:
            continue
        made = _packed(picture, front, rest, levels, effort)
        if sum(map(len, made.chunks)) <= room or levels == LADDER[-1]:
            return made
    raise AssertionError


def _guess(picture: ExplorerPicture, levels: int) -> float:
    """Bytes that the weights will take, from a few heads of three layers."""
    chosen = {0, len(picture.layers) // 2, len(picture.layers) - 1}
    bits = 0.0
    for i in chosen:
        some = picture.layers[i].weights[::5]
        bits += len(_deflate(levels_of(some.transpose(0, 2, 1), levels))) / some.size
    return bits / len(chosen) * sum(layer.weights.size for layer in picture.layers)


def _packed(
    picture: ExplorerPicture,
    front: tuple[dict[str, Json], bytes],
    rest: list[np.ndarray],
    levels: int,
    effort: int,
) -> Packed:
    with ThreadPoolExecutor(2) as pool:
        maps = list(pool.map(lambda layer: _deflate(_maps(layer, levels), effort), picture.layers))
        qk = list(pool.map(lambda own: _deflate(own, effort), rest))
    manifest, small = front
    pairs = [chunk for pair in zip(maps, qk, strict=True) for chunk in pair]
    return Packed({**manifest, "levels": levels, "bits": 16 if levels > 255 else 8}, (small, *pairs), levels)


def _deflate(values: np.ndarray | bytes, effort: int = EFFORT) -> bytes:
    squeezer = zlib.compressobj(effort, zlib.DEFLATED, -15)
    return squeezer.compress(values if isinstance(values, bytes) else values.tobytes()) + squeezer.flush()


def _raw(*arrays: np.ndarray) -> np.ndarray:
    return np.concatenate([np.ascontiguousarray(a).view(np.uint8).ravel() for a in arrays])


def _maps(layer: Layer, levels: int) -> np.ndarray:
    """Norms as float32, then weights and summed norms in steps; key by key, since a key is often read by all alike."""
    by_key = [levels_of(layer.weights.transpose(0, 2, 1), levels)]
    if layer.norms is None or layer.summed is None:
        return _raw(*by_key)
    by_key.append(levels_of(layer.summed.T, levels, float(layer.summed.max())))
    return _raw(layer.norms.astype("<f4"), *by_key)


def _vectors(layer: Layer, bits: int) -> np.ndarray:
    q, k = vectors(layer.q, bits), vectors(layer.k, bits)
    scores = _raw(q.steps.astype("<f4"), k.steps.astype("<f4"), q.ints, k.ints)
    if layer.v is None:
        return scores
    v = vectors(layer.v, bits)
    return _raw(scores, v.steps.astype("<f4"), v.ints)


def _front(picture: ExplorerPicture, effort: int) -> tuple[dict[str, Json], bytes]:
    """The manifest, and the chunk of small pictures."""
    heads = sum(len(layer.weights) for layer in picture.layers)
    side = next((side for most, side in ((200, 64), (800, 40)) if heads <= most), 24)
    sides = [_side(words) for words in (picture.source, picture.target) if words is not None]
    layers, small = [], []
    for layer in picture.layers:
        facts, pixels = _layer(picture, layer, side)
        layers.append(facts)
        small.append(pixels)
    manifest = {
        "model": picture.model,
        "sides": sides,
        "kinds": KINDS,
        "layers": layers,
        "notes": picture.notes,
        "facts": picture.facts,
    }
    return manifest, _deflate(np.concatenate(small), effort)


def _side(words: Words) -> dict[str, Any]:
    shown = readable(words.pieces, words.special)
    return {
        "tokens": [s.text for s in shown],
        "glued": [int(s.glued) for s in shown],
        "special": [int(s) for s in words.special],
    }


def _layer(picture: ExplorerPicture, layer: Layer, side: int) -> tuple[dict[str, Any], np.ndarray]:
    queries, keys = picture.sides(layer)
    words = (picture.source, picture.target)[keys]
    assert words is not None
    heads, tokens, sources = layer.weights.shape
    pictures = [thumbs(layer.weights, side), thumbs(layer.weights.mean(axis=0, keepdims=True), side)]
    if layer.norms is not None and layer.summed is not None:
        pictures.append(thumbs(layer.weights * layer.norms[:, None, :], side))
        pictures.append(thumbs(layer.summed[None], side))
    tops = [[float(f"{t:.6g}") for t in p.tops] for p in pictures] + [None] * (4 - len(pictures))
    facts = {
        "stack": layer.stack,
        "layer": layer.layer,
        "queries": queries,
        "keys": keys,
        "shape": [heads, len(layer.k), tokens, sources, layer.q.shape[2]],
        "values": 0 if layer.v is None else layer.v.shape[2],
        "thumb": pictures[0].pixels.shape[1:],
        "tops": dict(zip(("weights", "mean", "norms", "summed"), tops, strict=True)),
        "scale": layer.scale,
        "plain": layer.plain,
        "causal": is_causal(layer),
        "lacking": layer.lacking,
        "shares": shares(layer, words),
    }
    # The scale of what is stored in steps must be the one that they are read by, to the last bit.
    facts["summed"] = None if layer.summed is None else float(layer.summed.max())
    return facts, _raw(*(p.pixels for p in pictures))


HERE = Path(__file__).parent
ROOMS = ("data.js", "paint.js", "grid.js", "map.js", "words.js", "cell.js", "save.js", "explorer.js", "frame.js")


def page(tables: Mapping[str, pl.DataFrame], about: About[ExploreFacts]) -> Document:
    """The explorer's page; the same picture gives the same text. Raises CorpusError where the text is too long for a page."""
    return Document("explorer.html", html(about.facts.picture, about.command))


def findings(tables: Mapping[str, pl.DataFrame], about: About[ExploreFacts]) -> tuple[Finding, ...]:
    """None: the page is to be looked at."""
    return ()


def html(picture: ExplorerPicture, command: str = "") -> str:
    """The whole page as one text: words first, then the small pictures, the script, and a chunk after another.

    The model is called by the name of its folder where the `command` says that it is one.
    """
    packed = pack(picture)
    return sheet.fill(
        HERE / "explorer.html",
        style(),
        sheet.closed(sheet.SAVE, *(HERE / name for name in (*ROOMS, "page.js"))),
        picture=picture,
        model=words.called(picture.model, command),
        summary=summary(picture, command),
        facts=(*picture.facts, *(("Note", note) for note in picture.notes), ("Exactness", exactness(packed))),
        # Inside <script>, "<" could end the block; as an escape it is the same text.
        manifest=Markup(manifest(packed).replace("<", "\\u003c")),
        chunks=[Markup(b64encode(chunk).decode()) for chunk in packed.chunks],
    )


def script() -> str:
    """The explorer's script, as it stands in the page and in notebooks alike."""
    return "".join(map(sheet.read, (sheet.SAVE, *(HERE / name for name in ROOMS))))


def style() -> str:
    """The explorer's style sheet; all of it within the class `explorer`, but for the page's own body."""
    return sheet.read(HERE / "explorer.css")


def manifest(packed: Packed) -> str:
    """The words and small numbers as JSON."""
    return json.dumps(packed.manifest, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def summary(picture: ExplorerPicture, command: str = "") -> str:
    """The model and the text in one line."""
    stacks: dict[str, list[int]] = {}
    for layer in picture.layers:
        stacks.setdefault(layer.stack, []).append(len(layer.weights))
    parts = []
    for stack, heads in stacks.items():
        name = f"{said}: " if (said := stack_words(stack)) else ""
        each = str(heads[0]) if len(set(heads)) == 1 else f"{min(heads)} to {max(heads)}"
        parts.append(f"{name}{len(heads)} {'layer' if len(heads) == 1 else 'layers'} × {each} heads")
    sides = [one for one in (picture.source, picture.target) if one is not None]
    tokens = " and ".join(f"{count(len(one.pieces))}" for one in sides)
    return f"{words.called(picture.model, command)} · {', '.join(parts)} · {tokens} tokens"


def exactness(packed: Packed) -> str:
    """What the page keeps of the arrays."""
    steps = 65_535 if packed.manifest["bits"] == 16 else 255
    return (
        f"Weights a are kept in {count(packed.levels)} steps of √a: a shown one is off by at most "
        f"√a/{packed.levels} + 1/(4·{packed.levels}²); a head's norms inherit it from their weight, "
        f"a layer's norms are kept in as many steps of √(norm / largest). "
        f"q, k and v are kept in {count(steps)} steps for each head and dimension, between minus and plus its largest size."
    )
