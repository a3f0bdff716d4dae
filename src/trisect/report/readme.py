"""README.md of a folder of results: question, inputs, findings with intervals, and tables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from markupsafe import Markup

from trisect.core.files import replace_file
from trisect.core.finding import NOT_TESTED, About, Finding
from trisect.core.printable import safe
from trisect.report import format as words
from trisect.report.sheet import DEFINITIONS, Facts, Sheet

NAME = "README.md"
SPOKEN = re.compile(r"\([^()]* to [^()]*\)")  # an interval, as words have it
MARK = "<!-- Written by trisect report, which writes it again; without this line it is yours and is left alone. -->\n\n"


def write_readme(folder: Path, text: str) -> bool:
    """Write `folder/README.md` if there is none, or one that begins with MARK; returns whether it did.

    One without MARK was written or edited by hand and says more than tables do, such as comparisons across results. The file is in
    no list of a run's files, so that editing it damages nothing.
    """
    path = folder / NAME
    if path.exists() and not _is_ours(path):
        return False
    replace_file(path, lambda scratch: scratch.write_bytes((MARK + text).encode()), durable=False)
    return True


def remove_readme(folder: Path) -> None:
    """Remove a README.md of `write_readme`, which belongs to the previous run."""
    if _is_ours(folder / NAME):
        (folder / NAME).unlink()


def _is_ours(path: Path) -> bool:
    return path.is_file() and path.read_bytes().startswith(MARK.encode())


def readme(sheet: Sheet, about: About[Any], findings: Sequence[Finding], tables: Mapping[str, pl.DataFrame]) -> str:
    """The text, from the page of the results, their record, findings and tables."""
    untested = [finding.claim for finding in findings if finding.claim and finding.verdict == NOT_TESTED]
    blocks = [block for section in sheet.sections for block in section.blocks if isinstance(block, Facts)]
    facts = [*sheet.facts, *(item for block in blocks if block.items != DEFINITIONS for item in block.items)]
    lines = [
        f"# {_plain(sheet.title)}",
        *[_plain(text) for text in (sheet.lede,) if text],
        *([f"```sh\n{safe(about.command)}\n```"] if about.command else []),
        "## Found",
        "\n".join(_sentence(finding) for finding in findings if finding.verdict != NOT_TESTED) or "No finding.",
        *([f"Claims not tested here: {words.join_words(list(dict.fromkeys(untested)))}."] if untested else []),
        *(["## Notes", "\n".join(f"- {_plain(note)}" for note in about.notes)] if about.notes else []),
        "## On what",
        "\n".join(f"- {_plain(name)}: {_plain(fact)}" for name, fact in facts if name != "Command"),
        "## Tables",
        "The page is `report.html`, its figures lie in `figures/`, and what they are made from is Parquet:",
        "\n".join(
            f"- `tables/{name}.parquet`, {words.quantity(t.height, 'row')}" for name, t in tables.items() if len(t)
        ),
    ]
    return "\n\n".join(filter(None, lines)) + "\n"


def _sentence(finding: Finding) -> str:
    """A finding as a list item: its words, intervals that they omit, and the number of units."""
    counts = {value.n for value in finding.values if value.n is not None}
    sizes = words.join_words([words.count(n) for n in sorted(counts)])
    more = [f"n = {sizes}{f', unit: {finding.per}' if finding.per else ''}"] if counts else []
    if not SPOKEN.search(str(finding)) and any(value.low is not None for value in finding.values):
        more.insert(0, ", ".join(f"{v.name} {words.number_words(v, finding.signed)}" for v in finding.values))
    return f"- {_plain(str(finding))}" + (f" [{_plain('; '.join(more))}]" if more else "")


def _plain(text: str) -> str:
    """Text escaped for Markdown, in one line, without HTML tags."""
    bare = Markup(text).striptags() if isinstance(text, Markup) else text
    return safe(" ".join(bare.split())).replace("<", "&lt;").replace("|", "\\|")
