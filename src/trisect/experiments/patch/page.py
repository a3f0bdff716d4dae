"""The page of an interchange: what q, k and v from the donor did, by layer and by head, and a text pair token by token."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import polars as pl

from trisect.core.finding import About, Estimate, Finding
from trisect.core.percent import percent
from trisect.experiments.patch.figures import draw
from trisect.experiments.patch.pictures import text_pair
from trisect.experiments.patch.sites import SiteNumbers, best_sites, read_sites
from trisect.experiments.patch.words import DOES, NUMBERS, RUNS, UNITS
from trisect.report import format as words
from trisect.report.blocks import TextBlock
from trisect.report.multiples import sentences
from trisect.report.provenance import provenance
from trisect.report.sheet import Section, Sheet, Table
from trisect.report.subject import FEW_TEXTS, spoken

if TYPE_CHECKING:
    from trisect.experiments.patch.settings import PatchFacts

SHOWN = 8  # pairs of the table
FEW_ANSWERED = 0.5  # share of texts answered as stated below which the page says what that means
PREDICTED = ("base", "q", "k", "v", "donor")  # answers that the table of pairs shows
REFERENCES = (
    "Atticus Geiger, Hanson Lu, Thomas Icard, Christopher Potts. Causal Abstractions of Neural Networks. NeurIPS 2021.",
    "Kevin Wang et al. Interpretability in the Wild. ICLR 2023.",
    "Fred Zhang, Neel Nanda. Towards Best Practices of Activation Patching in Language Models. ICLR 2024.",
    "Lawrence Brown, Tony Cai, Anirban DasGupta. Interval Estimation for a Binomial Proportion. Statistical Science 2001.",
)


def page(tables: Mapping[str, pl.DataFrame], about: About[PatchFacts]) -> Sheet:
    """The page from the tables."""
    facts, sites = about.facts, read_sites(tables["measures"])
    where_patched = "several layers at once" if facts.per == "site" else f"one {facts.per}"
    where = {"all": "at all positions", "last": "at the last position", "differ": "where the texts differ"}
    name = words.called(facts.subject, about.command)
    lede = (
        f"What {name} answers when queries, keys or values of {where_patched} are another text's "
        f"({where.get(facts.positions, f'at positions {facts.positions}')}), over {words.several(facts.pairs, 'pair')} of texts. "
        f"This speaks of this one model on these texts."
    )
    parts = (
        _opening(tables, about, sites),
        _pair_section(tables, sites),
        _numbers(sites, about),
    )
    return Sheet(f"Whose answer? {name}", "Interchange", lede, parts, _facts(about), REFERENCES)


def findings(tables: Mapping[str, pl.DataFrame], about: About[PatchFacts]) -> tuple[Finding, ...]:
    """What the model answers by itself; each component's strongest site, and those that act as another component."""
    sites, found = read_sites(tables["measures"]), []
    answered = tables["measures"].filter(pl.col("measure") == "answered")
    if len(answered):
        values = tuple(
            Estimate(r["group"], r["value"], r["low"], r["high"], r["n"]) for r in answered.iter_rows(named=True)
        )
        parts = ", ".join(f"{one.name} {spoken(one.mean, one.low, one.high, False)}" for one in values)
        found.append(
            Finding(
                "answered",
                f"Unpatched, texts that are answered as stated: {parts}.",
                "share",
                values,
                per="pair",
                signed=False,
            )
        )
    for measure in NUMBERS:
        for how in dict.fromkeys(site.how for site in sites):
            found += _strongest([site for site in sites if site.how == how], measure, about.facts)
    return (*found, *_acting([site for site in sites if site.how == sites[0].how]))


def _strongest(sites: Sequence[SiteNumbers], measure: str, facts: PatchFacts) -> tuple[Finding, ...]:
    best = best_sites(sites, measure)
    if not best:
        return ()
    values = tuple(site.numbers[measure]._replace(name=site.place) for site in best)
    parts = ", ".join(f"{one.name} {spoken(one.mean, one.low, one.high, False)}" for one in values)
    how = f" ({RUNS[best[0].how]})" if facts.how == "both" else ""
    said = f"The largest of each component{how}, {NUMBERS[measure]}: {parts}."
    return (
        Finding(
            f"largest_{measure}",
            said,
            UNITS[measure],
            values,
            per="pair",
            groups=(best[0].how,),
            signed=measure != "own",
        ),
    )


def _acting(sites: Sequence[SiteNumbers]) -> tuple[Finding, ...]:
    """Sites where another component's answer comes more often than their own, with intervals that lie apart."""
    found = []
    for site in sites:
        own = site.numbers.get("own")
        for name, other in site.numbers.items():
            if own is not None and name.startswith("as ") and (other.low or 0.0) > (own.high or 1.0):
                found.append((site, name.removeprefix("as "), other))
    if not found:
        return ()
    most = sorted(found, key=lambda one: -(one[2].mean or 0.0))[:6]
    parts = ", ".join(f"{site.place} as {as_} {spoken(one.mean, one.low, one.high, False)}" for site, as_, one in most)
    values = tuple(one._replace(name=f"{site.place} as {as_}") for site, as_, one in most)
    said = f"Another component's answer than their own, share of pairs: {parts}. What passes there becomes the other's further up."
    return (Finding("acts_as", said, "share", values, per="pair", signed=False),)


def _opening(tables: Mapping[str, pl.DataFrame], about: About[PatchFacts], sites: Sequence[SiteNumbers]) -> Section:
    """What a pair is, what came in a sentence or one for each component, the drawings; numbers in words are folded."""
    found, facts = findings(tables, about), about.facts
    lead = [
        "A pair is a base and a donor text of as many tokens. The base is read with one part of the donor's in the place of its own, "
        "and the model goes on from there: what then changes is what that part says."
    ]
    predicted = facts.predicted and facts.how != "noise"
    lead += _lessons([site for site in sites if site.how == "denoise"]) if predicted else []
    largest = next((one for one in found if one.measure.startswith("largest_")), None)
    if len(lead) == 1 and largest is not None:
        most = max(largest.values, key=lambda e: abs(e.mean or 0.0))
        what = NUMBERS[largest.measure.removeprefix("largest_")]
        lead.append(
            f"Most comes through {most.name}: {spoken(most.mean, most.low, most.high, largest.signed)}, {what}."
        )
    drawn = tuple(draw(sites, facts))
    if not drawn:
        lead.append(f"There is no figure, since no site has a number: {_silent(tables['pairs'])}.")
    notes = tuple(TextBlock(one, "quiet") for one in _notes(tables, about))
    whole = sentences(found)
    return Section("What came", tuple(lead), drawn, (whole,) if whole else (), blocks=notes)


def _silent(pairs: pl.DataFrame) -> str:
    """Why patching says nothing of these pairs."""
    counted = pairs.filter("counted")
    if not len(counted):
        return "no pair counts"
    base, donor = (pl.coalesce(f"answer_{name}", f"own_{name}") for name in ("base", "donor"))
    if counted.select((base == donor).all()).item():
        return "base and donor of every pair have the same answer, so that the two cannot be distinguished"
    return "no change was finite"


def _notes(tables: Mapping[str, pl.DataFrame], about: About[PatchFacts]) -> Iterable[str]:
    facts = about.facts
    answered = tables["measures"].filter(pl.col("measure") == "answered")["value"].min()
    if isinstance(answered, float) and answered < FEW_ANSWERED:
        yield (
            "The model does not answer most of these texts as stated, so that shares of such answers say little of what q, k and v do "
            "in it; --answered counts the pairs that it does answer."
        )
    if facts.path == "direct":
        yield (
            "Queries, keys and values of all layers after the patched one are those of the text without a patch: what is left is "
            "what the layer's own output does, and nothing that attention further up carries on."
        )
    if facts.scored == "answers":
        yield (
            "The change of the logit difference is 0 where the patched text's answer stands as it did, and 1 where base's and donor's "
            "answers stand as in the other text; it is a ratio of sums over pairs."
        )
    yield (
        f"Intervals are 95 % over {words.several(facts.counted, 'pair')} (Jeffreys for shares, a bootstrap for changes), and are not "
        "corrected for how many sites there are."
    )
    if facts.counted < FEW_TEXTS:
        yield f"With fewer than {FEW_TEXTS} pairs such intervals are too wide or too narrow to lean on."


def _lessons(sites: Sequence[SiteNumbers]) -> Iterable[str]:
    """A sentence for each of q, k and v: what is predicted of it, and what came where it came most."""
    best = {site.component: site for site in best_sites(sites, "own")}
    for component in (c for c in DOES if c in best):
        site, (what, answer) = best[component], DOES[component]
        own, stayed = site.mean("own"), site.mean("unchanged")
        others = [
            (name.removeprefix("as "), one.mean or 0.0) for name, one in site.numbers.items() if name.startswith("as ")
        ]
        rest = "".join(f", that of {name} in {_percent(share)}" for name, share in others)
        yield (
            f"If {component} says {what}, {component} from the donor brings {answer}: at {site.place} that came in {_percent(own)} "
            f"of pairs, the base's own answer in {_percent(stayed)}{rest}."
        )


def _percent(share: float | None) -> str:
    return "–" if share is None else percent(share)


def _pair_section(tables: Mapping[str, pl.DataFrame], sites: Sequence[SiteNumbers]) -> Section:
    """The first pair that counts, token by token, and a few pairs with what was predicted and what came."""
    pairs, tokens = tables["pairs"], tables["tokens"]
    first = pairs.filter(pl.col("counted"))["pair"].first() or 1
    kind = pairs.filter(pl.col("pair") == first)["kind"].first()
    caption = f"Pair {first}{f' ({kind})' if kind else ''}: the base above, the donor below it, from left to right and line by line."
    drawn = text_pair(tokens.filter(pl.col("pair") == first), "A text pair", caption)
    named = [n for n in PREDICTED if pairs[f"answer_{n}"].is_not_null().any()]
    first_run = [s for s in sites if s.how == sites[0].how]
    best = best_sites(first_run, "own" if any("own" in s.numbers for s in first_run) else "logit_change")[:3]
    came = {site.place: _answers(tables["interchanges"], site) for site in best}
    answered = bool(pairs["own_base"].is_not_null().any())
    columns = (
        "pair",
        "base",
        "donor",
        *(("predicted",) if named else ()),
        *(("unpatched",) if answered else ()),
        *came,
    )
    rows = []
    for row in pairs.head(SHOWN).iter_rows(named=True):
        said = "; ".join(f"{name}: {_shown(row[f'answer_{name}'])}" for name in named)
        own = f"base: {_shown(row['own_base'])}; donor: {_shown(row['own_donor'])}"
        cells = (row["base"], row["donor"], *((said,) if named else ()), *((own,) if answered else ()))
        rows.append((str(row["pair"]), *cells, *(answers.get(row["pair"], "–") for answers in came.values())))
    said = (
        "Of every pair the texts, the answers that are predicted, and the model's, unpatched and with a site patched."
    )
    table = Table(columns, tuple(rows), f"The first {len(rows)} of {len(pairs)} pairs", prose=True, folded=False)
    return Section("The texts", (said,) if answered else (), () if drawn is None else (drawn,), (table,))


def _answers(interchanges: pl.DataFrame, site: SiteNumbers) -> dict[int, str]:
    """What each pair answered with a site patched, and whose prediction that was."""
    mine = interchanges.filter(
        pl.col("stack") == site.stack,
        pl.col("layer").eq_missing(site.layer),
        pl.col("head").eq_missing(site.head),
        pl.col("component") == site.component,
        pl.col("group") == site.group,
    )
    return {
        row["pair"]: f"{_shown(row['answer'])} ({row['came']})"
        for row in mine.iter_rows(named=True)
        if row["came"] is not None
    }


def _shown(answer: str | None) -> str:
    return "–" if answer is None else answer.strip() or repr(answer)


def _numbers(sites: Sequence[SiteNumbers], about: About[PatchFacts]) -> Section:
    """Every site as a row."""
    kinds = [
        m
        for m in ("own", "as q", "as k", "as v", "unchanged", "donor", "logit_change", "output_change")
        if any(m in s.numbers for s in sites)
    ]
    names = {
        "own": "own answer",
        "donor": "other text's answer",
        "logit_change": "logit change",
        "output_change": "output change",
    }
    both = about.facts.how == "both"

    def cell(site: SiteNumbers, measure: str) -> str:
        one = site.numbers.get(measure)
        return (
            "–" if one is None or one.mean is None else spoken(one.mean, one.low, one.high, measure == "logit_change")
        )

    columns = ("site", *(("direction",) if both else ()), *(names.get(m, m) for m in kinds), "pairs")
    rows = tuple(
        (
            s.place,
            *((RUNS[s.how],) if both else ()),
            *(cell(s, m) for m in kinds),
            str(max(e.n or 0 for e in s.numbers.values())),
        )
        for s in sites
    )
    return Section("Numbers", tuple(about.notes), (), (Table(columns, rows, "Every site"),))


def _facts(about: About[PatchFacts]) -> tuple[tuple[str, str], ...]:
    facts = about.facts
    mark = f", fingerprint {facts.corpus_fingerprint}" if facts.corpus_fingerprint else ""
    own = (
        ("Model", f"{facts.subject}, weights {facts.fingerprint}"),
        ("Pairs", f"{facts.corpus}: {words.several(facts.pairs, 'pair')}, {facts.counted} counted{mark}"),
        ("Patch", f"{facts.how}, per {facts.per}, positions {facts.positions}, path {facts.path}, seed {facts.seed}"),
    )
    return provenance(about, *own, timed=False)
