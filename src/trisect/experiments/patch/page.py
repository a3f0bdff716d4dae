"""The page of activation patching: effects of q, k and v from the donor by layer and head, and a pair written out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

import polars as pl
from markupsafe import Markup

from trisect.core.finding import About, Estimate, Finding
from trisect.core.printable import percent
from trisect.experiments.patch.predictions import CONTROLS, HypothesisRow, read_predictions
from trisect.report import format as words
from trisect.report.charts import Figure
from trisect.report.format import FEW_TEXTS, number_words, stack_words
from trisect.report.maps import head_maps
from trisect.report.measures import Bar, MeasuredValue, Measures, component_order, layer_figure
from trisect.report.sheet import Bullets, Section, Sheet, Table, present, provenance, quiet, verdict_findings

if TYPE_CHECKING:
    from trisect.experiments.patch.settings import PatchFacts

TABLE_PAIRS = 8  # pairs of the table
NO_SITE = "No site does {}, with an interval that leaves 0 out."
SAME_ANSWER = "base and donor of every counted pair have the same answer"
FEW_ANSWERED = 0.5  # share of texts answered correctly, below which the page has a warning
PREDICTED = ("base", "q", "k", "v", "donor")  # answers that the table of pairs shows
ROLE_WORDS = {
    "q": ("what is looked for", "from its own text (the base) the question of the other"),
    "k": ("what a token is matched on", "what its own text (the base) has where the other has the thing asked for"),
    "v": ("what is passed on", "what the other text has where its own (the base) has the thing asked for"),
}
NUMBERS = {  # description, title and unit of each measure
    "own": ("its own answer, share of pairs", "own answer", "share"),
    "logit_change": (
        "change of the logit difference, share of the way to the other text",
        "change of the logit difference",
        "share of the way",
    ),
    "output_change": ("change of the output, share", "change of the output", "share"),
}
LARGEST_WORDS = {  # around the largest number
    "own": ("the answer predicted for them comes in", "of pairs"),
    "logit_change": ("the logit difference moves by", "of the way to the donor's"),
    "output_change": ("the output changes by", "of its squared length"),
}
COLUMN_NAMES = {
    "own": "own answer",
    **{f"as {c}": f"as {c}" for c in "qkv"},
    "unchanged": "unchanged",
    "donor": "other text's answer",
    "logit_change": "logit change",
    "output_change": "output change",
}
RUNS = {"denoise": "the donor's into the base", "noise": "the base's into the donor"}
REFERENCES = (
    "Atticus Geiger, Hanson Lu, Thomas Icard, Christopher Potts. Causal Abstractions of Neural Networks. NeurIPS 2021.",
    "Kevin Wang et al. Interpretability in the Wild. ICLR 2023.",
    "Fred Zhang, Neel Nanda. Towards Best Practices of Activation Patching in Language Models. ICLR 2024.",
    "Lawrence Brown, Tony Cai, Anirban DasGupta. Interval Estimation for a Binomial Proportion. Statistical Science 2001.",
)
ATTRIBUTION_REFERENCES = (
    "Neel Nanda. Attribution Patching: Activation Patching at Industrial Scale. 2023.",
    "János Kramár, Tom Lieberum, Rohin Shah, Neel Nanda. AtP*: An efficient and scalable method for localizing LLM behaviour to "
    "components. 2024.",
)
PAIR = (
    "A pair is a base and a donor text. Activation patching runs the model on the base with one part replaced by the donor's: how the "
    "answer then changes is what that part says."
)
TOP = 20  # estimates by gradient whose exact effect is measured
OF_RUN = ("answered", "attribution_correlation", "gradient_correlation")  # measures of the run, not of a site
SiteNumbers = Mapping[str, MeasuredValue]  # of one site in one direction, by measure


def page(tables: Mapping[str, pl.DataFrame], about: About[PatchFacts]) -> Sheet:
    """The page from the tables."""
    facts, sites = about.facts, read_sites(tables["measures"])
    where_patched = "several layers at once" if facts.per == "site" else f"one {facts.per}"
    name = words.display_name(facts.subject, about.command)
    lede = (
        f"{name} · {facts.corpus} · {words.quantity(facts.counted, 'pair')} · {where_patched} patched "
        f"{_positions_words(facts)}"
    )
    mark = f", fingerprint {facts.corpus_fingerprint}" if facts.corpus_fingerprint else ""
    details = (
        ("Model", f"{facts.subject}, weights {facts.fingerprint}"),
        ("Pairs", f"{facts.corpus}: {words.quantity(facts.pairs, 'pair')}, {facts.counted} counted{mark}"),
        ("Patch", f"{facts.how}, per {facts.per}, positions {facts.positions}, path {facts.path}, seed {facts.seed}"),
    )
    measures = [m for m in COLUMN_NAMES if any(m in site for site in sites)]
    both = facts.how == "both"
    rows = tuple(
        (
            place_of(site).site,
            *([RUNS[direction(site)]] * both),
            *(number_words(site[m], m == "logit_change") if mean(site, m) is not None else "–" for m in measures),
            str(max(row.n or 0 for row in site.values())),
        )
        for site in sites
    )
    columns = ("site", *(["direction"] * both), *(COLUMN_NAMES[m] for m in measures), "pairs")
    caveats = few_pairs(facts.counted, facts.pairs)  # stands beside the figures
    notes = tuple(note for note in about.notes if note not in caveats)
    numbers = Section("Numbers", notes, (), (Table(columns, rows, "Every site"),))
    title = f"Which queries, keys and values of {name} carry the answer?"
    footer = provenance(about, *details, timed=False)
    pair, texts = _pair_section(tables, sites, facts)
    if "attributions" in tables:
        first = tables["attributions"].row(0, named=True)
        stack = "" if first["stack"] == "plain" else f"{first['stack']}."
        site = words.site_words(f"{stack}{first['component']}@{first['layer']}.h{first['head']}")
        exact = "" if first["exact"] is None else f", {words.number(first['exact'], True)} when they are patched"
        answer = (
            f"By gradient (attribution patching) {site} at position {first['position']} (from 1) act most: "
            f"{words.number(first['estimate'], True)} of the way to the donor's answer{exact}."
        )
        parts = (_attribution_section(tables), texts, Section("Notes", tuple(about.notes)))
        return Sheet(title, "trisect · patch", lede, parts, footer, (*REFERENCES, *ATTRIBUTION_REFERENCES), answer)
    claims = Section("Results of the claims", cards=tables["claims"]) if "claims" in tables else None
    answer, opening = _opening(tables, about, sites, pair)
    parts = present(opening, claims, _prediction_section(tables), texts, numbers)
    return Sheet(title, "trisect · patch", lede, parts, footer, REFERENCES, answer)


def _positions_words(facts: PatchFacts) -> str:
    where = {"all": "at all positions", "last": "at the last position", "differ": "where the texts differ"}
    return where.get(facts.positions, f"at positions {facts.positions}, counted from 1")


def read_sites(measures: pl.DataFrame) -> list[SiteNumbers]:
    """Every site and direction, denoising first, in the order of stacks, layers, heads and components."""
    rows = Measures.of(measures.filter(~pl.col("measure").is_in(OF_RUN)), missing=True).ordered()
    sites = [site.first("measure") for site in rows.by("stack", "layer", "head", "component", "group").values()]
    return sorted(sites, key=lambda site: direction(site) == "noise")


def place_of(site: SiteNumbers) -> MeasuredValue:
    """One of a site's rows, for its layer, head and component."""
    return next(iter(site.values()))


def direction(site: SiteNumbers) -> str:
    """The direction in which a site was patched: denoise or noise."""
    return (place_of(site).group or "").partition(",")[0]


def mean(site: SiteNumbers, measure: str) -> float | None:
    """One of a site's measures; None if it has none."""
    return site[measure].mean if measure in site else None


def findings(tables: Mapping[str, pl.DataFrame], about: About[PatchFacts]) -> tuple[Finding, ...]:
    """Unpatched answers, each component's strongest site, and sites that act as another component."""
    directions, results = _by_direction(read_sites(tables["measures"])), []
    caveat = " The model answers few of these texts correctly, so that this says little." * _is_seldom_answered(tables)
    if answered := Measures.of(tables["measures"], missing=True).where("answered"):
        parts = ", ".join(f"{row.group} {number_words(row, False)}" for row in answered)
        values = tuple(row.estimate(row.group or "") for row in answered)
        text = f"Texts that are answered correctly without a patch: {parts}."
        results.append(Finding("answered", text, "share", values, per="pair", signed=False))
    if ranked := {name: value for name, value in correlations_of(tables["measures"]).items() if value is not None}:
        text = "Rank correlation of estimates by gradient and exact effects, over the largest: "
        values = tuple(Estimate(name, value) for name, value in ranked.items())
        ranking = ", ".join(f"{name} {words.number(value, True)}" for name, value in ranked.items())
        results.append(Finding("attribution_correlation", f"{text}{ranking}.", "ρ", values))
    for measure, (quantity, _, unit) in NUMBERS.items():
        for how, sites in directions.items():
            if best := [site[measure] for site in _best(sites, measure)]:
                parts = ", ".join(f"{row.site} {number_words(row, False)}" for row in best)
                way = f" ({RUNS[how]})" if about.facts.how == "both" else ""
                text = f"The largest of each component{way}, {quantity}: {parts}.{caveat}"
                values, signed = tuple(row.estimate() for row in best), measure != "own"
                name = f"largest_{measure}"
                results.append(Finding(name, text, unit, values, per="pair", groups=(how,), signed=signed))
    for row in strongest(tables):
        values = (
            Estimate(row.hypothesis, row.shift_nats, row.shift_low, row.shift_high, row.used),
            Estimate("unrelated donor", row.control_nats["unrelated"]),
            Estimate("random subspaces", row.control_nats["random"]),
        )
        text = f"{row.site}, {row.position} positions: {_prediction_words(row)}."
        estimates = tuple(value for value in values if value.mean is not None)
        name, groups = f"shift_{row.component}", (row.site, row.position)
        results.append(Finding(name, text, "nats", estimates, per="pair", groups=groups))
    # sites where another component's answer comes more often than their own, with intervals that lie apart
    acting = [
        (f"{other.site} {name}", other)
        for site in next(iter(directions.values()), [])
        for name, other in site.items()
        if name.startswith("as ") and "own" in site and (other.low or 0.0) > (site["own"].high or 1.0)
    ]
    if largest := sorted(acting, key=lambda item: -(item[1].mean or 0.0))[:6]:
        parts = ", ".join(f"{name} {number_words(row, False)}" for name, row in largest)
        text = f"Sites whose answer is the one predicted for another component, share of pairs: {parts}. Later layers use it as that."
        values = tuple(row.estimate(name) for name, row in largest)
        results.append(Finding("acts_as", text, "share", values, per="pair", signed=False))
    if _is_alike(tables["pairs"]):
        text = f"{words.capital(SAME_ANSWER)}: no change towards the donor's is measured."
        results.append(Finding("same_answer", text))
    return (*results, *verdict_findings(tables["claims"])) if "claims" in tables else tuple(results)


def _is_alike(pairs: pl.DataFrame) -> bool:
    """Whether pairs count, and in each that does base and donor have one answer: the stated, or else the model's own."""
    answers = [pl.coalesce(f"answer_{name}", f"own_{name}").str.strip_chars() for name in ("base", "donor")]
    same = pairs.filter("counted").select(answers[0].eq(answers[1]).fill_null(False))
    return len(same) > 0 and bool(same.to_series().all())


def correlations_of(measures: pl.DataFrame) -> dict[str, float | None]:
    """Spearman's ρ of estimates and exact effects, over the largest estimates: with correction, and by the gradient alone."""
    rows = {row["measure"]: row["value"] for row in measures.iter_rows(named=True)}
    return {name.removesuffix("_correlation"): rows[name] for name in OF_RUN[1:] if name in rows}


def _attribution_section(tables: Mapping[str, pl.DataFrame]) -> Section:
    """The largest estimates by gradient beside exact effects, and their rank correlation."""
    estimates, ranked = tables["attributions"], correlations_of(tables["measures"])
    rows = []
    for row in estimates.head(TOP).iter_rows(named=True):
        stack = "" if row["stack"] == "plain" else f"{row['stack']}."
        exact = number_words(Estimate("", row["exact"], row["low"], row["high"]), True)
        numbers = (words.number(row[name], True) for name in ("estimate", "gradient"))
        site = f"{stack}{row['component']}@{row['layer']}.h{row['head']}"
        rows.append((site, str(row["position"]), *numbers, "–" if row["exact"] is None else exact, str(row["n"])))
    about = (
        f"Estimates of {len(estimates):,} heads at positions from a pass over the base, one back through it, and one over the donor: the "
        "gradient of the base's answer's logit less the donor's, times the difference of q, k or v. Where the scale of q·k is known, "
        "attention is computed again for q and k (AtP*). They are shares of the way to the donor, as patching's are.",
        "The rank correlation (Spearman's ρ) with the exact effect, over the largest estimates: "
        + ", ".join(f"{name} {words.number(value, True)}" for name, value in ranked.items())
        + ". Each of them alone was patched; intervals are 95 %, over pairs.",
    )
    columns = ("site", "position, from 1", "estimate", "gradient alone", "exact", "pairs")
    table = Table(columns, tuple(rows), "Estimated and exact", folded=False)
    return Section("The largest estimates", about, (), (table,))


def strongest(tables: Mapping[str, pl.DataFrame]) -> tuple[HypothesisRow, ...]:
    """For q, k and v, the hypothesis with the largest shift (any hypothesis if it has none of its own), if it exceeds the controls.

    Controls are an unrelated donor and random subspaces.
    """
    rows = [row for row in read_predictions(tables.get("predictions")) if row.shift_nats is not None]
    best: dict[str, HypothesisRow] = {}
    for row in rows:
        hypotheses = {other.hypothesis for other in rows if other.hypothesis.partition("-")[0] == row.component}
        if hypotheses and row.hypothesis not in hypotheses:
            continue
        before = best.get(row.component)
        if row.component in ROLE_WORDS and (before is None or (row.shift_nats or 0.0) > (before.shift_nats or 0.0)):
            best[row.component] = row
    return tuple(best[name] for name in ROLE_WORDS if name in best and best[name].exceeds)


def _share_words(row: HypothesisRow) -> str:
    return number_words(Estimate("", row.share, row.low, row.high), False)


def _shift_words(row: HypothesisRow) -> str:
    return number_words(Estimate("", row.shift_nats, row.shift_low, row.shift_high), True)


def _prediction_words(row: HypothesisRow) -> str:
    """A hypothesis with its numbers and those of its controls."""
    text = f"{row.hypothesis} gains {_shift_words(row)} nats on the base's answer over {row.used} pairs"
    if row.share is not None:
        text += f" and comes in {_share_words(row)} of {row.n} answered ones"
    names = {"unrelated": "an unrelated donor", "residual": "the residual stream", "random": "random subspaces"}
    beside = [
        f"{words.number(row.control_nats[key], True)} from {name}"
        for key, name in names.items()
        if row.control_nats[key] is not None
    ]
    return f"{text} ({', '.join(beside)})" if beside else text


def _prediction_section(tables: Mapping[str, pl.DataFrame]) -> Section | None:
    """Every hypothesis at every site and position, beside its controls; None where no answers are read."""
    rows = read_predictions(tables.get("predictions"))
    if not rows:
        return None
    measured = {name for row in rows for by in (row.control, row.control_nats) for name in by if by[name] is not None}
    shown = [name for name in CONTROLS if name in measured]
    columns = ("site", "position", "hypothesis", "share", "shift, nats", "pairs", "answered", *shown)
    body = tuple(
        (
            row.site,
            row.position,
            row.hypothesis,
            "–" if row.share is None else _share_words(row),
            "–" if row.shift_nats is None else _shift_words(row),
            str(row.used),
            "–" if row.kept is None else percent(row.kept),
            *(f"{words.number(row.control[c])} / {words.number(row.control_nats[c], True)}" for c in shown),
        )
        for row in rows
    )
    about = (
        "Each hypothesis predicts an answer. The shift is how far that answer gains on the base's in "
        "log-probability, over all pairs whose answers all differ; the share is of those pairs whose texts the unpatched "
        "model answers correctly. "
        "base is the unchanged answer, other an answer that no hypothesis predicts."
    )
    controls = (
        "Controls, as share / shift: the same component from an unrelated donor; the residual stream at the same positions; random "
        "subspaces of the rank of the label's, that subspace itself, and its complement; q+k+v of a site is a row of its own."
    )
    table = Table(columns, body, "Competing predictions", wrap=False)
    return Section("Competing predictions", (about, controls), (), (table,))


def _by_direction(sites: Sequence[SiteNumbers]) -> dict[str, list[SiteNumbers]]:
    return {how: [s for s in sites if direction(s) == how] for how in dict.fromkeys(map(direction, sites))}


def _best(sites: Sequence[SiteNumbers], measure: str) -> list[SiteNumbers]:
    """For each component the site with the largest value of a measure."""
    best: dict[str, SiteNumbers] = {}
    for site in sites:
        value, component = mean(site, measure), place_of(site).component or ""
        if value is not None and (component not in best or value > (mean(best[component], measure) or 0.0)):
            best[component] = site
    return [best[c] for c in sorted(best, key=component_order)]


def _opening(
    tables: Mapping[str, pl.DataFrame], about: About[PatchFacts], sites: Sequence[SiteNumbers], pair: Table
) -> tuple[str, Section]:
    """The result in a sentence; and a section with figures, a pair written out, results by component, and notes."""
    results, facts = findings(tables, about), about.facts
    lead, best = [], {}
    if facts.predicted and facts.how != "noise":
        best = {place_of(site).component: site for site in _best(_by_direction(sites).get("denoise", []), "own")}
    clear = {row.site for row in strongest(tables)}  # sites that exceed their controls
    for component, (role, answer) in ROLE_WORDS.items():
        if component in best and place_of(best[component]).site in clear:
            site = best[component]
            share = percent(mean(site, "own") or 0.0)
            lead.append(
                f"With {words.site_words(place_of(site).site)} patched in from another text (the donor) the model answers {answer}, in "
                f"{share} of pairs, as it would if {words.COMPONENT_NAMES[component]} say {role}."
            )
    largest = next((finding for finding in results if finding.measure.startswith("largest_")), None)
    distinct = [e for e in largest.values if (e.low or 0.0) > 0 or (e.high or 0.0) < 0] if largest is not None else []
    has_controls = any(
        row["unrelated_nats"] is not None for row in tables.get("predictions", pl.DataFrame()).rows(named=True)
    )
    if has_controls:
        distinct = [e for e in distinct if e.name in clear]
    if not lead and largest is not None and distinct and not _is_seldom_answered(tables):
        strongest_value = max(distinct, key=lambda e: abs(e.mean or 0.0))
        before, after = LARGEST_WORDS[largest.measure.removeprefix("largest_")]
        lead.append(
            f"Patched in from another text (the donor), the largest effect is that of {words.site_words(strongest_value.name)}: {before} "
            f"{number_words(strongest_value, largest.signed)} {after}."
            f"{'' if has_controls or 'predictions' not in tables else ' No unrelated donor was there to compare with.'}"
        )
    figures = tuple(_figures(sites, facts))
    if not figures:
        reason = "no change was finite" if tables["pairs"]["counted"].any() else "no pair counts"
        reason = SAME_ANSWER if _is_alike(tables["pairs"]) else reason
        lead.append(f"There is no figure, since no site has a number: {reason}.")
    answer = lead[0] if lead else NO_SITE.format("more than its controls" if has_controls else "anything")
    if not lead and _is_seldom_answered(tables):
        answer = "The model answers few of these texts correctly, so that what a donor brings says little of what carries the answer."
    more = (pair, *([Bullets(tuple(lead[1:]))] if lead[1:] else []))
    context_sentences = [finding.words for finding in results if finding.measure in ("answered", "same_answer")]
    return answer, Section(
        "Which answer came", (), figures, blocks=(*more, *quiet((PAIR, *context_sentences, *_notes(tables, facts))))
    )


def _is_seldom_answered(tables: Mapping[str, pl.DataFrame]) -> bool:
    answered = tables["measures"].filter(pl.col("measure") == "answered")["value"].min()
    return isinstance(answered, float) and answered < FEW_ANSWERED


def _notes(tables: Mapping[str, pl.DataFrame], facts: PatchFacts) -> Iterable[str]:
    if _is_seldom_answered(tables):
        yield (
            "The model does not answer most of these texts correctly, so that shares of answers say little about what q, k and v do "
            "in it; --answered counts the pairs that it does answer."
        )
    yield words.ABLATION_AND_PATCHING
    if facts.path == "direct":
        yield (
            "Queries, keys and values of all layers after the patched one are held at their unpatched values: the effect is "
            "that of the layer's own output, without later attention."
        )
    if facts.scored == "answers":
        yield (
            "The change of the logit difference is 0 if the patch has no effect, and 1 if base's and donor's "
            "answers differ as much as in the other text; it is a ratio of sums over pairs."
        )
    if facts.counted > 1:
        yield (
            f"Intervals are 95 % over {facts.counted} pairs (Jeffreys for shares, a bootstrap for changes), and are not "
            "corrected for how many sites there are."
        )
        sizes = tables["measures"]["n"].drop_nulls()
        if len(sizes) and sizes.min() != facts.counted:
            yield (
                "The numbers are of different pairs, as n says: a share of answers is of those in which the answers that it compares are "
                "stated and differ, a change of the logit difference of those whose base and donor have different answers."
            )
    yield from few_pairs(facts.counted, facts.pairs)


def few_pairs(count: int, pairs: int) -> tuple[str, ...]:
    """Notes on too few pairs: with one pair, a change has no interval; without other pairs, there is no unrelated donor."""
    if count == 1:
        control = " and no control from an unrelated donor" * (pairs == 1)
        return (f"One pair: no interval of a change{control}; it says what happened in this pair.",)
    caveat = f"With fewer than {FEW_TEXTS} pairs ({count} here) intervals are not reliable."
    return (caveat,) * (1 < count < FEW_TEXTS)


def _figures(sites: Sequence[SiteNumbers], facts: PatchFacts) -> Iterable[Figure]:
    """A figure of all measures by layer, and one of each measure by head, for every stack and direction."""
    what_is = "all that a site names patched at once" if facts.per == "site" else f"one {facts.per}'s component patched"

    def rows_of(group: Sequence[SiteNumbers], measure: str, single: bool) -> tuple[Measures, str]:
        """A measure of whole layers or of single heads, and its caption."""
        rows = (site[measure] for site in group if measure in site)
        values = Measures(tuple(row for row in rows if (row.head is not None) == single)).finite
        n = words.sample(max((row.n or 0 for row in values), default=0), "pair")
        return values, f"{words.capital(NUMBERS[measure][0])}, with {what_is}, {RUNS[direction(group[0])]}; {n}."

    number = 1
    for how, stack in dict.fromkeys((direction(site), place_of(site).stack) for site in sites):
        group = [site for site in sites if (direction(site), place_of(site).stack) == (how, stack)]
        tail = ("" if stack == "plain" else f"-{stack}") + ("-noise" if how == "noise" else "")
        place = "".join(f", {part}" for part in (stack_words(stack), RUNS["noise"] if how == "noise" else "") if part)
        panels: dict[str, list[Bar]] = {}
        axes, captions = {}, []
        for measure, (_, title, unit) in NUMBERS.items():
            values, caption = rows_of(group, measure, single=False)
            if values:
                panels[words.capital(title)] = [row.bar for row in values]
                axes[words.capital(title)] = unit
                captions.append(caption)
        if panels:
            names = (f"patch-layers{tail}", f"Figure {number}", f"By layer{place}")
            yield layer_figure(names, f"{' '.join(captions)} Bars are 95 % intervals.", panels, axes=axes)
            number += 1
        for measure, (_, title, unit) in NUMBERS.items():
            values, caption = rows_of(group, measure, single=True)
            if values:
                signed, largest = measure == "logit_change", max(abs(row.value) for row in values) or 1.0
                ends = (-largest, largest) if signed else (0.0, 1.0 if measure == "own" else largest)
                name = f"patch-heads-{measure.replace('_', '-')}{tail}"
                names = (name, f"Figure {number}", f"By head{place}: {title}")
                yield head_maps(names, f"{caption} The same colours in every panel.", values, unit, signed, ends)
                number += 1


def _pair_section(
    tables: Mapping[str, pl.DataFrame], sites: Sequence[SiteNumbers], facts: PatchFacts
) -> tuple[Table, Section]:
    """The first pair that counts written out; and a section with predictions and answers of a few pairs."""
    pairs = tables["pairs"]
    first = pairs.filter(pl.col("counted"))["pair"].first() or 1
    kind = pairs.filter(pl.col("pair") == first)["kind"].first()
    first_run = next(iter(_by_direction(sites).values()), [])
    answers_by_site: dict[str, dict[int, str]] = {}  # by site and pair: the answer, and which component predicts it
    for site in _best(first_run, "own" if any("own" in s for s in first_run) else "logit_change")[:3]:
        place = place_of(site)
        columns = ("stack", "layer", "head", "component", "group")
        selection = tables["interchanges"].filter(*(pl.col(c).eq_missing(getattr(place, c)) for c in columns))
        rows = selection.drop_nulls("came").iter_rows(named=True)
        answers_by_site[place.site] = {row["pair"]: f"{_shown(row['answer'])} ({row['came']})" for row in rows}
    predicted = [n for n in PREDICTED if pairs[f"answer_{n}"].is_not_null().any()]
    answered = bool(pairs["own_base"].is_not_null().any())
    lines = []
    for row in pairs.head(TABLE_PAIRS).iter_rows(named=True):
        cells = {"pair": str(row["pair"]), "base": row["base"], "donor": row["donor"]}
        if predicted:
            cells["predicted"] = "; ".join(f"{name}: {_shown(row[f'answer_{name}'])}" for name in predicted)
        if answered:
            cells["unpatched"] = f"base: {_shown(row['own_base'])}; donor: {_shown(row['own_donor'])}"
        lines.append(cells | {site: answers.get(row["pair"], "–") for site, answers in answers_by_site.items()})
    text = (
        "For every pair the texts, the predicted answers, and the model's answers, unpatched and with a site patched."
    )
    caption, body = f"The first {len(lines)} of {len(pairs)} pairs", tuple(tuple(line.values()) for line in lines)
    table = Table(tuple(lines[0]), body, caption, prose=True, folded=False)
    shown = next((line for line in lines if line["pair"] == str(first)), lines[0])
    others = list(shown.items())[3:]
    answers = tuple((f"with {name}" if name in answers_by_site else name, cell) for name, cell in others)
    caption = f"Pair {shown['pair']}{f' ({kind})' if kind else ''}, written out"
    written = (*_written_pair(shown["base"], shown["donor"], facts), *answers)
    pair = Table(("", "text"), written, caption, prose=True, folded=False)
    return pair, Section("The texts", (text,) if answered else (), (), (table,))


def _written_pair(base: str, donor: str, facts: PatchFacts) -> tuple[tuple[str, str], ...]:
    """Both texts, in bold the words that differ from the word at the same place; what is patched, and where the answer is read."""
    texts, differing = (Markup(), Markup()), list[str]()
    by_place = zip_longest(*(re.findall(r"\s*(?:\w+|[^\w\s])", text) for text in (base, donor)), fillvalue="")
    for words_there in by_place:
        differs = words_there[0] != words_there[1]
        marks = (Markup("<b>{}</b>" if differs and word else "{}").format(word) for word in words_there)
        texts = tuple(text + mark for text, mark in zip(texts, marks, strict=True))
        differing += [" → ".join(word.strip() or "–" for word in words_there)] * differs
    differ = f"words that differ (bold): {', '.join(differing)}" if differing else "the texts have the same words"
    read = f" The answer is read at the {'mask' if facts.objective == 'masked' else 'last position'}."
    where = f"{_positions_words(facts)}; {differ}.{read * (facts.scored == 'answers')}"
    return ("base", texts[0]), ("donor", texts[1]), ("patched", where)


def _shown(answer: str | None) -> str:
    return "–" if answer is None else answer.strip() or repr(answer)
