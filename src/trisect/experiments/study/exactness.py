"""How exact the rewinding curves are: how many values of α were evaluated, how far interpolants differed, and sampling."""

from __future__ import annotations

from typing import NamedTuple

from trisect.experiments.study.rows import StudyRows
from trisect.measure.curves import NODES, TOLERANCE
from trisect.report.format import count, listed, number, several
from trisect.report.points import Point, order

Columns = tuple[tuple[str, str], ...]  # title, unit


class Exactness(NamedTuple):
    """The check of the rewinding curves: in a few sentences, and as a table with a row per site."""

    sentence: str
    columns: Columns
    rows: tuple[tuple[str, tuple[str, ...]], ...]


def exactness(rows: StudyRows) -> Exactness | None:
    """What the tables say about the curves of figure 8, on the train split; null without such rows."""
    spent = rows.measure("rewind_evaluations", "train")
    if not spent:
        return None
    checks, nodes = rows.measure("rewind_check_nats", "train"), rows.measure("rewind_nodes", "train")
    bands = _bands(rows)
    asked = rows.about.get("experiment")
    how = asked.get("rewind") if asked else None
    points = len({p.at for p in rows.measure("rewind_loss_nats", "train")})
    columns = [
        ("Evaluations", f"for {several(points, 'value')} of α, by seed"),
        ("Largest disagreement", "nats, between two interpolants"),
    ]
    columns += [("Nodes of the last interpolant", "by seed")] if nodes else []
    columns += [(title, "nats, 95 % over rows, by seed") for title, _ in bands]
    table = []
    for site in sorted({p.site for p in spent}, key=order):
        cells = [_span(spent, site), _most(checks, site)]
        cells += [_span(nodes, site)] if nodes else []
        cells += [found.get(site, "–") for _, found in bands]
        table.append((site, tuple(cells)))
    said = _sentence(spent, checks, nodes, points, how["mode"] if how else "adaptive")
    if bands:
        sample = how.get("sample_tokens") if how else None
        size = f" ({count(sample)} tokens of each split)" if sample else ""
        said += (
            f" Losses are those of a sample of whole rows{size}, the same rows at every α, site and seed; the intervals in "
            "the table say where the rise over all rows would lie, α by α."
        )
    return Exactness(said, tuple(columns), tuple(table))


def _sentence(spent: list[Point], checks: list[Point], nodes: list[Point], points: int, mode: str) -> str:
    if mode == "exact":
        return f"Every one of the {several(points, 'value')} of α was evaluated; nothing is interpolated."
    said = (
        f"The losses at {several(points, 'value')} of α come from {_span(spent)} evaluations per site and seed; where α itself "
        f"was not evaluated, they lie on polynomials through {listed([str(n) for n in NODES])} nested Chebyshev nodes, refined "
        f"until two of them agree within {TOLERANCE:g} nats everywhere. Points beside a crossing of the tolerance of "
        "criticality are always evaluated."
    )
    last = {(p.site, p.seed): p.value for p in nodes}  # 0: nothing is interpolated; older tables have no such rows
    every = [p for p in spent if (last[p.site, p.seed] == 0 if (p.site, p.seed) in last else p.value >= points)]
    full = sorted({p.site for p in every}, key=order)
    if full:
        said += f" At {listed(full)} no two agreed in some seed, and every α was evaluated there."
    if checks:
        worst = max(checks, key=lambda p: p.value)
        said += f" The largest disagreement of the last two was {number(worst.value)} nats ({worst.site}, seed {worst.seed})."
    return said


def _bands(rows: StudyRows) -> list[tuple[str, dict[str, str]]]:
    """Intervals over sampled rows by site: of the rise at α = 0 and of the area; only those that have rows."""
    found = []
    for title, stem, unit in (("Rise at α = 0", "rewind_rise", "_nats"), ("Area", "rewind_area", "")):
        ends = [rows.measure(f"{stem}_{end}{unit}", "train") for end in ("low", "high")]
        lows, highs = ([p for p in points if p.at in (None, 0.0)] for points in ends)
        high_of = {(p.site, p.seed): p.value for p in highs}
        cells: dict[str, list[str]] = {}
        for p in lows:
            if (p.site, p.seed) in high_of:
                said = f"{number(p.value, True)} to {number(high_of[p.site, p.seed], True)}"
                cells.setdefault(p.site, []).append(said)
        if cells:
            found.append((title, {site: "; ".join(texts) for site, texts in cells.items()}))
    return found


def _span(points: list[Point], site: str | None = None) -> str:
    mine = sorted(int(p.value) for p in points if site in (None, p.site))
    if not mine:
        return "–"
    return count(mine[0]) if mine[0] == mine[-1] else f"{count(mine[0])} to {count(mine[-1])}"


def _most(checks: list[Point], site: str) -> str:
    mine = [p.value for p in checks if p.site == site]
    return number(max(mine)) if mine else "–"
