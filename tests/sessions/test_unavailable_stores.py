"""Stores that are down, silent, lying, or given one bad operation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from store_helpers import READ, SCOPES, call, unique, until_served

from edictum import (
    Edictum,
    OperationLimits,
    ToolDenied,
    ToolExecutionResult,
)
from edictum.core.limits import Reservation
from support.proxy import Proxy


async def test_a_store_that_is_down_denies_and_recovers_by_itself(
    proxied: tuple[Proxy, str],
) -> None:
    proxy, url = proxied
    session, ran = unique("down"), []
    guard = Edictum(limits=OperationLimits(max_tool_calls=3), tools=READ, backend=f"{url}?wait=1")
    assert isinstance(await call(guard, session), ToolExecutionResult)
    proxy.cut()
    for _ in range(5):
        outcome = await call(guard, session, lambda: ran.append(1))
        assert isinstance(outcome, ToolDenied)
        assert (outcome.reason, outcome.policy_error, ran) == ("policy_error", True, [])
        assert f"127.0.0.1:{proxy.port}" in outcome.details
    proxy.mode = "clean"
    await until_served(guard, session)
    assert (await guard.backend.snapshot(session)).totals.in_flight == 0  # type: ignore[misc]
    await guard.close()


@pytest.mark.parametrize("mode", ["silent", "garbage"])
async def test_a_store_that_does_not_answer_properly_denies(
    proxied: tuple[Proxy, str], mode: Any
) -> None:
    """The wait is bounded, the circuit opens, and a slot that was taken for nobody is given
    back.
    """
    proxy, url = proxied
    session = unique(mode)
    guard = Edictum(
        limits=OperationLimits(max_tool_calls=2), tools=READ, backend=f"{url}?wait=0.5&lease=30"
    )
    proxy.mode = mode
    outcome = await call(guard, session)
    assert isinstance(outcome, ToolDenied)
    assert (outcome.policy_error, outcome.reason) == (True, "policy_error")
    assert f"127.0.0.1:{proxy.port}" in outcome.details
    before = proxy.faults[mode]
    many = await asyncio.gather(*(call(guard, session) for _ in range(50)))
    assert all(isinstance(it, ToolDenied) and it.policy_error for it in many)
    assert proxy.faults[mode] - before < 50  # refused at once: they were not sent
    proxy.mode = "clean"
    await until_served(guard, session)
    for _ in range(100):
        totals = (await guard.backend.snapshot(session)).totals  # type: ignore[misc]
        if totals.in_flight == 0:
            break
        await asyncio.sleep(0.05)
    assert (totals.executions, totals.in_flight) == (1, 0)
    await guard.close()


async def test_a_call_that_ran_while_the_store_was_down_is_counted_later(
    proxied: tuple[Proxy, str],
) -> None:
    proxy, url = proxied
    session = unique("later")
    guard = Edictum(tools=READ, backend=f"{url}?wait=0.5&lease=30")

    def body() -> str:
        proxy.cut()
        return "done"

    outcome = await call(guard, session, body)
    assert isinstance(outcome, ToolExecutionResult)
    assert "could not be counted" in outcome.notes[0]
    proxy.mode = "clean"
    await until_served(guard, session)
    totals = (await guard.backend.snapshot(session)).totals  # type: ignore[misc]
    assert (totals.executions, totals.in_flight) == (2, 0)
    await guard.close()


async def test_one_bad_operation_does_not_fail_its_neighbours(shared_url: str, opened: Any) -> None:
    ledger, session = opened(shared_url), unique("bad")
    steps = [
        Reservation(session, call, SCOPES, ()) for call in ("a", "lone \ud800", "nul \x00", "b")
    ]
    said = await asyncio.gather(*(ledger.reserve(step) for step in steps), return_exceptions=True)
    assert [getattr(it, "granted", None) for it in (said[0], said[3])] == [True, True]
    assert isinstance(said[1], Exception)
    assert (await ledger.snapshot(session)).totals.in_flight == 2 + (
        not isinstance(said[2], Exception)
    )
