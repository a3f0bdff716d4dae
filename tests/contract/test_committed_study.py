"""Committed results: judged and rendered by the code of today, their numbers are those that were published."""

import json
import shutil
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from trisect import claims
from trisect.core.files import read_json
from trisect.core.spec import Design, read_experiment
from trisect.core.tables import read_table, write_table
from trisect.experiments.align import ALIGN
from trisect.experiments.recall import RECALL
from trisect.experiments.similarity import SIMILARITY
from trisect.experiments.study import STUDY
from trisect.experiments.study import page as study_page
from trisect.experiments.study.rows import StudyRows, describe_study
from trisect.experiments.study.words import provenance
from trisect.lab.driver import render
from trisect.lab.records import read_about
from trisect.report.sheet import Picture, html

HOME = Path(__file__).parents[2] / "results" / "wikitext2-small"
TABLES = ("runs", "metrics", "sites", "claims", "controls")


def stated(place: Path) -> Design:
    return read_experiment(json.loads((place / "experiment.json").read_text(encoding="utf-8")), place)


@pytest.fixture(scope="module")
def committed() -> dict[str, pl.DataFrame]:
    return {name: pl.read_parquet(HOME / "tables" / f"{name}.parquet") for name in TABLES}


@pytest.fixture(scope="module")
def read() -> dict[str, pl.DataFrame]:
    return {name: read_table(HOME / "tables", name) for name in TABLES}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_read_as_it_was_written_and_written_as_it_was_read(committed, read, name, tmp_path):
    assert_frame_equal(read[name], committed[name])
    write_table(tmp_path, name, read[name])
    assert_frame_equal(read_table(tmp_path, name), read[name])


def test_its_claims_are_judged_as_they_were_and_stand_in_the_text(read):
    described = describe_study(read_about(STUDY, HOME))
    again = claims.judge({name: read[name] for name in ("runs", "metrics", "sites")}, described)
    assert_frame_equal(again, read["claims"], abs_tol=1e-12)
    text = (HOME.parents[1] / "docs" / "what-we-found.md").read_text(encoding="utf-8")
    judged = again.filter(pl.col("part").is_null(), pl.col("verdict") != "not tested")
    for claim, verdict in judged.select("claim", "verdict").iter_rows():
        assert f"| {claim} | {verdict} |" in text, claim


def test_its_page_is_made_and_says_every_verdict(read):
    about = read_about(STUDY, HOME)
    sheet = study_page.page(read, about)
    page = html(sheet)
    wholes = read["claims"].filter(pl.col("part").is_null())
    assert {f.claim: f.verdict for f in STUDY.findings(read, about) if f.claim} == dict(
        wholes.select("claim", "verdict").iter_rows()
    )
    for claim, sentence in wholes.select("claim", "sentence").iter_rows():
        assert claim in page
        assert sentence in page
    drawn = {block.name for section in sheet.sections for block in section.figures}
    drawn |= {block.figure.name for section in sheet.sections for block in section.blocks if isinstance(block, Picture)}
    assert drawn >= {path.stem for path in (HOME / "figures").glob("*.svg")}


@pytest.mark.parametrize(
    "place", sorted(HOME.parent.glob("wikitext2-*/experiment.json")), ids=lambda place: place.parent.name
)
def test_every_committed_study_of_wikitext_has_a_record_of_its_experiment(place):
    about = read_about(STUDY, place.parent)
    assert about.facts.experiment == stated(place.parent)
    (text,) = {name.rpartition(":")[2] for name in pl.read_parquet(place.parent / "tables" / "runs.parquet")["corpus"]}
    assert about.facts.corpus.get("fingerprint") == text
    assert ("wall_seconds" in read_json(place.parent / "about.json", "")) == (about.facts.wall_seconds > 0)


def test_seconds_that_nobody_noted_have_a_dash():
    place = HOME.parent / "wikitext2-all-layers"
    about = read_about(STUDY, place)
    made = {path.stem: read_table(path.parent, path.stem) for path in (place / "tables").glob("*.parquet")}
    assert provenance(StudyRows.of(made, describe_study(about)))["Wall time"].startswith("– on ")


@pytest.mark.parametrize(
    ("experiment", "place"),
    [
        (SIMILARITY, "minilm/similarity-ud"),
        (SIMILARITY, "minilm/own-similarity"),
        (ALIGN, "alignment"),
        (RECALL, "recall/embedded"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_results_written_before_are_rendered_and_their_tables_and_figures_stay(experiment, place, tmp_path):
    kept, copy = HOME.parent / place, tmp_path / "copy"
    shutil.copytree(kept, copy, ignore=shutil.ignore_patterns("figures", "report.html"))
    done = render(experiment, copy)
    wholes = done.tables["claims"].filter(pl.col("part").is_null())
    assert [(f.claim, f.verdict) for f in done.findings if f.claim and f.part is None] == (
        wholes.select("claim", "verdict").rows()
    )
    page = done.report.read_text(encoding="utf-8")
    assert page.count("<article") == len(wholes)
    for table in (kept / "tables").iterdir():
        assert (copy / "tables" / table.name).read_bytes() == table.read_bytes()
    drawn, before = ({path.name for path in (of / "figures").iterdir()} for of in (copy, kept))
    assert drawn >= before
    facts = done.about.facts
    if experiment is SIMILARITY:
        assert facts.fingerprint in page
    elif experiment is ALIGN:  # it was written before findings were data, and without the picture of a pair
        assert (facts.pairs, facts.picture) == (447, None)
        assert (done.findings[0].comparison, done.findings[-1].verdict) == ("norm < weight", "inconclusive")
    else:
        noted = json.loads((kept / "about.json").read_text(encoding="utf-8"))["body"]
        assert (done.about.command, dict(facts.settings)) == (noted["command"], noted["settings"])
        assert len(facts.references) == len(noted["references"])
