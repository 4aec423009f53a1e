"""Limits are exact: with limit N and any mix of coroutines and threads, exactly N bodies run, every
time.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from edictum import (
    Edictum,
    HookDecision,
    HookRegistration,
    MemoryBackend,
    OperationLimits,
    Session,
    ToolDenied,
    ToolExecutionResult,
    ToolFailure,
    ToolOutcome,
    Verdict,
    precondition,
    session_contract,
)
from edictum.core.limits import Grant, Reservation
from edictum.sessions import MemoryLedger
from edictum.testing import AsyncLedger
from support.effort import effort

pytestmark = [pytest.mark.slow, pytest.mark.soak]
REPEATS = effort(50, soak=500)
PARALLEL = 50
LIMIT = 3


class Body:
    """A tool that counts how often its body runs; it gives control away in the middle, so that
    calls overlap.
    """

    def __init__(self, fail: Callable[[int], bool] = lambda number: False) -> None:
        self.ran = 0
        self._next = itertools.count(1).__next__
        self._fail = fail
        self._lock = threading.Lock()

    def _start(self) -> int:
        with self._lock:
            self.ran += 1
        return self._next()

    async def run(self) -> str:
        number = self._start()
        await asyncio.sleep(0)
        return self._end(number)

    def run_sync(self) -> str:
        return self._end(self._start())

    def _end(self, number: int) -> str:
        if self._fail(number):
            raise RuntimeError("the tool failed")
        return "done"


def count(outcomes: list[ToolOutcome], kind: type[Any]) -> int:
    return sum(isinstance(outcome, kind) for outcome in outcomes)


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(PARALLEL) as executor:
        yield executor


def in_threads(
    pool: ThreadPoolExecutor, call: Callable[[int], Any], parallel: int = PARALLEL
) -> list[Any]:
    """Results of ``parallel`` calls that start together."""
    start = threading.Barrier(parallel)

    def one(number: int) -> Any:
        start.wait()
        return call(number)

    return list(pool.map(one, range(parallel)))


async def storm(
    guard: Edictum, body: Body, session: str, parallel: int = PARALLEL
) -> list[ToolOutcome]:
    return list(
        await asyncio.gather(
            *(guard.dispatch("send", {}, body.run, session_id=session) for _ in range(parallel))
        )
    )


# --- The plain limit ------------------------------------------------------------------------------


async def test_fifty_coroutines_with_limit_three_run_three_bodies() -> None:
    """One event loop, one session, 200 times."""
    guard = Edictum(limits=OperationLimits(max_tool_calls=LIMIT))
    for repeat in range(REPEATS):
        body = Body()
        outcomes = await storm(guard, body, f"s-{repeat}")
        assert (body.ran, count(outcomes, ToolExecutionResult), count(outcomes, ToolDenied)) == (
            LIMIT,
            LIMIT,
            PARALLEL - LIMIT,
        )
        assert guard.session(f"s-{repeat}").executions == LIMIT


@pytest.mark.usefixtures("eager_threads")
def test_fifty_threads_with_limit_three_run_three_bodies(pool: ThreadPoolExecutor) -> None:
    """``run_sync`` from 50 threads, 200 times."""
    guard = Edictum(limits=OperationLimits(max_tool_calls=LIMIT))
    for repeat in range(REPEATS):
        body, session = Body(), f"s-{repeat}"
        outcomes = in_threads(
            pool,
            lambda _, body=body, session=session: guard.dispatch_sync(
                "send", {}, body.run_sync, session_id=session
            ),
        )
        assert (body.ran, count(outcomes, ToolExecutionResult)) == (LIMIT, LIMIT)
        assert guard.session(session).in_flight == 0


@pytest.mark.usefixtures("eager_threads")
def test_coroutines_threads_and_several_event_loops_share_one_limit(
    pool: ThreadPoolExecutor,
) -> None:
    """Half the threads run an event loop with several calls each, the others call
    ``dispatch_sync``, some inside a running loop.
    """
    guard = Edictum(limits=OperationLimits(max_tool_calls=LIMIT))
    for repeat in range(REPEATS):
        body, session = Body(), f"s-{repeat}"

        def drive(number: int, body: Body = body, session: str = session) -> list[ToolOutcome]:
            if number % 2:
                return asyncio.run(storm(guard, body, session, 5))
            return [guard.dispatch_sync("send", {}, body.run_sync, session_id=session)]

        outcomes = [outcome for part in in_threads(pool, drive, 8) for outcome in part]
        assert (body.ran, count(outcomes, ToolExecutionResult), len(outcomes)) == (LIMIT, LIMIT, 24)


async def test_sync_calls_inside_a_running_loop_share_the_limit_with_coroutines() -> None:
    """``dispatch_sync`` of an async tool inside a running loop, beside coroutines of that loop."""
    guard = Edictum(limits=OperationLimits(max_tool_calls=LIMIT))
    for repeat in range(REPEATS):
        body, session = Body(), f"s-{repeat}"
        waiting = [
            asyncio.ensure_future(guard.dispatch("send", {}, body.run, session_id=session))
            for _ in range(2)
        ]
        await asyncio.sleep(0)
        outcomes = [guard.dispatch_sync("send", {}, body.run, session_id=session) for _ in range(3)]
        outcomes += await asyncio.gather(*waiting)
        assert (body.ran, count(outcomes, ToolExecutionResult)) == (LIMIT, LIMIT)


async def test_tickets_hold_their_slots_between_before_and_after() -> None:
    """A ticket that is open counts, whatever its host does meanwhile."""
    guard = Edictum(limits=OperationLimits(max_tool_calls=LIMIT))
    tickets = [await guard.begin("send", {}) for _ in range(PARALLEL)]
    assert sum(ticket.allowed for ticket in tickets) == LIMIT
    assert guard.session().in_flight == LIMIT


# --- Mixed with everything that can go wrong ------------------------------------------------------


async def test_failures_use_up_executions() -> None:
    """A body that raised has run: it keeps its slot of executions."""
    guard = Edictum(limits=OperationLimits(max_tool_calls=LIMIT))
    for repeat in range(REPEATS):
        body = Body(fail=lambda number: number % 2 == 0)
        outcomes = await storm(guard, body, f"s-{repeat}")
        assert (body.ran, count(outcomes, ToolFailure), count(outcomes, ToolExecutionResult)) == (
            LIMIT,
            1,
            2,
        )


async def test_denials_and_raising_hooks_take_no_slots() -> None:
    """Calls that a contract denies or whose hook raises are counted as attempts only."""

    @precondition("send", when=lambda call: call.args["number"] % 2 == 0)
    def no_even_numbers(call: Any) -> Verdict:
        return Verdict.fail("even")

    def broken_for_some(call: Any) -> HookDecision:
        if call.args["number"] % 3 == 0:
            raise RuntimeError("hook broke")
        return HookDecision.allow()

    guard = Edictum(
        limits=OperationLimits(max_tool_calls=LIMIT),
        contracts=[no_even_numbers],
        hooks=[HookRegistration("before", "*", broken_for_some)],
    )
    for repeat in range(REPEATS):
        body, session = Body(), f"s-{repeat}"

        async def send(number: int, body: Body = body) -> str:
            return await body.run()

        calls = [
            guard.dispatch("send", {"number": number}, send, session_id=session)
            for number in range(PARALLEL)
        ]
        outcomes = await asyncio.gather(*calls)
        assert (body.ran, count(outcomes, ToolExecutionResult)) == (LIMIT, LIMIT)
        assert guard.session(session).attempts == PARALLEL


async def test_cancelled_calls_count_as_failed_executions() -> None:
    """A call that was cancelled while its tool ran keeps its slot; one that was cancelled before
    gives it back.
    """
    guard = Edictum(limits=OperationLimits(max_tool_calls=LIMIT))
    for repeat in range(REPEATS):
        body, session = Body(), f"s-{repeat}"
        tasks = [
            asyncio.ensure_future(guard.dispatch("send", {}, body.run, session_id=session))
            for _ in range(PARALLEL)
        ]
        await asyncio.sleep(0)
        for task in tasks[:2]:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert sum(isinstance(end, asyncio.CancelledError) for end in ended) == 2
        counted = guard.session(session).snapshot().totals
        assert (
            body.ran,
            counted.executions,
            counted.successes,
            counted.failures,
            counted.in_flight,
        ) == (LIMIT, LIMIT, 1, 2, 0)


@pytest.mark.usefixtures("eager_threads")
def test_the_mix_is_exact_over_threads_too(pool: ThreadPoolExecutor) -> None:
    """Failures, denials, raising hooks and cancelled loops at once, from 50 threads."""

    def broken_for_some(call: Any) -> HookDecision:
        if call.args["number"] % 7 == 0:
            raise RuntimeError("hook broke")
        return HookDecision.deny("no") if call.args["number"] % 11 == 0 else HookDecision.allow()

    guard = Edictum(
        limits=OperationLimits(max_tool_calls=LIMIT),
        hooks=[HookRegistration("before", "*", broken_for_some)],
    )
    for repeat in range(REPEATS):
        body, session = Body(fail=lambda number: number == 2), f"s-{repeat}"

        def drive(number: int, body: Body = body, session: str = session) -> Any:
            return guard.dispatch_sync(
                "send", {"number": number}, lambda number: body.run_sync(), session_id=session
            )

        outcomes = in_threads(pool, drive)
        assert (body.ran, count(outcomes, ToolFailure), count(outcomes, ToolExecutionResult)) == (
            LIMIT,
            1,
            2,
        )
        totals = guard.session(session).snapshot().totals
        assert (totals.attempts, totals.executions, totals.in_flight) == (PARALLEL, LIMIT, 0)


async def test_one_call_id_used_twice_at_once_does_not_get_around_the_limit() -> None:
    """Call ids come from a framework or a model; reusing one must not make two calls share a
    slot.
    """
    guard = Edictum(limits=OperationLimits(max_tool_calls=LIMIT))
    body = Body()
    calls = [guard.dispatch("send", {}, body.run, call_id="call-1") for _ in range(PARALLEL)]
    await asyncio.gather(*calls)
    assert body.ran == LIMIT
    assert guard.session().attempts == PARALLEL
    assert guard.session().executions == LIMIT


async def test_one_call_id_used_again_later_counts_again() -> None:
    """The same id in sequence is several calls."""
    guard = Edictum(limits=OperationLimits(max_tool_calls=LIMIT))
    body = Body()
    for _ in range(5):
        await guard.dispatch("send", {}, body.run, call_id="call-1")
    assert (body.ran, guard.session().executions) == (LIMIT, LIMIT)


# --- Attempts -------------------------------------------------------------------------------------


async def test_max_attempts_three_lets_exactly_three_attempts_through() -> None:
    """N, not N - 1; concurrent attempts are exact as well."""
    guard = Edictum(limits=OperationLimits(max_attempts=LIMIT))
    for repeat in range(REPEATS):
        body = Body()
        outcomes = await storm(guard, body, f"s-{repeat}")
        assert (body.ran, count(outcomes, ToolExecutionResult)) == (LIMIT, LIMIT)
        assert guard.session(f"s-{repeat}").attempts == PARALLEL


@pytest.mark.usefixtures("eager_threads")
def test_max_attempts_is_exact_over_threads(pool: ThreadPoolExecutor) -> None:
    """Fifty threads, three attempts."""
    guard = Edictum(limits=OperationLimits(max_attempts=LIMIT))
    for repeat in range(REPEATS):
        body, session = Body(), f"s-{repeat}"
        in_threads(
            pool,
            lambda _, body=body, session=session: guard.dispatch_sync(
                "send", {}, body.run_sync, session_id=session
            ),
        )
        assert body.ran == LIMIT


async def test_denied_attempts_use_up_attempts() -> None:
    """An agent that is stuck on a denial runs into the attempt limit."""
    guard = Edictum(
        contracts=[precondition("rm")(lambda call: Verdict.fail("no"))],
        limits=OperationLimits(max_attempts=LIMIT),
    )
    for _ in range(LIMIT):
        assert isinstance(await guard.dispatch("rm", {}, print), ToolDenied)
    last = await guard.dispatch("ls", {}, print)
    assert isinstance(last, ToolDenied)
    assert last.decision_source == "attempt_limit"


# --- Successes, failures --------------------------------------------------------------------------


async def test_a_call_in_flight_reserves_a_success() -> None:
    """With ``max_successes`` three calls run at once and no more; they may all turn out
    successes.
    """
    guard = Edictum(limits=OperationLimits(max_successes=LIMIT))
    for repeat in range(REPEATS):
        body = Body()
        await storm(guard, body, f"s-{repeat}")
        assert body.ran == LIMIT
        assert guard.session(f"s-{repeat}").successes == LIMIT


async def test_a_failed_call_gives_its_success_slot_back() -> None:
    """Failures do not use up successes: the agent may try until three calls succeeded."""
    guard = Edictum(limits=OperationLimits(max_successes=LIMIT))
    body = Body(fail=lambda number: number % 2 == 1)
    for _ in range(PARALLEL):
        await guard.dispatch("send", {}, body.run)
    assert (body.ran, guard.session().successes, guard.session().failures) == (6, LIMIT, LIMIT)


@pytest.mark.usefixtures("eager_threads")
def test_max_successes_is_never_exceeded_over_threads(pool: ThreadPoolExecutor) -> None:
    """Whatever order the calls end in."""
    guard = Edictum(limits=OperationLimits(max_successes=LIMIT))
    for repeat in range(REPEATS):
        body, session = Body(fail=lambda number: number % 3 == 0), f"s-{repeat}"
        in_threads(
            pool,
            lambda _, body=body, session=session: guard.dispatch_sync(
                "send", {}, body.run_sync, session_id=session
            ),
        )
        assert guard.session(session).successes <= LIMIT
        assert guard.session(session).in_flight == 0


async def test_max_failures_is_never_exceeded() -> None:
    """A call in flight may still fail, so it holds a slot of failures too."""
    guard = Edictum(limits=OperationLimits(max_failures=LIMIT))
    for repeat in range(REPEATS):
        body = Body(fail=lambda number: True)
        await storm(guard, body, f"s-{repeat}")
        assert (body.ran, guard.session(f"s-{repeat}").failures) == (LIMIT, LIMIT)


async def test_successes_give_their_failure_slot_back() -> None:
    """Fifty successes in a row are no reason to stop when only failures are limited."""
    guard = Edictum(limits=OperationLimits(max_failures=1))
    body = Body()
    for _ in range(PARALLEL):
        await guard.dispatch("send", {}, body.run)
    assert body.ran == PARALLEL


async def test_consecutive_failures_trip_and_a_success_resets_them() -> None:
    """The circuit breaker looks at finished calls."""
    guard = Edictum(limits=OperationLimits(max_consecutive_failures=2))
    fails = iter([True, False, True, True, True])
    body = Body(fail=lambda number: next(fails))
    outcomes = [await guard.dispatch("send", {}, body.run) for _ in range(5)]
    assert [type(outcome) for outcome in outcomes] == [
        ToolFailure,
        ToolExecutionResult,
        ToolFailure,
        ToolFailure,
        ToolDenied,
    ]
    assert outcomes[-1].decision_name == "max_consecutive_failures"


# --- Per tool -------------------------------------------------------------------------------------


async def test_per_tool_limits_count_each_tool_apart() -> None:
    """A limit of one tool does not touch another."""
    guard = Edictum(limits=OperationLimits(max_calls_per_tool={"send": 2}))
    sent, read = Body(), Body()
    calls = [
        guard.dispatch(name, {}, body.run)
        for _ in range(10)
        for name, body in (("send", sent), ("read", read))
    ]
    await asyncio.gather(*calls)
    assert (sent.ran, read.ran) == (2, 10)


async def test_the_tools_of_a_glob_share_one_count() -> None:
    """``mcp_*: 3`` means three in all."""
    guard = Edictum(limits=OperationLimits(max_calls_per_tool={"mcp_*": LIMIT}))
    for repeat in range(REPEATS):
        body, session = Body(), f"s-{repeat}"
        calls = [
            guard.dispatch(f"mcp_{number % 5}", {}, body.run, session_id=session)
            for number in range(PARALLEL)
        ]
        await asyncio.gather(*calls)
        assert body.ran == LIMIT


async def test_successes_per_tool_are_limited_apart_from_calls() -> None:
    """Only the tool's successes count."""
    guard = Edictum(limits=OperationLimits(max_successes_per_tool={"send": 2}))
    body = Body(fail=lambda number: number <= 3)
    for _ in range(10):
        await guard.dispatch("send", {}, body.run)
    assert (body.ran, guard.session().successes_per_tool["send"]) == (5, 2)


async def test_a_limit_of_zero_lets_nothing_through() -> None:
    """Zero is a limit, not the absence of one."""
    guard = Edictum(limits=OperationLimits(max_calls_per_tool={"send": 0}))
    body = Body()
    assert isinstance(await guard.dispatch("send", {}, body.run), ToolDenied)
    assert body.ran == 0


# --- Session contracts written in Python ----------------------------------------------------------


@session_contract
def at_most_three(session: Session) -> Verdict:
    return Verdict.fail("three are enough") if session.executions >= LIMIT else Verdict.pass_()


@session_contract
async def at_most_three_async(session: Session) -> Verdict:
    await asyncio.sleep(0)
    return (
        Verdict.fail("three are enough")
        if await session.execution_count() >= LIMIT
        else Verdict.pass_()
    )


@session_contract
def at_most_three_of_send(session: Session) -> Verdict:
    return (
        Verdict.fail("three are enough")
        if session.per_tool.get("send", 0) >= LIMIT
        else Verdict.pass_()
    )


@pytest.mark.parametrize(
    "contract",
    [at_most_three, at_most_three_async, at_most_three_of_send],
    ids=lambda contract: contract.id,
)
async def test_a_session_contract_is_exact_for_coroutines(contract: Any) -> None:
    """``session.executions >= 3`` lets three of fifty through: calls in flight count."""
    guard = Edictum(contracts=[contract])
    for repeat in range(REPEATS):
        body = Body()
        await storm(guard, body, f"s-{repeat}")
        assert body.ran == LIMIT


@pytest.mark.usefixtures("eager_threads")
def test_a_session_contract_is_exact_for_threads(pool: ThreadPoolExecutor) -> None:
    """The same for fifty threads: neither more than three, nor fewer."""
    guard = Edictum(contracts=[at_most_three])
    for repeat in range(REPEATS):
        body, session = Body(), f"s-{repeat}"
        in_threads(
            pool,
            lambda _, body=body, session=session: guard.dispatch_sync(
                "send", {}, body.run_sync, session_id=session
            ),
        )
        assert body.ran == LIMIT


class TogetherLedger(MemoryLedger):
    """Answers only when ``parties`` calls hold their slots, all of them together: the worst moment,
    every time.
    """

    def __init__(self, parties: int) -> None:
        super().__init__()
        self._together = threading.Barrier(parties)

    def reserve(self, reservation: Reservation) -> Grant:
        grant = super().reserve(reservation)
        with contextlib.suppress(threading.BrokenBarrierError):
            self._together.wait(2)
        return grant


@pytest.mark.parametrize(
    "contract", [at_most_three, at_most_three_of_send], ids=lambda contract: contract.id
)
def test_calls_that_look_at_the_session_at_the_same_moment_do_not_all_refuse_each_other(
    contract: Any, pool: ThreadPoolExecutor
) -> None:
    """Ten calls hold a slot each and look at once; three of them must still run."""
    guard = Edictum(contracts=[contract], backend=TogetherLedger(10))
    body = Body()
    in_threads(pool, lambda _: guard.dispatch_sync("send", {}, body.run_sync), 10)
    assert body.ran == LIMIT


# --- Ledgers that must be awaited -----------------------------------------------------------------


@pytest.mark.parametrize(
    "make", [AsyncLedger, MemoryBackend], ids=["async ledger", "four-verb storage"]
)
async def test_a_ledger_that_is_awaited_is_exact_for_coroutines(make: Callable[[], Any]) -> None:
    """The slots are taken in one atomic step, however long the answer takes."""
    guard = Edictum(limits=OperationLimits(max_tool_calls=LIMIT), backend=make())
    for repeat in range(REPEATS):
        body = Body()
        outcomes = await storm(guard, body, f"s-{repeat}")
        assert (body.ran, count(outcomes, ToolExecutionResult)) == (LIMIT, LIMIT)
        assert guard.session(f"s-{repeat}").executions == LIMIT


@pytest.mark.usefixtures("eager_threads")
@pytest.mark.parametrize(
    "make", [AsyncLedger, MemoryBackend], ids=["async ledger", "four-verb storage"]
)
def test_a_ledger_that_is_awaited_is_exact_for_threads(
    make: Callable[[], Any], pool: ThreadPoolExecutor
) -> None:
    """Threads reach it through the portal."""
    guard = Edictum(limits=OperationLimits(max_tool_calls=LIMIT), backend=make())
    for repeat in range(REPEATS):
        body, session = Body(), f"s-{repeat}"
        in_threads(
            pool,
            lambda _, body=body, session=session: guard.dispatch_sync(
                "send", {}, body.run_sync, session_id=session
            ),
        )
        assert body.ran == LIMIT


@pytest.mark.parametrize(
    "contract",
    [at_most_three, at_most_three_async, at_most_three_of_send],
    ids=lambda contract: contract.id,
)
@pytest.mark.parametrize(
    "make", [AsyncLedger, lambda: SlowBackend()], ids=["async ledger", "four-verb storage"]
)
async def test_a_session_contract_on_a_ledger_that_is_awaited_is_exact(
    make: Callable[[], Any], contract: Any
) -> None:
    """Each call is judged by the counters of the moment when it took its slot: not more than three
    run, and not fewer.
    """
    guard = Edictum(contracts=[contract], backend=make())
    for repeat in range(REPEATS // 10):
        body = Body()
        await storm(guard, body, f"s-{repeat}")
        assert body.ran == LIMIT


@pytest.mark.parametrize(
    "make",
    [MemoryLedger, AsyncLedger, MemoryBackend],
    ids=["memory", "async ledger", "four-verb storage"],
)
async def test_a_session_contract_sees_failures_in_a_row(make: Callable[[], Any]) -> None:
    """Written as a breaker, it opens with every ledger."""

    @session_contract
    def breaker(session: Session) -> Verdict:
        return Verdict.fail("broken") if session.consecutive_failures >= LIMIT else Verdict.pass_()

    guard, body = Edictum(contracts=[breaker], backend=make()), Body(lambda number: True)
    for _ in range(LIMIT + 2):
        await guard.dispatch("send", {}, body.run)
    assert body.ran == LIMIT


class SlowBackend(MemoryBackend):
    """A four-verb storage that gives control away before every operation, so that operations of all
    calls interleave.
    """

    async def get(self, key: str) -> str | None:
        await asyncio.sleep(0)
        return await super().get(key)

    async def increment(self, key: str, amount: float = 1) -> float:
        await asyncio.sleep(0)
        return await super().increment(key, amount)


@pytest.mark.parametrize(
    "limits",
    [
        OperationLimits(max_tool_calls=LIMIT),
        OperationLimits(max_successes=LIMIT),
        OperationLimits(max_attempts=LIMIT),
        OperationLimits(max_tool_calls=LIMIT, max_calls_per_tool={"send": LIMIT, "s*": LIMIT}),
    ],
    ids=["calls", "successes", "attempts", "per tool and glob"],
)
async def test_a_storage_whose_operations_interleave_is_still_exact(
    limits: OperationLimits,
) -> None:
    """Adding, comparing and giving back is enough, also when everybody does it at once."""
    guard = Edictum(limits=limits, backend=SlowBackend())
    for repeat in range(REPEATS):
        body = Body()
        await storm(guard, body, f"s-{repeat}")
        assert body.ran == LIMIT


async def test_cancelling_while_a_storage_answers_leaks_no_slot() -> None:
    """A ledger operation that was sent is seen through."""
    guard = Edictum(limits=OperationLimits(max_tool_calls=LIMIT), backend=SlowBackend())
    for pause in range(1, 15):
        session = f"s-{pause}"
        task = asyncio.ensure_future(guard.dispatch("send", {}, Body().run, session_id=session))
        for _ in range(pause):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert guard.session(session).in_flight == 0


async def test_a_call_whose_session_is_reset_while_it_runs_still_counts() -> None:
    """It counts in the session as it is now, and holds nothing in it."""
    guard = Edictum()

    def start_over() -> str:
        guard.session().reset()
        return "done"

    await guard.run("work", {}, lambda: "the session is known from here on")
    assert await guard.run("work", {}, start_over) == "done"
    assert (guard.session().executions, guard.session().snapshot().totals.in_flight) == (1, 0)
    assert guard.local_sink.last().session_execution_count == 1
