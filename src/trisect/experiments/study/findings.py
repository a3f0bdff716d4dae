"""Findings: what a study found, method by method, its controls and ties among them, as data with the words made from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import polars as pl
from markupsafe import Markup

from trisect.claims import Check
from trisect.core.finding import Estimate, Finding
from trisect.core.printable import percent
from trisect.core.site import Site
from trisect.experiments.study import figures, planted, removal
from trisect.experiments.study import words as study_words
from trisect.experiments.study.rows import StudyRows
from trisect.papers import roles
from trisect.report import format as words
from trisect.report.charts import Figure
from trisect.report.format import Point, interval, paired, spoken_subject
from trisect.report.sheet import NAMES, Section, answered, opening, picture_of, sure, undecided, verdict_findings

OWN, OTHERS, UNCHANGED = "interchange_own", "interchange_others", "interchange_unchanged"
COLUMNS = {OWN: "its own", OTHERS: "another's", UNCHANGED: "unchanged"}
MOSTLY = 0.5
DOES = {
    "q": (
        "A query says what is looked for",
        "the query of a text that asks something else",
        "answers that question, from its own text",
    ),
    "k": (
        "A key says by what a thing is found",
        "the keys of a text in another order",
        "takes what its own text has at the place where the other one has the thing asked for",
    ),
    "v": (
        "A value is what is handed over",
        "the values of a text that pairs things otherwise",
        "finds the right place by itself and gives what the other text has there",
    ),
}
COSTS = {
    "mean ablation": "replaced by their mean",
    "rewinding": "put back to where training began",
    "freezing": "held at their initial weights all through training",
}


class Cost(NamedTuple):
    """What one intervention on one component in all layers (or in one, on average) costs, by seed, in nats."""

    how: str
    everywhere: bool
    by_seed: Mapping[str, Mapping[int, float]]


def answer_findings(rows: StudyRows) -> Iterator[Finding]:
    """A finding for each of q, k and v, as far as the rows carry one: what it does, or else what taking it away costs."""
    yield from _roles(rows) if rows.measure(OWN, "valid") else _costs(rows)


def _roles(rows: StudyRows) -> Iterator[Finding]:
    """From interchange at the layer that reads: which answer comes with a donor's q, k or v."""
    for component in NAMES:
        at = {
            name: [p.value for p in rows.measure(name, "valid") if p.site == f"{component}@{roles.LAYER}"]
            for name in COLUMNS
        }
        means = {name: interval(values) if values else None for name, values in at.items()}
        own, others = means[OWN], means[OTHERS]
        if own is None or others is None:
            continue
        thesis, donor, does = DOES[component]
        share = f"{spoken_subject(own, text=lambda value: percent(min(1.0, max(0.0, value)), 1))} of pairs"
        low = own.low if own.low is not None or own.n < 2 else own.mean  # the same in all seeds: its own interval
        clear = low is not None and low > roles.OWN and others.mean < roles.OTHER
        said = (
            f"{thesis}: with {donor} in the place of its own, the model {does}, in {share}; in {percent(others.mean, 1)} it answers as "
            "another component would have it."
        )
        if own.n < 2:
            said = f"One model, which decides nothing: with {donor} the model {does}, in {share}."
        elif not clear and own.mean > MOSTLY:
            said = f"Mostly, {thesis[0].lower()}{thesis[1:]}: with {donor} the model {does}, in {share} only."
        elif not clear:
            said = f"Not shown here: with {donor} the model {does} in no more than {share}."
        values = tuple(Estimate(column, *mean) for name, column in COLUMNS.items() if (mean := means[name]) is not None)
        yield _answer(component, said, "of pairs", values, "role")


def _costs(rows: StudyRows) -> Iterator[Finding]:
    """What a language model loses: how much each matters, which is not what it does."""
    costs = costs_of(rows)
    for component, name in NAMES.items():
        mine = [(cost, interval(list(cost.by_seed[component].values()))) for cost in costs if component in cost.by_seed]
        if not mine:
            continue
        where = "in all layers" if all(cost.everywhere for cost, _ in mine) else "in one layer (mean over layers)"
        parts = [f"{words.spoken(mean, 'nats')} with them {COSTS[cost.how]}" for cost, mean in mine]
        named = words.COMPONENT[component].removeprefix("the ")
        said = (
            f"How much the model needs its {named} {where}, by what the validation loss changes: {words.listed(parts)}."
        )
        values = tuple(Estimate(cost.how, *mean) for cost, mean in mine)
        yield _answer(component, said, "nats", values, f"cost of the {name}")


def _answer(component: str, said: str, unit: str, values: tuple[Estimate, ...], what: str) -> Finding:
    title = NAMES[component].capitalize()
    return Finding("answer", said, unit, values, title=title, what=what, groups=(component,), per="seed")


def costs_of(rows: StudyRows) -> list[Cost]:
    """Mean ablation, rewinding and freezing of q, k and v in all layers at once where that was done, else layer by layer."""
    curves = rows.measure("rewind_loss_nats", "valid")
    final = {(p.site, p.seed): p.value for p in curves if p.at == 1.0}
    rewound = [
        p._replace(value=p.value - final[p.site, p.seed]) for p in curves if p.at == 0.0 and (p.site, p.seed) in final
    ]
    found = {
        "mean ablation": rows.measure("ablate_rise_nats", "valid"),
        "rewinding": rewound,
        "freezing": rows.effects("freeze", "valid"),
    }
    costs = [_cost(rows, how, points) for how, points in found.items() if points]
    return [cost for cost in costs if cost.everywhere] or costs


def _cost(rows: StudyRows, how: str, points: Sequence[Point]) -> Cost:
    layers = ((rows.about.get("experiment") or {}).get("model") or {}).get("layers")
    whole: dict[str, dict[int, float]] = {}
    single: dict[str, dict[int, list[float]]] = {}
    for point in points:
        site = Site.parse(point.site)
        if len(site.components) != 1 or site.components[0] not in NAMES or site.heads:
            continue
        if site.layers is None or (layers and len(site.layers) == layers):
            whole.setdefault(site.components[0], {})[point.seed] = point.value
        if site.layers is not None and len(site.layers) == 1:
            single.setdefault(site.components[0], {}).setdefault(point.seed, []).append(point.value)
    if len(whole) == len(NAMES):
        return Cost(how, True, whole)
    return Cost(how, False, {c: {s: sum(x) / len(x) for s, x in of.items()} for c, of in single.items()})


def compared(rows: StudyRows) -> Iterator[Finding]:
    """Which of q, k and v costs most, by paired differences over seeds, one finding an intervention."""
    for cost in costs_of(rows):
        found = paired({c: cost.by_seed[c] for c in NAMES if c in cost.by_seed}, study_words.MARGIN)
        if found is None:
            continue
        where = "in all layers" if cost.everywhere else "layer by layer"
        title = f"{cost.how.capitalize()} {where}"
        values = tuple(Estimate(c, *interval(list(v.values()))) for c, v in cost.by_seed.items())
        said = f"{', '.join(f'{e.name} {words.number(e.mean or 0.0, True)}' for e in values)} nats: {found.words()}."
        name = "all_layers" if cost.everywhere else "each_layer"
        yield Finding(
            name,
            said,
            "nats",
            values,
            found.words(),
            title=title,
            what=f"{cost.how} {where}, change of the validation loss",
            groups=(cost.how,),
            per="seed",
            compared=found,
        )


def sections(rows: StudyRows, checks: Sequence[Check], found: Sequence[Finding]) -> tuple[Section, ...]:
    """The first screen: the answer, how sure it is, and what could not be distinguished."""
    answers = answered(found)
    return (
        opening(answers, figure(rows, answers), _more(rows), none=_none(rows)),
        sure(_sure(rows, checks)),
        undecided(found, planted.blind(rows)),
    )


def _none(rows: StudyRows) -> str:
    """Why a study has no answer: nothing was run, or what was run has no number for each of q, k and v that can be compared."""
    done = list(dict.fromkeys(method.measure for method in study_words.methods(rows)))
    # freezing would answer, once there is a baseline; attacks that no method shows are controls, or have no baseline yet
    edits = rows.metrics.filter(~pl.col("edit").is_in(["none", "freeze"]))["edit"].unique().sort().to_list()
    edits = ["controls of attacks" if edit == "attack" and not rows.labels else edit for edit in edits]
    if not (done or edits):
        return "No intervention has numbers yet, so there is no answer."
    return (
        f"This study has no interchange, rewinding, freezing or mean ablation, and what it has ({words.listed(done or edits)}) "
        "does not answer this question: its numbers are below."
    )


def figure(rows: StudyRows, answers: Sequence[Finding]) -> Figure | None:
    """The numbers of the three sentences in one picture."""
    many = words.several(len(rows.seeds), "seed")
    shares = (
        f"Which answer comes when one of q, k and v is another text's: its own prediction, another component's, or the answer as it was. "
        f"The three predict different answers, so that it shows which of them does what. Means over {many}, 95 % intervals."
    )
    costs = f"What the validation loss changes by when q, k or v of the model is ablated: means over {many}, 95 % intervals."
    return picture_of(answers, shares, costs)


def _more(rows: StudyRows) -> tuple[str | Markup, ...]:
    """Which command asks what this study does not, and which shows it at work."""
    code = Markup("<code>{}</code>").format
    see = Markup("See it at work: {} works attention out by hand, {} shows a model of this study head by head.").format(
        code("trisect theory"), code('trisect explore STUDY "some words" --out page.html')
    )
    if rows.measure(OWN, "valid"):
        return (see,)
    return (
        Markup(
            "These numbers say how much each matters, not what it does. {} asks that where the truth is known, {} of a "
            "model of this study, {} of any model that answers in context."
        ).format(
            code("trisect study roles"),
            code("trisect patch STUDY --task induction --corpus CORPUS"),
            code("trisect patch MODEL --task bindings"),
        ),
        see,
    )


def _sure(rows: StudyRows, checks: Sequence[Check]) -> list[str]:
    many = words.several(len(rows.seeds), "seed")
    alone = " One seed gives numbers and no verdict: training varies." if len(rows.seeds) == 1 else ""
    said = [f"{many[0].upper()}{many[1:]}: every interval is over models trained from another start.{alone}"]
    said += [f"{'Holds' if check.ok else 'Does not hold'}: {check.name}." for check in checks]
    wholes = {r["claim"]: r["verdict"] for r in rows.claims.iter_rows(named=True) if r["part"] is None}
    if roles.CLAIMS[0].id in wholes:
        one = roles.CLAIMS[0]
        said.append(f"Claim {one.id} ({one.sentence.rstrip('.')}), fixed before these data: {wholes[one.id]}.")
    return said


def found(rows: StudyRows) -> tuple[Finding, ...]:
    """The answer and what it rests on; then attacks, rewinding and freezing, controls, probes, erasure and ties, where there are such."""
    return (
        *answer_findings(rows),
        *compared(rows),
        *planted.findings(rows),
        *study_words.findings(rows),
        *figures.control_findings(rows),
        *figures.dose_findings(rows),
        *removal.removal_findings(rows),
        *removal.tying_findings(rows),
    )


def with_verdicts(rows: StudyRows) -> tuple[Finding, ...]:
    """Every claim's verdict, then what was found."""
    return (*verdict_findings(rows.claims), *found(rows))
