"""Rules of revision 2 (science A4, A8): runs whose attack stopped all learning, and measures that have to be off their floor."""

from __future__ import annotations

from collections.abc import Iterable

from trisect.claims.evidence import Evidence
from trisect.core.claim import (
    Claim,
    Combination,
    CurveDistance,
    Leaf,
    LearnedFraction,
    LossChange,
    Part,
    RewindChange,
    RewindRise,
    SiteMean,
)

AT_FLOOR = "measure at its floor"
FLOOR_UNKNOWN = "whether the measure is off its floor was not measured in this study"
LEARNED_NATS = 0.05  # how far below the unigram loss a run has to come to have learned anything
MARGIN_NATS = 0.02
REPEATED_NATS = 0.005  # the spread of one baseline trained twice, as seen between two fleets


def collapsed_runs(evidence: Evidence) -> frozenset[str]:
    """Edited runs whose validation loss never falls LEARNED_NATS below the unigram loss (science A4, collapse)."""
    return frozenset(
        run.run
        for key, run in evidence.trained.items()
        if key.edit != "none"
        and "valid" in run.curves
        and (words := evidence.measured(key.seed, None, "unigram_loss_nats", "valid")) is not None
        and not run.curves["valid"].min() <= words - LEARNED_NATS
    )


def reads_collapsed(part: Part, collapsed: frozenset[str]) -> bool:
    """Whether a part contrasts attacked components, labels or layers, and some of the runs behind it collapsed."""
    attacks = [leaf for leaf in part.leaves() if is_attack(leaf)]
    contrast = isinstance(part.effect, (Combination, CurveDistance))
    return bool(collapsed and attacks and contrast)


def off_floor(claim: Claim, evidence: Evidence) -> str | None:
    """Why a claim's measure cannot be read, or null where some site of it moves the loss at full dose (science A8).

    Full dose is rewinding to α = 0 or mean ablation, train loss, mean over seeds; it has to exceed the margin of 0.02 nats
    and three times the spread of a baseline that is trained twice.
    """
    sites = {site for part in claim.deciding() for leaf in part.leaves() for site in _sites(leaf)}
    found = [move for site in sites for move in _moves(site, evidence)]
    if not found:
        return FLOOR_UNKNOWN
    return None if max(found) > max(MARGIN_NATS, 3 * REPEATED_NATS) else AT_FLOOR


def _moves(site: str, evidence: Evidence) -> Iterable[float]:
    """How far a site at full dose moves the train loss, mean over the seeds that have it, by each way that was measured."""
    rewound, ablated = [], []
    for seed in evidence.seeds:
        base = evidence.baseline(seed)
        loss = evidence.measured(seed, site, "rewind_loss_nats", "train", 0.0)
        if loss is not None and base is not None and "train" in base.curves:
            rewound.append(loss - base.curves["train"][-1])
        if (rise := evidence.measured(seed, site, "ablate_rise_nats", "train")) is not None:
            ablated.append(rise)
    return [abs(float(sum(values) / len(values))) for values in (rewound, ablated) if values]


def is_attack(leaf: Leaf) -> bool:
    """Whether an effect is read from attacked runs."""
    return isinstance(leaf, (LearnedFraction, CurveDistance)) or (
        isinstance(leaf, LossChange) and leaf.edit == "attack"
    )


def _sites(leaf: Leaf) -> tuple[str, ...]:
    return leaf.sites if isinstance(leaf, (LossChange, SiteMean, RewindRise, RewindChange)) else ()
