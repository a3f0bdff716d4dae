"""The pictures of docs/gallery.md, light and dark, and of docs/one-head.md: the first screen of committed results, drawn again.

python tools/gallery.py [NAME …]
"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

import trisect

ROOT = Path(__file__).parents[1]
PLACE = ROOT / "docs" / "pictures" / "gallery"
RESULTS = {"norms": "minilm/norms-ud", "profile": "profile/ud", "ablate": "minilm/ablate-heads-ud"}
RESULTS |= {"patch": "interchange/bindings", "lookup": "lookup", "roles": "roles"}
SECTIONS = {"heads": "Every head", "text": "The text", "map": "Token by token", "dimensions": "What makes"}
WIDTH, HEIGHT, SHOWN = 1280, 860, 900  # pixels of the screen, and how wide the picture is kept


def page_of(name: str, folder: Path) -> Path:
    """The page of a name: the committed explorer, theory made now, or a result drawn again from its tables."""
    if name == "explore":
        return ROOT / "results" / "minilm" / "explore.html"
    if name == "theory":
        return trisect.theory_page(out=folder / name, samples=2_000, quiet=True).report
    shutil.copytree(ROOT / "results" / RESULTS[name], folder / name)
    return trisect.render(folder / name).report


def keep_sections(page: Page, address: str) -> None:
    """Every head, one head token by token, and the dimensions of a score, each as a picture."""
    page.goto(address)
    page.wait_for_timeout(1500)
    for name, heading in SECTIONS.items():
        section = page.locator("section, .x-section", has=page.get_by_role("heading", name=heading)).last
        section.screenshot(path=PLACE.parent / f"one-head-{name}.png")


def main(names: list[str]) -> None:
    """Draw the pages named, or all, and write NAME-light.webp and NAME-dark.webp."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu"]
        )
        for name in names or ["explore", "theory", *RESULTS]:
            address = page_of(name, Path(folder)).resolve().as_uri()
            for scheme in ("light", "dark"):
                page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=scheme)
                page.goto(address)
                page.wait_for_timeout(1500)
                picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
                small = picture.resize((SHOWN, SHOWN * HEIGHT // WIDTH), Image.Resampling.LANCZOS)
                small.save(PLACE / f"{name}-{scheme}.webp", quality=70, method=6)
                if name == "explore" and scheme == "light":
                    keep_sections(page, f"{address}#attn@3.h8")
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])
