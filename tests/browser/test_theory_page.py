"""Theory's page in a browser: moved sliders give the numbers that trisect.theory gives for the same inputs."""

import csv
import math
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Locator, Page
from tests.accessible import barriers

import trisect
import trisect.theory.helpers as helpers
from trisect import theory
from trisect.core.errors import TheoryError
from trisect.experiments.theory.page import base_draws, constructions
from trisect.theory import KeyDraws

pytestmark = pytest.mark.browser

DRAWS = base_draws()

Numbers = dict[str, float]


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> str:
    return trisect.theory_page(samples=400, out=tmp_path_factory.mktemp("theory"), quiet=True).report.as_uri()


@pytest.fixture(scope="module")
def shared(browser, address) -> Iterator[Page]:
    """One tab for all tests that only move sliders; it must stay as silent as the others."""
    said = []
    tab = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.goto(address)
    unfold(tab)
    yield tab
    tab.context.close()
    assert said == []


@pytest.fixture
def tab(shared) -> Page:
    """The shared tab with every slider where it starts."""
    shared.evaluate("document.querySelectorAll('.lab .controls button').forEach(button => button.click())")
    return shared


def unfold(tab: Page) -> None:
    """Open every construction: the page begins with the first alone."""
    tab.evaluate("document.querySelectorAll('details').forEach(one => (one.open = true))")


def lab(tab: Page, name: str) -> Locator:
    return tab.locator(f".lab[data-name={name}]")


def slider(tab: Page, name: str, key: str) -> Locator:
    return lab(tab, name).locator(f"input[data-input={key}]")


def settle(tab: Page) -> None:
    """A moved slider is drawn in the next frame."""
    tab.evaluate("new Promise(done => requestAnimationFrame(() => done()))")


def numbers(tab: Page, name: str) -> Numbers:
    """Every number that a construction shows, its inputs too, to the last digit."""
    settle(tab)
    code = "root => Object.fromEntries([...root.querySelectorAll('.reading')].map(o => [o.dataset.name, Number(o.dataset.value)]))"
    return lab(tab, name).evaluate(code)


def move(tab: Page, name: str, places: Numbers) -> Numbers:
    """Move sliders; the variance's slider stands at its power of ten. Returns what is then shown."""
    for key, place in places.items():
        slider(tab, name, key).fill(str(place))
    shown = numbers(tab, name)
    for key, place in places.items():
        assert shown[key] == pytest.approx(10**place if key == "variance" else place, rel=1e-12)
    return shown


def copying(shown: Numbers) -> Numbers:
    made = theory.copying(beta=shown["beta"], keys=int(shown["keys"]), dim=int(shown["dim"]))
    gap = float(made.logits[0] - made.logits[1:].max())
    others = float(np.exp(made.logits[1:] + shown["shift"]).sum())
    score = float(made.logits[0] + shown["shift"])
    return {
        "weight": made.weights[0], "error": made.error, "expected": made.expected, "gap": gap, "score": score,
        "others": others,
    }  # fmt: skip


def average(shown: Numbers) -> Numbers:
    made = theory.average(beta=shown["beta"], keys=int(shown["keys"]), dim=int(shown["dim"]))
    beta, n = shown["beta"], shown["keys"]
    return {
        "weight": made.weights[0], "weight_b": made.weights[1], "rest": made.weights[2:].sum(),
        "predicted": math.exp(beta) / (n - 2 + 2 * math.exp(beta)), "error": made.error, "expected": made.expected,
    }  # fmt: skip


def given(shown: Numbers, draws: KeyDraws = DRAWS) -> dict:
    n = int(shown["keys"])
    few = KeyDraws(draws.stretch, draws.along[:, :n])
    return {"beta": shown["beta"], "keys": n, "dim": int(shown["dim"]), "variance": shown["variance"], "draws": few}


def alone(shown: Numbers) -> KeyDraws:
    """The one sample that is drawn, twice, since a spread needs two; a slider may have stretched it."""
    at = int(shown.get("sample", 1)) - 1
    stretch = (shown["gamma"] - 1) / math.sqrt(0.5) if "gamma" in shown else DRAWS.stretch[at]
    return KeyDraws(np.full(2, stretch), DRAWS.along[[at, at]])


def length(shown: Numbers) -> float:
    return math.sqrt(1 + shown["variance"] * shown["dim"])


def random(shown: Numbers, made_by: Callable[..., theory.Construction]) -> Numbers:
    made, single = made_by(**given(shown)), made_by(**given(shown, alone(shown)))
    off = float(np.linalg.norm(single.computed - single.predicted))
    a, b = made.weights[:2] if made.weights.ndim == 1 else np.diag(made.weights)
    return {
        "error": made.error, "expected": made.expected, "mean_a": a, "mean_b": b, "off": off, "length": length(shown),
    }  # fmt: skip


def random_keys_one_head(shown: Numbers) -> Numbers:
    return random(shown, theory.random_keys_one_head)


def random_keys_two_heads(shown: Numbers) -> Numbers:
    return random(shown, theory.random_keys_two_heads)


def stretched_key_one_head(shown: Numbers) -> Numbers:
    made = theory.stretched_key_one_head(**given(shown))
    single = theory.stretched_key_one_head(**given(shown, alone(shown)))
    return {
        "error": made.error, "expected": made.expected, "mean_a": made.weights[0], "mean_b": made.weights[1],
        "weight": single.weights[0], "weight_b": single.weights[1], "length": length(shown),
    }  # fmt: skip


def stretched_key_two_heads(shown: Numbers) -> Numbers:
    made = theory.stretched_key_two_heads(**given(shown))
    single = theory.stretched_key_two_heads(**given(shown, alone(shown)))
    assert made.variances is not None
    assert made.apart is not None
    return {
        "error": made.error, "expected": made.expected, "weight": single.weights[0, 0], "weight_b": single.weights[1, 1],
        "share": made.apart.share, "law_share": made.apart.law_share, "length": length(shown), **made.variances._asdict(),
    }  # fmt: skip


def identity_attention(shown: Numbers) -> Numbers:
    beta = shown["beta"]
    made = theory.identity_attention(beta=beta, dim=int(shown["dim"]), add_c=shown["add_c"], add_d=shown["add_d"])
    u = made.inputs["letters"]
    return {
        "weight": made.weights[1], "error": made.error, "expected": made.expected,
        "miss": float(np.linalg.norm(made.computed - u[1])) / beta,
        **{f"c_{letter}": float(u[n] @ made.computed) / beta**2 for n, letter in enumerate("abcd")},
    }  # fmt: skip


def key_query_value(shown: Numbers) -> Numbers:
    beta = shown["beta"]
    made = theory.key_query_value(beta=beta, dim=int(shown["dim"]))
    u = made.inputs["letters"]
    values = made.inputs["values"]
    errors = {
        f"error_{i + 1}": helpers.length(helpers.deviations(made.weights[i], [j]) @ values) / beta
        for i, j in ((0, 2), (1, 0))
    }
    along = {f"c{i + 1}_{'abcd'[n]}": float(u[n] @ made.computed[i]) / beta**2 for i in (0, 1) for n in (1, 2)}
    both = {"weight_1": made.weights[0, 2], "weight_2": made.weights[1, 0]}
    return both | {"error": made.error, "expected": made.expected} | errors | along


DRAWN = ("random_keys_one_head", "random_keys_two_heads", "stretched_key_one_head", "stretched_key_two_heads")
IN_PYTHON: dict[str, Callable[[Numbers], Numbers]] = {
    one.__name__: one
    for one in (
        copying, average, random_keys_one_head, stretched_key_one_head, random_keys_two_heads, stretched_key_two_heads,
        identity_attention, key_query_value,
    )
}  # fmt: skip
# Where to put the sliders: near the start, at the ends, with the fewest keys and dimensions and with the most.
PLACES: dict[str, list[Numbers]] = {
    "copying": [{"beta": 7.3}, {"beta": 0.2, "keys": 2, "dim": 2}, {"beta": 14, "keys": 8, "dim": 8, "shift": -20}],
    "average": [{"beta": 5.1}, {"beta": 0.2, "keys": 3, "dim": 3}, {"beta": 14, "keys": 8, "dim": 32}],
    "identity_attention": [
        {"beta": 2.25}, {"beta": 0.5, "add_d": 3}, {"beta": 5, "add_c": -1.4, "add_d": 0.6, "dim": 9},
        {"beta": 5, "add_c": 3, "add_d": 3},
    ],
    "key_query_value": [{"beta": 1.31}, {"beta": 0.6, "dim": 32}, {"beta": 1.7}],
} | {
    name: [
        {"beta": 4.4, "variance": -3.15},
        {"beta": 0.2, "keys": 2, "dim": 2, "variance": -6},
        {"beta": 14, "keys": 8, "dim": 16, "variance": -0.5, **({"sample": 300} if "random" in name else {"gamma": -1})},
    ]
    for name in DRAWN
}  # fmt: skip


def same(shown: Numbers, wanted: Numbers) -> None:
    """Sums over samples in another order and quadratures on other nodes, in float64: far better than 1e-6."""
    assert {name: shown[name] for name in wanted} == pytest.approx(wanted, rel=1e-8, abs=1e-13)
    # errors keep their digits however small they are
    for name in wanted.keys() & {"error", "expected", "error_1", "error_2"}:
        assert shown[name] == pytest.approx(wanted[name], rel=1e-8, abs=0)


@pytest.mark.parametrize("name", IN_PYTHON)
def test_moved_sliders_give_the_numbers_of_python(tab, name):
    first = numbers(tab, name)
    same(first, IN_PYTHON[name](first))
    for places in PLACES[name]:
        shown = move(tab, name, places)
        wanted = IN_PYTHON[name](shown)
        same(shown, wanted)
        assert wanted["error"] != pytest.approx(first["error"], rel=1e-3)
    readings = lab(tab, name).locator(".readings .reading").evaluate_all("all => all.map(o => o.dataset.name)")
    assert set(readings) <= set(IN_PYTHON[name](first))
    lab(tab, name).get_by_role("button", name="Back to the start").click()
    assert numbers(tab, name) == first


@pytest.mark.parametrize("name", ["copying", "stretched_key_two_heads", "key_query_value"])
def test_keys_of_the_keyboard_move_sliders(tab, name):
    handle = slider(tab, name, "beta")
    handle.focus()
    before = numbers(tab, name)
    for key in ("ArrowRight", "ArrowRight", "PageUp", "ArrowLeft"):
        tab.keyboard.press(key)
    shown = numbers(tab, name)
    assert shown["beta"] > before["beta"]
    same(shown, IN_PYTHON[name](shown))
    for key in ("End", "Home"):
        tab.keyboard.press(key)
    assert numbers(tab, name)["beta"] == float(handle.get_attribute("min") or "nan")
    assert handle.get_attribute("aria-valuetext") == f"β {numbers(tab, name)['beta']:g}"


def places_of(view: Locator, sign: str) -> np.ndarray:
    code = "all => all.map(e => e.getAttribute('transform').match(/-?[\\d.]+/g).map(Number))"
    return np.array(view.locator(f".s-{sign}").evaluate_all(code))


def test_the_marker_of_a_log_plot_stands_at_the_error(tab):
    view = lab(tab, "copying").locator("[data-view=error]")
    spots = []
    for beta in (8, 10, 12, 14):
        error = move(tab, "copying", {"beta": beta})["error"]
        spots.append((beta, math.log10(error), *places_of(view, "c")[0]))
    beta, power, x, y = np.array(spots).T
    # one pixel of 200 would be 2.5 % of the scale; places are kept to a hundredth
    assert np.diff(x) / np.diff(beta) == pytest.approx([(x[1] - x[0]) / 2] * 3, abs=0.02)
    assert np.diff(y) / np.diff(power) == pytest.approx([(y[3] - y[0]) / (power[3] - power[0])] * 3, abs=0.05)
    assert (np.diff(y) > 0).all()


@pytest.mark.parametrize("name", list(IN_PYTHON)[:6])
def test_c_stands_where_the_weights_put_it_among_the_values(tab, name):
    shown = move(tab, name, {"beta": 2.3, "keys": 6})
    root = lab(tab, name)
    corners = places_of(root.locator("[data-view=values]"), "v")
    c = places_of(root.locator("[data-view=values]"), "c")[0]
    bars = root.locator("[data-view=weights] .bar").evaluate_all("all => all.map(e => Number(e.getAttribute('width')))")
    whole = float(root.locator("[data-view=weights] .track").first.get_attribute("width") or "nan")
    weights = np.array(bars).reshape(6, -1).mean(1) / whole
    assert weights.sum() == pytest.approx(1, rel=1e-12)
    if "weight" in shown and len(bars) == 6:
        assert weights[0] == pytest.approx(shown["weight"], rel=1e-12)
    assert c == pytest.approx(weights @ corners, abs=0.02)  # places are kept to a hundredth
    scores = root.locator("[data-view=keys] svg").get_attribute("aria-label") or ""
    assert "Keys in the plane: k " in scores


def plain_status(tab: Page) -> str:
    return lab(tab, "key_query_value").get_by_role("status").inner_text()


def test_exchanged_matrices_give_what_the_errata_say(tab):
    shown = constructions()["key_query_value"].errata
    move(tab, "key_query_value", {"beta": 1.5})
    for choice, said in (("K and Q exchanged", "swapped"), ("Q = V's formula", "Q = V")):
        lab(tab, "key_query_value").get_by_label(choice).check()
        found = numbers(tab, "key_query_value")
        wanted = [(0, 0), (2 / 3, -1 / 3)] if said == "swapped" else [(2 / 3, -1 / 3)] * 2
        for i, (b, c) in enumerate(wanted):
            # e^{−β⁶} is 1e-5 here, the weight of each word that is not looked at
            assert (found[f"c{i + 1}_b"], found[f"c{i + 1}_c"]) == pytest.approx((b, c), abs=3e-5)
        assert "the law has ended" in plain_status(tab)
        assert any(
            list(next(iter(one.shown.values())))[1:3] == pytest.approx([found["c1_b"], found["c1_c"]], abs=1e-12)
            for one in shown
        )
    lab(tab, "key_query_value").get_by_label("K and Q as above").check()
    assert numbers(tab, "key_query_value")["error"] < 1e-4


@pytest.mark.parametrize(
    ("name", "places"),
    [("average", {"keys": 8, "dim": 7}), ("key_query_value", {"dim": 3}), ("random_keys_two_heads", {"dim": 2})],
)
def test_too_few_dimensions_are_refused_as_in_python(tab, name, places):
    for key, place in places.items():
        slider(tab, name, key).fill(str(place))
    settle(tab)
    root, few = lab(tab, name), places["dim"]
    what = "4 orthogonal directions" if name == "key_query_value" else f"{places.get('keys', 5)} orthogonal keys"
    assert root.get_by_role("status").inner_text().startswith(f"{what} do not fit into {few} dimensions. Give ")
    assert root.locator(".readings .reading, svg").count() == 0
    assert not root.get_by_role("button", name="Save CSV").is_visible()
    with pytest.raises(TheoryError, match=f"R\\^{few} has no more than {few} vectors"):
        getattr(theory, name)(dim=few, **({} if name == "key_query_value" else {"keys": places.get("keys", 5)}))
    root.get_by_role("button", name="Back to the start").click()
    assert root.locator("svg").count() >= 3


def plain(text: str) -> str:
    return "".join(text.replace("−", "-").replace("_", "").replace("^", "").replace("{", "").replace("}", "").split())


def test_every_question_law_limit_and_error_is_told(opened):
    tab = opened(script=False)
    for folded in tab.locator("details:not([open]) > summary").element_handles():
        folded.click()
    for name, made in constructions().items():
        text = plain(tab.locator(f"section#{name}").inner_text())
        for words in (made.question, made.law, made.domain, *(w for e in made.errata for w in (e.claim, e.right))):
            assert plain(words) in text
        assert tab.locator(f"section#{name} .erratum").count() == len(made.errata)
        assert "need a script" in tab.locator(f"section#{name} .lab").inner_text()


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (700, "light"), (1920, "light")])
def test_nothing_is_cut_off_at_any_width(opened, width, scheme):
    tab = opened(width=width, scheme=scheme)
    unfold(tab)
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    assert tab.locator(".lab svg").count() == sum(lab(tab, name).locator(".panel").count() for name in IN_PYTHON)
    boxes = tab.locator(".lab .panel svg").evaluate_all("all => all.map(e => e.getBoundingClientRect().toJSON())")
    assert all(box["left"] >= 0 and box["right"] <= width and box["height"] > 150 for box in boxes)
    assert cut_off(tab) == []
    for end in ("min", "max"):
        # Dimensions stay where they have room.
        tab.evaluate("""end => document.querySelectorAll('.lab input[type=range]:not([data-input=dim])').forEach(one => {
          one.value = one[end];
          one.dispatchEvent(new Event('input'));
        })""", end)  # fmt: skip
        settle(tab)
        assert tab.locator(".refused").count() == 0
        assert tab.evaluate("document.documentElement.scrollWidth") == width
        assert cut_off(tab) == []
    move(tab, "identity_attention", {"add_c": -3})  # and 3 times u_d: the farthest to one side
    assert cut_off(tab) == []


def cut_off(tab: Page) -> list[str]:
    """Words of drawings that leave them, or a cell of a matrix, in whole pixels."""
    return tab.evaluate("""() => [...document.querySelectorAll('.panel svg text')].filter(text => {
      const [inner, outer] = [text.getBoundingClientRect(), text.closest('svg').getBoundingClientRect()];
      const cell = text.matches('.p-matrix .on-light, .p-matrix .on-dark') && text.closest('svg').querySelector('rect');
      if (cell && inner.width > cell.getBoundingClientRect().width) return true;
      return inner.width && (inner.left < outer.left - 1 || inner.right > outer.right + 1 || inner.bottom > outer.bottom + 1);
    }).map(text => text.textContent)""")


def test_many_moves_between_two_frames_are_drawn_once(tab):
    drawn = tab.evaluate("""() => new Promise(done => {
      const [root, moved] = [document.querySelector('.lab[data-name=copying]'), document.querySelector('#copying-beta')];
      let count = 0;
      new MutationObserver(all => count += all.length).observe(root.querySelector('[data-view=keys] .sheet'), { childList: true });
      for (const place of [1, 2, 3, 4, 5]) { moved.value = place; moved.dispatchEvent(new Event('input')); }
      requestAnimationFrame(() => done(count));
    })""")
    assert drawn == 1
    assert numbers(tab, "copying")["beta"] == 5


@pytest.mark.parametrize(
    ("name", "inside", "outside"),
    [
        ("random_keys_two_heads", {"beta": 5, "variance": -2}, {"beta": 14, "variance": -0.5}),
        ("stretched_key_one_head", {"beta": 14, "variance": -6}, {"variance": -0.5}),
        ("stretched_key_two_heads", {"beta": 14, "variance": -6}, {"variance": -0.5}),
    ],
)
def test_a_law_past_its_end_is_said_to_have_ended(tab, name, inside, outside):
    said = lab(tab, name).get_by_role("status")
    move(tab, name, inside)
    assert "has ended" not in said.inner_text()
    shown = move(tab, name, outside)
    assert "has ended" in said.inner_text()
    if "stretched" in name:
        assert shown["error"] > shown["expected"]


def test_the_swing_is_said_where_it_is(tab):
    said = lab(tab, "stretched_key_one_head").get_by_role("status")
    move(tab, "stretched_key_one_head", {"beta": 10, "variance": -6})
    assert "c swings between" in said.inner_text()
    move(tab, "stretched_key_one_head", {"beta": 0.2, "gamma": -1})
    assert "swings" not in said.inner_text()
    assert "γ = −1 " in said.inner_text()


LABELS = "all => all.map(e => e.getAttribute('aria-label'))"


def test_every_slider_has_a_name_and_every_drawing_words(tab):
    for name in IN_PYTHON:
        for handle in lab(tab, name).locator("input[type=range]").all():
            assert handle.evaluate("e => e.labels.length === 1 && e.labels[0].textContent.trim().length > 5")
            assert handle.get_attribute("aria-valuetext")
        said = lab(tab, name).locator("svg[role=img]").evaluate_all(LABELS)
        assert len(said) == lab(tab, name).locator(".panel").count()
        assert all(len(words) > 20 and "undefined" not in words and "NaN" not in words for words in said)
        slider(tab, name, "beta").fill("1.6")
        settle(tab)
        again = lab(tab, name).locator("svg[role=img]").evaluate_all(LABELS)
        assert all(a != b for a, b in zip(said, again, strict=True))


def test_nothing_moves_unless_touched(opened):
    tab = opened()
    tab.clock.install()
    tab.reload()
    drawn = "document.querySelector('main').innerHTML"
    before = tab.evaluate(drawn)
    tab.clock.run_for(10_000)  # every timer and frame of the page's next ten seconds
    tab.mouse.move(500, 500)
    assert tab.evaluate("document.getAnimations().length") == 0
    assert tab.evaluate(drawn) == before


def test_all_eight_are_printed_with_drawings_and_numbers_but_no_sliders_on_six_sheets(opened):
    tab = opened()
    tab.emulate_media(media="print")
    for part in (".panel svg", ".readings .reading", ".laws dd"):
        assert [one.locator(part).first.is_visible() for one in tab.locator("details.part").all()] == [True] * 8
    assert tab.locator(".slider .reading").first.is_visible()
    assert not tab.locator(".slider input").first.is_visible()
    assert len(re.findall(rb"/Type\s*/Page\b", tab.pdf(format="A4"))) <= 6


def test_one_construction_is_open_and_a_link_opens_another(opened):
    tab = opened()
    assert tab.locator("details[open]").count() == 1
    assert tab.evaluate("document.documentElement.scrollHeight") <= 6_000
    tab.evaluate("location.hash = 'average'")
    lab(tab, "average").locator("svg").first.wait_for()


def test_axe_finds_no_barrier(opened):
    tab = opened()
    assert barriers(tab) == []
    assert barriers(tab, "dark") == []


def saved(tab: Page, name: str, end: str) -> bytes:
    with tab.expect_download() as download:
        lab(tab, name).get_by_role("button", name=f"Save {end}").click()
    return Path(download.value.path()).read_bytes()


@pytest.mark.parametrize("name", ["copying", "stretched_key_two_heads", "key_query_value"])
def test_drawings_and_their_numbers_can_be_saved_as_they_are_now(tab, name):
    shown = move(tab, name, {"beta": 1.5})
    rows = list(csv.DictReader(saved(tab, name, "CSV").decode().splitlines()))
    inputs = {row["name"]: row["value"] for row in rows if row["kind"] == "slider"}
    assert float(inputs["beta"]) == 1.5
    read = {row["name"]: float(row["value"]) for row in rows if row["kind"] == "reading"}
    assert read == {key: shown[key] for key in read}
    assert len(read) > 5
    drawing = ElementTree.fromstring(saved(tab, name, "SVG"))
    panels = [one for one in drawing if one.tag.endswith("svg")]
    assert len(panels) == lab(tab, name).locator(".panel").count()
    assert not drawing.findall(".//*[@class]")  # it stands without the page's style sheet
    assert "var(" not in ElementTree.tostring(drawing, "unicode")
    assert saved(tab, name, "PNG").startswith(b"\x89PNG")
    table = saved(tab, name, "LaTeX").decode()
    body = [line for line in table.splitlines() if line.endswith(r"\\")]
    assert len(body) == 1 + sum(row["kind"] != "sample" for row in rows)
    assert {line.replace(r"\&", "").count("&") for line in body} == {4}
