"""Tickets: a call between a framework's hook before the tool and its hook after it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from edictum import (
    Edictum,
    EdictumInputError,
    InMemoryApprovalBackend,
    OperationLimits,
    Ticket,
    TicketError,
    ToolDenied,
    ToolExecutionResult,
    ToolFailure,
    ToolTimeout,
    Verdict,
    precondition,
    session_contract,
)
from edictum.runtime.ticket import TicketTable
from support.guards import approval_contract


def totals(guard: Edictum) -> tuple[int, int, int, int]:
    counted = guard.session().snapshot().totals
    return counted.executions, counted.successes, counted.failures, counted.in_flight


async def test_a_ticket_that_was_allowed_is_finished_with_the_value() -> None:
    """The outcome is that of any other call."""
    guard = Edictum()
    ticket = await guard.begin("t", {"x": [1]}, call_id="c-1")
    assert (ticket.allowed, ticket.denied, ticket.outcome) == (True, None, None)
    assert (ticket.args, ticket.call.call_id) == ({"x": [1]}, "c-1")
    outcome = await ticket.finish({"rows": 1})
    assert isinstance(outcome, ToolExecutionResult)
    assert outcome.value == {"rows": 1}
    assert ticket.outcome is outcome
    assert not ticket.allowed
    assert totals(guard) == (1, 1, 0, 0)


async def test_a_ticket_that_was_denied_carries_the_denial() -> None:
    """The host does not run the tool; there is nothing to finish."""
    guard = Edictum(contracts=[precondition("*")(lambda call: Verdict.fail("no"))])
    for ticket in (await guard.begin("t", {}), guard.begin_sync("t", {})):
        assert not ticket.allowed
        assert isinstance(ticket.denied, ToolDenied)
        assert ticket.outcome is ticket.denied
        with pytest.raises(TicketError, match=r"closed already.*only when it was allowed"):
            ticket.finish_sync(1)
    assert totals(guard) == (0, 0, 0, 0)


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
async def test_each_end_of_a_ticket(sync: bool) -> None:
    """Finished, failed, timed out, cancelled."""
    guard = Edictum()

    async def end(verb: str, *args: Any) -> Any:
        if sync:
            return getattr(guard.begin_sync("t", {}), f"{verb}_sync")(*args)
        return await getattr(await guard.begin("t", {}), verb)(*args)

    assert isinstance(await end("finish", 1), ToolExecutionResult)
    failure = await end("fail", ValueError("boom"))
    assert isinstance(failure, ToolFailure)
    assert failure.error == "boom"
    timeout = await end("timed_out", 12.5)
    assert isinstance(timeout, ToolTimeout)
    assert (timeout.deadline_s, timeout.body_may_be_running) == (12.5, True)
    cancelled = await end("cancel")
    assert isinstance(cancelled, ToolFailure)
    assert cancelled.success_source == "cancelled"
    assert totals(guard) == (4, 1, 3, 0)


async def test_a_ticket_is_finished_once() -> None:
    """A framework that calls its after-hook twice is told so; nothing is counted twice."""
    guard = Edictum()
    ticket = await guard.begin("t", {})
    await ticket.finish(1)
    for again in (ticket.finish_sync, ticket.fail_sync, ticket.timed_out_sync):
        with pytest.raises(TicketError, match="closed already"):
            again(ValueError("x"))
    with pytest.raises(TicketError):
        await ticket.cancel()
    assert totals(guard) == (1, 1, 0, 0)


def test_two_threads_that_finish_one_ticket_count_once() -> None:
    """One of them is told."""
    guard = Edictum()
    for _ in range(50):
        ticket, errors = guard.begin_sync("t", {}), []
        start = threading.Barrier(2)

        def finish(
            ticket: Ticket = ticket, start: threading.Barrier = start, errors: list[Any] = errors
        ) -> None:
            start.wait()
            try:
                ticket.finish_sync(1)
            except TicketError as exc:
                errors.append(exc)

        threads = [threading.Thread(target=finish) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(errors) == 1
    assert totals(guard)[0] == 50


async def test_the_frameworks_own_flag_says_that_a_result_is_a_failure() -> None:
    """Before the default heuristic, and unless a success_check decides."""
    flag = lambda value: "status said no" if value == "bad" else None  # noqa: E731
    guard = Edictum()
    failed = await (await guard.begin("t", {}, flag=flag)).finish("bad")
    assert isinstance(failed, ToolFailure)
    assert (failed.success_source, failed.success_reason) == ("framework", "status said no")
    assert isinstance(
        await (await guard.begin("t", {}, flag=flag)).finish("good"), ToolExecutionResult
    )
    lenient = Edictum(success_check=lambda tool, result: True)
    assert isinstance(
        await (await lenient.begin("t", {}, flag=flag)).finish("bad"), ToolExecutionResult
    )


async def test_a_flag_that_raises_makes_a_failure() -> None:
    """The tool has run; the call is counted."""
    guard = Edictum()
    outcome = await (await guard.begin("t", {}, flag=lambda value: 1 / 0)).finish("x")  # type: ignore[arg-type]
    assert isinstance(outcome, ToolFailure)
    assert (outcome.policy_error, outcome.success_source) == (True, "policy")
    assert totals(guard) == (1, 0, 1, 0)


async def test_a_begin_that_is_cancelled_holds_nothing() -> None:
    """Wherever it waited."""
    reached = asyncio.Event()

    async def slow(session: Any) -> Verdict:
        reached.set()
        await asyncio.Event().wait()
        return Verdict.pass_()

    guard = Edictum(contracts=[session_contract(slow)])
    task = asyncio.ensure_future(guard.begin("t", {}))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert totals(guard) == (0, 0, 0, 0)


async def test_a_ticket_waits_for_approval_before_it_is_given() -> None:
    """In ``begin``, not in the host."""
    guard = Edictum(
        contracts=[approval_contract()],
        approval_backend=InMemoryApprovalBackend(True),
    )
    assert (await guard.begin("t", {})).allowed
    assert guard.begin_sync("t", {}).allowed


async def test_a_resolved_principal_is_in_the_tickets_call() -> None:
    """The call as it was judged."""
    from edictum import Principal

    guard = Edictum(principal_resolver=lambda tool, args: Principal(user_id="u"))
    assert (await guard.begin("t", {})).call.principal == Principal(user_id="u")


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
async def test_a_ticket_that_its_framework_put_off_is_not_counted(sync: bool) -> None:
    """The framework runs the same call again from its start; its slots are given back."""
    guard = Edictum()
    outcome = (
        guard.begin_sync("t", {}).pause_sync(ValueError("interrupt"))
        if sync
        else await (await guard.begin("t", {})).pause(ValueError("x"))
    )
    assert isinstance(outcome, ToolDenied)
    assert outcome.reason == "paused"
    assert totals(guard) == (0, 0, 0, 0)
    assert [event.action for event in guard.local_sink.events] == ["call_allowed", "call_paused"]


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
async def test_a_ticket_that_its_host_refused_gives_its_slot_back(sync: bool) -> None:
    """It is denied, and nothing has failed: neither the tool nor the gate."""
    guard = Edictum(limits=OperationLimits(max_tool_calls=1))
    ticket = guard.begin_sync("t", {})
    outcome = ticket.refuse_sync("Ada said no.") if sync else await ticket.refuse("Ada said no.")
    assert isinstance(outcome, ToolDenied)
    assert (outcome.reason, outcome.details, outcome.policy_error) == (
        "refused",
        "Ada said no.",
        False,
    )
    assert totals(guard) == (0, 0, 0, 0)
    event = guard.local_sink.last()
    assert (event.action, event.decision_source) == ("call_denied", "host")
    assert guard.begin_sync("t", {}).allowed


# --- A host that runs something else --------------------------------------------------------------


@precondition("sh", id="no-rm")
def no_rm(call: Any) -> Verdict:
    return Verdict.fail("No rm.") if "rm" in call.args["command"] else Verdict.pass_()


def told(guard: Edictum) -> list[tuple[str, Any, str | None]]:
    """What the audit says: the action, the command, and which contract objected."""
    return [
        (str(event.action), event.tool_args["command"], event.decision_name)
        for event in guard.local_sink.events
    ]


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
@pytest.mark.parametrize("error", [None, ValueError("boom")], ids=["returned", "raised"])
async def test_what_a_host_ran_in_place_of_the_checked_call_is_judged_and_recorded(
    sync: bool, error: Exception | None
) -> None:
    """It is counted as failed, and its result is not shown."""
    guard = Edictum(contracts=[no_rm])
    ticket = guard.begin_sync("sh", {"command": "touch a"})
    real = {"command": "rm a"}
    outcome = (
        ticket.finish_otherwise_sync(real, "gone", error)
        if sync
        else await ticket.finish_otherwise(real, "gone", error)
    )
    assert isinstance(outcome, ToolFailure)
    assert "arguments other than the ones that were checked" in outcome.error
    assert outcome.value is None
    assert told(guard) == [
        ("call_allowed", "touch a", None),
        ("call_changed", "rm a", "no-rm"),
        ("call_failed", "rm a", None),
    ]
    assert "No rm." in str(guard.local_sink.events[1].reason)
    assert totals(guard) == (1, 0, 1, 0)


@pytest.mark.parametrize(
    ("command", "is_completed", "mode", "kind"),
    [
        ("cat /a", False, "enforce", ToolFailure),
        ("cat /a", True, "enforce", ToolExecutionResult),
        ("rm a", True, "enforce", ToolFailure),
        ("rm a", False, "observe", ToolExecutionResult),
    ],
)
def test_which_changed_calls_fail(command: str, is_completed: bool, mode: Any, kind: Any) -> None:
    """All, unless the host only completed the arguments and contracts allow them."""
    guard = Edictum(contracts=[no_rm], mode=mode)
    ticket = guard.begin_sync("sh", {"command": "cat a"})
    outcome = ticket.finish_otherwise_sync({"command": command}, "text", is_completed=is_completed)
    assert type(outcome) is kind
    assert [(action, text) for action, text, _ in told(guard)][1] == ("call_changed", command)
    assert told(guard)[-1][1] == command


def test_changed_arguments_that_cannot_be_recorded_are_a_failure() -> None:
    """The audit has why, in place of the arguments."""
    guard = Edictum()
    ticket = guard.begin_sync("sh", {"command": "touch a"})
    outcome = ticket.finish_otherwise_sync({1: "x"}, "gone")  # type: ignore[dict-item]
    assert isinstance(outcome, ToolFailure)
    assert "the key 1 is int, not text" in outcome.error
    assert totals(guard) == (1, 0, 1, 0)


def test_a_changed_call_uses_the_amounts_that_it_really_stated() -> None:
    """An amount that the real arguments do not state stays as it was reserved."""
    amounts = {"pay": {"amounts": {"usd": "args.usd"}}}
    limits = OperationLimits(max_amounts={"usd": 100})
    for real, left in (({"usd": 70}, 30.0), ({"other": 1}, 60.0)):
        guard = Edictum(tools=amounts, limits=limits)
        guard.begin_sync("pay", {"usd": 40}).finish_otherwise_sync(real)
        assert guard.begin_sync("pay", {"usd": left}).allowed
        assert not guard.begin_sync("pay", {"usd": 1}).allowed


# --- The table of open tickets --------------------------------------------------------------------


def test_tickets_are_found_by_the_frameworks_call_id() -> None:
    """Once."""
    guard, table = Edictum(), TicketTable()
    ticket = guard.begin_sync("t", {})
    table.put("c-1", ticket)
    assert len(table) == 1
    assert table.take("c-1") is ticket
    assert table.take("c-1") is None
    assert len(table) == 0


def test_a_second_open_ticket_under_one_id_is_refused_and_gives_its_slot_back() -> None:
    """Two calls must not be mixed up."""
    guard, table = Edictum(), TicketTable()
    first, second = guard.begin_sync("t", {}), guard.begin_sync("t", {})
    table.put("c-1", first)
    with pytest.raises(EdictumInputError, match=r"'c-1' is already open.*an id of its own"):
        table.put("c-1", second)
    assert second.outcome is not None
    assert table.take("c-1") is first
    assert totals(guard)[3] == 1


def test_the_table_is_bounded_and_what_falls_out_is_closed() -> None:
    """A framework that forgets its after-hooks does not use up memory or slots."""
    guard, table = Edictum(limits=OperationLimits(max_tool_calls=None)), TicketTable(max_open=2)
    tickets = [guard.begin_sync("t", {}) for _ in range(4)]
    for number, ticket in enumerate(tickets):
        table.put(f"c-{number}", ticket)
    assert len(table) == 2
    assert [ticket.outcome is None for ticket in tickets] == [False, False, True, True]
    assert totals(guard) == (2, 0, 2, 2)


def test_tickets_that_nobody_finished_are_closed_when_their_time_is_over() -> None:
    """As cancelled: their tool may have run."""
    guard, table = Edictum(), TicketTable(max_age_s=0.0)
    forgotten = guard.begin_sync("t", {})
    table.put("c-1", forgotten)
    assert isinstance(forgotten.outcome, ToolFailure)
    assert totals(guard) == (1, 0, 1, 0)
