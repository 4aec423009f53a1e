"""Bodies that end when nobody waits for them any more, and calls that end before their body
began.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from turns import Bench, new_guard, request

from edictum.harness import DeadlineToken, tool
from edictum.outcomes import ToolDenied, ToolExecutionResult, ToolTimeout
from edictum.testing import AsyncLedger
from support.waiting import wait_in_loop


class Shelf:
    """One value; a write of it in a thread waits until it is let go."""

    def __init__(self) -> None:
        self.value = "old"
        self.entered, self.go_on = threading.Event(), threading.Event()

    def write(self, value: str, fails: bool = False) -> dict[str, Any]:
        self.entered.set()
        self.go_on.wait(30)
        self.value = value
        if fails:
            raise OSError("written, and then this")
        return {}

    def bench(self, **options: Any) -> Bench:
        put = tool(
            name="put", side_effect="write", resource_keys=["shelf"], verify="get", **options
        )(self.write)
        return Bench(
            put,
            tool(name="get", side_effect="read", idempotent=True, resource_keys=["shelf"])(
                lambda: {"v": self.value}
            ),
        )


@pytest.fixture
def shelf() -> Iterator[Shelf]:
    shelf = Shelf()
    yield shelf
    shelf.go_on.set()


async def value_of(bench: Bench) -> Any:
    outcome = await bench.call("get")
    assert isinstance(outcome, ToolExecutionResult), outcome
    return outcome.value["v"]


async def late_end(bench: Bench) -> None:
    await wait_in_loop(lambda: bench.state.late_completions())


@pytest.mark.parametrize("fails", [False, True])
async def test_what_was_read_before_a_late_write_is_stale(shelf: Shelf, fails: bool) -> None:
    bench = shelf.bench(timeout_s=0.05)
    assert isinstance(await bench.call("put", {"value": "new", "fails": fails}), ToolTimeout)
    assert await value_of(bench) == "old"
    shelf.go_on.set()
    await late_end(bench)
    assert await value_of(bench) == "new"


async def test_a_write_whose_caller_is_cancelled_is_told_when_it_ends(shelf: Shelf) -> None:
    bench = shelf.bench()
    calling = asyncio.create_task(bench.call("put", {"value": "new"}))
    await asyncio.to_thread(shelf.entered.wait, 30)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert [entry.status for entry in bench.state.tool_trace.values()] == ["cancelled"]
    assert await value_of(bench) == "old"
    shelf.go_on.set()
    await late_end(bench)
    assert await value_of(bench) == "new"


@pytest.mark.parametrize("fails", [False, True])
async def test_so_is_a_coroutine_that_does_not_let_itself_be_stopped(fails: bool) -> None:
    notes = {"v": "old"}
    go_on = asyncio.Event()

    @tool(side_effect="write", resource_keys=["notes"], timeout_s=0.05)
    async def put() -> None:
        while not go_on.is_set():
            try:
                await go_on.wait()
            except asyncio.CancelledError:
                continue
        notes["v"] = "new"
        if fails:
            raise OSError("written, and then this")

    bench = Bench(
        put,
        tool(name="get", side_effect="read", idempotent=True, resource_keys=["notes"])(
            lambda: dict(notes)
        ),
    )
    assert isinstance(await bench.call("put"), ToolTimeout)
    assert await value_of(bench) == "old"
    go_on.set()
    await late_end(bench)
    assert await value_of(bench) == "new"


class Slow:
    """An awaitable that is no coroutine, and does not end."""

    def __await__(self) -> Any:
        yield from asyncio.Event().wait().__await__()


async def test_an_awaitable_that_does_not_end_in_time_has_timed_out() -> None:
    bench = Bench(tool(name="t", side_effect="read", timeout_s=0.05, returns=None)(lambda: Slow()))
    assert isinstance(await bench.call("t"), ToolTimeout)
    outcome = await asyncio.to_thread(bench.executor.execute, request("t"), bench.state)
    assert isinstance(outcome, ToolTimeout)


async def test_a_turn_that_is_closed_in_the_middle_of_a_call_leaves_nothing_running() -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()

    @tool(side_effect="read")
    async def look() -> dict[str, Any]:
        entered.set()
        await go_on.wait()
        return {}

    bench = Bench(look)
    calling = asyncio.create_task(bench.call("look"))
    await entered.wait()
    bench.state.close_writes()
    go_on.set()
    await calling
    assert bench.state.tool_results == []
    assert [(entry.status, entry.finished_late) for entry in bench.state.tool_trace.values()] == [
        ("cancelled", True)
    ]
    assert bench.state.mark_trace_timed_out(next(iter(bench.state.tool_trace)))


@pytest.mark.parametrize("isolation", ["async", "inline"])
async def test_a_call_that_is_cancelled_before_its_body_begins_leaves_nothing_behind(
    isolation: Any,
) -> None:
    """It is cancelled while the ledger is asked, so everything is decided, and the tool is not
    run.
    """
    ran: list[int] = []
    asked, answer = asyncio.Event(), asyncio.Event()

    class Waiting(AsyncLedger):
        async def reserve(self, reservation: Any) -> Any:
            asked.set()
            await answer.wait()
            return await super().reserve(reservation)

    work = tool(name="work", side_effect="write", isolation=isolation)(lambda: ran.append(1))
    bench = Bench(work, guard=new_guard(backend=Waiting()))
    tokens: list[Any] = []

    async def caller() -> None:
        try:
            await bench.call("work")
        finally:
            tokens.append(DeadlineToken.current())

    calling = asyncio.create_task(caller())
    await asked.wait()
    calling.cancel()
    await asyncio.sleep(0)
    answer.set()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert ran == []
    assert tokens == [None]
    assert [entry.status for entry in bench.state.tool_trace.values()] == ["cancelled"]
    outcome = bench.state.tool_results[-1]
    assert isinstance(outcome, ToolDenied)
    assert outcome.reason == "cancelled"
