"""Recall's numbers: the tables of a recall as its page asks for them, by model, category and seed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import polars as pl

from trisect.core.tables import SCHEMAS, frame
from trisect.report.measures import MeasuredValue, Measures

V = TypeVar("V")
MODELS = {
    "plain": "fine-tuned only",
    "pretrained": "pretrained, then fine-tuned",
    "left-out": "pretrained without some names, then fine-tuned",
}
SHORT = {"plain": "fine-tuned only", "pretrained": "pretrained", "left-out": "names left out"}
BASELINE = "baseline"
CATEGORIES = ("pretraining and fine-tuning", "pretraining only", "fine-tuning only", "neither")
UNSEEN = "neither"
STAGES = ("pretraining", "fine-tuning")
SCORES = {
    "probability": "probability of the answer",
    "mean_log_probability": "mean log-probability of a character",
    "entropy": "entropy of the next character (low first)",
    "margin": "smallest margin over the runner-up",
}


class RecallCurve(NamedTuple):
    """A loss by epoch of one training: of which model, in which stage, with which seed, on which split."""

    model: str
    stage: str
    seed: int
    split: str
    name: str
    epochs: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class RecallNumbers:
    """The tables answers, measures, metrics and claims."""

    answers: pl.DataFrame
    measures: Measures
    metrics: pl.DataFrame
    claims: pl.DataFrame

    @classmethod
    def of(cls, tables: Mapping[str, pl.DataFrame]) -> RecallNumbers:
        """Take the tables; a missing one is an empty one, and numbers that are none are left out."""
        known = {n: tables[n] if n in tables else frame(n, ()) for n in ("answers", "measures", "metrics", "claims")}
        metrics = known["metrics"].filter(pl.col("value").is_not_null() & pl.col("value").is_finite())
        measures = Measures.of(known["measures"].sort(list(SCHEMAS["measures"]), nulls_last=True))
        return cls(known["answers"], measures, metrics, known["claims"])

    @property
    def models(self) -> list[str]:
        """The models that answered, without pretraining first; those of the measures where answers are not at hand."""
        measured = set(filter(None, self.measures.distinct("subject"))) - {BASELINE}
        found = set(self.answers["model"].to_list()) or measured
        return [*(m for m in MODELS if m in found), *sorted(found - set(MODELS))]

    @property
    def deep(self) -> str | None:
        """The model that what it retrieved is asked of: the one with names left out, else the pretrained one."""
        return next((m for m in ("left-out", "pretrained") if m in self.models), None)

    @property
    def commonest(self) -> str | None:
        """The place that the questions of fine-tuning have oftenest; the first of the alphabet where several do."""
        asked = self.answers.filter(pl.col("split") == "train").drop_nulls("gold")
        if asked.is_empty():
            return None
        one = asked.filter((pl.col("model") == asked["model"][0]) & (pl.col("seed") == asked["seed"][0]))
        return min(Counter(one["gold"].to_list()).items(), key=lambda pair: (-pair[1], pair[0]))[0]

    @property
    def seeds(self) -> list[int]:
        """Every seed."""
        return sorted(set(self.answers["seed"].to_list()) or {curve.seed for curve in self.curves()})

    def number(self, measure: str, model: str, group: str | None = None) -> MeasuredValue | None:
        """One number of a model."""
        return next(iter(self.measures.where(measure, subject=model, group=group)), None)

    def of_model(self, model: str, *splits: str) -> pl.DataFrame:
        """A model's answers on the splits, or on all."""
        kept = pl.col("model") == model
        return self.answers.filter(kept & pl.col("split").is_in(splits) if splits else kept)

    def shares(self, model: str, category: str | None = None) -> list[tuple[int, float]]:
        """Every seed's share of right answers to the valid questions, or to the questions about names of a category."""
        found = self.of_model(model, "valid") if category is None else self.of_model(model)
        found = found if category is None else found.filter(pl.col("category") == category)
        known = found.drop_nulls("correct").group_by("seed").agg(pl.col("correct").mean().alias("share"))
        return [(seed, share) for seed, share in known.sort("seed").select("seed", "share").iter_rows()]

    def curves(self) -> list[RecallCurve]:
        """Every loss or accuracy by epoch; a run is spelt MODEL/STAGE/SEED."""
        found = []
        for key, rows in self.metrics.sort("run", "split", "name", "epoch").group_by(
            "run", "split", "name", maintain_order=True
        ):
            run, split, name = map(str, key)
            model, _, rest = run.partition("/")
            stage, _, seed = rest.partition("/")
            if stage in STAGES and seed.isdigit():
                epochs, values = tuple(rows["epoch"].to_list()), tuple(rows["value"].to_list())
                found.append(RecallCurve(model, stage, int(seed), split, name, epochs, values))
        rank = list(MODELS)
        return sorted(found, key=lambda c: (rank.index(c.model) if c.model in rank else len(rank), c.seed))


def probabilities(answers: pl.DataFrame) -> list[float]:
    """The probability of every answer, from the sum of its log-probabilities, lowest first."""
    return sorted(math.exp(min(0.0, v)) for v in answers["log_probability"].to_list())


def thin(values: Sequence[V], most: int = 200) -> list[V]:
    """At most so many of the values, evenly spaced, the first and the last among them."""
    if len(values) <= most:
        return list(values)
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]


def cumulative(values: Sequence[float]) -> list[tuple[float, float]]:
    """Points (value, share of values up to it) of sorted values, from a share of 0."""
    shares = [(v, (i + 1) / len(values)) for i, v in enumerate(values)]
    return [(values[0], 0.0), *thin(shares)]


def roc(scores: Sequence[float], correct: Sequence[bool]) -> list[tuple[float, float]]:
    """Points (share of wrong answers, share of right answers) that score at least so high, the highest first.

    Scores that are equal are taken together. Empty where all are right or all wrong.
    """
    right, wrong = sum(correct), len(correct) - sum(correct)
    if not right or not wrong:
        return []
    points, above = [(0.0, 0.0)], [0, 0]
    ordered = sorted(zip(scores, correct, strict=True), key=lambda pair: -pair[0])
    for i, (score, is_right) in enumerate(ordered):
        above[is_right] += 1
        if i + 1 == len(ordered) or ordered[i + 1][0] != score:
            points.append((above[0] / wrong, above[1] / right))
    return thin(points)


def scored(answers: pl.DataFrame, score: str) -> tuple[list[float], list[bool]]:
    """A score of every answer with a gold place, high for sure, and whether the answer is right."""
    known = answers.drop_nulls("correct")
    column = known["log_probability" if score == "probability" else score].to_list()
    return [-v if score == "entropy" else v for v in column], known["correct"].to_list()
