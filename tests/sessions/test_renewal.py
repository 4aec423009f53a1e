"""Leases of running calls are kept alive while somebody runs them, and run out when nobody does."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from typing import Any

import pytest

from edictum import Edictum
from edictum.sessions import MemoryLedger
from edictum.testing import FakeClock

LEASE_S = 0.3
READ = {"work": {"side_effect": "read"}}


class Watched(MemoryLedger):
    """Counts renewals. Its clock is moved by the tests: a machine that is late cannot make a lease run out."""

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
            wait_for(lambda before=before: self.renewals > before)


def wait_for(holds: Callable[[], bool]) -> None:
    for _ in range(6_000):
        if holds():
            return
        time.sleep(0.01)
    raise AssertionError("it did not come true within a minute")


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


async def test_a_lease_that_is_lost_is_reported_and_the_call_counts(caplog: pytest.LogCaptureFixture) -> None:
    guard = make_guard(Watched())

    async def body() -> None:
        guard.session().reset()
        await asyncio.to_thread(wait_for, lambda: "ran out while it was running" in caplog.text)

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


async def test_without_a_lease_nothing_is_renewed() -> None:
    assert make_guard(MemoryLedger())._state.ports.renewals is None
