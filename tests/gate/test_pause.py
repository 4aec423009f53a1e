"""A framework may put a call off and run it again later: the call is closed as paused, and its
slots are given back.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from edictum import Edictum, OperationLimits, Principal, ToolExecutionResult, ToolFailure
from edictum.core.effects import Pause
from edictum.testing import FailingLedger


class Interrupt(Exception):
    """How a framework says: ask a person, and come back."""


SIGNAL = Interrupt("may I?")


def put_off() -> Any:
    raise Pause(SIGNAL)


async def put_off_later() -> Any:
    await asyncio.sleep(0)
    raise Pause(SIGNAL)


def one_call() -> Edictum:
    return Edictum(limits=OperationLimits(max_tool_calls=1, max_failures=1))


def assert_paused(guard: Edictum) -> None:
    """Closed, not counted, and the slot is free for the call that comes back."""
    event = guard.local_sink.last()
    assert [str(event.action) for event in guard.local_sink.events] == [
        "call_allowed",
        "call_paused",
    ]
    assert event.reason == "Deferred by the framework (Interrupt); not counted as an execution."
    session = guard.session()
    assert (session.attempts, session.executions, session.failures) == (1, 0, 0)
    assert isinstance(guard.dispatch_sync("t", {}, lambda: "done"), ToolExecutionResult)


@pytest.mark.parametrize("options", [{}, {"run_in": "thread"}, {"timeout_s": 5}], ids=str)
@pytest.mark.parametrize("body", [put_off, put_off_later])
def test_the_signal_goes_on_untouched_from_synchronous_code(
    body: Any, options: dict[str, Any]
) -> None:
    guard = one_call()
    with pytest.raises(Interrupt) as raised:
        guard.dispatch_sync("t", {}, body, **options)
    assert raised.value is SIGNAL
    assert_paused(guard)


@pytest.mark.parametrize("options", [{}, {"run_in": "thread"}, {"timeout_s": 5}], ids=str)
@pytest.mark.parametrize("body", [put_off, put_off_later])
async def test_the_signal_goes_on_untouched_from_asynchronous_code(
    body: Any, options: dict[str, Any]
) -> None:
    guard = one_call()
    with pytest.raises(Interrupt) as raised:
        await guard.run("t", {}, body, **options)
    assert raised.value is SIGNAL
    assert_paused(guard)


def test_a_ticket_can_be_put_off() -> None:
    guard = one_call()
    assert guard.begin_sync("t", {}).pause_sync(SIGNAL).reason == "paused"
    assert_paused(guard)


async def test_a_ticket_can_be_put_off_by_an_asynchronous_host() -> None:
    guard = one_call()
    ticket = await guard.begin("t", {})
    assert (await ticket.pause(SIGNAL)).reason == "paused"
    assert_paused(guard)


def test_a_ledger_that_is_down_does_not_keep_the_signal() -> None:
    guard = Edictum(backend=FailingLedger(on=["settle"]))
    with pytest.raises(Interrupt):
        guard.dispatch_sync("t", {}, put_off)
    assert guard.local_sink.last().action == "call_paused"


def test_calls_that_are_put_off_are_attempts_all_the_same() -> None:
    """Else a tool that is always put off could be asked for without end."""
    guard = Edictum(limits=OperationLimits(max_attempts=2))
    for _ in range(2):
        with pytest.raises(Interrupt):
            guard.dispatch_sync("t", {}, put_off)
    assert guard.dispatch_sync("t", {}, put_off).reason == "limit"


# --- The other options that adapters need ---------------------------------------------------------


def test_dispatch_takes_the_framework_s_own_flag() -> None:
    guard = Edictum()
    outcome = guard.dispatch_sync(
        "t",
        {},
        lambda: {"kind": "error"},
        flag=lambda value: "it says so" if value["kind"] == "error" else None,
    )
    assert isinstance(outcome, ToolFailure)
    assert (outcome.success_source, outcome.success_reason) == ("framework", "it says so")
    assert isinstance(
        guard.dispatch_sync("t", {}, lambda: {"error": "x"}, flag=None), ToolExecutionResult
    )


async def test_a_call_can_have_a_principal_resolver_of_its_own() -> None:
    guard = Edictum(principal_resolver=lambda tool, args: Principal(user_id="guard"))
    await guard.dispatch(
        "t", {}, lambda: 1, principal_resolver=lambda tool, args: Principal(user_id="call")
    )
    (
        await guard.begin(
            "t", {}, principal_resolver=lambda tool, args: Principal(user_id="ticket")
        )
    ).finish_sync(1)
    assert [(event.principal or {})["user_id"] for event in guard.local_sink.events] == [
        "call",
        "call",
        "ticket",
        "ticket",
    ]


def test_session_ids_are_never_the_same() -> None:
    guard = Edictum()
    assert len({guard.session_id, guard.new_session_id(), guard.new_session_id()}) == 3
