"""Sources: one module each with its citation and its claims as data; every source is in SOURCES."""

from trisect.core.claim import Source
from trisect.papers import matrices, norms, profile, recall, roles, submodules, submodules_revised, tying

SOURCES: tuple[Source, ...] = (
    submodules_revised.SOURCE,
    recall.SOURCE,
    norms.SOURCE,
    norms.ALIGNMENT,
    matrices.SOURCE,
    tying.SOURCE,
    profile.SOURCE,
    roles.SOURCE,
)
# Claims about training as revision 1 had them: data that it had seen are judged by it, and by today's beside it.
FIRST_REVISION: tuple[Source, ...] = (submodules.SOURCE, tying.FIRST)
REVISION = 2
