"""All four sources at the smallest size that has them all: what is written, linked and said, and that it goes on."""

import re
from dataclasses import replace

import polars as pl
import pytest
from tests import tiny

from trisect.core.errors import StudyError
from trisect.core.methods import Attack, Control, Erase, Freeze, Probe, Rewind, Tie
from trisect.core.site import Site
from trisect.core.spec import Machine
from trisect.experiments.dissect.evidence import KINDS
from trisect.experiments.dissect.run import run_dissect
from trisect.papers import SOURCES

SITES = tuple(Site((c,), (layer,)) for layer in (1, 2) for c in ("q", "k", "v"))
SMALL = replace(
    tiny.EXPERIMENT,
    attack=Attack(SITES, ("pos",)),
    rewind=Rewind(SITES, points=5),
    freeze=Freeze(SITES),
    control=Control(SITES[:3], ("pos",), ("control", "bounded")),
    tie=Tie(narrow=False),
    probe=Probe(SITES, ("pos",), ("linear",)),
    erase=Erase(SITES[:3], ("pos",), draws=2),
)
RECALL = {"width": 16, "heads": 2, "layers": 1, "pretraining_epochs": 1, "epochs_without": 1, "epochs_after": 1}
TRANSLATION = {"width": 16, "heads": 2, "layers": 1, "inner": 16, "epochs": 1}
MACHINE = Machine(workers=0, quiet=True)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    return run_dissect(tmp_path_factory.mktemp("all") / "study", None, MACHINE, SMALL, RECALL, TRANSLATION)


def test_every_claim_of_every_source_is_judged_once(done):
    wholes = done.tables["claims"].filter(pl.col("part").is_null())
    assert sorted(wholes["claim"]) == sorted(c.id for source in SOURCES for c in source.claims)
    assert set(wholes["verdict"]) <= {"supported", "refuted", "inconclusive"}
    unread = {"A-2", "B-2", "B-3", "C-3"}  # too few layers, nothing retrieved, no [SEP]: the others have their numbers
    assert unread >= set(wholes.filter(pl.col("reason").str.contains("not measured"))["claim"])


def test_every_kind_of_evidence_has_a_line_and_the_table_holds_its_numbers(done):
    retrieved = done.folder / "recall" / "tables" / "measures.parquet"
    some = not pl.read_parquet(retrieved).filter(measure="survival", group="retrieved").is_empty()
    # eight dimensions are fewer than the classes: the label takes all of them, which tells nothing
    assert {line.kind for line in done.lines} == set(KINDS) - {"erasure"} - (set() if some else {"recall"})
    for line in done.lines:
        rows = done.tables["evidence"].filter(kind=line.kind, what=line.what)
        assert dict(rows.select("component", "value").iter_rows()) == {c: m.mean for c, m in line.means.items()}
    rewinding = done.tables["evidence"].filter(kind="rewinding")
    assert rewinding["n"].to_list() == [len(SMALL.seeds)] * 3


def test_every_page_that_is_named_is_there_and_the_verdicts_stand_on_the_page(done):
    page = done.report.read_text()
    links = set(re.findall(r'href="([^"#:]+)"', page))
    assert {"training/report.html", "theory/theory.html", "recall/report.html", "alignment/report.html"} <= links
    for link in links:
        assert (done.folder / link).is_file(), link
    for row in done.tables["claims"].filter(pl.col("part").is_null()).iter_rows(named=True):
        assert re.search(rf"<th[^>]*>{row['claim']}</th>.*?<td>{row['verdict']}</td>", page, re.DOTALL), row["claim"]


def test_called_again_it_trains_nothing_and_says_the_same(done):
    made = {path: path.stat().st_mtime_ns for path in done.folder.rglob("*.safetensors")}
    again = run_dissect(done.folder, None, MACHINE, SMALL, RECALL, TRANSLATION)
    assert {path: path.stat().st_mtime_ns for path in done.folder.rglob("*.safetensors")} == made
    assert again.lines == done.lines
    assert again.tables["claims"].equals(done.tables["claims"])


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "letter.txt").write_text("mine")
    with pytest.raises(StudyError, match=r"is not empty, and holds no dissection.\n  There is letter.txt."):
        run_dissect(tmp_path, None, MACHINE, SMALL)
    assert [p.name for p in tmp_path.iterdir() if p.name != ".lock"] == ["letter.txt"]
