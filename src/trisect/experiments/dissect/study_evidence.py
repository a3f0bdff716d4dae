"""Lines of evidence on q, k and v from the findings of a training study, with the verdicts that speak of each."""

from __future__ import annotations

from collections.abc import Iterable

from trisect.core.finding import Finding
from trisect.experiments.dissect.evidence import Line

# The claims that speak of a measure, and of one label where it is about a label.
CLAIMS = {
    ("attack", "pos"): ("A-1", "A-2", "A-3", "A-4", "A-5", "A-9"),
    ("attack", "dep"): ("A-6", "A-7", "A-8", "A-9"),
    ("rewinding", ""): ("A-10", "A-11", "A-14"),
    ("midstage", ""): ("A-12",),
    ("freezing", ""): ("A-13", "A-14"),
    ("tying", ""): ("D-2",),
}


def study_lines(findings: Iterable[Finding], link: str = "") -> list[Line]:
    """A line for every finding that has a number of q, k or v; `link` is where the study's page lies, from the page that shows them.

    Verdicts are those among the findings.
    """
    findings = tuple(findings)
    verdicts = {one.claim: one.verdict for one in findings if one.claim is not None and one.verdict is not None}
    found = []
    for one in findings:
        claims = CLAIMS.get((one.measure, one.groups[0] if one.groups else ""), ())
        line = Line.of(one, tuple((claim, verdicts[claim]) for claim in claims if claim in verdicts), link)
        found += [line] if line is not None else []
    return found
