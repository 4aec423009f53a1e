"""Waiting for a bounded time, without losing the answer: the one module for it.

* User code can be stopped. ``await_until`` cancels an awaitable at the end of its time and gives it
  a short grace to clean up; one that does not stop then is left behind. ``call_until`` runs a plain
  function in a thread, where nothing can stop it: it is left behind there.
* A request to a ledger or an audit sink cannot be taken back: cutting it off would leave open how
  far it had come. ``await_or_finish_later`` ends only the waiting. The request goes on, and
  ``late`` is called with the answer.
* ``wait_done`` waits for a future that others complete, and ``start_in_background`` for nothing.

``run_until`` and ``run_in_thread`` are what the first two are made of: they return what happened as
a value. The bodies of tools use them, which need to know whether something still runs.

``asyncio.timeout`` fits none of these: it waits for the ``finally`` of what it cancels, without an
end.
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
from typing import Any, Protocol, TypeAlias

from edictum._logs import EXECUTION_LATE, LEDGER_NOT_RELEASED, log
from edictum.core.decide import describe, type_and_text
from edictum.core.decision import USER_ERRORS, Failed
from edictum.execution.captured import capture, capture_call, close, uncapture
from edictum.execution.failures import Unfinished
from edictum.execution.threads import POOL, AbandonedCalls, DaemonPool

STOP_GRACE_S = 0.1  # for an awaitable that was cancelled to clean up
FINISH_LATER_S = 30.0  # for a request whose caller has stopped waiting

# Tasks that are no longer awaited; referenced here so that they are not collected while they run.
DETACHED: set[asyncio.Future[Any]] = set()

AnyFuture: TypeAlias = "asyncio.Future[Any] | concurrent.futures.Future[Any]"
Late: TypeAlias = Callable[[Any], Any]


class PendingAnswer(Protocol):
    """An awaitable that needs no task of its own: a request that was sent, and is answered later.

    ``await_or_finish_later`` calls ``to_future()`` instead of making a task. It returns a future of
    the running loop, which gets the answer or an exception; a cancelled caller does not cancel it.
    ``ends_within_s`` is the request's own bound: a wait that may last longer needs no second timer.
    """

    ends_within_s: float

    def to_future(self) -> asyncio.Future[Any]: ...

    def __await__(self) -> Generator[Any, Any, Any]: ...


# --- What can be stopped --------------------------------------------------------------------------


async def await_until(awaitable: Awaitable[Any], timeout_s: float | None) -> Any:
    """Return the awaitable's value. Stop it and raise TimeoutError at the end of the time."""
    return value_of(await run_until(awaitable, timeout_s), timeout_s)


async def call_until(
    function: Callable[..., Any], args: tuple[Any, ...], timeout_s: float | None
) -> Any:
    """Return what a user-supplied function returns, run in a thread if it is plain, and awaited."""
    started = time.perf_counter()
    if iscoroutinefunction(function):
        value = function(*args)
    else:
        ended = await run_in_thread(partial(function, *args), timeout_s)
        if type(ended) is Failed and not isinstance(ended.error, (*USER_ERRORS, Unfinished)):
            # a KeyboardInterrupt in a pool thread was not a user at the keyboard
            raise RuntimeError(type_and_text(ended.error)) from ended.error
        value = value_of(ended, timeout_s)
    if not isawaitable(value):
        return value
    if timeout_s is not None:
        timeout_s = max(0.0, timeout_s - (time.perf_counter() - started))
    return await await_until(value, timeout_s)


def value_of(ended: Any, timeout_s: float | None = None) -> Any:
    """Return the value that ``run_until`` or ``run_in_thread`` returned captured; raise its
    exception, or TimeoutError if the wait has ended first.
    """
    if type(ended) is Failed and isinstance(ended.error, Unfinished):
        raise ended.error.by or _no_answer(timeout_s)
    return uncapture(ended)


def _no_answer(timeout_s: float | None, more: str = "") -> TimeoutError:
    return TimeoutError(f"no answer within {timeout_s or 0.0:.1f} s{more}")


async def run_until(awaitable: Awaitable[Any], timeout_s: float | None = None) -> Any:
    """Return the captured end of an awaitable; Unfinished if it had to be cancelled."""
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
    """Cancel a task and wait shortly for its end. Return the caller's own cancellation if that came
    meanwhile.
    """
    interrupted = None
    task.cancel()
    try:
        await asyncio.wait((task,), timeout=STOP_GRACE_S)
    except asyncio.CancelledError as exc:
        interrupted = exc
    if not task.done():
        _detach(task)
    return interrupted


# --- What runs in a thread ------------------------------------------------------------------------


async def run_in_thread(
    function: Callable[[], Any],
    timeout_s: float | None = None,
    abandoned: AbandonedCalls | None = None,
    pool: DaemonPool = POOL,
) -> Any:
    """Run a function in a thread of the pool, with the caller's context variables.

    Returns its captured end; Unfinished at the end of the time, and when the caller is cancelled:
    then the thread goes on, counted in ``abandoned``. Raises NoThread when no thread is free for
    it.
    """
    in_context = partial(contextvars.copy_context().run, capture_call, function)
    running = pool.submit(in_context, abandoned)
    try:
        done = await wait_done(running, timeout_s)
    except asyncio.CancelledError as exc:
        return pool.leave(running, exc, abandoned)
    return running.result() if done else pool.leave(running, None, abandoned)


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
            await wait_done(future, left_s)
            if not future.done():
                _finish_later(future, late)
                if lingers:
                    return None
                raise _no_answer(timeout_s, "; it is finished in the background")
        except (asyncio.CancelledError, GeneratorExit) as exc:
            # at a GeneratorExit the caller's coroutine is being closed
            if on_cancel is None or isinstance(exc, GeneratorExit):
                _finish_later(future, late)
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


def _finish_later(future: asyncio.Future[Any], late: Late | None = None) -> None:
    """Detach a request. Call ``late`` with its captured answer when it comes, or a TimeoutError."""
    _detach(future)
    if late is not None:
        stop = future.get_loop().call_later(FINISH_LATER_S, future.cancel)
        future.add_done_callback(partial(_report_late, stop, late))


def _report_late(stop: asyncio.TimerHandle, late: Late, future: asyncio.Future[Any]) -> None:
    stop.cancel()
    result = capture_call(future.result)
    if type(result) is Failed and isinstance(result.error, asyncio.CancelledError):
        result = Failed(_no_answer(FINISH_LATER_S))
    try:
        rest = late(result)
    except Exception:
        log(EXECUTION_LATE, "handling a late answer failed", exc_info=True)
        return
    if isawaitable(rest):
        _finish_later(_to_future(rest), _log_failed_release)


def _log_failed_release(result: Any) -> None:
    if type(result) is Failed:
        log(
            LEDGER_NOT_RELEASED,
            "a slot that was granted late could not be given back: %s",
            describe(result.error),
        )


# --- What others complete -------------------------------------------------------------------------


async def wait_done(future: AnyFuture, timeout_s: float | None = None) -> bool:
    """Wait until a future is done, of this loop or of a thread, and return whether it is.

    It is never cancelled. ``asyncio.wait`` does the same for several futures of a loop, and takes
    twice the time for one.
    """
    if future.done():
        return True
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()
    wake: Callable[[object], None] = partial(_wake, waiter)
    if isinstance(future, asyncio.Future):
        future.add_done_callback(wake)
    else:
        future.add_done_callback(partial(_wake_from_thread, loop, wake))
    timer = None if timeout_s is None else loop.call_later(max(timeout_s, 0), wake, None)
    try:
        await waiter
    finally:
        if isinstance(future, asyncio.Future):
            future.remove_done_callback(wake)
        if timer is not None:
            timer.cancel()
    return future.done()


def _wake(waiter: asyncio.Future[None], _: object) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _wake_from_thread(
    loop: asyncio.AbstractEventLoop, wake: Callable[[object], None], future: object
) -> None:
    with suppress(RuntimeError):  # the loop is closed, and its caller with it
        loop.call_soon_threadsafe(wake, future)


# --- What is not waited for -----------------------------------------------------------------------


def start_in_background(awaitable: Any) -> None:
    """Start an awaitable in the running loop as an ordinary task; close it if no loop is
    running.
    """
    try:
        task = asyncio.get_running_loop().create_task(capture(awaitable))
    except RuntimeError:
        close(awaitable)
        return
    _keep(task)
    task.add_done_callback(lambda _: close(awaitable))  # the loop may end before it begins


def _detach(future: asyncio.Future[Any]) -> None:
    """Let a future finish that is no longer awaited. ``asyncio.run`` does not wait for it."""
    _keep(future)
    if isinstance(future, asyncio.Task):
        asyncio.tasks._unregister_task(future)  # asyncio.run waits for all tasks that it knows
        # typeshed does not declare it
        future._log_destroy_pending = False  # type: ignore[attr-defined]


def _keep(future: asyncio.Future[Any]) -> None:
    """Keep a reference to a future until it is done."""
    DETACHED.add(future)
    future.add_done_callback(_forget)


def _forget(future: asyncio.Future[Any]) -> None:
    DETACHED.discard(future)
    if not future.cancelled():
        future.exception()  # or asyncio would log that it was never retrieved


def is_being_cancelled() -> bool:
    """Return whether the running task itself is cancelled; if not, a CancelledError came from what
    it awaits.
    """
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return False
    return task is not None and task.cancelling() > 0
