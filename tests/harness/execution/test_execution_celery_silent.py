"""A broker that accepts connections and never answers: calls end all the same, and say that they do
not know.

The server is released only after the outcome is there, and the clients would wait for it for an
hour: a call that waited for an answer could not have ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("celery")

import celery_bodies as bodies
from celery import Celery
from execution_helpers import HERE, SilentServer

from edictum import Edictum, ToolFailure, ToolOutcome, ToolTimeout
from edictum.errors import BackendError
from edictum.execution import celery
from edictum.execution.celery import CeleryEngine
from edictum.execution.failures import NotStarted
from support.servers import NoServer, Valkey
from support.waiting import wait_until

AN_HOUR = "socket_timeout=3600"
ARGS = {"a": 1, "b": 2}


@pytest.fixture
def silent() -> Iterator[SilentServer]:
    server = SilentServer()
    yield server
    server.release()


def redis_app(port: int) -> Celery:
    return Celery(
        "silent",
        broker=f"redis://127.0.0.1:{port}/0",
        backend=f"redis://127.0.0.1:{port}/0?{AN_HOUR}",
    )


def amqp_app(port: int) -> Celery:
    backend = f"redis://127.0.0.1:{port}/0?{AN_HOUR}"
    return Celery(
        "silent",
        broker=f"amqp://127.0.0.1:{port}//",
        backend=backend,
        broker_connection_timeout=3_600,
    )


def guard_of(app: Celery | str) -> tuple[Edictum, CeleryEngine]:
    engine = CeleryEngine(app)
    return Edictum(execution=engine, tools={"add": {"side_effect": "write"}}), engine


def call_sync(guard: Edictum) -> ToolOutcome:
    return guard.dispatch_sync("add", ARGS, bodies.add, timeout_s=0.3)


def call_async(guard: Edictum) -> ToolOutcome:
    return asyncio.run(guard.dispatch("add", ARGS, bodies.add, timeout_s=0.3))


def outcome_of(call: Callable[[Edictum], ToolOutcome], guard: Edictum) -> Any:
    """In a thread: a call that does not end is a failure here, not a test that hangs."""
    outcomes: list[ToolOutcome] = []
    threading.Thread(target=lambda: outcomes.append(call(guard)), daemon=True).start()
    return wait_until(lambda: outcomes)[0]


@pytest.mark.parametrize("app", [redis_app, amqp_app])
@pytest.mark.parametrize("call", [call_sync, call_async])
def test_a_call_ends_without_an_answer_and_its_effect_is_unknown(
    silent: SilentServer, app: Callable[[int], Celery], call: Callable[[Edictum], ToolOutcome]
) -> None:
    """Whether a worker has it cannot be known, so nobody says that it was not started."""
    guard, engine = guard_of(app(silent.port))
    outcome = outcome_of(call, guard)
    assert engine.hung == 1
    wait_until(silent.heard.is_set)
    assert isinstance(outcome, ToolTimeout)
    assert outcome.effect_unknown
    assert outcome.body_may_be_running
    totals = guard.session().snapshot().totals
    assert (totals.executions, totals.failures, totals.in_flight) == (1, 1, 0)


@pytest.mark.parametrize("call", [call_sync, call_async])
def test_when_only_the_broker_is_silent_the_call_is_withdrawn(
    silent: SilentServer, valkey: str, call: Callable[[Edictum], ToolOutcome]
) -> None:
    """The claim is made where the answers are, and no worker begins a call that is claimed: this is
    known.
    """
    guard, engine = guard_of(
        Celery("silent", broker=f"redis://127.0.0.1:{silent.port}/0", backend=valkey)
    )
    outcome = outcome_of(call, guard)
    assert engine.hung == 1
    assert isinstance(outcome, ToolTimeout)
    assert not outcome.effect_unknown
    assert not outcome.body_may_be_running
    engine.close()


def test_calls_that_hang_are_counted_and_too_many_are_refused(
    silent: SilentServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each holds a thread, until the connection ends."""
    monkeypatch.setattr(celery, "MAX_HUNG", 2)
    guard, engine = guard_of(redis_app(silent.port))
    for _ in range(2):
        assert isinstance(outcome_of(call_sync, guard), ToolTimeout)
    outcome = outcome_of(call_async, guard)
    assert isinstance(outcome, ToolFailure)
    assert isinstance(outcome.exception, NotStarted)
    assert not outcome.effect_unknown
    assert engine.hung == 2
    silent.release()
    wait_until(lambda: engine.hung == 0)


def test_a_cancelled_caller_does_not_wait_for_the_broker(silent: SilentServer) -> None:
    guard, _ = guard_of(redis_app(silent.port))

    async def cancelled() -> bool:
        call = asyncio.ensure_future(guard.run("add", ARGS, bodies.add, timeout_s=3_600))
        await asyncio.to_thread(silent.heard.wait)
        call.cancel()
        await asyncio.wait((call,))
        return call.cancelled()

    ended: list[bool] = []
    threading.Thread(target=lambda: ended.append(asyncio.run(cancelled())), daemon=True).start()
    assert wait_until(lambda: ended) == [True]


@contextlib.contextmanager
def program(silent: SilentServer, timeout_s: float) -> Iterator[subprocess.Popen[str]]:
    broker = f"redis://127.0.0.1:{silent.port}/0"
    command = [sys.executable, "silent_caller.py", broker, f"{broker}?{AN_HOUR}", str(timeout_s)]
    process = subprocess.Popen(
        command, cwd=HERE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_nothing_keeps_the_program_from_ending(silent: SilentServer) -> None:
    """No thread and no connection: the server is silent until the program is gone."""
    with program(silent, 0.3) as process:
        said, complaints = process.communicate(timeout=60)
        assert (said, complaints, process.returncode) == ("ToolTimeout\n", "", 0)


def test_a_program_can_be_interrupted(silent: SilentServer) -> None:
    """Ctrl-C while the broker is silent: to withdraw the call is tried, not waited for."""
    with program(silent, 3_600) as process:
        wait_until(silent.heard.is_set)
        process.send_signal(signal.SIGINT)
        _, complaints = process.communicate(timeout=60)
        assert process.returncode == -signal.SIGINT
        assert complaints.rstrip().endswith("KeyboardInterrupt")


def test_a_broker_that_was_restarted_is_asked_over_a_new_connection() -> None:
    """The one that was kept says nothing about the workers."""
    try:
        broker = Valkey(durable=False)
    except (NoServer, OSError) as exc:
        pytest.skip(str(exc))
    engine = CeleryEngine(broker.url.replace("redis", "celery", 1))
    try:
        for _ in range(3):
            with pytest.raises(BackendError, match="No Celery worker answers within"):
                engine.check(0.05)
            broker.kill()
            broker.start()
        broker.kill()
        with pytest.raises(BackendError, match="The broker of Celery does not answer"):
            engine.check(0.05)
    finally:
        engine.close()
        broker.stop()
