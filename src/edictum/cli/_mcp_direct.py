"""HTTP to a server that is reached directly: a fast path of the gateway, beside httpx.

It has the part of httpx's interface that the gateway uses. One request is one write, and one task;
httpx takes five times the processor. What is unusual (TLS, a proxy on the way) is left to httpx.
"""

from __future__ import annotations

import asyncio
import functools
import re
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from edictum._optional import import_optional

SERVER_CONNECT_S = 30.0
KEEP_ALIVE_S = 3.0  # less than servers allow, or one of both would close it under a call
MAX_HEAD_BYTES = 102_400
HAS_BODY = {"POST", "PUT", "PATCH"}
INFORMATIONAL_END = 200  # statuses below it come before the response
BODY_LENGTHS = (b"content-length", b"transfer-encoding")  # headers that say where a body ends
# What a header may not hold: it would be read as the end of it, or of all of them.
LINE_BREAKS = re.compile(r"[\r\n\0]")
RawHeaders = list[tuple[bytes, bytes]]


def is_direct(url: str) -> bool:
    """Return whether a server is reached without TLS, and without a proxy of the environment."""
    return urlsplit(url).scheme == "http" and not {"http", "all"} & getproxies().keys()


class DirectClient:
    """Sends requests to one server, over connections that are kept for a while."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._httpx = import_optional("httpx", "mcp")
        self._httptools = import_optional("httptools", "mcp")
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
        """Send a request, and hold its response open."""
        stated = {key for key, _ in headers}
        sent = [item for item in self._own.items() if item[0] not in stated]
        sent += headers
        if content or method in HAS_BODY:
            sent.append(("content-length", str(len(content))))
        written = _write_head(method, _get_raw_target(self._httpx.URL, url), sent)
        connection = self._take_idle() or await self._connect()
        try:
            status, got = await connection.ask(method, written, content)
            yield self._make_response(status, got, connection)
        finally:
            if connection.is_reusable():
                self._idle.append(connection)
            else:
                self._close(connection)

    def _make_response(self, status: int, got: RawHeaders, connection: ServerConnection) -> Any:
        """Return a response; httpx decodes an encoded one, even though none was asked for."""
        parts = connection.iter_body()
        if any(name == b"content-encoding" for name, _ in got):
            return self._httpx.Response(status, headers=got, content=parts)
        return DirectResponse(status, self._httpx.Headers(got), parts)

    async def aclose(self) -> None:
        for connection in list(self._open):
            self._close(connection)

    def _close(self, connection: ServerConnection) -> None:
        self._open.discard(connection)
        connection.close()

    async def _connect(self) -> ServerConnection:
        loop, httptools = asyncio.get_running_loop(), self._httptools
        async with asyncio.timeout(SERVER_CONNECT_S):
            _, connection = await loop.create_connection(
                lambda: ServerConnection(httptools),
                self._host,
                self._port,
                happy_eyeballs_delay=0.25,
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


class DirectResponse:
    """A response whose body comes as it was sent."""

    def __init__(self, status: int, headers: Any, parts: AsyncGenerator[bytes, None]) -> None:
        self.status_code, self.headers, self._parts = status, headers, parts

    @property
    def is_success(self) -> bool:
        return 200 <= self.status_code < 300

    def aiter_bytes(self) -> AsyncGenerator[bytes, None]:
        return self._parts

    async def aread(self) -> bytes:
        return b"".join([part async for part in self._parts])


class ServerConnection(asyncio.Protocol):
    """One connection, with one request at a time."""

    def __init__(self, httptools: Any) -> None:
        self._httptools = httptools
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._waiting: asyncio.Future[None] | None = None
        self._idle_since: float | None = None
        self._failure: Exception | None = None
        self._is_closed = False
        self._begin("")

    async def ask(self, method: str, head: bytes, content: bytes) -> tuple[int, RawHeaders]:
        """Send a request in one write, so the server wakes once; return status and headers."""
        self._begin(method)
        self._idle_since = None
        self._transport.write(head + content)
        while not self._has_head:
            await self._wait()
        return self._status, self._headers

    async def iter_body(self) -> AsyncGenerator[bytes, None]:
        while True:
            while self._body:
                yield self._body.popleft()
            if self._is_whole:
                return
            await self._wait()

    async def _wait(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._is_closed:
            raise ConnectionError("the server closed the connection before its response ended")
        self._waiting = self._loop.create_future()
        self._transport.resume_reading()
        await self._waiting

    def is_reusable(self) -> bool:
        """Return whether another request can follow, and make the connection ready for one."""
        is_done = self._is_whole and self._keeps_alive and not self._failure
        if not is_done or self._is_closed or self._body:
            return False
        self._idle_since = self._loop.time()
        self._transport.resume_reading()
        return True

    def is_fresh(self) -> bool:
        is_recent = self._loop.time() - (self._idle_since or 0.0) < KEEP_ALIVE_S
        return is_recent and not self._is_closed and not self._transport.is_closing()

    def close(self) -> None:
        self._transport.close()

    # --- What the parser calls --------------------------------------------------------------------

    def _begin(self, method: str) -> None:
        """Get ready for the response to a request."""
        self._parser = self._httptools.HttpResponseParser(self)
        self._method, self._status, self._head_bytes = method, 0, 0
        self._headers: RawHeaders = []
        self._body: deque[bytes] = deque()
        self._has_head = self._has_length = self._is_whole = self._keeps_alive = False

    def on_message_begin(self) -> None:
        if self._is_whole:  # it answers nothing that was asked
            self._failure = ConnectionError("the server sent more than one response")

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_whole:
            self._headers.append((name.lower(), value.strip()))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= INFORMATIONAL_END and not self._is_whole:
            self._status, self._has_head = status, True
            self._has_length = any(name in BODY_LENGTHS for name, _ in self._headers)
            self._is_whole = self._method == "HEAD"

    def on_body(self, data: bytes) -> None:
        if not self._is_whole:
            self._body.append(data)

    def on_message_complete(self) -> None:
        if self._has_head:
            self._keeps_alive = not self._is_whole and self._parser.should_keep_alive()
            self._is_whole = True
        else:
            self._headers = []  # those of an informational response

    # --- What the event loop calls ----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._idle_since is not None:  # it answers no request
            self._transport.abort()
            return
        try:
            self._parser.feed_data(data)
        except (self._httptools.HttpParserError, self._httptools.HttpParserUpgrade) as exc:
            self._failure = self._failure or ConnectionError(f"the response is not HTTP: {exc!r}")
        self._head_bytes += 0 if self._has_head else len(data)
        if self._head_bytes > MAX_HEAD_BYTES:
            self._failure = ConnectionError("the head of the response is too large")
        if not self._wake():  # the client reads more slowly than the server writes
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closed, self._failure = True, self._failure or exc
        # without a length, the body ends with the connection
        self._is_whole = self._is_whole or (self._has_head and not self._has_length and exc is None)
        self._wake()

    def _wake(self) -> bool:
        """Wake the reader of a response; return whether there is one."""
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


def _write_head(method: str, target: bytes, headers: Sequence[tuple[str, str]]) -> bytes:
    """Return the head of a request; raise a ValueError if it could be read as something else."""
    lines = [f"{method} {target.decode('ascii')} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in headers]
    if LINE_BREAKS.search("".join(lines)):
        raise ValueError("a header of the request has characters that cannot be sent")
    return "\r\n".join([*lines, "\r\n"]).encode("latin-1")
