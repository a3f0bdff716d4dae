"""Names of the splits, of words left out, and which characters no page can show."""

from __future__ import annotations

SPLITS = ("train", "valid", "test")
UNKNOWN = "<unk>"
UNSHOWN = frozenset(map(chr, {*range(32), 0xFFFE, 0xFFFF} - {9, 10, 13}))  # not in XML, and so in no figure
