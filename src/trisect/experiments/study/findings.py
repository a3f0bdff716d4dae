"""Findings: what a study found, method by method, its controls and ties among them, as data with the words made from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
from trisect.report.format import by_site, compare_by_seed, interval, number_words, of_seeds
from trisect.report.sheet import NAMES, Section, answers_of, open_section, opening, picture_of, sure, verdict_findings

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
        "A key is what a token is matched on",
        "the keys of a reordered text",
        "looks at the wrong position: the one where the asked item stands in the other text",
    ),
    "v": (
        "A value is what is passed on when a token is attended to",
        "the values of a text with other pairings",
        "finds the right position and gives what the other text has there",
    ),
}
COSTS = {
    "mean ablation": "replaced by their mean",
    "rewinding": "put back to where training began",
    "freezing": "held at their initial weights all through training",
}


Cost = tuple[str, bool, dict[str, dict[int, float]]]  # how, whether in all layers at once, nats by component and seed


def answer_findings(rows: StudyRows) -> Iterator[Finding]:
    """A finding for each of q, k and v, as far as the rows carry one: what it does, or else what taking it away costs."""
    yield from _roles(rows) if rows.measure(OWN, "valid") else _costs(rows)


def answer_sentence(rows: StudyRows) -> str:
    """The answers for q, k and v as one sentence with its numbers; empty where there are none."""
    answers = answers_of(answer_findings(rows))
    if not answers:
        return ""
    if answers[0].unit == "of pairs":
        shares = words.join_words(
            [f"its {NAMES[one.groups[0]]} in {percent(one.values[0].mean or 0.0, 1)}" for one in answers]
        )
        return f"With one part of another text in place of its own, the model gives the answer that this predicts: {shares} of pairs."
    first = answers[0].values[0].name
    sizes = [
        (words.COMPONENT[one.groups[0]].replace("the", "its"), words.number(one.values[0].mean, True))
        for one in answers
    ]
    (name, size), *others = sizes
    rest = "".join(f", with {other} by {more}" for other, more in others)
    where = (
        "all layers"
        if any(whole for how, whole, _ in _costs_of(rows) if how == first)
        else "one layer, mean over layers"
    )
    done = COSTS[first]
    return f"With {name} {done} in {where}, the model's validation loss changes by {size} nats{rest}."


def _roles(rows: StudyRows) -> Iterator[Finding]:
    """From interchange at the layer that reads: which answer comes with a donor's q, k or v."""
    for component in NAMES:
        at = {name: by_site(rows.measure(name, "valid")).get(f"{component}@{roles.LAYER}") for name in COLUMNS}
        own, others = at[OWN], at[OTHERS]
        if own is None or others is None:
            continue
        thesis, donor, does = DOES[component]
        share = f"{number_words(own, text=lambda value: percent(min(1.0, max(0.0, value)), 1))} of pairs"
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
        values = tuple(Estimate(column, *mean) for name, column in COLUMNS.items() if (mean := at[name]) is not None)
        yield _answer(component, said, "of pairs", values, "role")


def _costs(rows: StudyRows) -> Iterator[Finding]:
    """What a language model loses: how much each matters, which is not what it does."""
    costs = _costs_of(rows)
    for component, name in NAMES.items():
        mine = {how: interval(list(of[component].values())) for how, _, of in costs if component in of}
        if not mine:
            continue
        everywhere = all(whole for how, whole, _ in costs if how in mine)
        where = "in all layers" if everywhere else "in one layer (mean over layers)"
        parts = [f"{words.mean_words(mean, 'nats')} with them {COSTS[how]}" for how, mean in mine.items()]
        named = words.COMPONENT[component].removeprefix("the ")
        said = f"How much the model needs its {named} {where}, by what the validation loss changes: {words.join_words(parts)}."
        values = tuple(Estimate(how, *mean) for how, mean in mine.items())
        yield _answer(component, said, "nats", values, f"cost of the {name}")


def _answer(component: str, said: str, unit: str, values: tuple[Estimate, ...], what: str) -> Finding:
    title = NAMES[component].capitalize()
    return Finding("answer", said, unit, values, title=title, what=what, groups=(component,), per="seed")


def _costs_of(rows: StudyRows) -> list[Cost]:
    """Mean ablation, rewinding and freezing of q, k and v in all layers at once where that was done, else layer by layer."""
    found = {
        "mean ablation": rows.measure("ablate_rise_nats", "valid"),
        "rewinding": rows.rewound("rewind_loss_nats"),
        "freezing": rows.effects("freeze", "valid"),
    }
    costs, layers = list[Cost](), rows.statement("model").get("layers")
    for how, points in found.items():
        single = {component: values for component, values in sorted(of_seeds(points).items()) if component in NAMES}
        whole: dict[str, dict[int, float]] = {}
        for p in points:
            site = Site.parse(p.site)
            everywhere = site.layers is None or (layers and len(site.layers) == layers)
            if everywhere and not site.heads and "+".join(site.components) in NAMES:
                whole.setdefault(site.components[0], {})[p.seed] = p.value
        everywhere = len(whole) == len(NAMES)
        costs += [(how, everywhere, whole if everywhere else single)] if points else []
    return [cost for cost in costs if cost[1]] or costs


def comparisons(rows: StudyRows) -> Iterator[Finding]:
    """Which of q, k and v costs most, by paired differences over seeds, one finding an intervention."""
    for how, everywhere, by_seed in _costs_of(rows):
        found = compare_by_seed({c: by_seed[c] for c in NAMES if c in by_seed}, study_words.MARGIN)
        if found is None:
            continue
        name, where = ("all_layers", "in all layers") if everywhere else ("each_layer", "layer by layer")
        values = tuple(Estimate(c, *interval(list(v.values()))) for c, v in by_seed.items())
        said = f"{', '.join(f'{e.name} {words.number(e.mean or 0.0, True)}' for e in values)} nats: {found.words()}."
        yield Finding(
            name,
            said,
            "nats",
            values,
            found.words(),
            title=f"{how.capitalize()} {where}",
            what=f"{how} {where}, change of the validation loss",
            groups=(how,),
            per="seed",
            compared=found,
        )


def sections(rows: StudyRows, checks: Sequence[Check], found: Sequence[Finding]) -> tuple[Section, ...]:
    """The first screen: the answer, how sure it is, and what could not be distinguished."""
    answers, many = answers_of(found), words.several(len(rows.seeds), "seed")
    shares = (
        f"Which answer comes when one of q, k and v is another text's: its own prediction, another component's, or the answer as it was. "
        f"The three predict different answers, so that it shows which of them does what. Means over {many}, 95 % intervals."
    )
    costs = f"What the validation loss changes by when q, k or v of the model is ablated: means over {many}, 95 % intervals."
    alone = " One seed gives numbers and no verdict: training varies." if len(rows.seeds) == 1 else ""
    said = [f"{words.capital(many)}: every interval is over models trained from another start.{alone}"]
    said += [f"{'Holds' if check.ok else 'Does not hold'}: {check.name}." for check in checks]
    wholes = {r["claim"]: r["verdict"] for r in rows.claims.iter_rows(named=True) if r["part"] is None}
    one = roles.CLAIMS[0]
    if one.id in wholes:
        said.append(f"Claim {one.id} ({one.sentence.rstrip('.')}), fixed before these data: {wholes[one.id]}.")
    return (
        opening(answers, picture_of(answers, shares, costs), _more(rows), none=_none(rows)),
        sure(said),
        open_section(found, planted.uninformative_methods(rows)),
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
        f"This study has no interchange, rewinding, freezing or mean ablation, and what it has ({words.join_words(done or edits)}) "
        "does not answer this question: its numbers are below."
    )


def _more(rows: StudyRows) -> tuple[str | Markup, ...]:
    """Which command asks what this study does not, and which shows it at work."""
    see = Markup(
        "See it at work: <code>trisect theory</code> works attention out by hand, "
        '<code>trisect explore STUDY "some words" --out page.html</code> shows a model of this study head by head.'
    )
    if rows.measure(OWN, "valid"):
        return (see,)
    return (
        Markup(
            "These numbers say how much each matters, not what it does. <code>trisect study roles</code> asks that where the truth is "
            "known, <code>trisect patch STUDY --task induction --corpus CORPUS</code> of a model of this study, "
            "<code>trisect patch MODEL --task bindings</code> of any model that answers in context."
        ),
        see,
    )


def collect(rows: StudyRows) -> tuple[Finding, ...]:
    """The answer and what it rests on; then attacks, rewinding and freezing, controls, probes, erasure and ties, where there are such."""
    return (
        *answer_findings(rows),
        *comparisons(rows),
        *planted.findings(rows),
        *study_words.findings(rows),
        *figures.control_findings(rows),
        *figures.dose_findings(rows),
        *removal.removal_findings(rows),
        *removal.tying_findings(rows),
    )


def with_verdicts(rows: StudyRows) -> tuple[Finding, ...]:
    """Every claim's verdict, then what was found."""
    return (*verdict_findings(rows.claims), *collect(rows))
