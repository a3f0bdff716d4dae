"""Sources: one module each with its citation and its claims as data; every source is in SOURCES."""

from trisect.core.claim import Source
from trisect.papers import lookup, matrices, norms, profile, recall, roles, submodules, tying

SOURCES = (
    submodules.SOURCE,
    recall.SOURCE,
    norms.SOURCE,
    norms.ALIGNMENT,
    matrices.SOURCE,
    tying.SOURCE,
    profile.SOURCE,
    roles.SOURCE,
    lookup.SOURCE,
    lookup.SPEECH,
)


def source_of(key: str) -> Source:
    """The source of that key; one whose claims vary over seeds for a key that is not here."""
    return next((source for source in SOURCES if source.key == key), Source(key, "", "", "", ()))
