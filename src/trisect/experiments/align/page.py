"""The page of a word alignment: error rates of links by weight and by norm, per layer, head and length, and single pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import altair as alt
import polars as pl

from trisect.core.finding import About, Estimate, Finding
from trisect.core.percent import percent
from trisect.experiments.align.pictures import pictures
from trisect.papers.norms import ALIGNMENT, SETTINGS
from trisect.report import format as words
from trisect.report import palette
from trisect.report.axes import SharedAxis, around
from trisect.report.heatmaps import grid
from trisect.report.palette import KINDS
from trisect.report.panels import Figure, LegendEntry, Panel, chart_of, lay
from trisect.report.provenance import provenance, verdict_findings
from trisect.report.sheet import Section, Sheet, Table

if TYPE_CHECKING:
    from trisect.experiments.align.settings import AlignFacts

DIAGONAL = "diagonal"
DASH = (5, 3)
REFERENCES = (
    ALIGNMENT.citation,
    "Franz Josef Och, Hermann Ney. Improved Statistical Alignment Models. ACL 2000.",
    "Sarthak Garg, Stephan Peitz, Udhyakumar Nallasamy, Matthias Paulik. Jointly Learning to Align and Translate with "
    "Transformer Models. EMNLP 2019.",
    "Art Owen. The Pigeonhole Bootstrap. The Annals of Applied Statistics 1, 2007.",
    "Sture Holm. A Simple Sequentially Rejective Multiple Test Procedure. Scandinavian Journal of Statistics 6, 1979.",
)
AlignmentRows = list[dict[str, Any]]


def page(tables: Mapping[str, pl.DataFrame], about: About[AlignFacts]) -> Sheet:
    """The page from the tables measures and claims; what was not measured leaves no section."""
    rows, facts = tables["measures"].filter(pl.col("value").is_not_null()), about.facts
    n = f"n\u00a0=\u00a0{words.several(facts.pairs, 'sentence pair')}"
    n += f", {words.several(len(facts.models), 'model')}" * (len(facts.models) > 1)
    made = (
        Section("What the claim says here", _scope(facts), cards=tables["claims"]) if facts.gold else None,
        _rates(rows, facts, n),
        _heads(rows, facts, n),
        _lengths(rows, facts),
        _pairs(facts, n),
        _agreement(rows, facts),
        Section("Notes", about.notes) if about.notes else None,
    )
    lede = (
        f"{words.called(facts.subject, about.command)} · {facts.corpus} · {words.several(facts.pairs, 'sentence pair')}"
    )
    sections = tuple(section for section in made if section is not None)
    title = "Which words does cross-attention link?"
    return Sheet(title, "trisect · word alignment", lede, sections, provenance(about, *_facts(facts)), REFERENCES)


def findings(tables: Mapping[str, pl.DataFrame], about: About[AlignFacts]) -> tuple[Finding, ...]:
    """Error rates by weight and by norm, those of their best layers, and the claim with its verdict."""
    rows = tables["measures"].filter(pl.col("value").is_not_null(), subject=about.facts.subject)
    found = [
        _finding(rows, measure, setting, name)
        for setting in SETTINGS
        for measure, name in (("aer", "mean over layers"), ("aer_best", "best layer, chosen on other pairs"))
    ]
    return (*(one for one in found if one is not None), *verdict_findings(tables["claims"]))


def _finding(rows: pl.DataFrame, measure: str, setting: str, name: str) -> Finding | None:
    """The error rates of a setting, with what their difference says where its interval leaves out 0."""
    whole = _wholes(rows, measure, setting)
    if len(whole) < len(KINDS):
        return None
    rates = ", ".join(f"{percent(row['value'], 1)} by {kind}" for kind, row in whole.items())
    values = tuple(
        Estimate(f"{setting} {kind}", *(row[key] for key in ("value", "low", "high", "n")))
        for kind, row in whole.items()
    )
    less, order = _first(rows, f"{measure}_difference", setting), ""
    if less is not None and less["low"] is not None and not less["low"] <= 0 <= less["high"]:
        order = "norm < weight" if less["value"] < 0 else "weight < norm"
    said = f"AER, {setting.upper()}, {name}: {rates}"
    return Finding(measure, said, "AER", values, order, ALIGNMENT.key)


def _scope(facts: AlignFacts) -> tuple[str, ...]:
    several = len(facts.models) > 1
    drawn = "sentence pairs and models" if several else "sentence pairs"
    tail = "" if several else " They speak of this one model."
    return (
        "The decoder is given the gold target, word by word. A target word is linked to the source word that has the highest "
        "score in cross-attention: the weight a, or the length ‖a f(x)‖ of what is really added. The row of a word is that "
        "where the decoder reads it (AWI), or that where it is to say it (AWO). A source word has the sum of its pieces, a "
        "target word the mean; where the end of the sentence comes first, there is no link. The alignment error rate (AER) is "
        "1 − (|A∩S| + |A∩P|) / (|A| + |S|), with the links A, the sure gold links S and the possible ones P.",
        f"Intervals and p-values are from resampling {drawn}.{tail}",
    )


def _rates(rows: pl.DataFrame, facts: AlignFacts, n: str) -> Section | None:
    mine = rows.filter(subject=facts.subject)
    layered = _layers(mine, "aer")
    if not layered:
        return None
    alone = _layers(rows.filter(pl.col("subject").is_in(facts.models)), "aer") if len(facts.models) > 1 else []
    (level,) = rows.filter(subject=DIAGONAL, measure="aer")["value"].to_list()
    ends = [v for r in (*layered, *alone) for v in (r["value"], r["low"], r["high"]) if v is not None]
    axis = around([*ends, level], "AER")
    panels = tuple(
        _compared(setting.upper(), _placed(layered, setting), _placed(alone, setting), axis, level, "layer")
        for setting in SETTINGS
    )
    caption = (
        "Alignment error rate of links by weight (mean over heads) and by norm (of the sum over heads), lower is better. Bars are "
        f"95 % intervals{', small marks single models' * bool(alone)}; the dashed line is what links along the diagonal get. {n}."
    )
    key = (*_keys(), LegendEntry("links along the diagonal", palette.BASELINE, None, DASH))
    figure = Figure("error-rates", "", "Error rate per layer", caption, panels, key)
    return Section("How wrong are the links?", _said(mine, facts, level), (figure,), (_layer_table(mine, facts),))


def _said(rows: pl.DataFrame, facts: AlignFacts, level: float) -> tuple[str, ...]:
    said = []
    for setting, meaning in SETTINGS.items():
        whole = _wholes(rows, "aer", setting)
        difference = _first(rows, "aer_difference", setting)
        if difference and len(whole) == len(KINDS):
            rates = " and ".join(f"{percent(row['value'], 1)} by {kind}" for kind, row in whole.items())
            said.append(f"{meaning}. Mean over layers: {rates}, a difference of {_change(difference)}.")
    said.append(f"Links along the diagonal, which need no model: {percent(level, 1)}.")
    if not facts.chosen:
        said.append(
            "The best layer is not reported: it would have to be chosen on other pairs with gold links, and none were given."
        )
    return tuple(said)


def _layer_table(rows: pl.DataFrame, facts: AlignFacts) -> Table:
    lines = []
    sds = {(r["layer"], r["group"]): r["value"] for r in rows.filter(measure="aer_sd").to_dicts()}
    for setting in SETTINGS:
        name = setting.upper()
        for layer in sorted(set(rows.filter(measure="aer")["layer"].drop_nulls().to_list())):
            lines.append(_line(rows, f"{name}, layer {layer}", "aer", setting, layer, sds))
        lines.append(_line(rows, f"{name}, mean over layers", "aer", setting, None, sds))
        if facts.chosen:
            lines.append(_line(rows, f"{name}, best layer*", "aer_best", setting, None, {}))
    several = len(facts.models) > 1
    star = (f" * chosen on {words.several(facts.trial, 'other pair')}: {_chosen(facts)}.") * bool(facts.chosen)
    sd = " ± standard deviation over models" * several
    caption = f"AER in % with 95 % intervals{sd}; the difference is norm minus weight.{star}"
    return Table(("Links", "by weight", "95 %", "by norm", "95 %", "difference", "95 %"), tuple(lines), caption)


def _line(
    rows: pl.DataFrame,
    name: str,
    measure: str,
    setting: str,
    layer: int | None,
    sds: Mapping[tuple[int | None, str], float],
) -> tuple[str, ...]:
    cells = [name]
    for group in (*(f"{setting} {kind}" for kind in KINDS), setting):
        changed = group == setting
        row = _first(rows, f"{measure}_difference" if changed else measure, group, layer)
        sd = sds.get((layer, group))
        tail = "" if sd is None else f" ± {100 * sd:.1f}"
        cells += [f"{_points(row['value'], changed)}{tail}", _ends(row, changed)] if row else ["–", "–"]
    return tuple(cells)


def _chosen(facts: AlignFacts) -> str:
    """The layers chosen, per model, as words."""
    said = []
    for model, layers in sorted(facts.chosen.items()):
        groups = (f"{setting.upper()} by {kind}" for setting in SETTINGS for kind in KINDS)
        own = ", ".join(f"{group} layer {layers[group]}" for group in groups)
        said.append(f"{model}: {own}" if len(facts.chosen) > 1 else own)
    return "; ".join(said)


def _heads(rows: pl.DataFrame, facts: AlignFacts, n: str) -> Section | None:
    found = rows.filter(pl.col("head").is_not_null(), subject=facts.subject, measure="aer")
    if found.is_empty():
        return None
    values = {
        f"{setting.upper()}, by {kind}": [
            (r["layer"], r["head"], r["value"]) for r in found.filter(group=f"{setting} {kind}").to_dicts()
        ]
        for setting in SETTINGS
        for kind in KINDS
    }
    caption = f"Alignment error rate of the links that each head gives by itself; all panels have one scale. {n}."
    figure = grid("heads", "", "Error rate of single heads", caption, values, "AER")
    best = found.sort("value").row(0, named=True)
    setting, kind = best["group"].split()
    said = (
        f"The lowest is {percent(best['value'], 1)}, at layer {best['layer']} head {best['head']} ({setting.upper()}, by {kind}). It is "
        "the lowest of many on these very pairs, so that it flatters."
    )
    return Section("Do single heads align?", (said,), (figure,))


def _lengths(rows: pl.DataFrame, facts: AlignFacts) -> Section | None:
    found = rows.filter(subject=facts.subject, measure="aer_by_length").to_dicts()
    places = _buckets(sorted({r["at"] for r in found if r["at"] is not None}), any(r["at"] is None for r in found))
    if len(places) < 2:
        return None
    for row in found:
        row["place"] = places[row["at"]]
    ends = [v for r in found for v in (r["value"], r["low"], r["high"]) if v is not None]
    axis = around(ends, "AER")
    panels = tuple(
        _compared(setting.upper(), [r for r in found if r["group"].startswith(setting)], [], axis, None, "words")
        for setting in SETTINGS
    )
    counts = {name: next(r["n"] for r in found if r["place"] == name) for name in places.values()}
    said = words.listed([f"{count} of {name} words" for name, count in counts.items()])
    caption = (
        f"Mean over layers, by the words of a pair's longer side. Bars are 95 % intervals. Sentence pairs: {said}."
    )
    figure = Figure("lengths", "", "Error rate by length of the sentences", caption, panels, _keys())
    return Section("Are longer sentences harder?", (), (figure,))


def _buckets(ends: Sequence[float], beyond: bool) -> dict[float | None, str]:
    """The groups of lengths in words: the first from 1 on, each next from where the last one ends."""
    names: dict[float | None, str] = {}
    low = 1
    for end in ends:
        names[end] = f"{low} to {end:.0f}" if low > 1 else f"up to {end:.0f}"
        low = int(end) + 1
    return names | ({None: f"{low} and more"} if beyond else {})


def _pairs(facts: AlignFacts, n: str) -> Section | None:
    if not facts.pictures:
        return None
    layers = facts.pictures[0]["layers"]
    how = "chosen on other pairs" if facts.chosen else "which is the one before the last, where there are several"
    rule = f"{facts.picture_rule} Links by weight are of layer {layers['weight']}, by norm of layer {layers['norm']}, {how}."
    figure = pictures(facts.pictures, rule, n)
    return None if figure is None else Section("What do links look like?", (), (figure,))


def _agreement(rows: pl.DataFrame, facts: AlignFacts) -> Section | None:
    mine = rows.filter(subject=facts.subject)
    lines = []
    for row in mine.filter(measure="agreement").sort("group", "layer").to_dicts():
        linked = [_first(mine, "linked", f"{row['group']} {kind}", row["layer"]) for kind in KINDS]
        cells = [percent(r["value"], 1) if r else "–" for r in (row, *linked)]
        lines.append((f"{row['group'].upper()}, layer {row['layer']}", *cells))
    caption = "Share of target words with the same link (or none) by weight and by norm, and share of those with a link"
    table = Table(("Layer", "same link", "linked by weight", "linked by norm"), tuple(lines), caption)
    return Section("How often do weight and norm agree?", (), (), (table,)) if lines else None


def _compared(
    title: str, rows: AlignmentRows, alone: AlignmentRows, axis: SharedAxis, level: float | None, across: str
) -> Panel:
    """Marks by weight and by norm at every `place`, with intervals; `alone` are single models, beside them."""
    slots = [slot for kind in KINDS for slot in (kind, f"{kind} alone")][: None if alone else 3 : 1 if alone else 2]
    domain, places = list(KINDS), list(dict.fromkeys(r["place"] for r in rows))
    colour = alt.Color("kind:N", scale=alt.Scale(domain=domain, range=[m.colour for m in KINDS.values()]), title=None)
    shape = alt.Shape("kind:N", scale=alt.Scale(domain=domain, range=[m.shape for m in KINDS.values()]), title=None)
    x = alt.X("place:O", sort=places, title=across, scale=alt.Scale(domain=places, paddingInner=0.2))
    offset = alt.XOffset("slot:N", scale=alt.Scale(domain=slots), sort=slots)
    whole = [_mark(r) | {"slot": r["group"].split()[1]} for r in rows]
    layers: list[alt.Chart] = []
    if level is not None:
        line = chart_of("level", [{"level": level}]).mark_rule(color=palette.BASELINE, strokeDash=list(DASH))
        layers.append(line.encode(axis.axis("level")))
    if alone:
        single = [_mark(r) | {"slot": f"{r['group'].split()[1]} alone"} for r in alone]
        look = chart_of("models", single).mark_point(size=13, strokeWidth=1, opacity=1, filled=False)
        layers.append(look.encode(x, axis.axis("value"), colour, shape, offset))
    if ranged := [r for r in whole if r["low"] is not None]:
        bars = chart_of("bars", ranged).mark_rule(strokeWidth=1.6)
        layers.append(bars.encode(x, axis.axis("low"), alt.Y2("high"), colour, offset))
    marks = chart_of("main", whole).mark_point(size=50, filled=True, opacity=1)
    layers.append(marks.encode(x, axis.axis("value"), colour, shape, offset))
    said = "; ".join(
        f"by {kind} {min(v):.3f} to {max(v):.3f}"
        for kind in KINDS
        if (v := [r["value"] for r in whole if r["kind"] == kind])
    )
    return Panel(title, lay(title, *layers), f"{title}: alignment error rate by {across}: {said}.", (), {})


def _mark(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"kind": row["group"].split()[1], **{k: row[k] for k in ("place", "value", "low", "high")}}


def _keys() -> tuple[LegendEntry, ...]:
    return tuple(LegendEntry(f"by {name}", mark.colour, mark.shape) for name, mark in KINDS.items())


def _layers(rows: pl.DataFrame, measure: str) -> AlignmentRows:
    """Rows of whole layers, in their order."""
    kept = rows.filter(pl.col("layer").is_not_null(), pl.col("head").is_null(), measure=measure)
    return kept.sort("layer", "group", "subject").to_dicts()


def _placed(rows: AlignmentRows, setting: str) -> AlignmentRows:
    return [row | {"place": str(row["layer"])} for row in rows if row["group"].startswith(setting)]


def _first(rows: pl.DataFrame, measure: str, group: str, layer: int | None = None) -> dict[str, Any] | None:
    found = rows.filter(
        pl.col("head").is_null(), pl.col("layer").eq_missing(pl.lit(layer)), measure=measure, group=group
    )
    return found.row(0, named=True) if found.height else None


def _wholes(rows: pl.DataFrame, measure: str, setting: str) -> dict[str, dict[str, Any]]:
    """A number of the whole model by kind, as far as it was measured."""
    found = {kind: _first(rows, measure, f"{setting} {kind}") for kind in KINDS}
    return {kind: row for kind, row in found.items() if row is not None}


def _points(value: float, signed: bool) -> str:
    return f"{100 * value:{'+' if signed else ''}.1f}".replace("-", "−")


def _ends(row: Mapping[str, Any], signed: bool) -> str:
    return "–" if row["low"] is None else f"{_points(row['low'], signed)} to {_points(row['high'], signed)}"


def _change(row: Mapping[str, Any]) -> str:
    ends = "" if row["low"] is None else f" (95 %: {_ends(row, True)})"
    return f"{_points(row['value'], True)} points{ends}"


def _facts(facts: AlignFacts) -> tuple[tuple[str, str], ...]:
    models = "; ".join(f"{name}, weights {mark}" for name, mark in sorted(facts.models.items()))
    return (
        ("Models" if len(facts.models) > 1 else "Model", models),
        ("Shape", facts.shape),
        ("Sentence pairs", f"{facts.corpus}: {words.count(facts.pairs)}"),
        ("Draws", f"{words.count(facts.draws)}, seed {facts.seed}"),
    )
