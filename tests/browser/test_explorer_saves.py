"""What the explorer's buttons save: drawings that stand without the page, and tables with the numbers that it shows."""

import csv
import io
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page, expect
from tests import pictures
from tests.browser.test_explorer import PIECES, both_of, bound, shown, value, visit

__all__ = ["shown", "visit"]
pytestmark = pytest.mark.browser

PARTS = {"heads": ".x-section:has(> .x-about)", "map": ".x-maps", "text": ".x-texts", "cell": ".x-cell-section"}
FINE = 1023  # steps; a page of so few tokens has more


def saved(tab: Page, part: str, end: str) -> tuple[str, bytes]:
    """The name and the bytes of what a button saves, pressed by keyboard."""
    with tab.expect_download() as download:
        tab.locator(f"{PARTS[part]} .x-save").get_by_role("button", name=f"Save {end}").press("Enter")
    return download.value.suggested_filename, Path(download.value.path()).read_bytes()


def table(tab: Page, part: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(saved(tab, part, "CSV")[1].decode(), newline="")))


def test_the_map_that_is_saved_holds_every_cell_of_the_open_head(visit, shown):
    tab = visit(place="#attn@2.h3")
    rows = table(tab, "map")
    weights, norms = both_of(shown["named"].reading, 1, 2)
    size = len(PIECES)
    assert [(int(r["query"]), int(r["key"])) for r in rows] == [
        (i + 1, j + 1) for i in range(size) for j in range(size)
    ]
    for kind, expected in (("weight", weights), ("norm", norms)):
        given = np.array([float(r[kind]) for r in rows]).reshape(size, size)
        top = 1.0 if kind == "weight" else float((norms / weights).max())  # a norm is a weight times its key's length
        assert np.abs(given - expected).max() <= bound(expected.max(), top, FINE)
    assert [r["key token"] for r in rows[:size]] == [r["query token"] for r in rows[::size]]
    assert rows[size - 1]["key token"] == "[SEP]"


def test_rows_and_dimensions_are_the_numbers_that_the_page_shows(visit):
    tab = visit(place="#attn@1.h2")
    tab.locator(".x-map[data-kind=weights]").focus()
    for key in ("Home", "PageUp", "ArrowRight", "ArrowDown", "ArrowDown"):
        tab.keyboard.press(key)
    expect(tab.locator(".x-places")).to_have_text(
        "tokens 3 and 2"
    )  # polls without eval, which the page's policy refuses
    rows = {(r["query"], r["key"]): r for r in table(tab, "text")}
    assert len(rows) == len(PIECES)
    for kind, column in (("weights", "weight"), ("norms", "norm")):
        assert float(rows["3", "2"][column]) == value(tab.locator(f".x-spot [data-kind={kind}]"))
        items = tab.locator(f".x-list[data-kind={kind}] li[data-n]:not([data-n=''])")
        listed = {str(int(item.get_attribute("data-n") or "") + 1): item for item in items.all()}
        assert {n: float(rows["3", n][column]) for n in listed} == {
            n: value(item.locator(".x-value")) for n, item in listed.items()
        }
    dimensions = table(tab, "cell")
    assert list(dimensions[0]) == ["dimension", "q", "k", "adds", "v"]
    shown_score = value(tab.locator(".x-score"))
    assert sum(float(r["adds"]) for r in dimensions) == pytest.approx(shown_score, rel=1e-5, abs=1e-6)
    shares = [r for r in table(tab, "heads") if r["site"] == "attn@1.h2"]
    for kind, row in zip(("weights", "norms"), shares, strict=True):
        cells = tab.locator(f".x-about td[data-kind={kind}]").all()
        assert [float(row[f"share: {cell.get_attribute('data-label')}"]) for cell in cells] == list(map(value, cells))


def test_every_drawing_stands_alone_and_every_table_is_whole(visit):
    tab = visit(scheme="dark")
    for part in PARTS:
        name, body = saved(tab, part, "SVG")
        assert name.endswith(".svg")
        drawing = ElementTree.fromstring(body)
        text = body.decode()
        assert "var(" not in text
        assert "class=" not in text
        assert "NaN" not in text
        links = [v for one in drawing.iter() for k, v in one.attrib.items() if k.endswith("href")]
        assert all(link.startswith("data:image/png;base64,") for link in links)
        assert bool(links) == (part in {"heads", "map"})
        panels = [one for one in drawing if one.tag.endswith("svg")]
        assert len(panels) == (1 if part == "cell" else 2)
        assert all(float(one.attrib["width"]) > 100 and len(list(one.iter())) > 12 for one in panels)
        assert saved(tab, part, "PNG")[1].startswith(b"\x89PNG")
        body = [line for line in saved(tab, part, "LaTeX")[1].decode().splitlines() if line.endswith(r"\\")]
        assert len({line.replace(r"\&", "").count("&") for line in body}) == 1
        assert len(body) == 1 + min(len(table(tab, part)), 40 if part == "map" else 10_000)
    assert pictures.NASTY in {r["query token"] for r in table(tab, "map")}


def test_a_layer_as_a_whole_and_a_causal_model_save_what_they_show(visit, shown):
    tab = visit("decoder", place="#attn@1")
    rows = table(tab, "cell")
    assert list(rows[0]) == ["head", "a", "‖a f‖"]
    assert len(rows) == shown["decoder"].reading.traces[0].weights.shape[1]
    assert all(int(r["key"]) <= int(r["query"]) for r in table(tab, "map"))
    assert saved(tab, "map", "CSV")[0] == "attn@1-map.csv"
