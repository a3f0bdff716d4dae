"""Claims of CS 224N's assignment 5 on what pretraining adds, and its citation."""

from __future__ import annotations

from trisect.core.claim import Claim, Combination, Part, Source, Statistic

ACCURACY_BOUND = 0.10
GAIN_BOUND = 0.02
AUROC_MARGIN = 0.10
SCORES = {
    "probability": "the answer's probability",
    "mean_log_probability": "the mean log-probability of its characters",
    "entropy": "the mean entropy of its characters, low first",
    "margin": "its smallest margin over the runner-up",
}
MATCHES = {
    "n-grams": "character n-grams",
    "last name": "the last name, and character n-grams among those that share it",
    "representation": "the model's own representation",
}

WHY_BAR = "The source's own bar."
WHY_LEAD = "Ten of 500 questions: a smaller gain over always giving one answer is not counted."
WHY_CHANCE = "Shown a right and a wrong answer, one would pick the right one in fewer than three of five cases."
WHY_DIRECTION = "Only the direction is claimed."

_QUESTIONS = "of the questions"
_AUROC = "AUROC from one half"

CLAIMS: tuple[Claim, ...] = (
    Claim(
        "B-1",
        "Pretraining lets a model answer questions about people whom fine-tuning never mentioned.",
        "question 3 (a)",
        (
            Part(
                "accuracy without pretraining",
                Statistic("accuracy_plain"),
                "below",
                ACCURACY_BOUND,
                _QUESTIONS,
                WHY_BAR,
            ),
            Part(
                "accuracy without pretraining less that of always answering the commonest place",
                Combination(((1.0, Statistic("plain_alone_right")), (-1.0, Statistic("baseline_alone_right")))),
                "below",
                GAIN_BOUND,
                _QUESTIONS,
                WHY_LEAD,
            ),
            Part(
                "accuracy with pretraining",
                Statistic("accuracy_pretrained"),
                "above",
                ACCURACY_BOUND,
                _QUESTIONS,
                WHY_BAR,
            ),
        ),
    ),
    Claim(
        "B-2",
        "From the answer alone one cannot tell whether it was retrieved or made up.",
        "question 3 (b)",
        (
            Part(
                "right against wrong answers by a logistic regression on their length, their place's frequency and whether it "
                "is known",
                Statistic("auroc_answer_string_excess"),
                "within",
                AUROC_MARGIN,
                _AUROC,
                WHY_CHANCE,
            ),
        ),
    ),
    Claim(
        "B-3",
        "The model's confidence in an answer does not tell either whether it was retrieved or made up.",
        "answer to question 3 (b), points 1 and 2",
        tuple(
            Part(
                f"right against wrong answers by {words}",
                Statistic(f"auroc_{score}_excess"),
                "within",
                AUROC_MARGIN,
                _AUROC,
                WHY_CHANCE,
                decides=score == "probability",
            )
            for score, words in SCORES.items()
        ),
    ),
    Claim(
        "B-4",
        "Asked about a name that it never saw, a model gives the answer of the most similar known name.",
        "answer to question 3 (c)",
        tuple(
            Part(
                f"answers that are the nearest known name's place, by {words}, beyond random pairing",
                Statistic(f"match_excess_{match}"),
                "above",
                0.0,
                "of the names",
                WHY_DIRECTION,
                decides=match == "n-grams",
            )
            for match, words in MATCHES.items()
        ),
    ),
)

SOURCE = Source(
    key="recall",
    title="CS 224N, assignment 5: Self-Attention, Transformers, and Pretraining",
    authors="Course staff of CS 224N, Stanford University",
    citation="Stanford University, CS 224N: Natural Language Processing with Deep Learning. Assignment 5: Self-Attention, "
    "Transformers, and Pretraining, question 3, with the answers of a solution.",
    claims=CLAIMS,
    unit="name",
    needs="seed",
)
