"""One folder an experiment; EXPERIMENTS lists them all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trisect.experiments.ablate.settings import ABLATE
from trisect.experiments.align.settings import ALIGN
from trisect.experiments.checkpoints.settings import REWIND
from trisect.experiments.compare.settings import COMPARE
from trisect.experiments.dissect.settings import DISSECT
from trisect.experiments.erase.settings import ERASE
from trisect.experiments.explore.settings import EXPLORE
from trisect.experiments.norms.settings import NORMS
from trisect.experiments.patch.settings import PATCH
from trisect.experiments.profile.settings import PROFILE
from trisect.experiments.recall.settings import ASK, RECALL
from trisect.experiments.similarity.settings import SIMILARITY
from trisect.experiments.study.settings import PLAN, STUDY
from trisect.experiments.theory.settings import THEORY
from trisect.experiments.translate.settings import TRANSLATE
from trisect.lab.experiment import Experiment, Utility

EXPERIMENTS: tuple[Experiment[Any, Any], ...] = (
    ABLATE,
    ALIGN,
    # none knows another: who lists all says what it is made of
    replace(COMPARE, of=(NORMS, SIMILARITY, ABLATE, ERASE, PROFILE, PATCH)),
    DISSECT,
    ERASE,
    EXPLORE,
    NORMS,
    PATCH,
    PROFILE,
    RECALL,
    REWIND,
    SIMILARITY,
    STUDY,
    THEORY,
    TRANSLATE,
)
UTILITIES: tuple[Utility[Any], ...] = (ASK, PLAN)
