"""Running a tool's body: inline, in a thread, or by an engine elsewhere; from asynchronous and from
synchronous hosts.

Whatever the body does, the answer is a ``Ran``. Two things are passed on after the call has been
closed properly: the cancellation of the caller's task, and KeyboardInterrupt.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from inspect import isawaitable, iscoroutinefunction
from threading import TIMEOUT_MAX
from types import CoroutineType
from typing import Any

from edictum.core.effects import Engine, Pause, Ran, RunTool
from edictum.core.freeze import thaw_args
from edictum.execution.failures import NotStarted, Unfinished
from edictum.execution.tasks import Ended, see_to_end, wait_for
from edictum.execution.threads import POOL

# Results that certainly need no awaiting; asking ``isawaitable`` of each would cost more than the
# rest of this module.
PLAIN = frozenset({type(None), str, bytes, int, float, bool, dict, list, tuple, set})
HERE = ("inline", "thread")
clock = time.perf_counter


def needs_await(value: Any) -> bool:
    kind = type(value)
    return kind not in PLAIN and (kind is CoroutineType or isawaitable(value))


async def run_async(effect: RunTool) -> Ran:
    """Run the body for an asynchronous host."""
    if effect.timeout_s is not None or effect.run_in != "inline":
        return await _run_bounded(effect) if effect.run_in in HERE else await _run_elsewhere(effect)
    started = clock()
    try:
        value = effect.body(**thaw_args(effect.call.args))  # type: ignore[misc]
        if needs_await(value):
            value = await value
    except BaseException as exc:
        return ended_by(exc, clock() - started)
    return Ran(value, None, clock() - started)


def ended_by(exc: BaseException, elapsed_s: float) -> Ran:
    """A body's exception. Only what is meant for the host, not for the tool, counts as the caller
    having been interrupted.
    """
    if isinstance(exc, (KeyboardInterrupt, Pause)):
        return Ran(None, exc, elapsed_s, cancelled=True)
    if isinstance(exc, asyncio.CancelledError):
        return Ran(None, exc, elapsed_s, cancelled=_being_cancelled())
    return Ran(None, exc, elapsed_s, not_started=isinstance(exc, NotStarted))


def _being_cancelled() -> bool:
    """Whether the running task is asked to stop, as opposed to a tool that raised CancelledError by
    itself.
    """
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return False
    return task is not None and task.cancelling() > 0


def _engine(effect: RunTool) -> Engine:
    if effect.run_in == "process":
        from edictum.execution.processes import PROCESSES  # here, because few need it

        return PROCESSES
    return effect.run_in  # type: ignore[return-value]


async def _run_elsewhere(effect: RunTool) -> Ran:
    try:
        return await _engine(effect).run(effect)
    except Exception as exc:
        return _broken(exc)


def _broken(exc: Exception) -> Ran:
    """An engine that raises has broken its promise, and may have begun the body."""
    return Ran(None, exc, lost=f"The engine raised {type(exc).__name__}.")


# --- In a thread, or under a deadline -------------------------------------------------------------


def _call(effect: RunTool) -> Ended:
    try:
        return effect.body(**thaw_args(effect.call.args)), None  # type: ignore[misc]
    except BaseException as exc:
        return None, exc


def _body_call(effect: RunTool) -> Callable[[], Ended]:
    """The body with its arguments, to be run in a thread with the caller's context variables."""
    context = contextvars.copy_context()
    return lambda: context.run(_call, effect)


def _in_thread(effect: RunTool) -> bool:
    return not iscoroutinefunction(effect.body) and (
        effect.run_in == "thread" or effect.timeout_s is not None
    )


async def _run_bounded(effect: RunTool) -> Ran:
    """Run the body under a deadline or in a thread. At the deadline a coroutine is cancelled; a
    thread cannot be, and is left.
    """
    started = clock()
    deadline = None if effect.timeout_s is None else started + effect.timeout_s
    try:
        value, error = await _thread_result(effect) if _in_thread(effect) else _call(effect)
        if error is None and needs_await(value):
            value, error = await see_to_end(value, _left(deadline))
    except Unfinished as left:
        return _left_behind(left, clock() - started, deadline)
    # no thread is left; or the result stands for an object that is gone, and cannot be asked what
    # it is
    except Exception as exc:
        error = exc
    return (
        Ran(value, None, clock() - started) if error is None else ended_by(error, clock() - started)
    )


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - clock())


def _left_behind(left: Unfinished, elapsed_s: float, deadline: float | None) -> Ran:
    if left.by is None:
        return Ran(None, None, elapsed_s, deadline, body_may_be_running=left.running)
    return Ran(None, left.by, elapsed_s, cancelled=True, body_may_be_running=left.running)


async def _thread_result(effect: RunTool) -> Ended:
    future = POOL.submit(_body_call(effect))
    try:
        done = await wait_for(future, effect.timeout_s)
    except asyncio.CancelledError as exc:
        raise _abandoned(future, exc) from None
    if not done:
        raise _abandoned(future)
    return future.result()  # type: ignore[no-any-return]


def _abandoned(future: Future[Any], by: BaseException | None = None) -> Unfinished:
    running = not future.done()
    POOL.abandon(future)
    return Unfinished(running, by)


def run_sync(effect: RunTool, wait: Callable[[Awaitable[Any], float | None], Any]) -> Ran:
    """Run the body for a synchronous host. A coroutine is handed to ``wait``, because this thread
    may be inside a loop.
    """
    if effect.run_in not in HERE:
        return _run_elsewhere_sync(effect)
    started = clock()
    deadline = None if effect.timeout_s is None else started + effect.timeout_s
    try:
        value, error = _thread_result_sync(effect) if _in_thread(effect) else _call(effect)
        if error is None and needs_await(value):
            value, error = wait(see_to_end(value, _left(deadline)), None)
    except Unfinished as left:
        return _left_behind(left, clock() - started, deadline)
    except Exception as exc:
        error = exc
    except KeyboardInterrupt as exc:
        return Ran(None, exc, clock() - started, cancelled=True, body_may_be_running=True)
    return (
        Ran(value, None, clock() - started) if error is None else ended_by(error, clock() - started)
    )


def await_sync(
    running: Awaitable[Any], started: float, wait: Callable[[Awaitable[Any], float | None], Any]
) -> Ran:
    """See a body to its end that turned out to be a coroutine, for a synchronous host."""
    try:
        value, error = wait(see_to_end(running, None), None)
    except Unfinished as left:
        return _left_behind(left, clock() - started, None)
    except Exception as exc:
        error = exc
    except KeyboardInterrupt as exc:
        return Ran(None, exc, clock() - started, cancelled=True, body_may_be_running=True)
    return (
        Ran(value, None, clock() - started) if error is None else ended_by(error, clock() - started)
    )


def _run_elsewhere_sync(effect: RunTool) -> Ran:
    try:
        return _engine(effect).run_sync(effect)
    except Exception as exc:
        return _broken(exc)


def _thread_result_sync(effect: RunTool) -> Ended:
    future = POOL.submit(_body_call(effect))
    try:
        return future.result(  # type: ignore[no-any-return]
            None if effect.timeout_s is None else min(effect.timeout_s, TIMEOUT_MAX)
        )
    except TimeoutError:  # of the waiting: what the body raises comes as a value
        if future.done():
            return future.result()  # type: ignore[no-any-return]
        raise _abandoned(future) from None
    except KeyboardInterrupt as exc:
        raise _abandoned(future, exc) from None
