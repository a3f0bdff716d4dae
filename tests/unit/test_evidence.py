"""Lines of evidence from the findings of a dissection's parts: what they count, turn, and leave out."""

from __future__ import annotations

import polars as pl
import pytest
from tests import aligned

from trisect.core.finding import Estimate, Finding
from trisect.experiments.align import page as alignment_page
from trisect.experiments.dissect import parts
from trisect.report.format import interval
from trisect.stats.compare import compare


def aligned_findings(models=1, measures=None):
    scored = aligned.planted((0.5, 0.5), (0.9, 0.9), models=models)
    tables = aligned.tables(scored)
    measures = tables["measures"] if measures is None else measures(tables["measures"])
    return alignment_page.findings({**tables, "measures": measures}, aligned.about(scored)), tables["measures"], scored


@pytest.mark.parametrize("models", [1, 3])
def test_an_alignments_line_is_1_less_the_error_rate_with_its_interval_turned(models):
    findings, measures, scored = aligned_findings(models)
    (found,) = parts.alignment_evidence([findings])
    for mean, kind in ((found.q, "weight"), (found.k, "weight"), (found.v, "norm")):
        whole = measures.filter(pl.col("layer").is_null(), subject=scored.name, measure="aer", group=f"awi {kind}")
        (row,) = whole.to_dicts()
        assert mean is not None
        assert mean == (1 - row["value"], 1 - row["high"], 1 - row["low"], 40)
    assert found.compared is None  # q and k share a number, so that the line is shown and not counted
    assert (found.claims, found.source) == (("C-5",), "alignment")
    assert found.words.startswith("norms less weights +0.3") or found.words.startswith("norms less weights +0.4")


def test_without_gold_links_there_is_no_line():
    findings, _, _ = aligned_findings(measures=lambda rows: rows.filter(~pl.col("measure").str.starts_with("aer")))
    assert list(parts.alignment_evidence([findings])) == []


def of_model(measure, **values):
    return (Finding(measure, "", values=tuple(Estimate(name.replace("_", "+"), v) for name, v in values.items())),)


def test_a_line_over_models_is_the_mean_of_each_with_its_interval():
    models = [of_model("mean_change", q=0.1, k=0.2, v=0.3), of_model("mean_change", q=0.3, k=0.2, v=0.7)]
    (found,) = parts.evidence(models)
    assert (found.q, found.v) == (interval([0.1, 0.3]), interval([0.3, 0.7]))
    assert (found.kind, found.per, found.signed) == ("ablation", "seed", True)
    assert found.compared == compare({"q": [0.1, 0.3], "k": [0.2, 0.2], "v": [0.3, 0.7]}, 0.02)
    (alone,) = parts.evidence([of_model("mean_change", q=0.1, v=0.3), of_model("other", q=9.0)])
    assert (alone.q, alone.k) == (interval([0.1]), None)
    assert list(parts.evidence([of_model("other", q=9.0)])) == []


def test_weights_are_of_q_and_k_together_so_that_norms_rank_nothing():
    (found,) = parts.norms_evidence([of_model("dispersion", q_k=1.2, v=0.3), of_model("dispersion", q_k=1.4, v=0.1)])
    assert found.q == found.k == interval([1.2, 1.4])
    assert found.v == interval([0.3, 0.1])
    assert found.compared is None


def test_a_components_similarity_is_its_mean_overlap_with_the_other_two():
    def overlaps(**pairs):
        return tuple(
            Finding(
                "overlap", "", values=(Estimate(pair, v), Estimate("random", 0.9)), groups=(pair.replace("_", "-"),)
            )
            for pair, v in pairs.items()
        )

    (found,) = parts.similarity_evidence([overlaps(q_k=0.4, q_v=0.2, k_v=0.1), overlaps(q_k=0.2, q_v=0.2, k_v=0.1)])
    assert [m.mean for m in (found.q, found.k, found.v) if m] == pytest.approx([0.25, 0.2, 0.15])
    (odd,) = parts.similarity_evidence([overlaps(q_k=0.4)])
    assert (odd.q, odd.k, odd.v) == (interval([0.4]), interval([0.4]), None)


def test_recalls_line_is_what_is_lost_and_is_not_ranked():
    stay = Finding(
        "survival", "", "of the answers", (Estimate("q", 0.9, n=40), Estimate("v", 0.2, n=40)), what="x that stay y"
    )
    (found,) = parts.recall_evidence([(stay,)])
    assert found.q is not None
    assert found.v is not None
    assert (found.q.mean, found.v.mean, found.k) == (pytest.approx(0.1), 0.8, None)
    assert (found.kind, found.what, found.compared, found.claims[0]) == ("recall", "x lost y", None, "B-1")
    assert list(parts.recall_evidence([()])) == []
