"""The parts of a dissection: one file each, and this tuple, in the order in which they are run and shown."""

from __future__ import annotations

from trisect.experiments.dissect.parts.ablation import ABLATION
from trisect.experiments.dissect.parts.alignment import ALIGNMENT
from trisect.experiments.dissect.parts.base import DissectPart
from trisect.experiments.dissect.parts.by_hand import BY_HAND
from trisect.experiments.dissect.parts.norms import NORMS
from trisect.experiments.dissect.parts.patching import PATCHING
from trisect.experiments.dissect.parts.planted import PLANTED
from trisect.experiments.dissect.parts.profiles import PROFILES
from trisect.experiments.dissect.parts.recall import RECALL
from trisect.experiments.dissect.parts.similarity import SIMILARITY
from trisect.experiments.dissect.parts.training import TRAINING

PARTS: tuple[DissectPart, ...] = (
    PLANTED,
    TRAINING,
    PROFILES,
    RECALL,
    PATCHING,
    BY_HAND,
    ALIGNMENT,
    NORMS,
    SIMILARITY,
    ABLATION,
)
