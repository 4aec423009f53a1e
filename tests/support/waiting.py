"""Waiting for what happens elsewhere: in a thread, a process or a server."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(check: Callable[[], T], timeout_s: float = 60.0) -> T:
    """Return what ``check`` answers as soon as that is true; fail the test if it never is."""
    deadline = time.monotonic() + timeout_s
    while not (answer := check()):
        assert time.monotonic() < deadline, f"{check} did not come true within {timeout_s} s"
        time.sleep(0.01)
    return answer
