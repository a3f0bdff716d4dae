"""The claims as they were fixed before the data: any change shows as a difference in claims.txt.

To accept a change, write `listed()` to the file and say in the commit why the claim is another.
"""

from __future__ import annotations

from pathlib import Path

from trisect import claims
from trisect.papers import SOURCES

GOLDEN = Path(__file__).with_name("claims.txt")


def listed() -> str:
    """For claims about training, then for those over each other unit: the hash, and every part with its reason, a line each."""
    lines = []
    for unit in dict.fromkeys(source.unit for source in SOURCES):
        lines.append(f"hash {'' if unit == 'seed' else f'by {unit} '}{claims.claims_hash(unit)}")
        for row in claims.listing(unit):
            shown = "" if row["decides"] else " (shown only)"
            lines.append(f"{row['claim']}: {row['sentence']}{shown}. {row['reason']}")
    return "\n".join(lines) + "\n"


def test_claims_are_the_ones_that_were_fixed():
    assert listed() == GOLDEN.read_text(encoding="utf-8")
