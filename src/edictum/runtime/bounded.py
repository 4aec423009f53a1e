"""Waiting with an end: for what the user's code does, and for what has been sent to a port.

An awaitable of the user is cancelled at the end of its time, and a function of the user is left
behind in its thread. What was sent to the ledger or the audit is not cut off, because nobody could
know how far it had come: only the waiting ends, and the rest is seen to in the background.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from typing import Any

from edictum.core.decide import describe
from edictum.core.decision import USER_ERRORS
from edictum.execution.failures import Unfinished
from edictum.execution.tasks import Ended, caught, leave, see_to_end, wait_for
from edictum.execution.threads import POOL

logger = logging.getLogger("edictum")

LATE_S = 30.0  # for how long an answer that nobody waits for is still seen to

Later = Callable[[Any, BaseException | None], Any]


class Around:
    """A wait around an awaitable. Unlike a coroutine around it, it can be closed together with what
    it would have awaited.
    """

    __slots__ = ("_awaitable", "_wait")

    def __init__(
        self, wait: Callable[[Awaitable[Any]], Awaitable[Any]], awaitable: Awaitable[Any]
    ) -> None:
        self._wait, self._awaitable = wait, awaitable

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._wait(self._awaitable).__await__()

    def close(self) -> None:
        close(self._awaitable)


def close(awaitable: Awaitable[Any]) -> None:
    """It will not be awaited, and must not complain of it."""
    if hasattr(awaitable, "close"):
        awaitable.close()


async def within(awaitable: Awaitable[Any], timeout_s: float | None) -> Any:
    """The awaitable's value, if it comes in time. One that does not stop when it is cancelled is
    left behind, not waited for.
    """
    try:
        value, error = await see_to_end(awaitable, timeout_s)
    except Unfinished as left:
        raise left.by or _no_answer(timeout_s) from None
    if error is not None:
        raise error
    return value


def _no_answer(timeout_s: float | None, more: str = "") -> TimeoutError:
    return TimeoutError(f"no answer within {timeout_s or 0.0:.1f} s{more}")


async def consulted(
    function: Callable[..., Any], args: tuple[Any, ...], timeout_s: float | None
) -> Any:
    """What a function of the user returns, called in a thread and left behind there when its time
    is over.
    """
    started = time.perf_counter()
    value = (
        function(*args)
        if iscoroutinefunction(function)
        else await _in_thread(function, args, timeout_s)
    )
    if not isawaitable(value):
        return value
    return await within(
        value, None if timeout_s is None else max(0.0, timeout_s - (time.perf_counter() - started))
    )


async def _in_thread(
    function: Callable[..., Any], args: tuple[Any, ...], timeout_s: float | None
) -> Any:
    running = POOL.submit(partial(contextvars.copy_context().run, function, *args))
    try:
        done = await wait_for(running, timeout_s)
    except asyncio.CancelledError:
        POOL.abandon(running)
        raise
    if not done:
        POOL.abandon(running)
        raise _no_answer(timeout_s)
    error = running.exception()
    if error is None or isinstance(error, USER_ERRORS):
        return running.result()
    raise RuntimeError(
        f"{type(error).__name__}: {describe(error)}"
    ) from error  # nobody presses Ctrl-C in a thread of ours


async def seen_through(awaitable: Awaitable[Any], timeout_s: float, later: Later) -> Any:
    """The answer, if it comes in time. Otherwise ``later`` is told of it when it comes, or that it
    did not.
    """
    task = asyncio.get_running_loop().create_task(caught(awaitable))
    try:
        await asyncio.wait((task,), timeout=timeout_s)
    finally:
        if not task.done():
            _see_later(task, later)
    if not task.done():
        raise _no_answer(timeout_s, "; it is seen to in the background")
    value, error = (None, asyncio.CancelledError()) if task.cancelled() else task.result()
    if error is not None:
        raise error
    return value


def _see_later(task: asyncio.Task[Ended], later: Later) -> None:
    leave(task)
    stop = task.get_loop().call_later(LATE_S, task.cancel)

    def ended(_: asyncio.Task[Ended]) -> None:
        stop.cancel()
        value, error = (None, asyncio.CancelledError()) if task.cancelled() else task.result()
        try:
            rest = later(
                value, _no_answer(LATE_S) if isinstance(error, asyncio.CancelledError) else error
            )
        except Exception:
            logger.exception("what was left to do for a late answer failed")
        else:
            if isawaitable(rest):
                _see_later(task.get_loop().create_task(caught(rest)), _told)

    task.add_done_callback(ended)


def _told(_: Any, error: BaseException | None) -> None:
    if error is not None:
        logger.error("a slot that was granted late could not be given back: %s", describe(error))
