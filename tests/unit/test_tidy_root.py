"""The guard against files that tests leave in the repository."""

from tests.conftest import ROOT, left_behind, visible


def test_a_new_file_or_folder_in_the_root_is_named(tmp_path):
    (tmp_path / "there").touch()
    before = visible(tmp_path)
    assert left_behind(tmp_path, before) == []
    (tmp_path / "page.html").touch()
    (tmp_path / "study").mkdir()
    (tmp_path / ".cache").mkdir()
    assert left_behind(tmp_path, before) == ["page.html", "study"]


def test_the_root_is_the_repositorys():
    assert {"pyproject.toml", "src", "tests"} <= visible(ROOT)
