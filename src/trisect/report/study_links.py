"""Links from a page to the others of its study: one header for pages made of sections and for pages of their own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from trisect.report import template
from trisect.report.sheet import Document, Sheet

MARK = "<!-- links of the study -->"  # where a page of its own has them


@dataclass(frozen=True)
class StudyLink:
    """One entry: its title, the way to its page, and whether it is this page, or one of the same part.

    `models` are the same part's pages for other models, each with its name; an empty way is this page's.
    """

    title: str
    href: str
    here: bool = False
    models: tuple[tuple[str, str], ...] = ()


def with_links(page: Sheet | Document, links: tuple[StudyLink, ...]) -> Sheet | Document:
    """The page with the header; as it is where there are no links."""
    if not links:
        return page
    made = template.fill(Path(__file__).parent / "study_links.html", "", links=links)
    if isinstance(page, Sheet):
        return replace(page, links=made)
    return replace(page, html=page.html.replace(MARK, made, 1))
