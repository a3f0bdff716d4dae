"""Probing a study's runs again with folds of whole articles: what the same study finds that says so; other runs are refused."""

from __future__ import annotations

import json
import runpy
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_series_equal
from tests import tiny

import trisect
from trisect.core.errors import StudyError
from trisect.core.methods import Attack, Probe
from trisect.core.site import Site
from trisect.core.spec import Text
from trisect.core.tables import read_table, write_table
from trisect.text.corpus import Corpus, Split

pytestmark = pytest.mark.usefixtures("undrawn")

TOOL = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[2] / "tools" / "refolded.py")))
BITS = ("probe_linear_bits", "probe_linear_random_bits")
DESIGN = replace(
    tiny.EXPERIMENT,
    seeds=(1,),
    rewind=None,
    freeze=None,
    attack=Attack((Site.parse("q@1"),), labels=("pos",)),
    probe=Probe(
        tuple(map(Site.parse, ("q@1", "q@1.h1", "v@2"))), ("pos",), ("linear",), fitted="held-out", random_maps=2
    ),
)


def result_of(study: Path, place: Path) -> Path:
    """What is kept of a study under results/."""
    (place / "tables").mkdir(parents=True)
    for name in ("runs", "metrics", "sites"):
        shutil.copy(study / "tables" / f"{name}.parquet", place / "tables")
    shutil.copy(study / "experiment.json", place)
    return place


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    base = tmp_path_factory.mktemp("refolded")
    trisect.study(DESIGN, out=base / "study", workers=0, quiet=True)
    place = result_of(base / "study", base / "result")
    TOOL.main([str(place), str(base / "study")])
    return place, base / "study"


def test_a_text_without_articles_gives_the_numbers_of_before(made: tuple[Path, Path]) -> None:
    place, _ = made
    first, again = (read_table(where / "tables", "sites") for where in (place, place / "whole-articles"))
    keys = again.select("subject", "site", "measure", "label", "at", "split")
    both = first.join(keys, on=keys.columns, nulls_equal=True)
    both = again.join(both, on=keys.columns, nulls_equal=True, suffix="_first", validate="1:1")
    assert both.height == again.height == 46
    assert_series_equal(both["value"], both["value_first"], check_names=False, abs_tol=1e-4, rel_tol=0)
    assert_series_equal(both["n"], both["n_first"], check_names=False)
    runs = read_table(place / "tables", "runs")
    probed = again.filter(pl.col("measure").is_in(BITS)).join(runs, left_on="subject", right_on="run")
    edited = {kind: set(of["site"]) for (kind,), of in probed.group_by("edit")}
    assert edited == {"none": {"q@1", "q@1.h1", "v@2", "q+k+v@1"}, "attack": {"q@1", "q@1.h1", "q+k+v@1"}}


def headed() -> Corpus:
    """A labelled text whose validation is six articles, one of more than half and a short one behind it."""
    text = list[str]()
    for n, length in enumerate((160, 250, 90, 140, 1080, 150)):
        text += ["=", "title", "=", *(f"w{(n + i * i) % 7}" for i in range(length)), "."]
    words = tuple(dict.fromkeys(text))
    tokens = np.array([words.index(word) for word in text], np.int32)
    part = Split(tokens, {"pos": (tokens % 2).astype(np.int16)})
    return Corpus.make("headed", words, {"pos": ("n", "m")}, {"train": part, "valid": part})


def test_articles_that_rows_were_dealt_of_are_whole(tmp_path: Path) -> None:
    headed().save(tmp_path / "text")
    text = Text(str(tmp_path / "text"), None, None, 1)
    trisect.study(replace(DESIGN, text=text), out=tmp_path / "study", workers=0, quiet=True)
    place = result_of(tmp_path / "study", tmp_path / "result")
    TOOL.main([str(place), str(tmp_path / "study")])
    first, again = (read_table(where / "tables", "sites") for where in (place, place / "whole-articles"))
    articles = [set(of.filter(measure="probe_articles")["value"]) for of in (first, again)]
    assert articles == [{0.0}, {6.0}]


def test_what_was_done_is_read_and_other_runs_are_refused(made: tuple[Path, Path], tmp_path: Path) -> None:
    place, study = made
    kept = sorted((study / "whole-articles").glob("*.json"))
    stamps = [path.stat().st_mtime_ns for path in kept]
    TOOL.main([str(place), str(study)])
    assert [path.stat().st_mtime_ns for path in kept] == stamps
    other = result_of(study, tmp_path / "other")
    runs = read_table(other / "tables", "runs")
    write_table(other / "tables", "runs", runs.head(1))
    with pytest.raises(StudyError, match="1 runs are in one of them alone"):
        TOOL.main([str(other), str(study)])
    assert not (other / "whole-articles").exists()
    metrics = read_table(place / "tables", "metrics")
    write_table(other / "tables", "runs", read_table(place / "tables", "runs"))
    write_table(other / "tables", "metrics", metrics.with_columns(pl.col("value") * 1.001))
    with pytest.raises(StudyError, match="it was trained again, to other bits"):
        TOOL.main([str(other), str(study)])
    stated = json.loads((other / "experiment.json").read_text(encoding="utf-8"))
    stated["probe"]["fitted"] = "train"
    (other / "experiment.json").write_text(json.dumps(stated), encoding="utf-8")
    with pytest.raises(StudyError, match="has no probes of the rule before"):
        TOOL.main([str(other), str(study)])
