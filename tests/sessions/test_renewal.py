"""Leases of running calls are kept alive while somebody runs them, and run out when nobody does."""

from __future__ import annotations

import asyncio
import gc
import time
from typing import Any

import pytest

from edictum import Edictum
from edictum.sessions import MemoryLedger

LEASE_S = 0.6
READ = {"work": {"side_effect": "read"}}


def make_guard(ledger: MemoryLedger | None = None) -> Edictum:
    return Edictum(tools=READ, backend=ledger or MemoryLedger(lease_s=LEASE_S))


async def test_a_coroutine_keeps_its_slot() -> None:
    guard = make_guard()

    async def body() -> int:
        await asyncio.sleep(LEASE_S * 2)
        return guard.session().in_flight

    assert await guard.run("work", {}, body) == 1
    assert (guard.session().executions, guard.session().in_flight) == (1, 0)


def test_a_thread_keeps_its_slot() -> None:
    guard = make_guard()

    def body() -> int:
        time.sleep(LEASE_S * 2)
        return guard.session().in_flight

    assert guard.run_sync("work", {}, body) == 1


async def test_a_ticket_keeps_its_slot_and_a_forgotten_one_does_not() -> None:
    guard = make_guard()
    kept, forgotten = await guard.begin("work", {}), await guard.begin("work", {})
    assert guard.session().in_flight == 2
    del forgotten
    gc.collect()
    await asyncio.sleep(LEASE_S * 2)
    assert guard.session().in_flight == 1
    await kept.finish("done")
    assert (guard.session().executions, guard.session().in_flight) == (1, 0)


async def test_a_lease_that_is_lost_is_reported_and_the_call_counts(caplog: pytest.LogCaptureFixture) -> None:
    guard = make_guard()

    async def body() -> None:
        guard.session().reset()
        await asyncio.sleep(LEASE_S)

    await guard.run("work", {}, body)
    assert "ran out while it was running" in caplog.text
    assert guard.session().executions == 1


async def test_a_renewal_that_fails_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    class Flaky(MemoryLedger):
        asked = 0

        def renew(self, session_id: str, call_id: str, lease_s: float) -> Any:
            self.asked += 1
            if self.asked == 1:
                raise ConnectionError("away for a moment")
            return super().renew(session_id, call_id, lease_s)

    ledger = Flaky(lease_s=LEASE_S)
    guard = make_guard(ledger)

    async def body() -> int:
        await asyncio.sleep(LEASE_S * 2)
        return guard.session().in_flight

    assert await guard.run("work", {}, body) == 1
    assert ledger.asked > 1
    assert "away for a moment" in caplog.text


async def test_without_a_lease_nothing_is_renewed() -> None:
    assert make_guard(MemoryLedger())._state.ports.renewals is None
