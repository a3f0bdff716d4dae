"""Pictures of real pages: the README's animated explorer, and the gallery. python tools/pictures.py MODEL [NAME ...]"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image
from playwright.sync_api import Page, sync_playwright

import trisect
from trisect.core.subject import Subject
from trisect.experiments.ablate import ABLATE
from trisect.experiments.align import ALIGN
from trisect.experiments.norms import NORMS
from trisect.experiments.patch import PATCH
from trisect.experiments.profile import PROFILE
from trisect.experiments.recall import RECALL
from trisect.experiments.similarity import SIMILARITY
from trisect.lab.driver import render
from trisect.lab.experiment import Experiment
from trisect.server.run import start

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
TEXT = "The nurse gave the boy his coat, because he was cold."
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
WIDTH, HEIGHT, COLOURS = 900, 600, 128
POINTER = """(() => {
  const dot = document.createElement("div");
  dot.style.cssText = "position:fixed;z-index:9;width:18px;height:18px;margin:-9px;border-radius:50%;pointer-events:none;"
    + "background:rgba(220,30,60,.8);border:2px solid #fff;box-shadow:0 0 3px #000;left:-30px;top:-30px";
  dot.id = "dot";
  document.body.append(dot);
  addEventListener("mousemove", (e) => { dot.style.left = e.clientX + "px"; dot.style.top = e.clientY + "px"; }, true);
})()"""


HIDE = "document.querySelector('#dot').style.left = '-30px'"


class Frame(NamedTuple):
    """One picture of the window, and for how many milliseconds it is shown."""

    image: Image.Image
    shown_ms: int


def chromium() -> str:
    """The browser on this machine's path."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        sys.exit(
            "No Chromium is on the PATH. Pictures are taken in a browser. Install one: 'apt-get install chromium'."
        )
    return found


@contextmanager
def opened(path: Path, width: int, height: int, place: str = "", scale: float = 1) -> Iterator[Page]:
    """A page in a window of this size."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        size = {"width": width, "height": height}
        page = browser.new_page(viewport=size, device_scale_factor=scale, reduced_motion="reduce")  # pyright: ignore[reportArgumentType]
        page.goto(path.resolve().as_uri() + place)
        yield page
        browser.close()


def story(page: Page) -> Iterator[Frame]:
    """What the animation shows: every head, one of them, what a token takes by weight and by norm, and its q and k."""

    def frame(shown_ms: int) -> Frame:
        page.wait_for_timeout(200)
        return Frame(Image.open(io.BytesIO(page.screenshot())).convert("RGB"), shown_ms)

    def scroll_to(selector: str, margin: int = 75) -> None:
        top = page.locator(selector).first.evaluate("e => e.getBoundingClientRect().top + scrollY")
        page.evaluate(f"scrollTo(0, {top - margin})")

    page.wait_for_selector("[data-ready]")
    page.evaluate(POINTER)
    ring = page.locator(".x-grid .x-chosen").first.bounding_box()
    assert ring is not None
    x, y = ring["x"] + ring["width"] / 2, ring["y"] + ring["height"] / 2
    page.evaluate("location.hash = '#attn@1.h3'")
    yield frame(1600)
    for step in (3, 2, 1, 0):
        page.mouse.move(x - 35 * step, y + 12 * step)
        yield frame(180 if step else 500)
    page.mouse.click(x, y)
    scroll_to(".x-open")
    page.evaluate(HIDE)
    yield frame(2400)
    scroll_to("h3:text('Token by token')")
    over = page.locator("canvas.x-over").first.bounding_box()
    assert over is not None
    left, top, right = over["x"], over["y"], over["x"] + over["width"]

    def at(y: float, x: float, side: str) -> str:
        """The token that the cell at a place of the window reads (q) or that is read there (k)."""
        page.mouse.move(x, y)
        page.wait_for_timeout(40)
        return page.locator(f".x-spot .x-{side}").first.inner_text()

    row = 8 + next(y for y in range(int(top) + 60, HEIGHT) if at(y, right - 60, "q") == "he")
    columns = {}
    for x in range(int(left) + 60, int(right), 3):
        columns.setdefault(at(row, x, "k"), x + 8)
    for word in ("[CLS]", "the", "nurse", "boy", "cold", "the"):
        page.mouse.move(columns[word], row)
        yield frame(700)
    page.mouse.click(columns["the"], row)
    page.evaluate(HIDE)
    scroll_to("h2:text('What makes')")
    yield frame(3000)


def animate(model: Subject) -> None:
    """docs/pictures/explorer.gif."""
    with tempfile.TemporaryDirectory() as folder:
        made = trisect.explore_page(model, TEXT, out=Path(folder) / "page.html").report
        with opened(made, WIDTH, HEIGHT, "#attn@3.h8") as page:
            frames = list(story(page))
    strip = Image.new("RGB", (WIDTH, HEIGHT * len(frames)))
    for n, one in enumerate(frames):
        strip.paste(one.image, (0, n * HEIGHT))
    palette = strip.quantize(COLOURS, method=Image.Quantize.MAXCOVERAGE, kmeans=1)
    flat = [one.image.quantize(palette=palette, dither=Image.Dither.NONE) for one in frames]
    target = PICTURES / "explorer.gif"
    times = [one.shown_ms for one in frames]
    flat[0].save(target, save_all=True, append_images=flat[1:], duration=times, loop=0, optimize=False)
    print(f"{target.relative_to(ROOT)}: {len(frames)} frames, {target.stat().st_size:,} bytes")


class Shown(NamedTuple):
    """A page of the gallery: its folder of results ('' is made from MODEL), its experiment, and which figure is its small picture."""

    name: str
    folder: str
    experiment: Experiment[Any, Any] | None = None
    figure: int = 0


GALLERY = (
    Shown("roles", "roles"),
    Shown("norms", "minilm/norms-ud", NORMS),
    Shown("similarity", "minilm/similarity-ud", SIMILARITY),
    Shown("profile", "profile/ud", PROFILE),
    Shown("ablate", "minilm/ablate-heads-ud", ABLATE),
    Shown("patch", "interchange/bindings", PATCH),
    Shown("recall", "recall/birth-places", RECALL),
    Shown("align", "alignment", ALIGN),
    Shown("theory", "", figure=2),
)
GALLERY_WIDTH, SMALL_WIDTH, TALL, ABOVE = 900, 360, 900, 330
SWITCHES = (0, 250, 1100, 900)  # of the served page: left, top, right, bottom


def page_of(one: Shown, folder: Path) -> Path:
    """The page, made again from the tables that are kept."""
    if not one.folder:
        return trisect.theory_page(out=folder / one.name, quiet=True).report
    kept = ROOT / "results" / one.folder
    if one.experiment is None:
        return kept / "report.html"
    shutil.copytree(kept, folder / one.name)
    return render(one.experiment, folder / one.name).report


def kept_small(image: Image.Image, width: int, target: Path) -> None:
    """Write a picture of this width, in few colours."""
    smaller = image.resize((width, round(image.height * width / image.width)), Image.Resampling.LANCZOS)
    smaller.quantize(COLOURS, method=Image.Quantize.MAXCOVERAGE, kmeans=1).save(target, optimize=True)
    print(f"{target.relative_to(ROOT)}: {smaller.width} x {smaller.height}, {target.stat().st_size:,} bytes")


def picture(one: Shown) -> None:
    """docs/pictures/gallery/NAME.png, what is around a figure, and docs/pictures/small/NAME.png, one figure of it."""
    for place in ("gallery", "small"):
        (PICTURES / place).mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, opened(page_of(one, Path(folder)), 1100, TALL) as page:
        page.wait_for_timeout(800)
        drawn = page.locator("main svg:visible, main canvas:visible")
        sizes = [(n, box) for n in range(drawn.count()) if (box := drawn.nth(n).bounding_box())]
        number, box = [(n, box) for n, box in sizes if box["width"] > 200 and box["height"] > 150][one.figure]
        shot = drawn.nth(number).screenshot()
        kept_small(Image.open(io.BytesIO(shot)).convert("RGB"), SMALL_WIDTH, PICTURES / "small" / f"{one.name}.png")
        page.evaluate(f"scrollTo(0, {box['y'] - ABOVE})")
        seen = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
        kept_small(seen, GALLERY_WIDTH, PICTURES / "gallery" / f"{one.name}.png")


def served(model: Subject) -> None:
    """The page that `trisect serve` shows, with the values of one head of layer 2 switched to zero."""
    page_of_serve = start(model, TEXT)
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
            page = browser.new_page(viewport={"width": 1100, "height": TALL})
            page.goto(page_of_serve.address)
            page.wait_for_selector("canvas:visible")
            page.get_by_label("Layer", exact=True).select_option(index=2)
            page.get_by_role("button", name="zero").nth(2).click()
            page.wait_for_timeout(3000)
            seen = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            browser.close()
    finally:
        page_of_serve.stop()
    kept_small(seen, GALLERY_WIDTH, PICTURES / "gallery" / "serve.png")
    kept_small(seen.crop(SWITCHES), SMALL_WIDTH, PICTURES / "small" / "serve.png")


def answer() -> None:
    """docs/pictures/answer.png: the figure with which the page on planted roles answers."""
    with opened(ROOT / "results" / "roles" / "report.html", 700, TALL, scale=2) as page:
        page.add_style_tag(
            content=".tools, .figure-title { display: none } .panel { background: none } figure { padding: 14px 0 20px }"
        )
        figure = page.locator("main figure:visible").first
        shot = Image.open(io.BytesIO(figure.screenshot())).convert("RGB")
    kept_small(shot, min(shot.width, 1400), PICTURES / "answer.png")


if __name__ == "__main__":
    wanted = sys.argv[2:]
    if not wanted or "explorer" in wanted:
        animate(trisect.load(sys.argv[1]))
    if not wanted or "answer" in wanted:
        answer()
    if not wanted or "serve" in wanted:
        served(trisect.load(sys.argv[1]))
    for each in GALLERY:
        if not wanted or each.name in wanted:
            picture(each)
