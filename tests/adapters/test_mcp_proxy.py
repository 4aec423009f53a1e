"""``edictum mcp-proxy``: the suite against a server behind the relay, and the official client of
mcp 2 against processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import mcp_types
import pytest
from fastmcp import Client as FastClient
from fastmcp import FastMCP
from fastmcp.client.transports import FastMCPTransport
from faults import PlantedFaults
from mcp import Client, ClientSession, StdioServerParameters
from mcp.shared.exceptions import MCPError
from mcp.shared.memory import create_client_server_memory_streams
from mcp.shared.message import SessionMessage
from mcp_processes import BARE, CALLS, NO_RULES, ODD, RULES, gateway_url, plain, proxy, upstream_url
from mcp_types import jsonrpc_message_adapter
from test_fastmcp import Agent, server_of, text_of

from edictum import Edictum, Principal
from edictum.adapters._mcp import MCPClient, name_session
from edictum.adapters.mcp import MCPAdapter
from edictum.cli._mcp_relay import Relay
from edictum.testing.adapter import (
    SECRET,
    AdapterConformance,
    ControlFlow,
    ToolAnswer,
    get_conversation,
    no_forbidden,
    no_secret,
    without_secret,
)

pytestmark = pytest.mark.s1  # needs mcp


class ThroughRelay(FastMCPTransport):
    """To a server in this process, through the relay of the proxy."""

    def __init__(self, server: Any, adapter: Any) -> None:
        super().__init__(server)
        self.adapter = adapter

    @contextlib.asynccontextmanager
    async def connect_session(
        self, *, transport_options: Any = None, **options: Any
    ) -> AsyncIterator[Any]:
        lowlevel = self.server._mcp_server
        async with (
            create_client_server_memory_streams() as (client, inner),
            create_client_server_memory_streams() as (outer, server),
            lowlevel.lifespan(lowlevel),
            anyio.create_task_group() as tasks,
        ):
            relay = Relay(self.adapter, sender(inner[1]), sender(outer[1]))
            tasks.start_soon(pump, inner[0], relay.from_client)
            tasks.start_soon(pump, outer[0], relay.from_server)
            tasks.start_soon(
                lambda: lowlevel.run(*server, lowlevel.create_initialization_options())
            )
            try:
                async with ClientSession(
                    read_stream=client[0], write_stream=client[1], **options
                ) as session:
                    yield session
            finally:
                with anyio.CancelScope(shield=True):
                    await relay.close()
                tasks.cancel_scope.cancel()


def sender(stream: Any) -> Any:
    async def send(message: Any) -> None:
        await stream.send(SessionMessage(jsonrpc_message_adapter.validate_python(message)))

    return send


async def pump(stream: Any, take: Any) -> None:
    async for item in stream:
        await take(item.message.model_dump(mode="json", by_alias=True, exclude_unset=True))


class Behind(Agent):
    """The scripted agent of the FastMCP tests, with or without the relay before its server."""

    def __init__(self, server: Any, script: Any, adapter: Any, on_warn: Any) -> None:
        super().__init__(server, script)
        self.transport: Any = (
            FastMCPTransport(server) if adapter is None else ThroughRelay(server, adapter)
        )
        if on_warn is not None:
            self.transport.adapter = WithCallback(adapter, on_warn)

    async def run(self) -> None:
        async with FastClient(self.transport) as client:
            await self.play(client)

    async def run_as(self, user: str) -> None:
        adapter = WithClient(self.transport.adapter, MCPClient(get_conversation(user)))
        async with FastClient(ThroughRelay(self.server, adapter)) as client:
            await self.play(client, user)

    async def canary(self, request: Any) -> Any:
        async with FastClient(self.transport) as client:
            return plain(
                await client.session.call_tool(
                    request["params"]["name"], request["params"]["arguments"]
                )
            )


class WithCallback:
    def __init__(self, adapter: Any, on_warn: Any) -> None:
        self.adapter, self.on_warn = adapter, on_warn

    async def answer(self, request: Any, forward: Any, client: Any = None) -> Any:
        return await self.adapter.answer(request, forward, self.on_warn, client)


class WithClient:
    """Adds what the gateway knows of the client of a call; the relay has one client only."""

    def __init__(self, adapter: Any, client: MCPClient) -> None:
        self.adapter, self.client = adapter, client

    async def answer(self, request: Any, forward: Any, client: Any = None) -> Any:
        return await self.adapter.answer(request, forward, client=self.client)


class TestMCPProxy(AdapterConformance):
    framework, distribution = "MCP proxy", "mcp"
    ways = (("sync", "sync"), ("sync", "async"), ("async", "sync"), ("async", "async"))
    raised_as = "framework"
    cannot = {
        "pauses": "a client waits for the answer to its request; a proxy cannot end the run",
        "what runs": "nothing stands between the proxy and the server that a user could add to",
        "streaming": (
            "a tool's result is one message; progress and log messages before it pass as they are"
        ),
    }

    def make_adapter(self, guard: Any, **options: Any) -> Any:
        return MCPAdapter(guard, **options)

    def build(self, adapter: Any, tools: Any, script: Any, on_warn: Any = None) -> Behind:
        return Behind(server_of(tools), script, adapter, on_warn)

    def run(self, agent: Behind) -> None:
        asyncio.run(agent.run())

    async def arun(self, agent: Behind) -> None:
        await agent.run()

    def get_user_options(self) -> dict[str, Any]:
        def find_principal(client: MCPClient) -> Principal:
            return Principal(user_id=str(client.session_id).removeprefix(get_conversation("")))

        return {"principal": find_principal}

    async def arun_as(self, agent: Behind, user: str) -> None:
        await agent.run_as(user)

    def get_session_of(self, user: str) -> str:
        return str(name_session(get_conversation(user)))

    def replies(self, agent: Behind) -> list[ToolAnswer]:
        assert all(isinstance(result, mcp_types.CallToolResult) for _, result in agent.read), (
            agent.read
        )
        return [
            ToolAnswer(call_id, text_of(result), result.is_error) for call_id, result in agent.read
        ]

    def failing_tool(self) -> Any:
        def report(key: str) -> str:
            """Answered with an error of the protocol, which is no result."""
            raise MCPError(
                mcp_types.MISSING_REQUIRED_CLIENT_CAPABILITY, "the client cannot be asked"
            )

        return report

    def control_flow(self) -> list[ControlFlow]:
        def steer(key: str) -> Any:
            return mcp_types.InputRequiredResult(request_state="waiting")

        return [ControlFlow("InputRequiredResult", steer)]

    def ending(self, agent: Behind) -> Any:
        return [(type(result), bool(result.request_state)) for _, result in agent.read]

    def target(self, agent: Behind) -> Any:
        return agent.canary


class TestFaults(PlantedFaults):
    suite = TestMCPProxy
    adapter = MCPAdapter


# --- On the wire ----------------------------------------------------------------------------------


def call(**params: Any) -> dict[str, Any]:
    return {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "look", "arguments": {}, **params},
    }


def answered(guard: Edictum, request: Any, **said: Any) -> Any:
    """The answer to a request if the server says this; None when the server must not be asked."""

    async def forward(message: Any) -> Any:
        assert said, f"the server was asked: {message}"
        return {"jsonrpc": "2.0", "id": 1, **said}

    return asyncio.run(MCPAdapter(guard).answer(request, forward))


@pytest.mark.parametrize(
    "params", [{"name": 1}, {"arguments": [1]}, {"arguments": "key"}, {"task": {"ttl": 1}}]
)
def test_a_call_that_cannot_be_checked_goes_no_further(params: Any) -> None:
    assert answered(Edictum(), call(**params))["error"]["code"] == -32602


def test_an_error_of_the_protocol_is_a_failure_and_is_redacted() -> None:
    guard = Edictum(contracts=[no_secret("redact", redact=without_secret)])
    error = {"code": -32001, "message": "no", "data": {"n": SECRET}}
    assert answered(Edictum(), call(), error=error)["error"] == error
    said = answered(guard, call(), error=error)["error"]
    assert (said["code"], SECRET in json.dumps(said)) == (-32001, False)
    assert guard.local_sink.last().action == "call_failed"


@pytest.mark.parametrize(
    "result", [{"task": {"taskId": "1"}}, {"resultType": "task"}, {"content": SECRET}, SECRET, None]
)
def test_an_answer_that_cannot_be_judged_is_withheld(result: Any) -> None:
    said = answered(Edictum(contracts=[no_secret("deny")]), call(), result=result)
    assert "error" in said and SECRET not in json.dumps(said)


def test_a_structure_of_another_form_is_an_error() -> None:
    result = {
        "content": [{"type": "text", "text": SECRET}],
        "structuredContent": {"result": SECRET, "count": 3},
    }
    said = answered(Edictum(contracts=[no_secret("deny")]), call(), result=result)["result"]
    assert said["isError"] is True


class Wire:
    """A relay whose two ends are lists."""

    def __init__(self, guard: Edictum) -> None:
        self.client: list[Any] = []
        self.server: list[Any] = []
        self.relay = Relay(MCPAdapter(guard), self.to_client, self.to_server)

    async def to_client(self, message: Any) -> None:
        self.client.append(message)

    async def to_server(self, message: Any) -> None:
        self.server.append(message)


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0.001)


async def test_a_late_answer_to_a_call_that_was_given_up_is_not_read() -> None:
    guard = Edictum()
    wire = Wire(guard)
    await wire.relay.from_client(call())
    await settle()
    await wire.relay.from_client(
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    )
    await settle()
    await wire.relay.from_server(
        {"jsonrpc": "2.0", "id": 1, "result": {"content": [], "late": SECRET}}
    )
    assert [message["method"] for message in wire.server] == [
        "tools/call",
        "notifications/cancelled",
    ]
    assert wire.client == []
    assert guard.local_sink.last().success_source == "cancelled"


async def test_calls_in_a_batch_without_an_id_or_under_an_open_id_do_not_slip_through() -> None:
    wire = Wire(Edictum(contracts=[no_forbidden]))
    forbidden = call(arguments={"key": "forbidden"})
    await wire.relay.from_client([{"jsonrpc": "2.0", "id": 7, "method": "ping"}, forbidden])
    await wire.relay.from_client({key: value for key, value in forbidden.items() if key != "id"})
    await settle()
    ping, listed = wire.server  # the tools are listed because of the contract
    assert (ping["method"], listed["method"]) == ("ping", "tools/list")
    await wire.relay.from_server({**listed, "result": {"tools": []}})
    await settle()
    assert len(wire.server) == 2
    await wire.relay.from_client(call())
    await wire.relay.from_client(call())
    await settle()
    assert [message.get("error", {}).get("code") for message in wire.client] == [None, -32600]
    await wire.relay.close()


# --- Processes, and the official client -----------------------------------------------------------


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "rules.yaml"
    path.write_text(RULES)
    return path


@pytest.fixture
def open_rules(tmp_path: Path) -> Path:
    path = tmp_path / "open.yaml"
    path.write_text(NO_RULES)
    return path


def reach(target: list[str] | str) -> Any:
    return (
        target
        if isinstance(target, str)
        else StdioServerParameters(command=target[0], args=target[1:])
    )


async def everything(target: list[str] | str, mode: str) -> list[Any]:
    """All that the server offers, as the client sees it."""
    told: list[Any] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        told.append(("progress", done, total))

    async with Client(reach(target), mode=mode) as client:
        lists = (
            client.list_tools,
            client.list_resources,
            client.list_resource_templates,
            client.list_prompts,
        )
        told += [plain(await ask()) for ask in lists]
        told += [
            plain(await client.call_tool(name, args, progress_callback=progress))
            for name, args in CALLS
        ]
        told += [
            plain(await client.read_resource(uri)) for uri in ("data://one", "data://ada/record")
        ]
        told += [plain(await client.get_prompt("hello", {"name": "ada"}))]
        told += [
            client.protocol_version,
            plain(client.server_info),
            client.instructions,
            plain(client.server_capabilities),
        ]
    return told


async def governed(target: list[str] | str, mode: str) -> None:
    async with Client(reach(target), mode=mode) as client:
        await client.list_tools()
        denied, text, structure = [
            await client.call_tool(*ask)
            for ask in (
                ("lookup", {"key": "forbidden"}),
                ("lookup", {"key": "a"}),
                ("person", {"key": "a"}),
            )
        ]
    assert (denied.is_error, denied.content[0].text) == (True, "DENIED: The key is forbidden.")
    assert (text.content[0].text, text.structured_content) == (
        "the number of a is [REDACTED]",
        {"result": "the number of a is [REDACTED]"},
    )
    assert structure.is_error is False
    assert json.loads(structure.content[0].text) == {"name": "a", "ssn": "[REDACTED]"}
    assert structure.structured_content == {"name": "a", "ssn": "[REDACTED]"}


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_over_stdio_the_proxy_passes_what_the_bare_server_passes(
    open_rules: Path, rules: Path, mode: str
) -> None:
    assert asyncio.run(everything(proxy(open_rules, to=BARE), mode)) == asyncio.run(
        everything(BARE, mode)
    )
    asyncio.run(governed(proxy(rules, to=BARE), mode))


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_over_http_the_proxy_passes_what_the_bare_server_passes(
    open_rules: Path, rules: Path, mode: str
) -> None:
    with upstream_url() as url:
        bare = asyncio.run(everything(url, mode))
        assert asyncio.run(everything(proxy(open_rules, to=[url]), mode)) == bare
        asyncio.run(governed(proxy(rules, to=[url]), mode))
        with gateway_url(open_rules, url) as port:
            assert asyncio.run(everything(port, mode)) == bare
        with gateway_url(rules, url) as port:
            asyncio.run(governed(port, mode))


def test_a_command_on_a_port_passes_what_the_bare_server_passes(
    open_rules: Path, rules: Path
) -> None:
    with gateway_url(open_rules, BARE) as port:
        seen = asyncio.run(everything(port, "legacy"))
    assert seen == asyncio.run(everything(BARE, "legacy"))
    with gateway_url(rules, BARE) as port:
        asyncio.run(governed(port, "auto"))  # of the newer protocol: it falls back to the older


def test_a_client_reads_nothing_raw_of_a_server_that_answers_twice_and_under_text(
    rules: Path, tmp_path: Path
) -> None:
    async def go() -> list[Any]:
        async with Client(
            reach(proxy(rules, "--audit", str(tmp_path / "audit.jsonl"), to=ODD)), mode="legacy"
        ) as client:
            return [
                (await client.call_tool("lookup", {"key": "a"})).content[0].text for _ in range(3)
            ]

    assert asyncio.run(go()) == ["the number is [REDACTED]"] * 3
    events = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [event["action"] for event in events].count("call_executed") == 3


def test_six_calls_at_once_through_the_process_run_two(tmp_path: Path) -> None:
    rules = tmp_path / "two.yaml"
    rules.write_text(NO_RULES.replace("1000", "2"))

    async def go() -> list[Any]:
        async with Client(
            reach(proxy(rules, "--audit", str(tmp_path / "audit.jsonl"), to=BARE))
        ) as client:
            return await asyncio.gather(
                *(client.call_tool("lookup", {"key": str(number)}) for number in range(6))
            )

    assert sorted(result.is_error for result in asyncio.run(go())) == [False] * 2 + [True] * 4
    events = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [event["action"] for event in events].count("call_executed") == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--contracts", "rules.yaml"], "No server was given"),
        (["--contracts", "rules.yaml", "--", "no-such-command-here"], "could not be started"),
        (["--contracts", "nothing.yaml", "--", "true"], "nothing.yaml"),
        (
            ["--contracts", "rules.yaml", "--http", "0", "--", "no-such-command-here"],
            "could not be started",
        ),
        (["--contracts", "rules.yaml", "--header", "x", "--", "http://localhost"], "has no colon"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(rules: Path, arguments: list[str], says: str) -> None:
    command = [sys.executable, "-m", "edictum.cli", "mcp-proxy", *arguments]
    done = subprocess.run(
        command,
        cwd=rules.parent,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if "state no limit of calls" not in line]
    assert says in done.stderr and len(lines) == 1, done.stderr


def test_a_server_that_ends_ends_the_proxy(rules: Path) -> None:
    command = proxy(rules, to=[sys.executable, "-c", "pass"])
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.wait(30) == 1


def test_the_server_of_the_suite_is_a_real_one() -> None:
    assert isinstance(server_of([]), FastMCP)
