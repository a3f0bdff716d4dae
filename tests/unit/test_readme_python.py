"""`trisect report` writes README.md from a folder's own record, findings and verdicts, and never over one written by hand."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from markupsafe import Markup
from tests import tiny

import trisect
from trisect.core.errors import SpecError
from trisect.core.finding import About, Estimate, Finding
from trisect.core.tables import read_table
from trisect.report.readme import MARK, readme
from trisect.report.sheet import Facts, Section, Sheet

pytestmark = pytest.mark.usefixtures("undrawn")  # pages without drawings, which take most of the time

RESULT = Path(__file__).parents[2] / "results" / "minilm" / "norms-ud"


def written(*found: Finding, notes: tuple[str, ...] = ()) -> str:
    reproduce = Section("Again", blocks=(Facts((("Corpus", Markup("made, <code>f00</code>")),)),))
    sheet = Sheet("A title", "", "a model on <s> | texts", (reproduce,), (("Seeds", "1 and 2"), ("Command", "x")))
    about = About("norms", "trisect norms M", 1.0, notes, {}, None, object())
    return readme(sheet, about, found, {"measures": pl.DataFrame({"a": [1, 2]}), "metrics": pl.DataFrame()})


def test_command_inputs_notes_and_tables_stand_in_it():
    text = written(notes=("one note",))
    assert "```sh\ntrisect norms M\n```" in text
    assert text.index("# A title") < text.index("a model on &lt;s> \\| texts") < text.index("## Found")
    assert {"- Seeds: 1 and 2", "- Corpus: made, f00", "- one note"} <= set(text.splitlines())
    assert text.endswith("- `tables/measures.parquet`, 2 rows\n")  # an empty table is no result


def test_a_finding_has_its_interval_and_n_once():
    values = (Estimate("k", 0.5, 0.25, 0.75, 5), Estimate("v", -1.0, None, None, 5))
    bare = Finding("m", "k largest", "nats", values, per="seed", title="Cost")
    assert "- Cost: k largest [k +0.500 (95\u00a0%: +0.250 to +0.750), v −1.000; n = 5, unit: seed]" in written(
        bare
    ).replace("95 %", "95\u00a0%")
    spoken = Finding("m", "k +0.500 (+0.250 to +0.750)", "nats", values)
    assert "- k +0.500 (+0.250 to +0.750) [n = 5]\n" in written(spoken)


def test_verdicts_are_sentences_and_claims_without_data_are_counted_together():
    tested = Finding("claim", "A-1 refuted: words", claim="A-1", verdict="refuted")
    others = [Finding("claim", f"{one} not tested", claim=one, verdict="not tested") for one in ("A-2", "A-3")]
    text = written(tested, *others)
    assert "\n- A-1 refuted: words\n" in text
    assert "Claims not tested here: A-2 and A-3." in text
    assert "A-2 not tested" not in text


@pytest.fixture
def result(tmp_path):
    shutil.copytree(RESULT, tmp_path / "result")
    return tmp_path / "result"


def test_report_writes_every_verdict_of_a_result_and_again_the_same(result):
    trisect.render(result)
    text = (result / "README.md").read_text(encoding="utf-8")
    claims = read_table(result / "tables", "claims").filter(pl.col("part").is_null())
    assert claims.height > 3
    assert all(f"- {claim} {verdict}: " in text for claim, verdict in claims.select("claim", "verdict").iter_rows())
    assert text.startswith(MARK)
    (result / "README.md").write_text(MARK + "stale", encoding="utf-8")
    trisect.render(result)
    assert (result / "README.md").read_text(encoding="utf-8") == text


def test_a_result_is_a_line_a_table_and_json(result):
    done = trisect.render(result)
    assert repr(done).startswith(f"<Result of trisect norms in {result}: claims [")
    assert len(repr(done).splitlines()) == 1
    measures, claims = done.to_pandas(), done.to_pandas("claims")
    assert list(measures.columns) == done.tables["measures"].columns
    assert claims["effect"].notna().sum() == done.tables["claims"]["effect"].count()
    rows = json.loads(json.dumps(done.to_dict()))["tables"]["measures"]
    assert pl.DataFrame(rows, schema=done.tables["measures"].schema).equals(done.tables["measures"])
    with pytest.raises(SpecError, match="'nothing' was asked for"):
        done.to_pandas("nothing")
    spread = done.tables["measures"].filter(measure=trisect.MeasureName.CV_A)
    assert spread.height == done.tables["measures"].filter(measure="cv_a").height > 0


def test_a_readme_by_hand_is_left_alone(result):
    for text in ("# Mine\n", ""):
        (result / "README.md").write_text(text, encoding="utf-8")
        trisect.render(result)
        assert (result / "README.md").read_text(encoding="utf-8") == text


def test_a_run_removes_the_readme_of_the_run_before_and_editing_one_damages_nothing(tmp_path):
    design = replace(tiny.EXPERIMENT, seeds=(1,), attack=None, rewind=None)

    def study():
        trisect.study(design, out=tmp_path / "study", workers=0, quiet=True)

    study()
    readme = tmp_path / "study" / "README.md"
    assert not readme.exists()
    trisect.render(tmp_path / "study")
    assert readme.read_text(encoding="utf-8").startswith(MARK)
    readme.write_text(MARK + "edited", encoding="utf-8")
    assert trisect.check(tmp_path / "study") == []
    study()
    assert not readme.exists()
    readme.write_text("# Mine\n", encoding="utf-8")
    study()
    assert readme.read_text(encoding="utf-8") == "# Mine\n"
