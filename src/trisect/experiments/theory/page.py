"""The page of attention by hand: a self-contained interactive HTML file, and the findings of a run."""

from __future__ import annotations

import inspect
import math
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from markupsafe import Markup, escape
from scipy import special

from trisect.core.errors import TheoryError
from trisect.core.finding import About, Estimate, Finding
from trisect.report import alt, notebook, render, sheet
from trisect.report import format as words
from trisect.report.charts import Figure, FigureView, LegendEntry, Panel, arrangement, chart_of, encoding_of, overlay
from trisect.report.sheet import Document
from trisect.theory import CONSTRUCTIONS, Construction, ErrorCurve, KeyDraws, helpers, sweep
from trisect.theory.helpers import Array

if TYPE_CHECKING:
    from trisect.experiments.theory.settings import TheoryFacts


BINS = 40  # of a weight between 0 and 1
BARS = 32  # weights that fit beside each other
HEADS = {"head 1": render.Mark("#E69F00", "circle"), "head 2": render.Mark("#56B4E9", "diamond")}
COMPUTED, LAW, FIGURES_HERE = "computed", "law", "this β"
ONE_HEAD, TWO_HEADS = "one head", "two heads"
NUMBERS = {ONE_HEAD: render.Mark("#7B4EA3", "square"), TWO_HEADS: render.Mark("#E69F00", "circle")}
OPPOSED = "q_1·k_a < 0"
LEGEND = alt.Legend(orient="bottom", title=None)


def build(name: str, settings: Mapping[str, float | None], seed: int) -> Construction:
    """A construction by name with the arguments that it has, else its defaults, from a seed; raises TheoryError."""
    make = CONSTRUCTIONS[name]
    parameters = inspect.signature(make).parameters
    arguments: dict[str, Any] = {k: v for k, v in settings.items() if v is not None and k in parameters}
    # where only `keys` or `dim` is set and the other's default leaves no room for the keys, say whose default it is
    if {"keys", "dim"} <= set(parameters) and len(chosen := [k for k in ("keys", "dim") if k in arguments]) == 1:
        both = {k: helpers.check_whole(k, arguments.get(k, parameters[k].default)) for k in ("keys", "dim")}
        if both["dim"] < both["keys"] and both[chosen[0]] >= 2:
            named, other = ("keys", "dim") if chosen == ["keys"] else ("dim", "keys")
            raise TheoryError(
                f"{named} {both[named]} was given, and no {other}.",
                f"{name} has {other} {both[other]} by default, and R^{both['dim']} no {both['keys']} orthogonal keys.",
                f"Give also a dim of {both['keys']} or more, or fewer keys."
                if other == "dim"
                else f"Give also keys of {both['dim']} or fewer, or a larger dim.",
            )
    return make(**arguments, generator=np.random.default_rng([seed, list(CONSTRUCTIONS).index(name)]))


def chart(result: Construction) -> notebook.Chart:
    """The figure of one construction as an Altair chart, which a notebook shows."""
    return notebook.chart(figure(result).chart())


def figure(result: Construction, curve: ErrorCurve | None = None) -> Figure:
    """Two panels: error, or variance, over β against the law; and the weights, or their samples against the law."""
    is_flat = result.name == "stretched_key_one_head"
    first = _weights(result) if is_flat else _curves(result, sweep(result) if curve is None else curve)
    second = _samples(result) if result.odds is not None else _weights(result)
    beta = words.number(result.settings["beta"])
    caption = f"β = {beta}: {result.measured} {result.error:.3g}; {result.relation} {result.expected:.3g} by the law."
    return Figure(result.name, "", result.question, caption, tuple(p for p in (first, second) if p is not None))


def _curves(result: Construction, curve: ErrorCurve) -> Panel | None:
    """Errors over β and their law, or variances of c with one and two heads, closed forms dashed; None if every error is 0."""
    beta = result.settings["beta"]
    if (v := result.variances) is not None:
        assert curve.variances is not None
        named = zip(
            (ONE_HEAD, TWO_HEADS, ONE_HEAD, TWO_HEADS), (COMPUTED, COMPUTED, LAW, LAW), curve.variances, strict=True
        )
        layers = _over_beta(curve, tuple(named), {ONE_HEAD: v.one, TWO_HEADS: v.two}, beta, NUMBERS, "variance of c")
        text = (
            f"Variance of c over β with one head and with two, dashed the closed forms. At β {beta:.3g} it is "
            f"{v.one:.3g} with one head (closed form {v.one_law:.3g}) and {v.two:.3g} with two ({v.two_law:.3g})."
        )
        return _panel("Variance of c, dashed the law", layers, text)
    if not (curve.error > 0).any():
        return None
    looks = {
        COMPUTED: render.Mark(NUMBERS[ONE_HEAD].colour, "square"),
        LAW: render.Mark(render.BASELINE, "stroke"),
        FIGURES_HERE: render.Mark(NUMBERS[TWO_HEADS].colour, "diamond"),
    }
    both = ((COMPUTED, COMPUTED, curve.error), (LAW, LAW, curve.expected))
    layers = _over_beta(curve, both, {FIGURES_HERE: result.error}, beta, looks, result.measured)
    text = (
        f"{result.measured} over β, both logarithmic. At β {beta:.3g} it is {result.error:.3g}; the law says "
        f"{result.relation} {result.expected:.3g}."
    )
    return _panel("Error and law over β", layers, text)


def _over_beta(
    curve: ErrorCurve,
    named: Sequence[tuple[str, str, Array]],
    at: Mapping[str, float],
    beta: float,
    looks: Mapping[str, render.Mark],
    unit: str,
) -> list[alt.Chart]:
    """Numbers over β, both axes logarithmic (0 is left out): laws as lines, computed values as points, larger `at` one β."""
    rows = [
        {"beta": b, "value": v, "name": name, "kind": kind}
        for name, kind, values in named
        for b, v in zip(curve.beta.tolist(), values.tolist(), strict=True)
        if v > 0
    ]
    marked = [{"beta": beta, "value": value, "name": name} for name, value in at.items() if value > 0]
    colours, shapes = (alt.Scale(domain=list(looks), range=range_of) for range_of in zip(*looks.values(), strict=True))
    colour = alt.Color("name:N", scale=colours, title=None, legend=LEGEND)
    shape = alt.Shape("name:N", scale=shapes, title=None, legend=LEGEND)
    y = alt.Y("value:Q", scale=alt.Scale(type="log"), title=unit, axis=alt.Axis(format="~e", tickCount=5))
    ends = [*curve.beta.tolist(), *([beta] if marked else [])]
    low, high = min(ends), max(ends)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [t for k in powers for s in (1, 2, 5) if low <= (t := s * 10.0**k) <= high]
    if len(ticks) > 7:
        ticks = [t for t in ticks if math.log10(t).is_integer()][:: max(1, len(ticks) // 21)]
    axis = alt.Axis(values=ticks, tickCount=len(ticks), format="~g")
    x = alt.X("beta:Q", scale=alt.Scale(type="log", domain=[low, high], nice=False), title="β", axis=axis)
    by_kind = {kind: [r for r in rows if r["kind"] == kind] for kind in (LAW, COMPUTED)}
    law = chart_of("law", by_kind[LAW]).mark_line(strokeWidth=2, strokeDash=[5, 3])
    main = chart_of("main", by_kind[COMPUTED]).mark_point(size=26, filled=True, opacity=1)
    large = chart_of("here", marked).mark_point(size=90, strokeWidth=2, opacity=1, filled=False)
    return [law.encode(x, y, colour), *(points.encode(x, y, colour, shape) for points in (main, large))]


def _samples(result: Construction) -> Panel:
    """A histogram of the weight over samples, with the closed form's density."""
    assert result.odds is not None
    odds, is_apart = result.odds, np.zeros(len(result.odds.samples), dtype=bool)
    # of the weight; of its log-odds where nearly all of the weight's law is in one bin
    unit, edges, samples = "weight", np.linspace(0.0, 1.0, BINS + 1), odds.weights
    expected = np.diff(odds.cdf(edges))
    if expected.max() >= 0.95:
        unit, samples = "log-odds", odds.samples
        edges = np.linspace(odds.law_mean - 4.5 * odds.law_spread, odds.law_mean + 4.5 * odds.law_spread, BINS + 1)
        expected = np.diff(special.ndtr((edges - odds.law_mean) / odds.law_spread))
    if result.apart is not None:
        is_apart[result.apart.samples] = True
    bars: list[dict[str, Any]] = []
    below = np.zeros(BINS)
    for name, chosen in ((OPPOSED, is_apart), (COMPUTED, ~is_apart)):
        above = below + np.histogram(samples[chosen], edges)[0] / len(is_apart)
        columns = (edges[:-1], edges[1:], below, above)
        bars += [
            {"from": start, "to": end, "low": low, "high": high, "name": name}
            for start, end, low, high in zip(*(c.tolist() for c in columns), strict=True)
            if high > low
        ]
        below = above
    middle = (edges[1:] + edges[:-1]) / 2
    line = [{"at": a, "value": v, "name": LAW} for a, v in zip(middle.tolist(), expected.tolist(), strict=True)]
    names = [COMPUTED, *([OPPOSED] if result.apart is not None else []), LAW]
    looks = {COMPUTED: "#b9a3d3", OPPOSED: NUMBERS[TWO_HEADS].colour, LAW: render.INK}
    scale = alt.Scale(domain=names, range=[looks[n] for n in names])
    colour = alt.Color("name:N", scale=scale, title=None, legend=LEGEND)
    wide, share = alt.Scale(domain=[float(edges[0]), float(edges[-1])], nice=False), "share of samples"
    blocks, steps = chart_of("bars", bars).mark_rect(), chart_of("law", line)
    steps = steps.mark_line(strokeWidth=1.6, interpolate="step")
    x = alt.X("from:Q", scale=wide, title=unit)
    layers = [
        blocks.encode(x, alt.X2("to"), alt.Y("low:Q", title=share), alt.Y2("high"), colour),
        steps.encode(alt.X("at:Q", scale=wide, title=unit), alt.Y("value:Q", title=share), colour),
    ]
    text = (
        f"Histogram of the {unit} over {len(is_apart):,} samples, with the closed form over it. Their Kolmogorov–Smirnov "
        f"distance is {result.odds.distance:.3g}."
    )
    if result.apart is not None:
        text += f" In {100 * result.apart.share:.2f} % of the samples q_1·k_a is below 0; they are shown apart."
    return _panel(f"Weight on {result.odds.name}", layers, text)


def _weights(result: Construction) -> Panel:
    """The weight on every key as bars, coloured by head or word."""
    table = np.atleast_2d(result.weights)
    names = ["word 1", "word 2"] if result.name == "key_query_value" else list(HEADS)
    looks = dict(zip(names, HEADS.values(), strict=True))
    if len(table) == 1:
        names, looks = [COMPUTED], {COMPUTED: NUMBERS[ONE_HEAD]}
    rows = [
        {"key": f"{i + 1}", "weight": w, "name": name}
        for name, row in zip(names, table.tolist(), strict=True)
        for i, w in enumerate(row[:BARS])
    ]
    keys = [f"{i + 1}" for i in range(min(BARS, table.shape[1]))]
    scale, legend = alt.Scale(domain=names, range=[looks[n].colour for n in names]), LEGEND if len(names) > 1 else None
    colour = alt.Color("name:N", scale=scale, title=None, legend=legend)
    x = alt.X("key:O", sort=keys, scale=alt.Scale(domain=keys, paddingInner=0.2), title="key")
    y = alt.Y("weight:Q", scale=alt.Scale(domain=[0, 1]), title="weight")
    bars = chart_of("bars", rows).mark_bar().encode(x, y, colour, alt.XOffset("name:N", sort=names))
    left = table.shape[1] - len(keys)
    peaks = zip(names, table.argmax(1) + 1, table.max(1), strict=True)
    text = f"Weights on the keys. {'; '.join(f'{n}: most on key {key}, {top:.3g}' for n, key, top in peaks)}."
    text += f" {left} more keys are not drawn." if left else ""
    mean = "Mean weights" if result.odds is not None else "Weights"
    return _panel(mean + (f", first {BARS} keys" if left else ""), [bars], text)


def _panel(title: str, layers: Sequence[alt.Chart], text: str) -> Panel:
    return Panel(title, overlay(title, *layers), f"{title}. {text}", (), {})


HERE = Path(__file__).parent
SCRIPTS = ("math.js", "given.js", "drawn.js", "draw.js", "views.js", "spec.js", "save.js", "page.js")
SAMPLES, KEYS = 2000, 8  # samples in the page, and the most keys of its sliders
RELATIONS = {"equals": "=", "at most": "≤", "near": "≈"}
FORMS = {"equals": "exact", "at most": "a bound", "near": "approximate"}
MARKS = (NUMBERS[ONE_HEAD], render.Mark(render.BASELINE, "triangle-up"), NUMBERS[TWO_HEADS])
ROUNDING = 1e-14  # a number whose digits would be those of float64's rounding
_SHAPE: dict[str, Any] = {"samples": 64, "variance": 1e-4, "keys": 5}  # of the results whose words the page quotes


def page(tables: Mapping[str, pl.DataFrame], about: About[TheoryFacts]) -> Document:
    """The interactive page, and a figure for each construction at its last β, rebuilt from the facts."""
    last = {str(row["name"]): row for row in about.facts.settings}
    figures = []
    for name, noted in last.items():
        arguments = {key: value for key, value in noted.items() if not isinstance(value, str)}
        figures.append(figure(build(name, arguments, about.facts.seed)))
    return Document("theory.html", html(tables["theory"], about.facts.seed), tuple(figures), answer(tables["theory"]))


def findings(tables: Mapping[str, pl.DataFrame], about: About[TheoryFacts]) -> tuple[Finding, ...]:
    """A finding for each row of the table: the computed value beside the law, and what varies less with two heads."""
    findings = []
    for row in tables["theory"].iter_rows(named=True):
        sign = RELATIONS[row["relation"]]
        text = f"{row['name']}  β {row['beta']:g}: {row['measured']} = {row['error']:.3g}; law: {sign} {row['expected']:.3g}"
        values = [Estimate("error", row["error"], n=row["samples"]), Estimate("law", row["expected"])]
        if row["variance_one"] is not None:
            text += f"; variance of c {row['variance_one']:.3g} with one head, {row['variance_two']:.3g} with two"
            values += [Estimate(name, row[name], n=row["samples"]) for name in ("variance_one", "variance_two")]
        bound = "error ≤ law" if row["error"] <= row["expected"] else "error > law"
        bound *= row["relation"] == "at most"
        findings.append(Finding(row["name"], text, row["measured"], tuple(values), bound))
    return tuple(findings)


DOES = {
    "copying": "copies one value",
    "average": "averages two",
    "random_keys_two_heads": "bears noisy keys if it has two heads",
    "key_query_value": "moves chosen parts of words",
}


def base_draws() -> KeyDraws:
    """The normal draws of all samples on the page, rounded to float32, so that the page stores them exactly."""
    numbers = np.random.default_rng(0).standard_normal((SAMPLES, 1 + 2 * KEYS)).astype(np.float32).astype(np.float64)
    return KeyDraws(numbers[:, 0], numbers[:, 1:].reshape(SAMPLES, KEYS, 2))


def answer(table: pl.DataFrame) -> str:
    """What attention does with these q, k and v, and how near each error comes to its form: an exact one, a bound, an approximation."""
    parts = []
    for relation in RELATIONS:
        rows = table.filter(pl.col("relation") == relation, pl.col("expected") > 0)
        if not len(rows):
            continue
        n, shares = words.quantity(len(rows), "case"), (rows["error"] / rows["expected"]).to_numpy()
        off, largest = float(np.abs(shares - 1).max()), words.share(float(shares.max()))
        if relation == "equals":
            digits = min(15, math.floor(-math.log10(max(off, 1e-300))))
            parts.append(f"equals its closed form to {words.quantity(digits, 'digit')} in {n}")
        elif relation == "near":
            parts.append(f"is within {words.share(off)} of an approximate form in {n}")
        else:
            parts.append(f"stays below a bound in {(shares <= 1).sum()} of {n} (at most {largest} of it)")
    done = [doing for name, doing in DOES.items() if name in table["name"]]
    does = (
        f"With queries, keys and values set by hand, attention {words.join_words(done)}: its error "
        if done
        else "The error "
    )
    return f"{does}{words.join_words(parts) if parts else 'is 0 everywhere, as its closed form'}."


def _shares(table: pl.DataFrame) -> FigureView:
    """The error of every row as a share of its closed form; the mark says what the form is."""
    numbers = table.filter(pl.col("expected") != 0).select("name", "relation", "error", "expected").iter_rows()
    rows = [{"name": n.replace("_", " "), "group": FORMS[r], "share": error / law} for n, r, error, law in numbers]
    names, looks = list(dict.fromkeys(row["name"] for row in rows)), dict(zip(FORMS.values(), MARKS, strict=True))
    scale = alt.Scale(domain=[0, max([1.1, *(row["share"] for row in rows)])], nice=False)
    axis = alt.Axis(labelFlush=False)  # else 0.0 is moved towards 0.2
    at = [alt.X(f"{field}:Q", scale=scale, title="error / closed form", axis=axis) for field in ("level", "share")]
    labels = alt.Axis(grid=False, labelLimit=150)
    y = alt.Y("name:N", sort=names, scale=alt.Scale(domain=names), title=None, axis=labels)
    line = chart_of("level0", [{"level": 1.0}]).mark_rule(color=render.BASELINE, strokeDash=[5, 3]).encode(at[0])
    points = chart_of("main", rows).mark_point(size=60, filled=True, opacity=1).encode(at[1], y, *encoding_of(looks))
    text = "; ".join(f"{row['name']} {row['share']:.3g}" for row in rows)
    picture = overlay("", line, points, width=150, height=20 * len(names))
    panel = Panel("", picture, f"Error as a share of its closed form. {text}.", (), {})
    return FigureView("", (panel,), tuple(LegendEntry(name, *look) for name, look in looks.items()))


def html(table: pl.DataFrame, seed: int) -> str:
    """The whole page as text: what a run's table answers, article, draws and script.

    The draws are little-endian float32 in base64: the stretch of every sample, then the noise of every key along μ_a and μ_b.
    """
    draws = b"".join(np.ascontiguousarray(part, dtype="<f4").tobytes() for part in base_draws())
    results, facts = constructions(), [words.quantity(table["name"].n_unique(), "construction")]
    for column, text in (("beta", "β {}"), ("keys", "{} keys"), ("dim", "{} dimensions"), ("samples", "{} samples")):
        values = table[column].drop_nulls()
        if len(values):
            ends = dict.fromkeys((values.min(), values.max()))
            facts.append(text.format(" to ".join(f"{end:,g}".replace(",", "\u202f") for end in ends)))
    return sheet.fill(
        HERE / "theory.html",
        sheet.read(sheet.STYLE) + sheet.read(HERE / "theory.css"),
        sheet.wrap_scripts(sheet.SAVE, *(HERE / name for name in SCRIPTS)),
        {"rich": rich, "figures": figures},
        results=results,
        answer=answer(table),
        measured_on=f"{' · '.join(facts)} · seed {seed} · float64",
        shares=arrangement("shares", _shares(table)),
        draws=Markup(b64encode(draws).decode()),
        samples=SAMPLES,
        keys=KEYS,
        chance=results["stretched_key_one_head"].expected * math.sqrt(_SHAPE["samples"]),
    )


def constructions() -> dict[str, Construction]:
    """All eight, small: the page takes questions, laws, domains and errata from them."""
    return {
        name: make(**(_SHAPE if "samples" in inspect.signature(make).parameters else {}))
        for name, make in CONSTRUCTIONS.items()
    }


def rich(text: str) -> Markup:
    """A formula in plain text as HTML, with subscripts and superscripts as in "α_a = e^β"; everything is escaped."""
    text = str(escape(text))
    for pattern, html in (
        (r"(?<!\w)-(?=\d)", "−"),
        (r"_(?:\{([^}]*)\}|(\w))", r"<sub>\1\2</sub>"),
        (r"\^(?:\{([^}]*)\}|(\([^)]*\)|[−-]?\w+))", r"<sup>\1\2</sup>"),
    ):
        text = re.sub(pattern, html, text)
    return Markup(text)


def figures(numbers: tuple[float, ...]) -> Markup:
    """Numbers in a row, with three digits."""
    shown = []
    for number in numbers:
        digits, _, power = f"{number if abs(number) > ROUNDING else 0:.3g}".replace("-", "−").partition("e")
        raised = Markup("{}·10<sup>{}</sup>").format(digits, power.replace("−0", "−").lstrip("+0"))
        shown.append(raised if power else Markup(digits))
    return Markup(", ").join(shown)
