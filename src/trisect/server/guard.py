"""Guard: who is answered: pages of this server alone, by Host, Origin and a token in the address, with headers that say so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from secrets import compare_digest

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
class Guard:
    """The app, for requests whose Host is one of `hosts` and whose path begins with the token; 403 for all others.

    A page of another origin sends its own Origin, a name that was rebound to this machine sends its own Host, and neither
    knows the token. Web sockets are refused.
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
        if self._welcome(scope):
            inner = {**scope, "path": scope["path"][len(self.token) + 1 :], "root_path": ""}
            await self.app(inner, receive, _adding(send))
            return
        await PlainTextResponse(CLOSED, 403)(scope, receive, _adding(send))

    def _welcome(self, scope: Scope) -> bool:
        headers = Headers(scope=scope)
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        begin = scope["path"][: len(self.token) + 2].encode("utf-8", "surrogateescape")
        return (
            len(hosts) == 1
            and hosts[0].lower() in self.hosts
            and all(origin.lower() in {f"http://{host}" for host in self.hosts} for origin in origins)
            and (_from_here(headers) or self._followed(scope, headers))
            and compare_digest(begin, f"/{self.token}/".encode())
        )

    def _followed(self, scope: Scope, headers: Headers) -> bool:
        """Whether somebody followed a link to the page itself, in a window of its own."""
        whole = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
        return whole and scope["method"] == "GET" and scope["path"] == f"/{self.token}/"


def _from_here(headers: Headers) -> bool:
    """Whether a browser says that its own page asks, or somebody who typed the address; other programs say nothing."""
    return all(site in ("same-origin", "none") for site in headers.getlist("sec-fetch-site"))


def _adding(send: Send) -> Send:
    """Every answer carries HEADERS."""

    async def adding(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
            message = {**message, "headers": [*message.get("headers", ()), *own]}
        await send(message)

    return adding
