"""A claim of our own on worlds with planted roles: what q, k and v do where that is known."""

from __future__ import annotations

from trisect.core.claim import Claim, Part, SiteMean, Source

LAYER = 2  # the layer that reads, in every world
READS = f"q+k+v@{LAYER}"  # the site under which a study's tables hold what is of all three there
MIN_OWN, MAX_OTHER = 0.90, 0.05

WHY_OWN = "Nine of ten pairs: the component does this and, up to errors of the model itself, nothing else."
WHY_OTHER = "One of twenty pairs: what the component would do in another's role is no more than an error."


def _share(name: str, component: str, measure: str, direction: str, bound: float, reason: str) -> Part:
    effect = SiteMean(f"interchange_{measure}", (f"{component}@{LAYER}",), "valid")
    return Part(name, effect, direction, bound, "of pairs", reason)


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "F-1",
        "Queries select, keys are matched, and values are passed on.",
        "our own, on worlds with planted roles",
        (
            *(_share(f"donor's {c}: answers by {c}", c, "own", "above", MIN_OWN, WHY_OWN) for c in "qkv"),
            *(
                _share(f"donor's {c}: answers by {other}", c, f"as_{other}", "below", MAX_OTHER, WHY_OTHER)
                for c in "qkv"
                for other in "qkv"
                if other != c
            ),
        ),
    ),
)

SOURCE = Source(
    key="roles",
    title="Planted roles: what q, k and v do where it is known",
    authors="trisect",
    citation="trisect: a claim of our own on worlds with planted roles, fixed before their data.",
    claims=CLAIMS,
)
