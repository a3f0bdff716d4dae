"""Sources: one module each with its citation and its claims as data; every source is in SOURCES."""

from trisect.papers import matrices, norms, profile, recall, roles, submodules, tying

SOURCES = (
    submodules.SOURCE,
    recall.SOURCE,
    norms.SOURCE,
    norms.ALIGNMENT,
    matrices.SOURCE,
    tying.SOURCE,
    profile.SOURCE,
    roles.SOURCE,
)


def unit_of(key: str) -> str:
    """What varies behind the claims of a source; 'seed' for a source that is not here."""
    return next((source.unit for source in SOURCES if source.key == key), "seed")
