"""`trisect dissect` at the smallest size that has all of its parts, as tests have it; its words are those of the command line.

python bench/reliability/small_dissect.py dissect --workers 0 --out FOLDER
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import prepared  # noqa: F401  (finds the tests)
from tests.contract.test_dissect import ASKED

from trisect.cli import main
from trisect.experiments.dissect.settings import DISSECT
from trisect.lab import driver

real = driver.run


def smaller(experiment: Any, settings: Any, *rest: Any, **named: Any) -> Any:
    """What was asked, with the tests' studies and recipes in place of the presets; its own parts are run as they are."""
    if experiment is not DISSECT:
        return real(experiment, settings, *rest, **named)
    less = {"study": ASKED.study, "roles": ASKED.roles, "recall": ASKED.recall, "translation": ASKED.translation}
    return real(experiment, replace(settings, **less), *rest, **named)


if __name__ == "__main__":
    driver.run = smaller
    main()
