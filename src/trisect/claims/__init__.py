"""Judge the sources' claims on a study's tables; claims are listed and hashed before there are data."""

from __future__ import annotations

from trisect.claims.evidence import MARGIN, REPEATED_NATS, Check, preconditions
from trisect.claims.models import MIN_UNITS, judge_by_draws
from trisect.claims.verdicts import EPSILON, judge
from trisect.core.claim import MIN_SEEDS, REVISION, Claim, claim_data
from trisect.core.files import canonical, digest
from trisect.papers import SOURCES
from trisect.stats.significance import ALPHA

__all__ = ["CLAIMS", "REVISION", "Check", "claims_hash", "judge", "judge_by_draws", "listing", "preconditions"]

CLAIMS: dict[str, tuple[Claim, ...]] = {source.key: source.claims for source in SOURCES}


def listing(unit: str | None = None) -> list[dict[str, object]]:
    """Every part of every claim as plain data, in the order of the table `claims`: margin, reason, effect, citation.

    `effect` is the effect's own fields with its kind.

    `unit` keeps the sources whose claims vary over it: 'seed', 'text', 'name', 'sentence', 'head'; None
    keeps all.
    """
    return [
        {
            "source": source.key,
            "revision": source.revision,
            "citation": source.citation,
            "claim": claim.id,
            "claim_sentence": claim.sentence,
            "where": claim.where,
            "part": part.name,
            "sentence": part.sentence,
            "direction": part.direction,
            "bound": part.bound,
            "margin": part.margin,
            "unit": part.unit,
            "reason": part.reason,
            "decides": part.decides,
            "effect": claim_data(part.effect),
        }
        for source in SOURCES
        if unit in (None, source.unit)
        for claim in source.claims
        for part in claim.parts
    ]


def claims_hash(unit: str = "seed") -> str:
    """Sixteen hex digits of every claim, part, margin and reason that varies over `unit`, and of the rule's own numbers."""
    rule: dict[str, float] = {"alpha": ALPHA, "least_seeds": MIN_SEEDS}
    rule |= (
        {"precondition_margin": MARGIN, "epsilon": EPSILON, "noise_nats": REPEATED_NATS}
        if unit == "seed"
        else {"least": MIN_UNITS}
    )
    return digest(canonical({"rule": rule, "claims": listing(unit)}), 8)
