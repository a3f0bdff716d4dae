"""The kinds of edits that our own language models can be trained with: one file each, and this tuple."""

from __future__ import annotations

from trisect.core.edits import register
from trisect.lm.edits.attack import AttackEdit
from trisect.lm.edits.base import FreezeEdit, IdentityEdit, NarrowEdit, TieEdit, TrainingEdit

EDITS: tuple[type[TrainingEdit], ...] = (
    AttackEdit,
    FreezeEdit,
    TieEdit,
    IdentityEdit,
    NarrowEdit,
)

register(EDITS)
