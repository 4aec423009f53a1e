"""Exceptions as values, ``Failed``: so that a SystemExit does not end the event loop, and a
StopIteration can leave a task.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from edictum.core.decision import Failed


async def capture(awaitable: Awaitable[Any]) -> Any:
    """Return what the awaitable returns, or a ``Failed`` with what it raises."""
    try:
        return await awaitable
    except BaseException as exc:
        return Failed(exc)


def capture_call(function: Callable[[], Any]) -> Any:
    """Return what the function returns, or a ``Failed`` with what it raises."""
    try:
        return function()
    except BaseException as exc:
        return Failed(exc)


def uncapture(result: Any) -> Any:
    """Return a captured value, or raise the captured exception."""
    if type(result) is Failed:
        raise result.error
    return result


def close(awaitable: Any) -> None:
    """Close an awaitable that will not be awaited, so that Python does not warn about it."""
    if hasattr(awaitable, "close"):
        awaitable.close()
