"""edictum.execution.waiting: how a wait may end, and what it costs in tasks and timers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from typing import Any

import pytest

from edictum import Edictum, ToolExecutionResult
from edictum.core.decision import Failed
from edictum.execution import waiting
from edictum.execution.captured import capture, uncapture
from edictum.execution.waiting import (
    DETACHED,
    await_or_finish_later,
    await_until,
    call_until,
    wait_done,
)
from edictum.harness import Turn, TurnState, tool
from edictum.testing import AsyncLedger


class Counting:
    """Counts the tasks and timers that a loop makes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tasks = self.timers = 0
        loop = asyncio.get_running_loop()
        create_task, call_at = loop.create_task, loop.call_at

        def counted_task(*args: Any, **options: Any) -> Any:
            self.tasks += 1
            return create_task(*args, **options)

        def counted_timer(*args: Any, **options: Any) -> Any:
            self.timers += 1
            return call_at(*args, **options)

        monkeypatch.setattr(loop, "create_task", counted_task)
        monkeypatch.setattr(loop, "call_at", counted_timer)


class Sent:
    """A request that is answered through a future."""

    ends_within_s = 1.0

    def __init__(self) -> None:
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def to_future(self) -> asyncio.Future[Any]:
        return self.future

    def __await__(self) -> Generator[Any, Any, Any]:
        return self.future.__await__()


async def answer(value: Any, delay_s: float = 0.0) -> Any:
    await asyncio.sleep(delay_s)
    if isinstance(value, BaseException):
        raise value
    return value


# --- An exception as a value ----------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError(), SystemExit(1), asyncio.CancelledError()])
async def test_what_is_captured_is_raised_again(error: BaseException) -> None:
    captured = await asyncio.create_task(capture(answer(error)))
    assert type(captured) is Failed
    with pytest.raises(type(error)):
        uncapture(captured)
    assert uncapture(await capture(answer(3))) == 3


# --- What can be stopped --------------------------------------------------------------------------


async def test_an_awaitable_that_does_not_stop_is_left_behind() -> None:
    release, before = asyncio.Event(), set(DETACHED)

    async def stubborn() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    with pytest.raises(TimeoutError, match="no answer within"):
        await await_until(stubborn(), 0.01)
    (left,) = DETACHED - before
    release.set()
    await wait_done(left)
    await asyncio.sleep(0)
    assert before == DETACHED


async def test_one_bound_holds_for_a_function_and_for_what_it_returns() -> None:
    assert await call_until(lambda: answer("awaited"), (), 10.0) == "awaited"
    with pytest.raises(TimeoutError):
        await call_until(lambda: answer("never", 60.0), (), 0.05)


async def test_a_keyboard_interrupt_in_a_pool_thread_is_an_error() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(RuntimeError, match="KeyboardInterrupt"):
        await call_until(interrupted, (), None)


async def test_a_future_of_a_thread_outlives_a_cancelled_wait() -> None:
    release = threading.Event()
    running = waiting.POOL.submit(lambda: release.wait(30))
    assert not await wait_done(running, 0.01)
    waiter = asyncio.ensure_future(wait_done(running))
    await asyncio.sleep(0)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    release.set()
    assert await wait_done(running)
    assert running.result() is True


# --- What cannot be taken back --------------------------------------------------------------------


async def test_a_late_answer_is_handed_over() -> None:
    late: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    with pytest.raises(TimeoutError, match="finished in the background"):
        await await_or_finish_later(answer(7, 0.05), 0.01, late=late.set_result)
    assert await asyncio.wait_for(late, 30) == 7


async def test_a_cancelled_caller_waits_to_the_end_and_is_told_of_it() -> None:
    sent, cancelled = Sent(), list[BaseException]()
    wait = asyncio.ensure_future(await_or_finish_later(sent, on_cancel=cancelled.append))
    for _ in range(3):
        await asyncio.sleep(0)
        wait.cancel()
    await asyncio.sleep(0)
    sent.future.set_result("granted")
    assert await wait == "granted"
    assert len(cancelled) == 3


async def test_a_cancelled_caller_that_lingers_goes_on_without_the_answer() -> None:
    sent, cancelled = Sent(), list[BaseException]()
    lingering = await_or_finish_later(sent, on_cancel=cancelled.append, linger_s=0.01)
    wait = asyncio.ensure_future(lingering)
    await asyncio.sleep(0)
    wait.cancel()
    assert await wait is None
    assert (len(cancelled), sent.future.cancelled()) == (1, False)
    sent.future.set_result(None)


async def test_a_closed_caller_leaves_the_request_to_the_background() -> None:
    sent, late = Sent(), list[Any]()
    wait = await_or_finish_later(sent, 60.0, late=late.append)
    wait.send(None)
    wait.close()
    sent.future.set_result("granted")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert late == ["granted"]


# --- What it costs --------------------------------------------------------------------------------


async def test_a_sent_request_with_a_bound_of_its_own_costs_no_task_and_no_timer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent, loop = Sent(), asyncio.get_running_loop()
    counting = Counting(monkeypatch)
    loop.call_soon(sent.future.set_result, 1)
    assert await await_or_finish_later(sent, 5.0, on_cancel=lambda _: None) == 1
    assert (counting.tasks, counting.timers) == (0, 0)


@tool(side_effect="read")
async def look(key: str) -> str:
    """A coroutine: a thread may or may not have ended before a timer for it is set."""
    return key


async def test_a_remote_operation_in_a_turn_costs_one_task_and_one_timer() -> None:
    """A call makes two operations: it reserves and it settles. The rest is the tool's own."""

    async def cost(**options: Any) -> tuple[int, int]:
        guard, turn = Edictum(**options), Turn(TurnState("s"), [look])
        with pytest.MonkeyPatch.context() as monkeypatch:
            counting = Counting(monkeypatch)
            outcome = await guard.dispatch("look", {"key": "a"}, turn=turn)
        assert isinstance(outcome, ToolExecutionResult), outcome
        return counting.tasks, counting.timers

    (tasks, timers), (tasks_of_tool, timers_of_tool) = (
        await cost(backend=AsyncLedger()),
        await cost(),
    )
    assert (tasks - tasks_of_tool, timers - timers_of_tool) == (2, 2)
