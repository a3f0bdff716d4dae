"""Statistics of recall: from the table of answers to the rows of `measures`, and to verdicts on the source's claims."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import polars as pl
from jaxtyping import Float

from trisect.claims import judge_by_draws
from trisect.claims.models import ResampledUnits
from trisect.core.files import Json
from trisect.core.tables import INTEGER, REAL, TEXT, NewRow
from trisect.measure import recall
from trisect.papers.recall import MATCHES, SCORES, SOURCE
from trisect.stats import bootstrap
from trisect.stats.bootstrap import CrossedBootstrap, CrossedEstimate
from trisect.stats.null import permutation_p
from trisect.stats.shares import jeffreys

NEIGHBOURS: dict[str, type[pl.DataType]] = {
    "model": TEXT,  # None: of every model
    "seed": INTEGER,  # None: of every seed
    "match": TEXT,  # last name, representation; n-grams stand in the answers themselves
    "name": TEXT,
    "nearest": TEXT,
    "similarity": REAL,
    "place": TEXT,
}
CATEGORIES = {  # where a name stood: in pretraining, in fine-tuning
    (True, True): "pretraining and fine-tuning",
    (True, False): "pretraining only",
    (False, True): "fine-tuning only",
    (False, False): "neither",
}
AnswerSeeds: TypeAlias = list[pl.DataFrame]  # one model's answers, a table for each of its seeds
NameWeights: TypeAlias = Float[np.ndarray, "R N"]  # how often each answer counts in every draw of names
# a seed's answers and their weights in every draw -> numbers [R] or [R C]
OfAnswers: TypeAlias = Callable[[pl.DataFrame, NameWeights], Float[np.ndarray, "R ..."]]


class AnswerBootstrap:
    """Bootstrap of statistics of answers: names resampled, crossed with seeds (stats.CrossedBootstrap)."""

    def __init__(self, seed: int = 0, draws: int = bootstrap.DRAWS) -> None:
        self.seed = seed
        self._crossed = CrossedBootstrap(seed, draws)

    def __call__(self, seeds: Sequence[pl.DataFrame], statistic: OfAnswers) -> CrossedEstimate:
        """The statistic of each seed's answers, on all of them and in every draw of their names."""
        names = [answers["name"].to_list() for answers in seeds]
        return self._crossed(names, lambda seed, weights: statistic(seeds[seed], weights))

    def share(self, seeds: Sequence[pl.DataFrame], statistic: OfAnswers, stream: int = 0) -> CrossedEstimate:
        """The same for a share of the names; shares that are compared need different `stream`s."""
        names = [answers["name"].to_list() for answers in seeds]
        return self._crossed.share(names, lambda seed, weights: statistic(seeds[seed], weights), stream)


def neighbours(
    names: Sequence[str],
    places: Mapping[str, str],
    vectors: Mapping[str, Float[np.ndarray, " D"]] | None = None,
    model: str | None = None,
    seed: int | None = None,
) -> pl.DataFrame:
    """For each of `names` the nearest name with a known place, and that place, by every kind of match.

    `vectors` are a model's own of all these names; without them that kind is left out, and `model` and `seed` may stay None.
    Columns are those of NEIGHBOURS; a name without a neighbour of a kind has no row.
    """
    others = list(places)
    similarities = {
        "n-grams": recall.character_similarity(names, others),
        "last name": recall.last_name_similarity(names, others),
    }
    if vectors is not None and len(names) and others:
        first, second = (np.stack([vectors[name] for name in group]) for group in (names, others))
        similarities["representation"] = recall.vector_similarity(first, second)
    rows = []
    for kind, cosines in similarities.items():
        near = recall.nearest_names(cosines, names, others)
        for name, i, similarity in zip(names, near.nearest[:, 0].tolist(), near.similarity[:, 0], strict=True):
            if i >= 0:
                rows.append((model, seed, kind, name, others[i], float(similarity), places[others[i]]))
    return pl.DataFrame(rows, schema=NEIGHBOURS, orient="row")


def commonest_place(answers: pl.DataFrame) -> str | None:
    """The most frequent answer of the fine-tuning questions; None if there are none."""
    train = answers.filter(split="train").drop_nulls("gold")
    if train.is_empty():
        return None
    model, seed = train.select("model", "seed").sort("model", "seed").row(0)
    counts = train.filter(model=model, seed=seed).group_by("gold").len()
    return counts.sort(["len", "gold"], descending=[True, False])["gold"][0]


def _unseen(answers: pl.DataFrame, kind: str, nearest: pl.DataFrame | None) -> AnswerSeeds:
    """Answers about names that the model never read and that have a neighbour of the kind, with its place as `neighbour`."""
    # an invented name may be somebody of the text after all
    rows = answers.filter(pl.col("category") == "neither").unique(["seed", "name"], keep="first", maintain_order=True)
    if kind == "n-grams":
        return _by_seed(rows.with_columns(neighbour=pl.col("nearest_place")).drop_nulls("neighbour"))
    if nearest is None or answers.is_empty():
        return []
    near = nearest.filter(pl.col("model").is_null() | (pl.col("model") == answers["model"][0]), match=kind)
    seeds = []
    for seed in _by_seed(rows):
        pairs = near.filter(pl.col("seed").is_null() | (pl.col("seed") == seed["seed"][0])).unique("name", keep="first")
        seeds.append(seed.join(pairs.select("name", neighbour="place"), on="name", how="inner").drop_nulls("neighbour"))
    return [seed for seed in seeds if len(seed)]


def _valid_answers(answers: pl.DataFrame) -> AnswerSeeds:
    """Answers to the valid questions with a known place."""
    return _by_seed(answers.filter(split="valid").drop_nulls("correct"))


def threshold_answers(answers: pl.DataFrame) -> pl.DataFrame:
    """The answers that thresholds are fitted on: valid questions with a known place, about names that the model has read.

    A model that met none of these names has the answers to all of them.
    """
    valid = answers.filter(split="valid").drop_nulls("correct")
    met = valid.filter(pl.col("category") != "neither")
    return valid if met.is_empty() else met


def _by_seed(answers: pl.DataFrame) -> AnswerSeeds:
    """The answers of every seed, in one order."""
    return [answers.filter(seed=seed).sort("split", "question") for seed in sorted(set(answers["seed"]))]


def right(answers: pl.DataFrame) -> np.ndarray:
    """Whether each answer is the true place."""
    return answers["correct"].to_numpy().astype(bool)


def probability(answers: pl.DataFrame) -> Float[np.ndarray, " N"]:
    """The probability of each answer, over all its tokens."""
    return np.exp(np.minimum(answers["log_probability"].to_numpy(), 0.0))


def confidence(answers: pl.DataFrame, score: str) -> Float[np.ndarray, " N"]:
    """A score that grows with the model's certainty."""
    values = answers["log_probability" if score == "probability" else score].to_numpy()
    return -values if score == "entropy" else values


RISKS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7)
DRAWS = 10_000  # where few seeds leave few degrees of freedom, the tails of fewer draws end too early
COVERAGES = tuple(i / 20 for i in range(1, 21))


def measure_rows(answers: pl.DataFrame, nearest: pl.DataFrame | None = None, draws: int = DRAWS) -> list[NewRow]:
    """Every row of `measures` from the table `answers`; `nearest` holds neighbours by other matches than n-grams.

    Rows without a group are of the valid questions. The subject is the model, or 'baseline' for always answering the
    fine-tuning text's commonest place. Intervals are over names, and over seeds where there are several.

    accuracy, mean_probability (also by category), probability_excess, ece; auroc_SCORE, auroc_answer_string, aurc;
    reliability (group 'bin 1' and on, `at` the mean probability in the bin); risk (`at` a coverage); threshold and
    threshold_coverage (`at` a risk); match, match_expected, match_excess, match_p (group: the kind of match; of names that
    the model met nowhere). Thresholds are set on answers.threshold_answers. ece, aurc and risk have no interval where no
    answer is right or none is wrong: draws of such answers are all alike, which is no certainty.
    """
    redrawn, rows = AnswerBootstrap(0, draws), []
    for model in sorted(set(answers["model"])):
        of_model = answers.filter(pl.col("model") == model)
        parts = (_accuracies(of_model, redrawn), _confidences(of_model, redrawn), _matches(of_model, nearest, redrawn))
        rows += [{"subject": model} | row for part in parts for row in part]
    place = commonest_place(answers)  # always answering that is the same of every model and seed
    valid = answers.filter(split="valid").drop_nulls("gold")
    if place is not None and not valid.is_empty():
        model = "plain" if "plain" in valid["model"] else valid["model"][0]
        seeds = _by_seed(valid.filter(pl.col("model") == model).with_columns(correct=pl.col("gold") == place))
        rows.append({"subject": "baseline", "measure": "accuracy"} | redrawn.share(seeds, _accuracy).row())
    return [{"stack": "plain"} | row for row in rows]


def judge(
    answers: pl.DataFrame, about: Mapping[str, object], nearest: pl.DataFrame | None = None, draws: int = DRAWS
) -> pl.DataFrame:
    """The table `claims`: B-1 to B-4 on the answers (claims.sampled), with names resampled, and seeds crossed with them.

    B-2 to B-4 are about the model 'left-out', or 'pretrained' where there is none. `about` names the models and texts.
    """
    redrawn, estimates = AnswerBootstrap(0, draws), dict[str, CrossedEstimate]()
    for model in ("plain", "pretrained"):
        if seeds := _valid_answers(answers.filter(pl.col("model") == model)):
            estimates[f"accuracy_{model}"] = redrawn.share(seeds, _accuracy)
    place, plain = commonest_place(answers), answers.filter(pl.col("model") == "plain")
    if place is not None and _valid_answers(plain):
        # Where only one of the plain model and the commonest place is right: the difference of the two is that of accuracies.
        # Apart, neither is taken for certain where it never happens.
        conditions = {
            "plain_alone_right": pl.col("correct") & (pl.col("gold") != place),
            "baseline_alone_right": ~pl.col("correct") & (pl.col("gold") == place),
        }
        for stream, (name, which) in enumerate(conditions.items(), 1):
            estimates[name] = redrawn.share(_valid_answers(plain.with_columns(correct=which)), _accuracy, stream)
    deep = answers.filter(model="left-out" if "left-out" in answers["model"] else "pretrained")
    for row, estimate in _separations(deep, redrawn):
        estimates[f"{row['measure']}_excess"] = estimate.minus(0.5)
    for kind in MATCHES:
        if seeds := _unseen(deep, kind, nearest):
            estimates[f"match_excess_{kind}"] = redrawn(seeds, _follows).at(2)
    values = {name: float(e.value) for name, e in estimates.items()}
    each = {name: ResampledUnits(e.units, int(e.groups), SOURCE.unit, e.seeds) for name, e in estimates.items()}
    return judge_by_draws(SOURCE, {name: e.draws for name, e in estimates.items()}, values, 0, about, each=each)


def _accuracies(answers: pl.DataFrame, redrawn: AnswerBootstrap) -> Iterator[NewRow]:
    """Accuracy and mean probability, on the valid questions and by whether the model has read the name."""

    groups: dict[str | None, pl.DataFrame] = {None: answers.filter(pl.col("split") == "valid")}
    groups |= {c: answers.filter(pl.col("category") == c) for c in sorted(answers["category"].unique().to_list())}
    for group, rows in groups.items():
        if seeds := _by_seed(rows.drop_nulls("correct")):
            yield {"measure": "accuracy", "group": group} | redrawn.share(seeds, _accuracy).row()
        if seeds := _by_seed(rows):
            mean = redrawn(seeds, lambda answers, weights: weights @ probability(answers) / weights.sum(-1))
            yield {"measure": "mean_probability", "group": group} | mean.row()


def _confidences(answers: pl.DataFrame, redrawn: AnswerBootstrap) -> Iterator[NewRow]:
    """Calibration of probabilities, AUROCs, risk against coverage, and thresholds for given risks."""
    if not (seeds := _valid_answers(answers)):
        return
    both = redrawn(seeds, lambda a, w: np.stack(recall.calibration(probability(a), right(a), weights=w)[-2:], -1))
    yield {"measure": "ece"} | _honest(both.at(0).row(), seeds)
    yield {"measure": "probability_excess"} | both.at(1).row()
    pooled = pl.concat(seeds)
    bins = recall.calibration(probability(pooled), right(pooled))
    for b in np.flatnonzero(bins.weight > 0).tolist():
        share = float(bins.accuracy[b])
        low, high = jeffreys(share, pooled.filter(bins.member == b)["name"].n_unique())
        place = {"measure": "reliability", "group": f"bin {b + 1}", "at": float(bins.probability[b])}
        yield place | {"value": share, "low": low, "high": high, "n": int(bins.weight[b])}
    yield from (row | auroc.row() for row, auroc in _separations(answers, redrawn))

    def curve(answers: pl.DataFrame, weights: NameWeights) -> recall.RiskCoverage:
        return recall.risk_coverage(probability(answers), right(answers), weights)

    def risks_at(answers: pl.DataFrame, weights: NameWeights) -> Float[np.ndarray, "R C"]:
        """The risk at the highest threshold with at least each of COVERAGES answered."""
        risks = curve(answers, weights)
        reached = [(risks.coverage >= coverage - 1e-9).argmax(-1) for coverage in COVERAGES]
        return np.take_along_axis(risks.risk, np.stack(reached, -1), -1)

    yield {"measure": "aurc"} | _honest(redrawn(seeds, lambda a, w: curve(a, w).area).row(), seeds)
    risks = redrawn(seeds, risks_at)
    for place, coverage in enumerate(COVERAGES):
        yield {"measure": "risk", "at": coverage} | _honest(risks.at(place).row(), seeds)
    held_out = threshold_answers(answers)
    for risk in RISKS:
        thresholds = [recall.threshold(probability(seed), right(seed), risk) for seed in _by_seed(held_out)]
        place = {"at": risk, "n": held_out["name"].n_unique()}
        if len(thresholds) == 1:
            yield place | {"measure": "threshold", "value": thresholds[0].value}
        yield place | {"measure": "threshold_coverage", "value": float(np.mean([t.coverage for t in thresholds]))}


def _separations(answers: pl.DataFrame, redrawn: AnswerBootstrap) -> Iterator[tuple[NewRow, CrossedEstimate]]:
    """AUROC of right against wrong valid answers: by each score, and by the answer's string alone."""
    if not (seeds := _valid_answers(answers)):
        return
    for score in SCORES:
        auroc = redrawn(seeds, lambda a, w, s=score: recall.auroc(confidence(a, s), right(a), w))
        yield {"measure": f"auroc_{score}"}, auroc
    seen = []  # the answers with how right each looks from its string alone, and its fold: names are dealt once
    for answers in seeds:
        features = answers.select(
            pl.col("place_count").log1p().alias("frequency"),
            pl.col("answer").str.len_chars().cast(REAL).alias("length"),
            pl.col("known_place").cast(REAL).alias("known"),
        )
        fitted = recall.cross_fit_correctness(features.to_numpy(), right(answers), answers["name"].to_list())
        seen.append(answers.with_columns(seen=fitted.scores, fold=fitted.folds))
    auroc = redrawn(seen, lambda a, w: recall.auroc(a["seen"].to_numpy(), right(a), w, a["fold"].to_numpy()))
    yield {"measure": "auroc_answer_string"}, auroc


def _honest(row: dict[str, float | None], seeds: AnswerSeeds) -> dict[str, float | None]:
    """A row without its interval if all or no answers are right, so that no draw can differ."""
    kinds = set(np.concatenate([right(answers) for answers in seeds]).tolist())
    return row if len(kinds) == 2 else row | {"low": None, "high": None}


def _matches(answers: pl.DataFrame, nearest: pl.DataFrame | None, redrawn: AnswerBootstrap) -> Iterator[NewRow]:
    """How often answers about unread names are the place of the nearest known name, against random pairing."""
    for kind in MATCHES:
        if not (seeds := _unseen(answers, kind, nearest)):
            continue
        shares = redrawn(seeds, _follows)
        for place, name in enumerate(("match", "match_expected", "match_excess")):
            yield {"group": kind, "measure": name} | shares.at(place).row()
        # agreements of the names that every seed has a neighbour for, summed over seeds
        shared = list(set.intersection(*(set(seed["name"].to_list()) for seed in seeds)))
        pairs = (seed.filter(pl.col("name").is_in(shared)).sort("name") for seed in seeds)
        agree = [recall.agreement(pair["answer"].to_list(), pair["neighbour"].to_list()) for pair in pairs]
        p = permutation_p(np.sum(agree, axis=0), np.random.default_rng([redrawn.seed, 3]))
        yield {"group": kind, "measure": "match_p", "value": p if np.isfinite(p) else None, "n": shares.units}


def _follows(answers: pl.DataFrame, weights: NameWeights) -> Float[np.ndarray, "R 3"]:
    matches = recall.match_neighbours(answers["answer"].to_list(), answers["neighbour"].to_list(), weights)
    return np.stack(matches[:3], -1)


def _accuracy(answers: pl.DataFrame, weights: NameWeights) -> Float[np.ndarray, " R"]:
    return weights @ right(answers) / weights.sum(-1)


MEASURES = {"mean": "survival", "zero": "survival_zero"}


def survival_measures(rows: Iterable[Mapping[str, Json]]) -> list[NewRow]:
    """Rows of `measures`: shares of answers that survive, with intervals over names and over seeds.

    `rows` are those of `survived`, each with its model and seed. The measure is 'survival' where the mean was put in
    place, 'survival_zero' where zero was; the subject is the model.
    """
    redrawn, result = AnswerBootstrap(0), []
    seeds_of: dict[tuple[Any, ...], dict[Any, Any]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("model", "group", "how", "stack", "layer", "component"))
        seeds_of.setdefault(key, {})[row["seed"]] = row["same"]

    def share(answers: pl.DataFrame, weights: NameWeights) -> Float[np.ndarray, " R"]:
        with np.errstate(invalid="ignore"):  # a draw in which a seed has none of its names
            return weights @ answers["same"].to_numpy() / weights.sum(1)

    for key in sorted(seeds_of):
        same = [by_name for _, by_name in sorted(seeds_of[key].items())]
        tables = [pl.DataFrame({"name": list(row), "same": [float(v) for v in row.values()]}) for row in same]
        subject, group, how, stack, layer, component = key
        place = {"subject": subject, "stack": stack, "layer": layer, "component": component, "group": group}
        result.append(place | {"measure": MEASURES[how]} | redrawn.share(tables, share).row())
    return result
