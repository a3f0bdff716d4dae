"""Serve a model: its address, the server in a thread, and its end."""

from __future__ import annotations

import errno
import inspect
import json
import secrets
import socket
import threading
import time
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trisect.core.errors import ModelError, SpecError, need_extra, require, shorten

if TYPE_CHECKING:
    import uvicorn

    from trisect.core.subject import ReadGiven
    from trisect.server.answering import PageModel, PageState

LOOPBACK = ("127.0.0.1", "::1", "localhost")
NAMES = ("localhost", "127.0.0.1", "[::1]")
EVERYWHERE = ("0.0.0.0", "::")  # a server that listens at every address of this machine
EXAMPLE = 10  # words that a page begins with
HTTP = 80  # the port that addresses do not name
PORTS = 65_535
NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)  # another machine's address, or of a kind that this one lacks
SECONDS = 10  # that a server may take to begin, or to end


@dataclass
class Served:
    """A served page: `address` opens it, `stop()` ends it, `wait()` returns once it has ended."""

    address: str
    server: uvicorn.Server
    thread: threading.Thread = field(repr=False)

    def stop(self) -> None:
        """Stop the server after its current computation."""
        self.server.should_exit = True
        self.thread.join(SECONDS)

    def wait(self) -> None:
        """Wait until the server has ended; an interruption ends it."""
        try:
            while self.thread.is_alive():
                self.thread.join(0.5)
        except KeyboardInterrupt:
            self.stop()


def start(
    model: Any,
    text: ReadGiven | Sequence[str] = (),
    second: ReadGiven | Sequence[str] = (),
    host: str = "127.0.0.1",
    port: int = 0,
    **fetched: Any,
) -> Served:
    """Load the model and start serving; `fetched` are options of `trisect.load`. Raises TrisectError."""
    need_extra("starlette", "serve", "trisect serve")
    need_extra("uvicorn", "serve", "trisect serve")
    from trisect.core.subject import AnsweringSubject
    from trisect.lab.subject import load
    from trisect.server.answering import GIVEN, PageModel

    sides = tuple(zip(GIVEN, (text, second), strict=True))
    inputs: dict[str, Any] = {name: side for name, side in sides if not _is_text(side)}
    words: list[Any] = [name if name in inputs else side for name, side in sides]
    texts = ((side,) if isinstance(side, str) else tuple(side) for side in words)
    state, bound = begins(*texts), _bound(host, port)
    try:
        if isinstance(model, AnsweringSubject):
            subject, source = model, ""
        else:
            subject = load(model, **fetched)
            source = _source(model, fetched)
        if not isinstance(subject, AnsweringSubject):
            reason = "It cannot say what it predicts."
            raise ModelError(f"{type(subject).__name__} was given.", reason, "Give a model that trisect.load returns.")
        return _serve(PageModel(subject, source, _example(model), inputs), bound, host, state)
    except BaseException:
        bound.close()
        raise


def _is_text(value: object) -> bool:
    """Whether a value is one or several texts, and no processor output, batch or sample."""
    return isinstance(value, str) or (isinstance(value, (list, tuple)) and all(isinstance(part, str) for part in value))


def _serve(answering: PageModel, bound: socket.socket, host: str, state: PageState | None) -> Served:
    import uvicorn

    from trisect.server.app import HEAD, BoundedProtocol, make_app

    port, token = bound.getsockname()[1], secrets.token_urlsafe(24)
    shown = f"[{host}]" if ":" in host else host
    app = make_app(answering, _hosts(host, shown, port), token)
    quiet = {"log_config": None, "access_log": False, "server_header": False, "proxy_headers": False}
    # what clients do is no event here, and an error of our own is said by the app
    quiet |= {"log_level": "critical", "timeout_graceful_shutdown": 2, "h11_max_incomplete_event_size": HEAD}
    server = uvicorn.Server(uvicorn.Config(app, http=BoundedProtocol, ws="none", lifespan="on", **quiet))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, name="trisect-serve", daemon=True)
    thread.start()
    for _ in range(SECONDS * 100):
        if server.started or not thread.is_alive():
            break
        time.sleep(0.01)
    if not server.started:
        raise SpecError(f"The server on {shown}:{port} did not begin.", "It ended at once.", "Choose another --port.")
    name = shown if host not in EVERYWHERE else socket.gethostname()
    return Served(f"http://{name}:{port}/{token}/{f'#{link(state)}' if state else ''}", server, thread)


def _hosts(host: str, shown: str, port: int) -> frozenset[str]:
    """The Host headers that browsers send to this server; HTTP's default port is omitted."""
    names = {shown.lower()}
    if host in (*LOOPBACK, *EVERYWHERE):
        names |= {*NAMES}
    if host in EVERYWHERE:
        names.add(socket.gethostname().lower())
    return frozenset((*(f"{name}:{port}" for name in names), *(names if port == HTTP else ())))


def _bound(host: str, port: int) -> socket.socket:
    """A listening socket at the address; raises SpecError if there can be none."""
    ok = isinstance(port, int) and not isinstance(port, bool) and 0 <= port <= PORTS
    require(ok, f"port is {shorten(port)}.", f"It is a whole number from 0 to {PORTS:,}.", "Change port accordingly.")
    if not host.strip():  # which the system would read as every address of this machine
        raise SpecError(
            "--host is empty.", "It is an address of this machine.", "Leave --host out, or name an address."
        )
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except (OSError, UnicodeError) as error:
        bound.close()
        words, todo = getattr(error, "strerror", None) or error, "Leave --port out: a free one is chosen."
        if isinstance(error, (socket.gaierror, UnicodeError)) or error.errno in NOT_HERE:
            todo = "Give --host an address of this machine, or leave it out."
        raise SpecError(f"{host}:{port} cannot be served at.", f"The system says: {words}.", todo) from None
    return bound


def _example(model: Any) -> str:
    """Words known to a study's model: the first of its training text; empty for other models."""
    from trisect.lab.folder import Folder
    from trisect.lab.run_folder import is_study
    from trisect.text.corpus import Corpus

    if not isinstance(model, (str, Path)):
        return ""
    place = Path(model)
    where = place if is_study(place) else place.parent.parent if place.parent.name == "runs" else None
    if where is None or not is_study(where):
        return ""
    corpus = Corpus.load(Folder(where).corpus)
    return " ".join(corpus.vocabulary[n] for n in corpus.splits["train"].tokens[:EXAMPLE].tolist())


def _source(model: Any, fetched: dict[str, Any]) -> str:
    """The argument for `trisect.load`; empty for a module, which has no name."""
    if not isinstance(model, (str, Path)):
        return ""
    from trisect.lab.subject import load

    defaults = {name: parameter.default for name, parameter in inspect.signature(load).parameters.items()}
    options = [f"{name}={value!r}" for name, value in fetched.items() if value != defaults[name]]
    return ", ".join([repr(str(model)), *options])


def begins(text: tuple[str, ...], second: tuple[str, ...]) -> PageState | None:
    """The initial state of a page; None without text. Raises SpecError for a second text alone."""
    from trisect.server.answering import PageState

    if not any(text) and any(second):
        reason = "It is there to patch from, into a text."
        raise SpecError("A second text was given without a text.", reason, "Give the text too, or leave both out.")
    return PageState(text, second) if any(text) else None


def link(state: PageState) -> str:
    """A state as the query string of a link."""
    switches = [list(pair) for pair in state.switches]
    content = {"text": list(state.text), "second": list(state.second), "switches": switches, "place": state.place}
    return urlsafe_b64encode(json.dumps(content, ensure_ascii=False).encode()).decode().rstrip("=")
