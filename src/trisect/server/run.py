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

from trisect.core.errors import ModelError, SpecError, require, require_extra, shorten

if TYPE_CHECKING:
    import uvicorn

    from trisect.core.subject import Readable
    from trisect.server.answering import PageModel, PageState

LOOPBACK = ("127.0.0.1", "::1", "localhost")
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")
ALL_ADDRESSES = ("0.0.0.0", "::")  # to listen at every address of this machine
EXAMPLE_WORDS = 10  # words of the example text
HTTP_PORT = 80  # omitted in addresses
MAX_PORT = 65_535
NOT_LOCAL = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)  # another machine's address, or an unsupported kind of address
START_STOP_SECONDS = 10  # for the server to start or stop


@dataclass
class ServedPage:
    """A served page: `address` opens it, `stop()` ends it, `wait()` returns once it has ended."""

    address: str
    server: uvicorn.Server
    thread: threading.Thread = field(repr=False)

    def stop(self) -> None:
        """Stop the server after its current computation."""
        self.server.should_exit = True
        self.thread.join(START_STOP_SECONDS)

    def wait(self) -> None:
        """Wait until the server has ended; an interruption ends it."""
        try:
            while self.thread.is_alive():
                self.thread.join(0.5)
        except KeyboardInterrupt:
            self.stop()


def start(
    model: Any,
    text: Readable | Sequence[str] = (),
    second: Readable | Sequence[str] = (),
    host: str = "127.0.0.1",
    port: int = 0,
    **load_options: Any,
) -> ServedPage:
    """Load the model and start serving; `load_options` are options of `trisect.load`. Raises TrisectError."""
    require_extra("starlette", "serve", "trisect serve")
    require_extra("uvicorn", "serve", "trisect serve")
    from trisect.core.subject import AnsweringSubject
    from trisect.lab.subject import load
    from trisect.server.answering import INPUT_NAMES, PageModel

    named = dict(zip(INPUT_NAMES, (text, second), strict=True))
    inputs: dict[str, Any] = {name: value for name, value in named.items() if not _is_text(value)}
    texts: list[Any] = [name if name in inputs else value for name, value in named.items()]
    state = initial_state(*((value,) if isinstance(value, str) else tuple(value) for value in texts))
    listener = _listen(host, port)
    try:
        if isinstance(model, AnsweringSubject):
            subject, source = model, ""
        else:
            subject = load(model, **load_options)
            source = _source(model, load_options)
        if not isinstance(subject, AnsweringSubject):
            reason = "It has no predictions."
            raise ModelError(f"{type(subject).__name__} was given.", reason, "Give a model that trisect.load returns.")
        return _serve(PageModel(subject, source, _example(model), inputs), listener, host, state)
    except BaseException:
        listener.close()
        raise


def _is_text(value: object) -> bool:
    """Whether a value is one or several texts, and no processor output, batch or sample."""
    return isinstance(value, str) or (isinstance(value, (list, tuple)) and all(isinstance(part, str) for part in value))


def _serve(answering: PageModel, listener: socket.socket, host: str, state: PageState | None) -> ServedPage:
    import uvicorn

    from trisect.server.app import MAX_HEADER_BYTES, BoundedProtocol, make_app

    port, token = listener.getsockname()[1], secrets.token_urlsafe(24)
    shown = f"[{host}]" if ":" in host else host
    app = make_app(answering, _hosts(host, shown, port), token)
    options = {"access_log": False, "server_header": False, "proxy_headers": False, "timeout_graceful_shutdown": 2}
    # actions of clients are not logged, and the app logs its own errors
    options |= {"log_config": None, "log_level": "critical", "h11_max_incomplete_event_size": MAX_HEADER_BYTES}
    server = uvicorn.Server(uvicorn.Config(app, http=BoundedProtocol, ws="none", lifespan="on", **options))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="trisect-serve", daemon=True)
    thread.start()
    for _ in range(START_STOP_SECONDS * 100):
        if server.started or not thread.is_alive():
            break
        time.sleep(0.01)
    if not server.started:
        raise SpecError(f"The server on {shown}:{port} did not start.", "It ended at once.", "Choose another --port.")
    name = shown if host not in ALL_ADDRESSES else socket.gethostname()
    return ServedPage(f"http://{name}:{port}/{token}/{f'#{link(state)}' if state else ''}", server, thread)


def _hosts(host: str, shown: str, port: int) -> frozenset[str]:
    """The Host headers that browsers send to this server; HTTP's default port is omitted."""
    names = {shown.lower()}
    if host in (*LOOPBACK, *ALL_ADDRESSES):
        names |= {*LOOPBACK_HOSTS}
    if host in ALL_ADDRESSES:
        names.add(socket.gethostname().lower())
    return frozenset((*(f"{name}:{port}" for name in names), *(names if port == HTTP_PORT else ())))


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket at the address; raises SpecError if there can be none."""
    ok = isinstance(port, int) and not isinstance(port, bool) and 0 <= port <= MAX_PORT
    require(
        ok, f"port is {shorten(port)}.", f"It is a whole number from 0 to {MAX_PORT:,}.", "Change port accordingly."
    )
    if not host.strip():  # the system would take it for every address of this machine
        raise SpecError(
            "--host is empty.", "It is an address of this machine.", "Leave --host out, or name an address."
        )
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, UnicodeError) as error:
        listener.close()
        words, todo = getattr(error, "strerror", None) or error, "Leave --port out: a free one is chosen."
        if isinstance(error, (socket.gaierror, UnicodeError)) or error.errno in NOT_LOCAL:
            todo = "Give --host an address of this machine, or leave it out."
        raise SpecError(f"Cannot listen at {host}:{port}.", f"The system says: {words}.", todo) from None
    return listener


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
    return " ".join(corpus.vocabulary[n] for n in corpus.splits["train"].tokens[:EXAMPLE_WORDS].tolist())


def _source(model: Any, load_options: dict[str, Any]) -> str:
    """The argument for `trisect.load`; empty for a module, which has no name."""
    if not isinstance(model, (str, Path)):
        return ""
    from trisect.lab.subject import load

    defaults = {name: parameter.default for name, parameter in inspect.signature(load).parameters.items()}
    options = [f"{name}={value!r}" for name, value in load_options.items() if value != defaults[name]]
    return ", ".join([repr(str(model)), *options])


def initial_state(text: tuple[str, ...], second: tuple[str, ...]) -> PageState | None:
    """The initial state of a page; None without text. Raises SpecError for a second text alone."""
    from trisect.server.answering import PageState

    if not any(text) and any(second):
        reason = "A second text is the one to patch from."
        raise SpecError("A second text was given without a text.", reason, "Give the text too, or leave both out.")
    return PageState(text, second) if any(text) else None


def link(state: PageState) -> str:
    """A state as the query string of a link."""
    switches = [list(pair) for pair in state.switches]
    content = {"text": list(state.text), "second": list(state.second), "switches": switches, "place": state.place}
    return urlsafe_b64encode(json.dumps(content, ensure_ascii=False).encode()).decode().rstrip("=")
