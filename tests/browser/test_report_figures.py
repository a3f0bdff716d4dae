"""The report's figures in a browser: what pointer and keyboard read is what the tables hold, and it can be saved."""

import struct
from io import BytesIO
from pathlib import Path

import polars as pl
import pytest

from trisect.report import format as words
from trisect.report.format import by_site, interval

pytestmark = pytest.mark.browser

VERTEX = """([path, i]) => {
  const d = path.getAttribute("d").match(/-?[\\d.]+/g).map(Number);
  const at = new DOMPoint(d[2 * i], d[2 * i + 1]).matrixTransform(path.getScreenCTM());
  return [at.x, at.y];
}"""
SIGN = "[...document.querySelectorAll('#answer .main_marks > *')].map(e => getComputedStyle(e).display)"


def figure_of(tab, name):
    figure = tab.locator(f"figure#{name}")
    figure.evaluate(
        "e => { for (let d = e.closest('details'); d; d = d.parentElement.closest('details')) d.open = true }"
    )
    figure.scroll_into_view_if_needed()
    return figure


def point_at(tab, mark):
    """What the page says about a mark that the pointer is on."""
    mark.scroll_into_view_if_needed()
    box = mark.bounding_box()
    tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    return tab.locator("#tip").inner_text().split("\n")


def saved(tab, button) -> bytes:
    with tab.expect_download() as download:
        button.click()
    return Path(download.value.path()).read_bytes()


def test_a_mean_shows_its_interval_and_every_seed(opened, made):
    tab = opened()
    effects = made.rows.effects("attack", "valid", "pos")
    means = by_site(effects)
    marks = figure_of(tab, "answer").locator(".panel").first.locator(".main_marks > path")
    assert marks.count() == len(means)
    for i, (site, mean) in enumerate(means.items()):
        said = point_at(tab, marks.nth(i))
        assert said[:2] == [f"{words.number(mean.mean, True)} nats", site]
        assert f"mean of 2 seeds, 95 %: {words.number(mean.low, True)} to {words.number(mean.high, True)}" in said
        seeds = [f"seed {p.seed}: {words.number(p.value, True)}" for p in effects if p.site == site]
        assert ", ".join(seeds) in said


def test_a_curve_shows_run_seed_epoch_and_the_value_of_the_table(opened, made):
    tab = opened()
    panel = figure_of(tab, "fig04-attack-pos-valid").locator(".panel").nth(2)
    lines = panel.locator(".seeds_marks > path")
    panel.scroll_into_view_if_needed()
    seen = 0
    for i in range(lines.count()):
        x, y = tab.evaluate(VERTEX, [lines.nth(i).element_handle(), 2])
        tab.mouse.move(x, y)
        said = tab.locator("#tip").inner_text().split("\n")
        run = next((line.removeprefix("run ") for line in said if line.startswith("run ")), None)
        if run is None:
            continue  # a mean lies on the same spot
        row = made.tables["metrics"].filter(run=run, epoch=2, split="valid", name="loss_nats")
        assert said[0] == f"{words.number(row['value'].item())} nats per token"
        assert run.startswith("baseline" if said[1] == "baseline" else f"attack-pos-{said[1]}")
        assert any(line.endswith("epoch 2") and line.startswith(f"seed {run.rsplit('-', 2)[1][1:]}") for line in said)
        seen += 1
    assert seen >= 2


def test_a_cell_of_the_heat_map_shows_its_alpha(opened, made):
    tab = opened()
    panel = figure_of(tab, "fig08-rewind-heat").locator(".panel").nth(2)
    said = point_at(tab, panel.locator(".cells_marks > path").nth(30))
    values = made.rows.measure("rewind_loss_nats", "train")
    here = interval([p.value for p in values if p.site == "v@1" and p.at == 0.3])
    assert said[:2] == [f"{words.number(here.mean)} nats per token", "v@1"]
    assert "α 0.3" in said


def test_a_name_in_the_key_hides_its_marks_and_the_pointer_passes_them(opened):
    tab = opened()
    figure = figure_of(tab, "answer")
    button = figure.get_by_role("button", name="k", exact=True)
    marks = figure.locator(".panel").first.locator(".main_marks > path")
    before = point_at(tab, marks.nth(1))
    assert before[1] == "k@1"
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    hidden = tab.evaluate(SIGN).count("none")
    assert hidden == 2 * 6  # two layers, six panels
    assert not marks.nth(1).is_visible()
    button.press("Enter")
    assert button.get_attribute("aria-pressed") == "true"
    assert marks.nth(1).is_visible()
    button.press("Space")
    tab.emulate_media(media="print")
    assert marks.nth(1).is_visible()  # paper has everything


def test_panels_can_stand_for_layers_and_labels(opened, made):
    tab = opened()
    figure = figure_of(tab, "fig03-attack-pos-train")
    assert figure.locator(".panel").count() == 3
    figure.get_by_role("button", name="layer 1").click()
    figure.get_by_role("button", name="layer", exact=True).click()
    assert figure.locator(".panel").count() == 2
    assert [li.inner_text().strip() for li in figure.locator(".key li").all()] == ["q", "k", "v", "baseline"]
    x, y = tab.evaluate(
        VERTEX, [figure.locator(".panel").nth(1).locator(".main_marks > path").nth(3).element_handle(), 3]
    )
    tab.mouse.move(x, y)
    said = tab.locator("#tip").inner_text().split("\n")
    ends = [p.value for p in made.rows.last("attack", "train", "loss_nats", "pos") if p.site == "v@2"]
    assert said[:2] == [f"{words.number(sum(ends) / 2)} nats per token", "v@2"]
    figure.get_by_role("button", name="label", exact=True).click()
    assert figure.locator(".panel").count() == 6
    assert figure.get_by_text("v: values, DEP").is_visible()
    ids = tab.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))
    figure.get_by_role("button", name="component").click()
    assert figure.get_by_role("button", name="layer 1").get_attribute("aria-pressed") == "true"
    assert all(line.is_visible() for line in figure.locator(".main_marks > path").all())


def test_a_figure_is_saved_as_a_picture_of_what_is_shown(opened):
    tab = opened(scheme="dark")
    figure = figure_of(tab, "fig03-attack-pos-train")
    button = figure.get_by_role("button", name="Save PNG")
    content = saved(tab, button)
    assert content.startswith(b"\x89PNG")
    widths = [int(svg.get_attribute("width")) for svg in figure.locator(".panel > svg").all()]
    heights = [int(svg.get_attribute("height")) for svg in figure.locator(".panel > svg").all()]
    width, height = struct.unpack(">II", content[16:24])
    assert width == 2 * (sum(w + 16 for w in widths) + 16)
    assert 2 * max(heights) < height < 2 * (max(heights) + 120)
    assert len(content) > 20_000
    figure.get_by_role("button", name="baseline").click()
    assert saved(tab, button) != content


def test_the_rows_of_a_figure_are_saved_and_equal_the_table(opened, made):
    tab = opened()
    figure = figure_of(tab, "fig03-attack-pos-train")
    button = figure.get_by_role("button", name="Save CSV")
    table = pl.read_csv(BytesIO(saved(tab, button)))
    single = table.filter(pl.col("run").is_not_null()).select("run", "epoch", "value")
    runs = made.tables["runs"].filter((pl.col("edit") == "none") | (pl.col("label") == "pos"))
    wanted = made.tables["metrics"].filter(
        pl.col("run").is_in(runs["run"].implode()) & (pl.col("split") == "train") & (pl.col("name") == "loss_nats")
    )
    both = wanted.join(single, on=["run", "epoch"], how="full", suffix="_saved", coalesce=True)
    assert both["value"].null_count() == both["value_saved"].null_count() == 0
    assert both.height == wanted.height == single.height
    assert ((both["value"] - both["value_saved"]).abs() <= 1e-7 * both["value"].abs()).all()
    means = table.filter(pl.col("run").is_null())
    assert (means["seeds"] == 2).all()
    assert means.filter(pl.col("epoch") > 0)["low"].null_count() == 0  # at first all seeds are planted alike
    columns = ["measure", "unit", "site", "run", "seed", "epoch", "value", "low", "high", "seeds", "diverged"]
    assert table.columns == columns
    figure.get_by_role("button", name="label", exact=True).click()
    both_labels = pl.read_csv(BytesIO(saved(tab, button)))
    assert both_labels["run"].drop_nulls().str.contains("attack-dep-").any()


def test_every_kind_of_figure_saves_both(opened):
    tab = opened()
    for name in ("answer", "fig08-rewind-heat"):
        figure = figure_of(tab, name)
        assert len(saved(tab, figure.get_by_role("button", name="Save CSV")).splitlines()) > 20
        assert len(saved(tab, figure.get_by_role("button", name="Save PNG"))) > 5_000


def test_the_arrow_keys_read_a_panel(opened, made):
    tab = opened()
    figure = figure_of(tab, "answer")
    panel = figure.locator(".panel").first
    figure.get_by_role("button", name="baseline").focus()
    tab.keyboard.press("Tab")
    assert panel.evaluate("e => e === document.activeElement")
    tip = tab.locator("#tip")
    means = by_site(made.rows.effects("attack", "valid", "pos"))
    for key, site in (
        ("ArrowRight", "q@1"),
        ("ArrowRight", "q@2"),
        ("ArrowUp", "k@2"),
        ("Home", "k@1"),
        ("End", "k@2"),
        ("ArrowDown", "q@2"),
    ):
        tab.keyboard.press(key)
        assert tip.inner_text().split("\n")[:2] == [f"{words.number(means[site].mean, True)} nats", site]
        assert tab.locator("#voice").inner_text().startswith(f"{site}, {words.number(means[site].mean, True)} nats, ")
    tab.keyboard.press("Escape")
    assert tip.is_hidden()
    tab.keyboard.press("ArrowRight")
    assert tip.is_visible()
    tab.keyboard.press("Tab")
    assert tip.is_hidden()


def test_a_tap_on_a_phone_shows_the_number_inside_the_window(opened):
    tab = opened(360, touch=True)
    marks = figure_of(tab, "answer").locator(".panel").nth(2).locator(".main_marks > path")
    for i in (0, 5):
        marks.nth(i).scroll_into_view_if_needed()
        box = marks.nth(i).bounding_box()
        tab.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        place = tab.locator("#tip").bounding_box()
        assert place["x"] >= 0
        assert place["x"] + place["width"] <= 360
    assert tab.evaluate("document.documentElement.scrollWidth") == 360
    tab.touchscreen.tap(180, 5)
    assert tab.locator("#tip").is_hidden()


def test_a_figure_is_saved_as_a_drawing_and_as_a_table_for_latex(opened, made):
    tab = opened()
    figure = figure_of(tab, "answer")
    drawing = saved(tab, figure.get_by_role("button", name="Save SVG")).decode()
    assert drawing.startswith("<svg ")
    assert drawing.count("<svg ") > figure.locator(".panel").count()
    assert "var(--" not in drawing
    table = saved(tab, figure.get_by_role("button", name="Save LaTeX")).decode()
    means = by_site(made.rows.effects("attack", "valid", "pos"))
    value = words.number(means["q@1"].mean, True).replace("−", "-")
    assert any("q@1" in line and f"${value}$" in line and line.endswith(r"\\") for line in table.splitlines())
    assert table.count(r"\begin{tabular}") == table.count(r"\end{tabular}") == 1
    widths = {line.count("&") for line in table.splitlines() if line.endswith(r"\\")}
    assert len(widths) == 1


def test_words_of_figures_are_twelve_pixels_or_more_and_panels_fill_the_width(opened):
    for width in (1280, 360):
        tab = opened(width)
        sizes = tab.evaluate(
            """[...document.querySelectorAll('.panel svg')].flatMap(svg => [...svg.querySelectorAll('text')].map(t =>
              parseFloat(getComputedStyle(t).fontSize) * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width))"""
        )
        assert min(sizes) >= 11.99
    wide = tab.evaluate("document.querySelector('#answer .panels').getBoundingClientRect().width")
    assert wide > 300
