"""A server on bare sockets that says what a test makes it say, and counts its connections; and our
gateway before it, on a port of this process.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import uvicorn

from edictum.adapters.mcp import MCPAdapter
from edictum.cli._mcp_application import PortApplication, StreamTimes
from edictum.cli._mcp_gateway import Gateway
from edictum.cli._mcp_port import listen
from support.waiting import wait_in_loop

END = b"0\r\n\r\n"


@dataclass
class Asked:
    """One request, and the way to answer it."""

    method: str
    target: str
    headers: dict[str, str]
    body: Any
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    raw: bytes = b""  # the body as it came

    def head(self, status: str = "200 OK", kind: str = "text/event-stream", more: str = "") -> None:
        about = f"content-type: {kind}\r\ntransfer-encoding: chunked\r\n{more}"
        self.writer.write(f"HTTP/1.1 {status}\r\n{about}\r\n".encode())

    def say(self, text: str) -> None:
        data = text.encode()
        self.writer.write(b"%x\r\n%s\r\n" % (len(data), data))

    def event(self, message: Any, event_id: str | None = None) -> None:
        self.say(f"{f'id: {event_id}' if event_id else ': x'}\ndata: {json.dumps(message)}\n\n")

    def result(self, text: str) -> dict[str, Any]:
        return make_result(self.body["id"], text)

    def end(self) -> None:
        self.writer.write(END)

    async def until_closed(self) -> None:
        """Return when the other side has closed the connection."""
        with suppress(OSError):
            await self.writer.drain()
            await self.reader.read()


def make_result(message_id: Any, text: str) -> dict[str, Any]:
    content = [{"type": "text", "text": text}]
    return {"jsonrpc": "2.0", "id": message_id, "result": {"content": content}}


Serve = Callable[[Asked], Awaitable[None]]


class RawServer:
    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self.open = 0
        self.asked: list[Asked] = []

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            while not reader.at_eof():
                self.asked.append(asked := await _read(reader, writer))
                await self._serve(asked)
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            self.open -= 1
            writer.close()


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Asked:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").strip().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    method, target, _ = first.split(" ", 2)
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    parsed = json.loads(body) if body else None
    return Asked(method, target, headers, parsed, reader, writer, body)


@asynccontextmanager
async def raw_server(serve: Serve) -> AsyncIterator[tuple[str, RawServer]]:
    """Its URL, and the server."""
    talking = RawServer(serve)
    async with await asyncio.start_server(talking.talk, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        yield f"http://{host}:{port}/mcp", talking


@asynccontextmanager
async def gateway_before(
    url: str, adapter: MCPAdapter, times: StreamTimes | None = None
) -> AsyncIterator[tuple[str, Gateway]]:
    """The URL of a gateway on a port, as the command serves it."""
    gateway = Gateway(adapter, url, {}, times)
    async with on_port(gateway) as here:
        yield here, gateway


@asynccontextmanager
async def on_port(application: PortApplication) -> AsyncIterator[str]:
    """The URL of an application on a port of this process."""
    sockets = listen("127.0.0.1", 0)
    config = uvicorn.Config(application, log_level="warning", lifespan="on", ws="none")
    config.timeout_graceful_shutdown = 1
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets))
    await wait_in_loop(lambda: server.started)
    try:
        yield f"http://127.0.0.1:{sockets[0].getsockname()[1]}/mcp"
    finally:
        server.should_exit = True
        await serving
