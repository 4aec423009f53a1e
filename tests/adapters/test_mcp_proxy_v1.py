"""``edictum mcp-proxy`` with the official client and server of mcp 1."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_processes import BARE, CALLS, NO_RULES, ODD, RULES, gateway_url, plain, proxy, upstream_url

pytestmark = pytest.mark.s3  # needs mcp


@asynccontextmanager
async def session(target: list[str] | str) -> AsyncIterator[tuple[ClientSession, Any]]:
    way: Any = (
        streamable_http_client(target)
        if isinstance(target, str)
        else stdio_client(StdioServerParameters(command=target[0], args=target[1:]))
    )
    async with way as (read, write, *_), ClientSession(read, write) as client:
        yield client, await client.initialize()


async def everything(target: list[str] | str) -> list[Any]:
    """All that the server offers, as the client sees it."""
    told: list[Any] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        told.append(("progress", done, total))

    async with session(target) as (client, hello):
        lists = (
            client.list_tools,
            client.list_resources,
            client.list_resource_templates,
            client.list_prompts,
        )
        told += [plain(hello)]
        told += [plain(await ask()) for ask in lists]
        told += [
            plain(await client.call_tool(name, args, progress_callback=progress))
            for name, args in CALLS
        ]
        told += [
            plain(await client.read_resource(uri)) for uri in ("data://one", "data://ada/record")
        ]  # type: ignore[arg-type]
        told += [
            plain(await client.get_prompt("hello", {"name": "ada"})),
            plain(await client.send_ping()),
        ]
    return told


async def governed(target: list[str] | str) -> None:
    async with session(target) as (client, _):
        await client.list_tools()
        asked = (
            ("lookup", {"key": "forbidden"}),
            ("lookup", {"key": "a"}),
            ("person", {"key": "a"}),
        )
        denied, text, structure = [
            plain(await client.call_tool(name, args)) for name, args in asked
        ]
    assert (denied["isError"], denied["content"][0]["text"]) == (
        True,
        "DENIED: The key is forbidden.",
    )
    assert text["content"][0]["text"] == "the number of a is [REDACTED]"
    assert text["structuredContent"] == {"result": "the number of a is [REDACTED]"}
    assert json.loads(structure["content"][0]["text"]) == {"name": "a", "ssn": "[REDACTED]"}
    assert structure["structuredContent"] == {"name": "a", "ssn": "[REDACTED]"}


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


def test_over_stdio_the_proxy_passes_what_the_bare_server_passes(
    open_rules: Path, rules: Path
) -> None:
    assert asyncio.run(everything(proxy(open_rules, to=BARE))) == asyncio.run(everything(BARE))
    asyncio.run(governed(proxy(rules, to=BARE)))


def test_over_http_the_proxy_passes_what_the_bare_server_passes(
    open_rules: Path, rules: Path
) -> None:
    with upstream_url() as url:
        bare = asyncio.run(everything(url))
        assert asyncio.run(everything(proxy(open_rules, to=[url]))) == bare
        asyncio.run(governed(proxy(rules, to=[url])))
        with gateway_url(open_rules, url) as port:
            assert asyncio.run(everything(port)) == bare
        with gateway_url(rules, url) as port:
            asyncio.run(governed(port))


def test_a_client_reads_nothing_raw_of_a_server_that_answers_twice_and_under_text(
    rules: Path,
) -> None:
    async def go() -> list[Any]:
        async with session(proxy(rules, to=ODD)) as (client, _):
            return [
                plain(await client.call_tool("lookup", {"key": "a"}))["content"][0]["text"]
                for _ in range(3)
            ]

    assert asyncio.run(go()) == ["the number is [REDACTED]"] * 3
