"""Sources: one module each with its citation and its claims as data; every source is in SOURCES."""

from trisect.core.claim import Source
from trisect.papers import matrices, norms, profile, recall, roles, submodules, tying

SOURCES: tuple[Source, ...] = (
    submodules.SOURCE,
    recall.SOURCE,
    norms.SOURCE,
    norms.ALIGNMENT,
    matrices.SOURCE,
    tying.SOURCE,
    profile.SOURCE,
    roles.SOURCE,
)
