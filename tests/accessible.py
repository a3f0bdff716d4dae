"""What axe-core finds on a page, or cannot decide: every rule in light colours, contrast alone in dark ones, where nothing else differs."""

from functools import cache
from pathlib import Path

import axe_playwright_python
from playwright.sync_api import Page

FIND = """async (only) => {
  const {violations, incomplete} = await axe.run(document, only ? {runOnly: [only]} : {});
  return [...violations, ...incomplete].flatMap(({id, nodes}) =>
    nodes.map(({target, any, failureSummary}) => `${id}: ${target.join(" ")}: ${failureSummary || any[0]?.message}`));
}"""


@cache
def _axe() -> str:
    return (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")


def barriers(tab: Page, scheme: str = "light") -> list[str]:
    """Rules that are broken or not decided, and where; what is folded is opened first."""
    tab.evaluate("document.querySelectorAll('details').forEach(one => (one.open = true))")
    tab.evaluate(f"() => {{ {_axe()} }}")
    return tab.evaluate(FIND, "color-contrast" if scheme == "dark" else None)
