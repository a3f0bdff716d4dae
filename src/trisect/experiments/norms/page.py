"""The page of a norm analysis: weights beside norms by category, dispersion, cancelling, frequency, mixing, verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import altair as alt
import polars as pl

from trisect.core.finding import About, Estimate, Finding
from trisect.core.percent import percent
from trisect.papers.norms import QUERIES, SOURCE
from trisect.report import format as words
from trisect.report import palette
from trisect.report.axes import around
from trisect.report.heatmaps import grid
from trisect.report.palette import KINDS
from trisect.report.panels import WIDTH, Figure, LegendEntry, Panel, chart_of, data_of, lay
from trisect.report.provenance import provenance, verdict_findings
from trisect.report.sheet import Section, Sheet, Table
from trisect.report.subject import stack_words

if TYPE_CHECKING:
    from trisect.experiments.norms.settings import NormsFacts

WHAT = {
    "attention": "of attention alone",
    "residual": "with the residual added",
    "full": "with residual and layer norm",
    "feed-forward": "with residual, layer norms and the feed-forward block",
}
NAMES = {
    "cls": "[CLS]",
    "sep": "[SEP]",
    "first": "first token",
    "punctuation": "periods and commas",
    "other": "other tokens",
}
COLOURS = {"cls": "#56B4E9", "sep": "#CC79A7", "first": "#7B4EA3", "punctuation": "#E69F00", "other": "#b4bac2"}
VIEWS = {"weight": "weight", "norm": "norm", "block": "norm of the block"}
MEASURES = {
    "cv_x": "coefficient of variation of ‖x‖",
    "cv_f": "coefficient of variation of ‖f(x)‖",
    "cv_a": "coefficient of variation of a",
    "cv_af": "coefficient of variation of a‖f(x)‖",
    "weight_share": "share by weight",
    "norm_share": "share by norm",
    "spearman_a_f": "ρ of a and ‖f(x)‖",
    "spearman_a_f_layers": "ρ over layers of mean a and mean ‖f(x)‖",
    "spearman_rank_f": "ρ of frequency rank and ‖f(x)‖",
    "spearman_rank_a": "ρ of frequency rank and a",
    "spearman_rank_f_words": "ρ of frequency rank and ‖f(x)‖, without special tokens",
    "spearman_rank_a_words": "ρ of frequency rank and a, without special tokens",
    "spearman_rank_f_within": "ρ of frequency rank and ‖f(x)‖, words alone, ranks within their text",
    "spearman_rank_a_within": "ρ of frequency rank and a, words alone, ranks within their text",
    "mixing_ratio": "mixing ratio",
}
SHARES = "format(100 * datum.value, '~r') + '\u00a0%'"  # an axis of shares
REFERENCES = (
    SOURCE.citation,
    "Goro Kobayashi, Tatsuki Kuribayashi, Sho Yokoi, Kentaro Inui. Incorporating Residual and Normalization Layers into Analysis "
    "of Masked Language Models. EMNLP 2021.",
    "Goro Kobayashi, Tatsuki Kuribayashi, Sho Yokoi, Kentaro Inui. Analyzing Feed-Forward Blocks in Transformers through the Lens of "
    "Attention Maps. ICLR 2024.",
    "Mukund Sundararajan, Ankur Taly, Qiqi Yan. Axiomatic Attribution for Deep Networks. ICML 2017.",
    "Tim Hesterberg. What Teachers Should Know About the Bootstrap. The American Statistician 69, 2015.",
    "Sture Holm. A Simple Sequentially Rejective Multiple Test Procedure. Scandinavian Journal of Statistics 6, 1979.",
)
LENGTHS = {
    "attention": "the sum of what its heads add",
    "residual": "that sum, with the position's own x added where it looks at itself",
    "full": "that sum with x added, behind the layer norm",
    "feed-forward": "that sum with x added, behind the feed-forward block, by integrated gradients from 0",
}
NormRows = list[dict[str, Any]]


def page(tables: Mapping[str, pl.DataFrame], about: About[NormsFacts]) -> Sheet:
    """The page from the tables measures and claims."""
    rows = tables["measures"].filter(pl.col("value").is_not_null())
    stacks = list(dict.fromkeys([about.facts.stack, *rows["stack"].unique().sort()]))
    drawn = [
        s for stack in stacks for s in _stack(rows.filter(pl.col("stack") == stack), stack, len(stacks) > 1, about)
    ]
    lede = f"{words.called(about.facts.subject, about.command)} · {about.facts.corpus} · {words.several(about.facts.texts, 'text')}"
    sections = (
        *drawn[:1],
        Section("What the claims say here", _scope(about), cards=tables["claims"]),
        *drawn[1:],
        Section("Notes", tuple(about.notes)) if about.notes else None,
    )
    return Sheet(
        "Where does attention take its information from?",
        "trisect · norms beside weights",
        lede,
        tuple(s for s in sections if s is not None),
        provenance(about, *_facts(about.facts)),
        REFERENCES,
    )


def findings(tables: Mapping[str, pl.DataFrame], about: About[NormsFacts]) -> tuple[Finding, ...]:
    """How much weights and norms vary over tokens, then every claim's verdict."""
    rows = tables["measures"].filter(pl.col("value").is_not_null(), stack=about.facts.stack)
    measured = {c: _model(rows, name).get(None) for c, name in (("q+k", "cv_a"), ("v", "cv_f"))}
    known = {component: row for component, row in measured.items() if row is not None}
    return (*([_varied(known)] if len(known) == len(measured) else []), *verdict_findings(tables["claims"]))


def _varied(known: Mapping[str, Mapping[str, Any]]) -> Finding:
    """The coefficients of variation of weights, which are of q and k together, and of norms, which have v with them."""
    weight, norm = (f"{words.number(row['value'])} ({_ends(row)})" for row in known.values())
    values = tuple(Estimate(c, *(row[key] for key in ("value", "low", "high", "n"))) for c, row in known.items())
    what = "coefficient of variation over tokens, mean over layers and heads"
    said = f"{what.capitalize()}: {weight} of the weight a, {norm} of ‖f(x)‖."
    return Finding("dispersion", said, "std / mean", values, source=SOURCE.key, what=what, per="text", signed=False)


def _scope(about: About[NormsFacts]) -> tuple[str, ...]:
    stack = stack_words(about.facts.stack)
    where = f"They are about its {stack}. " if stack else ""
    return (
        "A weight a says what share of a vector is added, not how long that vector is. The claims compare a with a‖f(x)‖, the "
        f"length of what is really added. They speak of this model on these texts alone. {where}"
        "Intervals and p-values are from resampling whole texts.",
    )


def _stack(rows: pl.DataFrame, stack: str, named: bool, about: About[NormsFacts]) -> list[Section]:
    """The sections of one stack."""
    prefix = f"{stack}-" if named else ""
    tail = f" ({stack_words(stack) or stack})" if named else ""
    n = f"n\u00a0=\u00a0{words.several(about.facts.texts, 'text')}"
    makers = (
        ("Who gets the weight, and who adds the length?", _shares),
        ("How much do norms vary?", _dispersion),
        ("Do weights and norms cancel?", _cancelling),
        ("Does frequency show?", _frequency),
        ("How much is mixed, how much is kept?", _mixing),
    )
    sections = []
    for title, make in makers:
        made = make(rows, prefix, n, about.facts.block)
        if made is not None:
            said, figures, tables = made
            sections.append(Section(title + tail, said, figures, tables))
    return sections


Made = tuple[tuple[str, ...], tuple[Figure, ...], tuple[Table, ...]] | None


def _shares(rows: pl.DataFrame, prefix: str, n: str, block: str) -> Made:
    whole = {k: found for k in VIEWS if (found := _model(rows, f"{k}_share")) or k in KINDS}
    groups = [g for g in NAMES if all(g in found for found in whole.values())]
    if not groups:
        return None
    layered = {k: _pick(rows, f"{k}_share", head=None).filter(pl.col("layer").is_not_null()) for k in whole}
    panels = [_stacked(f"By {VIEWS[kind]}", found.to_dicts()) for kind, found in layered.items()]
    said = "; ".join(
        f"{NAMES[g]} {_percent(whole['weight'][g]['value'])} by weight and {_percent(whole['norm'][g]['value'])} by norm"
        for g in groups
    )
    beside = f" Then norms of the block, of {LENGTHS[block]}; claims are about attention's own." * ("block" in whole)
    caption = (
        "What each category of tokens is given, as a share of all: weights (mean over heads) added up first, then norms, a "
        f"layer's norm being that of {LENGTHS['attention']}.{beside} Mean over the queries of all texts. {n}."
    )
    key = tuple(LegendEntry(NAMES[g], COLOURS[g], "square") for g in groups)
    figure = Figure(f"{prefix}shares", "", "Shares by weight and by norm", caption, tuple(panels), key)
    table = Table(
        ("Category", *(cell for k in whole for cell in (f"by {VIEWS[k]}", "95 %"))),
        tuple(
            (NAMES[g], *(cell for k in whole for cell in (_percent(whole[k][g]["value"]), _ends(whole[k][g], True))))
            for g in groups
        ),
        "Mean over layers, with intervals over texts",
    )
    return (f"Over all layers: {said}.",), (figure,), (table,)


def _dispersion(rows: pl.DataFrame, prefix: str, n: str, block: str) -> Made:
    heads = _heads(rows, "cv_f")
    if not heads:
        return None
    caption = (
        "Standard deviation of ‖f(x)‖ over all tokens, divided by its mean, in every head. At 0 every token's vector would be as long "
        f"as any other, and weights would be the whole story. {n}."
    )
    figure = grid(f"{prefix}dispersion", "", "Dispersion of ‖f(x)‖", caption, heads, "of the mean")
    found = [(name, _model(rows, name).get(None)) for name in ("cv_x", "cv_f", "cv_a", "cv_af")]
    table = Table(
        ("What", "mean over layers and heads", "95 %"),
        tuple((MEASURES[name], words.number(row["value"]), _ends(row)) for name, row in found if row is not None),
        "Coefficients of variation over tokens; a is the weight that a token gets, mean over the queries that may look at it",
    )
    return (), (figure,), (table,)


def _cancelling(rows: pl.DataFrame, prefix: str, n: str, block: str) -> Made:
    a, f = (_pick(rows, name).filter(pl.col("head").is_not_null()) for name in ("mean_a", "mean_f"))
    joined = a.join(f, on=["layer", "head", "group"], suffix="_f").sort("group", "layer", "head")
    if joined.is_empty():
        return None
    layers = sorted(set(joined["layer"].to_list()))
    rho, over = _model(rows, "spearman_a_f"), _model(rows, "spearman_a_f_layers")
    points = joined.filter(pl.col("value") > 0).select("layer", "head", "group", a="value", f="value_f").to_dicts()
    panels = [
        _scatter(NAMES[group], own, points, layers)
        for group in NAMES
        if (own := [row for row in points if row["group"] == group])
    ]
    caption = (
        "Every point is a head: the mean weight that tokens of a category get in it, against the mean length of their transformed "
        f"vectors. Colours go from the first layer (dark) to the last (light). {n}."
    )
    figure = Figure(f"{prefix}cancelling", "", "Weight against norm", caption, tuple(panels))
    table = Table(
        ("Category", MEASURES["spearman_a_f"], "95 %", MEASURES["spearman_a_f_layers"], "95 %"),
        tuple(
            (
                NAMES[g],
                *(x for of in (rho, over) for x in (words.number(of[g]["value"], True), _ends(of[g], signed=True))),
            )
            if g in over
            else (NAMES[g], words.number(rho[g]["value"], True), _ends(rho[g], signed=True), "–", "–")
            for g in NAMES
            if g in rho
        ),
        f"Rank correlations over pairs of query and token, layers and heads, with at most {QUERIES} evenly spaced queries of "
        "each row of tokens; and over layers",
    )
    said = "Below 0, what gets more weight is shorter: the two cancel each other in the product a‖f(x)‖."
    return (said,), (figure,), (table,)


def _frequency(rows: pl.DataFrame, prefix: str, n: str, block: str) -> Made:
    names = [f"spearman_rank_{name}{tail}" for tail in ("", "_words") for name in ("f", "a")]
    whole = {name: row for name in names if (row := _model(rows, name).get(None)) is not None}
    if "spearman_rank_f" not in whole:
        return None
    heads = {"‖f(x)‖": _heads(rows, "spearman_rank_f"), "a": _heads(rows, "spearman_rank_a")}
    caption = (
        "Rank correlation of how rare a token is (rank 1: the commonest of these texts) with ‖f(x)‖ and with the weight that it gets, "
        f"in every head, over all tokens. {n}."
    )
    figure = grid(f"{prefix}frequency", "", "Frequency, in norms and in weights", caption, heads, "ρ", diverging=True)
    table = Table(
        ("What", "ρ", "95 %"),
        tuple(
            (MEASURES[name], words.number(row["value"], True), _ends(row, signed=True)) for name, row in whole.items()
        ),
        "Over tokens, ‖f(x)‖ and a being means over heads and layers",
    )
    return (), (figure,), (table,)


def _mixing(rows: pl.DataFrame, prefix: str, n: str, block: str) -> Made:
    found = _pick(rows, "mixing_ratio", head=None).filter(pl.col("layer").is_not_null()).to_dicts()
    rates = {r["layer"]: r["value"] for r in _pick(rows, "expansion_rate", head=None).to_dicts()}
    if not found:
        return None
    table = Table(
        ("Layer", "by weight", "by norm", "expansion rate"),
        tuple(
            (
                str(layer),
                *(words.number(r["value"]) for k in KINDS for r in found if r["layer"] == layer and r["group"] == k),
                words.number(rates.get(layer)),
            )
            for layer in sorted({row["layer"] for row in found})
        ),
        "Mixing ratio, and by how much the layer's values and output projections lengthen a vector (from the weights alone)",
    )
    caption = (
        "What comes from other positions, as a share of that and of what a position keeps of itself; for norms each is the length of "
        f"a sum of vectors, {WHAT[block]}. Mean over queries, bars are 95 % intervals over texts. {n}."
    )
    key = tuple(LegendEntry(f"by {name}", mark.colour, mark.shape) for name, mark in KINDS.items())
    figure = Figure(f"{prefix}mixing", "", "Mixing ratio", caption, (_ratios("Mixing ratio", found),), key)
    return (), (figure,), (table,)


def _pick(rows: pl.DataFrame, measure: str, **fixed: None) -> pl.DataFrame:
    found = rows.filter(pl.col("measure") == measure)
    return found.filter(pl.col("head").is_null()) if "head" in fixed else found


def _model(rows: pl.DataFrame, measure: str) -> dict[str | None, dict[str, Any]]:
    """A measure's rows of the whole stack, by group."""
    found = _pick(rows, measure, head=None).filter(pl.col("layer").is_null())
    return {row["group"]: row for row in found.to_dicts()}


def _heads(rows: pl.DataFrame, measure: str) -> list[tuple[int, int, float]]:
    found = _pick(rows, measure).filter(pl.col("head").is_not_null()).sort("layer", "head")
    return [(row["layer"], row["head"], row["value"]) for row in found.to_dicts()]


def _percent(value: float) -> str:
    return percent(value, 1)


def _ends(row: Mapping[str, Any], share: bool = False, signed: bool = False) -> str:
    if row["low"] is None:
        return "–"
    ends = (_percent(e) if share else words.number(e, signed) for e in (row["low"], row["high"]))
    return " to ".join(ends)


def _stacked(title: str, rows: NormRows) -> Panel:
    """A bar per layer, made of the categories' shares from [CLS] at the bottom to the others at the top."""
    order = list(NAMES)
    bars: NormRows = []
    for layer in sorted({row["layer"] for row in rows}):
        low = 0.0
        for row in sorted((r for r in rows if r["layer"] == layer), key=lambda r: order.index(r["group"])):
            ends = {"from": low, "to": low + row["value"]}
            bars.append({"layer": layer, "name": NAMES[row["group"]], "colour": COLOURS[row["group"]]} | ends)
            low += row["value"]
    y = alt.Y(
        "from:Q", scale=alt.Scale(domain=[0, 1], nice=False, clamp=True), title="share", axis=alt.Axis(labelExpr=SHARES)
    )
    x = alt.X("layer:O", title="layer", scale=alt.Scale(paddingInner=0.18))
    look = chart_of("bars", bars).mark_bar()
    chart = look.encode(x, y, alt.Y2("to"), alt.Color("colour:N", scale=None))
    least = {g: [r["value"] for r in rows if r["group"] == g] for g in order}
    said = "; ".join(f"{NAMES[g]} {min(v):.2f} to {max(v):.2f}" for g, v in least.items() if v)
    return Panel(title, lay(title, chart), f"{title}: stacked shares per layer. {said}.", (), {})


def _scatter(title: str, rows: NormRows, every: NormRows, layers: Sequence[int]) -> Panel:
    """Mean weight (logarithmic) against mean norm, a point for each head; the axes hold the points of `every` panel."""
    share = {layer: i / max(1, len(layers) - 1) for i, layer in enumerate(layers)}
    points = [row | {"colour": palette.ramp(0.3 + 0.5 * share[row["layer"]])} for row in rows]
    least, most = min(row["a"] for row in every) / 1.3, max(row["a"] for row in every) * 1.3
    decades = [10.0**e for e in range(-8, 1) if least <= 10.0**e <= most]
    halves = [3 * t for t in decades if 3 * t <= most] if len(decades) < 3 else []
    axis = alt.Axis(format="~g", values=sorted([*decades, *halves]), tickCount=40, grid=False)
    x = alt.X("a:Q", scale=alt.Scale(type="log", domain=[least, most], nice=False), title="mean a", axis=axis)
    y = around([row["f"] for row in every], "mean ‖f(x)‖").axis("f")
    look = chart_of("main", points).mark_point(size=30, filled=True, opacity=0.85)
    chart = look.encode(x, y, alt.Color("colour:N", scale=None))
    said = f"{title}: mean weight against mean norm of {words.several(len(points), 'head')}."
    return Panel(title, lay(title, chart, width=WIDTH - 20), said, (), {})


def _ratios(title: str, rows: NormRows) -> Panel:
    domain = list(KINDS)
    colour = alt.Color("group:N", scale=alt.Scale(domain=domain, range=[m.colour for m in KINDS.values()]), title=None)
    shape = alt.Shape("group:N", scale=alt.Scale(domain=domain, range=[m.shape for m in KINDS.values()]), title=None)
    x = alt.X("layer:O", title="layer", scale=alt.Scale(paddingInner=0.18))
    offset = alt.XOffset("group:N", scale=alt.Scale(domain=domain), sort=domain)
    scale = alt.Scale(domain=[0, 1], nice=False, clamp=True)
    data = data_of([{k: row[k] for k in ("layer", "group", "value", "low", "high")} for row in rows])
    layers = []
    if all(row["low"] is not None for row in rows):
        bars = alt.Chart(data, name="bars").mark_rule(strokeWidth=1.6)
        layers.append(bars.encode(x, alt.Y("low:Q", scale=scale, title="share"), alt.Y2("high"), colour, offset))
    marks = alt.Chart(data, name="main").mark_point(size=46, filled=True, opacity=1)
    layers.append(marks.encode(x, alt.Y("value:Q", scale=scale, title="share"), colour, shape, offset))
    said = "; ".join(
        f"by {k} {min(v):.2f} to {max(v):.2f}" for k in KINDS if (v := [r["value"] for r in rows if r["group"] == k])
    )
    return Panel(title, lay(title, *layers), f"{title} per layer: {said}.", (), {})


def _facts(facts: NormsFacts) -> tuple[tuple[str, str], ...]:
    read = f"{words.several(facts.texts, 'text')}, {words.several(facts.tokens, 'token')}"
    return (
        ("Model", f"{facts.subject}, weights {facts.fingerprint}"),
        ("Shape", facts.shape),
        ("Texts", f"{facts.corpus}: {read}"),
        ("Block", facts.block),
        ("Draws", f"of whole texts, seed {facts.seed}"),
    )
