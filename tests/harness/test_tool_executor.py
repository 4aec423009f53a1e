"""BoundedToolExecutor against tools, hooks and stores that misbehave: whatever they do, one
outcome, in time.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from misbehaving_tools import decorated
from turns import Bench, FakeTimer, ask_first, block, hang, new_guard, new_state, request

from edictum import (
    EdictumConfigError,
    HookDecision,
    HookRegistration,
    InMemoryApprovalBackend,
    Verdict,
    precondition,
)
from edictum.harness import ArtifactStore, DeadlineToken, ToolSpec, TurnBudget, TurnState, tool
from edictum.outcomes import (
    TOOL_MESSAGE_MAX_CHARS,
    ToolArtifactReference,
    ToolDenied,
    ToolExecutionResult,
    ToolFailure,
    ToolTimeout,
    outcome_from_dict,
    outcome_to_dict,
    outcome_to_model_content,
)
from support.waiting import wait_in_loop

QUICK = {"tool_timeout_cap_s": 0.05}


def simple(function: Any, **settings: Any) -> ToolSpec:
    name = settings.pop("name", "work")
    return tool(name=name, **{"parameters": {"type": "object"}, "side_effect": "read", **settings})(
        function
    )


# --- Tools that do not end ------------------------------------------------------------------------


async def test_a_hung_synchronous_tool_is_left_behind_and_said_to_be_running() -> None:
    outcome = await Bench(block).call("block", {"seconds": 1.0}, **QUICK)
    assert isinstance(outcome, ToolTimeout)
    assert outcome.body_may_be_running
    assert outcome.retryable


async def test_a_hung_asynchronous_tool_is_cancelled() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(30)
        finally:
            ended.append("cleaned up")

    outcome = await Bench(simple(work)).call("work", **QUICK)
    assert isinstance(outcome, ToolTimeout)
    assert not outcome.body_may_be_running
    assert ended == ["cleaned up"]


async def test_a_hung_asynchronous_tool_whose_finally_hangs_is_not_waited_for() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(30)
        finally:
            await asyncio.sleep(30)
            ended.append("at last")

    outcome = await Bench(simple(work)).call("work", **QUICK)
    assert isinstance(outcome, ToolTimeout)
    assert outcome.body_may_be_running
    assert ended == []


def spin() -> None:
    end = time.monotonic() + 60  # a test in which nobody kills it fails, and does not hang
    while time.monotonic() < end:
        pass


def breed(path: str) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    Path(path).write_text(str(child.pid))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(60)


async def test_a_cpu_loop_in_a_process_is_killed() -> None:
    outcome = await Bench(simple(spin, isolation="process")).call("work", tool_timeout_cap_s=0.3)
    assert isinstance(outcome, ToolTimeout)
    assert not outcome.body_may_be_running


async def test_a_decorated_function_is_found_by_a_worker_and_gets_its_deadline() -> None:
    outcome = await Bench(decorated).call("decorated", {"x": "3"})
    assert isinstance(outcome, ToolExecutionResult), outcome
    assert (outcome.value["x"], outcome.value["in_time"]) == (3, True)
    assert outcome.value["pid"] != os.getpid()


async def test_a_process_with_a_child_that_ignores_signals_is_killed_with_it(
    tmp_path: Path,
) -> None:
    note = tmp_path / "pid"
    spec = simple(breed, isolation="process")
    for seconds in (3, 30):  # on a busy machine the time may be over before there is a child
        outcome = await Bench(spec).call("work", {"path": str(note)}, tool_timeout_cap_s=seconds)
        assert isinstance(outcome, ToolTimeout)
        if note.exists():
            break
    pid = int(note.read_text())
    for _ in range(1_200):
        if not _alive(pid):
            break
        await asyncio.sleep(0.05)
    assert not _alive(pid)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


async def test_a_tool_that_finishes_in_the_moment_of_its_deadline_has_one_end() -> None:
    """Either it completed, and its value counts, or it timed out, and its value does not: never
    both, never neither.
    """
    finished: list[str] = []

    def work(key: str) -> str:
        time.sleep(0.02)
        finished.append(key)
        return key

    bench = Bench(simple(work))
    outcomes = await asyncio.gather(
        *(
            bench.call("work", {"key": str(n)}, str(n), tool_timeout_cap_s=0.0195 + n / 4000)
            for n in range(20)
        )
    )
    await asyncio.sleep(0.2)
    for number, outcome in enumerate(outcomes):
        entry = next(
            entry for entry in bench.state.tool_trace.values() if entry.call_id == str(number)
        )
        match outcome:
            case ToolExecutionResult():
                assert (entry.status, outcome.value) == ("completed", str(number))
            case ToolTimeout():
                assert entry.status == "timed_out"
            case _:
                raise AssertionError(outcome)


async def test_a_value_that_came_just_in_time_counts_although_the_waiter_had_given_up() -> None:
    from edictum.core.effects import Ran, RunTool
    from edictum.guard import PendingCall
    from edictum.harness.turn_call import Turn

    guard = new_guard()
    step = Turn(new_state(), [simple(lambda: 1)]).open("work", {}, None, guard.policy)
    pending = PendingCall("work", {}, step.body, None, {})
    run = guard._make_run(guard._state, guard._state.policy.plan("work"), pending, "s")
    step._call = run.call
    started = step.start(run)
    assert isinstance(started, RunTool)
    assert started.body is not None
    started.body()
    assert step.end_body(Ran(None, None, 0.1, deadline_s=1.0)).value == 1


async def test_a_late_end_is_noticed() -> None:
    bench = Bench(block)
    await bench.call("block", {"seconds": 0.15}, "late", **QUICK)
    for _ in range(3_000):
        if late := bench.state.late_completions():
            break
        await asyncio.sleep(0.02)
    assert [entry.call_id for entry in late] == ["late"]


def test_the_process_ends_at_once_while_a_tool_hangs() -> None:
    code = textwrap.dedent("""
        import time
        from edictum.harness import *
        @tool(side_effect="read")
        def sleep() -> None: time.sleep(600)
        executor = BoundedToolExecutor([sleep])
        outcome = executor.execute(ToolCallRequest("a", "sleep", {}), TurnState(), tool_timeout_cap_s=0.05)
        print(type(outcome).__name__)
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.stdout.strip(), done.returncode) == ("ToolTimeout", 0), done.stderr


# --- Tools that end badly -------------------------------------------------------------------------


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    "error",
    [
        SystemExit(3),
        Unspeakable(),
        TimeoutError("my own"),
        GeneratorExit(),
        StopIteration(1),
        ValueError("x" * 100_000),
        asyncio.CancelledError(),
        BaseException("base"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("kind", ["thread", "async"])
async def test_whatever_a_tool_raises_is_its_failure(error: BaseException, kind: str) -> None:
    def raise_it() -> None:
        raise error

    async def raise_later() -> None:
        await asyncio.sleep(0)
        raise error

    if kind == "async" and isinstance(error, (GeneratorExit, StopIteration)):
        pytest.skip("a coroutine cannot raise it")
    outcome = await Bench(simple(raise_it if kind == "thread" else raise_later)).call("work")
    assert isinstance(outcome, ToolFailure)
    assert len(outcome_to_model_content(outcome)) < 2 * TOOL_MESSAGE_MAX_CHARS


async def test_an_exception_that_will_not_heal_blocks_the_tool() -> None:
    def work() -> None:
        raise PermissionError("no key")

    bench = Bench(simple(work, non_retryable=(PermissionError,)))
    outcome = await bench.call("work")
    assert isinstance(outcome, ToolFailure)
    assert not outcome.retryable
    assert bench.state.blocked_tool_names == {"work"}
    assert (await bench.call("work")).reason == "blocked"  # type: ignore[union-attr]


async def test_a_result_that_is_not_what_was_promised_is_a_failure() -> None:
    promise = {"type": "object", "required": ["rows"]}
    assert isinstance(
        await Bench(simple(lambda: {"rows": []}, returns=promise)).call("work"), ToolExecutionResult
    )
    broken = await Bench(simple(lambda: {"row": []}, returns=promise)).call("work")
    assert isinstance(broken, ToolFailure)
    assert "rows" in broken.success_reason
    assert isinstance(
        await Bench(simple(lambda: {"error": "x"}, returns=promise)).call("work"), ToolFailure
    )


async def test_reused_call_ids_do_not_mix() -> None:
    bench = Bench(simple(lambda key: key), block)
    await bench.call("block", {"seconds": 0.2}, "call_0", **QUICK)
    outcomes = await asyncio.gather(*(bench.call("work", {"key": n}, "call_0") for n in range(5)))
    assert [outcome.value for outcome in outcomes] == [0, 1, 2, 3, 4]  # type: ignore[union-attr]
    await asyncio.sleep(0.25)
    assert [entry.status for entry in bench.state.tool_trace.values()] == [
        "timed_out",
        *["completed"] * 5,
    ]


async def test_what_json_does_not_know_goes_in_and_comes_out() -> None:
    day = datetime.date(2026, 1, 2)
    outcome = await Bench(
        simple(
            lambda **args: {
                "got": {1, 2},
                "day": day,
                "nan": float("nan"),
                "bytes": b"\xff",
                "back": args,
            }
        )
    ).call("work", {"when": day, "set": {3}})
    assert isinstance(outcome, ToolExecutionResult)
    read = json.loads(outcome_to_model_content(outcome))
    assert read["got"] == [1, 2]
    assert read["day"] == "2026-01-02"


# --- Retries --------------------------------------------------------------------------------------


async def test_a_read_is_tried_again_and_every_attempt_is_counted_and_audited() -> None:
    tries: list[int] = []

    def work() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError("not yet")
        return "there"

    bench = Bench(simple(work, max_retries=3))
    outcome = await bench.call("work")
    assert isinstance(outcome, ToolExecutionResult)
    assert outcome.turn.attempts == 3
    assert [action for action, _, _ in bench.events] == ["call_allowed", "call_failed"] * 2 + [
        "call_allowed",
        "call_executed",
    ]
    session = bench.guard.session("session")
    assert (session.attempts, session.executions, session.failures, session.successes) == (
        3,
        3,
        2,
        1,
    )
    assert bench.state.budget.snapshot()["tool_calls_used"] == 1


async def test_retries_end_and_stay_within_the_deadline() -> None:
    def work() -> None:
        raise ConnectionError("never")

    outcome = await Bench(simple(work, max_retries=2)).call("work")
    assert isinstance(outcome, ToolFailure)
    assert outcome.turn.attempts == 3
    brief = await Bench(simple(work, max_retries=50), state=new_state(0.5)).call("work")
    assert isinstance(brief, ToolFailure)
    assert brief.turn.attempts < 20


async def test_when_another_attempt_is_denied_the_call_ends_as_the_attempt_before_it() -> None:
    tries: list[int] = []

    @precondition("work")
    def once_only(call: Any) -> Verdict:
        return Verdict.fail("once is enough") if tries else Verdict.pass_()

    def work() -> None:
        tries.append(1)
        raise ConnectionError("no route")

    bench = Bench(simple(work, max_retries=5), guard=new_guard(contracts=[once_only]))
    outcome = await bench.call("work")
    assert isinstance(outcome, ToolFailure)
    assert outcome.error == "no route"
    assert outcome.notes == ("It was not tried again: once is enough",)
    assert [action for action, _, _ in bench.events] == [
        "call_allowed",
        "call_failed",
        "call_denied",
    ]


async def test_what_will_not_heal_is_not_tried_again() -> None:
    tries: list[int] = []

    def work() -> None:
        tries.append(1)
        raise PermissionError

    await Bench(simple(work, max_retries=5, non_retryable=(PermissionError,))).call("work")
    assert len(tries) == 1


def test_only_what_is_safe_to_repeat_can_have_retries() -> None:
    with pytest.raises(EdictumConfigError, match="tried again"):
        simple(lambda: 1, side_effect="irreversible", max_retries=1)


# --- Deadlines ------------------------------------------------------------------------------------


async def test_a_co_operative_tool_gets_its_deadline_as_a_parameter_or_from_the_context() -> None:
    seen: list[float | None] = []

    @tool(side_effect="read")
    def with_parameter(deadline: DeadlineToken) -> str:
        seen.append(deadline.remaining_s())
        while not deadline.is_expired():
            time.sleep(0.005)
        deadline.check()
        return "never"

    @tool(side_effect="read")
    async def with_context() -> str:
        token = DeadlineToken.current()
        seen.append(None if token is None else token.remaining_s())
        return "done"

    bench = Bench(with_parameter, with_context)
    first = await bench.call("with_parameter", **QUICK)
    assert isinstance(first, ToolTimeout)
    assert isinstance(await bench.call("with_context", **QUICK), ToolExecutionResult)
    assert all(left is not None and 0 < left <= 0.05 for left in seen)
    assert DeadlineToken.current() is None


async def test_a_tool_that_stops_by_itself_at_its_deadline_has_timed_out() -> None:
    @tool(side_effect="read")
    async def work(deadline: DeadlineToken) -> str:
        deadline.cancel()
        deadline.check()
        return "never"

    outcome = await Bench(work).call("work")
    assert isinstance(outcome, ToolTimeout)
    assert not outcome.body_may_be_running


async def test_the_smallest_of_the_turn_the_cap_and_the_tool_counts() -> None:
    seen: list[float] = []

    async def work() -> None:
        token = DeadlineToken.current()
        assert token is not None
        seen.append(token.remaining_s())

    await Bench(simple(work, timeout_s=2), state=new_state(100)).call("work")
    await Bench(simple(work), state=new_state(100)).call("work", tool_timeout_cap_s=3)
    await Bench(simple(work), state=new_state(10)).call("work")
    assert [round(left) for left in seen] == [2, 3, 9]


async def test_an_inline_tool_is_called_where_it_stands() -> None:
    threads: list[Any] = []
    spec = simple(lambda: threads.append(threading.current_thread()), isolation="inline")
    assert isinstance(await Bench(spec).call("work"), ToolExecutionResult)
    assert threads == [threading.current_thread()]


# --- Hooks and people -----------------------------------------------------------------------------


def hooked(callback: Any) -> Any:
    return new_guard(hooks=[HookRegistration(phase="before", tool="*", callback=callback)])


async def test_a_hook_that_raises_refuses() -> None:
    def broken(call: Any) -> HookDecision:
        raise RuntimeError("broken hook")

    outcome = await Bench(hang, guard=hooked(broken)).call("hang")
    assert isinstance(outcome, ToolDenied)
    assert (outcome.reason, outcome.policy_error) == ("pre_hook", True)


@pytest.mark.parametrize("stubborn", [False, True])
async def test_a_hook_that_hangs_refuses_in_time(stubborn: bool) -> None:
    decided: list[str] = []

    async def slow(call: Any) -> HookDecision:
        for _ in range(3 if stubborn else 1):
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                if not stubborn:
                    raise
        decided.append("at last")
        return HookDecision.allow()

    outcome = await Bench(hang, guard=hooked(slow)).call("hang", **QUICK)
    assert isinstance(outcome, ToolDenied)
    assert (outcome.reason, outcome.policy_error) == ("pre_hook", True)
    assert decided == []


async def test_a_hook_cannot_rewrite_what_was_checked() -> None:
    ran: list[Any] = []

    def rewrite(call: Any) -> HookDecision:
        call.args["key"] = "evil"
        return HookDecision.allow()

    outcome = await Bench(
        simple(ran.append, parameters={"type": "object"}), guard=hooked(rewrite)
    ).call("work", {"object": "good"})
    assert isinstance(outcome, ToolDenied)
    assert outcome.policy_error
    assert ran == []


class SlowPerson(InMemoryApprovalBackend):
    """Decides after an hour of the turn's clock."""

    def __init__(self, timer: FakeTimer, answer: bool) -> None:
        super().__init__(answer)
        self._timer = timer

    async def wait_for_decision(self, approval_id: str, timeout: float | None = None) -> Any:
        self._timer.advance(3_600)
        return await super().wait_for_decision(approval_id, timeout)


async def test_an_approval_that_comes_after_the_deadline_counts_because_the_clock_stood() -> None:
    timer = FakeTimer()
    state = TurnState("session", TurnBudget.create(60, timer=timer))
    bench = Bench(
        simple(lambda: "done"),
        state=state,
        guard=new_guard(contracts=[ask_first], approval_backend=SlowPerson(timer, True)),
    )
    assert isinstance(await bench.call("work"), ToolExecutionResult)
    assert state.budget.remaining_s() == 60.0
    refused = Bench(
        simple(lambda: "done"),
        guard=new_guard(contracts=[ask_first], approval_backend=SlowPerson(timer, False)),
    )
    outcome = await refused.call("work")
    assert isinstance(outcome, ToolDenied)
    assert outcome.reason == "write_denied"


async def test_when_the_time_is_over_at_the_door_the_slot_is_given_back() -> None:
    timer = FakeTimer()

    def pass_time(call: Any) -> HookDecision:
        timer.advance(100)
        return HookDecision.allow()

    state = TurnState("session", TurnBudget.create(60, timer=timer))
    bench = Bench(simple(lambda: "never"), state=state, guard=hooked(pass_time))
    outcome = await bench.call("work")
    assert isinstance(outcome, ToolDenied)
    assert (outcome.reason, outcome.decision_source, outcome.decision_name) == (
        "deadline",
        "turn",
        "deadline",
    )
    session = bench.guard.session("session")
    assert (session.attempts, session.executions, session.in_flight) == (1, 0, 0)


async def test_when_the_turn_is_closed_at_the_door_nothing_starts() -> None:
    state = new_state()

    def close(call: Any) -> HookDecision:
        state.close_writes()
        return HookDecision.allow()

    outcome = await Bench(simple(lambda: "never"), state=state, guard=hooked(close)).call("work")
    assert isinstance(outcome, ToolDenied)
    assert outcome.reason == "cancelled"


async def test_a_cancelled_caller_closes_its_call_and_goes_on_being_cancelled() -> None:
    bench = Bench(hang)
    task = asyncio.create_task(bench.call("hang"))
    await wait_in_loop(lambda: bench.guard.session("session").in_flight)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert bench.events[-1][0] == "call_failed"
    assert len(bench.state.tool_results) == 1
    assert bench.guard.session("session").in_flight == 0


# --- Large outputs --------------------------------------------------------------------------------


def output_of(chars: int) -> str:
    return "x" * (chars - len('{"result": ""}'))


async def test_an_output_of_exactly_the_limit_is_in_line_and_one_more_is_not(
    tmp_path: Path,
) -> None:
    store = ArtifactStore(tmp_path / "store")
    bench = Bench(simple(lambda chars: output_of(chars)), artifact_store=store)
    exact = await bench.call("work", {"chars": TOOL_MESSAGE_MAX_CHARS})
    assert isinstance(exact, ToolExecutionResult)
    assert len(outcome_to_model_content(exact)) == TOOL_MESSAGE_MAX_CHARS
    more = await bench.call("work", {"chars": TOOL_MESSAGE_MAX_CHARS + 1})
    assert isinstance(more, ToolArtifactReference)
    assert len(more.summary) <= 200
    assert bench.guard.local_sink.events[-1].outcome == "artifact"
    assert outcome_from_dict(outcome_to_dict(more)) == more


async def test_a_large_output_is_stored_and_session_ids_are_harmless(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "store")
    state = TurnState("../../etc/passwd", TurnBudget.create(30))
    outcome = await Bench(simple(lambda: "y" * 10_000_000), state=state, artifact_store=store).call(
        "work"
    )
    assert isinstance(outcome, ToolArtifactReference)
    assert outcome.size_bytes >= 10_000_000
    assert len(outcome_to_model_content(outcome)) < 1_000
    assert not list(tmp_path.glob("etc*"))


class FullDisk:
    def store(self, session_id: str, content: str, tool_name: str, ttl_s: float = 3600) -> Any:
        raise OSError(28, "No space left on device")


class NoReference:
    async def store(
        self, session_id: str, content: str, tool_name: str, ttl_s: float = 3600
    ) -> Any:
        return None


@pytest.mark.parametrize(
    "store", [FullDisk(), NoReference(), None], ids=["disk full", "no reference", "no store"]
)
async def test_what_cannot_be_stored_is_shown_at_both_ends(store: Any) -> None:
    text = "HEAD" + '"\\' * 50_000 + "TAIL"
    outcome = await Bench(simple(lambda: text), artifact_store=store).call("work")
    assert isinstance(outcome, ToolExecutionResult)
    shown = outcome_to_model_content(outcome)
    assert "HEAD" in shown
    assert "TAIL" in shown
    assert len(shown) <= TOOL_MESSAGE_MAX_CHARS
    assert outcome.value == text
    assert bool(outcome.notes) == (store is not None)


async def test_the_limit_is_the_tools_own_and_some_outputs_are_never_stored(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "store")
    small = await Bench(simple(lambda: "z" * 500, max_output_chars=100), artifact_store=store).call(
        "work"
    )
    assert isinstance(small, ToolArtifactReference)
    kept = await Bench(
        simple(lambda: "z" * 500, max_output_chars=100, store_output=False), artifact_store=store
    ).call("work")
    assert isinstance(kept, ToolExecutionResult)
    assert kept.output["truncated"] is True


# --- The synchronous face -------------------------------------------------------------------------


def test_the_synchronous_face_does_the_same() -> None:
    bench = Bench(hang, block, simple(lambda: {1, 2}))
    outcomes = [
        bench.executor.execute(request(name, arguments), bench.state, **QUICK)
        for name, arguments in (
            ("work", {}),
            ("hang", {}),
            ("block", {"seconds": 0.3}),
            ("nobody", {}),
        )
    ]
    assert [type(outcome) for outcome in outcomes] == [
        ToolExecutionResult,
        ToolTimeout,
        ToolTimeout,
        ToolDenied,
    ]


def test_two_threads_share_one_body() -> None:
    ran: list[int] = []

    def work() -> str:
        ran.append(1)
        time.sleep(0.1)
        return "done"

    bench = Bench(simple(work, idempotent=True))
    outcomes: list[Any] = []
    threads = [
        threading.Thread(
            target=lambda: outcomes.append(bench.executor.execute(request("work"), bench.state))
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ran) == 1
    assert sorted(outcome.turn.replayed for outcome in outcomes) == [False, True, True, True]


async def test_without_a_guard_calls_are_bounded_and_recorded() -> None:
    from edictum.harness import BoundedToolExecutor

    executor = BoundedToolExecutor([simple(lambda: 1)])
    assert isinstance(await executor.aexecute(request("work"), TurnState()), ToolExecutionResult)
    assert len(executor.guard.local_sink.events) == 2
    with pytest.raises(EdictumConfigError, match="beside a guard"):
        BoundedToolExecutor([], guard=new_guard(), execution="thread")
