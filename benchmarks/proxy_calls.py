"""The official MCP client of this venv calls a tool of an ordinary server, bare and through
``edictum mcp-proxy``, call by call in turns.

    .venvs/s1/bin/python benchmarks/proxy_calls.py stdio 300

Servers and proxies are processes, as the tests start them. What each call took on the wall is the
answer to bench_mcp_proxy.py, which makes a table of it.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "adapters"))

from mcp_processes import BARE, gateway_url, proxy, upstream_url
from venvs import answer

CONTRACTS = """\
apiVersion: edictum/v1
kind: ContractBundle
metadata: {name: bench}
defaults: {mode: enforce}
contracts:
  - id: no-forbidden
    type: pre
    tool: "*"
    when: {args.key: {equals: forbidden}}
    then: {effect: deny, message: "The key is forbidden."}
  - id: far-away
    type: session
    limits: {max_tool_calls: 1000000000, max_attempts: 1000000000}
    then: {effect: deny, message: "Enough."}
"""
CALL = ("person", {"key": "ada"})  # answered with a text and a structure
WARM_UP = 20

Target = list[str] | str


def opened(target: Target) -> AbstractAsyncContextManager[Any]:
    """The client of mcp 2, or the session of mcp 1."""
    try:
        from mcp import Client
    except ImportError:
        return _session(target)
    from test_mcp_proxy import reach

    return Client(reach(target))  # type: ignore[no-any-return]


@asynccontextmanager
async def _session(target: Target) -> Any:
    from test_mcp_proxy_v1 import session

    async with session(target) as (client, _):
        yield client


async def seconds(client: Any) -> float:
    started = time.perf_counter()
    answer = await client.call_tool(*CALL)
    took = time.perf_counter() - started
    if getattr(answer, "is_error", None) or getattr(answer, "isError", None):
        raise RuntimeError(f"the call failed: {answer}")
    return took


async def in_turns(bare: Target, governed: Target, count: int) -> dict[str, list[float]]:
    """Call by call; who is first changes from pair to pair."""
    took: dict[str, list[float]] = {"bare": [], "governed": []}
    async with opened(bare) as direct, opened(governed) as through:
        order = [("bare", direct), ("governed", through)]
        for _ in range(WARM_UP + count):
            for who, client in order:
                took[who].append(await seconds(client))
            order.reverse()
    return {who: every[WARM_UP:] for who, every in took.items()}


@contextmanager
def over_stdio(contracts: Path) -> Iterator[tuple[Target, Target]]:
    yield BARE, proxy(contracts, to=BARE)


@contextmanager
def over_http(contracts: Path) -> Iterator[tuple[Target, Target]]:
    with upstream_url() as url, gateway_url(contracts, url) as gateway:
        yield url, gateway


TRANSPORTS = {"stdio": over_stdio, "http": over_http}


def measure(transport: str, count: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        contracts = Path(folder) / "contracts.yaml"
        contracts.write_text(CONTRACTS)
        with TRANSPORTS[transport](contracts) as (bare, governed):
            return {
                "version": metadata.version("mcp"),
                "seconds": asyncio.run(in_turns(bare, governed, count)),
            }


if __name__ == "__main__":
    answer(lambda: measure(sys.argv[1], int(sys.argv[2])))
