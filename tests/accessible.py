"""What axe-core finds, or cannot decide: every rule in light colours; in dark ones, at 360 pixels, rules that these can break."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import axe_playwright_python
from playwright.sync_api import Locator, Page

FIND = """async (only) => {
  const {violations, incomplete} = await axe.run(document, {resultTypes: ["violations", "incomplete"], ...only});
  return [...violations, ...incomplete].flatMap(({id, nodes}) =>
    nodes.map(({target, any, failureSummary}) => `${id}: ${target.join(" ")}: ${failureSummary || any[0]?.message}`));
}"""


@cache
def _axe() -> str:
    return (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")


def barriers(tab: Page, scheme: str = "light") -> list[str]:
    """Rules that are broken or not decided, and where; what is folded is opened first, and `dark` narrows the tab."""
    if scheme == "dark":
        tab.emulate_media(color_scheme="dark", media="screen")
        tab.set_viewport_size({"width": 360, "height": 900})
    tab.evaluate("document.querySelectorAll('details').forEach(one => (one.open = true))")
    tab.evaluate(f"() => {{ {_axe()} }}")
    return tab.evaluate(
        FIND, {"runOnly": ["color-contrast", "scrollable-region-focusable"]} if scheme == "dark" else {}
    )


def check_width(tab: Page, width: int) -> None:
    """The page does not scroll sideways, and what scrolls within it can be reached by keyboard."""
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    boxes = (
        "[...document.querySelectorAll('.panel, .scroll')].map(p => [p.scrollWidth > p.clientWidth + 1, p.tabIndex])"
    )
    assert all(index == 0 for scrolls, index in tab.evaluate(boxes) if scrolls)


def check_names(drawings: Locator, least: int = 40) -> None:
    """Every drawing says in words what it shows."""
    names = [drawings.nth(i).get_attribute("aria-label") for i in range(drawings.count())]
    assert all(name and len(name) > least for name in names)


def check_page(opened: Callable[..., Page], count: int | None = None) -> None:
    """Narrow and dark, wide and light, a page fits, its drawings are there and named, and nothing is a barrier."""
    for width, scheme in ((360, "dark"), (1920, "light")):
        tab = opened(width, scheme)
        check_width(tab, width)
        drawings = tab.locator("figure .panel > svg")
        assert count is None or drawings.count() == count
        check_names(drawings)
        assert barriers(tab, scheme) == []
