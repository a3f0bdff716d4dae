"""The explorer as one self-contained HTML file that asks for nothing, and inside a notebook."""

from __future__ import annotations

import json
import zlib
from base64 import b64encode
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
from markupsafe import Markup

from trisect.core.errors import CorpusError, there
from trisect.core.files import Json
from trisect.core.finding import About, Finding
from trisect.experiments.explore.picture import (
    KINDS,
    ExplorerPicture,
    Layer,
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
    from anywidget import AnyWidget
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


def levels_of(values: np.ndarray, levels: int, top: float = 1.0) -> np.ndarray:
    """Which of `levels` even steps of √(value / top) comes nearest; a value is then off by (√(v·top) + top/4L)/L at most."""
    share = np.sqrt(np.clip(values / (top or 1.0), 0, 1))
    return np.rint(share * levels).astype(np.uint8 if levels < 256 else np.uint16)


def vectors(values: np.ndarray, bits: int) -> tuple[Int[np.ndarray, "H T E"], Float[np.ndarray, "H E"]]:
    """Each dimension of each head in even steps from minus to plus its largest size: whole numbers, and the steps."""
    most = 2 ** (bits - 1) - 1
    steps = (np.abs(values).max(axis=1) / most).astype(np.float32)
    ints = np.rint(values / np.where(steps > 0, steps, 1)[:, None, :])
    return np.clip(ints, -most, most).astype(np.int8 if bits == 8 else np.int16), steps


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
    manifest, small = _front(picture, effort)
    numbers = count + sum(
        part.size for layer in picture.layers for part in (layer.q, layer.k, layer.v) if part is not None
    )
    fine = numbers <= FINE
    with ThreadPoolExecutor(2) as pool:
        rest = list(pool.map(lambda layer: _deflate(_vectors(layer, 16 if fine else 8), effort), picture.layers))
        taken = sum(map(len, rest)) + len(small)
        for levels in (65535,) if fine else LADDER:
            last = fine or levels == LADDER[-1]
            if not last and taken + _guess(picture, levels) > room * NEAR:
                continue
            maps = list(pool.map(lambda layer, levels=levels: _deflate(_maps(layer, levels), effort), picture.layers))
            chunks = (small, *(chunk for pair in zip(maps, rest, strict=True) for chunk in pair))
            if last or sum(map(len, chunks)) <= room:
                return Packed({**manifest, "levels": levels, "bits": 16 if levels > 255 else 8}, chunks, levels)
    raise AssertionError


def _guess(picture: ExplorerPicture, levels: int) -> float:
    """Bytes that the weights will take, from a few heads of three layers."""
    chosen = {0, len(picture.layers) // 2, len(picture.layers) - 1}
    bits = 0.0
    for i in chosen:
        some = picture.layers[i].weights[::5]
        bits += len(_deflate(levels_of(some.transpose(0, 2, 1), levels))) / some.size
    return bits / len(chosen) * sum(layer.weights.size for layer in picture.layers)


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
    """q and k, their steps first, then v and its steps."""
    (q, q_steps), (k, k_steps) = vectors(layer.q, bits), vectors(layer.k, bits)
    scores = _raw(q_steps.astype("<f4"), k_steps.astype("<f4"), q, k)
    if layer.v is None:
        return scores
    v, v_steps = vectors(layer.v, bits)
    return _raw(scores, v_steps.astype("<f4"), v)


def _front(picture: ExplorerPicture, effort: int) -> tuple[dict[str, Json], bytes]:
    """The manifest, and the chunk of small pictures."""
    heads = sum(len(layer.weights) for layer in picture.layers)
    side = next((side for most, side in ((200, 64), (800, 40)) if heads <= most), 24)
    sides = []
    for own in (picture.source, picture.target):
        if own is not None:
            shown, special = readable(own.pieces, own.special), [int(s) for s in own.special]
            sides.append(
                {"tokens": [text for text, _ in shown], "glued": [int(g) for _, g in shown], "special": special}
            )
    layers, small = zip(*(_layer(picture, layer, side) for layer in picture.layers), strict=True)
    manifest = {
        "model": picture.model,
        "sides": sides,
        "kinds": KINDS,
        "layers": layers,
        "notes": picture.notes,
        "facts": picture.facts,
    }
    return manifest, _deflate(np.concatenate(small), effort)


def _layer(picture: ExplorerPicture, layer: Layer, side: int) -> tuple[dict[str, Any], np.ndarray]:
    queries, keys = picture.sides(layer)
    words = (picture.source, picture.target)[keys]
    assert words is not None
    heads, tokens, sources = layer.weights.shape
    pictures = [thumbs(layer.weights, side), thumbs(layer.weights.mean(axis=0, keepdims=True), side)]
    if layer.norms is not None and layer.summed is not None:
        pictures.append(thumbs(layer.weights * layer.norms[:, None, :], side))
        pictures.append(thumbs(layer.summed[None], side))
    tops = [[float(f"{top:.6g}") for top in tops] for _, tops in pictures] + [None] * (4 - len(pictures))
    facts = {
        "stack": layer.stack,
        "layer": layer.layer,
        "queries": queries,
        "keys": keys,
        "shape": [heads, len(layer.k), tokens, sources, layer.q.shape[2]],
        "values": 0 if layer.v is None else layer.v.shape[2],
        "thumb": pictures[0][0].shape[1:],
        "tops": dict(zip(("weights", "mean", "norms", "summed"), tops, strict=True)),
        "scale": layer.scale,
        "plain": layer.plain,
        "causal": is_causal(layer),
        "lacking": layer.lacking,
        "shares": shares(layer, words),
    }
    # The scale of what is stored in steps must be the one that they are read by, to the last bit.
    facts["summed"] = None if layer.summed is None else float(layer.summed.max())
    return facts, _raw(*(pixels for pixels, _ in pictures))


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
        parts.append(f"{name}{words.several(len(heads), 'layer')} × {each} heads")
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


class Framed:
    """The explorer's page in a frame: what a notebook shows when anywidget is not installed."""

    def __init__(self, picture: ExplorerPicture) -> None:
        self._picture = picture

    def __repr__(self) -> str:
        return f"<Explorer {summary(self._picture)}>"

    def _repr_html_(self) -> str:
        frame = '<iframe title="trisect explorer" style="width:100%;height:52rem;border:0" srcdoc="{}"></iframe>'
        return str(Markup(frame).format(html(self._picture)))


def show(picture: ExplorerPicture) -> AnyWidget | Framed:
    """The explorer for a notebook: a widget of anywidget's (`trisect[notebook]`), else an object with HTML.

    Raises CorpusError where the text is too long to be shown.
    """
    if not there("anywidget"):
        return Framed(picture)
    packed = pack(picture)
    starts = [0, *accumulate(map(len, packed.chunks))]
    return _widget()(manifest=manifest(packed), starts=str(starts), data=b"".join(packed.chunks))


def module() -> str:
    """The widget's script as an ES module."""
    return script() + (HERE / "widget.js").read_text(encoding="utf-8")


@cache
def _widget() -> type[Any]:
    import anywidget
    import traitlets

    class Explorer(anywidget.AnyWidget):
        """One text inside one model; the page's script, with bytes from the kernel."""

        _esm = module()
        _css = style()
        manifest = traitlets.Unicode().tag(sync=True)
        starts = traitlets.Unicode().tag(sync=True)
        data = traitlets.Bytes().tag(sync=True)

    return Explorer
