"""The page of an interchange: what q, k and v from the donor did, by layer and by head, and a text pair token by token."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import altair as alt
import polars as pl

from trisect.core.finding import About, Finding
from trisect.core.printable import percent
from trisect.report import format as words
from trisect.report import render
from trisect.report.charts import Figure, LegendEntry, Panel, chart_of, lay
from trisect.report.format import FEW_TEXTS, spoken_subject, stack_words
from trisect.report.maps import head_maps
from trisect.report.measures import (
    Measures,
    SiteMeasures,
    at_sites,
    component_order,
    cut_layers,
    frame_of,
    layer_key,
    layer_panel,
)
from trisect.report.sheet import Section, Sheet, Table, present, provenance, quiet, sentences

if TYPE_CHECKING:
    from trisect.experiments.patch.settings import PatchFacts


COLUMNS = 5  # tokens beside each other, so that a telephone shows them
WIDE, HIGH, APART = 54.0, 19.0, 9.0  # pixels: of a token's cell, and between two lines
LONGEST = 9  # characters of a token; what is longer is cut
MOST = 80  # tokens of one side; what is behind is not drawn
DIFFERS, READ = "token of base and donor differ", "where the answer is read"


def text_pair(tokens: pl.DataFrame, title: str, caption: str) -> Figure | None:
    """The rows `tokens` of one pair as a figure: a panel for each side; null where there are none."""
    panels = [
        _panel(title if side in ("source", "") else f"{title}, {side}", rows.sort("position").to_dicts())
        for (side,), rows in sorted(tokens.group_by("side"), key=lambda one: str(one[0][0]))
    ]
    if not panels:
        return None
    groups = sorted({p for p in tokens["patched"].unique().to_list() if p})
    keys = [LegendEntry(f"{group} patched", render.mark(group).colour, render.mark(group).shape) for group in groups]
    keys.append(LegendEntry(DIFFERS, render.RULE, "square"))
    keys += [LegendEntry(READ, render.INK)] * bool(tokens["answers"].any())
    return Figure("text-pair", "", title, caption, tuple(panels), tuple(keys))


class _Cell(NamedTuple):
    """One token's box: its place in pixels, the token, and how box and word look."""

    x: float
    x2: float
    y: float
    y2: float
    token: str
    fill: str
    colour: str


def _panel(title: str, rows: Sequence[Mapping[str, Any]]) -> Panel:
    shown = rows[:MOST]
    cells = [cell for i, row in enumerate(shown) for cell in _cells(i, row)]
    height = (-(-len(shown) // COLUMNS)) * (2 * HIGH + APART)
    x = alt.X("x:Q", scale=alt.Scale(domain=[0, COLUMNS * WIDE], nice=False), axis=None)
    y = alt.Y("y:Q", scale=alt.Scale(domain=[0, height], nice=False, reverse=True), axis=None)
    boxes = chart_of("cells", [c._asdict() for c in cells]).mark_rect(stroke=render.RULE, strokeWidth=0.7, opacity=1)
    fill = alt.Fill("fill:N", scale=None)
    layers = [boxes.encode(x, alt.X2("x2"), y, alt.Y2("y2"), fill)]
    placed = [{"x": c.x + 11, "y": (c.y + c.y2) / 2, "token": c.token, "colour": c.colour} for c in cells]
    words = chart_of("words", placed).mark_text(align="left", baseline="middle", fontSize=10.5)
    layers.append(words.encode(x, y, alt.Text("token:N"), alt.Color("colour:N", scale=None)))
    if marks := [_mark(i, row["patched"]) for i, row in enumerate(shown) if row["patched"]]:
        drawn = chart_of("patched", marks).mark_point(size=28, filled=True, opacity=1)
        layers.append(drawn.encode(x, y, alt.Color("colour:N", scale=None), alt.Shape("shape:N", scale=None)))
    if ends := [_cells(i, row)[0] for i, row in enumerate(shown) if row["answers"]]:
        at = [{"x": c.x, "x2": c.x2, "y": c.y2 - 1.5} for c in ends]
        rule = chart_of("answers", at).mark_rule(strokeWidth=2.5, color=render.INK)
        layers.append(rule.encode(x, alt.X2("x2"), y))
    chart = lay(title, *layers, width=COLUMNS * WIDE, height=height)
    return Panel(title, chart, _said(title, rows), (), {})


def _cells(number: int, row: Mapping[str, Any]) -> list[_Cell]:
    """The two boxes of a position, the base's above the donor's."""
    line, column = divmod(number, COLUMNS)
    left, top = column * WIDE, line * (2 * HIGH + APART)
    fill = render.PAPER if row["base"] == row["donor"] else render.RULE
    ends = ((left, left + WIDE - 2, top + i * HIGH, top + (i + 1) * HIGH - 1) for i in range(2))
    looks = (("base", render.INK), ("donor", render.SOFT))
    return [_Cell(*at, _short(row[name]), fill, ink) for at, (name, ink) in zip(ends, looks, strict=True)]


def _mark(number: int, group: str) -> dict[str, Any]:
    """The sign of what is patched at a position, in front of the base's token."""
    line, column = divmod(number, COLUMNS)
    look = render.mark(group)
    place = {"x": column * WIDE + 5, "y": line * (2 * HIGH + APART) + HIGH / 2 - 0.5}
    return place | {"colour": look.colour, "shape": look.shape}


def _short(token: str | None) -> str:
    """A tokenizer's piece for a reader: the marks for a space in front left out."""
    plain = (token or "").lstrip("Ġ▁ ").replace("Ċ", "⏎").removesuffix("</w>")
    return plain if len(plain) <= LONGEST else f"{plain[: LONGEST - 1]}…"


def _said(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """The pair for those who do not see it."""
    base, donor = (" ".join(_plain(row[name]) for row in rows) for name in ("base", "donor"))
    patched = [str(row["position"]) for row in rows if row["patched"]]
    where = "all positions" if len(patched) == len(rows) else f"positions {', '.join(patched)}"
    return f"{title}. Base: {base}. Donor: {donor}. Patched: {where if patched else 'none'}."


def _plain(token: str | None) -> str:
    return (token or "").lstrip("Ġ▁ ")


SHOWN = 8  # pairs of the table
FEW_ANSWERED = 0.5  # share of texts answered as stated below which the page says what that means
PREDICTED = ("base", "q", "k", "v", "donor")  # answers that the table of pairs shows
DOES = {
    "q": ("what is looked for", "the answer to the donor's question, in the base's text"),
    "k": ("where a thing can be found", "what the base has at the place where the donor has the thing asked for"),
    "v": ("what is handed over", "what the donor has at the place where the base has the thing asked for"),
}
NUMBERS = {
    "own": "its own answer, share of pairs",
    "logit_change": "change of the logit difference, share of the way to the other text",
    "output_change": "change of the output, share",
}
TITLES = {
    "own": "own answer",
    "logit_change": "change of the logit difference",
    "output_change": "change of the output",
}
UNITS = {"own": "share", "logit_change": "share of the way", "output_change": "share"}
RUNS = {"denoise": "the donor's into the base", "noise": "the base's into the donor"}


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
    mark = f", fingerprint {facts.corpus_fingerprint}" if facts.corpus_fingerprint else ""
    own = (
        ("Model", f"{facts.subject}, weights {facts.fingerprint}"),
        ("Pairs", f"{facts.corpus}: {words.several(facts.pairs, 'pair')}, {facts.counted} counted{mark}"),
        ("Patch", f"{facts.how}, per {facts.per}, positions {facts.positions}, path {facts.path}, seed {facts.seed}"),
    )
    parts = (_opening(tables, about, sites), _pair_section(tables, sites), _numbers(sites, about))
    return Sheet(f"Whose answer? {name}", "Interchange", lede, parts, provenance(about, *own, timed=False), REFERENCES)


def read_sites(measures: pl.DataFrame) -> list[SiteMeasures]:
    """Every site and direction, denoising first, in the order of stacks, layers, heads and components."""
    rows = Measures.of(measures.filter(pl.col("measure") != "answered"), missing=True)
    return sorted(at_sites(rows), key=lambda site: direction(site) == "noise")


def direction(site: SiteMeasures) -> str:
    """Which way a site was patched."""
    return (site.place.group or "").partition(",")[0]


def _by_direction(sites: Sequence[SiteMeasures]) -> dict[str, list[SiteMeasures]]:
    return {how: [s for s in sites if direction(s) == how] for how in dict.fromkeys(map(direction, sites))}


def _best(sites: Sequence[SiteMeasures], measure: str) -> list[SiteMeasures]:
    """Of each component the site with the largest number."""
    found: dict[str, SiteMeasures] = {}
    for site in sites:
        value, component = site.mean(measure), site.place.component or ""
        if value is not None and (component not in found or value > (found[component].mean(measure) or 0.0)):
            found[component] = site
    return [found[c] for c in sorted(found, key=component_order)]


def findings(tables: Mapping[str, pl.DataFrame], about: About[PatchFacts]) -> tuple[Finding, ...]:
    """What the model answers by itself; each component's strongest site, and those that act as another component."""
    ways, found = _by_direction(read_sites(tables["measures"])), []
    if answered := Measures.of(tables["measures"], missing=True).where("answered"):
        parts = ", ".join(f"{row.group} {spoken_subject(row, False)}" for row in answered)
        said, values = (
            f"Unpatched, texts that are answered as stated: {parts}.",
            tuple(r.estimate(r.group or "") for r in answered),
        )
        found.append(Finding("answered", said, "share", values, per="pair", signed=False))
    for measure, what in NUMBERS.items():
        for how, sites in ways.items():
            if best := _best(sites, measure):
                parts = ", ".join(f"{site.site} {spoken_subject(site.numbers[measure], False)}" for site in best)
                way = f" ({RUNS[how]})" if about.facts.how == "both" else ""
                said = f"The largest of each component{way}, {what}: {parts}."
                values = tuple(site.numbers[measure].estimate() for site in best)
                one = (f"largest_{measure}", said, UNITS[measure], values)
                found.append(Finding(*one, per="pair", groups=(how,), signed=measure != "own"))
    return (*found, *present(_acting(next(iter(ways.values())))))


def _acting(sites: Sequence[SiteMeasures]) -> Finding | None:
    """Sites where another component's answer comes more often than their own, with intervals that lie apart."""
    found = [
        (f"{site.site} {name}", other)
        for site in sites
        for name, other in site.numbers.items()
        if name.startswith("as ") and "own" in site.numbers and (other.low or 0.0) > (site.numbers["own"].high or 1.0)
    ]
    most = sorted(found, key=lambda one: -(one[1].mean or 0.0))[:6]
    parts = ", ".join(f"{name} {spoken_subject(one, False)}" for name, one in most)
    values = tuple(one.estimate(name) for name, one in most)
    said = f"Another component's answer than their own, share of pairs: {parts}. What passes there becomes the other's further up."
    return Finding("acts_as", said, "share", values, per="pair", signed=False) if found else None


def _opening(tables: Mapping[str, pl.DataFrame], about: About[PatchFacts], sites: Sequence[SiteMeasures]) -> Section:
    """What a pair is, what came in a sentence or one for each component, the drawings; numbers in words are folded."""
    found, facts = findings(tables, about), about.facts
    lead = [
        "A pair is a base and a donor text of as many tokens. The base is read with one part of the donor's in the place of its own, "
        "and the model goes on from there: what then changes is what that part says."
    ]
    if facts.predicted and facts.how != "noise":
        lead += _lessons(_by_direction(sites).get("denoise", []))
    largest = next((one for one in found if one.measure.startswith("largest_")), None)
    if len(lead) == 1 and largest is not None:
        most = max(largest.values, key=lambda e: abs(e.mean or 0.0))
        what = NUMBERS[largest.measure.removeprefix("largest_")]
        lead.append(f"Most comes through {most.name}: {spoken_subject(most, largest.signed)}, {what}.")
    drawn = tuple(_figures(sites, facts))
    if not drawn:
        lead.append(f"There is no figure, since no site has a number: {_silent(tables['pairs'])}.")
    return Section("What came", tuple(lead), drawn, present(sentences(found)), blocks=quiet(_notes(tables, about)))


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


def _lessons(sites: Sequence[SiteMeasures]) -> Iterable[str]:
    """A sentence for each of q, k and v: what is predicted of it, and what came where it came most."""
    best = {site.place.component: site for site in _best(sites, "own")}
    for component, (what, answer) in DOES.items():
        if component not in best:
            continue
        site = best[component]
        shares = {name: "–" if one.mean is None else percent(one.mean) for name, one in site.numbers.items()}
        others = [name.removeprefix("as ") for name in shares if name.startswith("as ")]
        rest = "".join(f", that of {name} in {shares[f'as {name}']}" for name in others)
        yield (
            f"If {component} says {what}, {component} from the donor brings {answer}: at {site.site} that came in {shares['own']} "
            f"of pairs, the base's own answer in {shares.get('unchanged', '–')}{rest}."
        )


def _figures(sites: Sequence[SiteMeasures], facts: PatchFacts) -> Iterable[Figure]:
    """By layer both numbers beside each other, and by head a figure for each; a set for every stack and direction."""
    number = 1
    for how, stack in dict.fromkeys((direction(site), site.place.stack) for site in sites):
        mine = [site for site in sites if (direction(site), site.place.stack) == (how, stack)]
        tail = ("" if stack == "plain" else f"-{stack}") + ("-noise" if how == "noise" else "")
        whose = (f", {stack_words(stack)}" if stack_words(stack) else "") + (
            f", {RUNS['noise']}" if how == "noise" else ""
        )
        rows = {measure: _rows(mine, measure, single=False) for measure in TITLES}
        if any(map(len, rows.values())):
            panels, bars, said = [], [], []
            for measure, known in rows.items():
                if known:
                    bars = [row.bar for row in known]
                    axis = frame_of(bars, UNITS[measure])
                    panels.append(layer_panel(_begun(TITLES[measure]), bars, axis))
                    said.append(f"{_caption(known, measure, how, facts)}{cut_layers(bars, axis)}")
            caption = f"{' '.join(said)} Bars are 95 % intervals."
            names = (f"patch-layers{tail}", f"Figure {number}", f"By layer{whose}")
            yield Figure(*names, caption, tuple(panels), layer_key(bars))
            number += 1
        for measure in NUMBERS:
            if known := _rows(mine, measure, single=True):
                signed, most = measure == "logit_change", max(abs(row.value) for row in known) or 1.0
                ends = (-most, most) if signed else (0.0, 1.0 if measure == "own" else most)
                caption = f"{_caption(known, measure, how, facts)} The same colours in every panel."
                name, title = f"patch-heads-{measure.replace('_', '-')}{tail}", f"By head{whose}: {TITLES[measure]}"
                yield head_maps((name, f"Figure {number}", title), caption, known, UNITS[measure], signed, ends)
                number += 1


def _rows(sites: Sequence[SiteMeasures], measure: str, single: bool) -> Measures:
    """A measure of whole layers, or of single heads."""
    rows = (site.numbers[measure] for site in sites if measure in site.numbers)
    return Measures(tuple(row for row in rows if (row.head is not None) == single)).known


def _begun(said: str) -> str:
    return said[0].upper() + said[1:]


def _caption(rows: Measures, measure: str, how: str, facts: PatchFacts) -> str:
    n = max(row.n or 0 for row in rows)
    what_is = "all that a site names patched at once" if facts.per == "site" else f"one {facts.per}'s component patched"
    return f"{_begun(NUMBERS[measure])}, with {what_is}, {RUNS[how]}; n\u00a0=\u00a0{words.several(n, 'pair')}."


def _pair_section(tables: Mapping[str, pl.DataFrame], sites: Sequence[SiteMeasures]) -> Section:
    """The first pair that counts, token by token, and a few pairs with what was predicted and what came."""
    pairs, tokens = tables["pairs"], tables["tokens"]
    first = pairs.filter(pl.col("counted"))["pair"].first() or 1
    kind = pairs.filter(pl.col("pair") == first)["kind"].first()
    caption = f"Pair {first}{f' ({kind})' if kind else ''}: the base above, the donor below it, from left to right and line by line."
    drawn = text_pair(tokens.filter(pl.col("pair") == first), "A text pair", caption)
    named = [n for n in PREDICTED if pairs[f"answer_{n}"].is_not_null().any()]
    (first_run, *_) = _by_direction(sites).values()
    best = _best(first_run, "own" if any("own" in s.numbers for s in first_run) else "logit_change")[:3]
    came = {site.site: _answers(tables["interchanges"], site) for site in best}
    answered = bool(pairs["own_base"].is_not_null().any())
    rows = []
    for row in pairs.head(SHOWN).iter_rows(named=True):
        cells = {"pair": str(row["pair"]), "base": row["base"], "donor": row["donor"]}
        if named:
            cells["predicted"] = "; ".join(f"{name}: {_shown(row[f'answer_{name}'])}" for name in named)
        if answered:
            cells["unpatched"] = f"base: {_shown(row['own_base'])}; donor: {_shown(row['own_donor'])}"
        rows.append(cells | {site: answers.get(row["pair"], "–") for site, answers in came.items()})
    said = (
        "Of every pair the texts, the answers that are predicted, and the model's, unpatched and with a site patched."
    )
    caption, body = f"The first {len(rows)} of {len(pairs)} pairs", tuple(tuple(cells.values()) for cells in rows)
    table = Table(tuple(rows[0]), body, caption, prose=True, folded=False)
    return Section("The texts", (said,) if answered else (), present(drawn), (table,))


def _answers(interchanges: pl.DataFrame, site: SiteMeasures) -> dict[int, str]:
    """What each pair answered with a site patched, and whose prediction that was."""
    place = ("stack", "layer", "head", "component", "group")
    mine = interchanges.filter(*(pl.col(name).eq_missing(getattr(site.place, name)) for name in place))
    known = mine.drop_nulls("came").iter_rows(named=True)
    return {row["pair"]: f"{_shown(row['answer'])} ({row['came']})" for row in known}


def _shown(answer: str | None) -> str:
    return "–" if answer is None else answer.strip() or repr(answer)


def _numbers(sites: Sequence[SiteMeasures], about: About[PatchFacts]) -> Section:
    """Every site as a row."""
    names = {
        "own": "own answer",
        **{f"as {c}": f"as {c}" for c in "qkv"},
        "unchanged": "unchanged",
        "donor": "other text's answer",
        "logit_change": "logit change",
        "output_change": "output change",
    }
    kinds = [m for m in names if any(m in s.numbers for s in sites)]
    both = about.facts.how == "both"

    def cell(site: SiteMeasures, measure: str) -> str:
        return "–" if site.mean(measure) is None else spoken_subject(site.numbers[measure], measure == "logit_change")

    columns = ("site", *(["direction"] * both), *(names[m] for m in kinds), "pairs")
    rows = tuple(
        (
            s.site,
            *([RUNS[direction(s)]] * both),
            *(cell(s, m) for m in kinds),
            str(max(e.n or 0 for e in s.numbers.values())),
        )
        for s in sites
    )
    return Section("Numbers", tuple(about.notes), (), (Table(columns, rows, "Every site"),))
