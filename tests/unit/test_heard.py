"""Lines of evidence from what was read of trained models: an alignment's goes up where links are better."""

from __future__ import annotations

import polars as pl
import pytest
from tests import aligned

from trisect.experiments.dissect.evidence import first
from trisect.experiments.dissect.model_evidence import alignment_line


@pytest.mark.parametrize("models", [1, 3])
def test_an_alignments_line_is_1_less_the_error_rate_with_its_interval_turned(models):
    scored = aligned.planted((0.5, 0.5), (0.9, 0.9), models=models)
    measures = aligned.tables(scored)["measures"]
    found = alignment_line(measures, {"C-5": "supported"}, "page.html")
    assert found is not None
    for mean, kind in ((found.q, "weight"), (found.k, "weight"), (found.v, "norm")):
        whole = measures.filter(pl.col("layer").is_null(), subject=scored.name, measure="aer", group=f"awi {kind}")
        (row,) = whole.to_dicts()
        assert mean is not None
        assert mean == (1 - row["value"], 1 - row["high"], 1 - row["low"], 40)
    assert first(found) is None  # q and k share a number, so that the line is shown and not counted
    ranked = first(found._replace(ranked=True))
    assert ranked is not None
    assert (ranked.component, ranked.rivals) == ("v", ())
    assert found.verdicts == (("C-5", "supported"),)
    assert found.words.startswith("norms less weights +0.3") or found.words.startswith("norms less weights +0.4")


def test_without_gold_links_there_is_no_line():
    measures = aligned.tables(aligned.planted((0.5, 0.5), (0.9, 0.9)))["measures"]
    assert alignment_line(measures.filter(pl.col("measure") != "aer"), {}, "page.html") is None
