"""Similarity: how alike W_Q, W_K and W_V of a head are, in every model of the training study."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trisect.core.finding import Estimate, Finding
from trisect.experiments.dissect.evidence import COMPONENTS, Line
from trisect.experiments.dissect.parts.base import DissectPart, Findings, each_model, over_models
from trisect.experiments.similarity import SIMILARITY as SIMILARITY_EXPERIMENT
from trisect.experiments.similarity import settings as similarity

WHAT = "overlap of its row space with those of the other two, mean over heads"
MARGIN = 0.05  # of the dimensions, as in claim D-1
PAIRS = {"q": ("q-k", "q-v"), "k": ("q-k", "k-v"), "v": ("q-v", "k-v")}


def evidence(found: Sequence[Findings]) -> Iterator[Line]:
    """The overlap of each component's row space with those of the other two."""
    models = [tuple(_beside_others(findings)) for findings in found]
    alike = Finding("similarity", WHAT, "of their dimensions", source="matrices", what=WHAT, signed=False)
    line = Line.of(over_models(models, alike, "similarity", margin=MARGIN), "Similarity", ("D-1", "D-3"))
    yield from () if line is None else (line,)


def _beside_others(findings: Findings) -> Iterator[Finding]:
    """The overlaps of pairs in one model as a number for each component."""
    pairs = {one.groups[0]: one.values[0] for one in findings if one.measure == "overlap"}
    values = tuple(
        Estimate(component, sum(mine) / len(mine), n=len(mine))
        for component in COMPONENTS
        if (mine := [pairs[pair].mean or 0.0 for pair in PAIRS[component] if pair in pairs])
    )
    yield Finding("similarity", WHAT, values=values)


SIMILARITY = DissectPart(
    "similarity",
    "Three matrices",
    "Why three matrices: how alike are they?",
    40.0,
    each_model(SIMILARITY_EXPERIMENT, similarity.SimilaritySettings),
    evidence,
    page="similarity/seed-{seed}/report.html",
)
