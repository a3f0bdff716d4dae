"""The page of a study from its tables, with all of its figures or with some."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl

from trisect.core.spec import StudyAbout
from trisect.experiments.study import figures, page
from trisect.experiments.study.rows import StudyRows
from trisect.report import sheet
from trisect.report.charts import Figure


def write(folder: Path, tables: Mapping[str, pl.DataFrame], about: StudyAbout) -> Path:
    """Write the whole page and its figures; returns the page's path."""
    rows = StudyRows.of(tables, about)
    return sheet.write_page(folder, page.make_sheet(tables, rows, figures.collect(rows)))


def html(tables: Mapping[str, pl.DataFrame], rows: StudyRows, drawn: Sequence[Figure]) -> str:
    """The page as one text, with these figures."""
    return sheet.html(page.make_sheet(tables, rows, drawn))


def foreign(text: str) -> str:
    """A page without its own script and the numbers under its figures: no other script may be in it."""
    rest = re.sub(r'<script type="application/json"[^>]*>[^<]*</script>', "", text)
    own = rest.rfind("<script>")
    return rest if own < 0 else rest[:own] + rest[rest.index("</script>", own) + len("</script>") :]
