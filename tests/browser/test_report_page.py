"""The report in a browser: no request, no need of a script, no sideways scroll, readable in light and dark, by keyboard and on paper."""

import re

import polars as pl
import pytest
from tests.accessible import barriers, check_names, check_width

from trisect.report.sheet import Section, Sheet, Strip, Verdicts, html

pytestmark = pytest.mark.browser


def test_nothing_leaves_the_file_and_nothing_could(opened):
    tab = opened()  # which watches requests and complaints
    policy = tab.locator("meta[http-equiv=Content-Security-Policy]").get_attribute("content")
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy.replace("style-src 'unsafe-inline'", "")
    assert tab.evaluate("document.documentElement.className") == "alive"


def test_the_page_never_scrolls_sideways(opened):
    for tab, widths in ((opened(360), (360, 768)), (opened(1920), (1920, 1280))):
        for width in widths:
            tab.set_viewport_size({"width": width, "height": 900})
            check_width(tab, width)


def test_every_drawing_is_there_and_named(opened):
    tab = opened()
    tab.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    drawings = tab.locator("figure .panel > svg")
    assert drawings.count() > 30
    sizes = tab.evaluate(
        "[...document.querySelectorAll('figure .panel > svg')].map(s => s.getBoundingClientRect().height)"
    )
    assert min(sizes) > 100
    check_names(drawings, 20)


def test_it_reads_without_script(opened):
    tab = opened(script=False)
    assert tab.locator("article.card").count() == 15
    assert tab.get_by_text("Is attention in use at all?").is_visible()
    tab.get_by_role("heading", name="Summary figure").click()
    tab.get_by_text("The same as a table").click()
    assert tab.get_by_role("rowheader", name="q@1").first.is_visible()
    assert tab.locator("button").count() == 0
    assert tab.locator("figure .panel > svg").first.is_visible()
    assert tab.locator(".key li").first.inner_text().strip() == "q"


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
def test_words_stand_out_from_the_paper(opened, scheme):
    tab = opened(scheme=scheme)
    dark = tab.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert dark == (scheme == "dark")
    for selector in (
        "p, li, dd, figcaption",
        ".role-axis-label text",
        ".role-title-text text",
        ".role-axis-title text",
        ".panel .role-mark.mark-text text",
        ".key button, .tools button",
    ):
        assert tab.locator(selector).count() > 3
        assert tab.evaluate(CONTRAST, selector) >= 4.5  # WCAG AA for text


def test_it_can_be_walked_by_keyboard(opened):
    tab = opened()
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.className") == "skip"
    assert tab.evaluate("document.activeElement.getBoundingClientRect().x") >= 0
    assert tab.evaluate("document.activeElement.getAttribute('href')") == "#short-answer"
    tab.keyboard.press("Enter")
    tab.wait_for_url("**#short-answer")


def test_paper_is_white_even_in_the_dark(opened):
    tab = opened(scheme="dark")
    tab.emulate_media(media="print", color_scheme="dark")
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert all(tools.is_hidden() for tools in tab.locator(".tools, .hint").all())
    assert [figure.is_visible() for figure in tab.locator("figure").all()].count(True) == 1  # the others are folded
    told = "[...document.querySelectorAll('details > summary')].map((one) => getComputedStyle(one, '::after').content.length > 20)"
    assert all(tab.evaluate(told))
    assert all(sign.is_visible() for sign in tab.locator(".strip li").all())
    made = tab.pdf(format="A4")
    assert made.startswith(b"%PDF")
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", made)) <= 6


def test_many_verdicts_are_folded_and_a_link_to_one_opens_it(opened):
    tab = opened()
    cards = tab.locator("article.card")
    assert cards.count() == tab.locator("article.card > details.more:not([open])").count()
    card = cards.nth(3)
    assert not card.locator(".parts").is_visible()
    tab.locator(".strip a").nth(3).click()
    card.locator(".parts").wait_for()
    assert card.locator(".forest").first.is_visible()
    assert tab.locator("details.more[open]").count() == 1


def test_claims_that_were_not_tested_wait_together_and_a_link_opens_them(new_tab, made, tmp_path):
    ids = made.tables["claims"]["claim"].unique().sort().to_list()[:4]
    verdict = pl.when(pl.col("claim").is_in(ids)).then(pl.lit("not tested")).otherwise(pl.col("verdict"))
    claims = made.tables["claims"].with_columns(verdict=verdict)
    sheet = Sheet("Verdicts", "", "", (Section("Claims", blocks=(Strip(claims), Verdicts(claims, ""))),))
    (tmp_path / "page.html").write_text(html(sheet), encoding="utf-8")
    tab = new_tab((tmp_path / "page.html").as_uri())
    together = tab.locator("details.untested:not([open])")
    assert together.locator("summary").first.text_content() == "4 claims not tested here"
    assert sorted(together.locator("article.card .id").all_text_contents()) == ids
    tab.locator(f'.strip a[href="#{ids[1]}"]').click()
    tab.locator(f"#{ids[1]} .parts").wait_for()
    assert not tab.locator(f"#{ids[0]} .parts").is_visible()


def test_axe_finds_no_barrier(opened):
    tab = opened()
    assert barriers(tab) == []
    assert barriers(tab, "dark") == []
