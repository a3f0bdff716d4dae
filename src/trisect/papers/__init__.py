"""Sources: one module each with its citation and its claims as data; every source is in SOURCES."""

from trisect.core.claim import Source
from trisect.papers import matrices, norms, norms_revised, profile, recall, roles, submodules, submodules_revised, tying

SOURCES: tuple[Source, ...] = (
    submodules_revised.SOURCE,
    recall.SOURCE,
    norms_revised.SOURCE,
    norms_revised.ALIGNMENT,
    matrices.SOURCE,
    tying.SOURCE,
    profile.SOURCE,
    roles.SOURCE,
)
# Sources as revision 1 had them: data that it had seen are judged by it, and by today's beside it.
FIRST_REVISION: tuple[Source, ...] = (submodules.SOURCE, tying.FIRST, norms.SOURCE, norms.ALIGNMENT, matrices.FIRST)
REVISION = 2


def unit_of(key: str, revision: int | None) -> str:
    """What varies behind the claims of a source by that revision of its rules (null: 1); 'seed' for one that is not known."""
    listed = (*SOURCES, *FIRST_REVISION) if (revision or 1) > 1 else (*FIRST_REVISION, *SOURCES)
    return next((source.unit for source in listed if source.key == key), "seed")
