"""Pieces: what a tokenizer's pieces look like to a reader, and where a new word begins."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple


class Shown(NamedTuple):
    """A piece as a reader sees it; `glued` is true where no space stands before it."""

    text: str
    glued: bool


@cache
def _bytes() -> dict[str, int]:
    """The byte behind each character of a byte-level vocabulary: printable ones stand for themselves, others from U+0100."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in set(plain)]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(rest)}


def _decoded(piece: str) -> str:
    """The text of a byte-level piece; bytes that are no whole character are written as ‹e2 80›."""
    known = _bytes()
    if any(c not in known for c in piece):
        return piece
    raw = bytes(known[c] for c in piece)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return f"‹{raw.hex(' ')}›"


def _visible(text: str) -> str:
    """White space as signs, since a piece of it would be nothing to see or to point at."""
    if not text.strip():
        text = text.replace("\n", "↵").replace("\t", "⇥").replace("\r", "␍").replace(" ", "␣")
    return text or "∅"


def readable(pieces: Sequence[str], special: Sequence[bool]) -> tuple[Shown, ...]:
    """The pieces as text, by the mark that their tokenizer sets: ## inside a word, Ġ or ▁ before one, or none."""
    own = [p for p, added in zip(pieces, special, strict=True) if not added]
    opens = next((mark for mark in "Ġ▁" if any(p.startswith(mark) for p in own)), "")
    inner = "" if opens else next((mark for mark in ("##", "@@") if any(mark in p[:2] + p[-2:] for p in own)), "")
    bytewise = opens == "Ġ" or any("Ċ" in p for p in own)
    found: list[Shown] = []
    cut = True
    for i, (piece, added) in enumerate(zip(pieces, special, strict=True)):
        text, glued = piece, i == 0
        if added:
            pass
        elif opens or bytewise:
            begins = piece.startswith(opens) if opens else False
            text = piece[1:] if begins and len(piece) > 1 else piece.replace("▁", " ")
            text = _decoded(text) if bytewise else text
            glued = glued or not (begins or special[i - 1])
        elif inner == "##" and piece.startswith("##") and len(piece) > 2:
            text, glued = piece[2:], True
        elif inner == "@@":
            text, glued = piece.removesuffix("@@") or piece, glued or cut
            cut = piece.endswith("@@")
        found.append(Shown(_visible(text), glued))
    return tuple(found)
