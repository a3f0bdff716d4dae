"""Findings: what a study found, method by method, its controls and ties among them, as data with the words made from it."""

from __future__ import annotations

from trisect.core.finding import Finding
from trisect.experiments.study import answer, controls, dose, removal, telling, tying
from trisect.experiments.study import words as study_words
from trisect.experiments.study.rows import StudyRows
from trisect.report.provenance import verdict_findings


def found(rows: StudyRows) -> tuple[Finding, ...]:
    """The answer and what it rests on; then attacks, rewinding and freezing, controls, probes, erasure and ties, where there are such."""
    return (
        *answer.findings(rows),
        *answer.compared(rows),
        *telling.findings(rows),
        *study_words.findings(rows),
        *controls.findings(rows),
        *dose.findings(rows),
        *removal.findings(rows),
        *tying.findings(rows),
    )


def with_verdicts(rows: StudyRows) -> tuple[Finding, ...]:
    """Every claim's verdict, then what was found."""
    return (*verdict_findings(rows.claims), *found(rows))
