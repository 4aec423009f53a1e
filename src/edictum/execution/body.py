"""Run a tool's body inline, in a thread or by an engine, for asynchronous and synchronous hosts.

Whatever the body does, the answer is a ``Ran``. Two exceptions are raised again once the call has
been closed properly: the cancellation of the caller's task, and KeyboardInterrupt.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from threading import TIMEOUT_MAX
from time import perf_counter
from types import CoroutineType
from typing import Any

from edictum._logs import EXECUTION_NOT_STARTED, log
from edictum.core._records import record
from edictum.core.decide import describe, type_and_text
from edictum.core.decision import Failed
from edictum.core.effects import Declined, Engine, Pause, Ran, RunTool, ran_to_end
from edictum.core.freeze import FlatDict, thaw_args
from edictum.execution.captured import capture_call
from edictum.execution.failures import Lost, NotStarted, Unfinished
from edictum.execution.portal import PORTAL
from edictum.execution.threads import POOL, AbandonedByTool, AbandonedCalls
from edictum.execution.waiting import is_being_cancelled, run_in_thread, run_until

# Results that need no awaiting; ``isawaitable`` would cost more than the rest of this module.
NOT_AWAITABLE = frozenset({type(None), str, bytes, int, float, bool, dict, list, tuple, set})


def needs_await(value: Any) -> bool:
    kind = type(value)
    return kind not in NOT_AWAITABLE and (kind is CoroutineType or isawaitable(value))


# --- Inline ---------------------------------------------------------------------------------------


@record
class Running:
    """An inline body that turned out to be awaitable, and when it was started."""

    awaitable: Awaitable[Any]
    started: float


def runs_inline(effect: RunTool) -> bool:
    return effect.timeout_s is None and effect.run_in == "inline"


def start_inline(effect: RunTool) -> Ran | Running:
    """Call the body. Return how it ended, or a Running if its value must be awaited.

    The traceback of an exception refers to the frames of all callers. A caller that still holds the
    exception in a variable when it returns makes a reference cycle, which only the garbage
    collector frees. So callers inside this library delete the variables that hold it.
    """
    started = perf_counter()
    args = effect.call.args
    try:
        assert effect.body is not None  # a ticket's is, and a ticket's host runs it
        value = effect.body(**(args if type(args) is FlatDict else thaw_args(args)))
        # raises for a proxy of an object that is gone
        awaits = type(value) not in NOT_AWAITABLE and needs_await(value)
    except BaseException as exc:
        return read_error(exc, perf_counter() - started)
    return Running(value, started) if awaits else ran_to_end(value, None, perf_counter() - started)


async def finish_inline(running: Running) -> Ran:
    """Await a body in the caller's task. A GeneratorExit that leaves this is never the body's."""
    try:
        value = await running.awaitable
    except BaseException as exc:
        return read_error(exc, perf_counter() - running.started)
    return Ran(value, None, perf_counter() - running.started)


def finish_inline_sync(running: Running) -> Ran:
    """Await a body for a synchronous host, in the portal: this thread may be inside a loop."""
    return _finish_sync(lambda: running.awaitable, running.started, None)


def _call_body(effect: RunTool) -> Any:
    assert effect.body is not None
    return effect.body(**thaw_args(effect.call.args))


def read_error(exc: BaseException, elapsed_s: float) -> Ran:
    """Return how a body that raised has ended: as interrupted only if the interruption was meant
    for the host.
    """
    if isinstance(exc, (KeyboardInterrupt, Pause, Declined)):
        return Ran(None, exc, elapsed_s, cancelled=True)
    if isinstance(exc, asyncio.CancelledError):
        return Ran(None, exc, elapsed_s, cancelled=is_being_cancelled())
    return Ran(None, exc, elapsed_s, not_started=isinstance(exc, NotStarted))


# --- In a thread, or under a deadline -------------------------------------------------------------


async def run_async(effect: RunTool, abandoned: AbandonedByTool) -> Ran:
    """Run a body elsewhere or under a deadline. A thread that misses its deadline is left
    behind.
    """
    if effect.run_in not in ("inline", "thread"):
        try:
            return _log_missing_start(effect, await _engine(effect).run(effect))
        except Exception as exc:
            return _end_by_engine(effect, exc)
    started, timeout_s = perf_counter(), effect.timeout_s
    deadline = None if timeout_s is None else started + timeout_s
    try:
        if iscoroutinefunction(effect.body):
            result = await run_until(_call_body(effect), timeout_s)
        else:
            tool = abandoned.find(effect.call.tool_name)
            result = await run_in_thread(partial(_call_body, effect), timeout_s, tool)
            if needs_await(result):
                result = await run_until(result, _time_left_s(deadline))
    except Exception as exc:  # no thread is left; or the result is a proxy of a dead object
        result = Failed(exc)
    return _make_ran(result, perf_counter() - started, deadline)


def run_sync(effect: RunTool, abandoned: AbandonedByTool) -> Ran:
    """Run a body that does not run inline, for a synchronous host."""
    if effect.run_in not in ("inline", "thread"):
        try:
            return _log_missing_start(effect, _engine(effect).run_sync(effect))
        except Exception as exc:
            return _end_by_engine(effect, exc)
    started, call = perf_counter(), partial(_call_body, effect)
    deadline = None if effect.timeout_s is None else started + effect.timeout_s
    if iscoroutinefunction(effect.body):
        return _finish_sync(partial(capture_call, call), started, deadline)
    tool = abandoned.find(effect.call.tool_name)
    run = partial(_run_in_thread_sync, call, effect.timeout_s, tool)
    return _finish_sync(run, started, deadline)


def _finish_sync(begin: Callable[[], Any], started: float, deadline: float | None) -> Ran:
    try:
        result = begin()
        if needs_await(result):
            result = PORTAL.capture(run_until(result, _time_left_s(deadline)))
    except Exception as exc:
        result = Failed(exc)
    except KeyboardInterrupt as exc:
        return Ran(None, exc, perf_counter() - started, cancelled=True, body_may_be_running=True)
    return _make_ran(result, perf_counter() - started, deadline)


def _run_in_thread_sync(
    call: Callable[[], Any], timeout_s: float | None, tool: AbandonedCalls
) -> Any:
    future = POOL.submit(partial(contextvars.copy_context().run, capture_call, call), tool)
    try:
        return future.result(None if timeout_s is None else min(timeout_s, TIMEOUT_MAX))
    except TimeoutError:  # of this wait: what the body raises is captured
        return future.result() if future.done() else POOL.leave(future, None, tool)
    except KeyboardInterrupt as exc:
        return POOL.leave(future, exc, tool)


def _time_left_s(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - perf_counter())


def _make_ran(result: Any, elapsed_s: float, deadline: float | None) -> Ran:
    if type(result) is not Failed:
        return Ran(result, None, elapsed_s)
    error = result.error
    if not isinstance(error, Unfinished):
        return read_error(error, elapsed_s)
    if error.by is None:
        return Ran(None, None, elapsed_s, deadline, body_may_be_running=error.running)
    return Ran(None, error.by, elapsed_s, cancelled=True, body_may_be_running=error.running)


# --- Elsewhere ------------------------------------------------------------------------------------


def _engine(effect: RunTool) -> Engine:
    if effect.run_in == "process":
        from edictum.execution.processes import PROCESSES  # here, because few need it

        return PROCESSES
    assert not isinstance(effect.run_in, str)
    return effect.run_in


def _log_missing_start(effect: RunTool, ran: Ran) -> Ran:
    """Log a call that its engine could not start: the reason is for operators, not for the
    model.
    """
    if ran.not_started and ran.error is not None and not ran.cancelled:
        tool, why = effect.call.tool_name, describe(ran.error)
        log(EXECUTION_NOT_STARTED, "tool %r was not started: %s", tool, why, tool=tool)
    return ran


def _end_by_engine(effect: RunTool, exc: Exception) -> Ran:
    """Return how a body ends whose engine raised: the body may have begun."""
    tool = effect.call.tool_name
    log(EXECUTION_NOT_STARTED, "the engine of tool %r raised", tool, exc_info=exc, tool=tool)
    lost = Lost(f"The engine raised {type_and_text(exc)}")
    lost.__cause__ = exc
    return Ran(None, lost, lost=f"The engine raised {type(exc).__name__}.")
