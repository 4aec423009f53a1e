"""Starts MCP servers and our proxy as processes of their own, as users do."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

UPSTREAM = str(Path(__file__).with_name("mcp_upstream.py"))
BARE = [sys.executable, UPSTREAM, "stdio"]
# A server whose answers to calls bear their id as text, and come twice.
ODD = [
    sys.executable,
    "-c",
    """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    call, params = asked["method"] == "tools/call", asked.get("params") or {}
    hello = {"protocolVersion": params.get("protocolVersion"), "capabilities": {"tools": {}}, "serverInfo": {"name": "odd", "version": "1"}}
    listed = {"tools": [{"name": "lookup", "inputSchema": {"type": "object"}}]}
    found = {"content": [{"type": "text", "text": "the number is 123-45-6789"}]}
    result = {"initialize": hello, "tools/list": listed, "tools/call": found}.get(asked["method"], {})
    for _ in range(2 if call else 1):
        print(json.dumps({"jsonrpc": "2.0", "id": str(asked["id"]) if call else asked["id"], "result": result}), flush=True)
""",
]
RULES = """\
apiVersion: edictum/v1
kind: ContractBundle
metadata: {name: proxied}
defaults: {mode: enforce}
contracts:
  - id: no-forbidden
    type: pre
    tool: "*"
    when: {args.key: {equals: forbidden}}
    then: {effect: deny, message: "The key is forbidden."}
  - id: no-ssn
    type: post
    tool: "*"
    when: {output.text: {matches: '\\b\\d{3}-\\d{2}-\\d{4}\\b'}}
    then: {effect: redact, message: "A social security number."}
"""
NO_RULES = """\
apiVersion: edictum/v1
kind: ContractBundle
metadata: {name: open}
defaults: {mode: enforce}
contracts:
  - id: many-calls
    type: session
    limits: {max_tool_calls: 1000}
    then: {effect: deny, message: "Enough."}
"""
# What both official clients are made to do, in their own words; the proxy must pass all of it as
# the bare server does.
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("lookup", {"key": "a"}),
    ("person", {"key": "a"}),
    ("fall", {"key": "a"}),
    ("slow", {"key": "a"}),
    ("nosuch", {}),
    ("lookup", {"wrong": 1}),
]


def proxy(contracts: Path, *options: str, to: list[str]) -> list[str]:
    return [
        sys.executable,
        "-m",
        "edictum.cli",
        "mcp-proxy",
        "--contracts",
        str(contracts),
        *options,
        "--",
        *to,
    ]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def listening(command: list[str], port: int) -> Iterator[str]:
    """The command, until it listens on its port; ended afterwards."""
    silent = subprocess.DEVNULL
    process = subprocess.Popen(command, stdout=silent, stderr=silent)
    try:
        for _ in range(300):
            try:
                socket.create_connection(("127.0.0.1", port), 0.2).close()
                break
            except OSError:
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.terminate()
        process.wait(10)


@contextmanager
def upstream_url() -> Iterator[str]:
    port = free_port()
    with listening([sys.executable, UPSTREAM, "http", str(port)], port) as url:
        yield url


@contextmanager
def gateway_url(contracts: Path, to: str | list[str], *options: str) -> Iterator[str]:
    """The URL of a proxy on a port, before a server with a URL or one that is a command."""
    port, server = free_port(), [to] if isinstance(to, str) else to
    command = proxy(contracts, "--http", f"127.0.0.1:{port}", *options, to=server)
    with listening(command, port) as url:
        yield url


def read_answer(body: bytes) -> Any:
    """The message of a JSON body, or the last one of an event stream."""
    lines = [line[6:] for line in body.splitlines() if line.startswith(b"data: ")]
    return json.loads(lines[-1] if lines else body)


def plain(result: Any) -> Any:
    return result.model_dump(mode="json", by_alias=True, exclude_none=True)
