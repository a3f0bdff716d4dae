"""A lookup study's page: a worked pair, what q, k and v each say, what writes them, and when in training each takes up its role."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from trisect.claims.models import judge_models
from trisect.core.finding import About, Estimate, Finding
from trisect.core.tables import SCHEMAS, frame
from trisect.papers.lookup import SOURCE
from trisect.papers.submodules import MARGIN
from trisect.report import format as words
from trisect.report import render
from trisect.report.charts import CurveLine, Figure, LegendEntry, Measure, Panel, Series, axis_for, curve_panel
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
from trisect.stats.paired import compare

if TYPE_CHECKING:
    from trisect.experiments.lookup.settings import LookupFacts

WEIGHT, GAIN = 0.2, 1.0  # least attention weight and gain of a repetition (nats) of a model with induction heads
EXCESS = 1.0  # nats by which the answer predicted for a component has to exceed all others
StepValue = tuple[float, float]
PARTS = ("q", "k", "v")
ALL = "all writers"  # their sum, as in the tables of `trisect compose`


class Shift(NamedTuple):
    """Shift of log-probability from the base's answer to another in one model at one checkpoint, in nats, and its frequency.

    `own` is the shift to the answer predicted for the component, `other` the largest to any other prediction (k+v's and the
    donor's too), `unrelated` the own one with an unrelated donor, `residual` with the donor's residual stream; None: not known.
    """

    own: float
    other: float
    unrelated: float | None
    residual: float | None
    share: float | None
    answered: float

    @property
    def excess(self) -> float:
        """The shift to the own answer less the largest other."""
        return self.own - self.other


@dataclass(frozen=True, eq=False)
class LookupNumbers:
    """The tables of a study's plain models, or of those with one edit."""

    measures: Measures
    predictions: pl.DataFrame
    examples: pl.DataFrame
    paths: pl.DataFrame
    gains: pl.DataFrame
    claims: pl.DataFrame

    @classmethod
    def of(cls, tables: Mapping[str, pl.DataFrame], edit: str = "") -> LookupNumbers:
        """Read the tables; a missing one counts as empty."""
        measures = tables["measures"] if "measures" in tables else frame("measures", ())
        measures = measures.filter(pl.col("subject").str.contains(rf"^{edit.replace('+', r'[+]')}-?seed-[0-9]+$"))
        measures = measures.with_columns(subject=pl.col("subject").str.strip_prefix(f"{edit}-"))
        columns: dict[str, Any] = dict.fromkeys(("seed", "step"), pl.Int64)
        none = pl.DataFrame(schema=columns | dict.fromkeys(("site", "into", "writer"), pl.String))
        patched = [tables.get(name, none) for name in ("predictions", "examples", "paths", "shifts")]
        patched = [t.filter(pl.col("edit").fill_null("") == edit) if "edit" in t.columns else t for t in patched]
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
        """A loss in nats per token: on the text, or on the first or second copy of random tokens."""
        return self.measures.where(f"{part}_nats", subject=f"seed-{seed}", at=step).mean

    @cached_property
    def weights(self) -> dict[int, Sequence[StepValue]]:
        """The largest induction weight of any head by step."""
        weights: dict[int, Sequence[StepValue]] = {}
        for seed in self.seeds:
            by_step = self.measures.where("induction", subject=f"seed-{seed}").by("at")
            weights[seed] = [(step, max(row.value for row in by_step[step])) for step in sorted(by_step)]
        return weights

    @cached_property
    def savings(self) -> dict[int, Sequence[StepValue]]:
        """Loss on random tokens less that on their repetition, by step."""
        return {
            seed: [(step, self.loss(seed, "first", step) - self.loss(seed, "second", step)) for step in self.steps]
            for seed in self.seeds
        }

    @cached_property
    def formed(self) -> dict[int, float]:
        """The step from which a model has induction heads, by seed; seeds without are left out."""
        steps = {}
        for seed in self.seeds:
            both = zip(self.weights[seed], self.savings[seed], strict=True)
            holds = [(step, weight >= WEIGHT and gain >= GAIN) for (step, weight), (_, gain) in both]
            if holds and holds[-1][1]:
                steps[seed] = next(step for i, (step, _) in enumerate(holds) if all(on for _, on in holds[i:]))
        return steps

    def induction_head(self, seed: int) -> MeasuredValue:
        """The head with the largest induction weight at the last checkpoint; the first layer has none."""
        rows = self.measures.where("induction", subject=f"seed-{seed}", at=self.steps[-1])
        return max((row for row in rows if (row.layer or 0) > 1), key=lambda row: row.value)

    def previous_head(self, seed: int) -> MeasuredValue:
        """The head in an earlier layer with the largest weight on the previous token, at the last checkpoint."""
        rows, layer = (
            self.measures.where("previous", subject=f"seed-{seed}", at=self.steps[-1]),
            self.induction_head(seed).layer,
        )
        return max((row for row in rows if (row.layer or 0) < (layer or 0)), key=lambda row: row.value)

    def path(self, seed: int, writer: str, component: str, step: float) -> dict[str, float] | None:
        """Effects of the path of a writer into q, k or v of the layer of the model's induction head, in nats; None if not patched.

        `direct` is the fall of the base's answer, `own` the shift to the answer predicted for the component, `own_unrelated` that
        with an unrelated donor.
        """
        at = {"seed": seed, "step": step, "into": f"{component}@{self.induction_head(seed).layer}"}
        rows = self.paths.filter(**at)
        rows = rows.filter(writer=writer) if len(rows) else rows
        if not len(rows):
            return None
        gain = self.gains.filter(**at).filter(writer=writer, hypothesis=component).to_dicts()
        shifts = {"own": gain[0]["shift_nats"], "own_unrelated": gain[0]["unrelated_nats"]} if gain else {}
        numbers = {"direct": rows["direct"][0]} | shifts
        return {name: value for name, value in numbers.items() if value is not None}

    def previous(self, seed: int, step: float) -> dict[str, dict[str, float]]:
        """Paths of the previous-token head into q, k and v; empty if they were not patched."""
        head = self.previous_head(seed)
        paths = {c: self.path(seed, f"{head.layer}.h{head.head}", c, step) for c in PARTS}
        return {c: row for c, row in paths.items() if row is not None}

    def most(self, seed: int, component: str) -> tuple[str, dict[str, float]] | None:
        """The writer whose path shifts most to a component's own answer at the end, beyond an unrelated donor; None if none does."""
        at = self.steps[-1]
        paths = {name: self.path(seed, name, component, at) for name in self.paths["writer"].unique() if name != ALL}
        candidates = [(name, path) for name, path in paths.items() if path is not None and "own_unrelated" in path]
        best = max(candidates, key=lambda item: item[1]["own"] - item[1]["own_unrelated"], default=None)
        return None if best is None or best[1]["own"] <= best[1]["own_unrelated"] else best

    def shift(self, seed: int, component: str, step: float) -> Shift | None:
        """The shift by one component of the layer of the model's induction head; None if it was not patched."""
        layer = self.induction_head(seed).layer
        rows = self.predictions.filter(seed=seed, step=step, site=f"{component}@{layer}")
        by_name = {row["hypothesis"]: row for row in rows.iter_rows(named=True)}
        prediction = by_name.get(component)
        others = [row["shift_nats"] for name, row in by_name.items() if name not in (component, "base", "other")]
        if prediction is None or prediction["shift_nats"] is None or not set(PARTS) <= set(by_name) or None in others:
            return None
        numbers = (prediction[name] for name in ("unrelated_nats", "residual_nats", "share", "kept"))
        return Shift(prediction["shift_nats"], max(others), *numbers)

    def shifts(self, component: str, early: bool = False) -> dict[int, Shift]:
        """Shifts by a component in models with induction heads: at the last checkpoint, or `early`, at that of `before`."""
        at = {seed: self.before(seed) if early else self.steps[-1] for seed in self.formed}
        shifts = {seed: self.shift(seed, component, when) for seed, when in at.items() if when is not None}
        return {seed: shift for seed, shift in shifts.items() if shift is not None}

    def before(self, seed: int) -> float | None:
        """The last checkpoint in the first half of training up to induction heads; None if there is none."""
        return max((step for step in self.steps if step <= self.formed[seed] / 2), default=None)

    def takes_up(self, seed: int, component: str) -> float | None:
        """The step from which the shift to a component's own answer, less an unrelated donor's, is at least half of the final one."""
        shifts = [(step, self.shift(seed, component, step)) for step in self.steps]
        values = [(step, shift.own - (shift.unrelated or 0.0)) for step, shift in shifts if shift is not None]
        if not values or values[-1][1] < EXCESS:
            return None
        half = values[-1][1] / 2
        return next(step for i, (step, _) in enumerate(values) if all(value >= half for _, value in values[i:]))


def judge_lookups(numbers: LookupNumbers, about: Mapping[str, object]) -> pl.DataFrame:
    """The table `claims`, over the models that formed induction heads."""
    values: dict[str, list[float]] = {}
    for component in PARTS:
        last, before = (numbers.shifts(component, early).values() for early in (False, True))
        values[f"excess_{component}"] = [shift.excess for shift in last]
        values[f"unrelated_{component}"] = [s.own - s.unrelated for s in last if s.unrelated is not None]
        values[f"before_{component}"] = [shift.excess for shift in before]
    last = [paths for seed in numbers.formed if len(paths := numbers.previous(seed, numbers.steps[-1])) == len(PARTS)]
    for other in ("q", "v"):
        values[f"previous_k_less_{other}"] = [paths["k"]["direct"] - paths[other]["direct"] for paths in last]
    measured = [paths["k"] for paths in last if "own_unrelated" in paths["k"]]
    values["previous_k_less_unrelated"] = [row["own"] - row["own_unrelated"] for row in measured]
    before = [numbers.previous(s, step) for s in numbers.formed if (step := numbers.before(s)) is not None]
    values["before_previous_k"] = [paths["k"]["direct"] for paths in before if "k" in paths]
    return judge_models(SOURCE, {name: numbers_of for name, numbers_of in values.items() if numbers_of}, about)


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
    """The page; sections without data are left out."""
    numbers, facts = LookupNumbers.of(tables), about.facts
    sections = present(
        *answer_sections(numbers),
        _edited(tables),
        _through_training(numbers),
        _formation(numbers),
        Section("Results of the claims", cards=numbers.claims) if len(numbers.claims) else None,
        notes_section(about),
    )
    trained = f"{words.quantity(len(numbers.seeds), 'language model')} trained on {facts.corpus.partition(', fingerprint')[0]}"
    pairs = max((row.get("used") or 0 for row in numbers.predictions.iter_rows(named=True)), default=0)
    edits = f" · as many with {words.join_words([_edit_words(edit) for edit in _edits(tables)])}" * bool(_edits(tables))
    shown = f" · {words.quantity(pairs, 'pair')} of texts for each" * bool(pairs)
    lede = f"{trained}{edits}{shown} · {len(numbers.formed)} with induction heads"
    settings = ", ".join(f"{name} {value}" for name, value in sorted(facts.settings.items()))
    footer = provenance(about, ("Text", facts.corpus), ("Settings", settings))
    title = "A model that looks up in real text: what do q, k and v say, and since when?"
    return Sheet(title, "trisect · lookup", lede, sections, footer, REFERENCES, answer_sentence(numbers))


def answer_sections(numbers: LookupNumbers) -> tuple[Section, ...]:
    """Sections on what q, k and v each say, with a worked pair, and on what writes them; without numbers they are left out."""
    return present(_roles(numbers), _makers(numbers))


def answer_sentence(numbers: LookupNumbers) -> str:
    """What q, k and v each say, in one sentence with its numbers and controls; empty if no model looks up."""
    roles = present(*(_role(numbers, component) for component in PARTS))
    if len(roles) < len(PARTS):
        return ""
    shown = [role for role in roles if not role.words.startswith(NOT_SHOWN)]
    own_shift, unrelated = (
        words.join_words([words.number(e.mean or 0.0, True, 1) for r in shown for e in r.values if e.name == name])
        for name in ("own", "unrelated")
    )
    if not shown:
        by_role = [{e.name: e.mean or 0.0 for e in role.values} for role in roles]
        excess = [words.number(role["own"] - max(role["other"], role["unrelated"]), True) for role in by_role]
        return (
            f"That query, key and value have these roles is not shown here: patched in from another text, the answers predicted for them "
            f"gain {words.join_words(excess)} nats against the controls, of which each model has to gain {EXCESS:g}."
        )
    theses = words.join_words([role.words.partition(":")[0].replace("The ", "the ") for role in shown])
    return (
        f"{words.capital(theses)}: patched in from another text, {'each' if len(shown) > 1 else 'it'} raises the log-odds of the answer "
        f"predicted for it, against the base's, by {own_shift} nats; from an unrelated text by {unrelated}."
    )


def findings(tables: Mapping[str, pl.DataFrame], about: About[LookupFacts]) -> tuple[Finding, ...]:
    """Models with induction heads, what q, k and v say in them, what writes these, their order in training, and every claim."""
    numbers = LookupNumbers.of(tables)
    roles = [_role(numbers, component) for component in PARTS]
    return (
        _share_formed(numbers),
        *present(*roles, _previous(numbers), _most(numbers), _first(numbers)),
        *chain(*(_edit_findings(tables, edit) for edit in _edits(tables))),
        *verdict_findings(numbers.claims),
    )


def _edits(tables: Mapping[str, pl.DataFrame]) -> list[str]:
    """The edits that further models were trained with."""
    subjects = tables["measures"]["subject"].unique().to_list() if "measures" in tables else []
    return sorted({edit for subject in subjects if (edit := subject.rpartition("-seed-")[0])})


def _training_loss(tables: Mapping[str, pl.DataFrame], edit: str, seed: int) -> float:
    """The mean loss on training rows after the last checkpoint but one, in nats per token."""
    run = f"lookup/{edit}-seed-{seed}" if edit else f"lookup/{seed}"
    return tables["metrics"].filter(run=run, name="loss_nats").sort("epoch")["value"][-1]


def _edit_words(edit: str) -> str:
    """An edit in words."""
    kind, _, components = edit.partition("-")
    matrices = words.join_words(components.split("+"))
    if kind == "tie":
        return f"one matrix for {matrices}"
    return f"the matri{'ces' if '+' in components else 'x'} of {matrices} kept as drawn"


def _excess(numbers: LookupNumbers, edit: str) -> Finding:
    """The shift to each component's own answer less the largest other or, if larger, an unrelated donor's, in all models."""
    shifts = {c: present(*(numbers.shift(s, c, numbers.steps[-1]) for s in numbers.seeds)) for c in PARTS}
    excess = {c: [s.own - max(present(s.other, s.unrelated)) for s in group] for c, group in shifts.items() if group}
    means = {c: words.interval(values) for c, values in excess.items()}
    values = tuple(Estimate(c, *m) for c, m in means.items())
    title = words.capital(_edit_words(edit)) if edit else "Plain"
    quantity = "shift to its own answer less that of its controls"
    return Finding(f"excess_{edit or 'plain'}", "", "nats", values, title=title, what=quantity, per="seed")


def _edit_findings(tables: Mapping[str, pl.DataFrame], edit: str) -> tuple[Finding, ...]:
    """How the losses of edited models differ from those of plain ones of the same seeds, and what q, k and v say in them."""
    plain, edited, edit_words = LookupNumbers.of(tables), LookupNumbers.of(tables, edit), _edit_words(edit)
    seeds, last = edited.seeds, edited.steps[-1]
    valid = {
        "edited": [edited.loss(s, "text", last) for s in seeds],
        "plain": [plain.loss(s, "text", last) for s in seeds],
    }
    train = [_training_loss(tables, edit, seed) - _training_loss(tables, "", seed) for seed in seeds]
    text_change = words.interval([a - b for a, b in zip(*valid.values(), strict=True)])
    changes = {"held-out": text_change, "training": words.interval(train)}
    pairs, margin = compare(valid, MARGIN).pairs, f"\N{PLUS-MINUS SIGN}{MARGIN:g}\u00a0nats"
    verdicts = [f"alike within {margin}" if p.alike else "different" for p in pairs if p.alike or p.above]
    ratio = f"{words.number(100 * math.expm1(text_change.mean), True, 1)}\u00a0%"
    text = (
        f"With {edit_words}, the loss on held-out text changes by {words.mean_words(text_change, 'nats')}: {(*verdicts, 'undecided')[0]}, "
        f"perplexity by {ratio}. On training rows it changes by {words.mean_words(changes['training'], 'nats')}."
    )
    values = tuple(Estimate(name, *m) for name, m in changes.items())
    excess = [_excess(edited, edit), _excess(plain, "")]
    numbers = [[f"{e.name} {words.number(e.mean, True)}" for e in finding.values] for finding in excess]
    shown, beside = map(words.join_words, numbers)
    formed = (
        f"induction heads form in {len(edited.formed)} of {words.quantity(len(seeds), 'model')}, in {len(plain.formed)} of "
        f"{len(plain.seeds)} plain ones"
    )
    formed += f"; own answers less their controls: {shown} nats, plain {beside}." if shown and beside else "."
    loss = Finding(f"loss_{edit}", text, "nats", values, what="change of the loss", per="seed")
    return loss, replace(excess[0], words=formed)


def _edited(tables: Mapping[str, pl.DataFrame]) -> Section | None:
    """Models with fewer matrices to learn, beside the plain ones; None where none was trained."""
    if not (edits := _edits(tables)):
        return None
    results = {edit: _edit_findings(tables, edit) for edit in edits}
    rows, plain = [], LookupNumbers.of(tables)
    panels = [_excess(plain, ""), *(excess for _, excess in results.values())]
    for edit in ("", *edits):
        numbers = LookupNumbers.of(tables, edit)
        for seed in numbers.seeds:
            losses = numbers.loss(seed, "text", numbers.steps[-1]), _training_loss(tables, edit, seed)
            shifts = [numbers.shift(seed, c, numbers.steps[-1]) for c in PARTS]
            gain = numbers.savings[seed][-1][1]
            cells = [*map(words.number, losses), words.number(gain, True)]
            cells += [f"{words.number(s.own, True)} ({words.number(s.other, True)})" if s else "–" for s in shifts]
            rows.append((f"{edit or 'plain'}, seed {seed}", *cells, "yes" if seed in numbers.formed else "no"))
    columns = (
        "Model",
        "held-out text",
        "training rows",
        "a repetition saves",
        *(f"{c}'s own (largest other)" for c in PARTS),
        "heads formed",
    )
    caption = "Shifts and losses at the end, in nats; that on training rows is the mean over the steps since the checkpoint before"
    about = (
        "In all models, with induction heads or without: the shift to a component's own answer with a donor's q, k or v, less the largest "
        f"shift to another answer or, if larger, that with an unrelated donor. {words.sample(len(plain.seeds), 'seed')}."
    )
    return Section(
        "Are three matrices needed?",
        (
            *(text for loss, excess in results.values() for text in (loss.words, str(excess))),
            *["Verdicts on edits are each at 5 %, not corrected for their number."] * (len(edits) > 1),
        ),
        present(small_multiples("lookup-edits", "What q, k and v say with fewer matrices", about, panels)),
        (Table(columns, tuple(rows), caption, folded=True, label="By model"),),
    )


def _share_formed(numbers: LookupNumbers) -> Finding:
    formed, seeds = numbers.formed, numbers.seeds
    steps = sorted(formed.values())
    when = f", at step {words.join_words([words.count(round(step)) for step in steps])}" if steps else ""
    text = f"Induction heads formed in {len(formed)} of {words.quantity(len(seeds), 'model')}{when}."
    value = Estimate("formed", len(formed) / len(seeds) if seeds else None, n=len(seeds))
    quantity = "models with induction heads"
    return Finding("formed", text, "of the models", (value,), what=quantity, per="seed", signed=False)


def _role(numbers: LookupNumbers, component: str) -> Finding | None:
    """The effect of one component from the donor in models with induction heads, beside an unrelated donor's."""
    shifts = numbers.shifts(component)
    if not shifts:
        return None
    means = {
        name: words.interval([value for shift in shifts.values() if (value := getattr(shift, name)) is not None])
        for name in ("own", "other", "unrelated", "residual")
    }
    own_shift, other, unrelated, residual = means.values()
    thesis, gain = ROLES[component], words.mean_words(own_shift, "nats")
    excess = own_shift.mean - max(other.mean, unrelated.mean)
    # an interval over two models says nothing: both are shown, and both have to exceed the controls
    if len(shifts) == 2:
        each = [shift for _, shift in sorted(shifts.items())]
        excess = min(shift.own - max(present(shift.other, shift.unrelated)) for shift in each)
        gain = f"{words.number(own_shift.mean, True)}\u00a0nats ({words.join_words([words.number(shift.own, True) for shift in each])})"
    if excess < EXCESS:
        thesis = f"{NOT_SHOWN}: {thesis[0].lower()}{thesis[1:]}"
    text = (
        f"{thesis}: with the donor's {component}, {ANSWERS[component]} gains {gain} on the base's, the largest "
        f"other answer {words.number(other.mean, True)}; with an unrelated donor's {words.number(unrelated.mean, True)}, with all of the "
        f"donor's residual stream there {words.number(residual.mean, True)}."
    )
    values = tuple(Estimate(name, *mean) for name, mean in means.items())
    quantity = f"shift to its own answer by {component}"
    return Finding(f"shift_{component}", text, "nats", values, what=quantity, per="seed")


def _previous(numbers: LookupNumbers) -> Finding | None:
    """Effects of the previous-token head on keys, queries and values of the layer of induction heads."""
    paths = [path for seed in numbers.formed if len(path := numbers.previous(seed, numbers.steps[-1])) == len(PARTS)]
    if not paths:
        return None
    k, q, v = (words.interval([path[c]["direct"] for path in paths]) for c in ("k", "q", "v"))
    keys = [path["k"] for path in paths]
    own_shift, unrelated = (words.interval([p[n] for p in keys if n in p]) for n in ("own", "own_unrelated"))
    text = (
        f"With the donor's contribution of the head that attends to the word before, the base's answer loses through k "
        f"{words.mean_words(k, 'nats')}, through q {words.number(q.mean, True)}, through v {words.number(v.mean, True)}; through k "
        f"k's own answer gains {words.number(own_shift.mean, True)} on it, from an unrelated donor {words.number(unrelated.mean, True)}."
    )
    values = tuple(Estimate(name, *mean) for name, mean in (("k", k), ("q", q), ("v", v)))
    return Finding("previous", text, "nats", values, what="fall by way of the previous-token head", per="seed")


def _most(numbers: LookupNumbers) -> Finding | None:
    """The writer with the largest shift through q, k and v, for each model."""
    parts, counts = [], []
    for component in PARTS:
        kinds: Counter[str] = Counter()
        for seed in numbers.formed:
            best, head = numbers.most(seed, component), numbers.previous_head(seed)
            if best is not None:
                name = "the previous-token head" if best[0] == f"{head.layer}.h{head.head}" else "another head"
                kinds[name if ".h" in best[0] else f"the {best[0]}"] += 1
        if kinds:
            parts.append(f"into {component} {words.join_words([f'{name} in {n}' for name, n in kinds.most_common()])}")
            counts.append(Estimate(component, kinds["the previous-token head"] / kinds.total(), n=kinds.total()))
    if not parts:
        return None
    text = f"Most to its own answer is put {words.join_words(parts)} of {words.quantity(len(numbers.formed), 'model')}."
    quantity = "models in which the previous-token head puts most"
    return Finding("makers", text, "of the models", tuple(counts), what=quantity, per="seed", signed=False)


def _makers(numbers: LookupNumbers) -> Section | None:
    """What writes q, k and v: paths of the previous-token head and of all writers, by model, and through training."""
    results = present(_previous(numbers), _most(numbers))
    if not results:
        return None
    rows = []
    for seed in numbers.seeds:
        head, last = numbers.previous_head(seed), numbers.steps[-1]
        paths, all_writers = numbers.previous(seed, last), {c: numbers.path(seed, ALL, c, last) for c in PARTS}
        best = {c: numbers.most(seed, c) for c in PARTS}
        name = f"{head.layer}.h{head.head} ({words.number(head.value, places=2)})"
        both = [(row["direct"], (all_writers[c] or row)["direct"]) for c, row in paths.items()]
        cells = [f"{words.number(fall, True)} of {words.number(total, True)}" for fall, total in both]
        rest = [words.number(paths.get("k", {}).get(key), True) for key in ("own", "own_unrelated")]
        largest_cells = [
            f"{top[0]} {words.number(top[1]['own'], True)} ({words.number(top[1]['own_unrelated'], True)})"
            if top
            else "–"
            for top in best.values()
        ]
        rows.append((f"{seed}{'' if seed in numbers.formed else ' (not formed)'}", name, *cells, *rest, *largest_cells))
    columns = (
        *("Seed", "previous-token head", "through q", "through k", "through v"),
        *("k's own answer gains", "unrelated donor"),
        *(f"most to {c}'s own answer" for c in PARTS),
    )
    caption = (
        "Fall of the base's answer's log-probability, nats, where the donor's contribution of that head (its weight on the piece before "
        "in brackets) reaches q, k or v of the layer of induction heads alone, of what all writers together do there; any text lowers "
        "it as much. What is said shows in the shift to a component's own answer (in brackets from an unrelated donor)"
    )
    about = (
        "Fall of the base's answer by way of the previous-token head's path into q, k and v, by step of training; thin lines are seeds. "
        f"Before the heads form there may be no effect. {words.sample(len(numbers.seeds), 'seed')}."
    )
    falls = {seed: {step: numbers.previous(seed, step) for step in numbers.steps} for seed in numbers.seeds}
    curves = {
        c: {s: [(step, site[c]["direct"]) for step, site in steps.items() if c in site] for s, steps in falls.items()}
        for c in PARTS
    }
    figure = _step_figure(numbers, "paths", "When the previous-token head makes the keys", about, curves)
    table = Table(columns, tuple(rows), caption, folded=False)
    return Section("What writes q, k and v?", tuple(map(str, results)), (figure,), (table,))


def _first(numbers: LookupNumbers) -> Finding | None:
    """The order in which the components begin to carry their roles."""
    steps = {c: {s: at for s in numbers.formed if (at := numbers.takes_up(s, c)) is not None} for c in PARTS}
    if not all(steps.values()):
        return None
    means = [f"{c} at step {words.count(round(fmean(by_seed.values())))}" for c, by_seed in steps.items()]
    both = set.intersection(*(set(by_seed) for by_seed in steps.values()))
    earliest = {s: min(by_seed[s] for by_seed in steps.values()) for s in both}
    firsts = Counter("+".join(c for c in PARTS if steps[c][s] == earliest[s]) for s in both)
    order = words.join_words([f"{name} in {count}" for name, count in firsts.most_common()])
    text = (
        f"Half of the final effect is reached by {words.join_words(means)} (means over models); "
        f"first of the three is {order} of {len(both)} models."
    )
    values = tuple(Estimate(c, fmean(by_seed.values()), n=len(by_seed)) for c, by_seed in steps.items())
    quantity = "step with half of a component's final effect"
    return Finding("takes_up", text, "steps", values, what=quantity, per="seed", signed=False)


def _worked_pair(numbers: LookupNumbers) -> Table | None:
    """One pair in four lines: base, donor, predicted answers, and answers."""
    pairs: dict[tuple[int, int], dict[str, Mapping[str, object]]] = {}
    for row in numbers.examples.iter_rows(named=True):
        if row["seed"] in numbers.formed and row["layer"] == numbers.induction_head(row["seed"]).layer:
            pairs.setdefault((row["seed"], row["pair"]), {})[row["component"]] = row
    complete = [sites for sites in pairs.values() if set(sites) == set(PARTS)]
    if not complete:
        return None
    matching = [sites for sites in complete if all(sites[c]["came"] == c for c in PARTS)]
    shown = (matching or complete)[0]
    row = shown["q"]
    rows = (
        ("base", f"{row['base']} →{row['answer_base']}"),
        ("donor", f"{row['donor']} →{row['answer_donor']}"),
        ("predicted", "; ".join(f"{c} from the donor: {str(row[f'answer_{c}']).strip()}" for c in PARTS)),
        ("came", "; ".join(f"{c} from the donor: {str(shown[c]['answer']).strip()}" for c in PARTS)),
    )
    text = (
        "Each text is a window of the validation text with one of its words behind it as a question; the answer is the word that followed "
        f"it there. In {len(matching)} of {words.quantity(len(complete), 'pair')}, all models together, all three predicted answers came; "
        f"this is the first of {'these' if matching else 'all'}."
    )
    return Table(("", "text"), rows, f"One worked pair. {text}", prose=True, folded=False, label="One worked pair")


def _roles(numbers: LookupNumbers) -> Section | None:
    """A sentence with its numbers and controls for each of q, k and v, and a row for each model."""
    roles = present(*(_role(numbers, component) for component in PARTS))
    if not roles:
        return None
    rows = []
    for component in PARTS:
        for seed, shift in numbers.shifts(component).items():
            nats = [words.number(value, True) for value in (shift.own, shift.other, shift.unrelated, shift.residual)]
            share = "–" if shift.share is None else words.share(shift.share)
            rows.append((f"{component}, seed {seed}", *nats, share, words.share(shift.answered)))
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
    panels = []
    for name, title in (("own", "Its own answer"), ("other", "Largest other"), ("unrelated", "Unrelated donor")):
        values = tuple(e._replace(name=role.measure[-1]) for role in roles for e in role.values if e.name == name)
        panels.append(Finding(name, "", "nats", values, title=title))
    about = (
        "One of q, k and v from another text, in the layer of the induction head: how far the answer that it predicts gains on the "
        "base's, the largest gain of any other answer, and the gain of its own answer with an unrelated donor. "
        f"{words.sample(len(numbers.formed), 'model')}."
    )
    figures = present(small_multiples("lookup-roles", "What q, k and v from another text do", about, panels))
    tables = present(_worked_pair(numbers), Table(columns, tuple(rows), caption, folded=True, label="By model"))
    in_words = Section("In words", tuple(map(str, roles)))
    return Section("What do q, k and v say?", (), figures, tables, blocks=(in_words,))


def _through_training(numbers: LookupNumbers) -> Section | None:
    """The excess of each component's own answer by step, in models with and without induction heads."""
    shifts = {c: {s: [(at, numbers.shift(s, c, at)) for at in numbers.steps] for s in numbers.seeds} for c in PARTS}
    curves = {
        c: {
            seed: [(at, shift.excess) for at, shift in by_step if shift is not None]
            for seed, by_step in by_seed.items()
        }
        for c, by_seed in shifts.items()
    }
    caption = (
        "Shift to a component's own answer less the largest shift to another's, by step of training; thin lines are seeds. "
        f"Before the heads form there may be no effect. {words.sample(len(numbers.seeds), 'seed')}."
    )
    figure = _step_figure(numbers, "training", "When q, k and v take up their roles", caption, curves)
    if not figure.panels:
        return None
    others, ends = [seed for seed in numbers.seeds if seed not in numbers.formed], []
    for c in PARTS:
        last = [numbers.shift(seed, c, numbers.steps[-1]) for seed in others]
        if rises := [shift.excess for shift in last if shift is not None]:
            ends.append(f"{c} {words.number(fmean(rises), True)}")
    texts = list(map(str, present(_first(numbers))))
    if ends:
        many = words.quantity(len(others), "model")
        texts.append(f"In the {many} that did not form them it ends at {words.join_words(ends)} nats.")
    return Section("Which of them comes first?", tuple(texts), (figure,))


def _step_figure(
    numbers: LookupNumbers, name: str, title: str, caption: str, curves: Mapping[str, Mapping[int, Sequence[StepValue]]]
) -> Figure:
    """Curves of q, k and v by step and seed, in a panel for models that formed induction heads and one for the others."""
    panels = []
    others = [seed for seed in numbers.seeds if seed not in numbers.formed]
    for heading, seeds in (("Models that formed heads", [*numbers.formed]), ("Models that did not", others)):
        chosen = {c: {seed: by_seed[seed] for seed in seeds} for c, by_seed in curves.items()}
        if any(points for by_seed in chosen.values() for points in by_seed.values()):
            panels.append(_curves(heading, "nats", chosen))
    key = tuple(LegendEntry(c, (look := render.mark(c)).colour, look.shape) for c in PARTS)
    return Figure(f"lookup-{name}", "", title, caption, tuple(panels), key, at="step")


def _formation(numbers: LookupNumbers) -> Section:
    """When induction heads form: their weight and the gain of a repetition by step, and a row for each seed."""
    lines = (
        ("weight", "Weight of the best induction head", "share of attention", numbers.weights),
        ("gain", "What a repetition saves", "nats", numbers.savings),
    )
    panels = [_curves(title, unit, {"": points}) for _, title, unit, points in lines]
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


def _curves(title: str, unit: str, curves: Mapping[str, Mapping[int, Sequence[StepValue]]]) -> Panel:
    """Curves by step: a line for each name with its seeds, in the colours of q, k and v."""
    lines = []
    for number, (name, seeds) in enumerate(curves.items()):
        look, series = render.mark(name) if name else None, list[Series]()
        for seed, points in seeds.items():
            if points:
                at, values = zip(*points, strict=True)
                series.append(Series(Measure(title, unit), name, f"seed {seed}", seed, at, values))
        colour, shape = (render.BASELINE, None) if look is None else (look.colour, look.shape)
        lines.append(CurveLine(name, colour, GREY[number % len(GREY)] if look is None else (), tuple(series), shape))
    values = [value for line in lines for curve in line.series for value in curve.values]
    return curve_panel(title, lines, axis_for(values, unit, zero=True), "step")
