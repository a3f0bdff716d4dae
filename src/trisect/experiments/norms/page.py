"""The page of a norm analysis: weights beside norms by category, dispersion, cancelling, frequency, mixing, verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars as pl

from trisect.core.finding import About, Finding
from trisect.core.printable import percent
from trisect.papers.norms import QUERIES, SOURCE
from trisect.report import alt, render
from trisect.report import format as words
from trisect.report.charts import (
    PANEL_WIDTH,
    Figure,
    LegendEntry,
    Panel,
    SharedAxis,
    axis_for,
    by_kind_key,
    chart_of,
    marks,
    overlay,
)
from trisect.report.format import stack_words
from trisect.report.maps import grid
from trisect.report.measures import MeasuredValue, Measures
from trisect.report.render import KINDS
from trisect.report.sheet import Section, Sheet, Table, notes_section, present, provenance, verdict_findings

if TYPE_CHECKING:
    from trisect.experiments.norms.settings import NormsFacts

MEASURE_WORDS = {
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
VIEWS = {"weight": "weight", "norm": "norm", "block": "norm of the block", "contribution": "contribution"}
MEASURES = {
    "cv_x": "coefficient of variation of ‖x‖",
    "cv_f": "coefficient of variation of ‖f(x)‖",
    "cv_a": "coefficient of variation of a",
    "cv_af": "coefficient of variation of a‖f(x)‖",
    "spearman_a_f": "ρ of a and ‖f(x)‖",
    "spearman_a_f_layers": "ρ over layers of mean a and mean ‖f(x)‖",
    "spearman_rank_f": "ρ of frequency rank and ‖f(x)‖",
    "spearman_rank_a": "ρ of frequency rank and a",
    "spearman_rank_f_words": "ρ of frequency rank and ‖f(x)‖, without special tokens",
    "spearman_rank_a_words": "ρ of frequency rank and a, without special tokens",
}
SHARES = "format(100 * datum.value, '~r') + '\u00a0%'"  # an axis of shares
MIN_DIFFERENCE = 0.05  # of a kind of token's shares by weight and by norm, for these to be named as different
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


def page(tables: Mapping[str, pl.DataFrame], about: About[NormsFacts]) -> Sheet:
    """The page from the tables measures and claims."""
    rows, facts = Measures.of(tables["measures"]), about.facts
    stacks = list(dict.fromkeys([facts.stack, *sorted(rows.distinct("stack"))]))
    n, parts = words.sample(facts.texts, "text"), list[Section]()
    for stack in stacks:
        tail, name = (f" ({stack_words(stack) or stack})", f"{stack}-") if len(stacks) > 1 else ("", "")
        for title, draw in (
            ("Weights beside norms", _shares),
            ("How much do norms vary?", _dispersion),
            ("Do weights and norms cancel?", _cancelling),
            ("Where are the sinks?", _sinks),
            ("Does frequency show?", _frequency),
            ("How much is mixed, how much is kept?", _mixing),
        ):
            if part := draw(rows.where(stack=stack), n, facts.block):
                texts, figure, columns, cells, caption = part
                figure = replace(figure, name=name + figure.name)
                parts.append(Section(title + tail, texts, (figure,), (Table(columns, tuple(cells), caption),)))
    name = words.display_name(facts.subject, about.command)
    lede = f"{name} · {facts.corpus} · {words.quantity(facts.texts, 'text')}"
    stack = stack_words(facts.stack)
    scope = (
        "A weight a says what share of a vector is added, not how long that vector is. The claims compare a with a‖f(x)‖, the "
        f"length of what is really added. They speak of this model on these texts alone. {f'They are about its {stack}. ' * bool(stack)}"
        "Intervals and p-values are from resampling whole texts.",
    )
    verdicts = Section("Results of the claims", scope, cards=tables["claims"])
    about_run = (
        ("Model", f"{facts.subject}, weights {facts.fingerprint}"),
        ("Shape", facts.shape),
        ("Texts", f"{facts.corpus}: {words.quantity(facts.texts, 'text')}, {words.quantity(facts.tokens, 'token')}"),
        ("Block", facts.block),
        ("Draws", f"of whole texts, seed {facts.seed}"),
    )
    rolled = rows.where("rollout_gradient").first("group")
    lines = tuple(
        (f"by {group}", *words.cells(rolled[group], True)) for group in (*render.VIEWS, "nearness") if group in rolled
    )
    caption = (
        "Mean rank correlation, over the tokens of a text, of what a rollout says that one position takes from them and of gradient × "
        "input of its largest logit. A rollout multiplies each layer's shares, the residual among them: half of it by weight, by length "
        "by norm, by contribution weights those above 0. Nearness is minus the distance in tokens, and needs no model. "
        f"{words.sample(rolled['weight'].n or 0, 'text')}."
        if rolled
        else ""
    )
    table = Table(("Rollout", "ρ", "95 %"), lines, caption, folded=False)
    rollout = Section("Do layers together use what a rollout says?", (), (), (table,)) if rolled else None
    sections = present(*parts[:1], verdicts, *parts[1:], rollout, notes_section(about))
    title, kicker = "Where does attention take its information from?", "trisect · norms beside weights"
    answer = _answer(rows.where(stack=facts.stack))
    return Sheet(title, kicker, lede, sections, provenance(about, *about_run), REFERENCES, answer)


def _answer(rows: Measures) -> str:
    """The category whose shares by weight and by norm differ most, in a sentence; empty if there is none.

    If none differs by `MIN_DIFFERENCE`, that which gets most weight.
    """
    shares = [_of_stack(rows, f"{kind}_share") for kind in KINDS]
    both = [g for g in NAMES if all(g in by_group for by_group in shares)]
    if not both:
        return ""
    by_weight, by_norm = ({g: by_group[g].value for g in both} for by_group in shares)
    apart = {g: abs(by_weight[g] - by_norm[g]) for g in both}
    named = [g for g in both if g != "other"] or both
    is_apart = max(apart[g] for g in named) >= MIN_DIFFERENCE
    group = max(named, key=lambda g: apart[g] if is_apart else by_weight[g])
    name = f"{'the ' * (group == 'first')}{NAMES[group]}"
    get = "get" if group in ("punctuation", "other") else "gets"
    return (
        f"{words.capital(name)} {get} {percent(by_weight[group])} of the attention weight and "
        f"{percent(by_norm[group])} of the length of the vectors that attention adds, ‖a f(x)‖"
        f"{'' if is_apart else '; no kind of token differs much'}."
    )


def findings(tables: Mapping[str, pl.DataFrame], about: About[NormsFacts]) -> tuple[Finding, ...]:
    """The variation of weights (of q and k together) and of norms (with v) over tokens, then the verdicts of all claims."""
    rows, stack = Measures.of(tables["measures"]), about.facts.stack
    findings = verdict_findings(tables["claims"])
    sinks = {c: row for c in ("weight", "contribution") if (row := rows.get(f"sink_{c}", stack=stack))}
    if len(sinks) == 2:
        text = (
            f"{words.share(sinks['weight'].value)} of weight and {words.share(sinks['contribution'].value)} of output"
        )
        line = f"Tokens with more than 30\u00a0% of a head's weight in a text (sinks) make {text}, mean over heads and layers."
        values = tuple(row.estimate(f"sink_{c}") for c, row in sinks.items())
        sunk = Finding("sink_weight", line, "share", values, source=SOURCE.key, per="text", signed=False)
        findings = (sunk, *findings)
    if rolled := rows.where("rollout_gradient").first("group"):
        text = ", ".join(f"{words.number(rolled[kind].value, True)} by {kind}" for kind in (*render.VIEWS, "nearness"))
        line = f"Rollouts over all layers against gradient × input, mean rank correlation within a text: {text}."
        values = tuple(row.estimate(kind) for kind, row in rolled.items())
        findings = (Finding("rollout_gradient", line, "ρ", values, source=SOURCE.key, per="text"), *findings)
    variation = {c: row for c, name in (("q+k", "cv_a"), ("v", "cv_f")) if (row := rows.get(name, stack=stack))}
    if len(variation) < 2:
        return findings
    weight, norm = (f"{words.number(row.value)} ({words.ends(row)})" for row in variation.values())
    values = tuple(row.estimate(c) for c, row in variation.items())
    label = "coefficient of variation over tokens, mean over layers and heads"
    text = f"{label.capitalize()}: {weight} of the weight a, {norm} of ‖f(x)‖."
    varied = Finding("dispersion", text, "std / mean", values, source=SOURCE.key, what=label, per="text", signed=False)
    return varied, *findings


_FigureRows = list[dict[str, Any]]
_Part = tuple[tuple[str, ...], Figure, tuple[str, ...], list[tuple[str, ...]], str]  # texts, figure, and a table


def _of_stack(rows: Measures, measure: str) -> dict[Any, MeasuredValue]:
    """Rows of a measure over all layers, by group."""
    return rows.where(measure, head=None, layer=None).first("group")


def _layer_rows(rows: Measures, measure: str) -> _FigureRows:
    """Rows of a measure by layer, for a chart."""
    return [row._asdict() for row in rows.where(measure, head=None) if row.layer is not None]


def _table_lines(rows: Measures, names: Sequence[str], signed: bool = False) -> list[tuple[str, ...]]:
    """Numbers over all layers as lines of a table."""
    return [(MEASURES[name], *words.cells(row, signed)) for name in names if (row := _of_stack(rows, name).get(None))]


def _spans(rows: _FigureRows, names: Mapping[str, str]) -> str:
    """The range of each group, as a text alternative to the chart."""
    values = {name: [row["value"] for row in rows if row["group"] == group] for group, name in names.items()}
    return "; ".join(f"{name} {min(v):.2f} to {max(v):.2f}" for name, v in values.items() if v)


def _layer_axis() -> alt.X:
    return alt.X("layer:O", title="layer", scale=alt.Scale(paddingInner=0.18))


def _shares(rows: Measures, n: str, block: str) -> _Part | None:
    views = {k: by_group for k in VIEWS if (by_group := _of_stack(rows, f"{k}_share")) or k in KINDS}
    groups = [g for g in NAMES if all(g in by_group for by_group in views.values())]
    if not groups:
        return None
    panels, order = list[Panel](), list(NAMES)
    y = alt.Y(
        "from:Q", scale=alt.Scale(domain=[0, 1], nice=False, clamp=True), title="share", axis=alt.Axis(labelExpr=SHARES)
    )
    for kind in views:
        if kind == "contribution":  # which may be below 0
            continue
        # a bar per layer, from [CLS] at the bottom to the others at the top
        title, layer_rows, bars = f"By {VIEWS[kind]}", _layer_rows(rows, f"{kind}_share"), list[dict[str, Any]]()
        for layer in sorted({row["layer"] for row in layer_rows}):
            low = 0.0
            for row in sorted((r for r in layer_rows if r["layer"] == layer), key=lambda r: order.index(r["group"])):
                ends = {"from": low, "to": low + row["value"]}
                bars.append({"layer": layer, "name": NAMES[row["group"]], "colour": COLOURS[row["group"]]} | ends)
                low += row["value"]
        look = chart_of("bars", bars).mark_bar()
        chart = look.encode(_layer_axis(), y, alt.Y2("to"), alt.Color("colour:N", scale=None))
        text = f"{title}: stacked shares per layer. {_spans(layer_rows, NAMES)}."
        panels.append(Panel(title, overlay(title, chart), text, (), {}))
    shares = {g: {k: words.cells(by_group[g], text=words.share) for k, by_group in views.items()} for g in groups}
    each = "; ".join(f"{NAMES[g]} {s['weight'][0]} by weight and {s['norm'][0]} by norm" for g, s in shares.items())
    remark = f" Then norms of the block, of {LENGTHS[block]}; claims are about attention's own." * ("block" in views)
    caption = (
        "What each category of tokens is given, as a share of all: weights (mean over heads) added up first, then norms, a "
        f"layer's norm being that of {LENGTHS['attention']}.{remark} Mean over the queries of all texts. {n}."
    )
    key = tuple(LegendEntry(NAMES[g], COLOURS[g], "square") for g in groups)
    if "contribution" in views:
        caption += " The table adds the contribution weight a f(x)·o / ‖o‖², the share of the layer's output o, which may be below 0."
    columns = ("Category", *(cell for k in views for cell in (f"by {VIEWS[k]}", "95 %")))
    cells = [(NAMES[g], *(cell for pair in pairs.values() for cell in pair)) for g, pairs in shares.items()]
    figure = Figure("shares", "", "Shares by weight and by norm", caption, tuple(panels), key)
    texts = (f"Mean over all layers, category by category: {each}.",)
    return texts, figure, columns, cells, "Mean over layers, with intervals over texts"


def _dispersion(rows: Measures, n: str, block: str) -> _Part | None:
    if not (heads := sorted(rows.where("cv_f").cells())):
        return None
    caption = (
        "Standard deviation of ‖f(x)‖ over all tokens, divided by its mean, in every head. At 0 every token's vector would be as long "
        f"as any other, and weights would be the whole story. {n}."
    )
    figure = grid("dispersion", "", "Dispersion of ‖f(x)‖", caption, heads, "of the mean")
    columns = ("What", "mean over layers and heads", "95 %")
    note = "Coefficients of variation over tokens; a is the weight that a token gets, mean over the queries that may look at it"
    return (), figure, columns, _table_lines(rows, ("cv_x", "cv_f", "cv_a", "cv_af")), note


def _cancelling(rows: Measures, n: str, block: str) -> _Part | None:
    norms = {(f.layer, f.head, f.group): f.value for f in rows.where("mean_f")}
    means = sorted((a for a in rows.where("mean_a") if a.head is not None), key=lambda a: (a.group, a.layer, a.head))
    points = [
        {"layer": a.layer, "head": a.head, "group": a.group, "a": a.value, "f": norms[a.layer, a.head, a.group]}
        for a in means
        if (a.layer, a.head, a.group) in norms
    ]
    if not points:
        return None
    layers, points = sorted({row["layer"] for row in points}), [row for row in points if row["a"] > 0]
    # mean weight (logarithmic) against mean norm, a point for each head; the axes hold the points of every panel
    colours = {x: render.ramp(0.3 + 0.5 * i / max(1, len(layers) - 1)) for i, x in enumerate(layers)}
    least, largest = min(row["a"] for row in points) / 1.3, max(row["a"] for row in points) * 1.3
    decades = [10.0**e for e in range(-8, 1) if least <= 10.0**e <= largest]
    halves = [3 * t for t in decades if 3 * t <= largest] if len(decades) < 3 else []
    axis = alt.Axis(format="~g", values=sorted([*decades, *halves]), tickCount=40, grid=False)
    x = alt.X("a:Q", scale=alt.Scale(type="log", domain=[least, largest], nice=False), title="mean a", axis=axis)
    y = axis_for([row["f"] for row in points], "mean ‖f(x)‖").axis("f")
    panels = []
    for group, title in NAMES.items():
        heads = [row | {"colour": colours[row["layer"]]} for row in points if row["group"] == group]
        if heads:
            look = chart_of("main", heads).mark_point(size=30, filled=True, opacity=0.85)
            chart = look.encode(x, y, alt.Color("colour:N", scale=None))
            text = f"{title}: mean weight against mean norm of {words.quantity(len(heads), 'head')}."
            panels.append(Panel(title, overlay(title, chart, width=PANEL_WIDTH - 20), text, (), {}))
    caption = (
        "Every point is a head: the mean weight that tokens of a category get in it, against the mean length of their transformed "
        f"vectors. Colours go from the first layer (dark) to the last (light). {n}."
    )
    figure = Figure("cancelling", "", "Weight against norm", caption, tuple(panels))
    names = ("spearman_a_f", "spearman_a_f_layers")
    rho, over = (_of_stack(rows, name) for name in names)
    cells = [(NAMES[g], *words.cells(rho[g], True), *words.cells(over.get(g), True)) for g in NAMES if g in rho]
    columns = ("Category", *(cell for name in names for cell in (MEASURES[name], "95 %")))
    note = (
        f"Rank correlations over pairs of query and token, layers and heads, with at most {QUERIES} evenly spaced queries of "
        "each row of tokens; and over layers"
    )
    text = "Below 0, what gets more weight is shorter: the two cancel each other in the product a‖f(x)‖."
    return (text,), figure, columns, cells, note


def _sinks(rows: Measures, n: str, block: str) -> _Part | None:
    names = {
        "sink_texts": "texts with a sink",
        "sink_weight": "weight",
        "sink_contribution": "contribution",
        "sink_norm": "‖f(x)‖ over others'",
        "dormant_texts": "texts dormant in",
    }
    if not (heads := sorted(rows.where("sink_weight").cells())):
        return None
    caption = (
        "What share of its weight each head gives to sinks: tokens that get more than 30 % of all its weight in a text of 8 tokens "
        f"or more. {n}."
    )
    figure = grid("sinks", "", "Weight on sinks", caption, heads, "share")
    by_layer = {name: rows.where(name, head=None).first("layer") for name in names}
    cells = []
    for layer in (*sorted(x for x in by_layer["sink_weight"] if x is not None), None):
        numbers = (
            words.cells(column.get(layer), text=None if name == "sink_norm" else words.share)[0]
            for name, column in by_layer.items()
        )
        cells.append((f"layer {layer}" if layer else "all layers", *numbers))
    texts = []
    if shares := sorted(_of_stack(rows, "sink_share").items(), key=lambda pair: -pair[1].value):
        each = [f"{words.share(row.value)} {NAMES[group]}" for group, row in shares if row.value > 0]
        texts.append(f"Sinks are {words.join_words(each)}.")
    if changes := _of_stack(rows, "without_sinks"):
        each = [f"{words.number(r.value, True)} ({words.ends(r, True)}) without {part}" for part, r in changes.items()]
        unit = "nats a token, or relative squared change of the output where the model has no loss"
        title = "Change of the loss when heads give their sinks, or as many other tokens, nothing, other weights held"
        texts.append(f"{title}: {'; '.join(each)} ({unit}).")
    columns = ("Where", *names.values())
    note = (
        "Mean over heads: the share of texts in which a head has a sink; the share of its weight, and of its output by "
        "contribution, that is sinks'; the mean ‖f(x)‖ of sinks over that of other tokens; and the share of texts in which the "
        "head is dormant: it adds less than a quarter of the layer's mean ‖o‖"
    )
    return tuple(texts), figure, columns, cells, note


def _frequency(rows: Measures, n: str, block: str) -> _Part | None:
    names = [f"spearman_rank_{name}{tail}" for tail in ("", "_words") for name in ("f", "a")]
    if None not in _of_stack(rows, "spearman_rank_f"):
        return None
    by_name = {"‖f(x)‖": "spearman_rank_f", "a": "spearman_rank_a"}
    heads = {name: sorted(rows.where(measure).cells()) for name, measure in by_name.items()}
    caption = (
        "Rank correlation of how rare a token is (rank 1: the commonest of these texts) with ‖f(x)‖ and with the weight that it gets, "
        f"in every head, over all tokens. {n}."
    )
    figure = grid("frequency", "", "Frequency, in norms and in weights", caption, heads, "ρ", diverging=True)
    note = "Over tokens, ‖f(x)‖ and a being means over heads and layers"
    return (), figure, ("What", "ρ", "95 %"), _table_lines(rows, names, True), note


def _mixing(rows: Measures, n: str, block: str) -> _Part | None:
    layer_rows = _layer_rows(rows, "mixing_ratio")
    rates = {row.layer: row.value for row in rows.where("expansion_rate", head=None)}
    if not layer_rows:
        return None
    cells_by_kind = {(row["layer"], row["group"]): words.number(row["value"]) for row in layer_rows}
    layers = sorted({row["layer"] for row in layer_rows})
    cells = [
        (str(x), *(cells_by_kind[x, k] for k in KINDS if (x, k) in cells_by_kind), words.number(rates.get(x)))
        for x in layers
    ]
    caption = (
        "What comes from other positions, as a share of that and of what a position keeps of itself; for norms each is the length of "
        f"a sum of vectors, {MEASURE_WORDS[block]}. Mean over queries, bars are 95 % intervals over texts. {n}."
    )
    title = "Mixing ratio"
    shown = [{k: row[k] for k in ("layer", "group", "value", "low", "high")} for row in layer_rows]
    chart = overlay(title, *marks(shown, SharedAxis("share", 0, 1), _layer_axis(), KINDS))
    panel = Panel(title, chart, f"{title} per layer: {_spans(layer_rows, {k: f'by {k}' for k in KINDS})}.", (), {})
    figure = Figure("mixing", "", title, caption, (panel,), by_kind_key())
    note = "Mixing ratio, and by how much the layer's values and output projections lengthen a vector (from the weights alone)"
    return (), figure, ("Layer", "by weight", "by norm", "expansion rate"), cells, note
