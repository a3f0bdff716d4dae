"""Small studies for tests: trained here without drawing their page, compared bit for bit, and stopped on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from polars.testing import assert_frame_equal

import trisect
from tests import tiny
from trisect.core.spec import Design
from trisect.lab.experiment import Result
from trisect.report.sheet import Sheet


@pytest.fixture(scope="module", autouse=True)
def no_page():
    """The page has tests of its own; drawing it for each study here would take most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trisect.experiments.study.page.page", lambda tables, about: Sheet("t", "k", "l", ()))
        yield


def run(out: Path, *experiments: Design) -> trisect.Study:
    """The study in the folder after those calls, by default the tiny one."""
    return [
        trisect.study(experiment, out=out, workers=0, quiet=True) for experiment in experiments or (tiny.EXPERIMENT,)
    ][-1]


def assert_same(one: Result[Any], other: Result[Any]) -> None:
    """The same tables bit for bit, wall seconds and versions aside."""
    for name in one.tables:
        tables = [study.tables[name].drop("wall_seconds", "versions", strict=False) for study in (one, other)]
        assert_frame_equal(*tables, check_exact=True)
