"""Interchange in the model that answers from memory: the queries, keys or values of a question about somebody else."""

from __future__ import annotations

from trisect.core.errors import StudyError
from trisect.experiments.dissect.parts.base import DissectPart, DissectStep, PartRunner, Results
from trisect.experiments.dissect.settings import DissectSettings
from trisect.experiments.patch import PATCH
from trisect.experiments.patch.settings import PatchSettings
from trisect.lab.inputs import ModelSource

PAIRS = 60


def run(asked: DissectSettings, runner: PartRunner) -> Results:
    """Patch the pretrained model of recall at every layer."""
    (recall,) = runner.results("recall")
    model = next((path for name, path in recall.paths.items() if name.startswith("pretrained")), None)
    if model is None:
        known = f"It left {', '.join(recall.paths) or 'none'}."
        raise StudyError(f"{recall.folder} has no pretrained model to patch.", known, "Delete it and run this again.")
    settings = PatchSettings(ModelSource(model), task="recall", count=PAIRS)
    return (runner.run(DissectStep(PATCH, settings, "patch")),)


PATCHING = DissectPart(
    "patch",
    "Interchange in a model that recalls",
    "Asked about one person with the queries, keys or values of a question about another: whose place is the answer?",
    20.0,
    run,
)
