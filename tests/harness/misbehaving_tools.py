"""Tools of every bad kind, for turns made at random. Those for processes stand at the top of a
module, where a worker finds them.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Any

from edictum.harness import DeadlineToken, ToolSpec, tool

ANYTHING = {"type": "object"}


async def sleeps(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


def blocks(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


async def ignores_cancellation(seconds: float) -> str:
    for _ in range(2):
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            continue
    return "stubborn"


def raises(kind: str) -> None:
    raise {
        "value": ValueError("x"),
        "exit": SystemExit(1),
        "timeout": TimeoutError(),
        "base": BaseException("b"),
        "key": KeyError(),
    }[kind]


def garbage(kind: str) -> Any:
    return {
        "none": None,
        "set": {1, 2},
        "bytes": b"\xff",
        "nan": float("nan"),
        "big": "x" * 20_000,
        "object": object(),
        "error": {"error": "e"},
    }[kind]


def forks(seconds: float) -> str:
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(30)
        os._exit(0)
    time.sleep(seconds)
    return "forked"


def dies(code: int) -> None:
    os._exit(code)


def spec(function: Any, **settings: Any) -> ToolSpec:
    return tool(**{"side_effect": "read", "idempotent": True, **settings})(function)


TOOLS = [
    spec(sleeps),
    spec(blocks),
    spec(ignores_cancellation, side_effect="write", idempotent=False),
    spec(raises, max_retries=1),
    spec(garbage, side_effect="pure"),
    spec(forks, isolation="process", side_effect="irreversible", idempotent=False),
    spec(dies, isolation="process", idempotent=False),
]


@tool(side_effect="read", isolation="process")
def decorated(x: int, deadline: DeadlineToken) -> dict[str, Any]:
    """Stands in this module as a ToolSpec, not as a function; a worker finds it all the same."""
    return {"x": x, "in_time": deadline.remaining_s() > 0, "pid": os.getpid()}
