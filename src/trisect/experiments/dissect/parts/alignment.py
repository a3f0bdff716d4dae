"""Word alignment: translation models trained on the embedded pairs, their links by weight and by norm against gold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from trisect.core.finding import Estimate
from trisect.experiments.align import ALIGN
from trisect.experiments.align.settings import AlignSettings
from trisect.experiments.dissect.evidence import Line
from trisect.experiments.dissect.parts.base import DissectPart, DissectStep, Findings, PartRunner, Results, of
from trisect.experiments.dissect.settings import DissectSettings
from trisect.experiments.translate import TRANSLATE
from trisect.experiments.translate.settings import TranslateSettings
from trisect.lab.inputs import ModelsSource
from trisect.report import format as words
from trisect.text.generated_bitext import generated

SEEDS = (1, 2)
# the files of the embedded pairs as translate-train leaves them, seen from the folder of the dissection
SOURCE, TARGET, GOLD = (f"translation/pairs/test.{end}" for end in ("source", "target", "pharaoh"))
TRIAL = tuple(f"translation/pairs/trial.{end}" for end in ("source", "target", "pharaoh"))
# which matrices the links are by: weights are of q and k together, norms have v with them; the word is the decoder's input
COMPONENTS = {"awi weight": "q+k", "awi norm": "v"}


def begins(asked: DissectSettings) -> tuple[DissectStep, ...]:
    """The translation models."""
    settings = TranslateSettings(seeds=SEEDS, settings=asked.translation or {}, machine=asked.machine)
    return (DissectStep(TRANSLATE, settings, "translation", 0.8),)


def run(asked: DissectSettings, runner: PartRunner) -> Results:
    """Train, or go on; then align."""
    (trained,) = map(runner.run, begins(asked))
    models = ModelsSource(tuple(trained.paths.values()))
    aligned = AlignSettings(models, SOURCE, TARGET, GOLD, trial=TRIAL, bitext=generated())
    return trained, runner.run(DissectStep(ALIGN, aligned, "alignment", 0.2))


def evidence(found: Sequence[Findings]) -> Iterator[Line]:
    """How right links are: 1 − AER, so that more is better, as on other lines."""
    rates = of(found[-1], "aer")
    values = () if rates is None else tuple(_agreement(one) for one in rates.values if one.name in COMPONENTS)
    if rates is None or len(values) < len(COMPONENTS):
        return
    right = replace(
        rates,
        measure="alignment",
        unit="agreement with gold links",
        values=values,
        what="1 − AER of links by weights (q and k together) and by norms (v with them), mean over layers",
        per="pair",
        signed=False,
    )
    weight, norm = (one.mean or 0.0 for one in values)
    line = Line.of(right, "Alignment", ("C-5",), f"norms less weights {words.number(norm - weight, True)}")
    yield from () if line is None else (line,)


def _agreement(rate: Estimate) -> Estimate:
    """1 − AER, its interval turned."""
    mean, low, high = (None if end is None else 1 - end for end in (rate.mean, rate.high, rate.low))
    return Estimate(COMPONENTS[rate.name], mean, low, high, rate.n)


ALIGNMENT = DissectPart(
    "alignment",
    "Word alignment",
    "Which words does cross-attention link: those with the highest weights, or those that add the longest vectors?",
    90.0,
    run,
    evidence,
    begins,
)
