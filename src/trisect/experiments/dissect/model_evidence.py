"""Evidence on q, k and v from trained models: ablation, norms, similarity, recall, alignment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import polars as pl

from trisect.core.finding import Finding
from trisect.experiments.dissect.evidence import COMPONENTS, Line
from trisect.report import format as words
from trisect.report.points import Mean, interval

VerdictsById = Mapping[str, str]  # claim -> verdict


def ablation_line(models: Sequence[pl.DataFrame], how: str, link: str) -> Line | None:
    """Rise of the loss when a component of one layer is replaced, mean over layers; `models` are tables of measures."""

    def one(table: pl.DataFrame, component: str) -> float | None:
        return _mean(table.filter(pl.col("head").is_null(), measure="loss_change_nats", component=component))

    what = f"change of the loss when one layer's is replaced by its {how}, mean over layers"
    return _line("ablation", "", what, "nats", models, one, link)


def norms_line(models: Sequence[pl.DataFrame], verdicts: VerdictsById, link: str) -> Line | None:
    """How much the weights (q and k) and the norms (v and W_O) of what is mixed vary over tokens."""

    def one(table: pl.DataFrame, component: str) -> float | None:
        name = "cv_f" if component == "v" else "cv_a"
        return _mean(table.filter(pl.col("head").is_not_null(), measure=name))

    what = "coefficient of variation over tokens of the weight a (q and k together) and of ‖f(x)‖ (v), mean over heads"
    line = _line("norms", "norms", what, "std / mean", models, one, link, _of(verdicts, "C-1", "C-2", "C-3", "C-4"))
    return line and line._replace(ranked=False)


def similarity_line(models: Sequence[pl.DataFrame], verdicts: VerdictsById, link: str) -> Line | None:
    """Overlap of a component's row space with those of the other two, mean over heads."""

    def one(table: pl.DataFrame, component: str) -> float | None:
        pairs = [pair for pair in ("q-k", "q-v", "k-v") if component in pair]
        return _mean(table.filter(pl.col("component").is_in(pairs), pl.col("group").is_null(), measure="overlap"))

    what = "overlap of its row space with those of the other two, mean over heads"
    chosen = _of(verdicts, "D-1", "D-3")
    return _line("similarity", "matrices", what, "of their dimensions", models, one, link, chosen)


def recall_line(findings: Sequence[Finding], verdicts: VerdictsById, link: str) -> Line | None:
    """Share of retrieved answers that are lost when a component of one layer is replaced by its mean."""
    found = next((one for one in findings if one.measure == "survival"), None)
    if found is None:
        return None
    stay = {one.name: one for one in found.values if one.mean is not None}
    lost = {c: Mean(1 - (one.mean or 0.0), None, None, one.n or 0) for c, one in stay.items()}
    q, k, v = (lost.get(c) for c in COMPONENTS)
    what = "retrieved answers lost when one layer's is replaced by its mean, mean over layers"
    chosen = _of(verdicts, "B-1", "B-2", "B-3", "B-4")
    said = "no interval, so not ranked"
    return Line("recall", "recall", what, "of the answers", q, k, v, "name", False, chosen, said, link, ranked=False)


def alignment_line(measures: pl.DataFrame, verdicts: VerdictsById, link: str) -> Line | None:
    """How right links are by weights (q and k) and by norms (v with them): 1 − AER, so that more is better, as on other lines.

    The word is the decoder's input (AWI).
    """
    pooled = measures.filter(pl.col("layer").is_null(), pl.col("head").is_null(), measure="aer")
    found = {}
    for kind in ("weight", "norm"):
        rows = pooled.filter(group=f"awi {kind}").sort("subject", descending=True).sort("n", maintain_order=True)
        several = rows.filter(pl.col("subject").str.contains(", ")) if rows.height > 1 else rows
        if several.is_empty():
            return None
        row = several.row(0, named=True)
        low, high = (None if row[end] is None else 1 - row[end] for end in ("high", "low"))
        found[kind] = Mean(1 - row["value"], low, high, row["n"])
    weight, norm = found["weight"], found["norm"]
    what = "1 − AER of links by weights (q and k together) and by norms (v with them), mean over layers"
    said = f"norms less weights {words.number(norm.mean - weight.mean, True)}"
    chosen = _of(verdicts, "C-5")
    return Line(
        "alignment",
        "alignment",
        what,
        "agreement with gold links",
        weight,
        weight,
        norm,
        "pair",
        False,
        chosen,
        said,
        link,
        ranked=False,
    )


def _of(verdicts: VerdictsById, *claims: str) -> tuple[tuple[str, str], ...]:
    return tuple((claim, verdicts[claim]) for claim in claims if claim in verdicts)


def _mean(rows: pl.DataFrame) -> float | None:
    values = [v for v in rows["value"].to_list() if v is not None]
    return sum(values) / len(values) if values else None


def _line(
    kind: str,
    source: str,
    what: str,
    unit: str,
    models: Sequence[pl.DataFrame],
    one: Callable[[pl.DataFrame, str], float | None],
    link: str,
    verdicts: tuple[tuple[str, str], ...] = (),
) -> Line | None:
    """One number a model and component, and their mean over models, which differ by their seed."""
    found = {c: [v for t in models if (v := one(t, c)) is not None] for c in COMPONENTS}
    if not any(found.values()):
        return None
    q, k, v = (interval(found[c]) if found[c] else None for c in COMPONENTS)
    return Line(kind, source, what, unit, q, k, v, "seed", kind == "ablation", verdicts, "", link)
