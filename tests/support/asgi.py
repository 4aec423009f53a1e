"""ASGI apps in tests: called as a server would, or served on a port of the loopback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes
    chunks_read: int  # of the request's body

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def call_app(
    app: Any,
    method: str,
    path: str,
    *,
    headers: dict[str, str] | None = None,
    body: bytes = b"",
    chunks: Sequence[bytes] | None = None,
    root_path: str = "",
    disconnects: bool = False,
) -> Reply:
    """Make one request. ``chunks`` come without a length; ``disconnects`` ends in the middle."""
    parts = list(chunks) if chunks is not None else [body]
    given = {
        **({} if chunks is not None else {"content-length": str(len(body))}),
        **(headers or {}),
    }
    path, _, query = path.partition("?")
    sent: list[dict[str, Any]] = []
    read = 0

    async def receive() -> dict[str, Any]:
        nonlocal read
        if read == len(parts):
            return {"type": "http.disconnect"}
        read += 1
        more = read < len(parts) or disconnects
        return {"type": "http.request", "body": parts[read - 1], "more_body": more}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": root_path + path,
        "root_path": root_path,
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        "client": ("192.0.2.1", 5000),
    }
    await app(scope, receive, send)
    start, *rest = sent
    kept = {name.decode(): value.decode() for name, value in start["headers"]}
    return Reply(start["status"], kept, b"".join(each["body"] for each in rest), read)


@asynccontextmanager
async def serve_app(app: Any) -> AsyncIterator[str]:
    """Serve an app, and give its address."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ")
        pairs = [line.split(": ", 1) for line in head[1:] if line]
        headers = {name.lower(): value for name, value in pairs}
        body = await reader.readexactly(int(headers.pop("content-length", "0")))
        reply = await call_app(app, method, path, headers=headers, body=body)
        lines = [f"HTTP/1.1 {reply.status} OK", "connection: close"]
        lines += [f"{name}: {value}" for name, value in reply.headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode() + reply.body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
