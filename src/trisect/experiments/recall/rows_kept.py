"""Rows that a recall model leaves in its file of answers, and its card: what `trisect ask` needs to know of it."""

from __future__ import annotations

from typing import NotRequired

from typing_extensions import TypedDict


class AnswerRow(TypedDict):
    """One question with the model's answer, as a row of the table `answers`; `gold` and `correct` are null where nobody knows."""

    model: str
    seed: int
    name: str
    split: str
    category: str
    question: str
    gold: str | None
    answer: str
    correct: bool | None
    log_probability: float
    mean_log_probability: float
    entropy: float
    margin: float
    known_place: bool
    place_count: int
    nearest: str | None
    nearest_place: str | None


class NeighbourRow(TypedDict):
    """The known name that is nearest to one that the model met nowhere, and its place."""

    model: str | None
    seed: int | None
    match: str
    name: str
    nearest: str | None
    similarity: float | None
    place: str | None


class Survived(TypedDict):
    """One replacement and one kind of answer: by question, whether the answer stays the same."""

    group: str
    how: str
    stack: str
    layer: int
    component: str
    same: dict[str, bool]


class SurvivedRow(Survived):
    """The same with the model and the seed that it is of."""

    model: str
    seed: int


class AnswersData(TypedDict):
    """What a model's file of answers holds."""

    answers: list[AnswerRow]
    nearest: list[NeighbourRow]
    survival: list[Survived]


class ThresholdData(TypedDict):
    """From which probability on a model answers, so that at most the share `risk` of its answers is wrong."""

    risk: float
    threshold: float | None
    coverage: float
    n: int


class CardData(TypedDict):
    """A model's card; of each name whether it stood in pretraining, in fine-tuning, and its place where that is known."""

    names: dict[str, tuple[bool, bool, str | None]]
    thresholds: list[ThresholdData]
    question: NotRequired[str]
