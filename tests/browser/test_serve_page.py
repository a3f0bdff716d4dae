"""The served page in a browser: typed at and switched, it shows the numbers that Python finds; a page of elsewhere gets nothing."""

import functools
import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest
from playwright.sync_api import Page
from tests import tinyhf
from tests.accessible import barriers

import trisect
from trisect.hf.load import load
from trisect.measure.intervention import intervene
from trisect.server import widget
from trisect.server.answering import PageModel, PageState, page_script, style
from trisect.server.run import ServedPage, link, start

pytestmark = pytest.mark.browser

TEXT, SECOND = "w1 w2 w3 w4", "w9 w8 w7 w6"


class Model(NamedTuple):
    """A model and its page."""

    subject: Any
    served: ServedPage


@pytest.fixture(scope="module")
def gpt() -> Iterator[Model]:
    subject = load(tinyhf.gpt2(), tinyhf.tokenizer(False))
    served = start(subject, TEXT)
    yield Model(subject, served)
    served.stop()
    assert not served.thread.is_alive()


@pytest.fixture(scope="module")
def encoder() -> Iterator[Model]:
    subject = load(tinyhf.bert(head=False), tinyhf.tokenizer())
    served = trisect.serve(subject, TEXT, SECOND, wait=False)
    yield Model(subject, served)
    served.stop()


@pytest.fixture
def visit(new_tab) -> Callable[..., Page]:
    def visit_(model: Model, address: str = "", **how) -> Page:
        tab = new_tab(address or model.served.address, **how)
        settled(tab)
        return tab

    return visit_


def data(tab: Page) -> dict:
    return tab.evaluate("() => ({...document.querySelector('#serve').dataset})")


def settled(tab: Page, **wanted) -> dict:
    """The page's state once it shows an answer to a state with these values."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        state = json.loads(data(tab).get("state", "{}"))
        if state and all(state[name] == value for name, value in wanted.items()):
            return state
        time.sleep(0.02)
    raise AssertionError(data(tab))


def switch(tab: Page, component: str, how: str) -> None:
    tab.get_by_role("group", name=f"Switch {component}").get_by_role("button", name=how, exact=True).click()


def shown(tab: Page) -> list[tuple[str, float, float]]:
    found = []
    for row in tab.locator(".s-table tbody tr").all():
        cells = (row.locator(f"[data-kind={kind}]").get_attribute("data-value") for kind in ("s-before", "s-after"))
        before, after = (float(cell or "") for cell in cells)
        found.append((row.locator("th").inner_text(), before, after))
    return found


def moved(tab: Page) -> list[float]:
    return [float(one.get_attribute("data-moved") or "") for one in tab.locator(".s-strip [data-n]").all()]


def test_an_empty_text_has_no_results_and_a_query_or_key_of_zero_is_explained_beside_them(gpt, visit):
    tab = visit(gpt)
    even, outcome, text = tab.locator(".s-even"), tab.locator(".s-outcome"), tab.get_by_label("Text", exact=True)
    assert (outcome.is_visible(), even.is_visible()) == (True, False)
    tab.get_by_label("Layer", exact=True).select_option("2")
    tab.get_by_label("Head", exact=True).select_option("3")
    for component in "qkv":
        switch(tab, component, "zero")
        settled(tab, switches=[[f"{component}@2.h3", "zero"]])
        assert even.is_visible() == (component != "v")
        switch(tab, component, "as it is")
        settled(tab, switches=[])
    assert not even.is_visible()
    text.fill("")
    settled(tab, text=[""])
    assert not outcome.is_visible()
    text.fill(TEXT)
    settled(tab, text=[TEXT])
    outcome.wait_for()


# How many numbers of a legend end to the right of it.
BEYOND = """() => [...document.querySelectorAll(".x-ticks span")].filter((one) => {
  const range = document.createRange();
  range.selectNodeContents(one);
  return range.getBoundingClientRect().right > one.closest(".x-legend").getBoundingClientRect().right + 1;
}).length"""


@pytest.mark.parametrize("width", [320, 360])
def test_on_a_phone_nothing_scrolls_sideways(gpt, visit, width):
    tab = visit(gpt, width=width)
    tab.get_by_label("Second text, to patch from (optional)").fill(SECOND)
    for how in ("second", "zero"):
        switch(tab, "k", how)
        settled(tab, switches=[[tab.locator(".s-row .s-site").nth(1).inner_text(), how]])
        assert tab.evaluate("document.documentElement.scrollWidth") == width
    assert tab.locator(".x-ticks span").count()
    assert tab.evaluate(BEYOND) == 0


def test_typed_and_switched_it_shows_what_python_finds(gpt, visit):
    tab = visit(gpt)
    tab.get_by_label("Layer", exact=True).select_option("2")
    tab.get_by_label("Head", exact=True).select_option("3")
    switch(tab, "v", "zero")
    settled(tab, switches=[["v@2.h3", "zero"]])
    tab.get_by_label("Head", exact=True).select_option("all")
    switch(tab, "q", "mean")
    tab.get_by_label("Second text, to patch from (optional)").fill(SECOND)
    tab.get_by_label("Layer", exact=True).select_option("all")
    switch(tab, "k", "second")
    field = tab.get_by_label("Text", exact=True)
    field.press("End")
    field.press_sequentially(" w5")
    want = {"v@2.h3": "zero", "q@2": "mean", "k@all": "second"}
    settled(tab, text=["w1 w2 w3 w4 w5"], switches=[list(pair) for pair in want.items()])
    change = intervene(gpt.subject, "w1 w2 w3 w4 w5", want, SECOND)
    expected = [(p.token, pytest.approx(p.before), pytest.approx(p.after)) for p in change.predictions()]
    assert shown(tab) == expected
    assert moved(tab) == pytest.approx(change.moved.tolist(), abs=1e-8)
    tab.locator(".s-strip [data-n='1']").click()
    settled(tab, place=1)
    change = intervene(gpt.subject, "w1 w2 w3 w4 w5", want, SECOND, 1)
    assert shown(tab) == [(p.token, pytest.approx(p.before), pytest.approx(p.after)) for p in change.predictions()]
    code = tab.locator(".s-python code").text_content() or ""
    stand = {"trisect": SimpleNamespace(intervene=intervene), "given": gpt.subject}
    exec(code.replace("import trisect\n", "").replace("...", "given", 1), stand)
    assert stand["change"].after.tolist() == change.after.tolist()


def test_chosen_tokens_alone_are_switched_and_stand_in_link_undo_and_python(gpt, visit):
    tab = visit(gpt)
    site = tab.locator(".s-row .s-site").last.inner_text()
    switch(tab, "v", "zero")
    settled(tab, switches=[[site, "zero"]])
    tab.get_by_text("At chosen tokens only").click()
    tab.locator(".s-positions [data-n='2']").click()
    tab.locator(".s-positions [data-n='1']").click()
    state = settled(tab, positions=[1, 2])
    change = intervene(gpt.subject, state["text"][0], {site: "zero"}, positions=(1, 2))
    assert moved(tab) == pytest.approx(change.moved.tolist(), abs=1e-8)
    assert moved(tab)[0] == 0 < moved(tab)[1]
    assert "positions=(1, 2)," in (tab.locator(".s-python code").text_content() or "")
    other = visit(gpt, tab.url)
    assert settled(other, positions=[1, 2]) == state
    assert moved(other) == moved(tab)
    tab.get_by_role("button", name="Undo").click()
    settled(tab, positions=[2])
    tab.get_by_role("button", name="All tokens", exact=True).click()
    settled(tab, positions=[])
    assert tab.locator(".s-positions [aria-pressed=true]").count() == 0


def test_undo_redo_and_a_link_hold_the_whole_state(gpt, visit):
    tab = visit(gpt)
    site = tab.locator(".s-row .s-site").first.inner_text()
    switch(tab, "q", "zero")
    switched = settled(tab, switches=[[site, "zero"]])
    tab.get_by_role("button", name="Undo").click()
    settled(tab, switches=[])
    assert max(moved(tab)) == 0
    tab.keyboard.press("Control+Shift+Z")
    settled(tab, switches=[[site, "zero"]])
    there = moved(tab)
    assert max(there) > 0
    other = visit(gpt, tab.url)
    assert settled(other, switches=[[site, "zero"]]) == switched
    assert moved(other) == there


def test_every_head_is_drawn_as_switched_and_saved_as_a_page(encoder, visit, tmp_path):
    tab = visit(encoder)
    tab.get_by_label("Layer", exact=True).select_option("1")
    tab.get_by_label("Head", exact=True).select_option("2")
    switch(tab, "v", "zero")
    settled(tab, switches=[["v@1.h2", "zero"]])
    change = intervene(encoder.subject, TEXT, {"v@1.h2": "zero"}, SECOND)
    assert moved(tab) == pytest.approx(change.moved.tolist(), abs=1e-8)
    assert tab.locator(".x-spot [data-kind=norms]").get_attribute("data-value") == "0"
    with tab.expect_download() as download:
        tab.get_by_role("button", name="Save as page").click()
    path = tmp_path / "saved.html"
    download.value.save_as(path)
    assert "v@1.h2 to zero" in path.read_text(encoding="utf-8")
    assert tab.locator("canvas").count() > 3


def test_a_save_and_an_answer_that_are_under_way_end_neither_of_each_other(gpt, visit, tmp_path):
    tab = visit(gpt)
    held = []
    tab.route("**/answer", lambda route: held.append(route))
    with tab.expect_request("**/answer"):
        switch(tab, "v", "zero")
    with tab.expect_download() as download:
        tab.get_by_role("button", name="Save as page").click()
    download.value.save_as(tmp_path / "saved.html")
    assert " to zero" in (tmp_path / "saved.html").read_text(encoding="utf-8")
    site = tab.locator(".s-row .s-site").nth(2).inner_text()
    held.pop().continue_()
    settled(tab, switches=[[site, "zero"]])
    tab.unroute("**/answer")
    parts = {"problem": "Nothing to save.", "reason": "It is wrong.", "todo": "Change it."}
    tab.route("**/offline", lambda route: route.fulfill(json=parts))
    tab.get_by_role("button", name="Save as page").click()
    tab.locator(".s-error:visible").wait_for()
    assert tab.locator(".s-error p").all_inner_texts() == list(parts.values())
    tab.evaluate("() => { window.fetch = () => Promise.reject(new Error('no way')); }")
    tab.get_by_role("button", name="Save as page").click()
    tab.locator(".s-error", has_text="The page could not be saved.").wait_for()
    assert "no way" in tab.locator(".s-error").inner_text()


def test_what_is_wrong_is_said_and_texts_are_never_markup(gpt, visit):
    tab = visit(gpt)
    field = tab.get_by_label("Text", exact=True)
    field.fill("w1 <img src=x onerror=alert(1)> w2")
    settled(tab, text=["w1 <img src=x onerror=alert(1)> w2"])
    assert tab.locator("#serve img").count() == 0
    field.fill(" ")
    tab.locator(".s-error").wait_for()
    assert tab.locator(".s-error").inner_text() == "Type a sentence."
    field.fill(TEXT)
    settled(tab, text=[TEXT])
    assert tab.locator(".s-error").is_hidden()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_barrier(gpt, visit, scheme):
    tab = visit(gpt, scheme=scheme)
    site = tab.locator(".s-row .s-site").first.inner_text()
    switch(tab, "q", "zero")
    settled(tab, switches=[[site, "zero"]])
    assert barriers(tab, scheme) == []


MOUNT = """async ([code, values]) => {
  const module = await import(URL.createObjectURL(new Blob([code], { type: "text/javascript" })));
  const listeners = new Set();
  const model = {
    get: (name) => values[name], set: (name, value) => (values[name] = value), save_changes: () => {},
    on: (_, act) => listeners.add(act), off: (_, act) => listeners.delete(act),
    send: async (content) => {
      const said = await kernel(content);
      const buffers = said.buffers.map((bytes) => new DataView(Uint8Array.from([0, ...bytes]).buffer, 1));
      for (const act of listeners) act(said.content, buffers);
    },
  };
  const el = document.querySelector("#serve");
  window.stop = module.default.render({ model, el });
}"""


def test_in_a_notebook_the_kernel_answers(gpt, browser):
    pytest.importorskip("anywidget")
    made = cast(Any, trisect.switchboard(gpt.subject, TEXT))
    model = PageModel(gpt.subject)

    def kernel(content):
        said = widget.reply(model, content)
        return {"content": said.content, "buffers": [list(chunk) for chunk in said.buffers]}

    context = browser.new_context(viewport={"width": 900, "height": 900})
    tab, said = context.new_page(), []
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.expose_function("kernel", kernel)
    tab.set_content(f"<style>{style()}</style><div id=serve></div>")
    tab.evaluate(MOUNT, [page_script("widget.js"), {"about": made.about, "state": made.state}])
    bar = tab.locator("#serve > div[data-ready]")
    bar.wait_for()
    site = tab.locator(".s-row .s-site").nth(2).inner_text()
    switch(tab, "v", "zero")
    tab.locator(f"#serve > div[data-state*='{site}']").wait_for()
    change = intervene(gpt.subject, TEXT, {site: "zero"})
    assert moved(tab) == pytest.approx(change.moved.tolist(), abs=1e-8)
    tab.evaluate("stop()")
    context.close()
    assert said == []


VIEWS = """async ([code, values]) => {
  const module = await import(URL.createObjectURL(new Blob([code], { type: "text/javascript" })));
  const listeners = [];
  window.asked = [];
  const model = {
    get: (name) => values[name], set: () => {}, save_changes: () => {},
    on: (_, act) => listeners.push(act), off: () => {}, send: (content) => asked.push(content),
  };
  window.say = (content, buffers) => {
    for (const act of listeners) act(content, buffers.map((bytes) => new DataView(Uint8Array.from(bytes).buffer)));
  };
  for (const id of ["one", "two"]) module.default.render({ model, el: document.getElementById(id) });
}"""


def test_two_views_of_a_widget_take_their_own_answers_and_a_save_drops_no_question(gpt, browser):
    model = PageModel(gpt.subject)
    context = browser.new_context(viewport={"width": 900, "height": 900}, accept_downloads=True)
    tab = context.new_page()
    tab.set_content(f"<style>{style()}</style><div id=one></div><div id=two></div>")
    state = {"about": json.dumps(model.about()), "state": link(PageState((TEXT,)))}
    tab.evaluate(VIEWS, [page_script("widget.js"), state])

    def asked() -> list[dict]:
        return tab.evaluate("asked")

    def say(question: dict, **instead) -> None:
        said = widget.reply(model, question)
        tab.evaluate("given => say(...given)", [{**said.content, **instead}, [list(chunk) for chunk in said.buffers]])

    first, second = asked()
    assert first["sequence"] == second["sequence"]
    assert first["client"] != second["client"]
    say(second)
    tab.locator("#two > div[data-ready]").wait_for()
    assert tab.locator("#one > div[data-ready]").count() == 0
    say(first)
    tab.locator("#one > div[data-ready]").wait_for()
    one = tab.locator("#one")
    for how in ("zero", "mean"):
        one.get_by_role("group", name="Switch v").get_by_role("button", name=how, exact=True).click()
    one.get_by_role("button", name="Save as page").click()
    (running,) = asked()[2:]
    say(running)
    saving = asked()[3]
    assert (running["page"], saving["page"]) == (False, True)
    with tab.expect_download():
        say(saving)
    waited = asked()[4]
    assert waited["state"]["switches"][0][1] == "mean"
    say(waited)
    tab.locator("#one > div[data-state*=mean]").wait_for()
    one.get_by_role("button", name="Save as page").click()
    say(asked()[5], page=None, error={"problem": "It is full.", "reason": "No room.", "todo": "Make some."})
    one.locator(".s-error", has_text="Make some.").wait_for()
    context.close()


HOSTILE = """<!DOCTYPE html><title>elsewhere</title><script>
async function attempt(name, work) {
  try { return `${name}: ${await work()}`; } catch (error) { return `${name}: refused`; }
}
const state = {text: ["w1"], second: [], switches: [], place: null};
const body = JSON.stringify({client: "x", sequence: 1, has: "", state});
const json = {method: "POST", headers: {"Content-Type": "application/json"}, body};
const frame = (address) => new Promise((done) => { const made = document.createElement("iframe"); made.src = address;
  made.onload = () => { try { done(made.contentDocument?.querySelector("#serve") ? "open" : "shut"); } catch { done("shut"); } };
  document.body.append(made); });
const script = (address) => new Promise((done) => { const made = document.createElement("script"); made.src = address;
  made.onload = () => done("loaded"); made.onerror = () => done("refused"); document.head.append(made); });
const socket = (address) => new Promise((done) => { const made = new WebSocket(address.replace("http", "ws") + "answer");
  made.onopen = () => done("open"); made.onerror = () => done("refused"); });
window.tried = (address) => Promise.all([
  attempt("read", async () => (await fetch(address + "about")).status),
  attempt("opaque", async () => (await (await fetch(address + "about", {mode: "no-cors"})).text()).length),
  attempt("simple", async () => (await fetch(address + "answer", {method: "POST", body})).status),
  attempt("json", async () => (await fetch(address + "answer", json)).status),
  attempt("frame", () => frame(address)), attempt("script", () => script(address + "serve.js")), attempt("socket", () => socket(address)),
]);
</script>"""


def test_a_page_of_elsewhere_gets_nothing_even_with_the_token(gpt, browser, tmp_path):
    (tmp_path / "index.html").write_text(HOSTILE)
    handler = functools.partial(Quiet, directory=str(tmp_path))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    tab = browser.new_context().new_page()
    tab.goto(f"http://localhost:{server.server_port}/")
    found = tab.evaluate("address => tried(address)", gpt.served.address.partition("#")[0])
    tab.context.close()
    server.shutdown()
    server.server_close()
    names = ("read", "opaque", "simple", "json")
    assert found == [*(f"{name}: refused" for name in names), "frame: shut", "script: refused", "socket: refused"]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format, *args):
        pass
