"""The served page over real sockets: clients that leave, are slow, many or too large, with and without the token."""

import contextlib
import json
import re
import socket
import threading
import time
from urllib.parse import urlsplit

import pytest
from tests import tinyhf

from trisect.hf.load import load
from trisect.server import answering, app
from trisect.server.answering import PageModel, SupersededError
from trisect.server.run import start

STATE = {"text": ["w1 w2 w3"], "second": [], "switches": [["v@1.h2", "zero"]], "place": None}


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


def test_the_bounds_are_these():
    assert (app.CONNECTIONS, app.RECEIVING, app.SENDING) == (32, 10, 120)
    assert (app.HEAD, answering.BODY, answering.CLIENTS) == (16_384, 65_536, 64)


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
    monkeypatch.setattr(app, "RECEIVING", 0.4)
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
    monkeypatch.setattr(app, "SENDING", 0.3)
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
    ("size", "words"), [(65_536, b"The request is no JSON."), (65_537, b"The request is too large.")]
)
def test_a_body_has_a_bound(wire, size, words):
    with wire.open(wire.head(headers={"Content-Length": size}) + b" " * size) as made:
        found = b""
        while b"todo" not in found:
            piece = made.recv(65_536)
            assert piece
            found += piece
        assert words in found
