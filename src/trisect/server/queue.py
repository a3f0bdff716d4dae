"""ReadingQueue: one reading at a time; a newer question of the same page takes the place of its earlier ones."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
CLIENTS = 64  # pages whose newest question is remembered


class SupersededError(Exception):
    """A newer question of the same page has come: nobody waits for this one any more."""


class ReadingQueue:
    """Work from several pages, done one after the other in a thread of its own."""

    def __init__(self) -> None:
        self._newest: OrderedDict[str, int] = OrderedDict()
        self._turn = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="trisect-serve")

    def _check(self, client: str, sequence: int) -> None:
        if self._newest.get(client, sequence) != sequence:
            raise SupersededError

    async def run(self, client: str, sequence: int, work: Callable[[Callable[[], None]], T]) -> T:
        """What `work` returns; it is given a function to call between steps, which ends it when it is superseded.

        Raises SupersededError where the page has asked something newer, before or meanwhile.
        """
        if sequence < self._newest.get(client, -1):
            raise SupersededError
        self._newest[client] = sequence
        self._newest.move_to_end(client)
        while len(self._newest) > CLIENTS:
            self._newest.popitem(last=False)
        async with self._turn:
            self._check(client, sequence)
            loop = asyncio.get_running_loop()
            made = await loop.run_in_executor(self._thread, work, lambda: self._check(client, sequence))
        self._check(client, sequence)
        return made

    def close(self) -> None:
        """Wait for what is running, and take nothing more."""
        self._thread.shutdown(cancel_futures=True)
