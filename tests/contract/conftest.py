"""What contract tests share: pages without drawings; a Ray cluster, started by the first test that asks for it."""

import sys
from collections.abc import Iterator

import pytest
from tests.ray_cluster import TestCluster

from trisect.core.errors import is_installed


@pytest.fixture(scope="module", autouse=True)
def _undrawn(undrawn: pytest.MonkeyPatch) -> None:
    """Browser tests look at drawings, and what is marked `drawn`."""


@pytest.fixture
def pageless(monkeypatch: pytest.MonkeyPatch) -> None:
    """No page is drawn, for tests that read the tables alone."""
    monkeypatch.setattr("trisect.lab.driver.write_page", lambda folder, sheet: folder / "report.html")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestCluster]:
    """Two nodes, a and b."""
    if not is_installed("ray") or sys.platform != "linux":
        pytest.skip("needs trisect[ray], and Linux")
    found = TestCluster(tmp_path_factory.mktemp("nodes"))
    try:
        for name in ("a", "b"):
            found.add(name)
        yield found
    finally:
        found.close()


@pytest.fixture
def home(tmp_path):
    """A folder that jobs of the engines' tests write to, with what a walk begins with."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "start.txt").write_text("0.123456789")
    return tmp_path / "home"


@pytest.fixture
def marks(tmp_path):
    """A folder where jobs of the engines' tests leave signs that they ran."""
    (tmp_path / "marks").mkdir()
    return tmp_path / "marks"
