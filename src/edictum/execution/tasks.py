"""Awaiting a body under a deadline that holds.

``asyncio.timeout`` waits for the ``finally`` of what it cancels, for ever if need be. Here a body
is a task of its own: at the deadline it is cancelled and given a short grace to clean up; one that
does not stop then is left to itself. It stays referenced so that it is not collected in mid-air,
what it returns is dropped, and the end of the event loop does not wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from concurrent.futures import Future
from typing import Any

from edictum.execution.failures import Unfinished

GRACE_S = 0.1

Ended = tuple[Any, BaseException | None]

ABANDONED: set[asyncio.Task[Ended]] = set()


async def see_to_end(awaitable: Awaitable[Any], timeout_s: float | None = None) -> Ended:
    """What the awaitable ends with, as a value. Raises Unfinished at the deadline, or when the
    caller is cancelled.
    """
    task = asyncio.get_running_loop().create_task(caught(awaitable))
    try:
        await asyncio.wait((task,), timeout=timeout_s)
    except asyncio.CancelledError as exc:
        await _stop(task)
        raise Unfinished(not task.done(), exc) from None
    if not task.done():
        interrupted = await _stop(task)
        raise Unfinished(not task.done(), interrupted)
    return (None, asyncio.CancelledError()) if task.cancelled() else task.result()


async def wait_for(future: Future[Any], timeout_s: float | None = None) -> bool:
    """Wait for what a thread does, no longer than that. Says whether it is done; it goes on in any
    case.
    """
    waiting = asyncio.wrap_future(future)
    try:
        await asyncio.wait((waiting,), timeout=timeout_s)
    finally:
        if (
            not waiting.cancel() and not waiting.cancelled()
        ):  # or its end would be told to a loop that may be closed by then
            # the caller asks the thread's own future; this one must not complain that nobody asks
            # it
            waiting.exception()
    return future.done()


async def caught(awaitable: Awaitable[Any]) -> Ended:
    """A SystemExit that left its task would end the loop for everybody, and a StopIteration cannot
    leave one at all.
    """
    try:
        return await awaitable, None
    except BaseException as exc:
        return None, exc


async def _stop(task: asyncio.Task[Ended]) -> BaseException | None:
    """Cancel the task and wait for it, but not for long; the caller's own cancellation meanwhile is
    returned.
    """
    interrupted = None
    task.cancel()
    try:
        await asyncio.wait((task,), timeout=GRACE_S)
    except asyncio.CancelledError as exc:
        interrupted = exc
    if not task.done():
        leave(task)
    return interrupted


def leave(task: asyncio.Task[Ended]) -> None:
    """Let a task go on that nobody waits for any more."""
    ABANDONED.add(task)
    task.add_done_callback(ABANDONED.discard)
    asyncio.tasks._unregister_task(task)  # asyncio.run waits for all tasks that it knows of
    task._log_destroy_pending = False  # type: ignore[attr-defined]
