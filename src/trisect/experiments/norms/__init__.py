"""Norm-based analysis of attention beside its weights."""

from __future__ import annotations

from trisect.experiments.norms.settings import NormsFacts, NormsSettings
from trisect.lab.experiment import Experiment, LayerMeasure, Measured, PageModule, RunContext


class Norms(Experiment[NormsSettings, NormsFacts]):
    """Measure where attention takes its information from: by vector norms beside weights (Kobayashi et al., 2020 and 2021).

    \b
    trisect norms study --corpus embedded --out norms
    """

    name = "norms"
    settings = NormsSettings
    facts = NormsFacts
    source = "norms"
    out = "norms-{model}"
    record = "norms.json"
    by_layer = (
        LayerMeasure("cv_a", "variation over tokens", "std / mean", "q+k", signed=False, finding="dispersion"),
        LayerMeasure("cv_f", "variation over tokens", "std / mean", "v", signed=False, finding="dispersion"),
        LayerMeasure("mean_f", "mean length ‖f(x)‖", "norm of f(x)", "v", signed=False),
        LayerMeasure("mixing_ratio", "mixing ratio", "share", signed=False),
    )

    def measure(self, settings: NormsSettings, context: RunContext) -> Measured[NormsFacts]:
        """Do the work; raises TrisectError."""
        from trisect.experiments.norms.run import measure

        return measure(settings, context)

    def page_module(self) -> PageModule[NormsFacts]:
        """Findings and page."""
        from trisect.experiments.norms import page

        return page


NORMS = Norms()
