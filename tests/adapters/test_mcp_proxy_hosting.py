"""``edictum mcp-proxy --http`` before a server that is a command: a process for each session."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
import pytest
from mcp_processes import read_answer
from mcp_raw_server import on_port

from edictum import Edictum, OperationLimits
from edictum.adapters._mcp_approvals import ClientApprovals
from edictum.adapters.mcp import MCPAdapter
from edictum.cli._mcp_hosting import HostedServers
from edictum.cli._mcp_tokens import TokenVerifier
from support.waiting import wait_in_loop

pytestmark = pytest.mark.s1  # needs mcp

# Says its process id, waits for ever, ends, or says something of its own accord.
SERVER = """
import json, os, sys, time
for line in sys.stdin:
    asked = json.loads(line)
    params, method = asked.get("params") or {}, asked.get("method")
    if method == "notifications/cancelled":
        open(os.environ["CANCELLED"], "a").write("x")
    if "id" not in asked or method is None:
        continue
    name = params.get("name")
    if name == "end":
        sys.exit(3)
    if name == "wait":
        continue
    if name == "tell":
        print(json.dumps({"jsonrpc": "2.0", "method": "notifications/own"}), flush=True)
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "s", "version": "1"}}
    said = {"content": [{"type": "text", "text": str(os.getpid())}]}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": hello if method == "initialize" else said}), flush=True)
"""
COMMAND = [sys.executable, "-c", SERVER]
ACCEPT = {"accept": "application/json, text/event-stream"}
TOKENS = TokenVerifier({"one": {"sub": "ada"}, "two": {"sub": "ada"}, "three": {"sub": "bob"}}.get)


class HostedClient:
    """A client of one session, on the bare wire."""

    def __init__(self, http: httpx.AsyncClient, url: str, token: str = "") -> None:
        self.http, self.url, self.headers = http, url, dict(ACCEPT)
        if token:
            self.headers["authorization"] = f"Bearer {token}"

    async def begin(self, **capabilities: Any) -> httpx.Response:
        params = {"protocolVersion": "2025-06-18", "capabilities": capabilities}
        got = await self.send("initialize", **params)
        self.headers |= {"mcp-session-id": got.headers.get("mcp-session-id", "")}
        return got

    async def send(self, method: str, message_id: int = 1, **params: Any) -> httpx.Response:
        message = {"jsonrpc": "2.0", "id": message_id, "method": method, "params": params}
        return await self.http.post(self.url, json=message, headers=self.headers)

    async def call(self, name: str, message_id: int = 1) -> Any:
        return read_answer((await self.send("tools/call", message_id, name=name)).content)

    async def find_process(self) -> int:
        return int((await self.call("pid"))["result"]["content"][0]["text"])


@asynccontextmanager
async def hosted(
    guard: Edictum, **options: Any
) -> AsyncIterator[tuple[HostedServers, str, httpx.AsyncClient]]:
    servers = HostedServers(MCPAdapter(guard), COMMAND, **options)
    async with on_port(servers) as url, httpx.AsyncClient(timeout=60) as http:
        yield servers, url, http


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


async def test_each_session_has_a_process_and_limits_of_its_own() -> None:
    guard = Edictum(limits=OperationLimits(max_tool_calls=2))
    async with hosted(guard) as (servers, url, http):
        clients = [HostedClient(http, url) for _ in range(2)]
        for client in clients:
            await client.begin()
        first, second = [await client.find_process() for client in clients]
        assert first != second
        for client in clients:
            assert "result" in await client.call("pid")
            assert (await client.call("pid"))["result"]["isError"], "the limit of two calls"
        gone = await http.delete(url, headers=clients[0].headers)
        assert (gone.status_code, is_running(first), is_running(second)) == (200, False, True)
        assert (await clients[0].send("ping")).status_code == 404
        assert (await HostedClient(http, url).send("ping")).status_code == 400
    assert not is_running(second), "the proxy was stopped"


async def test_a_server_that_ends_is_started_anew_for_a_new_session() -> None:
    guard = Edictum()
    async with hosted(guard) as (servers, url, http):
        client = HostedClient(http, url)
        await client.begin()
        assert (await client.call("end"))["error"]["message"] == "The server has ended."
        await wait_in_loop(lambda: not servers._sessions)
        assert (await client.send("ping")).status_code == 404
        client = HostedClient(http, url)
        assert (await client.begin()).status_code == 200
        assert is_running(await client.find_process())
    actions = [str(event.action) for event in guard.local_sink.events]
    assert actions == ["call_allowed", "call_failed", "call_allowed", "call_executed"]


async def test_a_session_belongs_to_the_subject_of_its_token() -> None:
    async with hosted(Edictum(), verifier=TOKENS) as (servers, url, http):
        ada = HostedClient(http, url, "one")
        await ada.begin()
        await ada.find_process()
        for token, status in [("two", 200), ("three", 404), ("four", 401)]:
            ada.headers["authorization"] = f"Bearer {token}"
            assert (await ada.send("ping")).status_code == status, token
            if status != 200:
                got = await http.delete(url, headers=ada.headers)
                assert got.status_code == status
        assert (await HostedClient(http, url).begin()).status_code == 401
        assert len(servers._sessions) == 1
        guard = servers._adapter.guard
    assert {event.session_id for event in guard.local_sink.events} == {"ada"}


async def test_a_call_whose_client_goes_is_given_up(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled = tmp_path / "cancelled"
    monkeypatch.setenv("CANCELLED", str(cancelled))
    guard = Edictum()
    async with hosted(guard) as (_, url, http):
        client = HostedClient(http, url)
        await client.begin()
        waiting = asyncio.create_task(client.call("wait", 7))
        await wait_in_loop(lambda: bool(guard.local_sink.events))
        assert (await client.call("pid", 7))["error"]["message"].endswith("is in use.")
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
        await wait_in_loop(cancelled.exists)
        assert [str(event.action) for event in guard.local_sink.events][-1] == "call_failed"
        assert "result" in await client.call("pid", 8)


async def test_a_client_that_goes_before_its_session_begins_leaves_nothing() -> None:
    silent = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    servers = HostedServers(MCPAdapter(Edictum()), silent, most=5)
    async with on_port(servers) as url, httpx.AsyncClient(timeout=60) as http:
        begun = [asyncio.create_task(HostedClient(http, url).begin()) for _ in range(7)]
        await wait_in_loop(lambda: sum(task.done() for task in begun) == 2)
        await wait_in_loop(lambda: len(servers._sessions) == 5)
        for task in begun:
            task.cancel()
        said = await asyncio.gather(*begun, return_exceptions=True)
        assert [it.status_code for it in said if isinstance(it, httpx.Response)] == [503, 503]
        await wait_in_loop(lambda: not servers._sessions)


async def test_what_the_server_says_of_its_own_accord_is_read_on_a_stream() -> None:
    async with hosted(Edictum()) as (_, url, http):
        client = HostedClient(http, url)
        await client.begin()
        got = await client.send("tools/call", name="tell")
        assert "notifications/own" in got.text and read_answer(got.content)["id"] == 1
        async with http.stream("GET", url, headers=client.headers) as stream:
            assert stream.headers["content-type"] == "text/event-stream"
            await http.delete(url, headers=client.headers)
            assert await stream.aread() == b""


async def test_the_person_behind_the_client_is_asked() -> None:
    rules = """
apiVersion: edictum/v1
kind: ContractBundle
metadata: {name: asked}
defaults: {mode: enforce}
contracts: [{id: ask, type: pre, tool: pid, then: {effect: approve, message: "May I?"}}]
"""
    guard = Edictum.from_yaml_string(rules, approval_backend=ClientApprovals())
    async with hosted(guard) as (_, url, http):
        client = HostedClient(http, url)
        await client.begin(elicitation={})
        asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "pid"}}
        async with http.stream("POST", url, json=asked, headers=client.headers) as stream:
            async for line in stream.aiter_lines():
                if not line.startswith("data: "):
                    continue
                said = json.loads(line[6:])
                if said.get("method") != "elicitation/create":
                    break
                result = {"action": "accept", "content": {"approve": True}}
                answer = {"jsonrpc": "2.0", "id": said["id"], "result": result}
                await http.post(url, json=answer, headers=client.headers)
    assert said["id"] == 1 and not said["result"].get("isError")


async def test_sessions_are_bounded_and_end_when_they_are_not_used() -> None:
    async with hosted(Edictum(), most=1) as (servers, url, http):
        client = HostedClient(http, url)
        await client.begin()
        assert (await HostedClient(http, url).begin()).status_code == 503
        servers._idle_s = 0.05
        process = await client.find_process()
        await wait_in_loop(lambda: not is_running(process))
        await wait_in_loop(lambda: not servers._sessions)
        assert (await HostedClient(http, url).begin()).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "content", "status"),
    [
        ("GET", "/other", None, 404),
        ("POST", "/mcp", "[]", 400),
        ("POST", "/mcp", "{", 400),
        ("PUT", "/mcp", "{}", 400),
        ("GET", "/mcp", None, 400),
    ],
)
async def test_what_is_not_mcp_is_refused(
    method: str, path: str, content: Any, status: int
) -> None:
    servers = HostedServers(MCPAdapter(Edictum()), COMMAND)
    transport = httpx.ASGITransport(servers)
    async with httpx.AsyncClient(transport=transport, base_url="http://proxy") as http:
        got = await http.request(method, path, content=content)
    assert (got.status_code, servers._sessions) == (status, {})
