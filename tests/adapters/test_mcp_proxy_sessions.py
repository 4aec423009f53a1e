"""In which session ``edictum mcp-proxy --http`` counts the calls of a client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp_processes import NO_RULES, gateway_url, upstream_url

from edictum import Edictum, OperationLimits
from edictum.adapters._mcp import name_session
from edictum.adapters.mcp import MCPAdapter
from edictum.cli._mcp_gateway import Gateway, NegotiatedSessions

pytestmark = pytest.mark.s1  # needs mcp
SESSION = b"mcp-session-id"


class Upstream:
    """A server that gives each client that greets it a session, or repeats what the client says."""

    def __init__(self, repeats: bool = False) -> None:
        self.repeats, self.greeted = repeats, 0
        self.connections: list[Any] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.append(asyncio.current_task())
        with suppress(asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
                request = json.loads(await reader.readexactly(int(fields["content-length"])))
                writer.write(self.answer(request, fields.get(SESSION.decode())))
        writer.close()

    def answer(self, request: Any, borne: str | None) -> bytes:
        given = borne if self.repeats else None
        if request["method"] == "initialize" and borne is None:
            self.greeted += 1
            given = f"session-{self.greeted}"
        result = {"content": [{"type": "text", "text": "done"}]}
        body = json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}).encode()
        session = f"mcp-session-id: {given}\r\n" if given else ""
        about = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n{session}\r\n"
        return f"HTTP/1.1 200 OK\r\n{about}".encode() + body


@asynccontextmanager
async def gateway_to(upstream: Upstream, adapter: MCPAdapter) -> AsyncIterator[Gateway]:
    async with await asyncio.start_server(upstream.serve, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        gateway = Gateway(adapter, f"http://{host}:{port}/mcp", {})
        yield gateway
        await gateway._client.aclose()
        await asyncio.gather(*upstream.connections)


async def send(gateway: Gateway, method: str, *sessions: str) -> tuple[str, str]:
    """Send a request; return the session in the answer's headers, and the answer."""
    params = {"name": "look", "arguments": {}} if method == "tools/call" else {}
    request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    inbox: asyncio.Queue[Any] = asyncio.Queue()
    inbox.put_nowait({"type": "http.request", "body": json.dumps(request).encode()})
    sent: list[Any] = []

    async def keep(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json"), *((SESSION, it.encode()) for it in sessions)]
    scope = {"type": "http", "method": "POST", "path": "/mcp", "query_string": b""}
    await gateway({**scope, "headers": headers}, inbox.get, keep)
    given = dict(sent[0]["headers"]).get(SESSION, b"").decode()
    return given, b"".join(message.get("body", b"") for message in sent).decode()


async def test_each_client_that_negotiated_a_session_has_its_own_limit() -> None:
    guard = Edictum(limits=OperationLimits(max_tool_calls=3))
    async with gateway_to(Upstream(), MCPAdapter(guard)) as gateway:
        clients = [(await send(gateway, "initialize"))[0] for _ in range(2)]
        assert clients == ["session-1", "session-2"]
        answers = await asyncio.gather(
            *(send(gateway, "tools/call", client) for client in clients * 5)
        )
    assert sum("DENIED" in text for _, text in answers) == 4
    for client in clients:
        assert guard.session(str(name_session(client))).executions == 3
    recorded = str([event.to_dict() for event in guard.local_sink.events])
    assert "session-1" not in recorded, "who knows the id can speak for the client"


@pytest.mark.parametrize("repeats", [False, True])
async def test_ids_that_clients_make_up_share_one_session(repeats: bool) -> None:
    """Even of a server that repeats them, as if it had given them."""
    guard = Edictum()
    adapter = MCPAdapter(guard)
    async with gateway_to(Upstream(repeats), adapter) as gateway:
        await send(gateway, "initialize", "mine")
        for made_up in (["mine"], ["other"], []):
            await send(gateway, "tools/call", *made_up)
        (known, _) = await send(gateway, "initialize")
        await send(gateway, "tools/call", known, "mine")
    assert {event.session_id for event in guard.local_sink.events} == {adapter.session_id}
    assert guard.session(adapter.session_id).executions == 4


async def test_a_session_of_the_command_line_is_that_of_all_clients() -> None:
    guard = Edictum()
    async with gateway_to(Upstream(), MCPAdapter(guard, session_id="all")) as gateway:
        for _ in range(2):
            client, _ = await send(gateway, "initialize")
            await send(gateway, "tools/call", client)
    assert guard.session("all").executions == 2


def test_the_sessions_used_last_are_remembered() -> None:
    def bear(*ids: str) -> Any:
        return {"headers": [(SESSION, each.encode()) for each in ids]}

    known = NegotiatedSessions(most=2)
    for given in ("a", "b"):
        known.add(bear(), {"mcp-session-id": given})
    assert known.find(bear("a")) == "a"
    known.add(bear(), {"mcp-session-id": "c"})
    assert [known.find(bear(each)) for each in ("a", "b", "c")] == ["a", None, "c"]


def test_official_clients_of_one_proxy_are_counted_apart(tmp_path: Path) -> None:
    rules = tmp_path / "three.yaml"
    rules.write_text(NO_RULES.replace("1000", "3"))

    async def use(url: str) -> list[bool]:
        async with Client(url, mode="legacy") as client:
            results = [await client.call_tool("lookup", {"key": "a"}) for _ in range(5)]
            return [result.is_error for result in results]

    async def both(url: str) -> list[list[bool]]:
        return await asyncio.gather(use(url), use(url))

    with upstream_url() as server, gateway_url(rules, server) as url:
        assert asyncio.run(both(url)) == [[False] * 3 + [True] * 2] * 2
