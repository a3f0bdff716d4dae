"""The served page as a Starlette application: the page with its style and script, the model's facts, answers, and the offline explorer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from trisect.core.door import door
from trisect.core.errors import SpecError, TrisectError
from trisect.report import template
from trisect.server.answering import PageModel
from trisect.server.component import HERE, bench, style
from trisect.server.guard import Guard
from trisect.server.queue import ReadingQueue, SupersededError
from trisect.server.state import BODY, PageQuestion, read_request


def make_app(answering: PageModel, hosts: frozenset[str], token: str) -> Guard:
    """The application behind its guard."""
    line = ReadingQueue()

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        line.close()

    async def answer(request: Request) -> Response:
        asked = await _asked(request)
        made = await line.run(
            asked.client, asked.sequence, lambda c: door()(answering.answer)(asked.state, asked.has, c)
        )
        return Response(made.bytes(), media_type="application/octet-stream")

    async def offline(request: Request) -> Response:
        asked = await _asked(request)
        made = await line.run(asked.client, asked.sequence, lambda _: door()(answering.page)(asked.state))
        return Response(made, media_type="application/octet-stream")

    files = {
        "/": (template.read(HERE / "serve.html"), "text/html"),
        "/serve.css": (style(), "text/css"),
        "/serve.js": (f'"use strict";\n(() => {{\n{bench("page.js")}}})();\n', "text/javascript"),
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
    handlers = {TrisectError: _refused, SupersededError: _superseded}
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)
    return Guard(app, hosts, token)


async def _asked(request: Request) -> PageQuestion:
    """The request that a page sent; raises SpecError for one of another kind, or one that is too large."""
    kind = request.headers.get("content-type", "")
    if kind != "application/json":
        raise SpecError(f"The request is {kind[:60]!r}.", "It is application/json.", "Send what the page sends.")
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > BODY:
            known = f"It has at most {BODY:,} bytes."
            raise SpecError("The request is too large.", known, "Give shorter texts and fewer switches.")
    return read_request(body)


async def _refused(request: Request, error: Exception) -> Response:
    """An error of three parts, as the page shows it: an answer, and no fault of the connection."""
    assert isinstance(error, TrisectError)
    return JSONResponse({"given": error.given, "known": error.known, "todo": error.todo})


async def _superseded(request: Request, error: Exception) -> Response:
    return Response(status_code=204)
