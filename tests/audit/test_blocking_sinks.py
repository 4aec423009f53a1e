"""Sinks that block: they hold no event loop, events stay in order, and a call waits for its own."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from edictum import (
    AuditEvent,
    CompositeSink,
    Edictum,
    FileAuditSink,
    StdoutAuditSink,
    ToolDenied,
    ToolExecutionResult,
)
from edictum.audit._ports import can_block
from edictum.testing import RecordingSink
from support.effort import SOAK, effort

CALLS = effort(3, soak=6)
BLOCKS_S = effort(5, soak=50) / 100


class PlainSink:
    """Notes what it is given and in which thread; ``wait`` is called before."""

    def __init__(self) -> None:
        self.events: list[AuditEvent] = []
        self.threads: set[int] = set()
        self.at_once = 0
        self.most_at_once = 0
        self.closed = False

    def wait(self) -> None:
        pass

    def emit(self, event: AuditEvent) -> None:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.threads.add(threading.get_ident())
        try:
            self.wait()
            self.events.append(event)
        finally:
            self.at_once -= 1

    def close(self) -> None:
        self.closed = True


class HeldSink(PlainSink):
    """Blocks until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()

    def wait(self) -> None:
        assert self.released.wait(30), "nothing else ran while the sink blocked"


class SlowSink(PlainSink):
    def wait(self) -> None:
        time.sleep(BLOCKS_S)


def wrap(sink: Any, composite: bool) -> Any:
    return CompositeSink([sink]) if composite else sink


@pytest.mark.parametrize("composite", [False, True])
async def test_the_event_loop_goes_on_while_a_sink_blocks(composite: bool) -> None:
    """And the tool does not run before its event is written."""
    sink, bodies = HeldSink(), []
    guard = Edictum(audit_sink=wrap(sink, composite))
    calling = asyncio.create_task(guard.dispatch("t", {}, lambda: bodies.append(len(sink.events))))
    for _ in range(10):
        await asyncio.sleep(0.001)
    assert (bodies, sink.events) == ([], [])
    sink.released.set()
    assert isinstance(await calling, ToolExecutionResult)
    assert bodies == [1]
    assert [event.action for event in sink.events] == ["call_allowed", "call_executed"]
    assert threading.get_ident() not in sink.threads


async def measure_gaps(work: Awaitable[Any]) -> list[tuple[float, float]]:
    """Return for how long the event loop did not turn while this was awaited, in ms, and how much
    of it its thread was running: the rest it waited for a core, or was blocked.
    """
    gaps, ended = [], False

    async def tick() -> None:
        while not ended:
            wall, own = time.perf_counter(), time.thread_time()
            await asyncio.sleep(0.001)
            late = time.perf_counter() - wall - 0.001
            gaps.append((late * 1e3, (time.thread_time() - own) * 1e3))

    ticking = asyncio.create_task(tick())
    await work
    ended = True
    await ticking
    return gaps


def describe_gaps(gaps: list[tuple[float, float]]) -> str:
    late = sorted(wall for wall, _ in gaps)
    own = max(own for _, own in gaps)
    return f"p99 {late[len(late) * 99 // 100]:.1f} ms, max {late[-1]:.1f} ms; its own work {own:.1f} ms"


@pytest.mark.soak
async def test_how_long_a_slow_sink_holds_the_event_loop() -> None:
    """Printed, and not asserted, beside a loop that does nothing on the same machine; the order of
    events is asserted.
    """
    Edictum(audit_sink=RecordingSink()).dispatch_sync("t", {}, lambda: 1)  # builds what is cached
    sink = SlowSink()
    guard = Edictum(audit_sink=sink)
    ids = [f"c-{number}" for number in range(CALLS)]
    calls = [guard.dispatch("t", {}, lambda: 1, call_id=each) for each in ids]
    held = await measure_gaps(asyncio.gather(*calls))
    allowed = [event.call_id for event in sink.events if event.action == "call_allowed"]
    executed = [event.call_id for event in sink.events if event.action == "call_executed"]
    assert allowed == executed == ids
    assert sink.most_at_once == 1
    if SOAK:
        idle = await measure_gaps(asyncio.sleep(2 * CALLS * BLOCKS_S))
        print(f"\na sink that blocks for {BLOCKS_S} s held the event loop: {describe_gaps(held)}")
        print(f"a loop that does nothing was held: {describe_gaps(idle)}")


async def test_guards_that_share_a_sink_share_its_order() -> None:
    """One event at a time, in the order in which the calls were made; after a reload, too."""
    sink = SlowSink()
    guards = [Edictum(audit_sink=sink) for _ in range(3)]
    ids = [f"c-{number}" for number in range(9)]
    calls = [
        guards[number % 3].dispatch("t", {}, lambda: 1, call_id=each)
        for number, each in enumerate(ids)
    ]
    await asyncio.gather(*calls)
    assert sink.most_at_once == 1
    assert [event.call_id for event in sink.events if event.action == "call_allowed"] == ids


def test_threads_and_their_context_variables() -> None:
    """A synchronous caller waits as well, and a sink sees the variables of the caller."""
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="none")
    seen = []

    class Sink(PlainSink):
        def wait(self) -> None:
            seen.append(variable.get())

    sink = Sink()
    guard = Edictum(audit_sink=sink)
    variable.set("request 7")
    assert isinstance(guard.dispatch_sync("t", {}, lambda: 1), ToolExecutionResult)
    assert seen == ["request 7", "request 7"]
    assert len(sink.events) == 2


def test_what_a_blocking_sink_cannot_write_does_not_happen() -> None:
    """A failure in its thread is the call's, a stop in it included."""
    for error in (OSError("disk full"), KeyboardInterrupt(), StopIteration("odd")):

        class Failing(PlainSink):
            def wait(self, error: BaseException = error) -> None:
                raise error

        outcome = Edictum(audit_sink=Failing()).dispatch_sync("t", {}, lambda: 1)
        assert isinstance(outcome, ToolDenied)
        assert outcome.decision_source == "audit"


async def test_a_cancelled_caller_leaves_its_event_to_be_written() -> None:
    """The tool has not run, and the audit says how the call ended."""
    sink, bodies = HeldSink(), []
    guard = Edictum(audit_sink=sink)
    calling = asyncio.create_task(guard.dispatch("t", {}, lambda: bodies.append(1)))
    await asyncio.sleep(0.01)
    calling.cancel()
    await asyncio.sleep(0.01)
    sink.released.set()
    with pytest.raises(asyncio.CancelledError):
        await calling
    await guard.close()
    assert sink.closed
    assert bodies == []
    assert [event.action for event in sink.events] == ["call_allowed", "call_denied"]


async def test_a_guard_closes_a_sink_behind_its_events() -> None:
    """Even behind those whose callers have stopped waiting."""
    order = []

    class Sink(HeldSink):
        def wait(self) -> None:
            super().wait()
            order.append("event")

        def close(self) -> None:
            order.append("close")

    sink = Sink()
    guard = Edictum(audit_sink=sink)
    calling = asyncio.create_task(guard.dispatch("t", {}, lambda: 1))
    await asyncio.sleep(0.01)
    closing = asyncio.create_task(guard.close())
    await asyncio.sleep(0.01)
    sink.released.set()
    await closing
    assert order[:2] == ["event", "close"]
    await calling


FORKED = """
import os, sys
from edictum import Edictum

class Sink:
    def emit(self, event):
        with open(sys.argv[1], "a") as file:
            file.write(f"{event.action}\\n")

guard = Edictum(audit_sink=Sink())
guard.dispatch_sync("t", {}, lambda: 1)
child = os.fork()
guard.dispatch_sync("t", {}, lambda: 1)
if child:
    assert os.waitpid(child, 0)[1] == 0
"""


def test_a_forked_child_writes_with_a_thread_of_its_own(tmp_path: Path) -> None:
    """The parent's thread is not there after a fork, and its events are the parent's to write."""
    path = tmp_path / "events"
    command = [sys.executable, "-W", "ignore", "-c", FORKED, str(path)]
    subprocess.run(command, check=True, timeout=60)
    assert sorted(path.read_text().split()) == ["call_allowed"] * 3 + ["call_executed"] * 3


def test_which_sinks_are_taken_to_block(tmp_path: Path) -> None:
    """Ordinary functions, and a file that is synchronised; unless the sink says otherwise."""

    class Asynchronous:
        async def emit(self, event: AuditEvent) -> None: ...

    class CallableEmit:
        emit = staticmethod(lambda event: None)

    class SaysNo(CallableEmit):
        blocking = False

    assert [can_block(sink) for sink in (PlainSink(), CallableEmit())] == [True, True]
    assert can_block(FileAuditSink(tmp_path / "a", fsync=True))
    quick = [Asynchronous(), SaysNo(), RecordingSink(), StdoutAuditSink()]
    quick += [FileAuditSink(tmp_path / "a"), CompositeSink([PlainSink()])]
    assert not any(map(can_block, quick))


def test_a_sink_that_says_it_does_not_block_is_called_where_the_call_is_made() -> None:
    """It is spared the hop to a thread."""
    sink = PlainSink()
    sink.blocking = False  # type: ignore[attr-defined]  # what a user's class says
    Edictum(audit_sink=sink).dispatch_sync("t", {}, lambda: 1)
    assert sink.threads == {threading.get_ident()}


# --- What is logged -------------------------------------------------------------------------------


@pytest.mark.parametrize("composite", [False, True])
@pytest.mark.parametrize("blocking", [False, True])
def test_a_failure_is_logged_when_it_begins_and_when_it_is_over(
    composite: bool, blocking: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Not with each call that it stops."""

    class Sink:
        fails = True

        def emit(self, event: AuditEvent) -> None:
            if self.fails:
                raise OSError("disk full")

    sink = Sink()
    sink.blocking = blocking  # type: ignore[attr-defined]  # what a user's class says
    guard = Edictum(audit_sink=wrap(sink, composite))
    for fails in (True, False, True):
        Sink.fails = fails
        for _ in range(3):
            guard.dispatch_sync("t", {}, lambda: 1)
    said = [(record.levelno, record.getMessage()) for record in caplog.records]
    begins = "audit sink Sink failed; calls are denied until it can be written again: disk full"
    ends = "audit sink Sink can be written again; it had failed for 6 events."
    assert [each for each in said if "audit sink Sink " in each[1]] == [
        (logging.ERROR, begins),
        (logging.WARNING, ends),
        (logging.ERROR, begins),
    ]
    assert len(said) == 3
