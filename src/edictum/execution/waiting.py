"""Waiting for a bounded time, without losing the answer: the one module for it.

* User code can be stopped. ``await_until`` cancels an awaitable at the end of its time and gives it
  a short grace to clean up; one that does not stop then is left behind. ``call_in_thread`` leaves a
  function behind in its thread, where nothing can stop it.
* A request to a ledger or an audit sink cannot be taken back: cutting it off would leave open how
  far it had come. ``await_or_finish_later`` ends only the waiting. The request goes on, and
  ``late`` is called with the answer.

``asyncio.timeout`` fits neither: it waits for the ``finally`` of what it cancels, without an end.

``capture`` makes a value, ``Failed``, of whatever an awaitable raises, so that a SystemExit does
not end the event loop and a StopIteration can leave a task; ``uncapture`` raises it again.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import math
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from typing import Any, Protocol

from edictum._logs import EXECUTION_LATE, LEDGER_NOT_RELEASED, log
from edictum.core.decide import describe
from edictum.core.decision import USER_ERRORS, Failed
from edictum.execution.failures import Unfinished
from edictum.execution.threads import POOL, AbandonedCalls, DaemonPool

STOP_GRACE_S = 0.1  # for an awaitable that was cancelled to clean up
FINISH_LATER_S = 30.0  # for a request whose caller has stopped waiting

# Tasks that are no longer awaited; referenced here so that they are not collected while they run.
DETACHED: set[asyncio.Future[Any]] = set()

Late = Callable[[Any], Any]


class PendingAnswer(Protocol):
    """An awaitable that needs no task of its own: a request that was sent, and is answered later.

    ``await_or_finish_later`` calls ``to_future()`` instead of making a task. It returns a future of
    the running loop, which gets the answer or an exception; a cancelled caller does not cancel it.
    ``ends_within_s`` is the request's own bound: a wait that may last longer needs no second timer.
    """

    ends_within_s: float

    def to_future(self) -> asyncio.Future[Any]: ...

    def __await__(self) -> Generator[Any, Any, Any]: ...


# --- An exception as a value ----------------------------------------------------------------------


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


# --- What can be stopped --------------------------------------------------------------------------


async def await_until(awaitable: Awaitable[Any], timeout_s: float | None) -> Any:
    """Return the awaitable's value. Stop it and raise TimeoutError at the end of the time."""
    return uncapture(await capture_until(awaitable, timeout_s))


async def capture_until(awaitable: Awaitable[Any], timeout_s: float | None) -> Any:
    """Do as ``await_until``, captured. Raise only the caller's cancellation."""
    return _conclude_wait(await run_until(awaitable, timeout_s), timeout_s)


def _conclude_wait(result: Any, timeout_s: float | None) -> Any:
    if type(result) is not Failed or not isinstance(result.error, Unfinished):
        return result
    if result.error.by is not None:
        raise result.error.by
    return Failed(no_answer(timeout_s))


async def call_until(
    function: Callable[..., Any], args: tuple[Any, ...], timeout_s: float | None
) -> Any:
    """Return what a user-supplied function returns, run in a thread if it is plain, and awaited."""
    started = time.perf_counter()
    if iscoroutinefunction(function):
        value = function(*args)
    else:
        ended = await run_in_thread(partial(function, *args), timeout_s)
        value = _conclude_wait(ended, timeout_s)
        if type(value) is Failed and not isinstance(value.error, USER_ERRORS):
            # a KeyboardInterrupt in a pool thread was not a user at the keyboard
            error = value.error
            raise RuntimeError(f"{type(error).__name__}: {describe(error)}") from error
        uncapture(value)
    if not isawaitable(value):
        return value
    if timeout_s is not None:
        timeout_s = max(0.0, timeout_s - (time.perf_counter() - started))
    return await await_until(value, timeout_s)


def no_answer(timeout_s: float | None, more: str = "") -> TimeoutError:
    return TimeoutError(f"no answer within {timeout_s or 0.0:.1f} s{more}")


async def run_until(awaitable: Awaitable[Any], timeout_s: float | None = None) -> Any:
    """Return what the awaitable ends with, captured; Unfinished if it had to be cancelled."""
    task = asyncio.get_running_loop().create_task(capture(awaitable))
    try:
        done, _ = await asyncio.wait((task,), timeout=timeout_s)
    except asyncio.CancelledError as exc:
        await _stop(task)
        return Failed(Unfinished(not task.done(), exc))
    if not done:
        interrupted = await _stop(task)
        return Failed(Unfinished(not task.done(), interrupted))
    return Failed(asyncio.CancelledError()) if task.cancelled() else task.result()


async def _stop(task: asyncio.Task[Any]) -> BaseException | None:
    """Cancel a task and wait shortly for its end. Return the caller's own cancellation, if any."""
    interrupted = None
    task.cancel()
    try:
        await asyncio.wait((task,), timeout=STOP_GRACE_S)
    except asyncio.CancelledError as exc:
        interrupted = exc
    if not task.done():
        detach(task)
    return interrupted


# --- What runs in a thread ------------------------------------------------------------------------


async def run_in_thread(
    function: Callable[[], Any],
    timeout_s: float | None = None,
    abandoned: AbandonedCalls | None = None,
    pool: DaemonPool = POOL,
) -> Any:
    """Run a function in a thread of the pool, with the caller's context variables.

    Returns what it ends with, captured; Unfinished at the end of the time, and when the caller is
    cancelled: the thread goes on, counted in ``abandoned``. Raises NoThread when no
    thread is free for it.
    """
    in_context = partial(contextvars.copy_context().run, capture_call, function)
    running = pool.submit(in_context, abandoned)
    try:
        done = await wait_done(running, timeout_s)
    except asyncio.CancelledError as exc:
        return pool.leave(running, exc, abandoned)
    return running.result() if done else pool.leave(running, None, abandoned)


async def call_in_thread(function: Callable[[], Any]) -> Any:
    """Return or raise what the function does in a thread, where a cancelled caller leaves it."""
    return uncapture(_conclude_wait(await run_in_thread(function), None))


# --- What cannot be taken back --------------------------------------------------------------------


async def await_or_finish_later(
    awaitable: Awaitable[Any] | PendingAnswer,
    timeout_s: float | None = None,
    *,
    late: Late | None = None,
    on_cancel: Callable[[asyncio.CancelledError], None] | None = None,
    linger_s: float | None = None,
) -> Any:
    """Return or raise what a request ends with; at the end of the time leave it to the background.

    The request itself is never cancelled here. It costs one task (none if it is a ``PendingAnswer``
    or a future) and one timer (none without ``timeout_s``).

    * At the end of the time TimeoutError is raised. The request has ``FINISH_LATER_S`` more, then
      ``late`` is called with its answer, captured. An awaitable that ``late`` returns is awaited.
    * A cancelled caller stops waiting, with CancelledError, and the rest is as above. With
      ``on_cancel`` the cancellation is passed to that function and the wait goes on: for
      ``linger_s`` more, then None is returned, or, without ``linger_s``, to the end.
    """
    future, now, lingers = _to_future(awaitable), asyncio.get_running_loop().time, False
    if timeout_s is None or timeout_s >= getattr(awaitable, "ends_within_s", math.inf):
        timeout_s = math.inf
    until = now() + timeout_s
    while not future.done():
        try:
            left_s = None if until == math.inf else until - now()
            if not (await asyncio.wait((future,), timeout=left_s))[0]:
                finish_later(future, late)
                if lingers:
                    return None
                raise no_answer(timeout_s, "; it is finished in the background")
        except (asyncio.CancelledError, GeneratorExit) as exc:
            # at a GeneratorExit the caller's coroutine is being closed
            if on_cancel is None or isinstance(exc, GeneratorExit):
                finish_later(future, late)
                raise
            on_cancel(exc)
            if linger_s is not None:
                until, lingers = min(until, now() + linger_s), True
                linger_s = 0.0  # another cancellation ends the wait
    return uncapture(future.result())


def _to_future(awaitable: Any) -> asyncio.Future[Any]:
    if isinstance(awaitable, asyncio.Future):
        return awaitable
    if hasattr(awaitable, "to_future"):
        future: asyncio.Future[Any] = awaitable.to_future()
        return future
    return asyncio.get_running_loop().create_task(capture(awaitable))


async def wait_done(
    future: asyncio.Future[Any] | concurrent.futures.Future[Any], timeout_s: float | None = None
) -> bool:
    """Wait until a future is done, of this loop or of a thread, and return whether it is."""
    if not future.done():
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        future.add_done_callback(partial(_set_from_thread, loop, waiter))
        await asyncio.wait((waiter,), timeout=timeout_s)
    return future.done()


def _set_from_thread(
    loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[None], _: object
) -> None:
    with suppress(RuntimeError):  # the loop is closed, and its caller with it
        loop.call_soon_threadsafe(waiter.set_result, None)


# --- What is no longer awaited --------------------------------------------------------------------


def detach(future: asyncio.Future[Any]) -> None:
    """Let a future go on that is no longer awaited. ``asyncio.run`` does not wait for it."""
    DETACHED.add(future)
    future.add_done_callback(_forget_task)
    if isinstance(future, asyncio.Task):
        asyncio.tasks._unregister_task(future)  # asyncio.run waits for all tasks that it knows
        # typeshed does not declare it
        future._log_destroy_pending = False  # type: ignore[attr-defined]


def _forget_task(future: asyncio.Future[Any]) -> None:
    DETACHED.discard(future)
    if not future.cancelled():
        future.exception()  # or asyncio would log that it was never retrieved


def finish_later(future: asyncio.Future[Any], late: Late | None = None) -> None:
    """Detach a request. Call ``late`` with its captured answer when it comes, or a TimeoutError."""
    detach(future)
    if late is not None:
        stop = future.get_loop().call_later(FINISH_LATER_S, future.cancel)
        future.add_done_callback(partial(_report_late, stop, late))


def _report_late(stop: asyncio.TimerHandle, late: Late, future: asyncio.Future[Any]) -> None:
    stop.cancel()
    result = capture_call(future.result)
    if type(result) is Failed and isinstance(result.error, asyncio.CancelledError):
        result = Failed(no_answer(FINISH_LATER_S))
    try:
        rest = late(result)
    except Exception:
        log(EXECUTION_LATE, "handling a late answer failed", exc_info=True)
        return
    if isawaitable(rest):
        finish_later(_to_future(rest), _log_failed_release)


def _log_failed_release(result: Any) -> None:
    if type(result) is Failed:
        log(
            LEDGER_NOT_RELEASED,
            "a slot that was granted late could not be given back: %s",
            describe(result.error),
        )


def start_in_background(awaitable: Any) -> None:
    """Start an awaitable in the running loop, as an ordinary task; without a loop, close it."""
    try:
        task = asyncio.get_running_loop().create_task(capture(awaitable))
    except RuntimeError:
        close(awaitable)
        return
    DETACHED.add(task)
    task.add_done_callback(_forget_task)
    task.add_done_callback(lambda _: close(awaitable))  # the loop may end before it begins
