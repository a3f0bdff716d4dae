"""The page of path patching: writers by q, k and v of a reading head, all heads as a map, and the strongest paths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import polars as pl

from trisect.core.finding import About, Estimate, Finding
from trisect.report import alt, render
from trisect.report import format as words
from trisect.report.charts import Figure, LegendEntry, Panel, chart_of, overlay
from trisect.report.format import number_words
from trisect.report.maps import head_maps
from trisect.report.measures import Measures
from trisect.report.sheet import Section, Sheet, Table, present, provenance, quiet

if TYPE_CHECKING:
    from trisect.experiments.compose.settings import ComposeFacts

TABLE_PATHS = 20  # of the strongest paths
DRAWING_PATHS = 12  # paths of the drawing
ALL = "all writers"
EFFECT_WORDS = "fall of the answer's log-probability, nats"
REFERENCES = (
    "Nelson Elhage et al. A Mathematical Framework for Transformer Circuits. 2021.",
    "Kevin Wang et al. Interpretability in the Wild. ICLR 2023.",
    "Nicholas Goldowsky-Dill et al. Localizing Model Behavior with Path Patching. 2023.",
)


def page(tables: Mapping[str, pl.DataFrame], about: About[ComposeFacts]) -> Sheet:
    """The page from the tables."""
    facts, paths = about.facts, tables["paths"]
    name = words.display_name(facts.subject, about.command)
    pairs, count = words.quantity(facts.pairs, "pair"), words.quantity(facts.paths, "path")
    lede = f"{name} · {facts.corpus} · {pairs} of texts · {count}, one at a time"
    about_paths = (
        "A writer is the embedding, the positions, a head or a feed-forward block; together they are the residual stream, which was "
        "checked. A path is patched by giving one head's q, k or v what it would be with the donor's contribution of one writer in the "
        "place of the base's; all else is held. The effect is the fall of the log-probability of the base's answer. Writers are ranked by "
        "their direct effect: with the parts in between, the embedding counts for all that read it."
    )
    control = (
        "Effects say what a head needs; as a control, another pair's donor through the same path lowers the answer too. What a "
        "donor says shows in the answer that it predicts: the page says so only if that gains more than with the unrelated donor. "
        "Intervals are 95 % over pairs (Student's t), and are not corrected for how many paths there are."
    )
    left = len(paths.filter(~pl.col("exact")))
    estimated = f"{left:,} paths are estimated to first order alone (one pass with gradients); the strongest are patched exactly."
    details = (
        ("Model", f"{facts.subject}, weights {facts.fingerprint}"),
        ("Pairs", f"{facts.corpus}: {words.quantity(facts.pairs, 'pair')}, fingerprint {facts.corpus_fingerprint}"),
        ("Paths", f"{facts.paths}, into {facts.into or 'every head'}, seed {facts.seed}"),
    )
    ranks = [finding.words for finding in findings(tables, about) if finding.measure.endswith("_rank")]
    first = Section(
        "Which heads write q, k and v?",
        (),
        present(_drawing(paths), _map(tables)),
        blocks=quiet([about_paths, control, *[estimated] * (left > 0), *ranks]),
    )
    strongest = paths.filter(pl.col("exact") & (pl.col("writer") != ALL) & (pl.col("direct") > 0)).head(1).to_dicts()
    answer = "No path lowers the answer."
    for row in strongest:
        value = Estimate("", row["direct"], row["direct_low"], row["direct_high"])
        layer, _, part = row["writer"].partition(".")
        blocks = {"mlp": "the feed-forward network", "attn": "attention", "bias": "the bias"}
        writer = f"the embedding of {'positions' if layer == 'position' else 'tokens'}"
        if part:
            writer = f"{blocks.get(part, part.replace('h', 'head '))} of layer {layer}"
        certain = "" if (value.low or 0.0) > 0 else "The largest effect is not certain. "
        answer = (
            f"{certain}What {writer} adds matters most to {words.site_words(row['into'])}: with another "
            f"text's (the donor's) on that path alone, the answer loses {number_words(value, False)} nats of log-probability."
        )
    parts = present(first, _reading_head(paths), Section("Numbers", tuple(about.notes), (), _strongest(tables)))
    return Sheet(
        f"Which parts of {name} write the queries, keys and values of later heads?",
        "trisect · compose",
        lede,
        parts,
        provenance(about, *details, timed=False),
        REFERENCES,
        answer,
    )


def findings(tables: Mapping[str, pl.DataFrame], about: About[ComposeFacts]) -> tuple[Finding, ...]:
    """The strongest path into each of q, k and v, and how well weights and first-order effects predict exact effects."""
    results = []
    paths = tables["paths"].filter(pl.col("exact") & (pl.col("writer") != ALL))
    for component in "qkv":
        for row in paths.filter(pl.col("into").str.starts_with(f"{component}@")).iter_rows(named=True):
            gain = _own_gain(tables["shifts"], row, component)
            if gain is None:
                continue
            ends = row["direct_low"], row["direct_high"]
            value = Estimate(f"{row['writer']} → {row['into']}", row["direct"], *ends, row["n"])
            total = tables["paths"].filter((pl.col("writer") == ALL) & (pl.col("into") == row["into"]))["direct"]
            of_all = f" of {words.number(total[0])} from all writers" if len(total) and (total[0] or 0.0) > 0 else ""
            shift = Estimate("", gain["shift_nats"], gain["low"], gain["high"])
            text = (
                f"Most into {component}: {value.name} {number_words(value)} nats{of_all}, {words.number(row['effect_nats'], True)} with "
                f"what lies between; {gain['hypothesis']}'s answer gains {number_words(shift)} on the base's, and from an unrelated donor "
                f"{words.number(gain['unrelated_nats'], True)}."
            )
            results.append(Finding(f"path_{component}", text, "nats", (value,), per="pair", groups=(row["into"],)))
            break
    for measure, value, noun in (
        ("weights_rank", about.facts.weights, "Composition scores of the weights alone"),
        ("attribution_rank", about.facts.ranked, "Effects to first order"),
    ):
        if value is not None:
            text = f"{noun} and direct effects: rank correlation {words.number(value, True)} over paths that were patched exactly."
            results.append(Finding(measure, text, "ρ", (Estimate("", value),)))
    return tuple(results)


def _own_gain(shifts: pl.DataFrame, path: Mapping[str, Any], component: str) -> dict[str, Any] | None:
    """The shift by a path to the answer predicted for its component, or else the donor's; None if an unrelated donor's is as large."""
    rows = shifts.filter(writer=path["writer"], into=path["into"])
    of_component = rows.filter(pl.col("hypothesis").str.split("-").list.first() == component)
    stated = of_component if len(of_component) else rows.filter(hypothesis="donor")
    above = pl.col("low") > pl.max_horizontal(pl.col("unrelated_nats"), 0.0)
    best = stated.filter(above & pl.col("unrelated_nats").is_not_null()).sort("shift_nats", descending=True)
    return best.row(0, named=True) if len(best) else None


def _map(tables: Mapping[str, pl.DataFrame]) -> Figure | None:
    """The largest effect of one writer on every head's q, k and v, as a map."""
    rows = Measures.of(tables["measures"])
    heads = Measures(tuple(row for row in rows if row.head is not None))
    if not len(heads):
        return None
    largest = max(abs(row.value) for row in heads) or 1.0
    caption = "The largest effect of one writer on each head's q, k and v; the same colours in every panel."
    return head_maps(("composition-heads", "Figure 1", "All heads"), caption, heads, "nats", True, (-largest, largest))


def _drawing(paths: pl.DataFrame) -> Figure | None:
    """The strongest paths as lines from the writer to the reading head."""
    rows = paths.filter(pl.col("exact") & (pl.col("writer") != ALL) & (pl.col("direct").abs() > 0)).head(DRAWING_PATHS)
    if not len(rows):
        return None
    lines, ends, largest = [], {}, float(rows["direct"].abs().max() or 1.0)  # type: ignore[arg-type]
    for row in rows.iter_rows(named=True):
        component, _, place = row["into"].partition("@")
        layer, _, head = place.partition(".h")
        to = f"{layer}.h{head}" if head else layer
        layer_from, _, part = row["writer"].partition(".")
        start = (float(layer_from), _slot(part)) if part else (0.0, 0.0)
        end = (float(layer), _slot(f"h{head}") if head else 0.0)
        ends[row["writer"]], ends[to] = start, end
        shift = {"q": -0.06, "k": 0.0, "v": 0.06}.get(component, 0.0)
        look = {"width": 0.7 + 4 * abs(row["direct"]) / largest, "colour": render.mark(component).colour}
        lines.append({"x": start[1], "x2": end[1] + shift, "y": start[0], "y2": end[0]} | look)
    points = [{"x": x, "y": y, "name": name} for name, (y, x) in ends.items()]
    last, last_layer = max(x for _, x in ends.values()) or 1.0, max(y for y, _ in ends.values())
    x, y = (
        alt.X("x:Q", axis=None, scale=alt.Scale(domain=[-0.36 * last, 1.16 * last], nice=False)),
        alt.Y("y:Q", title="layer", axis=alt.Axis(values=[*range(int(last_layer) + 1)], format="d", grid=False)),
    )
    strokes = chart_of("paths", lines).mark_rule(opacity=0.9)
    edges = strokes.encode(
        x, y, alt.X2("x2"), alt.Y2("y2"), alt.Color("colour:N", scale=None), alt.StrokeWidth("width:Q", scale=None)
    )
    dots = chart_of("ends", points).mark_point(filled=True, size=40, color=render.INK, opacity=1).encode(x, y)
    # lines go to the right from writers other than heads, whose names are left of them
    names = [
        chart_of(kind, [point for point in points if (point["x"] > 0) is right])
        .mark_text(align="left" if right else "right", dx=7 if right else -7, dy=-6, fontSize=11, color=render.INK)
        .encode(x, y, alt.Text("name:N"))
        for kind, right in (("names", True), ("others", False))
    ]
    title = "Strongest paths"
    words_of = ", ".join(f"{r['writer']} into {r['into']} {r['direct']:.3g}" for r in rows.iter_rows(named=True))
    panel = Panel(title, overlay(title, edges, dots, *names), f"{title}: {words_of} nats.", (), {})
    keys = tuple(LegendEntry(f"into {c}", render.mark(c).colour, render.mark(c).shape) for c in "qkv")
    caption = f"From the writer below to the head above; the width of a line is its effect ({EFFECT_WORDS})."
    return Figure("composition-paths", "Figure 2", title, caption, (panel,), keys)


def _slot(part: str) -> float:
    """The horizontal position of a part of a layer: heads by number, the feed-forward block left of them."""
    return float(part[1:]) if part.startswith("h") and part[1:].isdigit() else 0.0


def _reading_head(paths: pl.DataFrame) -> Section | None:
    """Every writer into q, k and v of the head with the strongest path."""
    exact = paths.filter(pl.col("exact"))
    strongest = exact.filter(pl.col("writer") != ALL).head(1)
    if not len(strongest):
        return None
    place = strongest["into"][0].partition("@")[2]
    shown = exact.filter(pl.col("into").str.ends_with(f"@{place}"))
    cells: dict[str, dict[str, str]] = {}
    for row in shown.iter_rows(named=True):
        value = Estimate("", row["direct"], row["direct_low"], row["direct_high"])
        cells.setdefault(row["writer"], {})[row["into"].partition("@")[0]] = number_words(value)
    components = sorted({c for row in cells.values() for c in row}, key="qkv".find)
    body = tuple((writer, *(row.get(c, "–") for c in components)) for writer, row in sorted(cells.items()))
    table = Table(("writer", *components), body, f"{EFFECT_WORDS}, into @{place}", folded=False)
    return Section(f"The head {place}", (), (), (table,))


def _strongest(tables: Mapping[str, pl.DataFrame]) -> tuple[Table, ...]:
    """The strongest paths, and their shifts to each hypothesis' answer, beside an unrelated donor's."""
    paths, shifts, gains = tables["paths"], tables["shifts"], dict[tuple[str, str], dict[str, str]]()
    columns = ("writer", "into", "effect, nats", "unrelated", "with what lies between", "first order", "weights only")
    plain = ("unrelated", "effect_nats", "attributed", "weights_only")
    body = tuple(
        (
            row["writer"],
            row["into"],
            number_words(Estimate("", row["direct"], row["direct_low"], row["direct_high"])) if row["exact"] else "–",
            *("–" if row[name] is None else words.number(row[name], name != "weights_only") for name in plain),
        )
        for row in paths.head(TABLE_PATHS).iter_rows(named=True)
    )
    strongest = Table(columns, body, f"The strongest {len(body)} of {len(paths)} paths", wrap=False)
    for row in shifts.iter_rows(named=True):
        text = words.number(row["shift_nats"], True)
        control = "" if row["unrelated_nats"] is None else f" ({words.number(row['unrelated_nats'], True)})"
        gains.setdefault((row["writer"], row["into"]), {})[row["hypothesis"]] = text + control
    names = tuple(dict.fromkeys(shifts["hypothesis"]))
    shown = [path for path in tables["paths"].select("writer", "into").iter_rows() if path in gains][:TABLE_PATHS]
    cells = tuple((*path, *(gains[path].get(name, "–") for name in names)) for path in shown)
    caption = "Shift of log-probability to each hypothesis' answer against the base's, nats (in brackets from an unrelated donor)"
    return (strongest, Table(("writer", "into", *names), cells, caption, wrap=False)) if cells else (strongest,)
