"""``edictum mcp-proxy`` between the official TypeScript client and servers of the TypeScript SDK:
the client sees what it sees without the proxy.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp_processes import NO_RULES, free_port, gateway_url, listening, proxy

from support.effort import SOAK

pytestmark = pytest.mark.s1  # needs mcp and node

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ROOT / ".venvs" / "node" / "node_modules"
SCRIPTS = Path(__file__).with_name("typescript")
EVERYTHING = PACKAGES / "@modelcontextprotocol" / "server-everything" / "dist" / "index.js"
SERVERS = {"everything": ["node", str(EVERYTHING)], "own": ["node", str(SCRIPTS / "server.cjs")]}
HTTP_MODES = {"everything": "streamableHttp", "own": "http"}
SHOW_ALL = ("--max-result-chars", "0")


@pytest.fixture(autouse=True)
def packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_PATH", str(PACKAGES))


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "open.yaml"
    path.write_text(NO_RULES)
    return path


def see(record: str, target: list[str] | str, *more: str) -> dict[str, Any]:
    """What the client sees of a server, by the name of what it asked for."""
    named = target if isinstance(target, str) else json.dumps(target)
    command = ["node", str(SCRIPTS / "client.cjs"), record, named, *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


@contextmanager
def serving(server: str, mode: str, path: str = "mcp") -> Iterator[str]:
    port = free_port()
    command = ["env", f"PORT={port}", *SERVERS[server], mode, str(port)]
    with listening(command, port) as url:
        yield url.removesuffix("mcp") + path


@pytest.mark.parametrize(("server", "records"), [("everything", 37), ("own", 3)])
def test_over_stdio_the_client_sees_what_it_sees_of_the_bare_server(
    rules: Path, server: str, records: int
) -> None:
    command = [*SERVERS[server], "stdio"]
    bare = see(server, command)
    assert len(bare) == records
    assert see(server, proxy(rules, *SHOW_ALL, to=command)) == bare
    with gateway_url(rules, command, *SHOW_ALL) as gateway:  # the same server on a port
        assert see(server, gateway) == bare


@pytest.mark.parametrize("server", ["everything", "own"])
def test_over_http_the_client_sees_what_it_sees_of_the_bare_server(
    rules: Path, server: str
) -> None:
    with serving(server, HTTP_MODES[server]) as url:
        bare = see(server, url)
        with gateway_url(rules, url, *SHOW_ALL) as gateway:
            assert see(server, gateway) == bare
        assert see(server, proxy(rules, *SHOW_ALL, to=[url])) == bare


def test_servers_of_the_older_transport_are_passed_on(rules: Path) -> None:
    with serving("everything", "sse", "sse") as url:
        bare = see("everything", f"sse:{url}")
        with gateway_url(rules, url, *SHOW_ALL) as gateway:
            assert see("everything", f"sse:{gateway.removesuffix('mcp')}sse") == bare
        assert see("everything", proxy(rules, *SHOW_ALL, to=[url])) == bare


@pytest.mark.parametrize("record", ["reconnect", "polled"])
def test_streams_that_break_or_are_closed_early_are_resumed(rules: Path, record: str) -> None:
    with serving("own", "http") as url:
        bare = see(record, url)
        with gateway_url(rules, url) as gateway:
            assert see(record, gateway) == bare
        if record == "polled":
            assert see(record, proxy(rules, to=[url])) == bare


@pytest.mark.soak
def test_a_long_silence_breaks_no_connection(rules: Path) -> None:
    """The client's network gives up on responses that say nothing for a while."""
    silence, longest, keep_alive = ("30000", "20000", "15") if SOAK else ("3000", "1500", "0.5")
    with serving("own", "http") as url:
        bare = see("silent", url, silence)
        with gateway_url(rules, url, "--keep-alive", keep_alive) as gateway:
            assert see("silent", gateway, silence, longest) == bare


def test_a_client_gets_its_token_through_the_proxy(rules: Path) -> None:
    with serving("own", "oauth") as url:
        issuer = url.removesuffix("/mcp")
        bare = see("oauth", url, issuer)
        assert "pages" in bare
        with gateway_url(rules, url) as gateway:
            assert see("oauth", gateway, issuer) == bare
