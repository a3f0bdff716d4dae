"""Preconditions of any verdict: the baseline beats word frequencies, and attention is in use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from trisect.claims.evidence import Evidence, gather
from trisect.stats.paired import summary, t_interval
from trisect.stats.tested import number

MARGIN = 0.02


@dataclass(frozen=True)
class Check:
    """One check: mean effect over seeds in nats, its 95 % interval, and whether every seed exceeds the margin.

    `sentence` says what is required and in which seeds it was not found; `diverged` are seeds whose baseline diverged.
    """

    name: str
    sentence: str
    effect: float | None
    low: float | None
    high: float | None
    margin: float
    ok: bool
    n: int
    diverged: tuple[int, ...] = ()


def preconditions(tables: Mapping[str, pl.DataFrame]) -> tuple[Check, ...]:
    """Both checks on the validation split; one that was not measured in every seed is not ok."""
    return checks(gather(tables))


def checks(evidence: Evidence) -> tuple[Check, ...]:
    """Both checks from evidence that is already gathered."""
    return (
        _check(
            evidence,
            "the baseline beats the unigram loss",
            "Required: in every seed the baseline's final validation loss is below that of the train split's word "
            "frequencies.",
            None,
            "unigram_loss_nats",
            0.0,
        ),
        _check(
            evidence,
            "attention is in use",
            f"Required: in every seed, letting each position see only itself costs the baseline more than {MARGIN:g} nats "
            "on validation.",
            "attn@all",
            "self_only_loss_nats",
            MARGIN,
        ),
    )


def _check(evidence: Evidence, name: str, required: str, site: str | None, measure: str, margin: float) -> Check:
    """Whether that loss is above the baseline's final validation loss by more than the margin, in every seed.

    A baseline that diverged is no model to ask about, so its seed fails whatever its losses are.
    """
    gains = {
        seed: loss - base.curves["valid"][-1]
        for seed in evidence.seeds
        if (base := evidence.baseline(seed)) is not None
        and "valid" in base.curves
        and (loss := evidence.measured(seed, site, measure, "valid")) is not None
    }
    diverged = tuple(s for s in evidence.seeds if (base := evidence.baseline(s)) is not None and base.diverged)
    short = tuple(seed for seed, gain in gains.items() if not gain > margin and seed not in diverged)
    missing = tuple(seed for seed in evidence.seeds if seed not in gains and seed not in diverged)
    found = [
        f"{words} {_named(seeds)}."
        for words, seeds in (("The baseline diverged in", diverged), ("Not so in", short), ("Not measured in", missing))
        if seeds
    ]
    ok = bool(evidence.seeds) and not found
    sentence = " ".join([required, *(found or (["Found so in every seed."] if ok else ["Not measured."]))])
    sample = summary(list(gains.values()))
    low, high = (number(x) for x in t_interval(sample))
    return Check(name, sentence, number(sample.mean), low, high, margin, ok, len(gains), diverged)


def _named(seeds: Sequence[int]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
