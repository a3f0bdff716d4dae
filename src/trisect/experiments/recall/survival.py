"""Ablate q, k or v of a layer in recall models: which answers stay the same, letter by letter."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import polars as pl
from jaxtyping import Bool, Float

from trisect.core.subject import Parts, Shape, SiteTarget, Writer
from trisect.core.tables import NewRow
from trisect.core.trace import Address
from trisect.experiments.recall.answers import AnswerBootstrap
from trisect.experiments.recall.rows_kept import AnswerRow, Survived, SurvivedRow
from trisect.measure.ablation import put, zeros

COMPONENTS = ("q", "k", "v")
MEASURES = {"mean": "survival", "zero": "survival_zero"}
RETRIEVED, TAUGHT, WRONG, MADE_UP = GROUPS = ("retrieved", "taught", "wrong", "made up")


class EditedAnswering(Protocol):
    """What is asked here of a model that answers (hf.answers.Answerer)."""

    @property
    def shape(self) -> Shape:
        """Its layers."""
        ...

    def means(self, questions: Sequence[str], answers: Sequence[str]) -> Mapping[Address, Parts]:
        """The mean q, k and v of every layer."""
        ...

    def reproduces(
        self, questions: Sequence[str], answers: Sequence[str], write: Mapping[Address, Writer] | None = None
    ) -> Bool[np.ndarray, " N"]:
        """Whether it gives each answer again, with q, k or v replaced."""
        ...


def group_of(row: AnswerRow) -> str | None:
    """What kind of answer a row of the table `answers` is; null where nobody can say.

    'retrieved': right, of a name met in pretraining only, so that nothing but that text can have held it; 'wrong': the
    same, but another place; 'taught': right, of a name that fine-tuning asked about; 'made up': of a name met nowhere.
    """
    if row["category"] == "neither":
        return MADE_UP
    if row["correct"] is None:
        return None
    if row["category"] == "pretraining only":
        return RETRIEVED if row["correct"] else WRONG
    return TAUGHT if row["correct"] else None


def survived(answerer: EditedAnswering, answers: Iterable[AnswerRow]) -> list[Survived]:
    """Whether each answer comes out the same with q, k or v of one layer replaced, in all heads and at all positions.

    `answers` are rows of that table, of one model and seed. What is put in place is the mean over the characters of all
    these questions with their answers, or zero. A row of the result is one replacement and one kind of answer: group,
    how, stack, layer, component, and `same`, true or false by question. What the model does not give again in one pass
    without any replacement, such as an answer that never ended, is in none of them.
    """
    kinds = {row["question"]: (kind, row["answer"]) for row in answers if (kind := group_of(row))}
    asked, said = list(kinds), [answer for _, answer in kinds.values()]
    if not asked:
        return []
    again = answerer.reproduces(asked, said)
    means, rows = answerer.means(asked, said), list[Survived]()
    for address in sorted(answerer.shape.heads):
        for how, source in (("mean", means[address]), ("zero", zeros())):
            for component in COMPONENTS:
                write = {address: put([SiteTarget(address, component, None)], source)}
                same = answerer.reproduces(asked, said, write)
                for group in GROUPS:
                    of = [i for i, (kind, _) in enumerate(kinds.values()) if kind == group and again[i]]
                    if of:
                        place = (address.stack, address.layer, component)
                        rows.append(_survived(group, how, place, {asked[i]: bool(same[i]) for i in of}))
    return rows


def _survived(group: str, how: str, place: tuple[str, int, str], same: dict[str, bool]) -> Survived:
    stack, layer, component = place
    return {"group": group, "how": how, "stack": stack, "layer": layer, "component": component, "same": same}


def survival_measures(rows: Iterable[SurvivedRow], seed: int = 0) -> list[NewRow]:
    """Rows of the table `measures`: shares of answers that survive, with intervals over names, and over seeds too.

    `rows` are those of `survived`, each with its model and seed. The measure is 'survival' where the mean was put in
    place, 'survival_zero' where zero was; the subject is the model.
    """
    redrawn, found = AnswerBootstrap(seed), []
    for key, seeds in _together(rows):
        subject, group, how, stack, layer, component = key
        place = {"subject": subject, "stack": stack, "layer": layer, "component": component, "group": group}
        found.append(place | {"measure": MEASURES[how]} | redrawn.share(seeds, _share).row())
    return found


def _together(rows: Iterable[SurvivedRow]) -> Iterator[tuple[tuple[Any, ...], list[pl.DataFrame]]]:
    """The seeds of one number, each as a table of names."""
    found: dict[tuple[Any, ...], dict[int, Mapping[str, bool]]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("model", "group", "how", "stack", "layer", "component"))
        found.setdefault(key, {})[row["seed"]] = row["same"]
    for key in sorted(found):
        seeds = [found[key][seed] for seed in sorted(found[key])]
        yield key, [pl.DataFrame({"name": list(same), "same": [float(s) for s in same.values()]}) for same in seeds]


def _share(answers: pl.DataFrame, weights: Float[np.ndarray, "R N"]) -> Float[np.ndarray, " R"]:
    """The weighted share of answers that stay."""
    with np.errstate(invalid="ignore"):  # a draw in which a seed has none of its names
        return weights @ answers["same"].to_numpy() / weights.sum(1)
