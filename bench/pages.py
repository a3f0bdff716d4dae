"""Pages in Chromium: how long any is and whether all can read it, the explorer of 512 tokens × 12 × 12 heads, MiniLM served.

python bench/pages.py PAGE...     files or addresses: the table at the end of docs/bench.md
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import axe_playwright_python
import numpy as np
from paired import Row, row
from playwright.sync_api import Page, sync_playwright
from real import mini_lm

from trisect.experiments.explore.page import ExplorerPicture, Layer, Words, html
from trisect.report.sheet import Document, write_document
from trisect.server.run import start

TOKENS, LAYERS, HEADS, WIDTH = 512, 12, 12, 64
PAGE = Path(__file__).parents[1] / "docs" / "bench.md"
SHEETS = "## Pages\n"
WORDS = """() => [...document.querySelectorAll("body *:not(svg, svg *, script, style, template)")].filter((one) =>
  one.checkVisibility({ visibilityProperty: true })).flatMap((one) => [...one.childNodes].filter(({ nodeType }) => nodeType === 3))
  .reduce((count, { data }) => count + (data.match(/[\\p{L}\\p{N}]\\S*/gu) || []).length, 0)"""
AUDIT = """async () => { const found = await axe.run();
  return [found.violations, found.incomplete].map((of) => of.reduce((count, { nodes }) => count + nodes.length, 0)); }"""

# When the heads are drawn, and when one is open.
WATCH_EXPLORER = """
window.seen = {};
new MutationObserver(() => {
  const [heads, root] = [document.querySelector(".x-pairs .x-scale"), document.querySelector("[data-ready]")];
  if (heads?.childElementCount && !seen.picture) requestAnimationFrame(() => setTimeout(() => (seen.picture ??= performance.now())));
  if (root && !seen.ready) requestAnimationFrame(() => setTimeout(() => (seen.ready ??= performance.now())));
}).observe(document, { subtree: true, childList: true, attributes: true, attributeFilter: ["data-ready"] });
"""
# How long after an event its answer is on the screen: all heads and how far outputs move.
WATCH_SERVED = """
window.waits = [];
let begun = 0;
for (const kind of ["input", "click"]) addEventListener(kind, (event) => (begun = event.timeStamp), true);
new MutationObserver(() => {
  const from = begun;
  requestAnimationFrame(() => setTimeout(() => waits.push(performance.now() - from)));
}).observe(document, { subtree: true, attributes: true, attributeFilter: ["data-state"] });
"""


@contextmanager
def chromium(watch: str) -> Iterator[Callable[[], Page]]:
    """A browser; each call opens a page that is watched by this script."""
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])

        def visit() -> Page:
            page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
            page.add_init_script(watch)
            return page

        yield visit
        browser.close()


def random_layer(number: int, rng: np.random.Generator) -> Layer:
    """Random vectors, and a few keys that all like to read."""
    q = rng.normal(size=(HEADS, TOKENS, WIDTH)).astype(np.float32)
    k = rng.normal(size=(HEADS, TOKENS, WIDTH)).astype(np.float32)
    scores = q @ k.transpose(0, 2, 1) * WIDTH**-0.5 + 4 * (rng.uniform(size=(HEADS, 1, TOKENS)) < 0.01)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = (weights / weights.sum(axis=-1, keepdims=True)).astype(np.float32)
    norms = rng.lognormal(0, 0.4, (HEADS, TOKENS)).astype(np.float32)
    summed = np.sqrt(((weights * norms[:, None]) ** 2).sum(axis=0))
    return Layer("plain", number, weights, q, k, norms, summed, WIDTH**-0.5, False)


def sheet_line(page: Page, address: str) -> str:
    """Words that are not folded, pixels at 1280 and 360, sheets of paper, and with all unfolded what axe finds and cannot decide."""
    page.goto(address)
    page.wait_for_timeout(1_000)
    cells, axe = [f"{page.evaluate(WORDS):,}"], Path(axe_playwright_python.__file__).with_name("axe.min.js")
    for width in (1280, 360):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(500)  # scripts redraw the page at the new width
        height, sideways = page.evaluate(
            "(({ scrollHeight, scrollWidth }) => [scrollHeight, scrollWidth])(document.documentElement)"
        )
        cells.append(f"{height:,}" + f" ({sideways:,} wide)" * (sideways > width))
    cells.append(str(len(re.findall(rb"/Type\s*/Page\b", page.pdf(format="A4")))))
    page.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    page.evaluate(f"() => {{ {axe.read_text(encoding='utf-8')} }}")
    for scheme, width in itertools.product(("light", "dark"), (360, 1280)):
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 900})
        cells.append("/".join(map(str, page.evaluate(AUDIT))))
    name = Path(urlsplit(address).path)
    name = name.parent.name if name.stem == "report" else name.stem or "serve"
    return f"| `{name}` | {' | '.join(cells)} |"


def write_sheets(addresses: list[str]) -> None:
    """The table of these pages, in the place of the one that is there."""
    head = "| page | words | pixels at 1280 | at 360 | sheets | axe: light 360 | light 1280 | dark 360 | dark 1280 |"
    with chromium("") as visit:
        lines = [sheet_line(visit(), one if "://" in one else Path(one).absolute().as_uri()) for one in addresses]
    caption = (
        "Words that are not folded; sheets as folded; axe-core with all unfolded: broken rules / undecided ones "
        "(`python bench/pages.py PAGE...`).\n"
    )
    table = [head, "| --- " * 9 + "|", *sorted(lines)]
    PAGE.write_text(
        "\n".join([PAGE.read_text().partition(SHEETS)[0].rstrip() + "\n\n" + SHEETS, caption, *table, ""]),
        encoding="utf-8",
    )


def explorer_rows(visits: int = 3) -> list[Row]:
    """Size of the page, time to the first picture and until all is there."""
    rng, times = np.random.default_rng(0), []
    words = Words(tuple(f"w{i}" for i in range(TOKENS)), tuple(i in (0, TOKENS - 1) for i in range(TOKENS)))
    picture = ExplorerPicture("bench", [random_layer(n + 1, rng) for n in range(LAYERS)], words)
    with tempfile.TemporaryDirectory() as folder, chromium(WATCH_EXPLORER) as visit:
        path = write_document(Path(folder) / "explorer.html", Document("explorer.html", html(picture)))
        size = path.stat().st_size / 1e6
        for _ in range(visits):
            page = visit()
            page.goto(path.as_uri())
            page.wait_for_function("window.seen.ready")
            times.append(page.evaluate("seen"))
            page.context.close()
    middle = {name: statistics.median(one[name] for one in times) for name in ("picture", "ready")}
    notes = [
        f"page: {size:.1f} MB",
        *(f"{name}: {value:.0f} ms" for name, value in middle.items()),
        "medians of three visits",
    ]
    what = f"explorer page, {TOKENS} tokens, {LAYERS} layers of 12 heads: first picture in Chromium"
    return [row(what, "", f"{middle['picture']:.0f} ms", notes=notes)]


def waited(page: Page, act: Callable[[], object]) -> float:
    """Milliseconds until the answer to what `act` does is on the screen."""
    before, end = page.evaluate("() => waits.length"), time.monotonic() + 30
    act()
    while page.evaluate("() => waits.length") == before:
        assert time.monotonic() < end
        time.sleep(0.005)
    return page.evaluate("() => waits.at(-1)")


def serving_rows() -> list[Row]:
    """Every key of a sentence that is typed on, and every switch of a component of a site, until the answer is drawn."""
    served = start(mini_lm(), "The cat sat on the mat because it was tired.")
    with chromium(WATCH_SERVED) as visit:
        page = visit()
        page.goto(served.address)
        page.locator("#serve[data-ready]").wait_for()
        page.get_by_label("Text", exact=True).press("End")
        typed = " Then it went out into the rain and came back"
        keys = [waited(page, lambda key=key: page.keyboard.type(key)) for key in typed]
        switches = []
        for component in "qkv":
            group = page.get_by_role("group", name=f"Switch {component}")
            for how in ("zero", "mean", "as it is"):
                switches.append(waited(page, group.get_by_role("button", name=how, exact=True).click))
    served.stop()
    rows = []
    for name, values in {"a key typed": keys, "a switch of q, k or v": switches}.items():
        middle, most = statistics.median(values), sorted(values)[int(0.9 * len(values))]
        notes = [
            f"median {middle:.0f} ms, 90 % within {most:.0f} ms, most {max(values):.0f} ms, n = {len(values)}",
            "from the event to all heads and outputs drawn, wall time, server and Chromium on the same cores; aim 300 ms; "
            f"load average of the machine at the end: {os.getloadavg()[0]:.0f}",
        ]
        what = f"`trisect serve` with MiniLM, a sentence: {name}, until the answer is drawn"
        rows.append(row(what, "", f"{middle:.0f} ms", notes=notes))
    return rows


if __name__ == "__main__":
    write_sheets(sys.argv[1:])
