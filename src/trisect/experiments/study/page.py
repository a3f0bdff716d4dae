"""The findings of a study and its page, from its tables alone: the answer, the verdicts, and the figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import polars as pl
from markupsafe import Markup

from trisect.claims import Check, claims_hash, listing, preconditions
from trisect.core.finding import About, Estimate, Finding
from trisect.core.printable import percent
from trisect.core.site import Site
from trisect.experiments.study import figures, planted, removal
from trisect.experiments.study import words as study_words
from trisect.experiments.study.rows import StudyRows, describe_study
from trisect.papers import roles
from trisect.report import cards, sheet
from trisect.report import format as words
from trisect.report.charts import Figure
from trisect.report.format import Mean, by_site, compare_by_seed, interval, number_words, of_seeds
from trisect.report.sheet import NAMES

if TYPE_CHECKING:
    from trisect.experiments.study.settings import StudyFacts

OWN_ANSWERS, OTHER_ANSWERS, SAME_ANSWERS = "interchange_own", "interchange_others", "interchange_unchanged"
COLUMNS = {OWN_ANSWERS: "own prediction", OTHER_ANSWERS: "another component's", SAME_ANSWERS: "original answer"}
MAJORITY = 0.5
ROLE_WORDS = {
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


def answer_findings(rows: StudyRows) -> Iterator[Finding]:
    """A finding for each of q, k and v, if there are rows: its role, or else the cost of removing it."""
    with_pairs, costs = bool(rows.measure(OWN_ANSWERS, "valid")), _costs_of(rows)
    for component, name in NAMES.items():
        unit, quantity = ("of pairs", "role") if with_pairs else ("nats", f"cost of the {name}")
        if with_pairs:
            if (role := _role(rows, component)) is None:
                continue
            text, values = role
        else:
            means = {how: interval(list(parts[component].values())) for how, _, parts in costs if component in parts}
            if not means:
                continue
            everywhere = all(all_layers for how, all_layers, _ in costs if how in means)
            where = "in all layers" if everywhere else "in one layer (mean over layers)"
            changes = [f"{words.mean_words(mean, 'nats')} with them {COSTS[how]}" for how, mean in means.items()]
            named, parts = words.COMPONENT_NAMES[component], words.join_words(changes)
            text = f"How much the model needs its {named} {where}, by what the validation loss changes: {parts}."
            values = tuple(Estimate(how, *mean) for how, mean in means.items())
        title, groups = name.capitalize(), (component,)
        yield Finding("answer", text, unit, values, title=title, what=quantity, groups=groups, per="seed")


def answer_sentence(rows: StudyRows) -> str:
    """The answers for q, k and v in one sentence with numbers; empty if there are none."""
    answers = sheet.answers_of(answer_findings(rows))
    if not answers:
        return ""
    if answers[0].unit == "of pairs":
        shares = [f"the {NAMES[answer.groups[0]]} in {percent(answer.values[0].mean or 0.0, 1)}" for answer in answers]
        return (
            "When its query, key or value is replaced by that of another text, the model gives the answer that the replacement predicts: "
            f"for {words.join_words(shares)} of pairs."
        )
    how = answers[0].values[0].name
    everywhere = any(all_layers for name, all_layers, _ in _costs_of(rows) if name == how)
    where, over = (" in all layers", "") if everywhere else (", one layer at a time", " (means over layers)")
    changes = [
        f"{words.COMPONENT_NAMES[answer.groups[0]]} {'' if i else 'change the validation loss '}by "
        f"{words.number(answer.values[0].mean, True)}{'' if i else ' nats'}"
        for i, answer in enumerate(answers)
    ]
    return f"{words.capital(COSTS[how])}{where}, {words.join_words(changes)}{over}."


def _role(rows: StudyRows, component: str) -> tuple[str, tuple[Estimate, ...]] | None:
    """Interchange at the reading layer: whose answer comes with a donor's q, k or v, in words and numbers."""
    at = {name: by_site(rows.measure(name, "valid")).get(f"{component}@{roles.LAYER}") for name in COLUMNS}
    predicted, others = at[OWN_ANSWERS], at[OTHER_ANSWERS]
    if predicted is None or others is None:
        return None
    thesis, donor, does = ROLE_WORDS[component]
    share = f"{number_words(predicted, text=lambda value: percent(min(1.0, max(0.0, value)), 1))} of pairs"
    # the same in all seeds: the mean is its own interval
    low = predicted.low if predicted.low is not None or predicted.n < 2 else predicted.mean
    text = f"Not shown here: with {donor} the model {does} in no more than {share}."
    if predicted.n < 2:
        text = f"One model, which decides nothing: with {donor} the model {does}, in {share}."
    elif low is not None and low > roles.MIN_OWN and others.mean < roles.MAX_OTHER:
        text = (
            f"{thesis}: with {donor} instead of its own, the model {does}, in {share}; in {percent(others.mean, 1)} it gives the "
            "answer predicted for another component."
        )
    elif predicted.mean > MAJORITY:
        text = f"Mostly, {thesis[0].lower()}{thesis[1:]}: with {donor} the model {does}, in {share} only."
    return text, tuple(Estimate(column, *mean) for name, column in COLUMNS.items() if (mean := at[name]) is not None)


Cost = tuple[str, bool, dict[str, dict[int, float]]]  # how, whether in all layers at once, nats by component and seed


def _costs_of(rows: StudyRows) -> list[Cost]:
    """Mean ablation, rewinding and freezing of q, k and v in all layers at once, if measured, else layer by layer."""
    methods = {
        "mean ablation": rows.measure("ablate_rise_nats", "valid"),
        "rewinding": rows.rewound("rewind_loss_nats"),
        "freezing": rows.effects("freeze", "valid"),
    }
    costs, layers = list[Cost](), rows.statement("model").get("layers")
    for how, points in methods.items():
        at_once: dict[str, dict[int, float]] = {}
        for p in points:
            site = Site.parse(p.site)
            everywhere = site.layers is None or (layers and len(site.layers) == layers)
            if everywhere and not site.heads and "+".join(site.components) in NAMES:
                at_once.setdefault(site.components[0], {})[p.seed] = p.value
        single = {component: values for component, values in sorted(of_seeds(points).items()) if component in NAMES}
        complete = len(at_once) == len(NAMES)
        costs += [(how, complete, at_once if complete else single)] if points else []
    return [cost for cost in costs if cost[1]] or costs


def comparisons(rows: StudyRows) -> Iterator[Finding]:
    """Which of q, k and v costs most, by paired differences over seeds, a finding for each intervention."""
    for how, everywhere, by_seed in _costs_of(rows):
        compared = compare_by_seed({c: by_seed[c] for c in NAMES if c in by_seed}, study_words.MARGIN)
        if compared is None:
            continue
        name, where = ("all_layers", "in all layers") if everywhere else ("each_layer", "layer by layer")
        values = tuple(Estimate(c, *interval(list(v.values()))) for c, v in by_seed.items())
        numbers = ", ".join(f"{e.name} {words.number(e.mean or 0.0, True)}" for e in values)
        yield Finding(
            *(name, f"{numbers} nats: {compared.words()}.", "nats", values, compared.words()),
            title=f"{how.capitalize()} {where}",
            what=f"{how} {where}, change of the validation loss",
            groups=(how,),
            per="seed",
            compared=compared,
        )


def collect(rows: StudyRows) -> tuple[Finding, ...]:
    """The answer and its evidence; then attacks, rewinding and freezing, controls, probes, erasure and ties, where measured."""
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
    """The verdicts of all claims, then the findings."""
    return (*sheet.verdict_findings(rows.claims), *collect(rows))


def first_sections(rows: StudyRows, checks: Sequence[Check], findings: Sequence[Finding]) -> tuple[sheet.Section, ...]:
    """The first screen: the answer, how certain it is, and what could not be distinguished."""
    answers, many = sheet.answers_of(findings), words.quantity(len(rows.seeds), "seed")
    shares = (
        "The model's answer when q, k or v is replaced by that of another text: the one that the replacement predicts, "
        "another component's, or the original. "
        f"q, k and v predict different answers, and so the answer shows what each of them does. Means over {many}, 95 % intervals."
    )
    costs = (
        "What the validation loss changes by when q, k or v of the model is replaced, rewound or frozen: "
        f"means over {many}, 95 % intervals."
    )
    caveat = " One seed gives numbers and no verdict: training varies." if len(rows.seeds) == 1 else ""
    lines = [f"{words.capital(many)}: intervals are over models trained from different initial weights.{caveat}"]
    lines += [f"Check {'passed' if check.ok else 'failed'}: {check.name}." for check in checks]
    claim = roles.CLAIMS[0]
    for verdict in rows.claims.filter(pl.col("claim") == claim.id, pl.col("part").is_null())["verdict"]:
        lines.append(f"Claim {claim.id} ({claim.sentence.rstrip('.')}), fixed before these data: {verdict}.")
    more = [
        Markup(
            "See it at work: <code>trisect theory</code> works attention out by hand, "
            '<code>trisect explore STUDY "some words" --out page.html</code> shows a model of this study head by head.'
        )
    ]
    if not rows.measure(OWN_ANSWERS, "valid"):
        asking = Markup(
            "These numbers say how much each matters, not what it does. <code>trisect study roles</code> asks that where the truth is "
            "known, <code>trisect patch STUDY --task induction --corpus CORPUS</code> of a model of this study, "
            "<code>trisect patch MODEL --task bindings</code> of any model that answers in context."
        )
        more.insert(0, asking)
    # why there is no answer: freezing would give one, once there is a baseline; attacks that no method shows are controls, or
    # have no baseline yet
    done = list(dict.fromkeys(method.measure for method in study_words.methods(rows)))
    edits = rows.metrics.filter(~pl.col("edit").is_in(["none", "freeze"]))["edit"].unique().sort().to_list()
    done = done or ["controls of attacks" if edit == "attack" and not rows.labels else edit for edit in edits]
    none = "No intervention has numbers yet, so there is no answer."
    if done:
        none = (
            f"This study has no interchange, rewinding, freezing or mean ablation, and what it has ({words.join_words(done)}) "
            "does not answer this question: its numbers are below."
        )
    # methods hardly better than chance where the truth is known, except control labels, which are to find nothing
    blind = [m for m in planted.scores(rows) if m.auroc < sheet.BLIND and m.key != "control"]
    chance = [f"{m.title}: AUROC {m.auroc:.2f} over {m.over}, where 0.5 is guessing." for m in blind]
    return (
        sheet.opening(answers, sheet.picture_of(answers, shares, costs), tuple(more), none=none),
        sheet.sure(lines),
        sheet.open_section(findings, chance),
    )


TITLE = "What do query, key and value each do?"
COST_CAPTION = (
    "Each component's mean over layers, with its 95 % interval over seeds where there are several; 0 is no change."
)


def page(tables: Mapping[str, pl.DataFrame], about: About[StudyFacts]) -> sheet.Sheet:
    """The page from the tables runs, metrics, sites, claims and controls."""
    rows = StudyRows.of(tables, describe_study(about))
    return make_sheet(tables, rows, figures.collect(rows))


def make_sheet(tables: Mapping[str, pl.DataFrame], rows: StudyRows, charts: Sequence[Figure]) -> sheet.Sheet:
    """The page as plain data, with these figures."""
    facts, findings = study_words.study(rows), collect(rows)
    name = (rows.about.get("experiment") or {}).get("name", "study")
    checks = preconditions({name: tables.get(name, getattr(rows, name)) for name in ("runs", "metrics", "sites")})
    groups: dict[str, list[Figure]] = {"answer": [], "figures": [], **{group: [] for group in GROUPS}}
    for figure in charts:
        named = (group for group, (starts, *_) in GROUPS.items() if figure.name.startswith(starts))
        groups["answer" if figure.name == "answer" else next(named, "figures")].append(figure)
    sections = (
        *first_sections(rows, checks, findings),
        *planted.section(rows),
        _attention(checks),
        _answer(rows, next(iter(groups["answer"]), None), findings),
        *_verdicts(rows, facts),
        _paper_figures(rows, groups["figures"]),
        *(
            sheet.Section(title, (question,), blocks=tuple(_pictures(groups[group], OPEN_FIGURES)), id=group)
            for group, (_, title, question) in GROUPS.items()
            if groups[group]
        ),
        _reproduce(rows, facts),
    )
    # style rules that give each layer's colour its lighter twin on a dark background
    light, dark = figures.depth_colours(rows), figures.depth_colours(rows, dark=True)
    rules = [
        f'  .view [stroke="{a}"] {{ stroke: {b}; }}\n  .view [fill="{a}"] {{ fill: {b}; }}'
        for a, b in sorted({light[site]: dark[site] for site in light}.items())
    ]
    return sheet.Sheet(
        TITLE,
        f"trisect · {name}",
        f"{facts['model']} · {facts['corpus']} · {facts['budget']}",
        sections,
        references=(*dict.fromkeys(str(part["citation"]) for part in listing("seed")), *REFERENCES),
        answer=answer_sentence(rows),
        style=("\n@media screen and (prefers-color-scheme: dark) {\n" + "\n".join(rules) + "\n}\n"),
    )


def _paper_figures(rows: StudyRows, charts: Sequence[Figure]) -> sheet.Section:
    """The paper's figures, with the check of figure 8 below it."""
    thin = "thin lines are single seeds, bold lines their mean, and " if len(rows.seeds) > 1 else ""
    text = (
        "Numbered as in the paper. Losses are in nats per token; losses called train and validation are measured in evaluation "
        f"mode. In curves there is one panel per component, and one colour and shape per layer; {thin}grey and dashed is the "
        "baseline (in figure 10, its final loss)."
    )
    parts = {
        "attacks on POS (figures 3 and 4)": "pos" in rows.labels,
        "attacks on DEP (figures 5 and 6)": "dep" in rows.labels,
        "convex rewinding (figures 8 and 9)": rows.measure("rewind_loss_nats", "train"),
        "mid-stage rewinding (figure 10)": rows.measure("midstage_loss_nats", "train"),
        "freezing (figures 11 and 12)": rows.curves("freeze", "valid"),
    }
    if missing := [name for name, part in parts.items() if not part]:
        text += f" Not part of this study, and so not drawn: {words.join_words(missing)}."
    blocks: list[sheet.PageBlock] = []
    exact = study_words.exactness(rows)
    for picture in _pictures(charts, PAPER_FIGURES):
        blocks.append(picture)
        if picture.figure.ramp and exact is not None:
            blocks.append(sheet.TextBlock(exact, "quiet"))
    return sheet.Section("The figures behind it", (text,), blocks=tuple(blocks), id="figures")


def _pictures(charts: Sequence[Figure], shown: int) -> list[sheet.Picture]:
    """The figures of a section, folded after the first if there are many."""
    return [sheet.Picture(figure, folded=len(charts) > FOLD_ABOVE and n >= shown) for n, figure in enumerate(charts)]


def _attention(checks: Sequence[Check]) -> sheet.Section:
    """The preconditions of all verdicts."""
    start = (
        "Yes, by both checks that come before any verdict."
        if all(check.ok for check in checks)
        else "Not by these checks: one of them fails or was not measured, so every verdict below is inconclusive by rule."
    )
    text = f"{start} Both are read on the validation split, and every seed must pass."
    items = []
    for check in checks:
        mean = "not measured"
        if check.effect is not None:
            mean = words.mean_words(Mean(check.effect, check.low, check.high, check.n), "nats")
        numbers = f"Mean difference: {mean}; margin {check.margin:g} nats."
        items.append(sheet.Requirement(check.ok, check.name, check.sentence, numbers))
    blocks = (sheet.Requirements(tuple(items)),)
    return sheet.Section("Is attention in use at all?", (text,), blocks=blocks, id="attention")


def _answer(rows: StudyRows, figure: Figure | None, findings: Sequence[Finding]) -> sheet.Section:
    """All methods in one picture, method by method, and as a table."""
    blocks: list[sheet.PageBlock] = [sheet.TextBlock("No intervention has rows yet, so there is nothing to draw.")]
    if figure is not None:
        lead = study_words.lead(rows)
        multiples = sheet.small_multiples("in-short-by-method", "Method by method", COST_CAPTION, findings)
        blocks = [sheet.Picture(figure), *([sheet.TextBlock(lead)] if lead else [])]
        blocks += [sheet.Picture(multiples)] if multiples is not None else []
        columns, cells = study_words.numbers(rows)
        body = tuple((site, *(_small(*pair) for pair in row)) for site, row in cells)
        label = "Means and intervals by site"
        blocks.append(sheet.Table(_heads(columns), body, "The same as a table", folded=True, label=label, wrap=False))
    return sheet.Section("Summary figure", blocks=tuple(blocks), id="answer-section")


def _heads(columns: study_words.Columns) -> tuple[str, ...]:
    return "Site", *(_small(title, unit, always=True) for title, unit in columns)


def _small(text: str, below: str, always: bool = False) -> Markup:
    """A cell with a smaller second line."""
    return Markup("{}<small>{}</small>").format(text, below) if below or always else Markup("{}").format(text)


HOW_TO_READ = (
    "How to read the drawings: the dot is the mean over seeds, the thick line its 95 % interval, the thin line the interval at "
    "the level of the whole family, an arrow a line that goes on; a small triangle above is the mean at each run's own best "
    "validation epoch, one below at matched train loss. The tinted side is the claimed one, up to its bound (solid); the dashed "
    "line is zero: no difference, or, for a learned fraction, nothing learned (1 is as much as the baseline learned). Parts with "
    "the same unit share a scale within a card."
)


def _verdicts(rows: StudyRows, facts: Mapping[str, str]) -> Iterable[sheet.Section]:
    """The claims as cards; empty without claims."""
    claims = cards.cards(rows.claims, rows.controls)
    if not claims:
        return
    hashes, about = study_words.claims_hashes(rows), f"{facts['corpus']} · {facts['model']} · {facts['budget']}"
    who = "sources'" if rows.claims["source"].n_unique() > 1 else "paper's"
    rule = (
        "A claim holds when all of its deciding parts do. Each part is one number per seed, mostly "
        "a difference to the baseline of that seed, tested against a margin that was fixed before there were data; the claims of "
        "one source share one correction (Holm). Only that corrected p decides."
    )
    changed = (
        "The claims have changed since these runs were made, with claims of version "
        f"{', '.join(hashes)}; the verdicts below are by version {claims_hash()}."
    )
    blocks = (
        *([sheet.TextBlock(changed, "notice")] if {*hashes} - {claims_hash()} else []),
        sheet.TextBlock(words.tally(cards.tally(claims))),
        sheet.Strip(rows.claims),
        sheet.Section(
            "Claim by claim", (rule, HOW_TO_READ), blocks=(sheet.Verdicts(rows.claims, about, rows.controls),)
        ),
    )
    title = f"The {who} claims and our results"
    yield sheet.Section(title, blocks=blocks, id="verdicts", shown=True)


def _reproduce(rows: StudyRows, facts: Mapping[str, str]) -> sheet.Section:
    """The command, the runs, and the statement of the study."""
    command, notes = rows.about.get("command"), tuple(rows.corpus.get("notes") or ())
    start = Markup(
        "<code>experiment.json</code> beside this page holds the whole experiment; "
        "<code>trisect study experiment.json --out OUT</code> runs it.{}"
    ).format(" This study:" if command else "")
    places = Markup(
        "The rows are in <code>tables/</code> and every figure is in <code>figures/</code>, beside this page. "
        "<code>trisect report</code> draws the page again from the rows, byte for byte."
    )
    listed = {"Seeds": facts["seeds"], "Runs": facts["runs"], **study_words.provenance(rows)}
    blocks = (
        *([sheet.Code(command)] if command else []),
        sheet.Facts(tuple(listed.items())),
        sheet.TextBlock(places),
        *([sheet.Bullets(notes, "Notes about the corpus")] if notes else []),
    )
    return sheet.Section("How to reproduce", (start,), blocks=blocks, id="reproduce")


REFERENCES = (
    "Ashish Vaswani et al. Attention Is All You Need. NeurIPS 2017.",
    "Stephen Merity et al. Pointer Sentinel Mixture Models (WikiText-2). ICLR 2017.",
    "Chiyuan Zhang, Samy Bengio, Yoram Singer. Are All Layers Created Equal? JMLR 2022.",
    "Niladri Chatterji, Behnam Neyshabur, Hanie Sedghi. The Intriguing Role of Module Criticality in the Generalization of Deep "
    "Networks. ICLR 2020.",
    "John Hewitt, Percy Liang. Designing and Interpreting Probes with Control Tasks. EMNLP 2019.",
    "Yilun Xu et al. A Theory of Usable Information Under Computational Constraints. ICLR 2020.",
    "Nora Belrose et al. LEACE: Perfect Linear Concept Erasure in Closed Form. NeurIPS 2023.",
    "Sture Holm. A Simple Sequentially Rejective Multiple Test Procedure. Scandinavian Journal of Statistics 6, 1979.",
)


# Figures that are not the paper's, by how their names begin, the section's title and what it asks.
GROUPS = {
    "controls": (
        ("controls-", "removed-", "erasure-"),
        "Does the label or the attack itself cause the loss?",
        "An attack may hurt because of what it removes, or because it is an attack. Controls attack the same sites in another way; "
        "fresh probes say what was really removed, and erasure takes the label out of the trained baseline at once.",
    ),
    "tying": (
        ("tying",),
        "Sharing matrices",
        "A fourth experiment: what a model loses when queries, keys and values share a matrix from the first step, against separate "
        "matrices with as many parameters.",
    ),
    "future": (
        ("combinations", "heads-"),
        "Beyond single submodules",
        "What the paper leaves to future work: components together against the sum of their effects, and single heads.",
    ),
}
# figures of a section, and how many of so many are open in it and among the paper's
FOLD_ABOVE, OPEN_FIGURES, PAPER_FIGURES = 8, 2, 4
