"""What the gateway of ``edictum mcp-proxy --http`` does with the connections to its server."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from mcp_processes import NO_RULES, proxy, read_answer

from edictum import Edictum
from edictum.adapters.mcp import MCPAdapter
from edictum.cli._mcp_application import STREAM_REST_S, StreamTimes
from edictum.cli._mcp_gateway import Gateway

pytestmark = pytest.mark.s1  # needs mcp

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
NOT_JSON = b"data: {\n\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class Upstream:
    """A server of event streams on a bare socket. It counts connections, and ends its streams as it
    is told.
    """

    def __init__(self, ending: bytes | None) -> None:
        self.ending = ending  # what follows the answer; None: nothing, the stream stays open
        self.accepted = 0
        self.hung_up = asyncio.Event()
        self.serving: set[asyncio.Task[Any] | None] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self.serving.add(asyncio.current_task())
        whole = True
        while whole and (request := await self._request(reader)) is not None:
            result = {"content": [{"type": "text", "text": f"answer {request['id']}"}]}
            said = json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}).encode()
            writer.write(HEAD + chunk(b"data: %s\n\n" % said) + (self.ending or b""))
            whole = self.ending is None or self.ending.endswith(END)
        self.hung_up.set()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    async def done(self) -> None:
        """When the last connection is closed; else its socket would be found open by a later
        test.
        """
        await asyncio.gather(*(task for task in self.serving if task is not None))

    async def _request(self, reader: asyncio.StreamReader) -> Any:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return None
        length = next(
            int(line.split(b":")[1])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length:")
        )
        return json.loads(await reader.readexactly(length))


@asynccontextmanager
async def gateway_to(upstream: Upstream, rest_s: float = STREAM_REST_S) -> AsyncIterator[Gateway]:
    async with await asyncio.start_server(upstream.serve, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        url = f"http://{host}:{port}/mcp"
        gateway = Gateway(MCPAdapter(Edictum()), url, {}, StreamTimes(rest_s))
        yield gateway
        await gateway._client.aclose()
        await upstream.done()


async def ask(gateway: Gateway, number: int) -> str:
    """The text that a client reads."""
    request = {
        "jsonrpc": "2.0",
        "id": number,
        "method": "tools/call",
        "params": {"name": "look", "arguments": {}},
    }
    inbox: asyncio.Queue[Any] = asyncio.Queue()
    inbox.put_nowait({"type": "http.request", "body": json.dumps(request).encode()})
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/mcp",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }
    await gateway(scope, inbox.get, send)
    body = b"".join(message.get("body", b"") for message in sent)
    return str(read_answer(body)["result"]["content"][0]["text"])


async def streams_ended(gateway: Gateway) -> None:
    await asyncio.gather(*gateway._tasks, return_exceptions=True)


@pytest.mark.parametrize(
    ("ending", "connections"),
    [(END, 1), (chunk(NOT_JSON) + END, 1), (b"", 5)],
    ids=["ends", "goes on in nonsense", "breaks off"],
)
async def test_calls_share_a_connection_where_the_server_ends_its_streams(
    ending: bytes, connections: int
) -> None:
    upstream = Upstream(ending)
    async with gateway_to(upstream) as gateway:
        for number in range(5):
            assert await ask(gateway, number) == f"answer {number}"
            await streams_ended(gateway)
    assert upstream.accepted == connections


async def test_an_answer_does_not_wait_for_a_stream_that_stays_open() -> None:
    upstream = Upstream(None)
    async with gateway_to(upstream, rest_s=3600) as gateway:
        assert [await ask(gateway, number) for number in range(3)] == [
            "answer 0",
            "answer 1",
            "answer 2",
        ]
        assert not upstream.hung_up.is_set()
        assert upstream.accepted == 3


async def test_a_stream_that_stays_open_is_closed_in_the_end() -> None:
    upstream = Upstream(None)
    async with gateway_to(upstream, rest_s=0.01) as gateway:
        await ask(gateway, 1)
        assert await asyncio.wait_for(upstream.hung_up.wait(), 30)
        await streams_ended(gateway)


def test_the_command_says_where_it_listens(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(NO_RULES)
    command = proxy(rules, "--http", "0", to=["http://127.0.0.1:9/mcp"])
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        said = re.fullmatch(
            r"edictum mcp-proxy: listening on http://127\.0\.0\.1:(\d+)/mcp\n",
            process.stderr.readline(),
        )
        assert said is not None
        with socket.create_connection(("127.0.0.1", int(said.group(1)))) as client:
            client.sendall(b"POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\n\r\n{")
            assert client.recv(12) == b"HTTP/1.1 400"
        process.terminate()
        assert process.communicate(timeout=30)[0] == ""
