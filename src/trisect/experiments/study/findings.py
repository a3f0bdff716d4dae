"""Findings: the whole answer of a study in words, method by method, its controls and ties among them."""

from __future__ import annotations

from trisect.experiments.study import controls, removal, tying
from trisect.experiments.study import words as study_words
from trisect.experiments.study.rows import Rows


def answer(rows: Rows) -> list[tuple[str, str]]:
    """For each method its name and what its rows say; then Controls, Removed, Erasure and Tying, where there are such."""
    return [*study_words.answer(rows), *controls.finding(rows), *removal.finding(rows), *tying.finding(rows)]
