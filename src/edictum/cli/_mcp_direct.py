"""HTTP to a server that is reached directly: a fast path of the gateway, beside httpx.

It has the part of httpx's interface that the gateway uses. One request is one write, and one task;
httpx takes five times the processor. What is unusual (TLS, a proxy on the way) is left to httpx.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from edictum._optional import import_optional

SERVER_CONNECT_S = 30.0
KEEP_ALIVE_S = 3.0  # less than servers allow, or one of both would close it under a call
MAX_HEAD_BYTES = 102_400
HAS_BODY = {"POST", "PUT", "PATCH"}


def is_direct(url: str) -> bool:
    """Return whether a server is reached without TLS, and without a proxy of the environment."""
    return urlsplit(url).scheme == "http" and not {"http", "all"} & getproxies().keys()


class DirectClient:
    """Sends requests to one server, over connections that are kept for a while."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._httpx, self._h11 = import_optional("httpx", "mcp"), import_optional("h11", "mcp")
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._own = {"host": parts.netloc.rpartition("@")[2], "accept-encoding": "identity"}
        self._own |= {key.lower(): value for key, value in headers.items()}
        self._open: set[ServerConnection] = set()
        self._idle: deque[ServerConnection] = deque()  # of these: the longest idle first

    @asynccontextmanager
    async def stream(
        self, method: str, url: str, *, headers: Sequence[tuple[str, str]], content: bytes = b""
    ) -> AsyncIterator[Any]:
        """Send a request, and hold its response open, which is one of httpx."""
        stated = {key for key, _ in headers}
        sent = [item for item in self._own.items() if item[0] not in stated]
        sent += headers
        if content or method in HAS_BODY:
            sent.append(("content-length", str(len(content))))
        target = _get_raw_target(self._httpx.URL, url)
        request = self._h11.Request(method=method, target=target, headers=sent)
        connection = self._take_idle() or await self._connect()
        try:
            head = await connection.ask(request, content)
            parts = connection.iter_body()
            yield self._httpx.Response(head.status_code, headers=list(head.headers), content=parts)
        finally:
            if connection.is_reusable():
                self._idle.append(connection)
            else:
                self._close(connection)

    async def aclose(self) -> None:
        for connection in list(self._open):
            self._close(connection)

    def _close(self, connection: ServerConnection) -> None:
        self._open.discard(connection)
        connection.close()

    async def _connect(self) -> ServerConnection:
        loop, h11 = asyncio.get_running_loop(), self._h11
        async with asyncio.timeout(SERVER_CONNECT_S):
            _, connection = await loop.create_connection(
                lambda: ServerConnection(h11), self._host, self._port, happy_eyeballs_delay=0.25
            )
        self._open.add(connection)
        return connection

    def _take_idle(self) -> ServerConnection | None:
        """Return the connection that was used last; close those that are too old."""
        while self._idle and not self._idle[0].is_fresh():
            self._close(self._idle.popleft())
        while self._idle:
            connection = self._idle.pop()
            if connection.is_fresh():
                return connection
            self._close(connection)
        return None


class ServerConnection(asyncio.Protocol):
    """One connection, with one request at a time."""

    def __init__(self, h11: Any) -> None:
        self._h11 = h11
        self._wire = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._waiting: asyncio.Future[None] | None = None
        self._idle_since: float | None = None
        self._failure: Exception | None = None
        self._is_closed = False

    async def ask(self, request: Any, content: bytes) -> Any:
        """Send a request in one write, so the server wakes once; return the response's head."""
        h11, send, self._idle_since = self._h11, self._wire.send, None
        parts = [send(request), send(h11.Data(data=content)), send(h11.EndOfMessage())]
        self._transport.write(b"".join(parts))
        while isinstance(event := await self._next_event(), h11.InformationalResponse):
            pass
        return event

    async def iter_body(self) -> AsyncIterator[bytes]:
        while isinstance(event := await self._next_event(), self._h11.Data):
            yield bytes(event.data)

    async def _next_event(self) -> Any:
        while (event := self._wire.next_event()) is self._h11.NEED_DATA:
            if self._failure is not None:
                raise self._failure
            self._waiting = self._loop.create_future()
            self._transport.resume_reading()
            await self._waiting
        return event

    def is_reusable(self) -> bool:
        """Return whether another request can follow, and make the connection ready for one."""
        done = self._h11.DONE
        is_done = self._wire.our_state is done and self._wire.their_state is done
        if not is_done or self._is_closed or self._wire.trailing_data[0]:
            return False
        self._wire.start_next_cycle()
        self._idle_since = self._loop.time()
        self._transport.resume_reading()
        return True

    def is_fresh(self) -> bool:
        is_recent = self._loop.time() - (self._idle_since or 0.0) < KEEP_ALIVE_S
        return is_recent and not self._is_closed and not self._transport.is_closing()

    def close(self) -> None:
        self._transport.close()

    # --- What the event loop calls ----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._idle_since is not None:  # it answers nothing that was asked
            self._transport.abort()
            return
        self._wire.receive_data(data)
        if not self._wake():  # the client reads more slowly than the server writes
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closed, self._failure = True, exc
        if self._idle_since is None:
            self._wire.receive_data(b"")
        self._wake()

    def _wake(self) -> bool:
        """Go on where a response is waited for; return whether it is."""
        waiting, self._waiting = self._waiting, None
        if waiting is None or waiting.done():
            return False
        waiting.set_result(None)
        return True


@functools.lru_cache(1_000)
def _get_raw_target(read_url: Any, url: str) -> bytes:
    """Return path and query as they are sent: quoted as httpx does."""
    target: bytes = read_url(url).raw_path
    return target
