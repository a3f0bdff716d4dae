"""The page of a word alignment: error rates of links by weight, norm and contribution, per layer, head and length, and pairs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import altair as alt
import polars as pl

from trisect.core.finding import About, Finding
from trisect.papers.norms import ALIGNMENT, DIRECTIONS, SETTINGS
from trisect.report import format as words
from trisect.report import render
from trisect.report.charts import (
    Figure,
    LegendEntry,
    Level,
    Panel,
    SharedAxis,
    around,
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

SHORT = {**{setting: setting.upper() for setting in SETTINGS}, **{way: way for way in DIRECTIONS}}

CELL, WIDEST = 21.0, 225.0  # pixels: of a cell, and of a side's, so that it fits a telephone with its words
_FAINT = 0.3  # of a possible link's cell
LONGEST = 110  # pixels of a word; what is longer is cut
GOLD = {"sure": "sure gold link", "possible": "possible gold link"}


def pictures(given: Sequence[PicturedPair], rule: str, n: str) -> Figure:
    """A panel for each sentence pair. `rule` says how the pairs were chosen."""
    gold = any(one["sure"] or one["possible"] for one in given)
    keys = (
        LegendEntry(GOLD["sure"], render.BASELINE, "square"),
        LegendEntry(GOLD["possible"], f"{render.BASELINE}4d", "square"),
    )
    caption = f"Source words from left to right, target words downwards. {rule} {n}."
    panels = tuple(_panel(one) for one in given)
    key = (*keys * gold, *by_kind_key())
    return Figure("sentence-pairs", "", "Links of single sentence pairs", caption, panels, key)


def _panel(one: PicturedPair) -> Panel:
    source, target = one["source"], one["target"]
    cell = min(CELL, WIDEST / max(len(source), len(target)))
    x = _axis(alt.X, "source", source, orient="top", labelAngle=-90)
    y = _axis(alt.Y, "target", target, orient="left", labelAngle=0)

    def cells(name: str, links: Sequence[Sequence[int]]) -> alt.Chart:
        return chart_of(name, [{"source": source, "target": target} for source, target in links])

    layers: list[alt.Chart] = []
    possible = [link for link in one["possible"] if link not in one["sure"]]
    for name, links, opacity in (("sure", one["sure"], 1.0), ("possible", possible, _FAINT)):
        if links:
            look = cells(name, links).mark_rect(fill=render.BASELINE, fillOpacity=opacity)
            layers.append(look.encode(x, y))
    sure, allowed = {tuple(p) for p in one["sure"]}, {tuple(p) for p in (*one["sure"], *one["possible"])}
    said = f"{one['title']}. Source: {' '.join(source)}. Target: {' '.join(target)}."
    for side, (name, mark) in zip((-1, 1), KINDS.items(), strict=True):
        look = cells(name, one[name]).mark_point(
            shape=mark.shape,
            fill=mark.colour,
            stroke=render.PAPER,
            strokeWidth=0.8,
            opacity=1,
            size=(0.42 * cell) ** 2,
            xOffset=side * 0.22 * cell,
        )
        layers.append(look.encode(x, y))
        links = {tuple(p) for p in one[name]}
        right = f", {len(links & allowed)} of them gold, {len(links & sure)} of {len(sure)} sure ones found"
        said += f" By {name}: {len(links)} links{right * bool(allowed)}."
    chart = overlay(one["title"], *layers, width=cell * len(source), height=cell * len(target))
    return Panel(one["title"], chart, said, (), {})


def _axis(channel: Any, side: str, words: Sequence[str], **look: Any) -> Any:
    """Words beside the cells; they are distinguished by their place, since a word may stand there twice."""
    axis = alt.Axis(
        labelExpr=f"{json.dumps(list(words))}[datum.value - 1]",
        labelLimit=LONGEST,
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
    """The page from the tables measures and claims; what was not measured leaves no section."""
    rows, facts = Measures.of(tables["measures"]), about.facts
    mine, pairs = rows.where(subject=facts.subject), words.several(facts.pairs, "sentence pair")
    n = words.sample(facts.pairs, "sentence pair") + f", {words.several(len(facts.models), 'model')}" * (
        len(facts.models) > 1
    )
    drawn = "sentence pairs and models" if len(facts.models) > 1 else "sentence pairs"
    tail = "" if len(facts.models) > 1 else " They speak of this one model."
    third = (_THIRD,) * (not facts.within and "contribution" in _kinds(mine.where("linked")))
    scope = (
        _SCOPE_WITHIN if facts.within else _SCOPE,
        *third,
        f"Intervals and p-values are from resampling {drawn}.{tail}",
    )
    title = "What is linked, and how?" if facts.within else "What the claim says here"
    cards = None if facts.within else tables["claims"]
    verdicts = Section(title, scope, cards=cards) if facts.gold else None
    pairs_shown = None
    if facts.pictures:
        layers = facts.pictures[0]["layers"]
        how = "chosen on other pairs" if facts.chosen else "which is the one before the last, where there are several"
        rule = facts.picture_rule.replace("AWI", "forward") if facts.within else facts.picture_rule
        rule = f"{rule} Links by weight are of layer {layers['weight']}, by norm of layer {layers['norm']}, {how}."
        pairs_shown = Section("What do links look like?", (), (pictures(facts.pictures, rule, n),))
    sections = present(
        best_heads(mine, n) if facts.within else None,
        _rates(rows, facts, n),
        verdicts,
        _heads(mine, n),
        _lengths(mine),
        pairs_shown,
        _agreement(mine),
        notes_section(about),
    )
    lede = f"{words.display_name(facts.subject, about.command)} · {facts.corpus} · {pairs}"
    title = f"Which words does {'attention' if facts.within else 'cross-attention'} link?"
    models = "; ".join(f"{name}, weights {mark}" for name, mark in sorted(facts.models.items()))
    own = (
        ("Models" if len(facts.models) > 1 else "Model", models),
        ("Shape", facts.shape),
        ("Sentence pairs", f"{facts.corpus}: {words.count(facts.pairs)}"),
        ("Draws", f"{words.count(facts.draws)}, seed {facts.seed}"),
    )
    wholes = {setting: _wholes(mine, "aer", setting) for setting in SETTINGS}
    known = {setting: of for setting, of in wholes.items() if of.keys() >= KINDS.keys()}
    answer = words.capital(next((str(one) for one in findings(tables, about)), ""))
    if known:
        setting = min(known, key=lambda one: min(row.value for row in known[one].values()))
        by = {kind: words.share(known[setting][kind].value) for kind in KINDS}
        answer = (
            f"Links by the norm of what is added are wrong in {by['norm']}, links by attention weight in {by['weight']} (alignment "
            f"error rate, {setting.upper()}, mean over layers)."
        )
    return Sheet(title, "trisect · word alignment", lede, sections, provenance(about, *own), REFERENCES, answer)


def findings(tables: Mapping[str, pl.DataFrame], about: About[AlignFacts]) -> tuple[Finding, ...]:
    """Error rates by weight and by norm, those of their best layers, and the claim with its verdict.

    Within one text those of the best head, which the other half of the texts chose, by contribution too, and no claim.
    """
    rows, found = Measures.of(tables["measures"]).where(subject=about.facts.subject), list[Finding]()
    if about.facts.within:
        for way in DIRECTIONS:
            best = {
                name: {
                    k: row for k in VIEWS if (row := next(iter(rows.where(f"{name}_head", group=f"{way} {k}")), None))
                }
                for name in ("aer", "precision", "recall")
            }
            if not best["aer"]:
                continue
            values = tuple(row.estimate(f"{way} {kind}") for kind, row in best["aer"].items())
            if not best["precision"]:  # of a model whose source words do not see the target
                line = f"{words.capital(way)}, no head that is chosen makes a link: AER is 100\u00a0%"
                found.append(Finding("aer_head", line, "AER", values))
                continue
            said = [
                ", ".join(f"{words.share(row.value)} by {kind}" for kind, row in of.items()) for of in best.values()
            ]
            heads = {_head_name(row) for row in best["aer"].values()}
            which = f"{heads.pop()}, as" if len(heads) == 1 and "" not in heads else "the head"
            line = f"{way}, {which} the other half of the texts chooses: AER {said[0]}; precision {said[1]}; recall {said[2]}"
            found.append(Finding("aer_head", words.capital(line), "AER", values))
        return tuple(found)
    for setting in SETTINGS:
        for measure, name in (("aer", "mean over layers"), ("aer_best", "best layer, chosen on other pairs")):
            whole = {kind: row for kind, row in _wholes(rows, measure, setting).items() if kind in KINDS}
            if len(whole) == len(KINDS):
                values = tuple(row.estimate(f"{setting} {kind}") for kind, row in whole.items())
                less = _first(rows, f"{measure}_difference", setting)
                order = {-1: "norm < weight", 1: "weight < norm", 0: ""}[less.side if less else 0]
                said = f"AER, {SHORT[setting]}, {name}: {_by_kind(whole, ', ')}"
                found.append(Finding(measure, said, "AER", values, order, ALIGNMENT.key))
    return (*found, *verdict_findings(tables["claims"]))


def _head_name(row: MeasuredValue) -> str:
    return f"layer {row.layer} head {row.head}" if row.head is not None else ""


def best_heads(rows: Measures, n: str) -> Section | None:
    """The head that the other half of the texts chooses, by direction and kind."""
    lines = []
    for way in DIRECTIONS:
        for kind in VIEWS:
            group = f"{way} {kind}"
            if (aer := next(iter(rows.where("aer_head", group=group)), None)) is None:
                continue
            right = [next(iter(rows.where(f"{name}_head", group=group)), None) for name in ("precision", "recall")]
            shares = [cell for row in (aer, *right) for cell in words.cells(row, text=words.share)]
            lines.append(
                (f"{way}, by {kind}", "none links" if right[0] is None else _head_name(aer) or "two of them", *shares)
            )
    caption = f"Each half of the texts (every second one) is scored by the head that the other half chooses. {n}."
    columns = ("Links", "head", "AER", "95 %", "precision", "95 %", "recall", "95 %")
    table = Table(columns, tuple(lines), caption, folded=False, wrap=False)
    return Section("Which head aligns best?", (), (), (table,)) if lines else None


def _first(rows: Measures, measure: str, group: str, layer: int | None = None) -> MeasuredValue | None:
    return next(iter(rows.where(measure, group=group, head=None, layer=layer)), None)


def _wholes(rows: Measures, measure: str, setting: str) -> dict[str, MeasuredValue]:
    """A number of the whole model by kind, as far as it was measured."""
    found = {kind: _first(rows, measure, f"{setting} {kind}") for kind in VIEWS}
    return {kind: row for kind, row in found.items() if row is not None}


def _kinds(rows: Iterable[MeasuredValue]) -> dict[str, Mark]:
    """The kinds of links that rows are of; runs of before have none by contribution between two texts."""
    there = {(row.group or "").rpartition(" ")[2] for row in rows}
    return {kind: mark for kind, mark in VIEWS.items() if kind in there}


def _by_kind(whole: Mapping[str, MeasuredValue], between: str) -> str:
    return between.join(f"{words.share(row.value)} by {kind}" for kind, row in whole.items())


def _rates(rows: Measures, facts: AlignFacts, n: str) -> Section | None:
    """Error rates layer by layer, beside what links along the diagonal get."""
    aer = Measures(tuple(row for row in rows.where("aer", head=None) if row.layer is not None))
    if not (layered := aer.where(subject=facts.subject)):
        return None
    mine = rows.where(subject=facts.subject)
    alone = aer.where(subject=set(facts.models)) if len(facts.models) > 1 else Measures(())
    (level,) = rows.where("aer", subject=DIAGONAL)
    axis, dashed = _frame((*layered, *alone), level.value), (Level("links along the diagonal", level.value, _DASH),)
    settings, kinds = DIRECTIONS if facts.within else SETTINGS, _kinds(layered)
    panels = tuple(_rate_panel(setting, layered, axis, "layer", alone, dashed) for setting in settings)
    third = ", and by contribution to that sum" * ("contribution" in kinds)
    caption = (
        f"Alignment error rate of links by weight (mean over heads) and by norm (of the sum over heads){third}, lower is better. Bars are "
        f"95 % intervals{', small marks single models' * bool(alone)}; the dashed line is what links along the diagonal get. {n}."
    )
    key = (*by_kind_key(kinds), LegendEntry("links along the diagonal", render.BASELINE, None, _DASH))
    figure = Figure("error-rates", "", "Error rate per layer", caption, panels, key)
    said = []
    for setting, meaning in settings.items():
        whole, difference = _wholes(mine, "aer", setting), _first(mine, "aer_difference", setting)
        if difference and len(whole) == len(kinds):
            ends = f" (95 %: {words.ends(difference, text=_change)})" if difference.low is not None else ""
            less = " of norm less weight" * ("contribution" in kinds)
            said.append(
                f"{words.capital(meaning)}. Mean over layers: {_by_kind(whole, ' and ')}, a difference{less} of "
                f"{_change(difference.value)} points{ends}."
            )
    said.append(f"Links along the diagonal, which need no model: {words.share(level.value)}.")
    if not facts.chosen and not facts.within:
        said.append(
            "The best layer is not reported: it would have to be chosen on other pairs with gold links, and none were given."
        )
    return Section("How wrong are the links?", tuple(said), (figure,), (_layer_table(mine, facts),))


def _frame(rows: Sequence[MeasuredValue], *more: float) -> SharedAxis:
    return around([*more, *(end for row in rows for end in (row.value, row.low, row.high) if end is not None)], "AER")


def _layer_table(rows: Measures, facts: AlignFacts) -> Table:
    """The error rates of each layer, their mean, and the best layer's."""
    sds = {(row.layer, row.group): row.value for row in rows.where("aer_sd")}

    def line(name: str, setting: str, layer: int | None = None, measure: str = "aer") -> tuple[str, ...]:
        cells = [f"{SHORT[setting]}, {name}"]
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
    groups = [f"{SHORT[setting]} by {kind}" for setting in SETTINGS for kind in kinds]
    chosen = {m: ", ".join(f"{g} layer {of[g]}" for g in groups) for m, of in sorted(facts.chosen.items())}
    by_model = "; ".join(f"{model}: {of}" if len(chosen) > 1 else of for model, of in chosen.items())
    star = f" * chosen on {words.several(facts.trial, 'other pair')}: {by_model}." * bool(chosen)
    sd = " ± standard deviation over models" * (len(facts.models) > 1)
    caption = f"AER in % with 95 % intervals{sd}; the difference is norm minus weight.{star}"
    columns = ("Links", *(cell for kind in kinds for cell in (f"by {kind}", "95 %")), "difference", "95 %")
    return Table(columns, tuple(lines), caption)


def _heads(rows: Measures, n: str) -> Section | None:
    """Every head's error rate by itself."""
    if not (found := Measures(tuple(row for row in rows.where("aer") if row.head is not None))):
        return None
    caption = f"Alignment error rate of the links that each head gives by itself; all panels have one scale. {n}."
    ordered = Measures(tuple(row for s in SHORT for kind in VIEWS for row in found.where(group=f"{s} {kind}")))

    def title(row: MeasuredValue) -> str:
        setting, kind = (row.group or "").split()
        return f"{SHORT[setting]}, by {kind}"

    figure = head_maps(("heads", "", "Error rate of single heads"), caption, ordered, "AER", title=title)
    best = min(found, key=lambda row: row.value)
    said = (
        f"The lowest is {words.share(best.value)}, at layer {best.layer} head {best.head} ({title(best)}). It is "
        "the lowest of many on these very pairs, so that it flatters."
    )
    return Section("Do single heads align?", (said,), (figure,))


def _lengths(rows: Measures) -> Section | None:
    """Error rates by how long the sentences are: up to so many words, each group from where the last one ends."""
    found, low = rows.where("aer_by_length"), 1
    places: dict[float | None, str] = {}
    for end in sorted({row.at for row in found if row.at is not None}):
        places[end] = f"{low} to {end:.0f}" if low > 1 else f"up to {end:.0f}"
        low = int(end) + 1
    if any(row.at is None for row in found):
        places[None] = f"{low} and more"
    if len(places) < 2:
        return None
    settings = [setting for setting in SHORT if found.where(group=f"{setting} weight")]
    panels = tuple(_rate_panel(setting, found, _frame(found.rows), "words", places=places) for setting in settings)
    said = words.join_words([f"{found.where(at=at).rows[0].n} of {name} words" for at, name in places.items()])
    caption = (
        f"Mean over layers, by the words of a pair's longer side. Bars are 95 % intervals. Sentence pairs: {said}."
    )
    kinds = _kinds(found)
    figure = Figure("lengths", "", "Error rate by length of the sentences", caption, panels, by_kind_key(kinds))
    return Section("Are longer sentences harder?", (), (figure,))


def _agreement(rows: Measures) -> Section | None:
    lines = []
    for row in sorted(rows.where("agreement"), key=lambda row: (row.group, row.layer)):
        linked = [_first(rows, "linked", f"{row.group} {kind}", row.layer) for kind in KINDS]
        cells = [words.share(one.value) if one else "–" for one in (row, *linked)]
        lines.append((f"{SHORT[row.group or '']}, layer {row.layer}", *cells))
    caption = "Share of target words with the same link (or none) by weight and by norm, and share of those with a link"
    table = Table(("Layer", "same link", "linked by weight", "linked by norm"), tuple(lines), caption)
    return Section("How often do weight and norm agree?", (), (), (table,)) if lines else None


def _rate_panel(
    setting: str,
    rows: Measures,
    axis: SharedAxis,
    across: str,
    alone: Measures | None = None,
    levels: Sequence[Level] = (),
    places: Mapping[float | None, str] | None = None,
) -> Panel:
    """Marks of a setting by weight and by norm at every layer, or at `places`; `alone` are single models, beside them."""

    def mark_values(every: Measures | None, tail: str = "") -> list[dict[str, Any]]:
        found = []
        for row in sorted(every or (), key=lambda row: (row.layer or 0, row.group or "")):
            own, kind = (row.group or "").split()
            if own == setting:
                at = places[row.at] if places else str(row.layer)
                ends = {"value": row.value, "low": row.low, "high": row.high}
                found.append({"group": kind, "place": at, "slot": f"{kind}{tail}"} | ends)
        return found

    whole, single, title = mark_values(rows), mark_values(alone, " alone"), SHORT[setting]
    kinds = _kinds(rows)
    slots = [slot for kind in kinds for slot in ((kind, f"{kind} alone") if single else (kind,))]
    at = list(dict.fromkeys(str(row["place"]) for row in whole))
    x = alt.X("place:O", sort=at, title=across, scale=alt.Scale(domain=at, paddingInner=0.2))
    chart = overlay(title, *marks(whole, axis, x, kinds, slots, levels, single))
    said = "; ".join(
        f"by {kind} {min(v):.3f} to {max(v):.3f}"
        for kind in kinds
        if (v := [row["value"] for row in whole if row["group"] == kind])
    )
    return Panel(title, chart, f"{title}: alignment error rate by {across}: {said}.", (), {})


def _change(value: float) -> str:
    return f"{100 * value:+.1f}".replace("-", "−")
