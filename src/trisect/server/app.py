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
    BODY,
    HERE,
    PageModel,
    PageQuestion,
    ReadingQueue,
    StillWanted,
    SupersededError,
    page_script,
    read_request,
    style,
)

CONNECTIONS = 32  # at once; a browser opens six for a page
RECEIVING = 10.0  # seconds until a request is there whole, from when its connection began or the answer before it ended
SENDING = 120.0  # seconds until a client has received an answer
HEAD = 16_384  # bytes of a request's headers
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
CLOSED = (
    "Not answered. Open the address that 'trisect serve' printed; what stands after its '#' can be added from a link.\n"
)


@dataclass(frozen=True)
class _Guard:
    """Middleware that passes requests whose Host is one of `hosts` and whose path begins with the token; 403 for others.

    A page of another origin sends its own Origin, a name that was rebound to this machine sends its own Host, and neither
    knows the token. Web sockets are refused. An answer that is given before the request has ended closes the connection:
    what follows is not read.
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
        rest = [headers.get("content-length", "0") != "0" or "transfer-encoding" in headers]  # is there a body to come

        async def receiving() -> Message:
            message = await receive()
            rest[0] = rest[0] and message.get("more_body", False)
            return message

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = {**HEADERS, **({"Connection": "close"} if rest[0] else {})}
                pairs = [(name.lower().encode(), value.encode()) for name, value in added.items()]
                message = {**message, "headers": [*message.get("headers", ()), *pairs]}
            await send(message)

        if sum(len(name) + len(value) for name, value in scope["headers"]) > HEAD:
            await PlainTextResponse("Not answered: the headers are too large.\n", 431)(scope, receiving, sending)
        elif not self._welcome(scope, headers):
            await PlainTextResponse(CLOSED, 403)(scope, receiving, sending)
        else:
            inner = {**scope, "path": scope["path"][len(self.token) + 1 :], "root_path": ""}
            try:
                await self.app(inner, receiving, sending)
            except Exception:
                logging.getLogger(__name__).exception("A question could not be answered.")
                raise

    def _welcome(self, scope: Scope, headers: Headers) -> bool:
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        begin = scope["path"][: len(self.token) + 2].encode("utf-8", "surrogateescape")
        # a browser says that its own page asks, or somebody who typed the address; other programs say nothing
        from_here = all(site in ("same-origin", "none") for site in headers.getlist("sec-fetch-site"))
        # or somebody followed a link to the page itself, in a window of its own
        navigates = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
        followed = navigates and scope["method"] == "GET" and scope["path"] == f"/{self.token}/"
        return (
            len(hosts) == 1
            and hosts[0].lower() in self.hosts
            and all(origin.lower() in {f"http://{host}" for host in self.hosts} for origin in origins)
            and (from_here or followed)
            and compare_digest(begin, f"/{self.token}/".encode())
        )


T = TypeVar("T")


def make_app(answering: PageModel, hosts: frozenset[str], token: str) -> _Guard:
    """Make the application with its guard."""
    line = ReadingQueue()

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        line.close()

    async def ask(request: Request, work: Callable[[PageQuestion, StillWanted], T]) -> T:
        question = await _read(request)
        disconnected = asyncio.Event()

        async def watch() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            disconnected.set()

        def translated(check: StillWanted) -> T:
            with translate_system_errors():
                return work(question, check)

        watching = asyncio.create_task(watch())
        try:
            return await line.run(question.client, question.sequence, translated, disconnected.is_set)
        finally:
            watching.cancel()

    async def answer(request: Request) -> Response:
        page_answer = await ask(request, lambda question, check: answering.answer(question.state, question.has, check))
        return Response(page_answer.bytes(), media_type="application/octet-stream")

    async def offline(request: Request) -> Response:
        page = await ask(request, lambda question, check: answering.page(question.state, check))
        return Response(page, media_type="application/octet-stream")

    files = {
        "/": (sheet.read(HERE / "serve.html"), "text/html"),
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
    handlers = {TrisectError: _refused, SupersededError: _unwanted, ClientDisconnect: _unwanted}
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)
    return _Guard(app, hosts, token)


async def _read(request: Request) -> PageQuestion:
    """The request that a page sent; raises SpecError for one of another kind, or one that is too large."""
    kind = request.headers.get("content-type", "")
    if kind != "application/json":
        raise SpecError(f"The request is {kind[:60]!r}.", "It is application/json.", "Send what the page sends.")
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > BODY:
            reason = f"It has at most {BODY:,} bytes."
            raise SpecError("The request is too large.", reason, "Give shorter texts and fewer switches.")
    return read_request(body)


async def _refused(request: Request, error: Exception) -> Response:
    """An error of three parts, as the page shows it: an answer, and no fault of the connection."""
    assert isinstance(error, TrisectError)
    return JSONResponse({"problem": error.problem, "reason": error.reason, "todo": error.todo})


async def _unwanted(request: Request, error: Exception) -> Response:
    return Response(status_code=204)


class BoundedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 protocol with limits that hold before a token is checked.

    Beyond CONNECTIONS the one whose request has been awaited longest makes room for a new one; where all requests are
    there and being answered, the new connection is closed.
    """

    _receiving: asyncio.TimerHandle | None = None
    _sending: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Accept a client."""
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS:
            others = [other for other in self.connections if isinstance(other, BoundedProtocol)]
            waiting = {other: other._receiving.when() for other in others if other._receiving is not None}
            last = min(waiting, key=waiting.__getitem__, default=self)
            self.connections.discard(last)
            last.transport.abort()
        self._await_request()

    def data_received(self, data: bytes) -> None:
        """Receive a part of a request."""
        super().data_received(data)
        self._check_whole()

    def on_response_complete(self) -> None:
        """Wait for the next request, for a limited time, after an answer is written."""
        self._await_request()
        super().on_response_complete()  # which may read a request that came meanwhile
        self._check_whole()

    def pause_writing(self) -> None:
        """Pause while the client receives more slowly than data is sent."""
        super().pause_writing()
        self._sending = self.loop.call_later(SENDING, self.transport.abort)

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
        self._receiving = self.loop.call_later(RECEIVING, self.transport.abort)

    def _check_whole(self) -> None:
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._stop_receiving()

    def _stop_receiving(self) -> None:
        if self._receiving is not None:
            self._receiving.cancel()
        self._receiving = None

    def _stop_sending(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
        self._sending = None
