"""Claims of our own on models that learnt to look up in real text: what q, k and v say, and which head makes the keys."""

from __future__ import annotations

from trisect.core.claim import Claim, Part, Source, Statistic

LEAD = 1.0
WHY_LEAD = "One nat: the own answer becomes 2.7 times as likely against the base's as any other prediction."
WHY_ABOVE = "What an unrelated donor does as well is no message: only what exceeds it counts."
WHY_BEFORE = "A control: before the heads form, nothing may be found."

CLAIMS: tuple[Claim, ...] = (
    Claim(
        "G-1",
        "A query asks, a key is what a word is matched on, a value is what is passed on, in real text too.",
        "our own, on models that learnt to look up",
        tuple(
            part
            for c in "qkv"
            for part in (
                Part(
                    f"donor's {c}: shift to its own answer less the largest other",
                    Statistic(f"excess_{c}"),
                    "above",
                    LEAD,
                    "nats",
                    WHY_LEAD,
                ),
                Part(
                    f"donor's {c}: shift to its own answer less that of an unrelated donor's",
                    Statistic(f"unrelated_{c}"),
                    "above",
                    0.0,
                    "nats",
                    WHY_ABOVE,
                ),
                Part(
                    f"donor's {c} before the heads form: shift to its own answer less the largest other",
                    Statistic(f"before_{c}"),
                    "below",
                    LEAD,
                    "nats",
                    WHY_BEFORE,
                    decides=False,
                ),
            )
        ),
    ),
    Claim(
        "G-2",
        "The head that attends to the word before makes the keys, and neither the queries nor the values.",
        "our own, on models that learnt to look up",
        tuple(
            Part(
                f"previous-token head of the donor: effect through k less that through {other}",
                Statistic(f"previous_k_less_{other}"),
                "above",
                LEAD,
                "nats",
                WHY_LEAD,
            )
            for other in "qv"
        ),
    ),
)

SOURCE = Source(
    key="lookup",
    title="Models that look up in real text",
    authors="trisect",
    citation="trisect: claims of our own on models that learnt to look up in real text; their recipe was sought on some of the seeds.",
    claims=CLAIMS,
    unit="trained model",
)
