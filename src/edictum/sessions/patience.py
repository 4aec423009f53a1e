"""Waiting for a bounded time without blaming the store for an event loop that was busy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

SLICES = 4


class Patience:
    """Calls back after so many seconds, unless it is cancelled.

    The time is waited out in slices, and a slice that took longer counts as one: when something
    blocks the loop, an answer may lie unread in a socket, and the loop must turn a few times before
    anybody can say that there was none.
    """

    __slots__ = ("_callback", "_handle", "_left", "_loop", "_slice_s")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, seconds: float, callback: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._slice_s = seconds / SLICES
        self._left = SLICES
        self._callback = callback
        self._handle = loop.call_later(self._slice_s, self._tick)

    def _tick(self) -> None:
        self._left -= 1
        if self._left:
            self._handle = self._loop.call_later(self._slice_s, self._tick)
        else:
            self._callback()

    def cancel(self) -> None:
        self._handle.cancel()
