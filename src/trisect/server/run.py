"""Serve a model: its address, the server in a thread, and how it ends."""

from __future__ import annotations

import errno
import inspect
import json
import secrets
import socket
import threading
import webbrowser
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trisect.core.errors import ModelError, SpecError, need_extra, require, shorten

if TYPE_CHECKING:
    import uvicorn

    from trisect.server.answering import PageModel, PageState

LOOPBACK = ("127.0.0.1", "::1", "localhost")
NAMES = ("localhost", "127.0.0.1", "[::1]")
EXAMPLE = 10  # words that a page begins with
HTTP = 80  # the port that addresses do not name
PORTS = 65_535
NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)  # another machine's address, or of a kind that this one lacks
SECONDS = 10  # that a server may take to begin, or to end


@dataclass
class Served:
    """A served page: `address` opens it, `stop()` ends it, `wait()` returns when it has ended."""

    address: str
    server: uvicorn.Server
    thread: threading.Thread = field(repr=False)

    def stop(self) -> None:
        """End the server; what it is computing is finished first."""
        self.server.should_exit = True
        self.thread.join(SECONDS)

    def wait(self) -> None:
        """Return when the server has ended; ends it when interrupted."""
        try:
            while self.thread.is_alive():
                self.thread.join(0.5)
        except KeyboardInterrupt:
            self.stop()


def start(
    model: Any,
    text: str | Sequence[str] = (),
    second: str | Sequence[str] = (),
    host: str = "127.0.0.1",
    port: int = 0,
    **fetched: Any,
) -> Served:
    """Load the model and begin to serve it; `fetched` are options of `trisect.load`. Raises TrisectError."""
    need_extra("starlette", "serve", "trisect serve")
    need_extra("uvicorn", "serve", "trisect serve")
    from trisect.core.subject import AnsweringSubject
    from trisect.lab.subject import load
    from trisect.server.answering import PageModel

    begun = begins(_texts(text), _texts(second))
    bound = _bound(host, port)
    try:
        if isinstance(model, AnsweringSubject):
            subject, source = model, ""
        else:
            subject = load(model, **fetched)
            source = _source(model, fetched)
        if not isinstance(subject, AnsweringSubject):
            known = "It cannot say what it predicts."
            raise ModelError(f"{type(subject).__name__} was given.", known, "Give a model that trisect.load returns.")
        return _serve(PageModel(subject, source, _example(model)), bound, host, begun)
    except BaseException:
        bound.close()
        raise


def _serve(answering: PageModel, bound: socket.socket, host: str, begun: PageState | None) -> Served:
    import uvicorn

    from trisect.server.app import make_app
    from trisect.server.connections import HEAD, BoundedProtocol

    port, token = bound.getsockname()[1], secrets.token_urlsafe(24)
    shown = f"[{host}]" if ":" in host else host
    app = make_app(answering, _hosts(host, shown, port), token)
    quiet = {"log_config": None, "access_log": False, "server_header": False, "proxy_headers": False}
    # what clients do is no event here, and an error of our own is said by the app
    quiet |= {"log_level": "critical", "timeout_graceful_shutdown": 2, "h11_max_incomplete_event_size": HEAD}
    server = uvicorn.Server(uvicorn.Config(app, http=BoundedProtocol, ws="none", lifespan="on", **quiet))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, name="trisect-serve", daemon=True)
    thread.start()
    begin = threading.Event()
    for _ in range(SECONDS * 100):
        if server.started or not thread.is_alive():
            break
        begin.wait(0.01)
    if not server.started:
        raise SpecError(f"The server on {shown}:{port} did not begin.", "It ended at once.", "Choose another --port.")
    name = shown if host not in ("0.0.0.0", "::") else socket.gethostname()
    return Served(f"http://{name}:{port}/{token}/{f'#{link(begun)}' if begun else ''}", server, thread)


def _hosts(host: str, shown: str, port: int) -> frozenset[str]:
    """What browsers send as Host to this server: HTTP's own port is left out."""
    own = (*NAMES, shown.lower()) if host in LOOPBACK else (shown.lower(), *_names_here(host))
    return frozenset((*(f"{name}:{port}" for name in own), *(own if port == HTTP else ())))


def _names_here(host: str) -> tuple[str, ...]:
    """By which names a server that listens everywhere is called."""
    return (*NAMES, socket.gethostname().lower()) if host in ("0.0.0.0", "::") else ()


def _bound(host: str, port: int) -> socket.socket:
    """A socket that listens at the address; raises SpecError where none can."""
    ok = isinstance(port, int) and not isinstance(port, bool) and 0 <= port <= PORTS
    require(ok, f"port is {shorten(port)}.", f"It is a whole number from 0 to {PORTS:,}.", "Give port as that.")
    if not host.strip():  # which the system would read as every address of this machine
        raise SpecError(
            "--host is empty.", "It is an address of this machine.", "Leave --host out, or name an address."
        )
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
    except (OSError, UnicodeError) as error:
        made.close()
        said = error.strerror if isinstance(error, OSError) else None
        known, todo = f"The system says: {said or error}.", "Leave --port out: a free one is chosen."
        if isinstance(error, (socket.gaierror, UnicodeError)) or error.errno in NOT_HERE:
            todo = "Give --host an address of this machine, or leave it out."
        raise SpecError(f"{host}:{port} cannot be served at.", known, todo) from None
    return made


def _example(model: Any) -> str:
    """Words that a study's model knows: the first of the text that it was trained on; empty for any other model."""
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


def _texts(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _source(model: Any, fetched: dict[str, Any]) -> str:
    """What `trisect.load` is given; empty for a module, which has no name."""
    if not isinstance(model, (str, Path)):
        return ""
    from trisect.lab.subject import load

    plain = {name: one.default for name, one in inspect.signature(load).parameters.items()}
    named = [f"{name}={value!r}" for name, value in fetched.items() if value != plain[name]]
    return ", ".join([repr(str(model)), *named])


def begins(text: tuple[str, ...], second: tuple[str, ...]) -> PageState | None:
    """The state that a page begins with; None where no text is given. Raises SpecError for a second text alone."""
    from trisect.server.answering import PageState

    if not any(text) and any(second):
        known = "It is there to patch from, into a text."
        raise SpecError("A second text was given without a text.", known, "Give the text too, or leave both out.")
    return PageState(text, second) if any(text) else None


def link(state: PageState) -> str:
    """A state as links hold it."""
    switches = [list(pair) for pair in state.switches]
    held = {"text": list(state.text), "second": list(state.second), "switches": switches, "place": state.place}
    return urlsafe_b64encode(json.dumps(held, ensure_ascii=False).encode()).decode().rstrip("=")


def open_page(address: str) -> None:
    """Open the address in the browser that the system has."""
    webbrowser.open(address)
