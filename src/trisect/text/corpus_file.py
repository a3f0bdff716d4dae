"""What corpus.json, the file that names a corpus folder's arrays, holds."""

from __future__ import annotations

from typing import NotRequired

from typing_extensions import TypedDict


class DocumentsData(TypedDict):
    """Texts that end: the length of each, and the label columns that belong to whole texts."""

    length: int
    own: list[str]


class CorpusFile(TypedDict):
    """Names, classes of each label column, and of every array its length and checksum."""

    format: int
    name: str
    vocabulary: list[str]
    labels: dict[str, list[str]]
    lengths: dict[str, int]
    checksums: dict[str, str]
    notes: list[str]
    fingerprint: NotRequired[str]
    documents: NotRequired[DocumentsData]
