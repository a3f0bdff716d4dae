"""A statement of an experiment that is called study.json makes no study of its folder; a ledger does, damaged or not."""

import json

import pytest
from tests import tiny

import trisect
from trisect.core.errors import StudyError
from trisect.core.files import write_json
from trisect.core.spec import plain
from trisect.lab.driver import check_page
from trisect.lab.run_folder import is_study


def test_a_page_lies_beside_a_statement(tmp_path):
    (tmp_path / "study.json").write_text(json.dumps(plain(tiny.EXPERIMENT)))
    assert not is_study(tmp_path)
    check_page(tmp_path / "page.html", "explore")
    assert trisect.plan(tmp_path / "study.json").runs


def test_no_study_is_begun_over_it(tmp_path):
    statement = tmp_path / "study.json"
    statement.write_text(json.dumps(plain(tiny.EXPERIMENT)))
    before = statement.read_bytes()
    with pytest.raises(StudyError) as error:
        trisect.study(statement, out=tmp_path, quiet=True)
    assert str(tmp_path) in error.value.problem
    assert statement.read_bytes() == before


@pytest.mark.parametrize("content", ["{", "", "null", "{}", '{"body": {}, "checksum": ""}', '{"a": {"body": 1}}'])
def test_what_may_be_a_ledger_is_one(tmp_path, content):
    (tmp_path / "study.json").write_text(content)
    assert is_study(tmp_path)
    with pytest.raises(StudyError, match=r"A study or a run lies in"):
        check_page(tmp_path / "page.html", "explore")


def test_so_is_a_ledger_and_its_copy(tmp_path):
    write_json(tmp_path / "study.json", {"runs": []})
    assert is_study(tmp_path)
    (tmp_path / "study.json").rename(tmp_path / "study.copy.json")
    assert is_study(tmp_path)
    (tmp_path / "study.json").write_text(json.dumps(plain(tiny.EXPERIMENT)))
    assert is_study(tmp_path)
