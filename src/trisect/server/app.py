"""The served page over HTTP: a Starlette application behind a guard, and limits on connections, time and size."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from secrets import compare_digest
from typing import TypeVar

import h11
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from trisect.core.errors import SpecError, TrisectError, translate_system_errors
from trisect.report import sheet
from trisect.server.answering import (
    FOLDER,
    MAX_BODY_BYTES,
    CancelCheck,
    PageModel,
    PageQuestion,
    ReadingQueue,
    SupersededError,
    page_script,
    read_request,
    style,
)

MAX_CONNECTIONS = 32  # at once; a browser opens six for a page
RECEIVE_SECONDS = 10.0  # for a whole request, from the start of its connection or the end of the previous answer
SEND_SECONDS = 120.0  # for a client to receive an answer
MAX_HEADER_BYTES = 16_384  # of a request
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
FORBIDDEN = (
    "Not answered. Open the address that 'trisect serve' printed; the part of a link after '#' can be appended to it.\n"
)


@dataclass(frozen=True)
class _Guard:
    """Middleware that passes requests whose Host is one of `hosts` and whose path begins with the token; 403 for others.

    A page of another origin sends its own Origin, a name that was rebound to this machine sends its own Host, and neither
    has the token. Web sockets are refused. An answer sent before the request has been read closes the connection: the rest of
    the request is not read.
    """

    app: ASGIApp
    hosts: frozenset[str]
    token: str

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request; the token is removed from its path."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "not answered"})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        is_unread = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers  # a part of the body

        async def receive_part() -> Message:
            nonlocal is_unread
            message = await receive()
            is_unread = is_unread and message.get("more_body", False)
            return message

        async def send_secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = {**HEADERS, **({"Connection": "close"} if is_unread else {})}
                pairs = [(name.lower().encode(), value.encode()) for name, value in added.items()]
                message = {**message, "headers": [*message.get("headers", ()), *pairs]}
            await send(message)

        if sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEADER_BYTES:
            await PlainTextResponse("Not answered: the headers are too large.\n", 431)(
                scope, receive_part, send_secured
            )
        elif not self._is_allowed(scope, headers):
            await PlainTextResponse(FORBIDDEN, 403)(scope, receive_part, send_secured)
        else:
            inner = {**scope, "path": scope["path"][len(self.token) + 1 :], "root_path": ""}
            try:
                await self.app(inner, receive_part, send_secured)
            except Exception:
                logging.getLogger(__name__).exception("A question could not be answered.")
                raise

    def _is_allowed(self, scope: Scope, headers: Headers) -> bool:
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        start = scope["path"][: len(self.token) + 2].encode("utf-8", "surrogateescape")
        # browsers send same-origin for requests of the page, none for a typed address; other programs omit the header
        is_same_site = all(site in ("same-origin", "none") for site in headers.getlist("sec-fetch-site"))
        # a link to the page, followed in a window (not a frame)
        navigates = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
        is_link = navigates and scope["method"] == "GET" and scope["path"] == f"/{self.token}/"
        return (
            len(hosts) == 1
            and hosts[0].lower() in self.hosts
            and all(origin.lower() in {f"http://{host}" for host in self.hosts} for origin in origins)
            and (is_same_site or is_link)
            and compare_digest(start, f"/{self.token}/".encode())
        )


T = TypeVar("T")


def make_app(answering: PageModel, hosts: frozenset[str], token: str) -> _Guard:
    """Make the application with its guard."""
    queue = ReadingQueue()

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        queue.close()

    async def ask(request: Request, work: Callable[[PageQuestion, CancelCheck], T]) -> T:
        question = await _read(request)
        disconnected = asyncio.Event()

        async def watch() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            disconnected.set()

        def translated(check: CancelCheck) -> T:
            with translate_system_errors():
                return work(question, check)

        watching = asyncio.create_task(watch())
        try:
            return await queue.run(question.client, question.sequence, translated, disconnected.is_set)
        finally:
            watching.cancel()

    async def answer(request: Request) -> Response:
        page_answer = await ask(request, lambda question, check: answering.answer(question.state, question.has, check))
        return Response(page_answer.bytes(), media_type="application/octet-stream")

    async def offline(request: Request) -> Response:
        page = await ask(request, lambda question, check: answering.page(question.state, check))
        return Response(page, media_type="application/octet-stream")

    files = {
        "/": (sheet.read(FOLDER / "serve.html"), "text/html"),
        "/serve.css": (style(), "text/css"),
        "/serve.js": (f'"use strict";\n(() => {{\n{page_script("page.js")}}})();\n', "text/javascript"),
    }

    async def file(request: Request) -> Response:
        text, kind = files[request.url.path]
        return Response(text, media_type=kind)

    async def about(request: Request) -> Response:
        return JSONResponse(answering.about())

    routes = [
        *(Route(path, file) for path in files),
        Route("/about", about),
        Route("/answer", answer, methods=["POST"]),
        Route("/offline", offline, methods=["POST"]),
    ]
    handlers = {TrisectError: _error_response, SupersededError: _no_content, ClientDisconnect: _no_content}
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)
    return _Guard(app, hosts, token)


async def _read(request: Request) -> PageQuestion:
    """The request that a page sent; raises SpecError for one of another kind, or one that is too large."""
    kind = request.headers.get("content-type", "")
    if kind != "application/json":
        raise SpecError(f"The request is {kind[:60]!r}.", "It is application/json.", "Send a request as the page does.")
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY_BYTES:
            reason = f"A request has at most {MAX_BODY_BYTES:,} bytes."
            raise SpecError("The request is too large.", reason, "Give shorter texts and fewer switches.")
    return read_request(body)


async def _error_response(request: Request, error: Exception) -> Response:
    """An error of three parts, as the page shows it: an answer, and no fault of the connection."""
    assert isinstance(error, TrisectError)
    return JSONResponse({"problem": error.problem, "reason": error.reason, "todo": error.todo})


async def _no_content(request: Request, error: Exception) -> Response:
    return Response(status_code=204)


class BoundedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 protocol with limits that hold before a token is checked.

    Beyond MAX_CONNECTIONS the connection that has waited longest for its request is closed in favour of the new one; if every
    other connection is being answered, the new one is closed.
    """

    _receive_timer: asyncio.TimerHandle | None = None
    _send_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Accept a client."""
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            others = [other for other in self.connections if isinstance(other, BoundedProtocol)]
            deadlines = {other: other._receive_timer.when() for other in others if other._receive_timer is not None}
            closed = min(deadlines, key=deadlines.__getitem__, default=self)
            self.connections.discard(closed)
            closed.transport.abort()
        self._await_request()

    def data_received(self, data: bytes) -> None:
        """Receive a part of a request."""
        super().data_received(data)
        self._check_received()

    def on_response_complete(self) -> None:
        """Wait for the next request, for a limited time, after an answer is written."""
        self._await_request()
        super().on_response_complete()  # which may read a request that has already arrived
        self._check_received()

    def pause_writing(self) -> None:
        """Pause while the client receives more slowly than data is sent."""
        super().pause_writing()
        self._send_timer = self.loop.call_later(SEND_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Resume once the client has received most data."""
        self._stop_sending()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of a connection."""
        self._stop_receiving()
        self._stop_sending()
        super().connection_lost(exc)

    def _await_request(self) -> None:
        self._stop_receiving()
        self._receive_timer = self.loop.call_later(RECEIVE_SECONDS, self.transport.abort)

    def _check_received(self) -> None:
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._stop_receiving()

    def _stop_receiving(self) -> None:
        if self._receive_timer is not None:
            self._receive_timer.cancel()
        self._receive_timer = None

    def _stop_sending(self) -> None:
        if self._send_timer is not None:
            self._send_timer.cancel()
        self._send_timer = None
