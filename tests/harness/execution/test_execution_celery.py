"""Tools on a real Celery worker, over a real Valkey: every answer is kept apart, and no side effect
happens twice.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("celery")

import celery_bodies as bodies
from execution_helpers import CeleryWorker, gone, pids_in

from edictum import Edictum, ToolExecutionResult, ToolFailure, ToolTimeout, outcome_to_model_content
from edictum.execution import celery
from edictum.execution.celery import TASK, CeleryEngine
from edictum.harness import Turn
from support.guards import count_calls
from support.waiting import wait_until

TOOLS = {"append": {"side_effect": "write", "verify": "read_file"}, "add": {"side_effect": "pure"}}


@pytest.fixture(scope="module")
def engine(valkey: str) -> Iterator[CeleryEngine]:
    engine = CeleryEngine(valkey.replace("redis", "celery", 1))
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def worker(start_worker: Callable[[], CeleryWorker], engine: CeleryEngine) -> CeleryWorker:
    worker = start_worker()
    guard = Edictum(execution=engine)
    guard.run_sync("add", {"a": 1, "b": 1}, bodies.add, timeout_s=30)  # it is up
    return worker


@pytest.fixture
def guard(engine: CeleryEngine, worker: CeleryWorker) -> Edictum:
    return Edictum(execution=engine, tools=TOOLS)


def test_one_worker_that_answers_is_enough(engine: CeleryEngine, worker: CeleryWorker) -> None:
    """The time in which others might answer is not waited for."""
    started = time.monotonic()
    engine.check(60)
    assert time.monotonic() - started < 60


async def test_a_tool_runs_on_the_worker(guard: Edictum) -> None:
    """From asynchronous and from synchronous code, ordinary functions and coroutines."""
    assert await guard.run("pid", {}, bodies.pid) != os.getpid()
    assert await guard.run("add", {"a": 1, "b": 2}, bodies.add) == 3
    assert await guard.run("add", {"a": 1, "b": 2}, bodies.add_later) == 3
    assert guard.run_sync("add", {"a": 1, "b": 2}, bodies.add) == 3
    assert count_calls(guard) == (4, 4, 0, 0)


async def test_a_tool_gets_what_its_hints_name_on_the_worker_too(guard: Edictum) -> None:
    outcome = await guard.dispatch(
        "weekday", {"day": "2024-05-01"}, turn=Turn(tools=[bodies.weekday])
    )
    assert isinstance(outcome, ToolExecutionResult), outcome
    assert outcome.value == "Wednesday"


async def test_many_calls_at_once_get_their_own_answers(guard: Edictum) -> None:
    """One connection brings the answers of all."""
    calls = [guard.run("add", {"a": number, "b": 1}, bodies.add) for number in range(50)]
    assert await asyncio.gather(*calls) == [number + 1 for number in range(50)]


@pytest.mark.parametrize("run_in", ["inline", "thread", "process"])
async def test_a_call_can_stay_at_home(guard: Edictum, run_in: str) -> None:
    """The option of the call goes before the guard's engine."""
    pid = await guard.run("pid", {}, bodies.pid, run_in=run_in)
    assert (pid == os.getpid()) is (run_in != "process")


async def test_an_error_has_its_type_and_text(guard: Edictum) -> None:
    """Also SystemExit, after which the worker goes on."""
    outcome = await guard.dispatch("fail", {"text": "no such account"}, bodies.fail)
    assert isinstance(outcome, ToolFailure)
    assert outcome.error == "ValueError: no such account"
    assert not outcome.effect_unknown
    outcome = await guard.dispatch("leave", {}, bodies.leave)
    assert isinstance(outcome, ToolFailure)
    assert outcome.error == "SystemExit: 3"


async def test_a_loop_is_killed_at_the_deadline_and_the_next_call_works(guard: Edictum) -> None:
    """By the worker's hard limit: nothing runs on."""
    outcome = await guard.dispatch("spin", {}, bodies.spin, timeout_s=2)
    assert isinstance(outcome, ToolTimeout)
    assert not outcome.body_may_be_running
    assert outcome.effect_unknown
    assert await guard.run("add", {"a": 1, "b": 2}, bodies.add, timeout_s=20) == 3
    assert count_calls(guard) == (2, 1, 1, 0)


async def test_a_child_of_the_tool_is_killed_as_well(guard: Edictum, tmp_path: Path) -> None:
    path = tmp_path / "pid"
    for seconds in (1.0, 30.0):  # on a busy machine the time may be over before there is a child
        outcome = await guard.dispatch(
            "start_child", {"path": str(path)}, bodies.start_child, timeout_s=seconds
        )
        if isinstance(outcome, ToolTimeout) and pids_in(path):
            break
    assert isinstance(outcome, ToolTimeout)
    (child,) = pids_in(path)
    wait_until(lambda: gone(child))


async def test_a_worker_process_that_dies_is_lost(guard: Edictum) -> None:
    outcome = await guard.dispatch("crash", {}, bodies.crash, timeout_s=20)
    assert isinstance(outcome, ToolFailure)
    assert outcome.success_source == "lost"
    assert outcome.effect_unknown
    assert await guard.run("add", {"a": 1, "b": 2}, bodies.add, timeout_s=20) == 3
    assert count_calls(guard) == (2, 1, 1, 0)


async def test_a_process_that_dies_is_noticed_before_celery_would_look_for_it(
    guard: Edictum,
) -> None:
    """It looks every five seconds; calls with less time than that are lost all the same, and do not
    run out of time.
    """
    for _ in range(3):
        outcome = await guard.dispatch("crash", {}, bodies.crash, timeout_s=3)
        assert isinstance(outcome, ToolFailure)
        assert outcome.success_source == "lost"


async def test_killing_the_process_during_a_call_is_lost_and_not_repeated(
    guard: Edictum, tmp_path: Path
) -> None:
    """kill -9, as the kernel does it when memory runs out."""
    path = tmp_path / "done"
    call = asyncio.ensure_future(
        guard.dispatch(
            "append",
            {"path": str(path), "text": "a", "then_sleep": 60},
            bodies.append,
            timeout_s=20,
        )
    )
    await asyncio.to_thread(wait_until, path.exists)
    os.kill(int(path.read_text().split()[0]), signal.SIGKILL)
    outcome = await call
    assert isinstance(outcome, ToolFailure)
    assert outcome.effect_unknown
    assert outcome.verify_tool == "read_file"
    assert "check with 'read_file'" in outcome_to_model_content(outcome)
    assert count_calls(guard) == (1, 0, 1, 0)
    assert (
        await guard.run("append", {"path": str(path), "text": "b"}, bodies.append, timeout_s=20)
        == "b"
    )
    assert [line.split()[1] for line in path.read_text().splitlines()] == ["a", "b"]


async def test_what_cannot_be_sent_is_refused_before_anything_runs(guard: Edictum) -> None:
    """Arguments that are not JSON, functions without a name, functions that the worker does not
    have.
    """
    for args, body, why in (
        ({"a": object(), "b": 1}, bodies.add, "cannot be sent as JSON"),
        ({}, lambda: 1, "no name by which a worker could know it"),
        ({}, time.time, "is not a tool of this worker"),
    ):
        outcome = await guard.dispatch("append", args, body)
        assert isinstance(outcome, ToolFailure)
        assert why in outcome.error
        assert not outcome.effect_unknown


async def test_a_result_that_is_not_json_says_that_the_tool_ran(guard: Edictum) -> None:
    outcome = await guard.dispatch("odd", {}, bodies.odd)
    assert isinstance(outcome, ToolFailure)
    assert "It ended, but its result cannot be sent back" in outcome.error


async def test_a_cancelled_caller_takes_the_call_with_it(guard: Edictum, tmp_path: Path) -> None:
    """Its process is killed, and the worker is free for the next call."""
    path = tmp_path / "done"
    call = asyncio.ensure_future(
        guard.run(
            "append",
            {"path": str(path), "text": "a", "then_sleep": 60},
            bodies.append,
            timeout_s=60,
        )
    )
    await asyncio.to_thread(wait_until, path.exists)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await guard.run("add", {"a": 1, "b": 2}, bodies.add, timeout_s=20) == 3
    assert count_calls(guard) == (2, 1, 1, 0)


async def test_many_cancelled_callers_leave_the_connections_to_others(
    engine: CeleryEngine, guard: Edictum
) -> None:
    """More than the pool has: who stops a call must not wait there for those who do the same."""
    calls = [
        asyncio.ensure_future(guard.run("add", {"a": 1, "b": 2}, bodies.add, timeout_s=60))
        for _ in range(100)
    ]
    await asyncio.to_thread(wait_until, lambda: engine._waiting)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    assert await guard.run("add", {"a": 1, "b": 2}, bodies.add, timeout_s=30) == 3


async def test_a_call_that_the_broker_delivers_twice_runs_once(
    guard: Edictum, engine: CeleryEngine, tmp_path: Path
) -> None:
    """The claim decides, not the queue."""
    path = tmp_path / "done"
    message = ("celery_bodies:append", {"path": str(path), "text": "a"})
    for _ in range(2):
        engine.app.send_task(
            TASK,
            message,
            task_id=f"twice-{path}",
            reply_to="edictum:replies:nobody",
            ignore_result=True,
        )
    assert await guard.run("add", {"a": 1, "b": 2}, bodies.add, timeout_s=20) == 3
    assert len(path.read_text().splitlines()) == 1


def inbox(engine: CeleryEngine) -> str:
    return engine.expect("nobody", Future())


@pytest.mark.parametrize(
    "message",
    [
        "not JSON",
        "null",
        "[]",
        "{}",
        '{"call": []}',
        '{"call": "another", "status": "ok"}',
        "[" * 100_000,
    ],
)
async def test_a_message_that_cannot_be_read_keeps_nobody_from_his_answer(
    guard: Edictum, engine: CeleryEngine, tmp_path: Path, message: str
) -> None:
    """It comes while a call is under way, whose answer is behind it."""
    begun, go_on, replies = tmp_path / "begun", tmp_path / "go_on", inbox(engine)
    args = {"begun": str(begun), "go_on": str(go_on)}
    call = asyncio.ensure_future(guard.dispatch("hold", args, bodies.hold, timeout_s=20))
    await asyncio.to_thread(wait_until, begun.exists)
    engine.results.rpush(replies, message)
    await asyncio.to_thread(wait_until, lambda: not engine.results.exists(replies))
    go_on.touch()
    assert isinstance(await call, ToolExecutionResult)


def test_a_forked_child_gets_its_own_answers(guard: Edictum, engine: CeleryEngine) -> None:
    """Also when a thread, which the child does not have, held the engine's lock at that moment."""
    assert guard.run_sync("add", {"a": 1, "b": 2}, bodies.add) == 3
    with engine._lock:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                signal.alarm(60)  # a child that hangs is killed
                code = 0 if guard.run_sync("add", {"a": 3, "b": 4}, bodies.add) == 7 else 1
            finally:
                os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert guard.run_sync("add", {"a": 1, "b": 2}, bodies.add) == 3


async def test_messages_that_cannot_be_read_are_told_once(
    valkey: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = CeleryEngine(valkey)
    answer: Future[dict[str, Any]] = Future()
    replies = engine.expect("a", answer)
    engine.results.rpush(replies, "not JSON", "[]", '{"call": "a", "status": "ok"}')
    await asyncio.to_thread(wait_until, answer.done)
    assert answer.result() == {"call": "a", "status": "ok"}
    assert [
        record.message.partition(":")[0]
        for record in caplog.records
        if record.name.startswith("edictum")
    ] == ["A message among the answers of Celery workers cannot be read and is skipped"]
    engine.close()


@pytest.mark.parametrize(
    "answer",
    [
        '"status": "ok"',
        '"status": "ok", "value": "not JSON"',
        '"status": "odd"',
        '"text": "no status"',
    ],
)
async def test_an_answer_that_makes_no_sense_is_lost(valkey: str, answer: str) -> None:
    """Somebody had the call, and what became of it is not known."""
    engine = CeleryEngine(valkey, queue="nobody-listens")
    guard = Edictum(execution=engine, tools=TOOLS)
    call = asyncio.ensure_future(
        guard.dispatch("append", {"path": "", "text": ""}, bodies.append, timeout_s=60)
    )
    (name,) = await asyncio.to_thread(wait_until, lambda: list(engine._waiting))
    engine.results.rpush(inbox(engine), f'{{"call": "{name}", {answer}}}')
    outcome = await call
    assert isinstance(outcome, ToolFailure)
    assert "its answer cannot be read" in outcome.error
    assert outcome.effect_unknown
    engine.close()


async def test_a_call_that_is_found_when_its_claim_is_forgotten_is_not_begun(
    valkey: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claims are kept for a day. A call that lies in its queue for longer has expired by then."""
    monkeypatch.setattr(celery, "EXPIRES_LATE_S", 0)
    engine = CeleryEngine(valkey, queue="late")
    guard, path = Edictum(execution=engine, tools=TOOLS), tmp_path / "done"
    outcome = await guard.dispatch(
        "append", {"path": str(path), "text": "a"}, bodies.append, timeout_s=0.3
    )
    assert isinstance(outcome, ToolTimeout)
    assert not outcome.effect_unknown
    engine.results.delete(*engine.results.scan_iter("edictum:call:*"))
    worker = CeleryWorker(valkey, "--queues=late")
    try:
        assert (
            await guard.run("append", {"path": str(path), "text": "b"}, bodies.append, timeout_s=60)
            == "b"
        )
    finally:
        worker.stop()
        engine.close()
    assert [line.split()[1] for line in path.read_text().splitlines()] == ["b"]


async def test_without_a_worker_a_call_is_known_not_to_have_begun_and_with_a_dead_one_it_is_unknown(
    start_worker: Callable[[], CeleryWorker], worker: CeleryWorker, guard: Edictum, tmp_path: Path
) -> None:
    """All of a worker dies in a call: unknown. Nobody there: not begun, and a worker that comes
    later leaves it alone.
    """
    path = tmp_path / "done"
    args: dict[str, Any] = {"path": str(path), "text": "a", "then_sleep": 60}
    call = asyncio.ensure_future(guard.dispatch("append", args, bodies.append, timeout_s=6))
    await asyncio.to_thread(wait_until, path.exists)
    worker.kill()
    outcome = await call
    assert isinstance(outcome, ToolTimeout)
    assert outcome.effect_unknown
    assert outcome.body_may_be_running

    outcome = await guard.dispatch(
        "append", {"path": str(path), "text": "b"}, bodies.append, timeout_s=0.3
    )
    assert isinstance(outcome, ToolTimeout)
    assert not outcome.effect_unknown
    assert not outcome.body_may_be_running
    assert count_calls(guard) == (2, 0, 2, 0)

    start_worker()
    assert (
        await guard.run("append", {"path": str(path), "text": "c"}, bodies.append, timeout_s=30)
        == "c"
    )
    assert [line.split()[1] for line in path.read_text().splitlines()] == ["a", "c"]


async def test_a_broker_that_is_away_is_a_failure() -> None:
    """And one that came and went might have the call."""
    engine = CeleryEngine("celery://127.0.0.1:1/0")
    outcome = await Edictum(execution=engine).dispatch(
        "add", {"a": 1, "b": 2}, bodies.add, timeout_s=5
    )
    assert isinstance(outcome, ToolFailure)
    assert "the broker did not take the call" in outcome.error
    engine.close()
