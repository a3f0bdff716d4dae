"""One folder an experiment; EXPERIMENTS lists them all."""

from __future__ import annotations

from typing import Any

from trisect.experiments.ablate import ABLATE
from trisect.experiments.align import ALIGN
from trisect.experiments.audit import AUDIT
from trisect.experiments.bench import BENCHMARK
from trisect.experiments.checkpoints import REWIND
from trisect.experiments.compare import Compare
from trisect.experiments.compose import COMPOSE
from trisect.experiments.dissect import DISSECT
from trisect.experiments.erase import ERASE
from trisect.experiments.explore import EXPLORE
from trisect.experiments.lookup import LookupStudy
from trisect.experiments.norms import NORMS
from trisect.experiments.patch import PATCH
from trisect.experiments.profile import PROFILE
from trisect.experiments.quantise import QUANTISE
from trisect.experiments.recall import ASK, RECALL
from trisect.experiments.similarity import SIMILARITY
from trisect.experiments.study import PLAN, STUDY
from trisect.experiments.theory import THEORY
from trisect.experiments.translate import TRANSLATE
from trisect.lab.experiment import Experiment, Utility

EXPERIMENTS: tuple[Experiment[Any, Any], ...] = (
    ABLATE,
    ALIGN,
    BENCHMARK,
    # none knows another: who lists all says what it is made of
    Compare((NORMS, SIMILARITY, ABLATE, ERASE, PROFILE, PATCH)),
    COMPOSE,
    DISSECT,
    ERASE,
    EXPLORE,
    LookupStudy(PATCH, COMPOSE),
    NORMS,
    PATCH,
    PROFILE,
    QUANTISE,
    RECALL,
    REWIND,
    SIMILARITY,
    STUDY,
    THEORY,
    TRANSLATE,
)
UTILITIES: tuple[Utility[Any], ...] = (ASK, AUDIT, PLAN)
