"""Whatever hangs in a turn, the turn ends: each call has one outcome, and its counters are right.

Nothing here is timed. What hangs is let go by the test, after the turn has ended; if the turn had
waited for it, the test would see that.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
from turns import UNLIMITED

from edictum import (
    Edictum,
    HookDecision,
    HookRegistration,
    OperationLimits,
    Verdict,
    postcondition,
    precondition,
)
from edictum.core.limits import Counters, Grant, Reservation, Settlement
from edictum.execution import waiting
from edictum.execution.waiting import DETACHED
from edictum.harness import (
    ModelReply,
    ToolCallRequest,
    Turn,
    TurnBudget,
    TurnResult,
    TurnState,
    run_turn,
    run_turn_sync,
    tool,
)
from edictum.outcomes import ToolDenied, ToolExecutionResult, ToolFailure, ToolOutcome, ToolTimeout
from edictum.testing import AsyncLedger, ScriptedApprovalBackend
from support.guards import approval_contract
from support.waiting import wait_in_loop


class Stuck:
    """Something that hangs until the test lets it go. ``overrun``: nobody let it go in time, so
    somebody waited for it.
    """

    def __init__(self) -> None:
        self.gate, self.entered = threading.Event(), threading.Event()
        self.overrun = False
        self._inside: list[None] = []
        self._left_by_others = set(DETACHED)

    def block(self, *_: Any) -> Any:
        self._inside.append(None)
        self.entered.set()
        self.overrun |= not self.gate.wait(15)
        self._inside.pop()

    async def ablock(self, *_: Any) -> Any:
        await asyncio.to_thread(self.block)

    async def stubborn(self, *_: Any) -> Any:
        """As ``ablock``, deaf to cancellation."""
        waiting = asyncio.ensure_future(asyncio.to_thread(self.block))
        while not waiting.done():
            try:
                await asyncio.shield(waiting)
            except asyncio.CancelledError:
                continue

    async def let_go(self) -> None:
        """Until nothing that was left behind is running."""
        self.gate.set()
        await wait_in_loop(lambda: not (self._inside or DETACHED - self._left_by_others))


@tool(side_effect="read")
async def look(key: str) -> dict[str, str]:
    return {"key": key}


@tool(side_effect="read")
async def big(key: str) -> str:
    return key * 20_000


def model(name: str) -> Callable[..., Any]:
    """Asks for two calls at once, and then answers."""

    def reply(messages: Any, tools: Any) -> ModelReply:
        if any(message["role"] == "tool" for message in messages):
            return ModelReply("done")
        return ModelReply(
            "", tuple(ToolCallRequest(f"call_{key}", name, {"key": key}) for key in "ab")
        )

    return reply


async def run(stuck: Stuck, guard: Edictum, name: str = "look", **options: Any) -> TurnResult:
    """A short turn in which something hangs; it is let go when the turn has ended."""
    budget = TurnBudget.create(timeout_s=3.0, max_steps=4, reserve_s=2.4)
    result = await run_turn(model(name), [], [look, big], guard, budget, session_id="s", **options)
    assert stuck.entered.is_set(), "it was not reached"
    assert not stuck.overrun, "the turn waited for it"
    assert len(result.outcomes) == 2
    assert result.text == "done"
    await stuck.let_go()
    return result


def before(callback: Callable[..., Any], **options: Any) -> HookRegistration:
    return HookRegistration("before", "*", callback, **options)


def counts(guard: Edictum) -> tuple[int, int, int]:
    session = guard.session("s")
    return session.attempts, session.executions, session.successes


def all_are(kind: type[Any], outcomes: tuple[ToolOutcome, ...]) -> bool:
    return all(type(outcome) is kind for outcome in outcomes)


# --- The user's functions -------------------------------------------------------------------------


HANGS = pytest.mark.parametrize("way", ["block", "ablock", "stubborn"])


@HANGS
async def test_a_hook_that_hangs_refuses(way: str) -> None:
    stuck = Stuck()
    guard = Edictum(limits=UNLIMITED, hooks=[before(getattr(stuck, way))])
    result = await run(stuck, guard)
    assert all_are(ToolDenied, result.outcomes)
    assert {(outcome.reason, outcome.policy_error) for outcome in result.outcomes} == {
        ("pre_hook", True)
    }  # type: ignore[union-attr]
    assert "no answer within" in result.outcomes[0].details  # type: ignore[union-attr]
    assert counts(guard) == (2, 0, 0)


async def test_a_condition_of_a_hook_that_hangs_refuses() -> None:
    stuck = Stuck()
    guard = Edictum(
        limits=UNLIMITED, hooks=[before(lambda call: HookDecision.allow(), when=stuck.block)]
    )
    assert all_are(ToolDenied, (await run(stuck, guard)).outcomes)
    assert counts(guard) == (2, 0, 0)


@HANGS
async def test_a_principal_resolver_that_hangs_refuses(way: str) -> None:
    stuck = Stuck()
    guard = Edictum(limits=UNLIMITED, principal_resolver=getattr(stuck, way))
    result = await run(stuck, guard)
    assert {outcome.reason for outcome in result.outcomes} == {"policy_error"}  # type: ignore[union-attr]
    assert counts(guard) == (2, 0, 0)


@HANGS
async def test_a_success_check_that_hangs_fails_the_call(way: str) -> None:
    stuck = Stuck()
    guard = Edictum(limits=UNLIMITED, success_check=getattr(stuck, way))
    result = await run(stuck, guard)
    assert all_are(ToolFailure, result.outcomes)
    assert {(outcome.success_source, outcome.policy_error) for outcome in result.outcomes} == {
        ("success_check", True)
    }  # type: ignore[union-attr]
    assert counts(guard) == (2, 2, 0)


async def test_contracts_that_hang_in_an_await_object() -> None:
    for kind in (precondition, postcondition):
        stuck = Stuck()
        guard = Edictum(limits=UNLIMITED, contracts=[kind("*", id="slow")(_contract(stuck))])
        result = await run(stuck, guard)
        assert all_are(ToolDenied if kind is precondition else ToolExecutionResult, result.outcomes)
        assert counts(guard) == ((2, 0, 0) if kind is precondition else (2, 2, 2))


def _contract(stuck: Stuck) -> Callable[..., Any]:
    async def check(*_: Any) -> Verdict:
        await stuck.ablock()
        return Verdict.pass_()

    return check


@HANGS
@pytest.mark.parametrize("callback", ["on_allow", "on_deny", "after"])
async def test_callbacks_that_hang_change_nothing(way: str, callback: str) -> None:
    stuck = Stuck()
    told = getattr(stuck, way)
    no = precondition("*", id="no")(lambda call: Verdict.fail("no"))
    parts: dict[str, Any] = (
        {callback: told}
        if callback != "after"
        else {"hooks": [HookRegistration("after", "*", told)]}
    )
    guard = Edictum(limits=UNLIMITED, contracts=[no] if callback == "on_deny" else [], **parts)
    result = await run(stuck, guard)
    # A call is denied when its callback has used up the time in which the tool could run.
    assert all_are(ToolExecutionResult if callback == "after" else ToolDenied, result.outcomes)
    assert counts(guard) == ((2, 2, 2) if callback == "after" else (2, 0, 0))


async def test_hooks_of_a_guard_without_a_turn_are_called_where_they_stand() -> None:
    threads: list[Any] = []

    def note(*_: Any) -> HookDecision:
        threads.append(threading.current_thread())
        return HookDecision.allow()

    guard = Edictum(
        hooks=[before(note), HookRegistration("after", "*", note)],
        success_check=lambda *_: note() is not None,
    )
    await guard.dispatch("look", {"key": "a"}, look.function)
    assert threads == [threading.current_thread()] * 3
    threads.clear()
    await run_turn(model("look"), [], [look], guard, session_id="s")
    assert len(threads) == 6
    assert threading.current_thread() not in threads


async def test_hooks_in_a_turn_see_the_caller_s_context_and_their_errors_refuse() -> None:
    def fail(call: Any) -> HookDecision:
        raise KeyboardInterrupt("from a thread")

    guard = Edictum(limits=UNLIMITED, hooks=[before(fail)])
    result = await run_turn(model("look"), [], [look], guard, session_id="s")
    assert all_are(ToolDenied, result.outcomes)
    assert (
        result.outcomes[0].details == "Hook error: RuntimeError: KeyboardInterrupt: from a thread"
    )  # type: ignore[union-attr]


# --- The ports ------------------------------------------------------------------------------------


class StuckSink:
    """A sink that hangs at some actions."""

    def __init__(self, stuck: Stuck, way: str, *actions: str) -> None:
        self._hang, self._actions = getattr(stuck, way), actions
        self.written: list[str] = []

    async def emit(self, event: Any) -> None:
        if event.action.value in self._actions:
            await self._hang()
        self.written.append(event.action.value)


STUCK_PORTS = pytest.mark.parametrize("way", ["ablock", "stubborn"])


@STUCK_PORTS
async def test_an_audit_that_hangs_before_the_tool_refuses_the_call(way: str) -> None:
    stuck = Stuck()
    sink = StuckSink(stuck, way, "call_allowed")
    guard = Edictum(limits=UNLIMITED, audit_sink=sink)
    result = await run(stuck, guard)
    assert {(type(outcome), outcome.decision_source) for outcome in result.outcomes} == {
        (ToolDenied, "audit")
    }  # type: ignore[union-attr]
    assert counts(guard) == (2, 0, 0)
    assert sorted(sink.written) == [
        "call_allowed",
        "call_allowed",
        "call_denied",
        "call_denied",
    ], "what was sent is written in the end"


@STUCK_PORTS
async def test_an_audit_that_hangs_after_the_tool_leaves_the_result_and_a_note(way: str) -> None:
    stuck = Stuck()
    guard = Edictum(limits=UNLIMITED, audit_sink=StuckSink(stuck, way, "call_executed"))
    result = await run(stuck, guard)
    assert all_are(ToolExecutionResult, result.outcomes)
    assert "it is finished in the background" in result.outcomes[0].notes[0]
    assert counts(guard) == (2, 2, 2)


class StuckLedger(AsyncLedger):
    """A ledger that hangs before one of its operations, and then does it."""

    def __init__(self, stuck: Stuck, way: str, on: str) -> None:
        super().__init__()
        self._hang, self._on = getattr(stuck, way), on

    async def reserve(self, reservation: Reservation) -> Grant:
        if self._on == "reserve" and reservation.hold:
            await self._hang()
        return await super().reserve(reservation)

    async def settle(self, settlement: Settlement) -> Counters:
        if self._on == "settle" and settlement.result != "release":
            await self._hang()
        return await super().settle(settlement)


@STUCK_PORTS
async def test_a_ledger_that_hangs_before_the_tool_refuses_and_gives_back_what_it_grants_too_late(
    way: str,
) -> None:
    stuck = Stuck()
    guard = Edictum(
        limits=OperationLimits(max_tool_calls=2), backend=StuckLedger(stuck, way, "reserve")
    )
    result = await run(stuck, guard)
    assert {(type(outcome), outcome.reason) for outcome in result.outcomes} == {
        (ToolDenied, "policy_error")
    }  # type: ignore[union-attr]
    assert await guard.run("look", {"key": "a"}, look.function, session_id="s") == {"key": "a"}
    assert await guard.run("look", {"key": "b"}, look.function, session_id="s") == {"key": "b"}, (
        "no slot was lost"
    )


@STUCK_PORTS
async def test_a_ledger_that_hangs_after_the_tool_leaves_the_result_and_counts_it_later(
    way: str,
) -> None:
    stuck = Stuck()
    guard = Edictum(limits=UNLIMITED, backend=StuckLedger(stuck, way, "settle"))
    result = await run(stuck, guard)
    assert all_are(ToolExecutionResult, result.outcomes)
    assert result.outcomes[0].notes[0].startswith("The call could not be counted: no answer within")
    assert await asyncio.to_thread(counts, guard) == (2, 2, 2)


class FailingLate(StuckLedger):
    """A ledger that hangs, and then fails at what it hung at, or at giving back what it granted too
    late.
    """

    def __init__(self, stuck: Stuck, on: str, fails: str) -> None:
        super().__init__(stuck, "ablock", on)
        self._fails = fails

    async def reserve(self, reservation: Reservation) -> Grant:
        granted = await super().reserve(reservation)
        if self._fails == "reserve" and reservation.hold:
            raise ConnectionError("the ledger is gone")
        return granted

    async def settle(self, settlement: Settlement) -> Counters:
        if self._fails == "settle":
            raise ConnectionError("the ledger is gone")
        return await super().settle(settlement)


@pytest.mark.parametrize(
    ("fails", "said"),
    [
        ("reserve", "Reservation was not answered in time, and then failed: the ledger is gone"),
        ("settle", "a slot that was granted late could not be given back: the ledger is gone"),
    ],
)
async def test_what_goes_wrong_in_the_background_is_logged(
    fails: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    stuck = Stuck()
    guard = Edictum(limits=UNLIMITED, backend=FailingLate(stuck, "reserve", fails))
    assert all_are(ToolDenied, (await run(stuck, guard)).outcomes)
    assert caplog.messages.count(said) == 2


async def test_what_does_not_answer_at_all_is_given_up_in_the_end(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "FINISH_LATER_S", 0.05)
    stuck = Stuck()
    guard = Edictum(limits=UNLIMITED, backend=StuckLedger(stuck, "ablock", "settle"))
    budget = TurnBudget.create(timeout_s=3.0, max_steps=4, reserve_s=2.4)
    await run_turn(model("look"), [], [look], guard, budget, session_id="s")
    await wait_in_loop(lambda: len(caplog.messages) >= 2)
    assert (
        caplog.messages
        == ["Settlement was not answered in time, and then failed: no answer within 0.1 s"] * 2
    )
    await stuck.let_go()


async def test_a_caller_that_is_cancelled_while_the_audit_hangs_is_let_go_and_the_event_is_written_later() -> (
    None
):
    stuck = Stuck()
    sink = StuckSink(stuck, "ablock", "call_allowed")
    guard = Edictum(limits=UNLIMITED, audit_sink=sink)
    turn = Turn(TurnState("s"), [look])
    calling = asyncio.create_task(guard.dispatch("look", {"key": "a"}, turn=turn))
    await asyncio.to_thread(stuck.entered.wait)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert not stuck.overrun
    await stuck.let_go()
    assert "call_allowed" in sink.written
    assert counts(guard) == (1, 0, 0)


class StuckStore:
    def __init__(self, stuck: Stuck, way: str) -> None:
        self.store = getattr(stuck, way)


@HANGS
async def test_an_artifact_store_that_hangs_leaves_both_ends_in_line(way: str) -> None:
    stuck = Stuck()
    guard = Edictum(limits=UNLIMITED)
    result = await run(stuck, guard, "big", artifact_store=StuckStore(stuck, way))
    assert all_are(ToolExecutionResult, result.outcomes)
    assert result.outcomes[0].output["truncated"] is True  # type: ignore[union-attr]
    assert result.outcomes[0].notes == (
        "The output could not be stored, so it was cut: TimeoutError",
    )
    assert counts(guard) == (2, 2, 2)


@pytest.mark.parametrize("at", ["request", "decision"])
async def test_an_approval_backend_that_hangs_means_no(at: str) -> None:
    stuck = Stuck()

    class Backend(ScriptedApprovalBackend):
        late_answer_s = 0.0

        async def request_approval(self, *args: Any, **kwargs: Any) -> Any:
            if at == "request":
                await stuck.ablock()
            return await super().request_approval(*args, **kwargs)

        async def wait_for_decision(self, approval_id: str, timeout: float | None = None) -> Any:
            if at == "decision":
                await stuck.ablock()
            return await super().wait_for_decision(approval_id, timeout)

    ask = approval_contract(timeout=1)
    guard = Edictum(limits=UNLIMITED, contracts=[ask], approval_backend=Backend())
    result = await run(stuck, guard)
    assert {(type(outcome), outcome.reason) for outcome in result.outcomes} == {
        (ToolDenied, "write_denied")
    }  # type: ignore[union-attr]
    assert counts(guard) == (2, 0, 0)


async def test_a_call_that_waits_for_its_twin_ends_with_the_turn() -> None:
    stuck = Stuck()

    @tool(side_effect="read", idempotent=True)
    async def wait(key: str = "") -> None:
        await stuck.ablock()

    def twice(messages: Any, tools: Any) -> ModelReply:
        asked = any(message["role"] == "tool" for message in messages)
        return (
            ModelReply("done")
            if asked
            else ModelReply(
                "", tuple(ToolCallRequest(f"call_{n}", "wait", {"key": "k"}) for n in range(2))
            )
        )

    guard = Edictum(limits=UNLIMITED)
    result = await run_turn(
        twice,
        [],
        [wait],
        guard,
        TurnBudget.create(timeout_s=3.0, max_steps=4, reserve_s=2.4),
        session_id="s",
    )
    assert not stuck.overrun
    assert len(result.outcomes) == 2
    assert type(result.outcomes[0]) is ToolTimeout
    assert counts(guard)[1:] == (1, 0)
    await stuck.let_go()


# --- From synchronous code ------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["hook", "settle", "audit"])
def test_a_synchronous_turn_ends_as_well(part: str) -> None:
    stuck = Stuck()
    parts: dict[str, Any] = {
        "hook": lambda: {"hooks": [before(stuck.block)]},
        "settle": lambda: {"backend": StuckLedger(stuck, "ablock", "settle")},
        "audit": lambda: {"audit_sink": StuckSink(stuck, "ablock", "call_executed")},
    }[part]()
    guard = Edictum(limits=UNLIMITED, **parts)
    budget = TurnBudget.create(timeout_s=3.0, max_steps=4, reserve_s=2.4)
    result = run_turn_sync(model("look"), [], [look], guard, budget, session_id="s")
    assert stuck.entered.is_set()
    assert not stuck.overrun
    assert len(result.outcomes) == 2
    assert all_are(ToolDenied if part == "hook" else ToolExecutionResult, result.outcomes)
    asyncio.run(stuck.let_go())
    assert counts(guard) == ((2, 0, 0) if part == "hook" else (2, 2, 2))


def test_a_process_ends_at_once_while_a_hook_and_a_sink_hang() -> None:
    import subprocess
    import sys

    script = """
import asyncio, threading
from edictum import Edictum, HookRegistration
from edictum.harness import ModelReply, ToolCallRequest, TurnBudget, run_turn, tool

class Sink:
    async def emit(self, event):
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                pass

@tool(side_effect="read")
async def look() -> dict:
    return {}

def model(messages, tools):
    return "done" if any(m["role"] == "tool" for m in messages) else ModelReply("", (ToolCallRequest("c", "look", {}),))

for parts in ({"audit_sink": Sink()}, {"hooks": [HookRegistration("before", "*", lambda call: threading.Event().wait())]}):
    result = asyncio.run(run_turn(model, [], [look], Edictum(**parts), TurnBudget.create(timeout_s=0.5)))
    print(type(result.outcomes[0]).__name__, len(result.outcomes))
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True
    )
    assert ended.stdout.split() == ["ToolDenied", "1", "ToolDenied", "1"]
    logged = ("policy error: ", "audit sink ")
    assert [line for line in ended.stderr.splitlines() if not line.startswith(logged)] == []


async def test_amounts_and_parents_are_counted_in_a_turn_over_an_asynchronous_ledger() -> None:
    guard = Edictum(limits=OperationLimits(max_amounts={"tokens": 10}), backend=AsyncLedger())
    turn = Turn(TurnState("child"), [look])
    amounts = {
        "amounts": lambda call: {"tokens": len(call.args["key"])},
        "parent_session_id": "parent",
    }
    first = await guard.dispatch("look", {"key": "12345678"}, turn=turn, **amounts)
    second = await guard.dispatch("look", {"key": "abc"}, turn=turn, **amounts)
    assert isinstance(first, ToolExecutionResult)
    assert isinstance(second, ToolDenied)
    assert second.reason == "limit"
    assert await asyncio.to_thread(lambda: guard.session("parent").executions) == 1


async def test_a_call_that_is_thrown_away_is_closed_and_leaves_nothing_unawaited() -> None:
    """Python would complain of an awaitable that nobody awaited, and the tests take that for a
    failure.
    """
    entered = asyncio.Event()

    @tool(side_effect="read")
    async def wait() -> None:
        entered.set()
        await asyncio.Event().wait()

    guard = Edictum(limits=UNLIMITED, backend=AsyncLedger())
    calling = guard.dispatch("wait", {}, turn=Turn(TurnState("s"), [wait]))
    async with asyncio.timeout(30):
        while not entered.is_set():  # as a task would, but for the last step
            waited_for = calling.send(None)  # type: ignore[attr-defined]
            if waited_for is not None:
                waited_for._asyncio_future_blocking = False
                await asyncio.wait([waited_for], timeout=0.01)
            else:
                await asyncio.sleep(0)
    calling.close()  # type: ignore[attr-defined]
    assert [event.action.value for event in guard.local_sink.events] == [
        "call_allowed",
        "call_failed",
    ]
    gc.collect()
