"""Ablation: what breaks when q, k or v of a layer is replaced by its mean, in every model of the training study."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trisect.core.finding import Finding
from trisect.experiments.ablate import ABLATE
from trisect.experiments.ablate.settings import AblateSettings
from trisect.experiments.dissect.evidence import Line
from trisect.experiments.dissect.parts.base import DissectPart, Findings, each_model, over_models

HOW = "mean"  # what an ablated component is replaced by
WHAT = f"change of the loss when one layer's is replaced by its {HOW}, mean over layers"


def evidence(found: Sequence[Findings]) -> Iterator[Line]:
    """The rise of the loss when a component of one layer is replaced."""
    rise = over_models(found, Finding("ablation", WHAT, "nats", what=WHAT), "mean_change")
    line = Line.of(rise, "Ablation")
    yield from () if line is None else (line,)


ABLATION = DissectPart(
    "ablation",
    "Ablation",
    "What does a trained model lose where the queries, keys or values of one layer are replaced by their mean?",
    20.0,
    each_model(ABLATE, lambda model, texts: AblateSettings(model, texts, how=HOW)),
    evidence,
    page="ablate/seed-{seed}/report.html",
)
