"""Page: the explorer as one self-contained HTML file that asks for nothing."""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from trisect.core.files import replace_file
from trisect.experiments.explore.pack import Packed, pack
from trisect.experiments.explore.picture import Picture
from trisect.report.format import count

HERE = Path(__file__).parent
ROOMS = ("data.js", "paint.js", "grid.js", "map.js", "words.js", "cell.js", "explorer.js", "frame.js")


def write_page(path: Path, picture: Picture) -> Path:
    """Write the explorer's page; the same picture gives the same bytes. Returns `path`.

    Raises CorpusError where the text is too long for a page, StudyError when the file cannot be written.
    """
    text = html(picture)
    replace_file(path, lambda scratch: scratch.write_text(text, encoding="utf-8"), durable=False)
    return path


def html(picture: Picture) -> str:
    """The whole page as one text: words first, then the small pictures, the script, and a chunk after another."""
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    packed = pack(picture)
    code = f'"use strict";\n(() => {{\n{script()}{_read("page.js")}}})();\n'
    return environment.get_template("explorer.html").render(
        picture=picture,
        summary=summary(picture),
        facts=(*picture.facts, *(("Note", note) for note in picture.notes), ("Exactness", exactness(packed))),
        script=Markup(code),
        script_hash=b64encode(hashlib.sha256(code.encode()).digest()).decode(),
        style=Markup(style()),
        # Inside <script>, "<" could end the block; as an escape it is the same text.
        manifest=Markup(manifest(packed).replace("<", "\\u003c")),
        chunks=[Markup(b64encode(chunk).decode()) for chunk in packed.chunks],
    )


def script() -> str:
    """The explorer's script, as it stands in the page and in notebooks alike."""
    return "".join(map(_read, ROOMS))


def style() -> str:
    """The explorer's style sheet; all of it within the class `explorer`, but for the page's own body."""
    return _read("explorer.css")


def manifest(packed: Packed) -> str:
    """The words and small numbers as JSON."""
    return json.dumps(packed.manifest, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def summary(picture: Picture) -> str:
    """The model and the text in one line."""
    stacks: dict[str, list[int]] = {}
    for layer in picture.layers:
        stacks.setdefault(layer.stack, []).append(len(layer.weights))
    parts = []
    for stack, heads in stacks.items():
        name = {"plain": "", "enc": "encoder: ", "dec": "decoder: ", "cross": "cross-attention: "}[stack]
        each = str(heads[0]) if len(set(heads)) == 1 else f"{min(heads)} to {max(heads)}"
        parts.append(f"{name}{len(heads)} {'layer' if len(heads) == 1 else 'layers'} × {each} heads")
    sides = [words for words in (picture.source, picture.target) if words is not None]
    tokens = " and ".join(f"{count(len(words.pieces))}" for words in sides)
    return f"{picture.model} · {', '.join(parts)} · {tokens} tokens"


def exactness(packed: Packed) -> str:
    """What the page keeps of the arrays."""
    bits = packed.manifest["bits"]
    return (
        f"Weights a are kept in {count(packed.levels)} steps of √a: a shown one is off by at most "
        f"√a/{packed.levels} + 1/(4·{packed.levels}²); a head's norms inherit it from their weight, "
        f"a layer's norms are kept in as many steps of √(norm / largest). "
        f"q and k are kept in {count(2**bits - 1)} steps for each head and dimension, between minus and plus its largest size."
    )


def _read(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")
