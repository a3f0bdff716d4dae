"""The numbers and pictures of docs/one-head.md: python tools/one_head.py MODEL [--pictures]"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import trisect
from trisect.measure import norms

TEXT = "The nurse gave the boy his coat, because he was cold."
LAYER, HEAD, QUERY = 3, 8, "he"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
PICTURES = Path(__file__).parents[1] / "docs" / "pictures"


def numbers(subject: object) -> list[str]:
    """Per token: the length of its transformed vector, and what QUERY takes from it by weight and by norm."""
    reading = subject.read(TEXT)  # pyright: ignore[reportAttributeAccessIssue]
    trace = next(t for t in reading.traces if t.layer == LAYER)
    tokens, special = reading.source.tokens[0], reading.source.special[0]
    weights, sized = trace.weights[0, HEAD - 1], norms.per_head(trace)[0, HEAD - 1]
    lengths, row = norms.transformed_norms(trace)[0, HEAD - 1], tokens.index(QUERY)
    said = [f"{'token':<10}{'|f(x)|':>8}{'weight':>9}{'norm':>8}"]
    said += [
        f"{token:<10}{float(lengths[j]):8.2f}{float(weights[row, j]):9.3f}{float(sized[row, j]):8.3f}"
        for j, token in enumerate(tokens)
    ]
    for name, view in (("weight", weights), ("norm", sized)):
        said.append(f"share of special tokens by {name}: {float(view[:, special].sum() / view.sum()):.3f}")
    score = float(trace.scale * trace.q[0, HEAD - 1, row] @ trace.keys[0, HEAD - 1, 1])
    said.append(f"score of {QUERY!r} with the first {tokens[1]!r}: {score:.2f}")
    return said


def draw(subject: object) -> None:
    """Three pictures of the explorer's page: every head, the head token by token, and the dimensions of a score."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_path = trisect.explore_page(subject, TEXT, out=Path(folder) / "page.html").report
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(f"{page_path.resolve().as_uri()}#attn@{LAYER}.h{HEAD}")
        page.wait_for_selector("[data-ready]")
        page.wait_for_timeout(1000)
        for name, heading in (
            ("heads", "Every head"),
            ("text", "The text"),
            ("map", "Token by token"),
            ("dimensions", "What makes"),
        ):
            section = page.locator("section, .x-section", has=page.get_by_role("heading", name=heading)).last
            section.screenshot(path=PICTURES / f"one-head-{name}.png")
        browser.close()


if __name__ == "__main__":
    model = trisect.load(sys.argv[1])
    print("\n".join(numbers(model)))
    if "--pictures" in sys.argv[2:]:
        draw(model)
