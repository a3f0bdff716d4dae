"""The explorer of 512 tokens × 12 layers × 12 heads: size of the page, time to the first picture, response to the pointer.

python bench/explorer.py
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from pathlib import Path

import numpy as np
from playwright.sync_api import Page, sync_playwright

from trisect.experiments.explore.page import html
from trisect.experiments.explore.picture import ExplorerPicture, Layer, Words
from trisect.report.sheet import Document, write_document

TOKENS, LAYERS, HEADS, WIDTH = 512, 12, 12, 64
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip

# When the heads are drawn, when one is open, and how long after each pointer event the screen shows it.
WATCH = """
window.seen = {};
window.waits = [];
new MutationObserver(() => {
  const [about, root] = [document.querySelector(".x-about"), document.querySelector("[data-ready]")];
  if (about?.childElementCount && !seen.picture) requestAnimationFrame(() => setTimeout(() => (seen.picture ??= performance.now())));
  if (root && !seen.ready) requestAnimationFrame(() => setTimeout(() => (seen.ready ??= performance.now())));
}).observe(document, { subtree: true, childList: true, attributes: true, attributeFilter: ["data-ready"] });
addEventListener("pointermove", (event) => {
  requestAnimationFrame(() => setTimeout(() => waits.push(performance.now() - event.timeStamp)));
}, true);
"""


def layer(number: int, rng: np.random.Generator) -> Layer:
    """Random vectors, a pull to near tokens that differs from head to head, and a few keys that all like to read."""
    q = rng.normal(size=(HEADS, TOKENS, WIDTH)).astype(np.float32)
    k = rng.normal(size=(HEADS, TOKENS, WIDTH)).astype(np.float32)
    scores = q @ k.transpose(0, 2, 1) * WIDTH**-0.5
    places = np.arange(TOKENS)
    scores -= rng.uniform(0, 0.1, (HEADS, 1, 1)) * np.abs(places[:, None] - places)
    scores += 4 * (rng.uniform(size=(HEADS, 1, TOKENS)) < 0.01)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = (weights / weights.sum(axis=-1, keepdims=True)).astype(np.float32)
    norms = rng.lognormal(0, 0.4, (HEADS, TOKENS)).astype(np.float32)
    summed = np.sqrt(((weights * norms[:, None]) ** 2).sum(axis=0))
    return Layer("plain", number, weights, q, k, norms, summed, WIDTH**-0.5, False)


def measure(page: Page, address: str) -> dict[str, float]:
    """Milliseconds of one visit."""
    page.goto(address)
    page.wait_for_selector("[data-ready]")
    page.wait_for_function("seen.ready")
    found = {f"{name} ms": page.evaluate(f"seen.{name}") for name in ("picture", "ready")}
    for name, selector in (("map", ".x-map canvas"), ("text", ".x-text[data-kind]"), ("grid", ".x-grid canvas")):
        target = page.locator(selector).first
        target.scroll_into_view_if_needed()
        box = target.bounding_box()
        assert box is not None
        page.evaluate("waits.length = 0")
        for step in range(60):
            page.mouse.move(
                box["x"] + box["width"] * (0.2 + 0.012 * step), box["y"] + box["height"] * (0.25 + 0.01 * step)
            )
            page.wait_for_timeout(20)
        waits = sorted(page.evaluate("waits"))
        found[f"{name} median ms"] = statistics.median(waits)
        found[f"{name} slowest of {len(waits)} ms"] = waits[-1]
    opening = []
    for _ in range(6):
        opening.append(
            page.evaluate("""async () => {
          const here = document.querySelector(".x-title");
          const changed = new Promise((done) => new MutationObserver(done).observe(here, { childList: true }));
          const start = performance.now();
          document.querySelector("[title='Next head']").click();
          await changed;
          await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
          return performance.now() - start;
        }""")
        )
    found["next head median ms"] = statistics.median(opening)
    return found


def visit(visits: int = 3) -> tuple[float, list[dict[str, float]]]:
    """The page's size in MB, and the milliseconds of each visit."""
    rng = np.random.default_rng(0)
    words = Words(tuple(f"w{i}" for i in range(TOKENS)), tuple(i in (0, TOKENS - 1) for i in range(TOKENS)))
    picture = ExplorerPicture("bench", [layer(n + 1, rng) for n in range(LAYERS)], words)
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), "/usr/bin/chromium")
    found = []
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = write_document(Path(folder) / "explorer.html", Document("explorer.html", html(picture)))
        size = path.stat().st_size / 1e6
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        for _ in range(visits):
            page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
            page.add_init_script(WATCH)
            found.append(measure(page, path.as_uri()))
            page.context.close()
        browser.close()
    return size, found


def rows() -> list[dict[str, object]]:
    """The row for docs/bench.md."""
    size, found = visit()
    middle = {name: statistics.median(own[name] for own in found if name in own) for name in found[0]}
    return [
        {
            "what": f"explorer page, {TOKENS} tokens, {LAYERS} layers of 12 heads: first picture in Chromium",
            "plain": "",
            "ours": f"{middle['picture ms']:.0f} ms",
            "notes": [
                f"page: {size:.1f} MB",
                *(f"{name.removesuffix(' ms')}: {value:.0f} ms" for name, value in middle.items()),
                "medians of three visits; pointer: from the event to the drawn answer, over map, text and grid",
            ],
        }
    ]


if __name__ == "__main__":
    megabytes, visits = visit()
    print(f"page {megabytes:.1f} MB")
    for own in visits:
        print({name: round(value, 1) for name, value in own.items()})
