"""Kobayashi et al. on attention and the norms of what it weighs: four claims about one model, one on alignment.

Frequency is asked within texts and of words alone, since a mean weight is about one over the
text's length.
"""

from __future__ import annotations

from trisect.core.claim import Claim, Combination, Part, Source, Statistic

WHY_DIRECTION = "Only the direction is claimed."
WHY_SPREAD = "With norms that vary by less than a tenth, weights and weighted norms rank tokens nearly alike."
WHY_SHARE = "A twentieth of all that a layer adds up; less would not change what a chart of shares shows."
WHY_RHO = "Below 0.10 in size, a rank correlation is called none."
QUERIES = 32  # of a row of tokens, evenly spaced, whose pairs enter rank correlations of a and ‖f(x)‖
WHY_PAIRS = f"{WHY_RHO} At most {QUERIES} evenly spaced queries of a row stand for all."
WHY_NONE = "Up to 0.20 in size, a rank correlation is called weak; the source's own number is near 0."


def _difference(left: str, right: str) -> Combination:
    return Combination(((1.0, Statistic(left)), (-1.0, Statistic(right))))


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "C-1",
        "The norms of transformed vectors vary enough that weights and weighted norms differ.",
        "section 4.1",
        (
            Part(
                "standard deviation of ‖f(x)‖, mean over layers and heads",
                Statistic("cv_f"),
                "above",
                0.10,
                "of the mean",
                WHY_SPREAD,
            ),
        ),
    ),
    Claim(
        "C-2",
        "Special tokens and punctuation get large weights, but contribute little by norm.",
        "section 4.2",
        (
            Part(
                "their share by weight minus their share by norm, mean over layers",
                _difference("special_share_weight", "special_share_norm"),
                "above",
                0.05,
                "of the whole",
                WHY_SHARE,
            ),
            Part(
                "the same with a layer's norms added up head by head",
                _difference("special_share_weight", "special_share_norm_heads"),
                "above",
                0.05,
                "of the whole",
                WHY_SHARE,
                decides=False,
            ),
            Part(
                "the same for the first token that a decoder reads",
                _difference("first_share_weight", "first_share_norm"),
                "above",
                0.05,
                "of the whole",
                WHY_SHARE,
                decides=False,
            ),
        ),
    ),
    Claim(
        "C-3",
        "On [SEP], weights and norms cancel each other.",
        "section 4.2",
        (
            Part(
                "rank correlation of a and ‖f(x)‖ on [SEP], all layers and heads",
                Statistic("spearman_sep"),
                "below",
                -0.10,
                "ρ",
                WHY_PAIRS,
            ),
            Part(
                "rank correlation over layers of mean a and mean ‖f(x)‖ on [SEP]",
                Statistic("spearman_sep_layers"),
                "below",
                0.0,
                "ρ",
                WHY_DIRECTION,
            ),
        ),
    ),
    Claim(
        "C-4",
        "A token's frequency shows in the norms, not in the weights.",
        "section 4.3",
        (
            *(
                Part(
                    f"rank correlation of frequency rank and {quantity}{words}",
                    Statistic(name),
                    *bound,
                    decides=decides,
                )
                for words, end, decides in (
                    (", words alone, ranks within their text", "_within", True),
                    ("", "", False),
                    (" without special tokens", "_words", False),
                )
                for quantity, name, bound in (
                    ("‖f(x)‖", f"spearman_rank_f{end}", ("above", 0.10, "ρ", WHY_RHO)),
                    ("a", f"spearman_rank_a{end}", ("within", 0.20, "ρ", WHY_NONE)),
                )
            ),
        ),
    ),
)

SETTINGS = {"awi": "AWI: the word is the decoder's input", "awo": "AWO: the word is its output"}
DIRECTIONS = {  # of links between two parts of one text
    "forward": "forward: words of the target look at the source",
    "backward": "backward: words of the source look at the target",
    "sum": "sum: the scores of both directions added",
    "intersection": "intersection: links that both directions have",
}

ALIGNMENT_CLAIMS: tuple[Claim, ...] = (
    # translators that are trained alike are the units
    Claim(
        "C-5",
        "Word alignments from norms have a lower error rate than those from weights.",
        "section 5",
        tuple(
            Part(
                f"AER by norms less AER by weights, {where} ({words})",
                Statistic(f"{name}_{setting}"),
                "below",
                0.0,
                "AER",
                WHY_DIRECTION,
                decides=name == "aer_difference" and setting == "awi",
            )
            for name, where in (
                ("aer_difference", "mean over layers"),
                ("aer_best_difference", "the best layer of each, chosen on other pairs"),
            )
            for setting, words in SETTINGS.items()
        ),
    ),
)

TITLE = "Attention is Not Only a Weight: Analyzing Transformers with Vector Norms"
AUTHORS = "Goro Kobayashi, Tatsuki Kuribayashi, Sho Yokoi, Kentaro Inui"
CITATION = f"{AUTHORS}. {TITLE}. EMNLP 2020."

SOURCE = Source("norms", TITLE, AUTHORS, CITATION, CLAIMS, "text")
ALIGNMENT = Source("alignment", TITLE, AUTHORS, CITATION, ALIGNMENT_CLAIMS, "model")
