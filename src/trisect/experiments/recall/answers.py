"""Answers of a recall: which of them a number is about, seed by seed and as arrays, and the names nearest to theirs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import polars as pl
from jaxtyping import Float

from trisect.core.tables import REAL, TEXT, WHOLE
from trisect.measure import nearest_names as near
from trisect.stats.bootstrap import DRAWS, CrossedBootstrap, CrossedEstimate

NEIGHBOURS: dict[str, type[pl.DataType]] = {
    "model": TEXT,  # null: of every model
    "seed": WHOLE,  # null: of every seed
    "match": TEXT,  # last name, representation; n-grams stand in the answers themselves
    "name": TEXT,
    "nearest": TEXT,
    "similarity": REAL,
    "place": TEXT,
}

AnswerSeeds: TypeAlias = list[pl.DataFrame]  # one model's answers, a table for each of its seeds
NameWeights: TypeAlias = Float[np.ndarray, "R N"]  # how often each answer counts in every draw of names
# a seed's answers and their weights in every draw -> numbers [R] or [R C]
OfAnswers: TypeAlias = Callable[[pl.DataFrame, NameWeights], Float[np.ndarray, "R ..."]]


class AnswerBootstrap:
    """Numbers of tables of answers in draws of their names, crossed with draws of seeds (stats.CrossedBootstrap)."""

    def __init__(self, seed: int = 0, draws: int = DRAWS) -> None:
        self.seed = seed
        self._crossed = CrossedBootstrap(seed, draws)

    def __call__(self, seeds: Sequence[pl.DataFrame], of: OfAnswers) -> CrossedEstimate:
        """`of` each seed's answers, on all of them and in every draw of their names."""
        return self._crossed(_names(seeds), lambda seed, weights: of(seeds[seed], weights))

    def share(self, seeds: Sequence[pl.DataFrame], of: OfAnswers, stream: int = 0) -> CrossedEstimate:
        """The same for one share of the names; shares that are compared need a `stream` each."""
        return self._crossed.share(_names(seeds), lambda seed, weights: of(seeds[seed], weights), stream)


def _names(seeds: Sequence[pl.DataFrame]) -> list[list[str]]:
    return [answers["name"].to_list() for answers in seeds]


def neighbours(
    asked: Sequence[str],
    known: Mapping[str, str],
    vectors: Mapping[str, Float[np.ndarray, " D"]] | None = None,
    model: str | None = None,
    seed: int | None = None,
) -> pl.DataFrame:
    """For every name asked about the nearest of the `known` names, with the place that this has, by every kind of match.

    `vectors` are a model's own of all these names; without them that kind is left out, and `model` and `seed` may stay null.
    Columns are those of NEIGHBOURS; a name without a neighbour of a kind has no row.
    """
    there = list(known)
    kinds = {
        "n-grams": near.nearest_by_characters(asked, there),
        "last name": near.nearest_with_same_last_name(asked, there),
    }
    if vectors is not None and len(asked) and there:
        ours, theirs = (np.stack([vectors[name] for name in some]) for some in (asked, there))
        kinds["representation"] = near.nearest_by_vectors(ours, theirs, asked, there)
    rows = [
        (model, seed, kind, name, there[i], float(similarity), known[there[i]])
        for kind, found in kinds.items()
        for name, i, similarity in zip(asked, found.nearest[:, 0].tolist(), found.similarity[:, 0], strict=True)
        if i >= 0
    ]
    return pl.DataFrame(rows, schema=NEIGHBOURS, orient="row")


def asked_of(answers: pl.DataFrame) -> str:
    """The model that is asked what it retrieved and what it guessed: the one that some names were left out for."""
    return "left-out" if "left-out" in answers["model"] else "pretrained"


def commonest_place(answers: pl.DataFrame) -> str | None:
    """The place that the questions of fine-tuning have oftenest for their answer; null without such questions."""
    train = answers.filter((pl.col("split") == "train") & pl.col("gold").is_not_null())
    if train.is_empty():
        return None
    model, seed = train.select("model", "seed").sort("model", "seed").row(0)
    one = train.filter((pl.col("model") == model) & (pl.col("seed") == seed))
    return one.group_by("gold").len().sort(["len", "gold"], descending=[True, False])["gold"][0]


def count_names(seeds: AnswerSeeds) -> int:
    """How many names the answers are about."""
    return pl.concat(seeds)["name"].n_unique()


def unseen(mine: pl.DataFrame, kind: str, nearest: pl.DataFrame | None) -> AnswerSeeds:
    """Answers about names that the model met nowhere and that have a neighbour of the kind, with its place: `neighbour`."""
    # an invented name may be somebody of the text after all
    rows = mine.filter(pl.col("category") == "neither").unique(["seed", "name"], keep="first", maintain_order=True)
    if kind == "n-grams":
        return by_seed(rows.with_columns(neighbour=pl.col("nearest_place")).drop_nulls("neighbour"))
    if nearest is None or mine.is_empty():
        return []
    own = nearest.filter(
        (pl.col("match") == kind) & (pl.col("model").is_null() | (pl.col("model") == mine["model"][0]))
    )
    found = []
    for seed in by_seed(rows):
        these = own.filter(pl.col("seed").is_null() | (pl.col("seed") == seed["seed"][0])).unique("name", keep="first")
        found.append(seed.join(these.select("name", neighbour="place"), on="name", how="inner").drop_nulls("neighbour"))
    return [seed for seed in found if len(seed)]


def valid(mine: pl.DataFrame) -> AnswerSeeds:
    """Answers to the valid questions whose place is known."""
    return by_seed(mine.filter(pl.col("split") == "valid").drop_nulls("correct"))


def held_out(mine: pl.DataFrame) -> pl.DataFrame:
    """The answers that thresholds are set on: to valid questions whose place is known, about names that the model met.

    A model that met none of these names has the answers to all of them.
    """
    known = mine.filter(pl.col("split") == "valid").drop_nulls("correct")
    met = known.filter(pl.col("category") != "neither")
    return known if met.is_empty() else met


def by_seed(answers: pl.DataFrame) -> AnswerSeeds:
    """The answers of every seed in a fixed order."""
    return [answers.filter(pl.col("seed") == seed).sort("split", "question") for seed in sorted(set(answers["seed"]))]


def right(answers: pl.DataFrame) -> np.ndarray:
    """Whether each answer is the gold place."""
    return answers["correct"].to_numpy().astype(bool)


def probability(answers: pl.DataFrame) -> Float[np.ndarray, " N"]:
    """The probability of each whole answer."""
    return np.exp(np.minimum(answers["log_probability"].to_numpy(), 0.0))


def sureness(answers: pl.DataFrame, score: str) -> Float[np.ndarray, " N"]:
    """A score that is high where the model is sure."""
    found = answers["log_probability" if score == "probability" else score].to_numpy()
    return -found if score == "entropy" else found
