"""What contract tests share: a Ray cluster, started by the first test that asks for it."""

import sys
from collections.abc import Iterator

import pytest
from tests.ray_cluster import TestCluster

from trisect.core.extras import there


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestCluster]:
    """Two nodes, a and b."""
    if not there("ray") or sys.platform != "linux":
        pytest.skip("needs trisect[ray], and Linux")
    found = TestCluster(tmp_path_factory.mktemp("nodes"))
    try:
        for name in ("a", "b"):
            found.add(name)
        yield found
    finally:
        found.close()
