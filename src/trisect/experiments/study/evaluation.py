"""What the file of an evaluation of a trained run holds: rows of the table `sites`, or a curve for each split."""

from __future__ import annotations

from typing import NotRequired

from typing_extensions import TypedDict

from trisect.core.json_text import Json


class CurveData(TypedDict):
    """Loss and accuracy of one split over n tokens at every place of a curve; what is not finite is missing."""

    at: list[float]
    loss_nats: list[float | None]
    accuracy: list[float | None]
    n: int
    check_nats: NotRequired[float]
    rise_low_nats: NotRequired[list[float | None]]
    rise_high_nats: NotRequired[list[float | None]]
    area_low: NotRequired[float | None]
    area_high: NotRequired[float | None]
    evaluations: NotRequired[int]  # of each split in files from before the two were evaluated together
    nodes: NotRequired[int]


class EvaluationData(TypedDict, total=False):
    """One evaluation: `rows` where it has them, else a curve for each split. Files from before hold no kind and no site."""

    kind: str
    site: str
    label: str
    wall_seconds: float
    diverged: bool
    rows: list[dict[str, Json]]
    train: CurveData
    valid: CurveData
    unigram: dict[str, float]
    check_nats: float
    evaluations: int
    nodes: int
