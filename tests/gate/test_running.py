"""How a tool's body is run, and how its call ends when time runs out, the caller gives up, or the
process is told to stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from edictum import (
    Edictum,
    EdictumToolError,
    HookDecision,
    HookRegistration,
    InMemoryApprovalBackend,
    OperationLimits,
    ToolDenied,
    ToolExecutionResult,
    ToolFailure,
    ToolTimeout,
    Verdict,
    postcondition,
    precondition,
    session_contract,
)
from edictum.testing import AsyncLedger, RecordingSink
from support.guards import approval_contract, list_actions
from support.waiting import wait_in_loop

REQUEST = contextvars.ContextVar("request", default="none")
SHORT = 0.02


def counters(guard: Edictum) -> tuple[int, int, int, int]:
    totals = guard.session().snapshot().totals
    return totals.executions, totals.successes, totals.failures, totals.in_flight


# --- Inline and in threads ------------------------------------------------------------------------


async def test_a_sync_tool_runs_inline_by_default() -> None:
    """In the caller's thread, as people know it."""
    assert await Edictum().run("t", {}, threading.get_ident) == threading.get_ident()
    assert Edictum().run_sync("t", {}, threading.get_ident) == threading.get_ident()


@pytest.mark.parametrize(
    ("guard", "options"),
    [(Edictum(), {"run_in": "thread"}), (Edictum(tools={"t": {"run_in": "thread"}}), {})],
)
async def test_a_tool_runs_in_a_thread_when_the_call_or_the_table_says_so(
    guard: Edictum, options: dict[str, Any]
) -> None:
    """For tools that block."""
    assert await guard.run("t", {}, threading.get_ident, **options) != threading.get_ident()
    assert guard.run_sync("t", {}, threading.get_ident, **options) != threading.get_ident()


@pytest.mark.parametrize("options", [{}, {"run_in": "thread"}, {"timeout_s": 5}])
async def test_context_variables_reach_the_tool(options: dict[str, Any]) -> None:
    """Inline, in a thread, through the portal."""

    async def tool() -> str:
        await asyncio.sleep(0)
        return REQUEST.get()

    REQUEST.set("r-1")
    guard = Edictum()
    assert await guard.run("t", {}, REQUEST.get, **options) == "r-1"
    assert guard.run_sync("t", {}, REQUEST.get, **options) == "r-1"
    assert await guard.run("t", {}, tool, **options) == "r-1"
    assert guard.run_sync("t", {}, tool, **options) == "r-1"


@pytest.mark.parametrize(
    "options", [{}, {"run_in": "thread"}, {"timeout_s": 5}, {"timeout_s": 5, "run_in": "thread"}]
)
async def test_every_kind_of_callable_is_a_tool(options: dict[str, Any]) -> None:
    """Functions, coroutine functions, partials, objects, functions that return something to
    await.
    """
    import functools

    async def coroutine(x: int) -> int:
        await asyncio.sleep(0)
        return x

    def returns_a_coroutine(x: int) -> Any:
        return coroutine(x)

    class Tool:
        def __call__(self, x: int) -> int:
            return x

    class AsyncTool:
        async def __call__(self, x: int) -> int:
            return x

    guard = Edictum()
    for fn in (
        coroutine,
        functools.partial(coroutine),
        Tool(),
        AsyncTool(),
        returns_a_coroutine,
        functools.partial(max, 1, key=None),
    ):
        args = {} if isinstance(fn, functools.partial) and fn.func is max else {"x": 1}
        tool = functools.partial(max, [1]) if not args else fn
        assert await guard.run("t", args, tool, **options) == 1
        assert guard.run_sync("t", args, tool, **options) == 1


@pytest.mark.parametrize("options", [{}, {"run_in": "thread"}, {"timeout_s": 5}])
@pytest.mark.parametrize(
    "error",
    [
        ValueError,
        StopIteration,
        StopAsyncIteration,
        SystemExit,
        TimeoutError,
        RecursionError,
        asyncio.CancelledError,
    ],
)
async def test_whatever_a_tool_raises_is_its_failure(
    error: type[BaseException], options: dict[str, Any]
) -> None:
    """SystemExit does not end the host, StopIteration does not hang it, the tool's own TimeoutError
    is no timeout of the call.
    """

    def tool() -> None:
        raise error("x")

    guard = Edictum()
    async with asyncio.timeout(60):
        outcome = await guard.dispatch("t", {}, tool, **options)
    assert isinstance(outcome, ToolFailure), outcome
    assert type(outcome.exception) is error
    outcome = await asyncio.to_thread(guard.dispatch_sync, "t", {}, tool, **options)
    assert isinstance(outcome, ToolFailure), outcome
    assert type(outcome.exception) is error
    assert counters(guard) == (2, 0, 2, 0)


@pytest.mark.parametrize(
    "error", [ValueError, StopAsyncIteration, SystemExit, TimeoutError, asyncio.CancelledError]
)
@pytest.mark.parametrize("options", [{}, {"timeout_s": 5}])
async def test_whatever_an_async_tool_raises_is_its_failure(
    error: type[BaseException], options: dict[str, Any]
) -> None:
    """In every driving, and the calls after it work as before: nothing that is shared has been
    ended.
    """

    async def tool() -> None:
        await asyncio.sleep(0)
        raise error("x")

    async def fine() -> str:
        await asyncio.sleep(0)
        return "fine"

    guard = Edictum()
    outcomes = [
        await guard.dispatch("t", {}, tool, **options),
        guard.dispatch_sync("t", {}, tool, **options),
    ]
    for outcome in outcomes:
        assert isinstance(outcome, ToolFailure), outcome
        assert type(outcome.exception) is error
    assert guard.run_sync("t", {}, fine) == "fine"


async def test_an_exception_whose_text_cannot_be_shown_is_a_failure_all_the_same() -> None:
    """str() of it raises."""

    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    def tool() -> None:
        raise Mute

    outcome = await Edictum().dispatch("t", {}, tool)
    assert isinstance(outcome, ToolFailure)
    assert outcome.error == "<str() raised>"


def test_a_tool_may_call_the_guard_itself() -> None:
    """Calls inside calls are calls, with a parent."""
    guard = Edictum()

    def outer() -> int:
        return guard.run_sync("inner", {}, lambda: 1, parent_call_id="c-1") + 1

    assert guard.run_sync("outer", {}, outer, call_id="c-1") == 2
    assert [event.tool_name for event in guard.local_sink.filter("call_executed")] == [
        "inner",
        "outer",
    ]
    assert guard.local_sink.filter("call_executed")[0].parent_call_id == "c-1"


def test_an_async_tool_may_call_the_guard_synchronously() -> None:
    """Even though it runs in the portal's own thread; and doing so again and again leaves no
    threads behind.
    """
    guard = Edictum()

    async def inner() -> int:
        await asyncio.sleep(0)
        return 1

    async def outer() -> int:
        return guard.run_sync("inner", {}, inner) + 1

    assert guard.run_sync("outer", {}, outer) == 2
    before = threading.active_count()
    for _ in range(20):
        guard.run_sync("outer", {}, outer)
    assert threading.active_count() <= before + 5


def test_async_tools_may_call_the_guard_synchronously_at_any_depth() -> None:
    """Each level waits for the next; none waits for itself."""
    guard, answers = Edictum(), []

    async def level(depth: int) -> int:
        await asyncio.sleep(0)
        return guard.run_sync("level", {"depth": depth - 1}, level) + 1 if depth else 0

    thread = threading.Thread(
        target=lambda: answers.append(guard.run_sync("level", {"depth": 4}, level)), daemon=True
    )
    thread.start()
    thread.join(60)
    assert answers == [4]


# --- Timeouts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("guard", "options"),
    [(Edictum(), {"timeout_s": SHORT}), (Edictum(tools={"t": {"timeout_s": SHORT}}), {})],
)
async def test_an_async_tool_is_cancelled_at_its_deadline(
    guard: Edictum, options: dict[str, Any]
) -> None:
    """The call ends as ToolTimeout, and the body is over."""
    ended: list[str] = []

    async def tool() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    for outcome in (
        await guard.dispatch("t", {}, tool, **options),
        guard.dispatch_sync("t", {}, tool, **options),
    ):
        assert isinstance(outcome, ToolTimeout)
        assert outcome.body_may_be_running is False
        assert outcome.deadline_s > 0
    await wait_in_loop(lambda: len(ended) >= 2)
    assert guard.local_sink.last().outcome == "timeout"


async def test_a_thread_cannot_be_cancelled_and_the_outcome_says_so() -> None:
    """The body may still be running; the slot is used up all the same."""
    release = threading.Event()
    guard = Edictum(limits=OperationLimits(max_tool_calls=2))
    for outcome in (
        await guard.dispatch("t", {}, release.wait, timeout_s=SHORT),
        await asyncio.to_thread(guard.dispatch_sync, "t", {}, release.wait, timeout_s=SHORT),
    ):
        assert isinstance(outcome, ToolTimeout)
        assert outcome.body_may_be_running is True
    release.set()
    assert counters(guard) == (2, 0, 2, 0)
    assert isinstance(await guard.dispatch("t", {}, release.wait), ToolDenied)


async def test_run_raises_a_timeout_as_a_tool_error() -> None:
    """With the outcome."""
    with pytest.raises(EdictumToolError, match=r"Tool 't' timed out after \d+ ms") as raised:
        await Edictum().run("t", {}, asyncio.Event().wait, timeout_s=SHORT)
    assert isinstance(raised.value.outcome, ToolTimeout)
    assert not raised.value.outcome.retryable, (
        "a tool that nobody described may have changed the world"
    )


@pytest.mark.parametrize(
    ("settings", "retryable"),
    [
        ({"side_effect": "read"}, True),
        ({"side_effect": "write"}, False),
        ({"side_effect": "irreversible"}, False),
        ({"side_effect": "write", "idempotent": True}, True),
        ({"side_effect": "irreversible", "retry_on_timeout": True}, True),
        ({"side_effect": "read", "retry_on_timeout": False}, False),
    ],
)
async def test_a_timeout_of_which_the_effect_is_unknown_invites_nobody_to_try_again(
    settings: dict[str, Any], retryable: bool
) -> None:
    """Unless repeating it is harmless, or somebody said so."""
    outcome = await Edictum(tools={"t": settings}).dispatch(
        "t", {}, asyncio.Event().wait, timeout_s=SHORT
    )
    assert isinstance(outcome, ToolTimeout)
    assert outcome.retryable is retryable
    assert outcome.effect_unknown is (settings["side_effect"] != "read")


async def test_retry_on_timeout_and_on_failure_come_from_the_tool_table() -> None:
    """What blocks a tool for the rest of a turn."""
    guard = Edictum(tools={"t": {"retry_on_timeout": False, "retry_on_failure": False}})
    timeout = await guard.dispatch("t", {}, asyncio.Event().wait, timeout_s=SHORT)
    failure = await guard.dispatch("t", {}, lambda: 1 / 0)
    assert isinstance(timeout, ToolTimeout)
    assert isinstance(failure, ToolFailure)
    assert (timeout.retryable, failure.retryable) == (False, False)


async def test_a_call_may_lift_the_tables_timeout() -> None:
    """``timeout_s=None`` with the call means none."""
    guard = Edictum(tools={"t": {"timeout_s": SHORT}})

    async def tool() -> str:
        await asyncio.sleep(SHORT * 3)
        return "done"

    assert await guard.run("t", {}, tool, timeout_s=None) == "done"


async def test_waiting_for_a_person_is_not_tool_time() -> None:
    """The deadline starts when the tool does."""
    backend = InMemoryApprovalBackend()
    guard = Edictum(
        contracts=[approval_contract()],
        approval_backend=backend,
    )
    task = asyncio.ensure_future(guard.dispatch("t", {}, lambda: "done", timeout_s=1.0))
    await asyncio.sleep(1.1)
    backend.decide(backend.pending[0].approval_id, True)
    assert isinstance(await task, ToolExecutionResult)


def test_a_hung_tool_does_not_keep_the_process_from_ending(tmp_path: Any) -> None:
    """Its thread is left behind."""
    import subprocess
    import sys

    code = """
import threading
from edictum import Edictum
print(type(Edictum().dispatch_sync("t", {}, threading.Event().wait, timeout_s=0.05)).__name__)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "ToolTimeout"


# --- Cancelled ------------------------------------------------------------------------------------


async def cancel_when(started: asyncio.Event, call: Any) -> None:
    task = asyncio.ensure_future(call)
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


class Waiting:
    """Something asynchronous that says when it was reached and then never ends."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.reached.set()
        await asyncio.Event().wait()


@pytest.mark.parametrize("options", [{}, {"timeout_s": 60}], ids=["plain", "with a deadline"])
async def test_a_call_cancelled_while_its_tool_runs_is_a_failed_execution(
    options: dict[str, Any],
) -> None:
    """Counted, audited, and the cancellation goes on to where it was meant."""
    guard, waiting = Edictum(), Waiting()
    await cancel_when(waiting.reached, guard.run("t", {}, waiting, **options))
    assert counters(guard) == (1, 0, 1, 0)
    assert list_actions(guard) == ["call_allowed", "call_failed"]
    event = guard.local_sink.last()
    assert (event.tool_success, event.success_source, event.outcome) == (
        False,
        "cancelled",
        "failed",
    )


async def test_a_call_cancelled_while_its_tool_runs_in_a_thread_is_a_failed_execution() -> None:
    """The thread goes on; the caller does not wait for it."""
    started, release = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def tool() -> None:
        loop.call_soon_threadsafe(started.set)
        release.wait(60)

    guard = Edictum()
    await cancel_when(started, guard.run("t", {}, tool, run_in="thread"))
    release.set()
    assert counters(guard) == (1, 0, 1, 0)


async def test_a_tool_that_survives_its_cancellation_ends_the_call_as_it_likes() -> None:
    """What the tool does about a cancellation is its own business, as without a guard."""
    started = asyncio.Event()

    async def stubborn() -> str:
        try:
            started.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "finished anyway"
        return "never"

    guard = Edictum()
    task = asyncio.ensure_future(guard.run("t", {}, stubborn))
    await started.wait()
    task.cancel()
    assert await task == "finished anyway"
    assert counters(guard) == (1, 1, 0, 0)


async def test_a_call_cancelled_while_a_person_thinks_is_withdrawn() -> None:
    """Its own end in the audit, and nothing was held."""
    backend = InMemoryApprovalBackend()
    guard = Edictum(
        contracts=[approval_contract()],
        approval_backend=backend,
    )
    task = asyncio.ensure_future(guard.run("t", {}, lambda: 1))
    await wait_in_loop(lambda: "call_approval_requested" in list_actions(guard))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert list_actions(guard) == ["call_approval_requested", "call_approval_withdrawn"]
    assert guard.local_sink.last().outcome == "denied"
    assert backend.withdrawn == [backend.requests[0].approval_id]
    assert counters(guard) == (0, 0, 0, 0)


def slow_places() -> dict[str, Callable[[Waiting], dict[str, Any]]]:
    return {
        "precondition": lambda waiting: {"contracts": [precondition("*", id="slow")(waiting)]},
        "session contract": lambda waiting: {"contracts": [session_contract(id="slow")(waiting)]},
        "before-hook": lambda waiting: {"hooks": [HookRegistration("before", "*", waiting)]},
        "resolver": lambda waiting: {"principal_resolver": waiting},
        "on_allow": lambda waiting: {"on_allow": waiting},
    }


@pytest.mark.parametrize("place", slow_places())
@pytest.mark.parametrize("mode", ["enforce", "observe"])
async def test_a_call_cancelled_before_its_tool_started_gives_its_slot_back(
    place: str, mode: Any
) -> None:
    """The tool does not run, the event says that the call was denied, and nothing is held."""
    waiting, bodies = Waiting(), []
    guard = Edictum(
        mode=mode, limits=OperationLimits(max_tool_calls=1), **slow_places()[place](waiting)
    )
    await cancel_when(waiting.reached, guard.run("t", {}, lambda: bodies.append(1)))
    assert bodies == []
    assert counters(guard) == (0, 0, 0, 0)
    assert list_actions(guard)[-1] == "call_denied"


class SlowSink(RecordingSink):
    def __init__(self, waiting: Waiting, on: str) -> None:
        super().__init__()
        self._waiting, self._on = waiting, on

    def emit(self, event: Any) -> Any:
        super().emit(event)
        return self._waiting() if event.action == self._on else None


async def test_a_call_cancelled_while_the_audit_is_written_does_not_start() -> None:
    """Nobody knows whether it was written."""
    waiting, bodies = Waiting(), []
    guard = Edictum(audit_sink=SlowSink(waiting, "call_allowed"))
    await cancel_when(waiting.reached, guard.run("t", {}, lambda: bodies.append(1)))
    assert (bodies, counters(guard)) == ([], (0, 0, 0, 0))


@pytest.mark.parametrize("place", ["postcondition", "after-hook", "closing event"])
async def test_a_call_cancelled_after_its_tool_ran_is_counted(place: str) -> None:
    """It has run."""
    waiting = Waiting()
    options: dict[str, Any] = {
        "postcondition": {"contracts": [postcondition("*")(waiting)]},
        "after-hook": {"hooks": [HookRegistration("after", "*", waiting)]},
        "closing event": {"audit_sink": SlowSink(waiting, "call_executed")},
    }[place]
    guard = Edictum(**options)
    await cancel_when(waiting.reached, guard.run("t", {}, lambda: "done"))
    assert counters(guard) == (1, 1, 0, 0)
    assert list_actions(guard)[-1] == "call_executed"


@pytest.mark.parametrize("pause", range(12))
async def test_cancelling_at_any_moment_leaves_no_slot_held(pause: int) -> None:
    """With a ledger, a sink, a contract, a hook and a tool that all give control away."""

    async def passing(call: Any) -> Verdict:
        await asyncio.sleep(0)
        return Verdict.pass_()

    async def hook(call: Any) -> HookDecision:
        await asyncio.sleep(0)
        return HookDecision.allow()

    async def tool() -> None:
        await asyncio.sleep(0)

    guard = Edictum(
        backend=AsyncLedger(),
        audit_sink=RecordingSink(asynchronous=True),
        contracts=[precondition("*")(passing), session_contract(passing)],
        hooks=[HookRegistration("before", "*", hook)],
    )
    task = asyncio.ensure_future(guard.run("t", {}, tool))
    for _ in range(pause):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert guard.session().in_flight == 0


async def test_a_hosts_own_timeout_around_the_call_works() -> None:
    """It is a cancellation like any other."""
    guard = Edictum()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(SHORT):
            await guard.run("t", {}, asyncio.Event().wait)
    assert counters(guard) == (1, 0, 1, 0)


async def test_a_contract_that_cancels_itself_denies() -> None:
    """A CancelledError of its own is an error of the contract, not a wish of the caller."""

    async def confused(call: Any) -> Verdict:
        raise asyncio.CancelledError

    outcome = await Edictum(contracts=[precondition("*")(confused)]).dispatch("t", {}, lambda: 1)
    assert isinstance(outcome, ToolDenied)
    assert outcome.policy_error
    assert isinstance(
        Edictum(contracts=[precondition("*")(confused)]).dispatch_sync("t", {}, lambda: 1),
        ToolDenied,
    )


# --- Interrupted, thrown away ---------------------------------------------------------------------


def interrupt(**args: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("options", [{}, {"run_in": "thread"}, {"timeout_s": 60}])
def test_ctrl_c_while_a_tool_runs_closes_the_call_and_goes_on(options: dict[str, Any]) -> None:
    """A failed execution, then KeyboardInterrupt where it was meant."""
    guard = Edictum()
    with pytest.raises(KeyboardInterrupt):
        guard.run_sync("t", {}, interrupt, **options)
    assert counters(guard) == (1, 0, 1, 0)
    assert list_actions(guard) == ["call_allowed", "call_failed"]


def test_ctrl_c_in_asynchronous_code_closes_the_call_and_goes_on() -> None:
    """asyncio.run hands it out."""
    guard = Edictum()
    coroutine = guard.run("t", {}, interrupt)
    with pytest.raises(KeyboardInterrupt):
        coroutine.send(None)
    assert counters(guard) == (1, 0, 1, 0)


PARTS: dict[str, Callable[[Callable[..., Any]], dict[str, Any]]] = {
    "precondition": lambda stop: {"contracts": [precondition("*", id="x")(stop)]},
    "session contract": lambda stop: {"contracts": [session_contract(id="x")(stop)]},
    "before-hook": lambda stop: {"hooks": [HookRegistration("before", "*", stop)]},
    "on_allow": lambda stop: {"on_allow": stop},
    "success check": lambda stop: {"success_check": stop},
    "postcondition": lambda stop: {"contracts": [postcondition("*", id="x")(stop)]},
    "after-hook": lambda stop: {"hooks": [HookRegistration("after", "*", stop)]},
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_being_told_to_stop_inside_a_part_of_the_gate_leaves_no_slot_held(
    part: str, error: type[BaseException]
) -> None:
    """Ctrl-C can come at any moment, and a contract may call sys.exit(); whether it goes on or not,
    the slot comes back.
    """

    def stop(*args: Any) -> Any:
        raise error

    guard = Edictum(**PARTS[part](stop))
    with contextlib.suppress(KeyboardInterrupt, SystemExit):
        guard.dispatch_sync("t", {}, lambda: 1)
    assert guard.session().in_flight == 0


@pytest.mark.parametrize("options", [{}, {"timeout_s": 60}], ids=["plain", "with a deadline"])
async def test_a_coroutine_that_is_thrown_away_while_its_tool_runs_is_a_failed_execution(
    options: dict[str, Any],
) -> None:
    """Its loop is gone, so nothing can be awaited any more; what answers at once is done."""

    async def wait() -> None:
        await asyncio.Event().wait()

    guard = Edictum()
    coroutine = guard.dispatch("t", {}, wait, **options)
    coroutine.send(None)
    coroutine.close()
    assert counters(guard) == (1, 0, 1, 0)
    assert list_actions(guard) == ["call_allowed", "call_failed"]


@pytest.mark.parametrize("place", slow_places())
async def test_a_coroutine_that_is_thrown_away_before_its_tool_started_gives_its_slot_back(
    place: str,
) -> None:
    """Wherever it waited."""
    guard = Edictum(**slow_places()[place](Waiting()))
    coroutine = guard.dispatch("t", {}, lambda: 1)
    coroutine.send(None)
    coroutine.close()
    assert counters(guard) == (0, 0, 0, 0)
    assert list_actions(guard)[-1:] == ["call_denied"]


async def test_a_coroutine_that_is_thrown_away_while_a_person_thinks_is_withdrawn() -> None:
    """As when it is cancelled."""
    backend = InMemoryApprovalBackend()
    guard = Edictum(
        contracts=[approval_contract()],
        approval_backend=backend,
    )
    coroutine = guard.dispatch("t", {}, lambda: 1)
    waits = coroutine.send(None)  # for the backend
    await wait_in_loop(lambda: waits.done())
    coroutine.send(None)  # and now for the person
    coroutine.close()
    assert counters(guard) == (0, 0, 0, 0)
    assert list_actions(guard)[-1] == "call_approval_withdrawn"


@pytest.mark.parametrize("place", ["postcondition", "after-hook", "success check"])
async def test_a_coroutine_that_is_thrown_away_after_its_tool_ran_is_counted(place: str) -> None:
    """It has run."""
    guard = Edictum(**PARTS[place](Waiting()))
    coroutine = guard.dispatch("t", {}, lambda: "done")
    coroutine.send(None)
    coroutine.close()
    assert counters(guard)[0] == 1
    assert counters(guard)[3] == 0


async def test_a_coroutine_that_was_never_started_has_done_nothing() -> None:
    """A call begins when it is awaited."""
    guard = Edictum()
    guard.dispatch("t", {}, lambda: 1).close()
    assert guard.session().attempts == 0
    assert list_actions(guard) == []


# --- The guard itself -----------------------------------------------------------------------------


async def test_a_guard_closes_what_it_holds_open() -> None:
    """Sinks and ledger, once, at the end of ``async with``."""
    sink = RecordingSink()
    async with Edictum(audit_sink=sink) as guard:
        await guard.run("t", {}, lambda: 1)
        assert not sink.closed
    assert sink.closed


async def test_closing_tries_everything_and_reports_what_failed() -> None:
    """One sink that cannot be closed does not keep the others open."""

    class Stuck(RecordingSink):
        async def close(self) -> None:
            raise OSError("stuck")

    good = RecordingSink()
    with pytest.raises(ExceptionGroup, match="closing the guard failed"):
        await Edictum(audit_sink=[Stuck(), good]).close()
    assert good.closed


async def test_calls_of_many_kinds_at_once_keep_apart() -> None:
    """No call sees another's value, arguments or outcome."""
    guard = Edictum(
        contracts=[
            precondition("*")(
                lambda call: (
                    Verdict.pass_() if call.args["n"] % 5 else Verdict.fail(str(call.args["n"]))
                )
            )
        ]
    )

    async def tool(n: int) -> int:
        await asyncio.sleep(0)
        if n % 7 == 0:
            raise ValueError(n)
        return n

    async def one(n: int) -> None:
        outcome = await guard.dispatch("t", {"n": n}, tool, call_id=f"c-{n}")
        said = {ToolDenied: "details", ToolFailure: "error", ToolExecutionResult: "value"}[
            type(outcome)
        ]
        assert str(getattr(outcome, said)) == str(n)

    await asyncio.gather(*(one(n) for n in range(200)))
    for event in guard.local_sink.events:
        assert event.call_id == f"c-{event.tool_args['n']}"


def test_time_is_measured() -> None:
    """duration_ms and elapsed_ms are those of the tool."""
    guard = Edictum()
    outcome = guard.dispatch_sync("t", {}, lambda: time.sleep(0.012))
    assert outcome.elapsed_ms > 0
    assert guard.local_sink.last().duration_ms == outcome.elapsed_ms
