"""The explorer in a browser: opened, clicked, hovered and typed at, it shows, and saves, the numbers that the arrays hold."""

import csv
import io
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from playwright.sync_api import Page, expect
from tests import pictures
from tests.accessible import barriers

from trisect.core.trace import Address, Reading
from trisect.experiments.explore import page
from trisect.experiments.explore.run import explore, take_picture
from trisect.measure.norms import contributions, head_norms, summed_norms
from trisect.report import render
from trisect.report.sheet import Document, write_document

pytestmark = pytest.mark.browser

PIECES = ("[CLS]", "the", "cat", "##alogue", "of", pictures.NASTY, "<b>", "tired", "cats", ".", "[SEP]")


def named() -> Reading:
    """A bidirectional model over words that a test can search for, some of them nasty."""
    reading = pictures.encoder(len(PIECES), padding=2)
    return replace(reading, source=pictures.side(len(PIECES), padding=2, pieces=PIECES), model=pictures.NASTY)


def many() -> Reading:
    """48 layers of 64 heads, two of which share a key."""
    text = pictures.side(6)
    layers = tuple(pictures.trace(Address("plain", n), text, text, (64, 32), 2, causal=True) for n in range(1, 49))
    return Reading("tiny/many", layers, text)


READINGS: dict[str, Callable[[], Reading]] = {
    "named": named,
    "decoder": pictures.decoder,
    "translator": pictures.translator,
    "many": many,
    "one": lambda: pictures.encoder(1),
    "long": lambda: pictures.encoder(300, layers=1, heads=2),
    "says": pictures.decoder,
    "trimmed": pictures.encoder,
}


def logits() -> page.TokenLogits:
    """What 2 layers of 4 heads say at the last 10 of 12 tokens: words r…, l… and p… with their layer, position, head and place."""
    tokens, numbers, values = list[str](), dict[str, np.ndarray](), dict[str, np.ndarray]()
    for kind, shape in (("heads", (2, 10, 4, 4)), ("lens", (3, 10, 2))):
        numbers[kind] = np.arange(len(tokens), len(tokens) + int(np.prod(shape))).reshape(shape)
        tokens += [f"{kind}{'-'.join(map(str, place))}" for place in np.ndindex(shape)]
        values[kind] = np.linspace(-1, 1, numbers[kind].size).reshape(shape)
    shares = np.abs(values["lens"])
    return page.TokenLogits(tuple(tokens), 2, list(numbers["heads"]), list(values["heads"]), numbers["lens"], shares)


class Shown(NamedTuple):
    """A reading, and the address of its page."""

    reading: Reading
    address: str


@pytest.fixture(scope="session")
def shown(tmp_path_factory) -> dict[str, Shown]:
    """Every reading as a page; `long` is packed in 255 steps and 8 bits, as texts of hundreds of tokens are."""
    folder, found = tmp_path_factory.mktemp("explorer"), {}
    for name, make in READINGS.items():
        reading = make()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(page, "MAX_FINE_NUMBERS", 0 if name == "long" else page.MAX_FINE_NUMBERS)
            if name == "trimmed":  # as the longest texts are packed
                patch.setattr(page, "MAX_DENSE_WEIGHTS", 0)
                patch.setattr(page, "STORED_WEIGHTS", 300)
            picture = replace(take_picture(reading), logits=logits() if name == "says" else None)
            path = write_document(folder / f"{name}.html", Document(name, page.html(picture)))
        found[name] = Shown(reading, path.as_uri())
    return found


@pytest.fixture
def visit(new_tab, shown) -> Callable[..., Page]:
    def visit_(name="named", width=1280, scheme="light", touch=False, place="", script=True) -> Page:
        tab = new_tab(shown[name].address + place, width, scheme, script, touch)
        if script:
            tab.wait_for_selector("[data-ready]")
        return tab

    return visit_


def maps_of(reading, n, head):
    """What the page should show of one head (from 0; −1 is the layer): by weight and by norm, real positions only."""
    trace = reading.traces[n]
    real = np.ix_(trace.query_real[0].numpy(), trace.key_real[0].numpy())
    if head < 0:
        weights = trace.weights[0].mean(0).numpy()[real]
        return weights, None if trace.w_o is None else summed_norms(trace)[0].numpy()[real]
    weights = trace.weights[0, head].numpy()[real]
    return weights, None if trace.w_o is None else head_norms(trace)[0, head].numpy()[real]


def both_of(reading, n, head) -> tuple[np.ndarray, np.ndarray]:
    weights, norms = maps_of(reading, n, head)
    assert norms is not None
    return weights, norms


def bound(values, top, levels):
    return float((np.sqrt(values * top) + top / (4 * levels)) / levels + 1e-5)


def value(locator) -> float:
    return float(locator.get_attribute("data-value"))


def gutter_of(canvas):
    """The pixels left of a map's cells and above them, where its labels stand."""
    return canvas.evaluate("c => c.closest('.x-map').dataset.gutter.split(' ').map(Number)")


def cell_of(tab, i, j, size, kind="weights"):
    """Where cell (i, j) of a map that is shown whole lies in the window."""
    canvas = tab.locator(f".x-map[data-kind={kind}] canvas").first
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    left, top = gutter_of(canvas)
    width, height = box["width"] - left - 1, box["height"] - top - 1
    return box["x"] + left + (j + 0.5) * width / size[1], box["y"] + top + (i + 0.5) * height / size[0]


def settle(tab):
    tab.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def hover(tab, i, j, size, kind="weights"):
    tab.mouse.move(*cell_of(tab, i, j, size, kind))
    settle(tab)


PIXEL = """(canvas, [x, y]) => {
  const pen = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  pen.drawImage(canvas, -x, -y);
  return [...pen.getImageData(0, 0, 1, 1).data];
}"""


def heading(tab, name):
    tab.get_by_role("heading", name=name, exact=True).wait_for()


def spot(tab, kind="weights"):
    return tab.locator(f".x-spot [data-kind={kind}]")


def tile(tab, row, head, kind="weights"):
    """Where a head's tile lies in the window, by the grid's own ring around it."""
    frame = tab.locator(f".x-grid[data-kind={kind}]")
    frame.focus()
    tab.keyboard.press("Home")
    for _ in range(12):
        tab.keyboard.press("ArrowUp")
    for _ in range(row):
        tab.keyboard.press("ArrowDown")
    for _ in range(head):
        tab.keyboard.press("ArrowRight")
    box = frame.locator(".x-ring").first.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


@pytest.mark.parametrize(("row", "head"), [(1, 2), (0, 3)])
def test_a_click_opens_a_head_and_hovering_reads_its_cells(visit, shown, row, head):
    tab, reading = visit(), shown["named"].reading
    tab.mouse.click(*tile(tab, row, head))
    name = "all heads" if head == 3 else f"head {head + 1}"
    heading(tab, f"Layer {row + 1}, {name}")
    assert tab.url.endswith(f"#attn@{row + 1}" + ("" if head == 3 else f".h{head + 1}"))
    weights, norms = both_of(reading, row, -1 if head == 3 else head)
    for i, j, kind in ((0, 0, "weights"), (7, 2, "norms"), (10, 10, "weights"), (3, 9, "norms")):
        hover(tab, i, j, weights.shape, kind)
        assert value(spot(tab)) == pytest.approx(weights[i, j], abs=bound(weights[i, j], 1, 65535))
        assert value(spot(tab, "norms")) == pytest.approx(norms[i, j], rel=2e-3, abs=1e-3)
        said = tab.locator(".x-spot").inner_text()
        first, second = (PIECES[n].removeprefix("##") for n in (i, j))
        assert f"{first} takes from" in said
        assert second in said
        shown_number = float(spot(tab).inner_text().split(" ")[0].replace("−", "-"))
        assert shown_number == pytest.approx(weights[i, j], rel=6e-3)  # three digits


def test_the_colours_of_a_map_are_those_of_its_values(visit, shown):
    tab = visit(place="#attn@2.h1")
    for kind, values in zip(("weights", "norms"), both_of(shown["named"].reading, 1, 0), strict=True):
        canvas = tab.locator(f".x-map[data-kind={kind}] canvas").first
        size = canvas.evaluate("c => [c.width, c.height]")
        for i, j in ((0, 0), (4, 7), (10, 2), (9, 9)):
            left, top = gutter_of(canvas)
            x = left + (j + 0.5) * (size[0] - left - 1) / len(values)
            y = top + (i + 0.5) * (size[1] - top - 1) / len(values)
            got = canvas.evaluate(PIXEL, [int(x), int(y)])
            wanted = render.ramp(float(np.sqrt(values[i, j] / values.max())))
            exact = [int(wanted[at : at + 2], 16) for at in (1, 3, 5)]
            assert np.abs(np.array(got[:3]) - exact).max() <= 3  # 256 colours
            assert got[3] == 255


@pytest.mark.parametrize("kind", ["weights", "norms"])
def test_a_tile_has_the_colours_of_its_head_on_one_scale_and_on_its_own(visit, shown, kind):
    tab, reading = visit(), shown["named"].reading
    x, y = tile(tab, 1, 1, kind)
    every = [both_of(reading, n, h)[kind == "norms"] for n in (0, 1) for h in range(3)]
    values = every[4]
    canvas = tab.locator(f".x-grid[data-kind={kind}] canvas")
    box = canvas.bounding_box()
    at = np.unravel_index(values.argmax(), values.shape)
    side = 94  # 96 less the gap, the largest tile
    place = [x - box["x"] + side * ((at[1] + 0.5) / 11 - 0.5), y - box["y"] + side * ((at[0] + 0.5) / 11 - 0.5)]
    for button, top in (("One scale", max(v.max() for v in every)), ("Own scales", values.max())):
        tab.get_by_role("button", name=button).click()
        wanted = render.ramp(float(np.sqrt(values.max() / top)))
        exact = [int(wanted[at : at + 2], 16) for at in (1, 3, 5)]
        assert np.abs(np.array(canvas.evaluate(PIXEL, [int(v) for v in place])[:3]) - exact).max() <= 6


def test_hovering_a_token_shows_where_it_takes_from(visit, shown):
    tab = visit(place="#attn@1.h2")
    weights, norms = both_of(shown["named"].reading, 0, 1)
    names = [p.removeprefix("##") for p in PIECES]
    for kind, values in (("weights", weights), ("norms", norms)):
        block = tab.locator(f".x-text[data-kind={kind}]")
        block.locator("[data-n='7']").hover()
        heading(tab, f"tired takes from, by {kind[:-1]}")
        best = np.argsort(-values[7])[:8]
        items = tab.locator(f".x-list[data-kind={kind}] li")
        assert [items.nth(n).locator(".x-word").inner_text() for n in range(8)] == [names[n] for n in best]
        got = [value(items.nth(n).locator(".x-value")) for n in range(8)]
        assert got == pytest.approx(values[7][best], rel=2e-3, abs=1e-4)
        alpha = "e => Number(getComputedStyle(e).backgroundColor.match(/[\\d.]+/g)[3] ?? 1)"
        shades = [block.locator(f"[data-n='{n}']").evaluate(alpha) for n in range(11)]
        steps = np.round(24 * np.sqrt(values[7] / values[7].max()))
        assert shades == pytest.approx(0.7 * steps / 24, abs=0.04)
        assert "x-query" in (block.locator("[data-n='7']").get_attribute("class") or "")


@pytest.mark.parametrize(("place", "head", "width"), [("#attn@2.h2", 1, 1280), ("#attn@2", None, 360)])
def test_contributions_stand_beside_weights_when_asked_for(visit, shown, place, head, width):
    tab = visit(place=place, width=width)
    heads, layer = contributions(shown["named"].reading.traces[1])
    wanted = (layer[0] if head is None else heads[0, head])[: len(PIECES), : len(PIECES)].numpy()
    tab.get_by_role("button", name="contribution", exact=True).press("Enter")
    assert tab.get_by_text("below 0, in orange").is_visible()
    rows = saved_table(tab, "map")
    got = np.array([float(r["contribution"]) for r in rows]).reshape(wanted.shape)
    assert np.abs(got - wanted).max() <= 0.01 * np.abs(wanted).max()
    i, j = map(int, np.unravel_index(wanted.argmin(), wanted.shape))
    assert wanted[i, j] < 0
    tab.mouse.click(*cell_of(tab, i, j, wanted.shape, "contributions"))
    settle(tab)
    assert value(spot(tab, "contributions")) == got[i, j]
    if width == 1280:
        box = tab.locator(".x-map[data-kind=contributions] canvas").first
        size = box.evaluate("c => c.width"), box.evaluate("c => c.height")
        left, top = gutter_of(box)
        tab.mouse.move(2, 2)
        for kind, at in (("below", got.argmin()), ("above", got.argmax())):
            row, column = map(int, np.unravel_index(at, got.shape))
            x, y = left + (column + 0.5) * (size[0] - left - 1) / 11, top + (row + 0.5) * (size[1] - top - 1) / 11
            red, _, blue, _ = box.evaluate(PIXEL, [int(x), int(y)])
            assert (red > blue) == (kind == "below")
    items = tab.locator(".x-list[data-kind=contributions] li")
    listed = [value(items.nth(n).locator(".x-value")) for n in range(8)]
    assert listed == pytest.approx(got[i][np.argsort(-np.abs(got[i]))[:8]])
    assert saved(tab, "text", "SVG")[1]
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert barriers(tab, "light") == []
    tab.get_by_role("button", name="norm", exact=True).click()
    assert value(spot(tab, "norms")) > 0


@pytest.mark.parametrize("head", [1, None])
def test_of_the_longest_texts_the_largest_weights_are_shown(visit, shown, head):
    tab = visit("trimmed", place=f"#attn@1{'' if head is None else '.h2'}")
    values = shown["trimmed"].reading.traces[0].weights[0].numpy()
    rows = saved_table(tab, "map")
    third = np.sort(values, axis=-1)[..., -3:-2]  # 300 weights for 12 queries of (3 + 1) maps in each of 2 layers
    kept = np.where(values >= third, values, 0)
    wanted = kept.mean(0) if head is None else kept[head]
    got = np.zeros(wanted.shape)  # what is not stored is not saved
    got[tuple(np.array([(int(row["query"]) - 1, int(row["key"]) - 1) for row in rows]).T)] = [
        float(row["weight"]) for row in rows
    ]
    assert 0 < len(rows) == np.count_nonzero(got) < got.size
    assert np.abs(got - wanted).max() <= bound(wanted.max(), 1, 255)
    true = values.mean(0) if head is None else values[head]
    partial = np.argwhere((got > 0) & ((kept > 0).sum(0) < len(kept)))  # cells that some heads do not store
    for i, j in (np.argwhere(got == 0)[0].tolist(), partial[np.argmax((true - got)[tuple(partial.T)])].tolist()):
        tab.mouse.click(*cell_of(tab, i, j, wanted.shape))
        settle(tab)
        error = float(spot(tab).inner_text().split(" ± ")[1].replace("−", "-"))
        assert abs(value(spot(tab)) - got[i, j]) < 1e-5
        assert 0 < abs(true[i, j] - got[i, j]) <= error * 1.01
    if head is None:
        tab.locator(".x-cell").focus()
        tab.keyboard.press("Home")
        i, j = 1, int(kept[0, 1].argmax())
        tab.mouse.click(*cell_of(tab, i, j, wanted.shape))
        settle(tab)
        assert value(tab.locator(".x-cell-said b[data-row=a]")) == pytest.approx(kept[0, i, j], abs=bound(1, 1, 255))
    else:
        assert tab.locator(".x-cell-lede", has_text="q, k and v are left out").is_visible()
        assert not tab.locator(".x-cell").is_visible()
        assert not tab.locator(".x-cell-section .x-save").is_visible()
        tab.get_by_role("button", name="contribution", exact=True).click()
        assert tab.get_by_text("no contributions for this layer: the text is too long").is_visible()
    assert barriers(tab, "light") == []


def test_the_other_way_round_it_shows_who_takes_from_a_token(visit, shown):
    tab = visit(place="#attn@1.h2")
    weights, _ = maps_of(shown["named"].reading, 0, 1)
    tab.get_by_role("button", name="gives to").click()
    tab.locator(".x-text[data-kind=weights] [data-n='2']").click()
    heading(tab, "Who takes from cat, by weight")
    best = np.argsort(-weights[:, 2])
    items = tab.locator(".x-list[data-kind=weights] li")
    assert value(items.first.locator(".x-value")) == pytest.approx(weights[best[0], 2], rel=2e-3)
    items.nth(2).click()
    settle(tab)
    assert value(spot(tab)) == pytest.approx(weights[best[2], 2], rel=2e-3)


@pytest.mark.parametrize("width", [360, 700, 1280, 1920])
def test_a_long_token_moves_nothing_under_the_pointer(visit, width):
    tab = visit(width=width, place="#attn@1.h2")
    block = tab.locator(".x-text[data-kind=norms]")
    places = []
    for n in (5, 2, 5, 0):
        block.locator(f"[data-n='{n}']").hover()
        settle(tab)
        heights = "() => [...document.querySelectorAll('.x-text, .x-map, .x-cell')].map(e => e.getBoundingClientRect().top + scrollY)"
        places.append([*tab.evaluate(heights), tab.evaluate("document.documentElement.scrollHeight")])
    assert all(place == places[0] for place in places)
    block.locator("[data-n='5']").hover()
    settle(tab)
    whole = tab.locator(".x-pair b, .x-half > h3").evaluate_all(
        "(all) => all.map((one) => [one.title, one.textContent])"
    )
    assert all(title.startswith(text) for title, text in whole)
    assert any(pictures.NASTY in title for title, _ in whole)


def test_leaving_goes_back_to_the_cell_that_was_clicked(visit, shown):
    tab = visit(place="#attn@1.h1")
    weights, _ = maps_of(shown["named"].reading, 0, 0)
    tab.mouse.click(*cell_of(tab, 2, 5, weights.shape))
    hover(tab, 8, 8, weights.shape)
    assert value(spot(tab)) == pytest.approx(weights[8, 8], rel=2e-3, abs=1e-5)
    tab.mouse.move(5, 5)
    settle(tab)
    assert value(spot(tab)) == pytest.approx(weights[2, 5], rel=2e-3, abs=1e-5)


@pytest.mark.parametrize(("name", "n", "head"), [("named", 1, 2), ("decoder", 0, 3), ("long", 0, 1)])
def test_the_dimensions_behind_a_cell(visit, shown, name, n, head):
    tab = visit(name, place=f"#attn@{n + 1}.h{head + 1}")
    trace = shown[name].reading.traces[n]
    size = tuple(int(real.sum()) for real in (trace.query_real, trace.key_real))
    i, j = (size[0] - 2, 1)
    tab.mouse.click(*cell_of(tab, i, j, size))
    tab.mouse.move(2, 2)
    shared = head // (trace.q.shape[1] // trace.k.shape[1])
    q, k, v = trace.q[0, head, i], trace.k[0, shared, j], trace.v[0, shared, j]
    score = float((q * k).sum() * (trace.scale or 1))
    loose = 0.3 if name == "long" else 2e-3  # 8 bits: half a step of 8 dimensions of up to ±6, at their worst
    assert value(tab.locator(".x-score")) == pytest.approx(score, abs=loose)
    lane = tab.locator(".x-cell canvas")
    lane.scroll_into_view_if_needed()
    box = lane.bounding_box()
    steps = {
        "q": trace.q[0, head].abs().amax(0),
        "k": trace.k[0].abs().amax((0, 1)),
        "v": trace.v[0].abs().amax((0, 1)),
    }
    for e in (0, 3, 7):
        tab.mouse.move(box["x"] + 50 + (e + 0.5) * (box["width"] - 54) / 8, box["y"] + 60)
        for row, true in (("q", q[e]), ("k", k[e]), ("v", v[e])):
            error = float(steps[row][e]) / (127 if name == "long" else 32767) / 2 + 1e-5
            assert value(tab.locator(f".x-cell-said [data-row='{row}']")) == pytest.approx(float(true), abs=error)
    tab.get_by_role("button", name="by size").click()
    tab.mouse.move(box["x"] + 50 + 0.5 * (box["width"] - 54) / 8, box["y"] + 60)
    adds = (q * k * (trace.scale or 1)).abs()
    assert value(tab.locator(".x-cell-said [data-row=adds]")) == pytest.approx(
        float((q * k)[adds.argmax()] * (trace.scale or 1)), abs=loose / 4
    )


def test_a_head_under_the_pointer_is_a_preview(visit):
    tab = visit(place="#attn@1.h1")
    mark = tab.locator(".x-about .x-preview")
    assert mark.count() == 0
    tab.mouse.move(*tile(tab, 0, 1))
    mark.wait_for()
    assert tab.locator(".x-about b").first.inner_text() == "Layer 1, head 2"
    tab.mouse.move(*tile(tab, 0, 0))
    mark.wait_for(state="detached")


def test_what_else_enters_the_scores_is_said(visit):
    assert "The softmax over the row" in visit("decoder", place="#attn@1.h1").locator(".x-cell-lede").inner_text()
    assert "adds more to it" in visit("decoder", place="#attn@2.h1").locator(".x-cell-lede").inner_text()


def test_a_long_text_is_read_within_its_steps(visit, shown):
    tab = visit("long", place="#attn@1.h1")
    weights, norms = both_of(shown["long"].reading, 0, 0)
    for i, j in ((0, 0), (150, 37), (299, 298), (12, 250)):
        hover(tab, i, j, weights.shape)
        assert f"tokens {i + 1} and {j + 1}" in tab.locator(".x-spot").inner_text()
        f = float(norms[i, j] / weights[i, j])
        assert value(spot(tab)) == pytest.approx(weights[i, j], abs=bound(weights[i, j], 1, 255))
        assert value(spot(tab, "norms")) == pytest.approx(norms[i, j], abs=f * bound(weights[i, j], 1, 255) + 1e-5)
    hover(tab, 20, 20, weights.shape)
    if weights[20, 20] < 0.01:
        assert "±" in spot(tab).inner_text()


def test_a_layer_as_a_whole_shows_its_heads_and_opens_them(visit, shown):
    tab = visit(place="#attn@2")
    trace = shown["named"].reading.traces[1]
    tab.mouse.click(*cell_of(tab, 4, 6, (11, 11)))
    tab.mouse.move(2, 2)
    assert "mean of a" in tab.locator(".x-maps h3 i").first.inner_text()
    lane = tab.locator(".x-cell canvas")
    lane.scroll_into_view_if_needed()
    box = lane.bounding_box()
    for h in range(3):
        x = box["x"] + 50 + (h + 0.5) * (box["width"] - 54) / 3
        tab.mouse.move(x, box["y"] + 60)
        said = tab.locator(".x-cell-said b")
        assert value(said.nth(0)) == pytest.approx(float(trace.weights[0, h, 4, 6]), rel=2e-3, abs=1e-5)
        assert value(said.nth(1)) == pytest.approx(float(head_norms(trace)[0, h, 4, 6]), rel=2e-3, abs=1e-4)
    tab.mouse.click(box["x"] + 50 + 2.5 * (box["width"] - 54) / 3, box["y"] + 60)
    heading(tab, "Layer 2, head 3")


def test_encoder_decoder_and_cross_attention(visit, shown):
    tab, reading = visit("translator"), shown["translator"].reading
    weights = np.zeros((0, 0))
    for n, (button, size) in enumerate((("Encoder", (9, 9)), ("Decoder", (6, 6)), ("Cross", (6, 9)))):
        tab.get_by_role("button", name=button, exact=True).click()
        tab.mouse.click(*tile(tab, 0, 1))
        heading(tab, f"{button} layer 1, head 2")
        weights, norms = both_of(reading, n, 1)
        hover(tab, 4, 2, size)
        assert value(spot(tab)) == pytest.approx(weights[4, 2], rel=2e-3, abs=1e-5)
        assert value(spot(tab, "norms")) == pytest.approx(norms[4, 2], rel=2e-3, abs=1e-4)
    readers = tab.locator(".x-readers .x-token")
    assert [readers.nth(n).inner_text() for n in range(6)] == [f"t{n}" for n in range(6)]
    readers.nth(3).click()
    heading(tab, "t3 takes from, by weight")
    best = int(weights[3].argmax())
    assert tab.locator(".x-list[data-kind=weights] li .x-word").first.inner_text() == f"w{best}"
    tab.get_by_role("button", name="Encoder", exact=True).click()
    tab.get_by_role("heading", name="Encoder layer 1", exact=False).first.wait_for()
    assert readers.first.is_hidden()


def test_a_layer_without_norms_says_why(visit, shown):
    tab = visit("decoder", place="#attn@2.h1")
    assert tab.get_by_text("There are no norms for this layer: a gate multiplies the output.").is_visible()
    assert tab.locator(".x-map[data-kind=norms]").is_hidden()
    weights, _ = maps_of(shown["decoder"].reading, 1, 0)
    hover(tab, 9, 4, weights.shape)
    assert value(spot(tab)) == pytest.approx(weights[9, 4], rel=2e-3, abs=1e-5)
    assert "norm –" in tab.locator(".x-spot").inner_text().replace("\n", " ")


def test_the_future_of_a_causal_model_is_blank(visit):
    tab = visit("decoder", place="#attn@1.h1")
    canvas = tab.locator(".x-map canvas").first
    left, top = gutter_of(canvas)
    cell = (canvas.evaluate("c => c.width") - left - 1) / 12
    assert canvas.evaluate(PIXEL, [int(left + 8.5 * cell), int(top + 3.5 * cell)])[3] == 0
    assert canvas.evaluate(PIXEL, [int(left + 3.5 * cell), int(top + 8.5 * cell)])[3] == 255


def test_what_a_head_says_and_what_would_be_predicted(visit):
    tab = visit("says", width=360, place="#attn@2.h3")
    text = tab.locator(".x-text[data-kind=weights]")
    text.focus()
    tab.keyboard.press("End")  # token 12, the last of the 10
    settle(tab)
    head, lens = (tab.locator(f".x-says [data-part={part}]") for part in ("head", "lens"))
    expect(head.locator("tbody b")).to_have_text([f"heads1-9-2-{n}" for n in (0, 2, 1, 3)])
    expect(lens.locator("tbody b")).to_have_text([f"lens{n}-9-{m}" for n in range(3) for m in range(2)])
    expect(lens.locator(".x-now")).to_have_text("2")
    shown = logits()
    assert value(head.locator("[data-value]").first) == pytest.approx(float(shown.logits[1][9, 2, 0]), rel=1e-3)
    assert value(lens.locator("[data-value]").last) == pytest.approx(float(shown.shares[2, 9, 1]), rel=1e-3)
    tab.keyboard.press("[")
    expect(head.locator("tbody b").first).to_have_text("heads1-9-1-0")
    assert tab.evaluate("document.documentElement.scrollWidth") <= 360
    assert barriers(tab, "light") == []
    text.focus()
    tab.keyboard.press("Home")
    expect(head).to_have_text("Shown from token 3 on.")
    assert visit("decoder").locator(".x-says").count() == 0


def test_a_search_runs_over_the_pieces_of_a_word(visit):
    tab = visit()
    field, count = tab.get_by_role("searchbox"), tab.locator(".x-count")
    tab.keyboard.press("/")
    assert field.evaluate("e => e === document.activeElement")
    field.fill("CATA")
    hit = ".x-text[data-kind=weights] .x-hit"
    assert [t.inner_text() for t in tab.locator(hit).all()] == ["cat", "alogue"]
    field.fill("cat")
    assert count.inner_text() == "2 found"
    assert [t.inner_text() for t in tab.locator(hit).all()] == ["cat", "cats"]
    for key, place in (("Enter", 0), ("Enter", 1), ("Enter", 0), ("Shift+Enter", 1)):
        field.press(key)
        assert count.inner_text() == f"{place + 1} of 2"
        settle(tab)
        assert tab.locator(".x-spot .x-q").inner_text() == ("cat", "cats")[place]
    field.fill("zebra")
    assert count.inner_text() == "0 found"
    field.press("Escape")
    assert count.inner_text() == ""
    assert tab.locator(hit).count() == 0


def test_all_of_it_by_keyboard(visit, shown):
    tab, reading = visit(place="#attn@1.h1"), shown["named"].reading
    tile(tab, 1, 1)
    assert tab.locator(".x-unseen[role=status]").inner_text() == "Layer 2, head 2"
    tab.keyboard.press("Enter")
    heading(tab, "Layer 2, head 2")
    tab.keyboard.press("]")
    heading(tab, "Layer 2, head 3")
    tab.keyboard.press("]")
    heading(tab, "Layer 1, head 1")
    tab.keyboard.press("[")
    heading(tab, "Layer 2, head 3")
    weights, norms = both_of(reading, 1, 2)
    tab.locator(".x-map[data-kind=norms]").focus()
    for key in ("PageUp", "Home", "ArrowDown", "ArrowDown", "ArrowRight"):
        tab.keyboard.press(key)
    settle(tab)
    assert value(spot(tab, "norms")) == pytest.approx(norms[2, 1], rel=2e-3, abs=1e-4)
    assert tab.locator(".x-unseen[role=status]").inner_text().startswith("cat takes from the: weight ")
    tab.keyboard.press("Shift+ArrowDown")
    settle(tab)
    assert value(spot(tab)) == pytest.approx(weights[10, 1], rel=2e-3, abs=1e-5)
    tab.locator(".x-text[data-kind=weights]").focus()
    tab.keyboard.press("Home")
    tab.keyboard.press("ArrowRight")
    settle(tab)
    assert tab.locator(".x-spot .x-q").inner_text() == "the"
    tab.locator(".x-cell").focus()
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("ArrowRight")
    assert tab.locator(".x-cell-said").inner_text().startswith("dimension 2: q ")


def test_zooming_labels_every_token_and_dragging_moves(visit, shown):
    tab = visit("long", place="#attn@1.h1")
    weights, _ = maps_of(shown["long"].reading, 0, 0)
    out, closer = (tab.get_by_role("button", name=n, exact=True) for n in ("Zoom out", "Zoom in"))
    tab.mouse.click(*cell_of(tab, 200, 100, weights.shape))
    while closer.is_enabled():
        closer.click()
    assert out.is_enabled()
    canvas = tab.locator(".x-map canvas").first
    box = canvas.bounding_box()
    x, y = box["x"] + 84 + 200, box["y"] + 72 + 200
    places = []
    tab.mouse.move(x, y)
    for dx in (0, 150):
        tab.mouse.down()
        tab.mouse.move(x - dx, y - dx, steps=4)
        tab.mouse.up()
        tab.mouse.move(x - 1, y - 1)
        settle(tab)
        said = tab.locator(".x-spot").inner_text().split("tokens ")[1].split(" and ")
        i, j = (int(n) - 1 for n in said)
        assert value(spot(tab)) == pytest.approx(weights[i, j], abs=bound(weights[i, j], 1, 255))
        places.append((i, j))
    moved = places[1][0] - places[0][0], places[1][1] - places[0][1]
    assert moved[0] == moved[1]
    assert 3 <= moved[0] <= 6  # 150 pixels of cells of 36
    tab.get_by_role("button", name="Show all tokens").click()
    assert out.is_disabled()


@pytest.mark.parametrize(
    ("name", "width"), [("named", 360), ("named", 1280), ("long", 360), ("many", 768), ("many", 1920), ("one", 360)]
)
def test_no_sideways_scroll_and_nothing_without_a_size(visit, name, width):
    tab = visit(name, width)
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    sizes = "[...document.querySelectorAll('.x-frame canvas')].map(c => c.getBoundingClientRect()).map(b => [b.left, b.right, b.height])"
    for left, right, height in tab.evaluate(sizes):
        assert height > 60
        assert left >= 0
        assert right <= width or (name == "many" and width <= 768)  # 64 heads scroll within a frame of their own
    labels = tab.evaluate("[...document.querySelectorAll('.x-frame')].map(f => f.getAttribute('aria-label'))")
    assert all(len(label) > 20 for label in labels)


def test_a_resized_window_is_drawn_again(visit, shown):
    tab = visit(place="#attn@1.h1")
    width = "document.querySelector('.x-map[data-kind=weights] canvas').width"
    before = tab.evaluate(width)
    tab.set_viewport_size({"width": 700, "height": 900})
    tab.wait_for_function(f"before => {width} < before", arg=before)
    weights, _ = maps_of(shown["named"].reading, 0, 0)
    hover(tab, 9, 3, weights.shape)
    assert value(spot(tab)) == pytest.approx(weights[9, 3], rel=2e-3, abs=1e-5)


def test_a_tap_on_a_phone_reads_a_cell(visit, shown):
    tab = visit(width=360, touch=True, place="#attn@1.h1")
    weights, _ = maps_of(shown["named"].reading, 0, 0)
    tab.touchscreen.tap(*cell_of(tab, 6, 1, weights.shape))
    settle(tab)
    assert value(spot(tab)) == pytest.approx(weights[6, 1], rel=2e-3, abs=1e-5)


def test_nasty_words_are_words_and_nothing_leaves(visit):
    tab = visit()
    assert tab.locator(".x-text[data-kind=weights] [data-n='5']").inner_text() == pictures.NASTY
    assert pictures.NASTY in tab.locator(".x-lede").inner_text()
    assert pictures.NASTY in tab.title()
    policy = tab.locator("meta[http-equiv=Content-Security-Policy]").get_attribute("content")
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy.replace("style-src 'unsafe-inline'", "")


def test_without_a_script_the_page_says_so(visit):
    tab = visit(script=False)
    assert tab.get_by_text("The explorer draws with a script").is_visible()
    assert tab.get_by_text("Where does each token take its information from?").is_visible()


def test_the_widget_is_the_same_explorer(browser, shown):
    pytest.importorskip("anywidget")
    reading = shown["named"].reading
    made: Any = explore(reading)
    tab = browser.new_context(viewport={"width": 900, "height": 900}).new_page()
    said = []
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.set_content(f"<body data-jp-theme-light='false'><style>{page.style()}</style><div id=cell></div></body>")
    values = {"manifest": made.manifest, "starts": made.starts, "data": list(made.data)}
    tab.evaluate(
        """async ([code, values]) => {
          const data = new DataView(Uint8Array.from([0, 0, 0, ...values.data]).buffer, 3);
          const module = await import(URL.createObjectURL(new Blob([code], { type: "text/javascript" })));
          const get = (name) => (name === "data" ? data : values[name]);
          window.stop = module.default.render({ model: { get }, el: document.querySelector("#cell") });
        }""",
        [page.script() + (page.HERE / "widget.js").read_text(encoding="utf-8"), values],
    )
    tab.wait_for_selector("[data-ready]")
    weights, norms = both_of(reading, 0, 0)
    tab.mouse.click(*tile(tab, 0, 0))
    heading(tab, "Layer 1, head 1")
    hover(tab, 6, 3, weights.shape)
    assert value(spot(tab)) == pytest.approx(weights[6, 3], rel=2e-3, abs=1e-5)
    assert value(spot(tab, "norms")) == pytest.approx(norms[6, 3], rel=2e-3, abs=1e-4)
    dark = tab.locator(".explorer").evaluate("e => getComputedStyle(e).backgroundColor")
    assert dark == "rgb(20, 23, 27)"  # the notebook's theme, not the system's
    tab.evaluate("stop()")
    assert tab.locator("canvas").count() == 0
    assert said == []
    tab.context.close()


def test_the_frame_for_notebooks_without_anywidget_opens(browser, shown):
    framed = page.Framed(take_picture(shown["decoder"].reading))
    tab = browser.new_context(viewport={"width": 900, "height": 900}).new_page()
    tab.set_content(f"<body>{framed._repr_html_()}</body>")
    inner = tab.frame_locator("iframe")
    inner.locator("[data-ready]").wait_for()
    assert inner.locator(".x-grid canvas").count() == 2
    tab.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_barrier(visit, scheme):
    tab = visit(scheme=scheme, place="#attn@1.h1")
    paper = tab.locator("#explorer").evaluate("e => getComputedStyle(e).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
    assert barriers(tab, scheme) == []


PARTS = {"heads": ".x-section:has(> .x-about)", "map": ".x-maps", "text": ".x-texts", "cell": ".x-cell-section"}
STEPS = 1023  # steps; a page of so few tokens has more


def saved(tab: Page, part: str, end: str) -> tuple[str, bytes]:
    """The name and the bytes of what a button saves, pressed by keyboard."""
    with tab.expect_download() as download:
        tab.locator(f"{PARTS[part]} .x-save").get_by_role("button", name=f"Save {end}").press("Enter")
    return download.value.suggested_filename, Path(download.value.path()).read_bytes()


def saved_table(tab: Page, part: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(saved(tab, part, "CSV")[1].decode(), newline="")))


def test_the_map_that_is_saved_holds_every_cell_of_the_open_head(visit, shown):
    tab = visit(place="#attn@2.h3")
    rows = saved_table(tab, "map")
    weights, norms = both_of(shown["named"].reading, 1, 2)
    size = len(PIECES)
    assert [(int(r["query"]), int(r["key"])) for r in rows] == [
        (i + 1, j + 1) for i in range(size) for j in range(size)
    ]
    for kind, expected in (("weight", weights), ("norm", norms)):
        given = np.array([float(r[kind]) for r in rows]).reshape(size, size)
        top = 1.0 if kind == "weight" else float((norms / weights).max())  # a norm is a weight times its key's length
        assert np.abs(given - expected).max() <= bound(expected.max(), top, STEPS)
    assert [r["key token"] for r in rows[:size]] == [r["query token"] for r in rows[::size]]
    assert rows[size - 1]["key token"] == "[SEP]"


def test_rows_and_dimensions_are_the_numbers_that_the_page_shows(visit):
    tab = visit(place="#attn@1.h2")
    tab.locator(".x-map[data-kind=weights]").focus()
    for key in ("Home", "PageUp", "ArrowRight", "ArrowDown", "ArrowDown"):
        tab.keyboard.press(key)
    # polls without eval, which the page's policy refuses
    expect(tab.locator(".x-places")).to_have_text("tokens 3 and 2")
    rows = {(r["query"], r["key"]): r for r in saved_table(tab, "text")}
    assert len(rows) == len(PIECES)
    for kind, column in (("weights", "weight"), ("norms", "norm")):
        assert float(rows["3", "2"][column]) == value(tab.locator(f".x-spot [data-kind={kind}]"))
        items = tab.locator(f".x-list[data-kind={kind}] li[data-n]:not([data-n=''])")
        listed = {str(int(item.get_attribute("data-n") or "") + 1): item for item in items.all()}
        assert {n: float(rows["3", n][column]) for n in listed} == {
            n: value(item.locator(".x-value")) for n, item in listed.items()
        }
    dimensions = saved_table(tab, "cell")
    assert list(dimensions[0]) == ["dimension", "q", "k", "adds", "v"]
    shown_score = value(tab.locator(".x-score"))
    assert sum(float(r["adds"]) for r in dimensions) == pytest.approx(shown_score, rel=1e-5, abs=1e-6)
    heads = [row for row in saved_table(tab, "heads") if row["site"] == "attn@1.h2"]
    assert [row["seen"] for row in heads] == ["by weight", "by norm"]
    assert all(float(row["largest"]) > 0 for row in heads)


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
        assert len(body) == 1 + min(len(saved_table(tab, part)), 40 if part == "map" else 10_000)
    assert pictures.NASTY in {r["query token"] for r in saved_table(tab, "map")}


def test_a_layer_as_a_whole_and_a_causal_model_save_what_they_show(visit, shown):
    tab = visit("decoder", place="#attn@1")
    rows = saved_table(tab, "cell")
    assert list(rows[0]) == ["head", "a", "‖a f‖"]
    assert len(rows) == shown["decoder"].reading.traces[0].weights.shape[1]
    assert all(int(r["key"]) <= int(r["query"]) for r in saved_table(tab, "map"))
    assert saved(tab, "map", "CSV")[0] == "attn@1-map.csv"
