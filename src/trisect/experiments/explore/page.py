"""The explorer as one self-contained HTML file that asks for nothing."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
from markupsafe import Markup

from trisect.core.finding import About, Finding
from trisect.experiments.explore.pack import Packed, pack
from trisect.experiments.explore.picture import ExplorerPicture
from trisect.report import format as words
from trisect.report import template
from trisect.report.format import count
from trisect.report.sheet import Document
from trisect.report.subject import stack_words

if TYPE_CHECKING:
    from trisect.experiments.explore.settings import ExploreFacts

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
    return template.fill(
        HERE / "explorer.html",
        style(),
        template.closed(template.SAVE, *(HERE / name for name in (*ROOMS, "page.js"))),
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
    return "".join(map(template.read, (template.SAVE, *(HERE / name for name in ROOMS))))


def style() -> str:
    """The explorer's style sheet; all of it within the class `explorer`, but for the page's own body."""
    return template.read(HERE / "explorer.css")


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
