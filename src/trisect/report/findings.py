"""Findings: the whole answer of a study in words, method by method, its controls and ties among them."""

from __future__ import annotations

from trisect.report import controls, removal, tying, words
from trisect.report.rows import Rows


def answer(rows: Rows) -> list[tuple[str, str]]:
    """For each method its name and what its rows say; then Controls, Removed, Erasure and Tying, where there are such."""
    return [*words.answer(rows), *controls.finding(rows), *removal.finding(rows), *tying.finding(rows)]
