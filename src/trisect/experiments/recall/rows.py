"""Rows of a recall: the table of answers into rows of the table `measures`, and into verdicts on the source's claims."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import polars as pl
from jaxtyping import Float

from trisect.claims import judge_sampled
from trisect.claims.sampled import Drawn
from trisect.core.tables import REAL, NewRow
from trisect.experiments.recall import answers as picked
from trisect.experiments.recall.answers import AnswerBootstrap, NameWeights
from trisect.measure import nearest_names as near
from trisect.measure import recall
from trisect.papers.recall import MATCHES, SCORES, SOURCE
from trisect.stats.bootstrap import CrossedEstimate
from trisect.stats.null import permutation_p
from trisect.stats.shares import jeffreys

RISKS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7)
DRAWS = 10_000  # where few seeds leave few degrees of freedom, the tails of fewer draws end too early
COVERAGES = tuple(i / 20 for i in range(1, 21))


def measure_rows(
    answers: pl.DataFrame, nearest: pl.DataFrame | None = None, seed: int = 0, draws: int = DRAWS
) -> list[NewRow]:
    """Every row of `measures` that the table `answers` gives; `nearest` holds the neighbours of other kinds than n-grams.

    Rows without a group are of the valid questions. The subject is the model, or 'baseline' for always answering the
    fine-tuning text's commonest place. Intervals are over names, and over seeds where there are several.

    accuracy, mean_probability (also by category), probability_excess, ece; auroc_SCORE, auroc_answer_string, aurc;
    reliability (group 'bin 1' and on, `at` the mean probability in the bin); risk (`at` a coverage); threshold and
    threshold_coverage (`at` a risk); match, match_expected, match_excess, match_p (group: the kind of match; of names that
    the model met nowhere). Thresholds are set on answers.held_out. ece, aurc and risk have no interval where no
    answer is right or none is wrong: draws of such answers are all alike, which is no certainty.
    """
    redrawn, rows = AnswerBootstrap(seed, draws), []
    for model in sorted(set(answers["model"])):
        mine = answers.filter(pl.col("model") == model)
        for part in (_accuracies, _calibration, _discrimination, _abstaining):
            rows += [{"subject": model} | row for row in part(mine, redrawn)]
        rows += [{"subject": model} | row for row in _matches(mine, nearest, redrawn)]
    found = _baseline(answers, redrawn)
    if found is not None:
        rows.append({"subject": "baseline", "measure": "accuracy"} | found.row())
    return [{"stack": "plain"} | row for row in rows]


def judge(
    answers: pl.DataFrame,
    about: Mapping[str, object],
    nearest: pl.DataFrame | None = None,
    seed: int = 0,
    draws: int = DRAWS,
) -> pl.DataFrame:
    """The table `claims`: B-1 to B-4 on the answers (claims.sampled), names being resampled, and seeds across them.

    B-2 to B-4 are about the model 'left-out', or 'pretrained' where there is none. `about` names the models and texts.
    """
    redrawn, found = AnswerBootstrap(seed, draws), dict[str, CrossedEstimate]()
    for model in ("plain", "pretrained"):
        if seeds := picked.valid(answers.filter(pl.col("model") == model)):
            found[f"accuracy_{model}"] = redrawn.share(seeds, _accuracy)
    found |= _lead(answers, redrawn)
    mine = answers.filter(pl.col("model") == picked.asked_of(answers))
    for row, one in _separations(mine, redrawn):
        found[f"{row['measure']}_excess"] = one.minus(0.5)
    for kind in MATCHES:
        if seeds := picked.unseen(mine, kind, nearest):
            found[f"match_excess_{kind}"] = redrawn(seeds, _follows).at(2)
    values = {name: float(one.value) for name, one in found.items()}
    each = {name: Drawn(one.units, int(one.groups), SOURCE.unit, one.seeds) for name, one in found.items()}
    return judge_sampled(SOURCE, {name: one.draws for name, one in found.items()}, values, 0, about, each=each)


def _lead(answers: pl.DataFrame, redrawn: AnswerBootstrap) -> dict[str, CrossedEstimate]:
    """Where only one of the plain model and the commonest place is right: the difference of the two is that of accuracies.

    Apart, neither is taken for certain where it never happens.
    """
    place, plain = picked.commonest_place(answers), answers.filter(pl.col("model") == "plain")
    if place is None or not picked.valid(plain):
        return {}
    alone = {
        "plain_alone_right": pl.col("correct") & (pl.col("gold") != place),
        "baseline_alone_right": ~pl.col("correct") & (pl.col("gold") == place),
    }
    return {
        name: redrawn.share(picked.valid(plain.with_columns(correct=which)), _accuracy, stream)
        for stream, (name, which) in enumerate(alone.items(), 1)
    }


def _baseline(answers: pl.DataFrame, redrawn: AnswerBootstrap) -> CrossedEstimate | None:
    """Always the commonest place, on the valid questions: the same of every model and seed."""
    place = picked.commonest_place(answers)
    valid = answers.filter((pl.col("split") == "valid") & pl.col("gold").is_not_null())
    if place is None or valid.is_empty():
        return None
    model = "plain" if "plain" in valid["model"] else valid["model"][0]
    seeds = picked.by_seed(valid.filter(pl.col("model") == model).with_columns(correct=pl.col("gold") == place))
    return redrawn.share(seeds, _accuracy)


def _accuracies(mine: pl.DataFrame, redrawn: AnswerBootstrap) -> Iterator[NewRow]:
    """Accuracy and mean probability, on the valid questions and by where the model met the name."""
    groups: dict[str | None, pl.DataFrame] = {None: mine.filter(pl.col("split") == "valid")}
    groups |= {c: mine.filter(pl.col("category") == c) for c in sorted(mine["category"].unique().to_list())}
    for group, rows in groups.items():
        if seeds := picked.by_seed(rows.drop_nulls("correct")):
            yield {"measure": "accuracy", "group": group} | redrawn.share(seeds, _accuracy).row()
        if seeds := picked.by_seed(rows):
            yield {"measure": "mean_probability", "group": group} | redrawn(seeds, _mean_probability).row()


def _calibration(mine: pl.DataFrame, redrawn: AnswerBootstrap) -> Iterator[NewRow]:
    """Calibration of the answers' probabilities."""
    if not (seeds := picked.valid(mine)):
        return
    whole = redrawn(
        seeds, lambda a, w: np.stack(recall.calibration(picked.probability(a), picked.right(a), weights=w)[-2:], -1)
    )
    yield {"measure": "ece"} | _honest(whole.at(0).row(), seeds)
    yield {"measure": "probability_excess"} | whole.at(1).row()
    together = pl.concat(seeds)
    found = recall.calibration(picked.probability(together), picked.right(together))
    for b in np.flatnonzero(found.weight > 0).tolist():
        share = float(found.accuracy[b])
        low, high = jeffreys(share, together.filter(found.member == b)["name"].n_unique())
        own = {"measure": "reliability", "group": f"bin {b + 1}", "at": float(found.probability[b])}
        yield own | {"value": share, "low": low, "high": high, "n": int(found.weight[b])}


def _discrimination(mine: pl.DataFrame, redrawn: AnswerBootstrap) -> Iterator[NewRow]:
    for row, found in _separations(mine, redrawn):
        yield row | found.row()


def _separations(mine: pl.DataFrame, redrawn: AnswerBootstrap) -> Iterator[tuple[NewRow, CrossedEstimate]]:
    """AUROC of right against wrong valid answers: by each score, and by what can be seen of the answer alone."""
    if not (seeds := picked.valid(mine)):
        return
    for score in SCORES:
        found = redrawn(seeds, lambda a, w, s=score: recall.auroc(picked.sureness(a, s), picked.right(a), w))
        yield {"measure": f"auroc_{score}"}, found
    seen = [_out_of_fold(answers) for answers in seeds]
    by = redrawn(seen, lambda a, w: recall.auroc(a["seen"].to_numpy(), picked.right(a), w, a["fold"].to_numpy()))
    yield {"measure": "auroc_answer_string"}, by


def _out_of_fold(answers: pl.DataFrame) -> pl.DataFrame:
    """The answers with how right each looks from its string alone (`seen`), and its fold: names are dealt once."""
    features = answers.select(
        pl.col("place_count").log1p().alias("frequency"),
        pl.col("answer").str.len_chars().cast(REAL).alias("length"),
        pl.col("known_place").cast(REAL).alias("known"),
    )
    found = recall.tell_apart(features.to_numpy(), picked.right(answers), answers["name"].to_list())
    return answers.with_columns(seen=found.scores, fold=found.folds)


def _abstaining(mine: pl.DataFrame, redrawn: AnswerBootstrap) -> Iterator[NewRow]:
    """Risk against coverage by the answer's probability, and the thresholds for stated risks."""
    if not (seeds := picked.valid(mine)):
        return
    yield {"measure": "aurc"} | _honest(redrawn(seeds, lambda a, w: _curve(a, w).area).row(), seeds)
    risks = redrawn(seeds, _risks)
    for place, coverage in enumerate(COVERAGES):
        yield {"measure": "risk", "at": coverage} | _honest(risks.at(place).row(), seeds)
    held = picked.by_seed(picked.held_out(mine))
    for risk in RISKS:
        found = [recall.threshold(picked.probability(answers), picked.right(answers), risk) for answers in held]
        own = {"at": risk, "n": picked.count_names(held)}
        if len(found) == 1:
            yield own | {"measure": "threshold", "value": found[0].value}
        yield own | {"measure": "threshold_coverage", "value": float(np.mean([one.coverage for one in found]))}


def _honest(row: dict[str, float | None], seeds: picked.AnswerSeeds) -> dict[str, float | None]:
    """A row without its interval where no answer is right or none is wrong, so that no draw can differ in that."""
    kinds = set(np.concatenate([picked.right(answers) for answers in seeds]).tolist())
    return row if len(kinds) == 2 else row | {"low": None, "high": None}


def _curve(answers: pl.DataFrame, weights: NameWeights) -> recall.RiskCoverage:
    return recall.risk_coverage(picked.probability(answers), picked.right(answers), weights)


def _risks(answers: pl.DataFrame, weights: NameWeights) -> Float[np.ndarray, "R C"]:
    """The risk at the highest threshold that answers at least so many, for each of COVERAGES."""
    curve = _curve(answers, weights)
    reached = [(curve.coverage >= coverage - 1e-9).argmax(-1) for coverage in COVERAGES]
    return np.take_along_axis(curve.risk, np.stack(reached, -1), -1)


def _matches(mine: pl.DataFrame, nearest: pl.DataFrame | None, redrawn: AnswerBootstrap) -> Iterator[NewRow]:
    """How often answers about names met nowhere are the place of the nearest known name, against random pairing."""
    for kind in MATCHES:
        if not (seeds := picked.unseen(mine, kind, nearest)):
            continue
        found, own = redrawn(seeds, _follows), {"group": kind}
        for place, name in enumerate(("match", "match_expected", "match_excess")):
            yield own | {"measure": name} | found.at(place).row()
        p = permutation_p(_agreement(seeds), np.random.default_rng([redrawn.seed, 3]))
        yield own | {"measure": "match_p", "value": p if np.isfinite(p) else None, "n": found.units}


def _agreement(seeds: picked.AnswerSeeds) -> Float[np.ndarray, "N N"]:
    """Agreements of the names that every seed has a neighbour for, summed over seeds."""
    shared = set.intersection(*(set(answers["name"].to_list()) for answers in seeds))
    kept = [answers.filter(pl.col("name").is_in(list(shared))).sort("name") for answers in seeds]
    found = [near.agreement(answers["answer"].to_list(), answers["neighbour"].to_list()) for answers in kept]
    return np.sum(found, axis=0)


def _follows(answers: pl.DataFrame, weights: NameWeights) -> Float[np.ndarray, "R 3"]:
    found = near.follows(answers["answer"].to_list(), answers["neighbour"].to_list(), weights)
    return np.stack(found[:3], -1)


def _accuracy(answers: pl.DataFrame, weights: NameWeights) -> Float[np.ndarray, " R"]:
    return weights @ picked.right(answers) / weights.sum(-1)


def _mean_probability(answers: pl.DataFrame, weights: NameWeights) -> Float[np.ndarray, " R"]:
    return weights @ picked.probability(answers) / weights.sum(-1)
