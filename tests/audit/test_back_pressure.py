"""More events than a sink can take: calls wait for room, or events are dropped and counted."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

from edictum import AuditEvent, CompositeSink, Edictum, EdictumConfigError, ToolDenied
from edictum.audit import SqliteAuditSink, _room, query
from support.waiting import wait_until


class HeldSink:
    """Takes no event until it is released; in a thread, or awaited."""

    max_waiting = 3
    when_full = "block"

    def __init__(self) -> None:
        self.events: list[AuditEvent] = []
        self.released = threading.Event()
        self.entered = 0

    def emit(self, event: AuditEvent) -> None:
        self.entered += 1
        assert self.released.wait(30)
        self.events.append(event)


class AwaitedSink(HeldSink):
    given = 0

    async def emit(self, event: AuditEvent) -> None:  # type: ignore[override]  # the other kind
        self.entered += 1
        place, self.given = self.given, self.given + 1
        while not self.released.is_set() or len(self.events) < place:  # noqa: ASYNC110  # in order
            await asyncio.sleep(0.001)
        self.events.append(event)


SINKS = [HeldSink, AwaitedSink]


def drop(sink: Any) -> Any:
    sink.when_full = "drop"
    return sink


async def call_at_once(guard: Edictum, sink: HeldSink, calls: int) -> list[Any]:
    """Make calls, and release the sink when each of them waits."""
    names = [f"t-{number}" for number in range(calls)]
    calling = [asyncio.create_task(guard.dispatch(name, {}, lambda: 1)) for name in names]
    await asyncio.to_thread(wait_until, lambda: sink.entered)
    await asyncio.sleep(0)
    assert not any(task.done() for task in calling)
    sink.released.set()
    return await asyncio.gather(*calling)


# --- Calls wait -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SINKS)
async def test_calls_wait_for_room_in_their_order(kind: type[HeldSink]) -> None:
    """Nothing is refused, nothing is lost."""
    sink = kind()
    guard = Edictum(audit_sink=sink)
    outcomes = await call_at_once(guard, sink, 20)
    assert not any(isinstance(outcome, ToolDenied) for outcome in outcomes)
    allowed = [event.tool_name for event in sink.events if event.action == "call_allowed"]
    assert allowed == [f"t-{number}" for number in range(20)]
    assert len(sink.events) == 40
    assert guard.stats().audit_dropped == 0


async def test_no_more_than_that_wait_for_a_sink_that_is_awaited() -> None:
    """The others wait for room, before the sink is asked."""
    sink = AwaitedSink()
    await call_at_once(Edictum(audit_sink=sink), sink, 1)
    sink.released.clear()
    sink.entered = 0
    guard = Edictum(audit_sink=sink)
    calling = [asyncio.create_task(guard.dispatch("t", {}, lambda: 1)) for _ in range(10)]
    for _ in range(20):
        await asyncio.sleep(0)
    assert sink.entered == sink.max_waiting
    sink.released.set()
    await asyncio.gather(*calling)


async def test_the_line_before_a_sink_that_hangs_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What comes then is refused: cancelled callers leave their events behind."""
    monkeypatch.setattr(_room, "MAX_LINE", 2)
    sink = HeldSink()
    guard = Edictum(audit_sink=sink)
    calling = [asyncio.create_task(guard.dispatch("t", {}, lambda: 1)) for _ in range(9)]
    done, waiting = await asyncio.wait(calling, return_when=asyncio.FIRST_COMPLETED)
    while len(done) < 4:
        more, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        done |= more
    sink.released.set()
    await asyncio.gather(*waiting)
    refused = [task.result() for task in calling if isinstance(task.result(), ToolDenied)]
    assert len(refused) >= 4  # three have their place, two are in line
    assert all("does not return" in outcome.details for outcome in refused)


@pytest.mark.parametrize("kind", SINKS)
async def test_a_caller_that_is_cancelled_in_line_leaves_its_event_to_be_written(
    kind: type[HeldSink],
) -> None:
    """The tool has not run, and the audit says how the call ended."""
    sink, bodies = kind(), []
    sink.max_waiting = 1
    guard = Edictum(audit_sink=sink)
    first = asyncio.create_task(guard.dispatch("first", {}, lambda: 1))
    second = asyncio.create_task(guard.dispatch("second", {}, lambda: bodies.append(1)))
    await asyncio.to_thread(wait_until, lambda: sink.entered)
    second.cancel()
    await asyncio.sleep(0)
    sink.released.set()
    with pytest.raises(asyncio.CancelledError):
        await second
    await first
    await guard.close()
    assert bodies == []
    told = [event.action for event in sink.events if event.tool_name == "second"]
    assert told == ["call_allowed", "call_denied"]


# --- Events are dropped ---------------------------------------------------------------------------


@pytest.mark.parametrize("composite", [False, True])
@pytest.mark.parametrize("kind", SINKS)
async def test_a_sink_that_drops_never_lets_a_call_wait(
    kind: type[HeldSink], composite: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """What it has no room for is counted, logged once, and written down where it is missing."""
    sink = drop(kind())
    guard = Edictum(audit_sink=CompositeSink([sink]) if composite else sink)
    for number in range(5):
        await guard.dispatch(f"t-{number}", {}, lambda: 1)
    assert sink.events == []
    sink.released.set()
    await asyncio.to_thread(wait_until, lambda: len(sink.events) == 3)
    for number in (5, 6):
        await guard.dispatch(f"t-{number}", {}, lambda: 1)
        await asyncio.to_thread(wait_until, lambda n=number: sink.events[-1].tool_name == f"t-{n}")
    await guard.close()
    told = [event.tool_name or event.reason for event in sink.events]
    note = "7 events were dropped here: 3 were waiting for this sink."
    assert told[:5] == ["t-0", "t-0", "t-1", note, "t-5"]
    assert "t-6" in told
    if not composite:
        assert guard.stats().audit_dropped == 7
    logged = [it for it in caplog.records if "further ones are dropped" in it.getMessage()]
    assert [it.levelno for it in logged] == [logging.ERROR]


@pytest.mark.parametrize("kind", SINKS)
def test_what_is_dropped_last_is_written_down_when_the_guard_is_closed(
    kind: type[HeldSink],
) -> None:
    """From a host that cannot await, too."""
    sink = drop(kind())
    guard = Edictum(audit_sink=sink)
    for _ in range(3):
        guard.dispatch_sync("t", {}, lambda: 1)
    assert guard.stats().audit_dropped == 3

    async def close() -> None:
        closing = asyncio.create_task(guard.close())
        await asyncio.sleep(0)
        sink.released.set()
        await closing

    asyncio.run(close())
    assert [event.action for event in sink.events] == [
        "call_allowed",
        "call_executed",
        "call_allowed",
        "events_dropped",
    ]


def test_a_sink_that_drops_and_fails_stops_no_call(caplog: pytest.LogCaptureFixture) -> None:
    """Its failure is logged only."""

    class Failing:
        when_full = "drop"

        def emit(self, event: AuditEvent) -> None:
            raise OSError("disk full")

    guard = Edictum(audit_sink=Failing())
    assert not isinstance(guard.dispatch_sync("t", {}, lambda: 1), ToolDenied)
    asyncio.run(guard.close())
    (logged,) = [it.getMessage() for it in caplog.records if "disk full" in it.getMessage()]
    assert "its events are lost" in logged


async def test_a_database_that_drops(tmp_path: Any) -> None:
    """Every call is in the log, or counted as dropped."""
    url = f"sqlite:///{tmp_path}/audit.db"
    sink = SqliteAuditSink(tmp_path / "audit.db", when_full="drop", max_waiting=5)
    guard = Edictum(audit_sink=sink)
    await asyncio.gather(*(guard.dispatch("t", {}, lambda: 1) for _ in range(100)))
    dropped = guard.stats().audit_dropped
    await guard.close()
    events = list(query(url))
    written = [event for event in events if event["action"] != "events_dropped"]
    assert len(written) + dropped == 200
    told = [event["reason"] for event in query(url, action="events_dropped")]
    assert sum(int(reason.split()[0]) for reason in told) == dropped


@pytest.mark.parametrize("said", [{"when_full": "wait"}, {"max_waiting": 0}])
def test_a_setting_that_means_nothing_is_refused(said: dict[str, Any], tmp_path: Any) -> None:
    """By the sink itself, or by the guard that is given it."""
    with pytest.raises(EdictumConfigError):
        SqliteAuditSink(tmp_path / "audit.db", **said)
    sink = HeldSink()
    for name, value in said.items():
        setattr(sink, name, value)
    with pytest.raises(EdictumConfigError):
        Edictum(audit_sink=sink)
