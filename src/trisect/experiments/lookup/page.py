"""A lookup study's page: one worked pair, what q, k and v each say, who made them, and when each takes up its role in training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from trisect.claims.models import judge_models
from trisect.core.finding import About, Estimate, Finding
from trisect.core.tables import SCHEMAS, frame
from trisect.papers.lookup import SOURCE
from trisect.report import format as words
from trisect.report import render
from trisect.report.charts import CurveLine, Figure, LegendEntry, Measure, Panel, Series, around, curve_panel
from trisect.report.measures import MeasuredValue, Measures
from trisect.report.sheet import (
    Section,
    Sheet,
    Table,
    notes_section,
    present,
    provenance,
    small_multiples,
    verdict_findings,
)

if TYPE_CHECKING:
    from trisect.experiments.lookup.settings import LookupFacts

WEIGHT, GAIN = 0.2, 1.0  # from which a model has induction heads: attention weight, and nats that a repetition saves
EXCESS = 1.0  # nats by which an own answer has to lead the others
StepValue = tuple[float, float]
PARTS = ("q", "k", "v")
ALL = "all writers"  # as `trisect compose` calls them together


class Shift(NamedTuple):
    """How far an answer gained on the base's in one model at one checkpoint, in nats, and how often it came; None: not known.

    `other` is the largest shift to any other prediction (k+v's and the donor's too), `unrelated` that of the own answer with an
    unrelated donor's, `residual` with the donor's residual stream there.
    """

    own: float
    other: float
    unrelated: float | None
    residual: float | None
    share: float | None
    kept: float

    @property
    def excess(self) -> float:
        """The own shift less the largest other."""
        return self.own - self.other


@dataclass(frozen=True, eq=False)
class LookupNumbers:
    """The tables of a study."""

    measures: Measures
    predictions: pl.DataFrame
    examples: pl.DataFrame
    paths: pl.DataFrame
    gains: pl.DataFrame
    claims: pl.DataFrame

    @classmethod
    def of(cls, tables: Mapping[str, pl.DataFrame]) -> LookupNumbers:
        """Take the tables; a missing one is an empty one."""
        measures = tables["measures"] if "measures" in tables else frame("measures", ())
        columns: dict[str, Any] = dict.fromkeys(("seed", "step"), pl.Int64)
        none = pl.DataFrame(schema=columns | dict.fromkeys(("site", "into", "writer"), pl.String))
        patched = (tables.get(name, none) for name in ("predictions", "examples", "paths", "shifts"))
        claims = tables["claims"] if "claims" in tables else frame("claims", ())
        return cls(Measures.of(measures.sort(list(SCHEMAS["measures"]), nulls_last=True)), *patched, claims=claims)

    @cached_property
    def seeds(self) -> list[int]:
        """Every seed."""
        return sorted(int(name.rpartition("-")[2]) for name in self.measures.distinct("subject"))

    @cached_property
    def steps(self) -> list[float]:
        """The steps of all checkpoints."""
        return sorted({row.at for row in self.measures.where("text_nats") if row.at is not None})

    def loss(self, seed: int, part: str, step: float) -> float:
        """A loss in nats a piece: on the text, on random pieces the first time, or the second time."""
        return self.measures.where(f"{part}_nats", subject=f"seed-{seed}", at=step).mean

    @cached_property
    def weights(self) -> dict[int, Sequence[StepValue]]:
        """The largest induction weight of any head by step."""
        found: dict[int, Sequence[StepValue]] = {}
        for seed in self.seeds:
            by_step = self.measures.where("induction", subject=f"seed-{seed}").by("at")
            found[seed] = [(step, max(row.value for row in by_step[step])) for step in sorted(by_step)]
        return found

    @cached_property
    def savings(self) -> dict[int, Sequence[StepValue]]:
        """By how much random pieces cost less the second time, by step."""
        return {
            seed: [(step, self.loss(seed, "first", step) - self.loss(seed, "second", step)) for step in self.steps]
            for seed in self.seeds
        }

    @cached_property
    def formed(self) -> dict[int, float]:
        """By seed the step from which it has induction heads; seeds that have none are not there."""
        found = {}
        for seed in self.seeds:
            both = zip(self.weights[seed], self.savings[seed], strict=True)
            holds = [(step, weight >= WEIGHT and gain >= GAIN) for (step, weight), (_, gain) in both]
            if holds and holds[-1][1]:
                found[seed] = next(step for i, (step, _) in enumerate(holds) if all(on for _, on in holds[i:]))
        return found

    def induction_head(self, seed: int) -> MeasuredValue:
        """The head with the largest induction weight at the last checkpoint; the first layer has none."""
        rows = self.measures.where("induction", subject=f"seed-{seed}", at=self.steps[-1])
        return max((row for row in rows if (row.layer or 0) > 1), key=lambda row: row.value)

    def previous_head(self, seed: int) -> MeasuredValue:
        """The head below it with the largest weight on the piece before, at the last checkpoint."""
        rows, layer = (
            self.measures.where("previous", subject=f"seed-{seed}", at=self.steps[-1]),
            self.induction_head(seed).layer,
        )
        return max((row for row in rows if (row.layer or 0) < (layer or 0)), key=lambda row: row.value)

    def path(self, seed: int, writer: str, component: str, step: float) -> dict[str, float] | None:
        """What is known of the path of a writer into q, k or v of the layer of the model's induction head, in nats.

        `direct` is how far the base's answer falls, `own` the shift to the component's own answer, `own_unrelated` that with an
        unrelated donor's.
        """
        at = {"seed": seed, "step": step, "into": f"{component}@{self.induction_head(seed).layer}"}
        rows = self.paths.filter(**at)
        rows = rows.filter(writer=writer) if len(rows) else rows
        if not len(rows):
            return None
        own = self.gains.filter(**at).filter(writer=writer, hypothesis=component).to_dicts()
        gained = {"own": own[0]["shift_nats"], "own_unrelated": own[0]["unrelated_nats"]} if own else {}
        found = {"direct": rows["direct"][0]} | gained
        return {name: value for name, value in found.items() if value is not None}

    def previous(self, seed: int, step: float) -> dict[str, dict[str, float]]:
        """The paths of the previous-token head into q, k and v; empty where they were not patched."""
        head = self.previous_head(seed)
        found = {c: self.path(seed, f"{head.layer}.h{head.head}", c, step) for c in PARTS}
        return {c: row for c, row in found.items() if row is not None}

    def most(self, seed: int, component: str) -> tuple[str, dict[str, float]] | None:
        """The writer whose path makes a component's own answer gain most beyond an unrelated donor's at the end; None where none gains."""
        at = self.steps[-1]
        found = {name: self.path(seed, name, component, at) for name in self.paths["writer"].unique() if name != ALL}
        known = [(name, path) for name, path in found.items() if path is not None and "own_unrelated" in path]
        best = max(known, key=lambda one: one[1]["own"] - one[1]["own_unrelated"], default=None)
        return None if best is None or best[1]["own"] <= best[1]["own_unrelated"] else best

    def shift(self, seed: int, component: str, step: float) -> Shift | None:
        """What one component from the donor does in the layer of the model's induction head; None where it was not patched."""
        layer = self.induction_head(seed).layer
        rows = self.predictions.filter(seed=seed, step=step, site=f"{component}@{layer}")
        by_name = {row["hypothesis"]: row for row in rows.iter_rows(named=True)}
        own = by_name.get(component)
        others = [row["shift_nats"] for name, row in by_name.items() if name not in (component, "base", "other")]
        if own is None or own["shift_nats"] is None or not set(PARTS) <= set(by_name) or None in others:
            return None
        known = (own[name] for name in ("unrelated_nats", "residual_nats", "share", "kept"))
        return Shift(own["shift_nats"], max(others), *known)

    def shifts(self, component: str, step: Callable[[int], float | None]) -> dict[int, Shift]:
        """By seed of the models that formed what a component does, at the checkpoint that `step` names for each."""
        at = {seed: step(seed) for seed in self.formed}
        found = {seed: self.shift(seed, component, when) for seed, when in at.items() if when is not None}
        return {seed: shift for seed, shift in found.items() if shift is not None}

    def last(self, seed: int) -> float:
        """The step of the last checkpoint."""
        return self.steps[-1]

    def before(self, seed: int) -> float | None:
        """The last checkpoint in the first half of the way to induction heads; None where there is none."""
        return max((step for step in self.steps if step <= self.formed[seed] / 2), default=None)

    def takes_up(self, seed: int, component: str) -> float | None:
        """The step from which on a component's own answer gains at least half of what it gains at the end beyond an unrelated donor's."""
        found = [(step, self.shift(seed, component, step)) for step in self.steps]
        values = [(step, shift.own - (shift.unrelated or 0.0)) for step, shift in found if shift is not None]
        if not values or values[-1][1] < EXCESS:
            return None
        half = values[-1][1] / 2
        return next(step for i, (step, _) in enumerate(values) if all(value >= half for _, value in values[i:]))


def judge_lookups(numbers: LookupNumbers, about: Mapping[str, object]) -> pl.DataFrame:
    """The table `claims`, over the models that formed induction heads."""
    values: dict[str, list[float]] = {}
    for component in PARTS:
        last, before = (numbers.shifts(component, step).values() for step in (numbers.last, numbers.before))
        values[f"excess_{component}"] = [shift.excess for shift in last]
        values[f"unrelated_{component}"] = [s.own - s.unrelated for s in last if s.unrelated is not None]
        values[f"before_{component}"] = [shift.excess for shift in before]
    last = [of for seed in numbers.formed if len(of := numbers.previous(seed, numbers.last(seed))) == len(PARTS)]
    for other in ("q", "v"):
        values[f"previous_k_less_{other}"] = [of["k"]["direct"] - of[other]["direct"] for of in last]
    measured = [of["k"] for of in last if "own_unrelated" in of["k"]]
    values["previous_k_less_unrelated"] = [row["own"] - row["own_unrelated"] for row in measured]
    before = [numbers.previous(s, step) for s in numbers.formed if (step := numbers.before(s)) is not None]
    values["before_previous_k"] = [of["k"]["direct"] for of in before if "k" in of]
    return judge_models(SOURCE, {name: of for name, of in values.items() if of}, about)


REFERENCES = (
    "Catherine Olsson et al. In-context Learning and Induction Heads. Transformer Circuits Thread, 2022.",
    "Nelson Elhage et al. A Mathematical Framework for Transformer Circuits. Transformer Circuits Thread, 2021.",
    "Stephen Merity et al. Pointer Sentinel Mixture Models (WikiText). ICLR 2017.",
)
RULE = (
    f"A model has induction heads from the checkpoint on at which a head's mean weight on the piece after the earlier copy is at least "
    f"{WEIGHT:g} and random pieces cost at least {GAIN:g} nat less when they come again."
)
NOT_SHOWN = "Not shown here"
GREY = ((), (7, 3), (2, 2), (8, 2, 2, 2))


ROLES = {
    "q": "The query says which word is looked for",
    "k": "The key says where a word can be found",
    "v": "The value says what is passed on",
}
ANSWERS = {
    "q": "the base's word after the donor's question",
    "k": "the base's word at the place where the donor has the base's question",
    "v": "the donor's word at the place where the base has its question",
}


def page(tables: Mapping[str, pl.DataFrame], about: About[LookupFacts]) -> Sheet:
    """The page; what was not measured leaves no section."""
    numbers, facts = LookupNumbers.of(tables), about.facts
    sections = present(
        *answer_sections(numbers),
        _through_training(numbers),
        _formation(numbers),
        Section("What the claims say here", cards=numbers.claims) if len(numbers.claims) else None,
        notes_section(about),
    )
    lede = f"{facts.corpus} · {words.several(len(numbers.seeds), 'seed')}, {len(numbers.formed)} with induction heads"
    settings = ", ".join(f"{name} {value}" for name, value in sorted(facts.settings.items()))
    made = provenance(about, ("Text", facts.corpus), ("Settings", settings))
    title = "A model that looks up in real text: what do q, k and v say, and since when?"
    return Sheet(title, "trisect · lookup", lede, sections, made, REFERENCES, answer_sentence(numbers))


def answer_sections(numbers: LookupNumbers) -> tuple[Section, ...]:
    """What q, k and v each say with one worked pair, and who made them; a section without numbers is left out."""
    return present(_roles(numbers), _makers(numbers))


def answer_sentence(numbers: LookupNumbers) -> str:
    """What q, k and v each say, as one sentence with its numbers and the controls'; empty where no model looks up."""
    roles = present(*(_role(numbers, component) for component in PARTS))
    if len(roles) < len(PARTS):
        return ""
    shown = [one for one in roles if not one.words.startswith(NOT_SHOWN)]
    means = {
        name: [e.mean or 0.0 for one in shown for e in one.values if e.name == name] for name in ("own", "unrelated")
    }
    own, unrelated = (words.join_words([words.number(value, True, 1) for value in of]) for of in means.values())
    if not shown:
        return (
            "Not shown here: neither query, key nor value from another text raises its own answer beyond the controls."
        )
    theses = words.join_words([one.words.partition(":")[0].replace("The ", "the ") for one in shown])
    return (
        f"{words.capital(theses)}: put in from another text {'each' if len(shown) > 1 else 'it'} raises the answer that it predicts, by "
        f"{own} nats; from an unrelated text by {unrelated}."
    )


def findings(tables: Mapping[str, pl.DataFrame], about: About[LookupFacts]) -> tuple[Finding, ...]:
    """How many models formed induction heads, what q, k and v say in them, who made them, which says it first, and every claim."""
    numbers = LookupNumbers.of(tables)
    said = [_role(numbers, component) for component in PARTS]
    return (
        _share_formed(numbers),
        *present(*said, _previous(numbers), _most(numbers), _first(numbers)),
        *verdict_findings(numbers.claims),
    )


def _share_formed(numbers: LookupNumbers) -> Finding:
    formed, seeds = numbers.formed, numbers.seeds
    steps = sorted(formed.values())
    when = f", at step {words.join_words([words.count(round(step)) for step in steps])}" if steps else ""
    text = f"Induction heads formed in {len(formed)} of {words.several(len(seeds), 'model')}{when}."
    value = Estimate("formed", len(formed) / len(seeds) if seeds else None, n=len(seeds))
    return Finding(
        "formed", text, "of the models", (value,), what="models with induction heads", per="seed", signed=False
    )


def _role(numbers: LookupNumbers, component: str) -> Finding | None:
    """What one component from the donor does in the models that formed, beside what an unrelated donor's does."""
    found = numbers.shifts(component, numbers.last)
    if not found:
        return None
    means = {
        name: words.interval([value for one in found.values() if (value := getattr(one, name)) is not None])
        for name in ("own", "other", "unrelated", "residual")
    }
    own, other, unrelated, residual = means.values()
    thesis, gain = ROLES[component], words.mean_words(own, "nats")
    excess = own.mean - max(other.mean, unrelated.mean)
    if len(found) == 2:  # of two models an interval says nothing: each is shown, and each has to exceed its controls
        each = [one for _, one in sorted(found.items())]
        excess = min(one.own - max(one.other, one.other if one.unrelated is None else one.unrelated) for one in each)
        gain = f"{words.number(own.mean, True)}\u00a0nats ({words.join_words([words.number(one.own, True) for one in each])})"
    if excess < EXCESS:
        thesis = f"{NOT_SHOWN}: {thesis[0].lower()}{thesis[1:]}"
    text = (
        f"{thesis}: with the donor's {component}, {ANSWERS[component]} gains {gain} on the base's, the largest "
        f"other answer {words.number(other.mean, True)}; with an unrelated donor's {words.number(unrelated.mean, True)}, with all of the "
        f"donor's residual stream there {words.number(residual.mean, True)}."
    )
    values = tuple(Estimate(name, mean.mean, mean.low, mean.high, mean.n) for name, mean in means.items())
    return Finding(
        f"shift_{component}", text, "nats", values, what=f"shift to its own answer by {component}", per="seed"
    )


def _previous(numbers: LookupNumbers) -> Finding | None:
    """What the previous-token head puts into the keys, the queries and the values of the layer of induction heads."""
    found = [of for seed in numbers.formed if len(of := numbers.previous(seed, numbers.last(seed))) == len(PARTS)]
    if not found:
        return None
    k, q, v = (words.interval([of[c]["direct"] for of in found]) for c in ("k", "q", "v"))
    own, unrelated = (
        words.interval([of["k"][name] for of in found if name in of["k"]]) for name in ("own", "own_unrelated")
    )
    text = (
        f"With the donor's contribution of the head that attends to the word before, the base's answer loses through k "
        f"{words.mean_words(k, 'nats')}, through q {words.number(q.mean, True)}, through v {words.number(v.mean, True)}; through k "
        f"k's own answer gains {words.number(own.mean, True)} on it, and from an unrelated donor {words.number(unrelated.mean, True)}."
    )
    values = tuple(Estimate(n, m.mean, m.low, m.high, m.n) for n, m in (("k", k), ("q", q), ("v", v)))
    return Finding("previous", text, "nats", values, what="fall by way of the previous-token head", per="seed")


def _most(numbers: LookupNumbers) -> Finding | None:
    """Which writer puts most into q, k and v, model by model."""
    said, counts = [], []
    for component in PARTS:
        kinds: Counter[str] = Counter()
        for seed in numbers.formed:
            best, head = numbers.most(seed, component), numbers.previous_head(seed)
            if best is not None:
                name = "the previous-token head" if best[0] == f"{head.layer}.h{head.head}" else "another head"
                kinds[name if ".h" in best[0] else f"the {best[0]}"] += 1
        if kinds:
            said.append(f"into {component} {words.join_words([f'{name} in {n}' for name, n in kinds.most_common()])}")
            counts.append(Estimate(component, kinds["the previous-token head"] / kinds.total(), n=kinds.total()))
    if not said:
        return None
    text = f"Most to its own answer is put {words.join_words(said)} of {words.several(len(numbers.formed), 'model')}."
    what = "models in which the previous-token head puts most"
    return Finding("makers", text, "of the models", tuple(counts), what=what, per="seed", signed=False)


def _makers(numbers: LookupNumbers) -> Section | None:
    """Who made q, k and v: the paths of the previous-token head and of all writers, model by model, and through training."""
    said = present(_previous(numbers), _most(numbers))
    if not said:
        return None
    rows = []
    for seed in numbers.seeds:
        head, last = numbers.previous_head(seed), numbers.last(seed)
        mine, every = numbers.previous(seed, last), {c: numbers.path(seed, ALL, c, last) for c in PARTS}
        best = {c: numbers.most(seed, c) for c in PARTS}
        name = f"{head.layer}.h{head.head} ({words.number(head.value, places=2)})"
        cells = [
            f"{words.number(row['direct'], True)} of {words.number((every[c] or row)['direct'], True)}"
            for c, row in mine.items()
        ]
        rest = [words.number(mine.get("k", {}).get(key), True) for key in ("own", "own_unrelated")]
        most = [
            f"{of[0]} {words.number(of[1]['own'], True)} ({words.number(of[1]['own_unrelated'], True)})" if of else "–"
            for of in best.values()
        ]
        rows.append((f"{seed}{'' if seed in numbers.formed else ' (not formed)'}", name, *cells, *rest, *most))
    columns = (
        *(
            "Seed",
            "previous-token head",
            "through q",
            "through k",
            "through v",
            "k's own answer gains",
            "unrelated donor",
        ),
        *(f"most to {c}'s own answer" for c in PARTS),
    )
    caption = (
        "Fall of the base's answer's log-probability, nats, where the donor's contribution of that head (its weight on the piece before "
        "in brackets) reaches q, k or v of the layer of induction heads alone, of what all writers together do there; any text lowers "
        "it as much. What is said shows in the shift to a component's own answer (in brackets from an unrelated donor)"
    )
    panels = []
    others = [seed for seed in numbers.seeds if seed not in numbers.formed]
    for title, seeds in (("Models that formed heads", [*numbers.formed]), ("Models that did not", others)):
        at = {seed: {step: numbers.previous(seed, step) for step in numbers.steps} for seed in seeds}
        curves = {
            c: {seed: [(step, of[c]["direct"]) for step, of in steps.items() if c in of] for seed, steps in at.items()}
            for c in PARTS
        }
        if any(points for of in curves.values() for points in of.values()):
            panels.append(_curves(title, "nats", curves))
    key = tuple(LegendEntry(c, (look := render.mark(c)).colour, look.shape) for c in PARTS)
    about = (
        "Fall of the base's answer by way of the previous-token head's path into q, k and v, by step of training; thin lines are seeds. "
        f"Before the heads form nothing may be found. {words.sample(len(numbers.seeds), 'seed')}."
    )
    figure = Figure(
        "lookup-paths", "", "When the previous-token head makes the keys", about, tuple(panels), key, at="step"
    )
    return Section(
        "Who made them?", tuple(map(str, said)), (figure,), (Table(columns, tuple(rows), caption, folded=False),)
    )


def _first(numbers: LookupNumbers) -> Finding | None:
    """In which order the components take up their roles."""
    taken = {c: {s: at for s in numbers.formed if (at := numbers.takes_up(s, c)) is not None} for c in PARTS}
    if not all(taken.values()):
        return None
    means = [f"{c} at step {words.count(round(fmean(of.values())))}" for c, of in taken.items()]
    both = set.intersection(*(set(of) for of in taken.values()))
    firsts = Counter("+".join(c for c in PARTS if taken[c][s] == min(of[s] for of in taken.values())) for s in both)
    order = words.join_words([f"{name} in {count}" for name, count in firsts.most_common()])
    text = (
        f"Half of its lead is reached by {words.join_words(means)} (means over models); "
        f"first of the three is {order} of {len(both)} models."
    )
    values = tuple(Estimate(c, fmean(of.values()), n=len(of)) for c, of in taken.items())
    return Finding(
        "takes_up",
        text,
        "steps",
        values,
        what="step at which a component's role is half there",
        per="seed",
        signed=False,
    )


def _worked_pair(numbers: LookupNumbers) -> Table | None:
    """One pair in four lines: the base, the donor, the predicted answers, what came."""
    pairs: dict[tuple[int, int], dict[str, Mapping[str, object]]] = {}
    for row in numbers.examples.iter_rows(named=True):
        if row["seed"] in numbers.formed and row["layer"] == numbers.induction_head(row["seed"]).layer:
            pairs.setdefault((row["seed"], row["pair"]), {})[row["component"]] = row
    whole = [of for of in pairs.values() if set(of) == set(PARTS)]
    if not whole:
        return None
    came = [of for of in whole if all(of[c]["came"] == c for c in PARTS)]
    shown = (came or whole)[0]
    row = shown["q"]
    rows = (
        ("base", f"{row['base']} →{row['answer_base']}"),
        ("donor", f"{row['donor']} →{row['answer_donor']}"),
        ("predicted", "; ".join(f"{c} from the donor: {str(row[f'answer_{c}']).strip()}" for c in PARTS)),
        ("came", "; ".join(f"{c} from the donor: {str(shown[c]['answer']).strip()}" for c in PARTS)),
    )
    which = "the first in which all three predictions came" if came else "the first; none had all three come"
    text = (
        "Each text is a window of the validation text with one of its words behind it as a question; the answer is the word that "
        f"followed it there. This is {which} of {words.several(len(whole), 'pair')} (in all models with induction heads); in {len(came)} "
        "all three came."
    )
    return Table(("", "text"), rows, f"One worked pair. {text}", prose=True, folded=False, label="One worked pair")


def _roles(numbers: LookupNumbers) -> Section | None:
    """q, k and v, each with a sentence and its number beside the control's, and a row for each model."""
    said = present(*(_role(numbers, component) for component in PARTS))
    if not said:
        return None
    rows = []
    for component in PARTS:
        for seed, one in numbers.shifts(component, numbers.last).items():
            nats = [words.number(value, True) for value in (one.own, one.other, one.unrelated, one.residual)]
            share = "–" if one.share is None else words.share(one.share)
            rows.append((f"{component}, seed {seed}", *nats, share, words.share(one.kept)))
    columns = (
        "From the donor",
        "own answer",
        "largest other",
        "unrelated donor",
        "residual stream",
        "own answer came",
        "answered",
    )
    caption = "Shift of log-probability against the base's answer, nats, over all pairs; shares are of pairs whose two texts are answered"
    drawn = []
    for name, title in (("own", "Its own answer"), ("other", "Largest other"), ("unrelated", "Unrelated donor")):
        values = tuple(e._replace(name=one.measure[-1]) for one in said for e in one.values if e.name == name)
        drawn.append(Finding(name, "", "nats", values, title=title))
    about = (
        "One of q, k and v from another text, in the layer of the induction head: how far the answer that it predicts gains on the "
        "base's, the largest gain of any other answer, and its own answer's gain with an unrelated donor. "
        f"{words.sample(len(numbers.formed), 'model')}."
    )
    figures = present(small_multiples("lookup-roles", "What q, k and v from another text do", about, drawn))
    tables = present(_worked_pair(numbers), Table(columns, tuple(rows), caption, folded=True, label="Model by model"))
    return Section("What do q, k and v say?", (), figures, tables, blocks=(Section("In words", tuple(map(str, said))),))


def _through_training(numbers: LookupNumbers) -> Section | None:
    """The lead of each component's own answer by step, in models that formed and in those that did not."""
    first, panels = _first(numbers), []
    others = [seed for seed in numbers.seeds if seed not in numbers.formed]
    for title, seeds in (("Models that formed heads", [*numbers.formed]), ("Models that did not", others)):
        curves = {
            component: {
                seed: [
                    (at, one.excess) for at in numbers.steps if (one := numbers.shift(seed, component, at)) is not None
                ]
                for seed in seeds
            }
            for component in PARTS
        }
        if any(points for of in curves.values() for points in of.values()):
            panels.append(_curves(title, "nats", curves))
    if not panels:
        return None
    caption = (
        "Shift to a component's own answer less the largest shift to another's, by step of training; thin lines are seeds. "
        f"Before the heads form nothing may be found. {words.sample(len(numbers.seeds), 'seed')}."
    )
    ends = [
        f"{c} {words.number(fmean(of), True)}"
        for c in PARTS
        if (of := [one.excess for seed in others if (one := numbers.shift(seed, c, numbers.last(seed))) is not None])
    ]
    told = (
        f"In the {words.several(len(others), 'model')} that did not form them it ends at {words.join_words(ends)} nats."
        if ends
        else None
    )
    key = tuple(LegendEntry(c, (look := render.mark(c)).colour, look.shape) for c in PARTS)
    figure = Figure(
        "lookup-training", "", "When q, k and v take up their roles", caption, tuple(panels), key, at="step"
    )
    return Section("Which of them comes first?", present(None if first is None else str(first), told), (figure,))


def _formation(numbers: LookupNumbers) -> Section:
    """When the heads form: their weight and what a repetition saves, by step, and a row for each seed."""
    lines = (
        ("weight", "Weight of the best induction head", "share of attention", numbers.weights),
        ("gain", "What a repetition saves", "nats", numbers.savings),
    )
    panels = [_curves(title, unit, {"": of}) for _, title, unit, of in lines]
    last = numbers.steps[-1] if numbers.steps else 0.0
    rows = []
    for seed in numbers.seeds:
        head, when = numbers.induction_head(seed), numbers.formed.get(seed)
        texts = [words.number(numbers.loss(seed, part, last)) for part in ("text", "first", "second")]
        formed = words.count(round(when)) if when is not None else "not formed"
        rows.append((str(seed), formed, f"{head.layer}.{head.head}", words.number(head.value), *texts))
    caption = (
        "By step of training, a thin line for each seed, their mean bold. Left: the largest mean attention weight of any head on the "
        f"piece after the earlier copy, on random pieces that come twice. Right: their loss the first time less that the second time. "
        f"{words.sample(len(numbers.seeds), 'seed')}."
    )
    columns = ("Seed", "formed at step", "head", "its weight", "loss on text", "random, first", "random, again")
    table = Table(columns, tuple(rows), f"After {words.count(round(last))} steps; losses in nats a piece", folded=False)
    figure = Figure("lookup-formation", "", "When induction heads form", caption, tuple(panels), at="step")
    return Section("When do they learn to look up?", (str(_share_formed(numbers)), RULE), (figure,), (table,))


def _curves(title: str, unit: str, found: Mapping[str, Mapping[int, Sequence[tuple[float, float]]]]) -> Panel:
    """Curves by step: a line for each name with its seeds; q, k and v have their own looks."""
    lines = []
    for number, (name, seeds) in enumerate(found.items()):
        look = render.mark(name) if name else None
        series = tuple(
            Series(
                Measure(title, unit),
                name,
                f"seed {seed}",
                seed,
                tuple(at for at, _ in points),
                tuple(value for _, value in points),
            )
            for seed, points in seeds.items()
            if points
        )
        colour, shape = (render.BASELINE, None) if look is None else (look.colour, look.shape)
        lines.append(CurveLine(name, colour, GREY[number % len(GREY)] if look is None else (), series, shape))
    values = [value for line in lines for one in line.series for value in one.values]
    return curve_panel(title, lines, around(values, unit, zero=True), "step")
