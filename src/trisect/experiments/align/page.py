"""The page of a word alignment: error rates of links by weight, norm and contribution, per layer, head and length, and pairs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import polars as pl

from trisect.core.finding import About, Finding
from trisect.papers.norms import ALIGNMENT, DIRECTIONS, SETTINGS
from trisect.report import alt, render
from trisect.report import format as words
from trisect.report.charts import (
    Figure,
    LegendEntry,
    Level,
    Panel,
    SharedAxis,
    axis_for,
    by_kind_key,
    chart_of,
    marks,
    overlay,
)
from trisect.report.maps import head_maps
from trisect.report.measures import MeasuredValue, Measures
from trisect.report.render import KINDS, VIEWS, Mark
from trisect.report.sheet import Section, Sheet, Table, notes_section, present, provenance, verdict_findings

if TYPE_CHECKING:
    from trisect.experiments.align.settings import AlignFacts, PicturedPair

SHORT_NAMES = {**{setting: setting.upper() for setting in SETTINGS}, **{way: way for way in DIRECTIONS}}

CELL, MAX_SIDE_WIDTH = 21.0, 225.0  # pixels: of a cell, and of a side's, so that it fits a telephone with its words
_FAINT = 0.3  # of a possible link's cell
LABELS = 110, 170  # pixels of words beside the cells: room for them, and where longer ones are cut
LETTER = 7.0  # pixels
GOLD_KEY = (
    LegendEntry("sure gold link", render.BASELINE, "square"),
    LegendEntry("possible gold link", f"{render.BASELINE}4d", "square"),
)


def _panel(pair: PicturedPair) -> Panel:
    """The gold links of a pair as cells, its links by weight and by norm as marks in them."""
    source, target = pair["source"], pair["target"]
    room = min(LABELS[1], max(LABELS[0], LETTER * max(map(len, (*source, *target)))))
    cell = min(CELL, (MAX_SIDE_WIDTH + LABELS[0] - room) / max(len(source), len(target)))
    x = _axis(alt.X, "source", source, orient="top", labelAngle=-90)
    y = _axis(alt.Y, "target", target, orient="left", labelAngle=0)

    def cells(name: str, links: Sequence[Sequence[int]]) -> alt.Chart:
        return chart_of(name, [{"source": source, "target": target} for source, target in links])

    layers: list[alt.Chart] = []
    possible = [link for link in pair["possible"] if link not in pair["sure"]]
    for name, links, opacity in (("sure", pair["sure"], 1.0), ("possible", possible, _FAINT)):
        if links:
            look = cells(name, links).mark_rect(fill=render.BASELINE, fillOpacity=opacity)
            layers.append(look.encode(x, y))
    sure, allowed = {tuple(p) for p in pair["sure"]}, {tuple(p) for p in (*pair["sure"], *pair["possible"])}
    text = f"{pair['title']}. Source: {' '.join(source)}. Target: {' '.join(target)}."
    for side, (name, mark) in zip((-1, 1), KINDS.items(), strict=True):
        look = cells(name, pair[name]).mark_point(
            shape=mark.shape,
            fill=mark.colour,
            stroke=render.PAPER,
            strokeWidth=0.8,
            opacity=1,
            size=(0.42 * cell) ** 2,
            xOffset=side * 0.22 * cell,
        )
        layers.append(look.encode(x, y))
        links = {tuple(p) for p in pair[name]}
        right = f", {len(links & allowed)} of them gold, {len(links & sure)} of {len(sure)} sure ones found"
        text += f" By {name}: {len(links)} links{right * bool(allowed)}."
    chart = overlay(pair["title"], *layers, width=cell * len(source), height=cell * len(target))
    return Panel(pair["title"], chart, text, (), {})


def _axis(channel: Any, side: str, words: Sequence[str], **look: Any) -> Any:
    """The axis of a sentence's words, which are distinguished by position since a word may occur twice."""
    axis = alt.Axis(
        labelExpr=f"{json.dumps(list(words))}[datum.value - 1]",
        labelLimit=LABELS[1],
        labelOverlap=False,
        labelColor=render.INK,
        ticks=False,
        domain=False,
        grid=True,
        minExtent=0,
        tickCount=len(words),
        title=None,
        bandPosition=0,
        **look,
    )
    scale = alt.Scale(domain=list(range(1, len(words) + 1)), paddingInner=0.08, paddingOuter=0.04)
    return channel(f"{side}:O", scale=scale, axis=axis)


DIAGONAL = "diagonal"
_DASH = (5, 3)
REFERENCES = (
    ALIGNMENT.citation,
    "Franz Josef Och, Hermann Ney. Improved Statistical Alignment Models. ACL 2000.",
    "Sarthak Garg, Stephan Peitz, Udhyakumar Nallasamy, Matthias Paulik. Jointly Learning to Align and Translate with "
    "Transformer Models. EMNLP 2019.",
    "Art Owen. The Pigeonhole Bootstrap. The Annals of Applied Statistics 1, 2007.",
    "Sture Holm. A Simple Sequentially Rejective Multiple Test Procedure. Scandinavian Journal of Statistics 6, 1979.",
)
_SCOPE = (
    "The decoder is given the gold target, word by word. A target word is linked to the source word that has the highest "
    "score in cross-attention: the weight a, or the length ‖a f(x)‖ of what is really added. The row of a word is that "
    "where the decoder reads it (AWI), or that where it is to say it (AWO). A source word has the sum of its pieces, a "
    "target word the mean; where the end of the sentence comes first, there is no link. The alignment error rate (AER) is "
    "1 − (|A∩S| + |A∩P|) / (|A| + |S|), with the links A, the sure gold links S and the possible ones P."
)


_THIRD = (
    "By contribution the score is a f(x)·o / ‖o‖², the share of the output o that comes from there; it is below 0 where a vector points "
    "against the rest. The claim is about weight and norm alone."
)
_SCOPE_WITHIN = (
    "Source and target stand in one text, and the model attends to itself. A word is linked to the word of the other side that has "
    "the highest score: the weight a, the length ‖a f(x)‖ of what is added, or the contribution weight a f(x)·o / ‖o‖², the share "
    "of the head's output o that comes from there. What goes to the word's own side, to special tokens and to what is no word does "
    "not count. Forward, target words look at the source; backward, source words at the target; the sum adds both scores, and the "
    "intersection has the links that both directions make. Scores of pieces are added up over a word that is seen, averaged over one "
    "that looks. The alignment error rate (AER) is 1 − (|A∩S| + |A∩P|) / (|A| + |S|), with the links A, the sure gold links S and "
    "the possible ones P; precision is |A∩P| / |A|, recall |A∩S| / |S|."
)


def page(tables: Mapping[str, pl.DataFrame], about: About[AlignFacts]) -> Sheet:
    """The page from the tables measures and claims; sections without data are left out."""
    rows, facts = Measures.of(tables["measures"]), about.facts
    pooled, pairs = rows.where(subject=facts.subject), words.quantity(facts.pairs, "sentence pair")
    n, are_many = words.sample(facts.pairs, "sentence pair"), len(facts.models) > 1
    if are_many:
        n += f", {words.quantity(len(facts.models), 'model')}"
    lines = []
    for row in sorted(pooled.where("agreement"), key=lambda row: (row.group, row.layer)):
        linked = [_first(pooled, "linked", f"{row.group} {kind}", row.layer) for kind in KINDS]
        cells = [words.share(value.value) if value else "–" for value in (row, *linked)]
        lines.append((f"{SHORT_NAMES[row.group or '']}, layer {row.layer}", *cells))
    caption = "Share of target words with the same link (or none) by weight and by norm, and share of those with a link"
    agreement = Table(("Layer", "same link", "linked by weight", "linked by norm"), tuple(lines), caption)
    sections = present(
        _best_heads(pooled, n) if facts.within else None,
        _rates(rows, facts, n),
        _verdicts(tables, pooled, facts) if facts.gold else None,
        _heads(pooled, n),
        _lengths(pooled),
        _example(facts.picture, facts) if facts.picture else None,
        Section("How often do weight and norm agree?", (), (), (agreement,)) if lines else None,
        notes_section(about),
    )
    lede = f"{words.display_name(facts.subject, about.command)} · {facts.corpus} · {pairs}"
    title = f"Which words does {'attention' if facts.within else 'cross-attention'} link?"
    made_by = provenance(
        about,
        (
            "Models" if are_many else "Model",
            "; ".join(f"{name}, weights {mark}" for name, mark in sorted(facts.models.items())),
        ),
        ("Shape", facts.shape),
        ("Sentence pairs", f"{facts.corpus}: {words.count(facts.pairs)}"),
        ("Draws", f"{words.count(facts.draws)}, seed {facts.seed}"),
    )
    answer = words.capital(next(map(str, findings(tables, about)), ""))
    measure, layers = (
        ("aer_best", "in the layer chosen on other pairs") if facts.chosen else ("aer", "mean over layers")
    )
    rates = [(setting, _over_layers(pooled, measure, setting)) for setting in SETTINGS]
    if full := [(setting, by_kind) for setting, by_kind in rates if by_kind.keys() >= KINDS.keys()]:
        setting, by_kind = min(full, key=lambda pair: min(row.value for row in pair[1].values()))
        norm, weight = (words.share(by_kind[kind].value) for kind in ("norm", "weight"))
        answer = (
            f"Words aligned by the norm of what attention adds have an alignment error rate of {norm}, by attention weights {weight} "
            f"(at the step that {'reads' if setting == 'awi' else 'predicts'} the word, {layers})."
        )
    return Sheet(title, "trisect · word alignment", lede, sections, made_by, REFERENCES, answer)


def _verdicts(tables: Mapping[str, pl.DataFrame], pooled: Measures, facts: AlignFacts) -> Section:
    """How links are extracted and judged, with the claim's card for texts in two languages."""
    third = (_THIRD,) * (not facts.within and "contribution" in _kinds(pooled.where("linked")))
    resampled = "sentence pairs. They speak of this one model."
    if len(facts.models) > 1:
        resampled = "sentence pairs and models."
    scope = (
        _SCOPE_WITHIN if facts.within else _SCOPE,
        *third,
        f"Intervals and p-values are from resampling {resampled}",
    )
    if facts.within:
        return Section("What is linked, and how?", scope)
    return Section("What the claim says here", scope, cards=tables["claims"])


def _example(pair: PicturedPair, facts: AlignFacts) -> Section:
    """The first sentence pair that is short enough to be drawn."""
    layers = pair["layers"]
    how = "chosen on other pairs" if facts.chosen else "which is the one before the last, where there are several"
    caption = (
        "The first pair that is short enough: source words from left to right, target words downwards. Links by weight are of "
        f"layer {layers['weight']}, by norm of layer {layers['norm']}, {how}."
    )
    key = (*GOLD_KEY * bool(pair["sure"] or pair["possible"]), *by_kind_key())
    figure = Figure("sentence-pair", "", "Links of one sentence pair", caption, (_panel(pair),), key)
    return Section("What do links look like?", (), (figure,))


def findings(tables: Mapping[str, pl.DataFrame], about: About[AlignFacts]) -> tuple[Finding, ...]:
    """Error rates by weight and by norm, those of their best layers, and the claim with its verdict.

    Within one text those of the best head, which the other half of the texts chose, by contribution too, and no claim.
    """
    rows = Measures.of(tables["measures"]).where(subject=about.facts.subject)
    results: list[Finding] = []
    if about.facts.within:
        for way in DIRECTIONS:
            aer, precision, recall = (_best(rows, name, way) for name in ("aer", "precision", "recall"))
            if not aer:
                continue
            heads = {_head_name(row) for row in aer.values()}
            which = f"{heads.pop()}, as" if len(heads) == 1 and "" not in heads else "the head"
            text = (
                f"{way}, {which} the other half of the texts chooses: AER {_by_kind(aer)}; precision {_by_kind(precision)}; "
                f"recall {_by_kind(recall)}"
            )
            if not precision:  # of a model whose source words do not see the target
                text = f"{way}, no head that is chosen makes a link: AER is 100\u00a0%"
            values = tuple(row.estimate(f"{way} {kind}") for kind, row in aer.items())
            results.append(Finding("aer_head", words.capital(text), "AER", values))
        return tuple(results)
    names = {"aer": "mean over layers", "aer_best": "best layer, chosen on other pairs"}
    for setting, (measure, name) in product(SETTINGS, names.items()):
        rates = {kind: row for kind, row in _over_layers(rows, measure, setting).items() if kind in KINDS}
        if len(rates) == len(KINDS):
            values = tuple(row.estimate(f"{setting} {kind}") for kind, row in rates.items())
            less = _first(rows, f"{measure}_difference", setting)
            order = {-1: "norm < weight", 1: "weight < norm", 0: ""}[less.side if less else 0]
            text = f"AER, {SHORT_NAMES[setting]}, {name}: {_by_kind(rates)}"
            results.append(Finding(measure, text, "AER", values, order, ALIGNMENT.key))
    return (*results, *verdict_findings(tables["claims"]))


def _head_name(row: MeasuredValue) -> str:
    return f"layer {row.layer} head {row.head}" if row.head is not None else ""


def _best(rows: Measures, name: str, way: str) -> dict[str, MeasuredValue]:
    """One rate of the best head on the other half of the texts, by kind."""
    first = rows.where(f"{name}_head").first("group")
    return {kind: first[f"{way} {kind}"] for kind in VIEWS if f"{way} {kind}" in first}


def _best_heads(rows: Measures, n: str) -> Section | None:
    """The best head on the other half of the texts, by direction and kind."""
    lines = []
    for way in DIRECTIONS:
        rates, *right = (_best(rows, name, way) for name in ("aer", "precision", "recall"))
        for kind, aer in rates.items():
            head = _head_name(aer) or "two of them"
            row = (aer, *(rates.get(kind) for rates in right))
            shares = [cell for value in row for cell in words.cells(value, text=words.share)]
            lines.append((f"{way}, by {kind}", head if kind in right[0] else "none links", *shares))
    caption = f"Each half of the texts (every second one) is scored by the head that the other half chooses. {n}."
    columns = ("Links", "head", "AER", "95 %", "precision", "95 %", "recall", "95 %")
    table = Table(columns, tuple(lines), caption, folded=False, wrap=False)
    return Section("Which head aligns best?", (), (), (table,)) if lines else None


def _first(rows: Measures, measure: str, group: str, layer: int | None = None) -> MeasuredValue | None:
    return next(iter(rows.where(measure, group=group, head=None, layer=layer)), None)


def _over_layers(rows: Measures, measure: str, setting: str) -> dict[str, MeasuredValue]:
    """The mean over layers by kind, where it was measured."""
    return {kind: row for kind in VIEWS if (row := _first(rows, measure, f"{setting} {kind}"))}


def _kinds(rows: Iterable[MeasuredValue]) -> dict[str, Mark]:
    """The kinds of links in the rows."""
    kinds = {(row.group or "").rpartition(" ")[2] for row in rows}
    return {kind: mark for kind, mark in VIEWS.items() if kind in kinds}


def _by_kind(rates: Mapping[str, MeasuredValue], between: str = ", ") -> str:
    return between.join(f"{words.share(row.value)} by {kind}" for kind, row in rates.items())


def _rates(rows: Measures, facts: AlignFacts, n: str) -> Section | None:
    """Error rates by layer, beside those of links along the diagonal."""
    aer = Measures(tuple(row for row in rows.where("aer", head=None) if row.layer is not None))
    if not (layered := aer.where(subject=facts.subject)):
        return None
    pooled = rows.where(subject=facts.subject)
    by_model = aer.where(subject=set(facts.models)) if len(facts.models) > 1 else Measures(())
    (level,) = rows.where("aer", subject=DIAGONAL)
    axis, dashed = _frame((*layered, *by_model), level.value), (Level("links along the diagonal", level.value, _DASH),)
    settings, kinds = DIRECTIONS if facts.within else SETTINGS, _kinds(layered)
    panels = tuple(_rate_panel(setting, layered, axis, "layer", by_model, dashed) for setting in settings)
    third = ", and by contribution to that sum" * ("contribution" in kinds)
    caption = (
        f"Alignment error rate of links by weight (mean over heads) and by norm (of the sum over heads){third}, lower is better. Bars are "
        f"95 % intervals{', small marks single models' * bool(by_model)}; the dashed line is what links along the diagonal get. {n}."
    )
    key = (*by_kind_key(kinds), LegendEntry("links along the diagonal", render.BASELINE, None, _DASH))
    figure = Figure("error-rates", "", "Error rate per layer", caption, panels, key)
    texts = []
    for setting, meaning in settings.items():
        rates, difference = _over_layers(pooled, "aer", setting), _first(pooled, "aer_difference", setting)
        if difference and len(rates) == len(kinds):
            ends = f" (95 %: {words.ends(difference, text=_change)})" if difference.low is not None else ""
            less = " of norm less weight" * ("contribution" in kinds)
            texts.append(
                f"{words.capital(meaning)}. Mean over layers: {_by_kind(rates, ' and ')}, a difference{less} of "
                f"{_change(difference.value)} points{ends}."
            )
    texts.append(f"Links along the diagonal, which need no model: {words.share(level.value)}.")
    if not facts.chosen and not facts.within:
        texts.append(
            "The best layer is not reported: it would have to be chosen on other pairs with gold links, and none were given."
        )
    return Section("How wrong are the links?", tuple(texts), (figure,), (_layer_table(pooled, facts),))


def _frame(rows: Sequence[MeasuredValue], *more: float) -> SharedAxis:
    return axis_for([*more, *(end for row in rows for end in (row.value, row.low, row.high) if end is not None)], "AER")


def _layer_table(rows: Measures, facts: AlignFacts) -> Table:
    """The error rates of each layer, their mean, and the best layer's."""
    sds = {(row.layer, row.group): row.value for row in rows.where("aer_sd")}

    def line(name: str, setting: str, layer: int | None = None, measure: str = "aer") -> tuple[str, ...]:
        cells = [f"{SHORT_NAMES[setting]}, {name}"]
        for group in (*(f"{setting} {kind}" for kind in kinds), setting):
            text = _change if group == setting else lambda value: f"{100 * value:.1f}".replace("-", "−")
            row = _first(rows, f"{measure}_difference" if group == setting else measure, group, layer)
            sd = sds.get((layer, group)) if measure == "aer" else None
            value, ends = words.cells(row, text=text)
            cells += [value if sd is None else f"{value} ± {100 * sd:.1f}", ends]
        return tuple(cells)

    settings, kinds = DIRECTIONS if facts.within else SETTINGS, _kinds(rows.where("aer"))
    lines, layers = [], sorted({row.layer for row in rows.where("aer") if row.layer is not None})
    for setting in settings:
        lines += [line(f"layer {layer}", setting, layer) for layer in layers]
        lines.append(line("mean over layers", setting))
        lines += [line("best layer*", setting, None, "aer_best")] * bool(facts.chosen)
    groups = [f"{SHORT_NAMES[setting]} by {kind}" for setting in SETTINGS for kind in kinds]
    chosen = {m: ", ".join(f"{g} layer {layers[g]}" for g in groups) for m, layers in sorted(facts.chosen.items())}
    by_model = "; ".join(f"{model}: {layers}" if len(chosen) > 1 else layers for model, layers in chosen.items())
    star = (f"* chosen on {words.quantity(facts.trial, 'other pair')}: {by_model}.",) * bool(chosen)
    sd = " ± standard deviation over models" * (len(facts.models) > 1)
    caption = f"AER in % with 95 % intervals{sd}; the difference is norm minus weight."
    columns = ("Links", *(cell for kind in kinds for cell in (f"by {kind}", "95 %")), "difference", "95 %")
    return Table(columns, tuple(lines), caption, words=star)


def _heads(rows: Measures, n: str) -> Section | None:
    """The error rate of every head."""
    if not (rates := Measures(tuple(row for row in rows.where("aer") if row.head is not None))):
        return None
    caption = f"Alignment error rate of the links that each head gives by itself; all panels have one scale. {n}."
    ordered = Measures(tuple(row for s in SHORT_NAMES for kind in VIEWS for row in rates.where(group=f"{s} {kind}")))

    def title(row: MeasuredValue) -> str:
        setting, kind = (row.group or "").split()
        return f"{SHORT_NAMES[setting]}, by {kind}"

    figure = head_maps(("heads", "", "Error rate of single heads"), caption, ordered, "AER", title=title)
    best = min(rates, key=lambda row: row.value)
    text = (
        f"The lowest is {words.share(best.value)}, at layer {best.layer} head {best.head} ({title(best)}). It is "
        "the lowest of many on these very pairs, so that it flatters."
    )
    return Section("Do single heads align?", (text,), (figure,))


def _lengths(rows: Measures) -> Section | None:
    """Error rates by sentence length, in groups of at most so many words."""
    rates, low = rows.where("aer_by_length"), 1
    places: dict[float | None, str] = {}
    for end in sorted({row.at for row in rates if row.at is not None}):
        places[end] = f"{low} to {end:.0f}" if low > 1 else f"up to {end:.0f}"
        low = int(end) + 1
    if any(row.at is None for row in rates):
        places[None] = f"{low} and more"
    if len(places) < 2:
        return None
    settings = [setting for setting in SHORT_NAMES if rates.where(group=f"{setting} weight")]
    panels = tuple(_rate_panel(setting, rates, _frame(rates.rows), "words", places=places) for setting in settings)
    counts = words.join_words([f"{rates.where(at=at).rows[0].n} of {name} words" for at, name in places.items()])
    caption = (
        f"Mean over layers, by the words of a pair's longer side. Bars are 95 % intervals. Sentence pairs: {counts}."
    )
    key = by_kind_key(_kinds(rates))
    figure = Figure("lengths", "", "Error rate by length of the sentences", caption, panels, key)
    return Section("Are longer sentences harder?", (), (figure,))


def _rate_panel(
    setting: str,
    rows: Measures,
    axis: SharedAxis,
    across: str,
    by_model: Measures | None = None,
    levels: Sequence[Level] = (),
    places: Mapping[float | None, str] | None = None,
) -> Panel:
    """Rates of a setting by weight and by norm at every layer, or at `places`, with those of single models (`by_model`)."""

    def mark_values(rows: Measures | None, tail: str = "") -> list[dict[str, Any]]:
        values = []
        for row in sorted(rows or (), key=lambda row: (row.layer or 0, row.group or "")):
            group_setting, kind = (row.group or "").split()
            if group_setting == setting:
                at = places[row.at] if places else str(row.layer)
                ends = {"value": row.value, "low": row.low, "high": row.high}
                values.append({"group": kind, "place": at, "slot": f"{kind}{tail}"} | ends)
        return values

    main, single, title = mark_values(rows), mark_values(by_model, " alone"), SHORT_NAMES[setting]
    kinds = _kinds(rows)
    slots = [slot for kind in kinds for slot in ((kind, f"{kind} alone") if single else (kind,))]
    at = list(dict.fromkeys(str(row["place"]) for row in main))
    x = alt.X("place:O", sort=at, title=across, scale=alt.Scale(domain=at, paddingInner=0.2))
    chart = overlay(title, *marks(main, axis, x, kinds, slots, levels, single))
    text = "; ".join(
        f"by {kind} {min(v):.3f} to {max(v):.3f}"
        for kind in kinds
        if (v := [row["value"] for row in main if row["group"] == kind])
    )
    return Panel(title, chart, f"{title}: alignment error rate by {across}: {text}.", (), {})


def _change(value: float) -> str:
    return f"{100 * value:+.1f}".replace("-", "−")
