"""Running a tool's body: inline, or in a thread; with or without a deadline; from asynchronous and from synchronous hosts.

Whatever the body does, the answer is a ``Ran``. Two things are passed on after the call has been closed properly: the
cancellation of the caller's task, and KeyboardInterrupt.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from inspect import isawaitable
from types import CoroutineType
from typing import Any

from edictum.core.effects import Ran, RunTool
from edictum.core.freeze import thaw_args
from edictum.execution.threads import POOL

# Results that certainly need no awaiting; asking ``isawaitable`` of each would cost more than the rest of this module.
PLAIN = frozenset({type(None), str, bytes, int, float, bool, dict, list, tuple, set})
clock = time.perf_counter


def needs_await(value: Any) -> bool:
    kind = type(value)
    return kind not in PLAIN and (kind is CoroutineType or isawaitable(value))


def _body_call(effect: RunTool) -> Callable[[], Any]:
    """The body with its arguments, to be run elsewhere with the caller's context variables."""
    body, args = effect.body, thaw_args(effect.call.args)  # type: ignore[arg-type]
    assert body is not None
    context = contextvars.copy_context()
    return lambda: context.run(body, **args)


async def run_async(effect: RunTool) -> Ran:
    """Run the body for an asynchronous host."""
    if effect.timeout_s is not None or effect.run_in == "thread":
        return await _run_bounded(effect)
    started = clock()
    try:
        value = effect.body(**thaw_args(effect.call.args))  # type: ignore[misc, arg-type]
        if needs_await(value):
            value = await value
    except BaseException as exc:
        return _ended_by(exc, clock() - started)
    return Ran(value, None, clock() - started)


def _ended_by(exc: BaseException, elapsed_s: float) -> Ran:
    """A body's exception. Only what is meant for the host, not for the tool, counts as the caller having been interrupted."""
    if isinstance(exc, (KeyboardInterrupt, GeneratorExit)):
        return Ran(None, exc, elapsed_s, cancelled=True)
    if isinstance(exc, asyncio.CancelledError):
        return Ran(None, exc, elapsed_s, cancelled=_being_cancelled())
    return Ran(None, exc, elapsed_s)


def _being_cancelled() -> bool:
    """Whether the running task is asked to stop, as opposed to a tool that raised CancelledError by itself."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return False
    return task is not None and task.cancelling() > 0


async def _run_bounded(effect: RunTool) -> Ran:
    """Run the body under a deadline or in a thread. At the deadline a coroutine is cancelled; a thread cannot be, and is left."""
    started = clock()
    deadline = None if effect.timeout_s is None else started + effect.timeout_s
    in_thread = not asyncio.iscoroutinefunction(effect.body)
    future: Future[Any] | None = None
    try:
        async with asyncio.timeout(effect.timeout_s) as scope:
            if in_thread:
                future = POOL.submit(_body_call(effect))
                value = await asyncio.shield(asyncio.wrap_future(future))
            else:
                value = effect.body(**thaw_args(effect.call.args))  # type: ignore[misc, arg-type]
            if needs_await(value):
                value = await value
    except BaseException as exc:
        running = future is not None and not future.done()
        if isinstance(exc, TimeoutError) and scope.expired():
            return Ran(None, None, clock() - started, deadline, body_may_be_running=running)
        ran = _ended_by(exc, clock() - started)
        return Ran(None, ran.error, ran.elapsed_s, cancelled=ran.cancelled, body_may_be_running=running)
    return Ran(value, None, clock() - started)


def run_sync(effect: RunTool, wait: Callable[[Awaitable[Any], float | None], Any]) -> Ran:
    """Run the body for a synchronous host. A coroutine is handed to ``wait``, because this thread may be inside a loop."""
    started = clock()
    deadline = None if effect.timeout_s is None else started + effect.timeout_s
    running: Future[Any] | None = None
    try:
        if effect.run_in == "thread" or (deadline is not None and not asyncio.iscoroutinefunction(effect.body)):
            running = POOL.submit(_body_call(effect))
            value = running.result(effect.timeout_s)
        else:
            value = effect.body(**thaw_args(effect.call.args))  # type: ignore[misc, arg-type]
        if needs_await(value):
            value = wait(value, None if deadline is None else max(0.0, deadline - clock()))
    except FutureTimeout as exc:
        if deadline is None or clock() < deadline:
            return Ran(None, exc, clock() - started)  # the tool's own TimeoutError
        still = running is not None and not running.done()
        return Ran(None, None, clock() - started, deadline, body_may_be_running=still)
    except BaseException as exc:
        return _ended_by(exc, clock() - started)
    return Ran(value, None, clock() - started)
