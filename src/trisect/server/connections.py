"""Connections of the served page: how many there are at once, how long each may take, and how large a request's head may be."""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS = 32  # at once; a browser opens six for a page
RECEIVING = 10.0  # seconds until a request is there whole, from when its connection began or the answer before it ended
SENDING = 120.0  # seconds until a client has received an answer
HEAD = 16_384  # bytes of a request's headers


class BoundedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 with bounds that hold before a token is known.

    Beyond CONNECTIONS the one whose request has been awaited longest makes room for a new one; where all requests are
    there and being answered, the new connection is closed.
    """

    _receiving: asyncio.TimerHandle | None = None
    _sending: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """A client has come."""
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS:
            others = [one for one in self.connections if isinstance(one, BoundedProtocol)]
            waiting = {one: one._receiving.when() for one in others if one._receiving is not None}
            last = min(waiting, key=waiting.__getitem__, default=self)
            self.connections.discard(last)
            last.transport.abort()
        self._await_request()

    def data_received(self, data: bytes) -> None:
        """A part of a request has come."""
        super().data_received(data)
        self._check_whole()

    def on_response_complete(self) -> None:
        """An answer is written: wait for the next request, within its bound of time."""
        self._await_request()
        super().on_response_complete()  # which may read a request that came meanwhile
        self._check_whole()

    def pause_writing(self) -> None:
        """The client receives more slowly than it is sent to."""
        super().pause_writing()
        self._sending = self.loop.call_later(SENDING, self.transport.abort)

    def resume_writing(self) -> None:
        """The client has received most of it."""
        self._stop_sending()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone, or was closed."""
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
