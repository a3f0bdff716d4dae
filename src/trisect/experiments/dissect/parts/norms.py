"""Norms: how much the weights and the lengths of what is weighed vary, in every model of the training study."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trisect.core.finding import Finding
from trisect.experiments.dissect.evidence import Line
from trisect.experiments.dissect.parts.base import DissectPart, Findings, each_model, over_models
from trisect.experiments.norms import NORMS as NORMS_EXPERIMENT
from trisect.experiments.norms import settings as norms

WHAT = "coefficient of variation over tokens of the weight a (q and k together) and of ‖f(x)‖ (v), mean over heads"


def evidence(found: Sequence[Findings]) -> Iterator[Line]:
    """How much the weights (q and k) and the norms (v and W_O) of what is mixed vary over tokens."""
    varied = Finding("norms", WHAT, "std / mean", source="norms", what=WHAT, signed=False)
    line = Line.of(over_models(found, varied, "dispersion"), "Norms", ("C-1", "C-2", "C-3", "C-4"))
    yield from () if line is None else (line,)


NORMS = DissectPart(
    "norms",
    "Norms",
    "Is attention its weights alone, or do the vectors that they weigh decide what is passed on?",
    30.0,
    each_model(NORMS_EXPERIMENT, norms.NormsSettings),
    evidence,
    page="norms/seed-{seed}/report.html",
)
