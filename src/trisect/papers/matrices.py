"""Why a head has three matrices and not one: the citation, and two claims about one model's heads."""

from __future__ import annotations

from trisect.core.claim import Claim, Part, Source, Statistic

MARGIN = 0.05

WHY_OVERLAP = "A twentieth of a head's dimensions: random matrices share some, and fewer more than they would not be called alike."
WHY_SHARE = (
    "At 0.95 a twentieth of the score's squared size is antisymmetric; with less, it is a similarity for most purposes."
)
WHY_FIRST = "Were the own key first for half of the queries, a token would look for what is most like itself."

_BOUND = ("below", MARGIN, "of the head's dimensions", WHY_OVERLAP)

CLAIMS: tuple[Claim, ...] = (
    Claim(
        "D-1",
        "The three matrices of a head are different: what two of them read of the input overlaps no more than random "
        "matrices do.",
        "the question's last paragraph",
        tuple(
            Part(f"overlap of {pair} less {null_name}", Statistic(f"overlap_{name}_{pair}"), *_BOUND, decides=decides)
            # the other heads of the layer read one anisotropic input: shown, not decisive
            for null_name, name, decides in (
                ("that of random matrices, the largest of all heads", "excess", True),
                ("that with the other heads of its layer, mean over heads", "among", False),
            )
            for pair in ("q-k", "k-v", "q-v")
        ),
    ),
    Claim(
        "D-3",
        "The score of two words is only sometimes a symmetric similarity.",
        "the question's third paragraph, and its first answer",
        (
            Part(
                "symmetric share of W_Q W_Kᵀ, mean over heads",
                Statistic("symmetric_share"),
                "below",
                1 - MARGIN,
                "of the squared size",
                WHY_SHARE,
            ),
            Part(
                "share of queries whose own key scores highest, mean over heads",
                Statistic("self_first_share"),
                "below",
                0.5,
                "of the queries",
                WHY_FIRST,
            ),
        ),
    ),
)

SOURCE = Source(
    key="matrices",
    title="Why are the query, key and value matrices of an attention head not the same?",
    authors="Hans-Peter Stricker",
    citation="Hans-Peter Stricker. Why are the query, key and value matrices of an attention head not the same? "
    "A question with two answers, one by Luca Anzalone, on a question-and-answer site.",
    claims=CLAIMS,
    unit="head",
)
