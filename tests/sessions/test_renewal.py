"""Leases of calls are kept alive from their grant until they are settled, and run out when nobody
is there any more.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from edictum import (
    AuditEvent,
    Edictum,
    OperationLimits,
    ToolDenied,
    ToolExecutionResult,
    Verdict,
    postcondition,
    session_contract,
)
from edictum.core.limits import Counters, Grant, Reservation, Settlement
from edictum.runtime.renewal import CallLeases, Renewals
from edictum.sessions import MemoryLedger
from edictum.testing import FakeClock
from support.waiting import wait_until

LEASE_S = 0.3
READ = {"work": {"side_effect": "read"}}


class Watched(MemoryLedger):
    """Counts renewals. Its clock is moved by the tests: a machine that is late cannot make a lease
    run out.
    """

    def __init__(self) -> None:
        self.time = FakeClock()
        super().__init__(clock=self.time.now, lease_s=LEASE_S)
        self.renewals = 0

    def renew(self, session_id: str, call_id: str, lease_s: float) -> Any:
        renewed = super().renew(session_id, call_id, lease_s)
        self.renewals += 1
        return renewed

    def outlive_the_lease(self) -> None:
        """Let two leases pass, a third of one at a time, each after somebody has renewed."""
        for _ in range(6):
            self.time.advance(LEASE_S / 3)
            before = self.renewals
            wait_until(lambda before=before: self.renewals > before)


def make_guard(ledger: MemoryLedger) -> Edictum:
    return Edictum(tools=READ, backend=ledger)


async def test_a_coroutine_keeps_its_slot() -> None:
    ledger = Watched()
    guard = make_guard(ledger)

    async def body() -> int:
        await asyncio.to_thread(ledger.outlive_the_lease)
        return guard.session().in_flight

    assert await guard.run("work", {}, body) == 1
    assert (guard.session().executions, guard.session().in_flight) == (1, 0)


def test_a_thread_keeps_its_slot() -> None:
    ledger = Watched()
    guard = make_guard(ledger)

    def body() -> int:
        ledger.outlive_the_lease()
        return guard.session().in_flight

    assert guard.run_sync("work", {}, body) == 1


async def test_a_ticket_keeps_its_slot_and_a_forgotten_one_does_not() -> None:
    ledger = Watched()
    guard = make_guard(ledger)
    kept, forgotten = await guard.begin("work", {}), await guard.begin("work", {})
    assert guard.session().in_flight == 2
    del forgotten
    gc.collect()
    await asyncio.to_thread(ledger.outlive_the_lease)
    assert guard.session().in_flight == 1
    await kept.finish("done")
    assert (guard.session().executions, guard.session().in_flight) == (1, 0)


# --- Before and after the tool --------------------------------------------------------------------

Wait = Callable[[], Awaitable[None]]


class SlowSink:
    def __init__(self, wait: Wait) -> None:
        self._wait = wait

    async def emit(self, event: AuditEvent) -> None:
        if event.action == "call_allowed":
            await self._wait()


def slow_contract(wait: Wait) -> dict[str, Any]:
    async def check(session: Any) -> Verdict:
        await wait()
        return Verdict.pass_()

    return {"contracts": [session_contract(id="slow")(check)]}


def slow_postcondition(wait: Wait) -> dict[str, Any]:
    async def check(call: Any, result: Any) -> Verdict:
        await wait()
        return Verdict.pass_()

    return {"contracts": [postcondition("*", id="slow")(check)]}


def slow_sink(wait: Wait) -> dict[str, Any]:
    return {"audit_sink": SlowSink(wait)}


async def dispatched(guard: Edictum) -> Any:
    return await guard.dispatch("work", {}, lambda: 1)


async def dispatched_sync(guard: Edictum) -> Any:
    return await asyncio.to_thread(guard.dispatch_sync, "work", {}, lambda: 1)


async def by_ticket(guard: Edictum) -> Any:
    ticket = await guard.begin("work", {})
    return await ticket.finish(1) if ticket.allowed else ticket.denied


async def by_ticket_sync(guard: Edictum) -> Any:
    ticket = await asyncio.to_thread(guard.begin_sync, "work", {})
    return await asyncio.to_thread(ticket.finish_sync, 1) if ticket.allowed else ticket.denied


@pytest.mark.parametrize("slow", [slow_contract, slow_sink, slow_postcondition])
@pytest.mark.parametrize("make_call", [dispatched, dispatched_sync, by_ticket, by_ticket_sync])
async def test_a_slot_is_kept_before_and_after_the_tool(
    slow: Callable[[Wait], dict[str, Any]], make_call: Callable[[Edictum], Awaitable[Any]]
) -> None:
    """While the first call waits for longer than its lease, outside of its tool, a second one is
    refused.
    """
    ledger, meanwhile = Watched(), []

    async def wait() -> None:
        if not meanwhile:
            meanwhile.append(None)
            await asyncio.to_thread(ledger.outlive_the_lease)
            meanwhile.append(await make_call(guard))

    guard = Edictum(
        tools=READ, backend=ledger, limits=OperationLimits(max_tool_calls=1), **slow(wait)
    )
    first = await make_call(guard)
    assert [type(first), type(meanwhile[-1])] == [ToolExecutionResult, ToolDenied]
    assert (guard.session().executions, guard.session().in_flight) == (1, 0)
    assert not guard._state.handlers.renewals._held  # type: ignore[union-attr]


async def test_a_call_that_is_thrown_away_before_its_tool_is_not_renewed() -> None:
    ledger, reached = Watched(), asyncio.Event()

    async def wait() -> None:
        reached.set()
        await asyncio.Future()

    guard = Edictum(tools=READ, backend=ledger, **slow_contract(wait))
    walk = guard.dispatch("work", {}, lambda: 1).__await__()
    walk.send(None)
    assert reached.is_set()
    assert guard.session().in_flight == 1
    del walk
    gc.collect()
    assert guard.session().in_flight == 0
    assert not guard._state.handlers.renewals._held  # type: ignore[union-attr]


# --- Which leases are held ------------------------------------------------------------------------


def leases_after(reservation: Reservation, answer: Any) -> tuple[Renewals, CallLeases]:
    renewals = Renewals(MemoryLedger(), 60.0)
    leases = CallLeases(renewals)
    leases.note_sending(reservation)
    leases.take_answer(reservation, answer)
    return renewals, leases


def test_a_lease_is_held_until_its_settlement_is_answered() -> None:
    reservation = Reservation("s", "a", (), (), lease_s=60.0)
    renewals, leases = leases_after(reservation, Grant(True, Counters()))
    assert [held.settling for held in renewals._held] == [False]
    settlement = Settlement("s", "a", (), (), "success")
    leases.note_sending(settlement)
    # it is renewed still, and its loss is not reported
    assert [held.settling for held in renewals._held] == [True]
    leases.take_answer(settlement, Counters())
    assert not renewals._held


@pytest.mark.parametrize(
    ("reservation", "granted"),
    [
        (Reservation("s", "a", (), (), lease_s=60.0), False),
        (Reservation("s", "a", (), (), lease_s=60.0, hold=False), True),
        (Reservation("s", "a", (), ()), True),
        (
            Reservation("s", "a", (), (), lease_s=500.0),
            True,
        ),  # chosen to be long enough: to renew it would make it shorter
    ],
)
def test_other_leases_are_left_alone(reservation: Reservation, granted: bool) -> None:
    renewals, _ = leases_after(reservation, Grant(granted, Counters()))
    assert not renewals._held


# --- When it goes wrong ---------------------------------------------------------------------------


async def test_a_lease_that_is_lost_is_reported_and_the_call_counts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    guard = make_guard(Watched())

    async def body() -> None:
        guard.session().reset()
        await asyncio.to_thread(wait_until, lambda: "ran out while it was running" in caplog.text)

    await guard.run("work", {}, body)
    assert guard.session().executions == 1


async def test_a_renewal_that_fails_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    class Flaky(Watched):
        asked = 0

        def renew(self, session_id: str, call_id: str, lease_s: float) -> Any:
            self.asked += 1
            if self.asked == 1:
                raise ConnectionError("away for a moment")
            return super().renew(session_id, call_id, lease_s)

    ledger = Flaky()
    guard = make_guard(ledger)

    async def body() -> int:
        await asyncio.to_thread(ledger.outlive_the_lease)
        return guard.session().in_flight

    assert await guard.run("work", {}, body) == 1
    assert ledger.asked > 1
    assert "away for a moment" in caplog.text


class LateAnswers(MemoryLedger):
    """Answers the first reservation after its lease, as when its caller's event loop is blocked."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        super().__init__(lease_s=1.0)  # in which the other call is answered
        self._meanwhile: Callable[[], object] | None = meanwhile

    async def reserve(self, reservation: Reservation) -> Grant:  # type: ignore[override]  # async
        grant = super().reserve(reservation)
        meanwhile, self._meanwhile = self._meanwhile, None
        if meanwhile is not None:
            time.sleep(1.1)
            meanwhile()
        return grant


@pytest.mark.parametrize("make_call", [dispatched, dispatched_sync, by_ticket, by_ticket_sync])
async def test_a_grant_that_comes_after_its_lease_is_not_run(
    make_call: Callable[[Edictum], Awaitable[Any]],
) -> None:
    """Another call has its slot by then: one execution is allowed, and one is made."""
    others: list[Any] = []
    ledger = LateAnswers(lambda: others.append(guard.dispatch_sync("work", {}, lambda: 2)))
    guard = Edictum(tools=READ, backend=ledger, limits=OperationLimits(max_tool_calls=1))
    late = await make_call(guard)
    assert [type(late), type(others[0])] == [ToolDenied, ToolExecutionResult]
    assert (late.reason, "after the lease" in late.details) == ("policy_error", True)
    assert (guard.session().executions, guard.session().in_flight) == (1, 0)


async def test_slots_of_a_late_grant_are_given_back() -> None:
    """The answer was late and its lease, on the clock of the store, is not over."""
    ledger = LateAnswers(lambda: None)
    ledger._clock = lambda: 0.0
    guard = make_guard(ledger)
    assert isinstance(await guard.dispatch("work", {}, lambda: 1), ToolDenied)
    assert (guard.session().executions, guard.session().in_flight) == (0, 0)


async def test_without_a_lease_nothing_is_renewed() -> None:
    assert make_guard(MemoryLedger())._state.handlers.renewals is None
