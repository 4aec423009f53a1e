"""Waiting for what happens elsewhere: in a thread, a process or a server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
STEP_S = 0.005


def wait_until(check: Callable[[], T], timeout_s: float = 60.0) -> T:
    """Return what ``check`` answers as soon as that is true; fail the test if it never is."""
    deadline = time.monotonic() + timeout_s
    while not (answer := check()):
        assert time.monotonic() < deadline, f"{check} did not come true within {timeout_s} s"
        time.sleep(STEP_S)
    return answer


async def wait_in_loop(check: Callable[[], T], timeout_s: float = 60.0) -> T:
    """As ``wait_until``, while the event loop goes on."""
    async with asyncio.timeout(timeout_s):
        while not (answer := check()):  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(STEP_S)
    return answer
