"""The report in a browser: no request, no script, no sideways scroll, readable in light and dark, by keyboard and on paper."""

from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, sync_playwright
from tests.synthetic import about, study_tables

from trisect.claims import judge
from trisect.report import figures, page
from trisect.report.rows import Rows

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM.exists(), reason="no Chromium at /usr/bin/chromium"),
]


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    shape = {"seeds": (1, 2), "epochs": 3, "layers": 2}
    tables = study_tables(**shape)
    description = about(**shape)
    description["corpus"]["name"] = "a-name-without-any-place-to-break-it-" * 6
    tables["claims"] = judge(tables, description)
    rows = Rows.of(tables, description)
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page.html(tables, rows, figures.collect(rows)), encoding="utf-8")
    return path.as_uri()


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield launched
        launched.close()


def opened(browser: Browser, address, width=1280, scheme: Literal["light", "dark"] = "light", script=True):
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, java_script_enabled=script
    )
    tab = context.new_page()
    tab.goto(address)
    return tab


def test_nothing_leaves_the_file_and_nothing_complains(browser, address):
    context = browser.new_context()
    tab = context.new_page()
    asked, said = [], []
    tab.on("request", lambda request: asked.append(request.url))
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.goto(address)
    assert [url for url in asked if not url.startswith("data:")] == [address]
    assert said == []
    context.close()


@pytest.mark.parametrize("width", [360, 768, 1280, 1920])
def test_the_page_never_scrolls_sideways(browser, address, width):
    tab = opened(browser, address, width)
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    boxes = "[...document.querySelectorAll('.panel')].map(p => [p.scrollWidth > p.clientWidth + 1, p.tabIndex])"
    assert all(index == 0 for scrolls, index in tab.evaluate(boxes) if scrolls)
    tab.context.close()


def test_every_drawing_is_there_and_named(browser, address):
    tab = opened(browser, address)
    drawings = tab.locator("figure .panel > svg")
    assert drawings.count() > 30
    sizes = tab.evaluate(
        "[...document.querySelectorAll('figure .panel > svg')].map(s => s.getBoundingClientRect().height)"
    )
    assert min(sizes) > 100
    names = [drawings.nth(i).get_attribute("aria-label") for i in range(drawings.count())]
    assert all(name and len(name) > 20 for name in names)
    tab.context.close()


def test_it_reads_without_script(browser, address):
    tab = opened(browser, address, script=False)
    assert tab.locator("article.card").count() == 14
    assert tab.get_by_text("Is attention in use at all?").is_visible()
    tab.get_by_text("The same as a table").click()
    assert tab.get_by_role("rowheader", name="q@1").is_visible()
    tab.context.close()


CONTRAST = """selector => {
  const light = c => c.map(x => x / 255).map(x => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4)
    .reduce((sum, x, i) => sum + x * [0.2126, 0.7152, 0.0722][i], 0);
  const rgb = text => text.match(/\\d+/g).slice(0, 3).map(Number);
  const behind = rgb(getComputedStyle(document.body).backgroundColor);
  return Math.min(...[...document.querySelectorAll(selector)].map(element => {
    const style = getComputedStyle(element);
    const front = rgb(element instanceof SVGElement ? style.fill : style.color);
    const [a, b] = [light(front), light(behind)].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05);
  }));
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_stand_out_from_the_paper(browser, address, scheme):
    tab = opened(browser, address, scheme=scheme)
    dark = tab.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert dark == (scheme == "dark")
    for selector in (
        "p, li, dd, figcaption",
        ".role-axis-label text",
        ".role-title-text text",
        ".role-axis-title text",
        ".panel .role-mark.mark-text text",
    ):
        assert tab.locator(selector).count() > 3
        assert tab.evaluate(CONTRAST, selector) >= 4.5  # WCAG AA for text
    tab.context.close()


def test_it_can_be_walked_by_keyboard(browser, address):
    tab = opened(browser, address)
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.className") == "skip"
    assert tab.evaluate("document.activeElement.getBoundingClientRect().x") >= 0
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.getAttribute('href')") == "#attention"
    tab.keyboard.press("Enter")
    assert tab.url.endswith("#attention")
    tab.context.close()


def test_paper_is_white_even_in_the_dark(browser, address):
    tab = opened(browser, address, scheme="dark")
    tab.emulate_media(media="print", color_scheme="dark")
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert tab.locator("nav").is_hidden()
    assert tab.pdf().startswith(b"%PDF")
    tab.context.close()
