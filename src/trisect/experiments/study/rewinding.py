"""Rewinding one site of a baseline: curves, their check, and where rows are sampled their intervals, as JSON-ready data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float
from torch import Tensor

from trisect.core.site import Site
from trisect.core.spec import Run
from trisect.core.study_data import RewindData
from trisect.experiments.study.evaluation import CurveData, EvaluationData
from trisect.lm.feed import Piece
from trisect.lm.rewind import blend, draw_rows, evaluate_variants, stages
from trisect.measure.curves import adaptive_curves, exact_curves
from trisect.stats.ratios import paired_band

Parameters = Mapping[str, Tensor]
Pieces = Mapping[str, Sequence[Piece]]
CurveSums = dict[str, Float[np.ndarray, "A R"]]  # split -> each row's summed loss along the curve, in nats


def rewind(
    run: Run, site: Site, final: Parameters, epochs: Sequence[Parameters], convex: bool, pieces: Pieces, how: RewindData
) -> EvaluationData:
    """What an evaluation's file holds: towards the first of the stored epochs (convex), or through all of them.

    `final` and `epochs` have no member axis; `pieces` are all that is evaluated, by split; `how` is the ledger's.
    """
    sample, drawn = how.get("sample_tokens"), pieces
    if sample is not None:
        drawn = {split: draw_rows(part, sample, how.get("sample_seed", 0), split) for split, part in pieces.items()}
    body: EvaluationData = {}
    if convex:
        curves, sums = _convex(run, site, final, epochs[0], drawn, how, body)
    else:
        curves, sums = _midstage(run, site, final, epochs, drawn)
    if sample is not None:
        for split, part in drawn.items():
            tokens = np.array([p.tokens // len(p.inputs) for p in part for _ in p.inputs])
            band = paired_band(sums[split], tokens, sum(len(p.inputs) for p in pieces[split]))
            ends = numbers(np.array([band.area_low, band.area_high]))
            curve = curves[split]
            curve["rise_low_nats"], curve["rise_high_nats"] = numbers(band.low), numbers(band.high)
            curve["area_low"], curve["area_high"] = ends
    body["train"], body["valid"] = curves["train"], curves["valid"]
    return body


def _midstage(
    run: Run, site: Site, final: Parameters, epochs: Sequence[Parameters], pieces: Pieces
) -> tuple[dict[str, CurveData], CurveSums]:
    whole, at = {n: v[None] for n, v in final.items()}, [float(i) for i in range(len(epochs))]
    found = {s: evaluate_variants(whole, run.model, p, site, stages(epochs)) for s, p in pieces.items()}
    body = {s: curve_data(at, c.loss_nats, c.accuracy, c.n) for s, c in found.items()}
    return body, {s: c.row_nats for s, c in found.items()}


def _convex(
    run: Run, site: Site, final: Parameters, first: Parameters, pieces: Pieces, how: RewindData, body: EvaluationData
) -> tuple[dict[str, CurveData], CurveSums]:
    """Loss and accuracy along (1 - α)·θ⁰ + α·θᶠ, exactly or between self-checking nodes, which `body` counts."""
    whole, grid = {n: v[None] for n, v in final.items()}, np.arange(how["points"]) / (how["points"] - 1)
    rows: dict[float, list[np.ndarray]] = {}

    def evaluate(alphas: list[float]) -> np.ndarray:
        variants = blend(first, final, alphas)
        found = [evaluate_variants(whole, run.model, p, site, variants) for p in pieces.values()]
        rows.update({a: [c.row_nats[i] for c in found] for i, a in enumerate(alphas)})
        return np.stack([c.loss_nats for c in found] + [c.accuracy for c in found])

    curves = (
        exact_curves(evaluate, grid, len(pieces))
        if how["mode"] == "exact"
        else adaptive_curves(evaluate, grid, len(pieces), how["epsilon"])
    )
    body["evaluations"], body["nodes"] = curves.evaluations, curves.nodes
    found: dict[str, CurveData] = {}
    for i, (split, part) in enumerate(pieces.items()):
        n = sum(p.tokens for p in part)
        found[split] = curve_data(grid.tolist(), curves.values[i], curves.values[i + len(pieces)], n)
        found[split]["check_nats"] = float(curves.checks[i])
    return found, {s: curves.mix @ np.stack([rows[x][i] for x in curves.points]) for i, s in enumerate(pieces)}


def curve_data(at: list[float], losses: np.ndarray, accuracies: np.ndarray, n: int) -> CurveData:
    """One split's curve, over n tokens."""
    return {"at": at, "loss_nats": numbers(losses), "accuracy": numbers(accuracies), "n": n}


def numbers(values: np.ndarray) -> list[float | None]:
    """Finite ones as they are, the others missing."""
    return [float(v) if np.isfinite(v) else None for v in values]
