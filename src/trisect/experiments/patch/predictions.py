"""Competing predictions: for each site and position, the gain and the frequency of every hypothesis' answer, beside controls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl
from jaxtyping import Bool, Float

from trisect.claims.models import ResampledUnits, judge_by_draws
from trisect.core.files import Json
from trisect.core.finding import About
from trisect.core.site import Site
from trisect.core.tables import INTEGER, REAL, TEXT, NewRow
from trisect.papers.lookup import SPEECH
from trisect.stats.bootstrap import bootstrap_ratios
from trisect.stats.paired import mean_interval
from trisect.stats.shares import wilson
from trisect.stats.significance import finite
from trisect.text.pairs import CONTENT

if TYPE_CHECKING:
    from trisect.experiments.patch.settings import PatchFacts

BASE, DONOR, OTHER = "base", "donor", "other"
CONTROLS = ("unrelated", "residual", "random", "label", "complement")
PREDICTIONS = {
    **{"site": TEXT, "position": TEXT, "hypothesis": TEXT},
    **{"share": REAL, "low": REAL, "high": REAL},  # of the answered pairs, with Wilson's interval
    # over all pairs that are used, with Student's t interval
    **{"shift_nats": REAL, "shift_low": REAL, "shift_high": REAL},
    **{"n": INTEGER, "kept": REAL, "used": INTEGER},  # answered pairs, as a share of those that are used, and these
    **dict.fromkeys(CONTROLS, REAL),  # the share under each control
    **{f"{name}_nats": REAL for name in CONTROLS},  # the shift under each
}
AnswerPieces = Sequence[Mapping[str, tuple[int, ...]]]  # of each pair the tokens of each answer


class AnswerScores(NamedTuple):
    """For N pairs, the log-probability of each of A answers in nats (NaN: not scored), and whether the model would output it."""

    nats: Float[np.ndarray, "N A"]
    comes: Bool[np.ndarray, "N A"]

    @classmethod
    def empty(cls, pairs: int, answers: int) -> AnswerScores:
        """Empty scores."""
        return cls(np.full((pairs, answers), np.nan), np.zeros((pairs, answers), dtype=bool))


class HypothesisRow(NamedTuple):
    """One hypothesis at one site and position; None: not known.

    `share` of `n` answered pairs gave its answer (95 %: `low` to `high`); `kept` is the share of pairs that are answered.
    `shift_nats` is how far its answer gained on the base's against the unpatched pass, a mean over all pairs that are used.
    The controls are shares, `control_nats` shifts.
    """

    site: str
    position: str
    hypothesis: str
    share: float | None
    low: float | None
    high: float | None
    shift_nats: float | None
    shift_low: float | None
    shift_high: float | None
    n: int
    kept: float | None
    used: int
    control: Mapping[str, float | None]
    control_nats: Mapping[str, float | None]

    @property
    def component(self) -> str:
        """What is patched, as in q or q+k."""
        return self.site.rpartition("@")[0].rpartition(".")[2]

    @property
    def exceeds(self) -> bool:
        """Whether the shift and its interval are above 0 and an unrelated donor's, and above random subspaces' where these are known."""
        unrelated, random = (self.control_nats[name] for name in ("unrelated", "random"))
        return unrelated is not None and (self.shift_low or 0.0) > max(0.0, unrelated, random or 0.0)

    def data(self) -> dict[str, Json]:
        """The row as JSON-ready data."""
        return {**self._asdict(), "control": dict(self.control), "control_nats": dict(self.control_nats)}


def read_predictions(table: pl.DataFrame | None) -> tuple[HypothesisRow, ...]:
    """The rows of the table of predictions."""
    predictions = []
    for row in () if table is None else table.iter_rows(named=True):
        shares, nats = ({name: row[f"{name}{end}"] for name in CONTROLS} for end in ("", "_nats"))
        plain = {name: row[name] for name in HypothesisRow._fields if name not in ("control", "control_nats")}
        predictions.append(HypothesisRow(**plain, control=shares, control_nats=nats))
    return tuple(predictions)


def hypotheses(pieces: AnswerPieces) -> tuple[str, ...]:
    """Names of all answers, the base's first and the donor's last."""
    names = dict.fromkeys(name for answers in pieces for name in answers)
    return (BASE, *(name for name in names if name not in (BASE, DONOR)), DONOR)


def label(name: str, names: Sequence[str]) -> str:
    """The name of a hypothesis in tables: q is q-content if there is a q-place too."""
    apart = any(other.endswith("-place") for other in names)
    return next((long for long, short in CONTENT.items() if short == name and apart), name)


def usable_pairs(names: Sequence[str], pieces: AnswerPieces) -> dict[str, Bool[np.ndarray, " N"]]:
    """Mask of pairs for each hypothesis: those that have its answer, and whose answers all differ.

    In some pairs, two components predict the same answer as one alone; these pairs are left out for the two.
    """
    usable = {name: np.zeros(len(pieces), dtype=bool) for name in names}
    for i, answers in enumerate(pieces):
        single = [ids for name, ids in answers.items() if name != DONOR and "+" not in name]
        if BASE not in answers or len(set(single)) < len(single):
            continue
        for name, ids in answers.items():
            usable[name][i] = ids not in single if name == DONOR or "+" in name else True
    return usable


def prediction_rows(
    where: tuple[str, str],
    names: Sequence[str],
    usable: Mapping[str, Bool[np.ndarray, " N"]],
    answered: Bool[np.ndarray, " N"],
    plain: AnswerScores,
    patched: AnswerScores,
    controls: Mapping[str, Sequence[AnswerScores]],
) -> Iterator[NewRow]:
    """The rows of one site at one position; `plain` are scores of the unpatched pass, several of one control are averaged."""
    anything = np.zeros_like(answered)
    for scores in (usable[name] for name in names if name != BASE):
        anything |= scores
    stated = np.stack([usable[name] for name in names], 1)
    for column, name in enumerate((*names, OTHER)):
        used = anything if name in (BASE, OTHER) else usable[name]
        if not used.any():
            continue
        counted = used & answered

        def share(
            scores: AnswerScores, name: str = name, column: int = column, counted: Bool[np.ndarray, " N"] = counted
        ) -> float | None:
            """Frequency of the answer; None if no pair is answered correctly, or no pass was run."""
            valid = counted & np.isfinite(scores.nats[:, 0])
            hits = scores.comes[:, column] if name != OTHER else np.logical_not((scores.comes & stated).any(1))
            return finite(hits[valid].mean()) if valid.any() else None

        def shifts(scores: AnswerScores, column: int = column, used: np.ndarray = used) -> Float[np.ndarray, " M"]:
            gained = scores.nats[:, column] - scores.nats[:, 0] - plain.nats[:, column] + plain.nats[:, 0]
            return gained[used & np.isfinite(gained)]

        row: NewRow = {"site": where[0], "position": where[1], "hypothesis": label(name, names)}
        value, count = share(patched), int(counted.sum())
        low, high = (None, None) if value is None else wilson(value, count)
        row |= {"share": value, "low": low, "high": high}
        row |= {"n": count, "kept": count / int(used.sum()), "used": int(used.sum())}
        if name not in (BASE, OTHER):
            row["shift_nats"], row["shift_low"], row["shift_high"] = mean_interval(shifts(patched))
        for control, group in controls.items():
            shares = [number for number in map(share, group) if number is not None]
            row[control] = float(np.mean(shares)) if shares else None
            if name not in (BASE, OTHER) and (nats := [shift.mean() for shift in map(shifts, group) if len(shift)]):
                row[f"{control}_nats"] = finite(np.mean(nats))
        yield row


SitesPatched = Iterable[tuple[Site, str, Sequence[AnswerScores]]]  # positions, scores and an unrelated donor's


def spoken_hits(
    crossed: tuple[int, ...],
    sites: SitesPatched,
    names: Sequence[str],
    pieces: AnswerPieces,
    answered: Bool[np.ndarray, " N"],
) -> dict[str, Float[np.ndarray, " M"]]:
    """For each statistic of the claims on speech, its value on every answered pair that has its hypotheses.

    q is that of the last of the layers of cross-attention `crossed`, k and v those of all; what was not patched has no statistic.
    """
    targets = {Site((c,), crossed[-1:] if c == "q" else crossed, stack="cross") for c in ("q", "k", "v")}
    by_component = {(site.components[0], positions): scores for site, positions, scores in sites if site in targets}
    usable, hits = usable_pairs(names, pieces), dict[str, Float[np.ndarray, " M"]]()

    def add(
        statistic: str, where: tuple[str, str], plus: tuple[str, int], minus: tuple[str, int] | None = None
    ) -> None:
        """Hits of one hypothesis, with the donor (0) or an unrelated one (1), less those of another."""
        terms = [(plus, 1.0)] + ([] if minus is None else [(minus, -1.0)])
        scores = by_component.get(where, ())
        if any(number >= len(scores) or name not in names for (name, number), _ in terms):
            return
        counted, total = answered.copy(), np.zeros(len(answered))
        for (name, number), sign in terms:
            column = names.index(name)
            stated = usable["k-content"] if name == BASE else usable[name]
            counted &= stated & np.isfinite(scores[number].nats[:, column])
            total += sign * scores[number].comes[:, column]
        if counted.any():
            hits[statistic] = total[counted]

    if {"q-place", "q-content", "k-content", "v-content"} <= set(names):
        add("q_time_less_content", ("q", "last"), ("q-place", 0), ("q-content", 0))
        add("q_unrelated", ("q", "last"), ("q-place", 0), ("q-place", 1))
        add("v_content", ("v", "last"), ("v-content", 0))
        add("v_unrelated", ("v", "last"), ("v-content", 0), ("v-content", 1))
        add("k_last_unchanged", ("k", "last"), (BASE, 0))
        add("k_last_content", ("k", "last"), ("k-content", 0))
        add("k_content", ("k", "all"), ("k-content", 0))
        add("k_unrelated", ("k", "all"), ("k-content", 0), ("k-content", 1))
    return hits


def judge_speech(hits: Mapping[str, Float[np.ndarray, " M"]], seed: int, about: About[PatchFacts]) -> pl.DataFrame:
    """The table `claims` for speech, over bootstrap draws of the pairs of each statistic."""
    named = ("subject", "fingerprint", "corpus", "corpus_fingerprint", "pairs", "seed")
    facts = {name: getattr(about.facts, name) for name in named}
    draws = {name: bootstrap_ratios(hit[:, None], np.ones(len(hit)), seed)[:, 0] for name, hit in hits.items()}
    means = {name: float(hit.mean()) for name, hit in hits.items()}
    each = {name: ResampledUnits(len(hit), len(hit), SPEECH.unit) for name, hit in hits.items()}
    models = max((len(hit) for hit in hits.values()), default=0)
    return judge_by_draws(SPEECH, draws, means, models, facts, each=each)
