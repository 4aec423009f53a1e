"""However a call is driven, its audit trail is the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from call_drivers import DRIVINGS, Driving

from edictum import (
    ApprovalDecision,
    ApprovalStatus,
    Edictum,
    HookDecision,
    HookRegistration,
    InMemoryApprovalBackend,
    OperationLimits,
    Verdict,
    postcondition,
    precondition,
    session_contract,
)
from edictum.runtime.clock import SYSTEM
from edictum.testing import (
    AsyncLedger,
    FakeClock,
    RecordingSink,
    ScriptedApprovalBackend,
    audit_trail,
)
from support.guards import approval_contract

Scenario = tuple[dict[str, Any], Callable[..., Any], dict[str, Any]]


@precondition("*")
def pass_all(call: Any) -> Verdict:
    return Verdict.pass_()


@precondition("*")
async def pass_all_async(call: Any) -> Verdict:
    await asyncio.sleep(0)
    return Verdict.pass_()


@precondition("send", tags=("safety",))
def deny(call: Any) -> Verdict:
    return Verdict.fail("not today", code=7)


ask = approval_contract("send")


@postcondition("send")
def suspicious(call: Any, result: Any) -> Verdict:
    return Verdict.fail("looks odd")


@session_contract
def few(session: Any) -> Verdict:
    return Verdict.fail("enough") if session.executions > 5 else Verdict.pass_()


def echo(text: str) -> dict[str, str]:
    return {"echo": text}


async def echo_async(text: str) -> dict[str, str]:
    await asyncio.sleep(0)
    return {"echo": text}


def explode(text: str) -> Any:
    raise ValueError(f"cannot send {text}")


async def explode_async(text: str) -> Any:
    await asyncio.sleep(0)
    raise TimeoutError(f"the server said no to {text}")


def error_dict(text: str) -> dict[str, str]:
    return {"error": f"no {text}"}


def error_text(text: str) -> str:
    return f"Error: no {text}"


async def hang(text: str) -> None:
    await asyncio.sleep(3600)


def interrupt(text: str) -> None:
    raise KeyboardInterrupt


def raise_check(tool: str, result: Any) -> bool:
    raise LookupError("the checker broke")


async def slow_check(tool: str, result: Any) -> bool:
    await asyncio.sleep(0)
    return False


def none_check(tool: str, result: Any) -> Any:
    return None


def timed_out() -> Any:
    return ScriptedApprovalBackend(decision=ApprovalDecision(False, status=ApprovalStatus.TIMEOUT))


def hooked() -> list[HookRegistration]:
    return [
        HookRegistration("before", "*", lambda call: HookDecision.allow()),
        HookRegistration("after", "*", lambda call, result: None),
    ]


# What the guard is made with (functions are called for each guard anew), the tool, the options of
# the call.
SCENARIOS: dict[str, Scenario] = {
    "allow": ({"contracts": [pass_all, few]}, echo, {}),
    "allow, async tool": ({"contracts": [pass_all_async]}, echo_async, {}),
    "allow, with hooks": ({"hooks": hooked}, echo, {}),
    "allow, async sink": ({"audit_sink": lambda: RecordingSink(asynchronous=True)}, echo, {}),
    "allow, async ledger": ({"backend": AsyncLedger, "contracts": [few]}, echo, {}),
    "allow, options": (
        {},
        echo,
        {
            "session_id": "s",
            "call_id": "c-9",
            "parent_call_id": "c-1",
            "call_index": 4,
            "environment": "test",
        },
    ),
    "deny": ({"contracts": [pass_all, deny, ask]}, echo, {}),
    "deny by a hook": (
        {"hooks": [HookRegistration("before", "*", lambda call: HookDecision.deny("no"))]},
        echo,
        {},
    ),
    "deny by a limit": ({"limits": OperationLimits(max_tool_calls=0)}, echo, {}),
    "observe": ({"contracts": [deny, ask], "mode": "observe"}, echo, {}),
    "approve, granted": (
        {"contracts": [ask, few], "approval_backend": lambda: InMemoryApprovalBackend(True)},
        echo,
        {},
    ),
    "approve, denied": (
        {"contracts": [ask], "approval_backend": lambda: InMemoryApprovalBackend(False)},
        echo,
        {},
    ),
    "approve, nobody answers": ({"contracts": [ask], "approval_backend": timed_out}, echo, {}),
    "approve, nobody to ask": ({"contracts": [ask]}, echo, {}),
    "tool raises": ({"contracts": [pass_all]}, explode, {}),
    "async tool raises its own TimeoutError": ({}, explode_async, {}),
    "tool reports an error": ({}, error_text, {}),
    "tool returns an error key": ({}, error_dict, {}),
    "checker raises": ({"success_check": raise_check}, echo, {}),
    "checker returns None": ({"success_check": none_check}, echo, {}),
    "async checker says no": ({"success_check": slow_check}, echo, {}),
    "postcondition objects": ({"contracts": [suspicious]}, echo, {}),
    "timeout": ({}, hang, {"timeout_s": 0.02}),
}


# On the system's clock the asynchronous and synchronous call_drivers take the fast path.
CLOCKS: dict[str, Callable[[], Any]] = {
    "fake clock": lambda: FakeClock(step=0.5),
    "system clock": lambda: SYSTEM,
}
OF_THE_CLOCK = ("timestamp", "call_id", "run_id", "session_id")


def make_guard(options: dict[str, Any], clock: Any) -> Edictum:
    made = {
        name: (
            value()
            if name in ("approval_backend", "audit_sink", "backend", "hooks") and callable(value)
            else value
        )
        for name, value in options.items()
    }
    return Edictum(clock=clock, **made)


async def trail_of(driving: Driving, scenario: Scenario, clock: str = "fake clock") -> Any:
    options, tool, call_options = scenario
    guard = make_guard(options, CLOCKS[clock]())
    for _ in range(2):  # a session's first call does not take the fast path
        outcome = await driving(guard, "send", {"text": "hello"}, tool, **call_options)
    counted = guard.session(call_options.get("session_id")).snapshot()
    totals = counted.totals
    return {
        "outcome": type(outcome).__name__,
        "trail": comparable(guard, clock),
        "counters": (
            totals.attempts,
            totals.executions,
            totals.successes,
            totals.failures,
            totals.in_flight,
        ),
    }


def comparable(guard: Edictum, clock: str) -> list[dict[str, Any]]:
    trail = [dict(event) for event in audit_trail(guard.local_sink.events)]
    for event in trail if clock == "system clock" else ():
        for name in OF_THE_CLOCK:
            event[name] = "" if event[name] is None else "set"
    return trail


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("driving", [name for name in DRIVINGS if name != "async"])
@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_the_trail_is_that_of_the_asynchronous_driving(
    scenario: str, driving: str, clock: str
) -> None:
    """Events, their order, every field of them, the outcome's type and the counters are the
    same.
    """
    expected = await trail_of(DRIVINGS["async"], SCENARIOS[scenario], clock)
    assert expected["trail"], "a call without a trail proves nothing"
    assert await trail_of(DRIVINGS[driving], SCENARIOS[scenario], clock) == expected


async def test_a_call_driven_twice_has_the_same_trail() -> None:
    """The comparison above is meaningful: nothing in a trail is left to chance."""
    first, second = [await trail_of(DRIVINGS["async"], SCENARIOS["allow"]) for _ in range(2)]
    assert first == second
    expected = ["call_allowed", "call_executed"] * 2
    assert [event["action"] for event in first["trail"]] == expected


# --- Cancelled, the way each kind of caller is ----------------------------------------------------


async def cancelled_async(guard: Edictum) -> None:
    task = asyncio.ensure_future(guard.dispatch("send", {"text": "hello"}, hang))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def cancelled_sync(guard: Edictum) -> None:
    def call() -> None:
        with pytest.raises(KeyboardInterrupt):
            guard.dispatch_sync("send", {"text": "hello"}, interrupt)

    await asyncio.to_thread(call)


async def cancelled_sync_in_loop(guard: Edictum) -> None:
    with pytest.raises(KeyboardInterrupt):
        guard.dispatch_sync("send", {"text": "hello"}, interrupt)


async def cancelled_ticket(guard: Edictum) -> None:
    ticket = await guard.begin("send", {"text": "hello"})
    await ticket.cancel()


async def cancelled_ticket_sync(guard: Edictum) -> None:
    ticket = guard.begin_sync("send", {"text": "hello"})
    ticket.cancel_sync()


@pytest.mark.parametrize(
    "cancel",
    [cancelled_sync, cancelled_sync_in_loop, cancelled_ticket, cancelled_ticket_sync],
    ids=lambda function: function.__name__,
)
async def test_a_cancelled_call_has_the_same_trail(cancel: Callable[[Edictum], Any]) -> None:
    """A cancelled task, an interrupted thread and a cancelled ticket are one thing in the audit: a
    failed execution.
    """
    trails = []
    for way in (cancelled_async, cancel):
        guard = Edictum(clock=FakeClock(step=0.5), contracts=[pass_all])
        await way(guard)
        totals = guard.session().snapshot().totals
        assert (totals.executions, totals.failures, totals.in_flight) == (1, 1, 0)
        trails.append(audit_trail(guard.local_sink.events))
    assert [event["action"] for event in trails[0]] == ["call_allowed", "call_failed"]
    assert trails[0][1]["success_source"] == "cancelled"
    assert trails[1] == trails[0]
