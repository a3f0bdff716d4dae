"""The served page's protocol, who is answered, the Python that does the same; real sockets, slow, many or too large."""

import asyncio
import base64
import contextlib
import importlib.util
import json
import re
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urlsplit

import pytest
import torch
from click.testing import CliRunner
from starlette.testclient import TestClient
from tests import tinyhf

import trisect
from trisect.cli import main
from trisect.core import errors
from trisect.core.errors import CorpusError, SiteError, SpecError
from trisect.core.schema import read
from trisect.hf.load import load
from trisect.measure.intervention import intervene
from trisect.server import answering, app, run, widget
from trisect.server.answering import (
    MAX_BODY_BYTES,
    MAX_CHARACTERS,
    MAX_SWITCHES,
    PageModel,
    PageState,
    ReadingQueue,
    SupersededError,
    python,
    read_request,
    weights_in,
)
from trisect.server.app import HEADERS, make_app
from trisect.server.run import start

HOST, TOKEN = "127.0.0.1:8017", "a-token"
STATE = {"text": ["w1 w2 w3"], "second": [], "switches": [["v@1.h2", "zero"]], "place": None}


@pytest.fixture(scope="module")
def gpt():
    return load(tinyhf.gpt2(), tinyhf.tokenizer(False))


@pytest.fixture(scope="module")
def client(gpt):
    app = make_app(PageModel(gpt, "'where'"), frozenset({HOST}), TOKEN)
    with TestClient(app, base_url=f"http://{HOST}") as made:
        yield made


def asked(state=STATE, sequence=1, has="", client="a"):
    return {"client": client, "sequence": sequence, "has": has, "state": state}


def unpacked(content):
    size = int.from_bytes(content[:4], "big")
    words = json.loads(content[4 : 4 + size])
    assert len(content) == 4 + size + sum(words.get("chunks", ()))
    return words


def test_an_answer_holds_what_python_finds(client, gpt):
    reply = client.post(f"/{TOKEN}/answer", json=asked())
    words = unpacked(reply.content)
    change = intervene(gpt, "w1 w2 w3", {"v@1.h2": "zero"})
    assert words["moved"] == pytest.approx(change.moved.tolist(), abs=1e-8)
    assert [p[0] for p in words["predictions"]] == [p.token for p in change.predictions()]
    assert [p[1:] for p in words["predictions"]] == [pytest.approx([p.before, p.after]) for p in change.predictions()]
    assert words["switches"] == [["v@1.h2", "zero"]]
    assert len(words["manifest"]["layers"]) == 2
    again = unpacked(client.post(f"/{TOKEN}/answer", json=asked(sequence=2, has=words["picture"])).content)
    assert "manifest" not in again
    assert again["moved"] == words["moved"]


def test_what_the_page_is_made_of(client):
    about = client.get(f"/{TOKEN}/about").json()
    assert about["layers"][0] == {"stack": "plain", "layer": 1, "heads": [4, 4]}
    assert not about["paired"]
    page = client.get(f"/{TOKEN}/")
    assert page.headers["content-type"].startswith("text/html")
    assert "<script>" not in page.text
    assert "style=" not in page.text
    for name, kind in (("serve.js", "text/javascript"), ("serve.css", "text/css")):
        assert client.get(f"/{TOKEN}/{name}").headers["content-type"].startswith(kind)
    assert client.get(f"/{TOKEN}/other").status_code == 404
    policy = page.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy


def test_the_offline_explorer_says_what_is_switched(client):
    made = client.post(f"/{TOKEN}/offline", json=asked(sequence=3)).text
    assert made.startswith("<!DOCTYPE html>")
    assert "v@1.h2 to zero" in made
    wrong = client.post(f"/{TOKEN}/offline", json=asked({**STATE, "place": 99}, sequence=1, client="a:save"))
    assert wrong.headers["content-type"] == "application/octet-stream"  # a page has no place
    wrong = client.post(f"/{TOKEN}/offline", json=asked({**STATE, "switches": [["v@9", "zero"]]}, 2, client="a:save"))
    assert "outside the model" in wrong.json()["problem"]


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/about", {}),
        ("/a-toke/about", {}),
        (f"/{TOKEN}x/about", {}),
        (f"/{TOKEN}/about", {"host": "evil.example:8017"}),
        (f"/{TOKEN}/about", {"origin": "null"}),
        (f"/{TOKEN}/about", {"origin": "https://127.0.0.1:8017"}),
        (f"/{TOKEN}/about", {"sec-fetch-site": "cross-site"}),
        (f"/{TOKEN}/", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}),
        (
            f"/{TOKEN}/about",
            {"sec-fetch-site": "same-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"},
        ),
    ],
)
def test_nobody_else_is_answered(client, path, headers):
    for reply in (client.get(path, headers=headers), client.post(path, headers=headers, json=asked())):
        assert reply.status_code == 403
        assert "layers" not in reply.text
        assert TOKEN not in reply.text
        assert {name: reply.headers[name] for name in HEADERS} == dict(HEADERS)
        assert not [name for name in reply.headers if name.startswith("access-control")]


def test_a_request_with_two_hosts_is_not_answered(client):
    own = ("host", str(client.base_url.netloc.decode()))
    assert client.get(f"/{TOKEN}/about", headers=[own]).status_code == 200
    assert client.get(f"/{TOKEN}/about", headers=[own, ("host", "evil.example")]).status_code == 403


def test_a_preflight_and_a_web_socket_get_nothing(client):
    asks = {"origin": "http://evil.example", "access-control-request-method": "POST"}
    assert client.options(f"/{TOKEN}/answer", headers=asks).status_code == 403
    assert client.options(f"/{TOKEN}/answer").status_code == 405
    assert client.get(f"/{TOKEN}/answer").status_code == 405
    from starlette.websockets import WebSocketDisconnect

    with pytest.raises(WebSocketDisconnect), client.websocket_connect(f"/{TOKEN}/answer"):
        pass


def test_a_link_from_elsewhere_opens_the_page_and_nothing_but_the_page(client):
    comes = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert client.get(f"/{TOKEN}/", headers=comes).status_code == 200
    assert client.get(f"/{TOKEN}/about", headers=comes).status_code == 403


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"text": ["w1 " * MAX_CHARACTERS]}, "characters"),
        ({"text": []}, "no text"),
        ({"text": ["a", "b", "c"]}, "text .*has 3"),
        ({"switches": [["v@1", "zero"]] * 2}, "switched twice"),
        ({"switches": [[f"v@{n + 1}", "zero"] for n in range(MAX_SWITCHES + 1)]}, f"switches .*has {MAX_SWITCHES + 1}"),
        ({"switches": [["v@1", "away"]]}, "switched to 'away'"),
        ({"switches": [["v@1-99999999", "zero"]]}, "A site is"),
        ({"switches": [["v" * 1000, "zero"]]}, "A site is"),
        ({"place": -1}, "place in the state is"),
        ({"positions": [-1]}, "positions .*holds -1"),
        ({"positions": [True]}, "positions .*holds True"),
        ({"positions": [0] * 257}, "positions .*has 257"),
    ],
)
def test_a_state_that_is_none_is_refused(change, words):
    with pytest.raises(SpecError, match=words) as error:
        read(PageState, {**STATE, **change}, "the state")
    assert error.value.reason
    assert error.value.todo


def test_a_misspelt_site_is_an_error_of_sites():
    with pytest.raises(SiteError, match="not of that form"):
        read(PageState, {**STATE, "switches": [["v3", "zero"]]}, "the state")


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"\xff", b'{"client": NaN}', json.dumps(asked(sequence=-1)).encode(),
     json.dumps(asked(client="x" * 65)).encode(), json.dumps(asked(sequence=2**60)).encode()],
)  # fmt: skip
def test_a_question_that_is_none_is_refused(body):
    with pytest.raises(SpecError):
        read_request(body)


def test_errors_come_as_three_parts_and_sizes_are_bounded(client):
    wrong = {**STATE, "switches": [["v@7", "zero"]]}
    found = client.post(f"/{TOKEN}/answer", json=asked(wrong, sequence=4)).json()
    assert "outside the model" in found["problem"]
    assert found["todo"] == "Choose a layer that attends."
    large = client.post(
        f"/{TOKEN}/answer", content=b" " * (MAX_BODY_BYTES + 1), headers={"content-type": "application/json"}
    )
    assert large.json()["problem"] == "The request is too large."
    plain = client.post(f"/{TOKEN}/answer", content=json.dumps(asked()), headers={"content-type": "text/plain"})
    assert plain.json()["problem"] == "The request is 'text/plain'."


def test_text_stays_text_and_control_characters_are_signs(client):
    nasty = {**STATE, "text": ["w1 <script>alert(1)</script> \x1b[2J"], "switches": []}
    reply = client.post(f"/{TOKEN}/answer", json=asked(nasty, sequence=5))
    assert reply.headers["content-type"] == "application/octet-stream"
    assert "\x1b" not in json.dumps(unpacked(reply.content), ensure_ascii=False)


def test_a_newer_question_ends_the_earlier_ones_of_its_page():
    began, go = threading.Event(), threading.Event()
    done = []

    def slow(check):
        began.set()
        assert go.wait(60)
        check()
        done.append("slow")

    async def ask():
        line = ReadingQueue()
        first = asyncio.create_task(line.run("a", 1, slow))
        await asyncio.to_thread(began.wait, 10)
        second = asyncio.create_task(line.run("a", 2, lambda check: done.append("second")))
        other = asyncio.create_task(line.run("b", 1, lambda check: done.append("other")))
        third = asyncio.create_task(line.run("a", 3, lambda check: done.append("third") or "answer"))
        late = asyncio.create_task(line.run("a", 2, lambda check: done.append("late")))
        await asyncio.sleep(0)
        go.set()
        found = await asyncio.gather(first, second, other, third, late, return_exceptions=True)
        line.close()
        return found

    first, second, _, third, late = asyncio.run(ask())
    assert [type(one) for one in (first, second, late)] == [SupersededError] * 3
    assert third == "answer"
    assert done == ["other", "third"]


def test_the_newest_question_is_remembered_of_64_pages():
    async def ask(line, client, sequence):
        try:
            return await line.run(client, sequence, lambda check: sequence)
        except SupersededError:
            return "superseded"

    async def questions(pages):
        line = ReadingQueue()
        for n in range(pages):
            await ask(line, f"page {n}", 9)
        found = await ask(line, "page 0", 8)
        line.close()
        return found

    assert asyncio.run(questions(64)) == "superseded"
    assert asyncio.run(questions(65)) == 8


def test_the_python_is_what_was_done(gpt, capsys):
    state = PageState(("w1 'w2' \\ w3",), ("w9 w8",), (("v@1.h2", "second"), ("q@all", "mean")), 1)
    code = python("'where'", state)
    names = {"loaded": [], "trisect": None}
    stand = SimpleNamespace(load=lambda where: names["loaded"].append(where) or gpt, intervene=intervene)
    exec(code.replace("import trisect\n", ""), space := {"trisect": stand})
    assert names["loaded"] == ["where"]
    answer = PageModel(gpt, "'where'").answer(state, "").words
    assert answer["moved"] == pytest.approx(space["change"].moved.tolist(), abs=1e-8)
    assert answer["python"] == code
    assert "v@1.h2 second" in capsys.readouterr().out
    assert "model = ..." in python("", state)


def test_without_the_extra_the_command_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(errors, "is_installed", lambda package: False)
    said = CliRunner().invoke(main, ["serve", "nowhere"])
    assert said.exit_code == 2
    assert "trisect serve needs the package starlette." in said.stderr
    assert "pip install 'trisect[serve]'" in said.stderr


def test_a_port_that_is_taken_and_a_text_that_is_too_long_are_refused_before_a_model_is_loaded():
    with run._listen("127.0.0.1", 0) as taken:
        taken.listen()
        with pytest.raises(SpecError, match="Cannot listen at") as error:
            run.start("nowhere", port=taken.getsockname()[1])
    assert "a free one is chosen" in error.value.todo
    with pytest.raises(SpecError, match="characters"):
        run.start("nowhere", "x" * (MAX_CHARACTERS + 1))


@pytest.mark.parametrize("host", ["999.1.1.1", "x" * 70, "192.0.2.1"])
def test_an_address_that_is_not_of_this_machine_is_said_to_be_one(host, monkeypatch):
    if host[0] == "9":  # without asking for its name

        def nowhere(own, address):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

        named = type("Named", (socket.socket,), {"bind": nowhere})
        monkeypatch.setattr(run.socket, "socket", named)
    with pytest.raises(SpecError, match="Cannot listen at") as error:
        run._listen(host, 0)
    assert error.value.todo == "Give --host an address of this machine, or leave it out."


@pytest.mark.parametrize("host", ["", " "])
def test_an_empty_address_is_not_every_address(host):
    with pytest.raises(SpecError) as error:
        run._listen(host, 0)
    assert error.value.problem == "--host is empty."
    assert error.value.reason == "It is an address of this machine."
    assert error.value.todo == "Leave --host out, or name an address."


def test_a_port_that_no_machine_has_and_a_second_text_alone_are_refused(gpt):
    with pytest.raises(SpecError, match="port is 65536"):
        run.start(gpt, port=65_536)
    assert run.initial_state(("",), ("",)) is None
    starts: list[Callable[[], object]] = [lambda: run.start(gpt, second="w1")]
    if importlib.util.find_spec("anywidget"):
        starts.append(lambda: trisect.switchboard(gpt, second="w1"))
    for begin in starts:
        with pytest.raises(SpecError, match="without a text") as error:
            begin()
        assert "patch from" in error.value.reason
        assert "Give the text too" in error.value.todo


def test_browsers_leave_http_s_own_port_out(gpt):
    assert run._hosts("127.0.0.1", "127.0.0.1", 8017) == {f"{name}:8017" for name in run.LOOPBACK_HOSTS}
    assert run._hosts("::1", "[::1]", 80) == {*run.LOOPBACK_HOSTS, *(f"{name}:80" for name in run.LOOPBACK_HOSTS)}
    app = make_app(PageModel(gpt), run._hosts("127.0.0.1", "127.0.0.1", 80), TOKEN)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        origin = {"origin": "http://127.0.0.1"}
        assert client.get(f"/{TOKEN}/", headers=origin).status_code == 200
        assert client.get(f"/{TOKEN}/", headers={**origin, "host": "evil.example"}).status_code == 403


def test_the_kernel_says_what_the_server_says(gpt):
    model = PageModel(gpt, "'where'")
    said = widget.reply(model, asked(sequence=7))
    words = model.answer(read(PageState, STATE, "the state"), "").words
    assert (said.content["sequence"], said.content["words"]) == (7, words)
    assert [len(chunk) for chunk in said.buffers] == words["chunks"]
    page = widget.reply(model, {**asked(), "page": True})
    assert str(page.content["page"]).startswith("<!DOCTYPE html>")
    wrong = widget.reply(model, asked({**STATE, "switches": [["v@9", "zero"]]}))
    assert "outside the model" in str(wrong.content["error"])
    none = widget.reply(model, {"sequence": [], "client": 1}).content
    assert (none["sequence"], none["client"]) == (0, "")
    assert [one.content["client"] for one in (said, page, wrong)] == ["a"] * 3


def test_a_notebook_gets_a_widget_that_answers(gpt):
    pytest.importorskip("anywidget")
    made = cast(Any, trisect.switchboard(gpt, "w1 w2", "w3 w4"))
    sent = []
    made.send = lambda content, buffers: sent.append((content, buffers))
    made._handle_custom_msg(asked(), [])
    ((content, buffers),) = sent
    assert content["words"]["switches"] == [["v@1.h2", "zero"]]
    assert len(buffers) == 5
    state = json.loads(base64.urlsafe_b64decode(made.state + "=" * (-len(made.state) % 4)))
    assert (state["text"], state["second"]) == (["w1 w2"], ["w3 w4"])


def test_an_error_that_nobody_expected_reaches_the_view_and_then_the_kernel(gpt, monkeypatch):
    pytest.importorskip("anywidget")

    def fail(*given):
        raise ZeroDivisionError("no \x1b way")

    monkeypatch.setattr(PageModel, "answer", fail)
    made = cast(Any, trisect.switchboard(gpt, "w1 w2"))
    sent, logged = [], []
    made.send = lambda content, buffers: sent.append(content)
    monkeypatch.setattr(made.log, "warning", lambda *said, **how: logged.append((len(sent), said[-1])))
    made._handle_custom_msg(asked(sequence=5, client="view"), [])
    (content,) = sent
    assert (content["sequence"], content["client"]) == (5, "view")
    assert content["error"]["problem"] == "The kernel could not answer."
    assert "ZeroDivisionError: no" in content["error"]["reason"]
    assert "\x1b" not in content["error"]["reason"]
    assert content["error"]["todo"]
    assert [(n, type(error)) for n, error in logged] == [(1, ZeroDivisionError)]


def test_without_anywidget_the_widget_names_the_command_that_installs_it(gpt, monkeypatch):
    monkeypatch.setattr(errors, "is_installed", lambda package: False)
    with pytest.raises(SpecError, match="needs the package anywidget") as error:
        trisect.switchboard(gpt)
    assert "trisect[notebook]" in error.value.todo


def test_a_small_model_answers_in_one_thread_and_leaves_the_number_as_it_was(gpt, monkeypatch):
    seen = []
    model = PageModel(gpt)
    answer = model._answer
    monkeypatch.setattr(model, "_answer", lambda *given: seen.append(torch.get_num_threads()) or answer(*given))
    torch.set_num_threads(2)
    try:
        model.answer(read(PageState, STATE, "the state"), "")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert seen == [1]
    assert weights_in(gpt) == sum(p.numel() for p in gpt.model.parameters())


def test_the_python_names_only_what_was_chosen():
    assert run._source("somewhere", {"device": "auto", "dtype": None}) == "'somewhere'"
    assert run._source("somewhere", {"dtype": "float64", "pickle": False}) == "'somewhere', dtype='float64'"
    assert run._source(object(), {}) == ""


def test_a_page_and_its_offline_copy_refuse_a_switch_that_does_nothing_and_say_what_is_left_out():
    shown = PageModel(load(tinyhf.bart(), tinyhf.tokenizer()))
    state = PageState(("w1 w2 w3 w4 w5 w6 w7", "w3 w4"), (), (("dec.v@1", "zero"),), None, (6,))
    for ask in (lambda: shown.answer(state, ""), lambda: shown.page(state)):
        with pytest.raises(CorpusError, match="the switch would do nothing"):
            ask()
    some = replace(state, positions=(1, 6))
    note = "dec.v@1 has 4 tokens to switch: none of token 7."
    assert note in cast(list[str], shown.answer(some, "").words["notes"])
    assert note in shown.page(some)


class Wire:
    """A served page, and raw connections to it."""

    def __init__(self, served):
        self.host, self.token = urlsplit(served.address).netloc, urlsplit(served.address).path[1:-1]
        self.port, self.server = int(self.host.rpartition(":")[2]), served.server

    def open(self, text=b"", buffer=None) -> socket.socket:
        made = socket.socket()
        if buffer:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        made.settimeout(20)
        made.connect(("127.0.0.1", self.port))
        made.sendall(text)
        return made

    def head(self, path: str = "answer", token: str | None = None, headers: dict[str, object] | None = None) -> bytes:
        lines = {"Host": self.host, "Content-Type": "application/json", **(headers or {})}
        begin = f"{'GET' if path == 'about' else 'POST'} /{self.token if token is None else token}/{path} HTTP/1.1"
        return "\r\n".join([begin, *(f"{name}: {value}" for name, value in lines.items()), "", ""]).encode()

    def question(self, sequence=1, client="a", state=STATE) -> bytes:
        body = json.dumps({"client": client, "sequence": sequence, "has": "", "state": state}).encode()
        return self.head(headers={"Content-Length": len(body)}) + body

    def wait(self, of) -> None:
        end = time.monotonic() + 20
        while not of():
            assert time.monotonic() < end
            time.sleep(0.01)


def status(made: socket.socket) -> int:
    """The status of the answer; 0 where the connection was closed without one."""
    with contextlib.suppress(ConnectionError):
        found = re.match(rb"HTTP/1.1 (\d+)", made.recv(65_536))
        return int(found[1]) if found else 0
    return 0


def is_closed(made: socket.socket) -> bool:
    """Whether the server closes the connection, after whatever it says."""
    with contextlib.suppress(ConnectionError):
        while made.recv(65_536):
            pass
    return True


@pytest.fixture(scope="module")
def served():
    made = start(load(tinyhf.gpt2(), tinyhf.tokenizer(False)))
    yield made
    made.stop()
    assert not made.thread.is_alive()


@pytest.fixture
def wire(served, caplog, capfd):
    made = Wire(served)
    yield made
    made.wait(lambda: not made.server.server_state.connections)
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")


def test_clients_that_leave_print_nothing_and_the_next_is_answered(wire):
    whole = wire.question()
    for n in range(100):
        wire.open(whole[: len(whole) * n // 100]).close()
    with wire.open(wire.question(sequence=2)) as made:
        assert status(made) == 200


def test_what_a_page_that_has_gone_asked_is_not_computed(wire, monkeypatch):
    began, go, done = threading.Event(), threading.Event(), []

    def answer(self, state, has, check):
        began.set()
        assert go.wait(20)
        try:
            check()
        except SupersededError:
            done.append("ended")
            raise
        done.append("computed")
        raise ZeroDivisionError

    monkeypatch.setattr(PageModel, "answer", answer)
    first, second = wire.open(wire.question(client="first")), wire.open(wire.question(client="second"))
    assert began.wait(20)
    first.close()
    second.close()
    wire.wait(lambda: not wire.server.server_state.connections)
    go.set()
    wire.wait(lambda: not wire.server.server_state.tasks)
    assert done == ["ended"]


def test_a_client_that_is_slow_is_closed_with_and_without_the_token(wire, monkeypatch):
    monkeypatch.setattr(app, "RECEIVE_SECONDS", 0.4)
    begun = time.monotonic()
    with (
        wire.open() as silent,
        wire.open(wire.head()[:-2]) as head,
        wire.open(wire.head(headers={"Content-Length": 9}) + b"{") as body,
    ):
        for _ in range(6):  # a byte now and then is no way to stay
            time.sleep(0.1)
            with contextlib.suppress(ConnectionError):
                head.sendall(b"X")
                body.sendall(b" ")
        assert all(is_closed(made) for made in (silent, head, body))
    assert time.monotonic() - begun < 5


def test_a_client_that_does_not_take_its_answer_is_closed(wire, monkeypatch):
    monkeypatch.setattr(app, "SEND_SECONDS", 0.3)
    monkeypatch.setattr(PageModel, "answer", lambda *given: answering.PageAnswer({}, (bytes(20_000_000),)))
    with wire.open(wire.question(client="slow"), buffer=4096) as made:
        assert made.recv(12) == b"HTTP/1.1 200"
        wire.wait(lambda: not wire.server.server_state.connections)


def test_of_many_connections_the_one_that_waits_longest_makes_room(wire):
    held = [wire.open() for _ in range(32)]
    wire.wait(lambda: len(wire.server.server_state.connections) == 32)
    with wire.open(wire.head("about")) as page:
        assert status(page) == 200
        assert is_closed(held[0])
        more = wire.open()
        assert is_closed(held[1])
        held[2].sendall(wire.head("about"))
        assert status(held[2]) == 200
    for made in (*held, more):
        made.close()


def test_those_who_are_answered_are_not_closed_for_others(wire, monkeypatch):
    go = threading.Event()

    def answer(*given):
        assert go.wait(20)
        return answering.PageAnswer({}, ())

    monkeypatch.setattr(PageModel, "answer", answer)
    asking = [wire.open(wire.question(client=str(n))) for n in range(32)]
    wire.wait(lambda: len(wire.server.server_state.tasks) == 32)
    with wire.open(wire.head("about")) as late:
        assert status(late) == 0
    go.set()
    assert [status(made) for made in asking] == [200] * 32
    for made in asking:
        made.close()


@pytest.mark.parametrize(("over", "expected"), [(0, 200), (1, 431)])
def test_headers_have_a_bound(wire, over, expected):
    usual = {"host": wire.host, "content-type": "application/json", "x": ""}
    more = "y" * (16_384 - sum(len(name) + len(value) for name, value in usual.items()) + over)
    with wire.open(wire.head("about", headers={"X": more})) as made:
        assert status(made) == expected


def test_headers_without_an_end_are_refused_while_they_come(wire):
    with wire.open() as made, contextlib.suppress(ConnectionError):
        made.sendall(b"GET / HTTP/1.1\r\n")
        for _ in range(100):
            made.sendall(b"X: " + b"y" * 1_000 + b"\r\n")
        assert is_closed(made)


@pytest.mark.parametrize("token", [None, "another"])
def test_a_chunked_body_is_not_read_on_after_its_refusal(wire, token):
    with wire.open(wire.head(token=token, headers={"Transfer-Encoding": "chunked"})) as made:
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < 50_000_000:
                made.sendall(b"10000\r\n" + b" " * 65_536 + b"\r\n")
                sent += 65_536
        assert sent < 50_000_000
    assert (
        wire.server.server_state.connections == set()
        or wire.wait(lambda: not wire.server.server_state.connections) is None
    )


def test_who_has_no_token_is_refused_before_the_body_comes(wire):
    with wire.open(wire.head(token="another", headers={"Content-Length": 60_000})) as made:
        assert status(made) == 403
        assert is_closed(made)


@pytest.mark.parametrize(
    ("size", "words"), [(65_536, b"The request is not JSON."), (65_537, b"The request is too large.")]
)
def test_a_body_has_a_bound(wire, size, words):
    with wire.open(wire.head(headers={"Content-Length": size}) + b" " * size) as made:
        found = b""
        while b"todo" not in found:
            piece = made.recv(65_536)
            assert piece
            found += piece
        assert words in found
