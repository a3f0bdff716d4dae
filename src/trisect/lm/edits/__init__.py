"""The kinds of edits that our own language models can be trained with: one file each, and this tuple."""

from __future__ import annotations

from trisect.core.edits import register
from trisect.lm.edits.attack import AttackEdit
from trisect.lm.edits.base import TrainingEdit
from trisect.lm.edits.freeze import FreezeEdit
from trisect.lm.edits.identity import IdentityEdit
from trisect.lm.edits.narrow import NarrowEdit
from trisect.lm.edits.tie import TieEdit

EDITS: tuple[type[TrainingEdit], ...] = (
    AttackEdit,
    FreezeEdit,
    TieEdit,
    IdentityEdit,
    NarrowEdit,
)

register(EDITS)
