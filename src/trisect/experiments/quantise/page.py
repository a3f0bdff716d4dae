"""The page of rounding: the cost of few bits of q, k and v, the bits that layers need, and planned against uniform bits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import polars as pl

from trisect.core.finding import EQUIVALENCE_MARGIN, FAILED, PASSED, About, Estimate, Finding, ReadFacts
from trisect.report import format as words
from trisect.report.charts import Figure
from trisect.report.format import axis_unit, number_words, sample_words, stack_words
from trisect.report.maps import head_maps
from trisect.report.measures import Measures, layer_figure
from trisect.report.sheet import Section, Sheet, Table, present, provenance, quiet

CHANGES = ("loss_change_nats", "output_change")
COMPARISONS = {"planned": "plan", "even": "uniform", "planned less even": "plan_less_uniform"}
SCALES = (
    "Rounded to n bits a number is at the nearest of 2ⁿ levels between the smallest and the largest of its channel (one of a head's "
    "numbers, over all positions of the text) or of its token (a head's numbers at one position); q and k as they enter the dot "
    "product. A scale by channel is of the whole text, so that early positions know the range of later ones. The two ends of each "
    "scale are not counted as memory.",
    "A cut of rank leaves of each head's positions by numbers the nearest matrix of that rank, text by text.",
)
REFERENCES = (
    "Zirui Liu et al. KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache. ICML 2024.",
    "Carl Eckart, Gale Young. The Approximation of One Matrix by Another of Lower Rank. Psychometrika 1, 1936.",
    "Bradley Efron, Robert Tibshirani. An Introduction to the Bootstrap. Chapman & Hall 1993.",
)


def page(tables: Mapping[str, pl.DataFrame], about: About[ReadFacts]) -> Sheet:
    """The page from the table measures."""
    facts, changes = about.facts, Measures.of(tables["measures"], missing=True).where(*CHANGES).ordered()
    name = words.display_name(facts.subject, about.command)
    lede = f"{name} · {facts.corpus} · {sample_words(facts)} · q, k or v rounded to few bits, or cut in rank"
    notes = (
        *SCALES[: 1 + ("rank" in _ways_of(changes))],
        f"Intervals are 95 % of a bootstrap over {sample_words(facts)}, and are not corrected for how many there are.",
        *words.too_few(facts),
        f"A change counts as small where its interval lies below {_limit(tables, facts)[1]}; --tolerance sets another limit.",
    )
    results = findings(tables, about)
    answer = "".join(_needs_in_words(finding, tables, facts) for finding in results if finding.measure == "least_bits")
    lead = tuple(finding.words for finding in results if finding.measure in ("plan_change", "check"))
    places = words.decimals([row.value for row in changes.finite])
    cells = (
        (row.site, f"{row.at:g} {way}", words.number(row.mean, True, places), words.ends(row, True, places))
        for way, rows in _ways_of(changes).items()
        for row in rows
    )
    columns = ("site", "reduced to", f"change, {axis_unit(facts)}", "95 % interval")
    context_sentences = (finding.words for finding in results if finding.measure not in ("plan_change", "check"))
    shown = present(_needs(changes, _limit(tables, facts)[0]))
    sections = (
        Section(
            "How many bits",
            lead,
            tuple(_figures(changes.finite, facts)),
            shown,
            blocks=quiet((*context_sentences, *notes)),
        ),
        *present(_plan(Measures.of(tables["measures"]), facts, lead)),
        Section("Numbers", tuple(about.notes), (), (Table(columns, tuple(cells), "Every change"),)),
    )
    title = f"How many bits do the queries, keys and values of {name} need?"
    sources = provenance(about, *words.read_facts(facts), timed=False)
    return Sheet(title, "trisect · quantisation", lede, sections, sources, REFERENCES, answer)


def _ways_of(changes: Measures) -> dict[str, Measures]:
    """The rows by kind of reduction: bits by channel, bits by token, rank."""
    names = {(row.group or "").partition(",")[0]: None for row in changes}
    return {way: Measures(tuple(row for row in changes if (row.group or "").startswith(way))) for way in sorted(names)}


def _limit(tables: Mapping[str, pl.DataFrame], facts: ReadFacts) -> tuple[float, str, bool]:
    """The change that counts as small, also in words, and whether the plan is tested against it."""
    rows = Measures.of(tables["measures"]).where("tolerance")
    limit = rows.mean if len(rows) else EQUIVALENCE_MARGIN
    share = f"nats a token ({float(f'{100 * math.expm1(limit):.2g}'):g} % of perplexity)"
    in_words = f"{limit:g} {'of the output' if facts.objective == 'output' else share}"
    return limit, in_words, any(row.group == "checked" for row in rows)


def _least_bits(changes: Measures, limit: float, surely: bool = True) -> dict[tuple[str, str], dict[str, float]]:
    """By place (stack and layer, as in 3 or dec.3) and way, for each component: the fewest bits from which on changes stay small.

    Small is an interval (the number, where there is none or unless `surely`) below `limit`; infinite where the most bits are too few.
    """
    least: dict[tuple[str, str], dict[str, float]] = {}
    for way, rows in _ways_of(changes).items():
        for (stack, layer, component), site_rows in rows.where(head=None).by("stack", "layer", "component").items():
            if layer is None or any(", " in (row.group or "") for row in site_rows):
                continue
            enough = math.inf
            for row in sorted(site_rows, key=lambda row: -(row.at or 0)):
                if not (row.high if surely and row.high is not None else row.value) < limit:
                    break
                enough = row.at or enough
            place = f"{'' if stack == 'plain' else f'{stack}.'}{layer}"
            least.setdefault((place, way), {})[component] = enough
    return least


def findings(tables: Mapping[str, pl.DataFrame], about: About[ReadFacts]) -> tuple[Finding, ...]:
    """What is measured, by how much k costs more than v, where it needs more bits, and planned against uniform bits."""
    facts, rows = about.facts, Measures.of(tables["measures"])
    unit = words.unit(facts)
    results = [words.baseline_finding("Changes", tables["measures"], facts, " 0 is no change.")]
    for (stack, group), group_rows in rows.where(f"k_less_v_{unit}").by("stack", "group").items():
        values = tuple(row.estimate(f"{row.at:g}") for row in sorted(group_rows, key=lambda row: row.at or 0))
        each = ", ".join(f"{value.name}: {number_words(value)}" for value in values)
        where = ", ".join(filter(None, (group, stack_words(stack))))
        average = "" if "at once" in group else ", averaged over layers"
        sentence = f"What k costs more than v{average}, {where}, in {axis_unit(facts)}: {each}."
        results.append(Finding("k_less_v", sentence, unit, values, groups=(where,), per=facts.unit))
    limit, small, is_checked = _limit(tables, about.facts)
    least, by_mean = (
        _better_scale(_least_bits(rows.where(*CHANGES), limit, surely=surely)) for surely in (True, False)
    )
    both = {place: (parts["k"], parts["v"]) for place, parts in least.items() if {"k", "v"} <= parts.keys()}
    if both:
        sides = (
            ("more bits than v", [place for place, (k, v) in both.items() if k > v]),
            ("fewer bits than v", [place for place, (k, v) in both.items() if k < v]),
            ("as many bits as v", [place for place, (k, v) in both.items() if k == v < math.inf]),
            ("more bits than were tried, as v does,", [place for place, (k, v) in both.items() if k == v == math.inf]),
        )
        parts = [
            f"{side} in {words.quantity(len(names), 'layer')} ({', '.join(names)})" for side, names in sides if names
        ]
        raised = sum(least[place][component] > by_mean[place][component] for place in both for component in "kv")
        sentence = (
            f"To keep the change surely below {small}, with each rounded by the scale that serves it better, keys (k) need "
            f"{'; '.join(parts)}."
        )
        if raised:
            sentence += (
                f" In {raised} of {2 * len(both)} cases (k or v of a layer) the mean alone would allow fewer bits; with more texts "
                "fewer bits may do."
            )
        values = tuple(
            Estimate(f"{component}@{place}", bits if math.isfinite(bits) else None)
            for place, pair in both.items()
            for component, bits in zip("kv", pair, strict=True)
        )
        results.append(Finding("least_bits", sentence, "bits", values, signed=False))
    costs = [row for name in COMPARISONS.values() for row in rows.where(f"{name}_change_{unit}")]
    spent, even = ("".join(f"{row.value:g}" for row in rows.where(f"{name}_memory")) for name in ("plan", "uniform"))
    if len(costs) == len(COMPARISONS):
        plan, uniform, less = costs
        evenly = " everywhere" if float(even).is_integer() else ", of two whole numbers in turn,"
        verdict = {-1: "It costs less", 0: "They do not differ clearly", 1: "It costs more"}[less.side]
        sentence = (
            f"Planned by layer, k and v at {spent} bits a number cost {number_words(plan)} {axis_unit(facts)} on texts that were not "
            f"planned on, and at {even} bits{evenly} {number_words(uniform)}. {verdict}: {number_words(less)}."
        )
        values = (uniform.estimate("uniform"), plan.estimate("plan"), less.estimate("plan less uniform"))
        results.append(Finding("plan_change", sentence, unit, values, per=facts.unit))
    if is_checked:
        results.insert(0, _check(rows, (limit, small), spent, facts))
    return tuple(results)


def _check(rows: Measures, limit: tuple[float, str], spent: str, facts: ReadFacts) -> Finding:
    """Whether the plan costs significantly less than the limit (also in words); without an interval it does not."""
    unit = words.unit(facts)
    plan = next(iter(rows.where(f"plan_change_{unit}")), None)
    passes = plan is not None and plan.high is not None and plan.high < limit[0]
    cost = "it has no finite number" if plan is None else f"it costs {number_words(plan)}"
    warning = f", without an interval: the {facts.unit}s are too few" * (plan is not None and plan.high is None)
    sentence = (
        f"{'Passed' if passes else 'Failed'}: a plan at {spent} bits a number is to cost surely less than {limit[1]}; "
        f"{cost}{warning}."
    )
    values = (Estimate("plan", None) if plan is None else plan.estimate("plan"),)
    return Finding("check", sentence, unit, values, per=facts.unit, verdict=PASSED if passes else FAILED)


def _better_scale(least: Mapping[tuple[str, str], Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """By place, the fewest bits of each component with the better of the two scales."""
    better: dict[str, dict[str, float]] = {}
    for (place, way), by_component in least.items():
        for component, bits in by_component.items() if way != "rank" else ():
            best = better.setdefault(place, {})
            best[component] = min(bits, best.get(component, math.inf))
    return better


def _figures(changes: Measures, facts: ReadFacts) -> Iterator[Figure]:
    """Figures of all layers at once by bits and by rank, of single layers by way and amount, and maps of heads."""
    unit, ways = axis_unit(facts), _ways_of(changes)

    def title(*parts: str) -> str:
        return ", ".join(filter(None, parts))

    for across, name in (("bits", "quantise-bits"), ("rank", "quantise-rank")):
        panels = {
            title(way, stack_words(stack)): [
                row.bar._replace(layer=f"{row.at:g}") for row in sorted(rows, key=lambda row: row.at or 0)
            ]
            for way, way_rows in ways.items()
            for stack, rows in way_rows.where(layer=None, head=None).by("stack").items()
            if way.startswith(across)
        }
        if panels:
            caption = f"Change in {unit} with q, k or v of all layers reduced at once; lines are 95 % intervals."
            yield layer_figure((name, "", "All layers at once"), caption, panels, unit, across=across)
    single = Measures(tuple(row for row in changes if row.layer is not None and row.head is None))
    panels = {
        title(f"{at:g} {way}", stack_words(stack)): [row.bar for row in rows]
        for way, way_rows in _ways_of(single).items()
        for (stack, at), rows in way_rows.by("stack", "at").items()
    }
    if panels:
        caption = "Change with one layer's q, k or v reduced; lines are 95 % intervals."
        yield layer_figure(("quantise-layers", "", "By layer"), caption, panels, unit)
    signed = facts.objective != "output"
    for way, rows in ways.items():
        heads = Measures(tuple(row for row in rows if row.head is not None))
        for stack, part in heads.by("stack").items():  # where it costs most: at the fewest bits or the least rank
            least = min(part.distinct("at"))
            precision = title(f"{least:g} {way}", stack_words(stack))
            name = "-".join(("quantise-heads", *way.split(), *(() if stack == "plain" else (stack,))))
            dots = "; a dot where the 95 % interval leaves 0 out" * signed
            caption = f"Change with one head's q, k or v reduced to {precision}{dots}."
            marked = (lambda row: row.side != 0) if signed else None
            yield head_maps(
                (name, "", f"By head: {precision}"), caption, part.where(at=least), unit, signed, marked=marked
            )


def _needs_in_words(finding: Finding, tables: Mapping[str, pl.DataFrame], facts: ReadFacts) -> str:
    """The bits of keys and values, from the layer with the fewest to the one with the most."""
    needs = []
    for component in "kv":
        bits = [e.mean or math.inf for e in finding.values if e.name.startswith(component)]
        least, largest = (
            f"{end:g}" if math.isfinite(end) else "more than were tried" for end in (min(bits), max(bits))
        )
        needs.append(f"{words.COMPONENT_NAMES[component]} need {least}{f' to {largest}' * (least != largest)}")
    outcome = "the output" if facts.objective == "output" else "the loss"
    limit = f"To change {outcome} surely by less than {_limit(tables, facts)[1]} with one layer rounded at a time"
    return f"{limit}, by the scale that serves it better, {words.join_words(needs)} bits a number."


def _needs(changes: Measures, limit: float) -> Table | None:
    """The fewest bits, or the smallest rank, that each layer needs; None without whole layers."""
    least = _least_bits(changes, limit)
    if not least:
        return None
    columns = [(way, component) for way in dict.fromkeys(way for _, way in least) for component in "qkv"]
    columns = [(way, c) for way, c in columns if any(c in parts for (_, other), parts in least.items() if other == way)]
    most_bits = {way: max(rows.distinct("at")) for way, rows in _ways_of(changes).items()}

    def cell(place: str, way: str, component: str) -> str:
        amount = least.get((place, way), {}).get(component)
        return "–" if amount is None else f"{amount:g}" if math.isfinite(amount) else f"> {most_bits[way]:g}"

    rows = tuple(
        (place, *(cell(place, way, component) for way, component in columns))
        for place in dict.fromkeys(place for place, _ in least)
    )
    caption = f"The least of those tried from which on the interval of the change lies below {limit:g}"
    return Table(("layer", *(f"{component}, {way}" for way, component in columns)), rows, caption)


def _plan(rows: Measures, facts: ReadFacts, lead: tuple[str, ...]) -> Section | None:
    """The bits of each layer's k and v, and their cost beside uniform bits of equal memory; None without a plan."""
    bits = rows.where("plan_bits").ordered()
    if not len(bits):
        return None
    even, unit = rows.where("uniform_bits"), words.unit(facts)
    layers = Table(
        ("site", "scale", "planned bits", "even bits"),
        tuple(
            (
                row.site,
                (row.group or "").removeprefix("bits "),
                f"{row.value:g}",
                f"{even.where(stack=row.stack, layer=row.layer, component=row.component).mean:g}",
            )
            for row in bits
        ),
        "The plan",
    )
    changes = [(name, row) for name, measure in COMPARISONS.items() for row in rows.where(f"{measure}_change_{unit}")]
    cells = tuple((name, words.number(row.mean, True), words.ends(row, True)) for name, row in changes)
    text = (
        "Of the bits tried those are chosen, for k and v of each layer, whose changes add up to the least on every second "
        f"{facts.unit}, within the memory; both plans are then measured, all layers at once, on the other half."
    )
    costs = Table(("plan", f"change, {axis_unit(facts)}", "95 % interval"), cells, "What it costs on the other half")
    return Section("A plan of bits", (*lead, text), (), (costs, layers))
