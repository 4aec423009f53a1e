"""A sink as guards use it: how it is given events, how many may wait, and whether it fails.

A sink that may block is written to by one thread at a time, in the order in which its events came;
what waits for its answer is the call, not the event loop. Guards that share a sink share its port,
and so its order.

``max_waiting`` events may wait for a sink. When there are more, calls wait for room, in their
order. With ``when_full = "drop"`` calls do not wait for the sink at all: an event that finds no
room is dropped, counted, and written down as a number in the sink itself once there is room again.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from typing import Any

from edictum._logs import AUDIT_DROPPED, AUDIT_FAILED, AUDIT_WRITES_AGAIN, log
from edictum.audit._room import Room
from edictum.audit.sinks import AuditSink, emitter_of
from edictum.core.decide import describe
from edictum.core.decision import USER_ERRORS, Failed
from edictum.core.events import Entry, make_drop_event
from edictum.errors import EdictumConfigError
from edictum.execution.captured import capture_call, close, uncapture
from edictum.execution.failures import NotStarted
from edictum.execution.forks import call_in_child, protect
from edictum.execution.portal import PORTAL
from edictum.execution.threads import DaemonPool
from edictum.execution.waiting import wait_done

MAX_WAITING = 10_000  # events for one sink
WHEN_FULL = ("block", "drop")
WRITER_THREADS = DaemonPool("edictum-audit")


def can_block(sink: Any) -> bool:
    """Return whether a sink must not be called in an event loop: as its attribute ``blocking``
    says, or else if its ``emit`` is an ordinary function.
    """
    said = getattr(sink, "blocking", None)
    if said is not None:
        return bool(said)
    emit = sink.emit
    return not (iscoroutinefunction(emit) or iscoroutinefunction(type(emit).__call__))


class Writer:
    """Calls functions in a thread, one after the other, in the order in which they were given.

    The thread is of a pool, and goes back to it when nothing is left to do.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reset()
        protect(self)
        call_in_child(self._reset)

    def _reset(self) -> None:
        """Start anew: what waits when a process forks is written by the parent."""
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._busy = False

    def submit(self, function: Callable[[], Any]) -> Future[Any]:
        """Return a future of what the function returns, or a ``Failed`` with what it raises."""
        future: Future[Any] = Future()
        with self._lock:
            self._waiting.append((future, function))
            starts, self._busy = not self._busy, True
        if starts:
            try:
                WRITER_THREADS.submit(self._work)
            except NotStarted as exc:
                self._fail_all(exc)
        return future

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._busy = False
                    return
                future, function = self._waiting.popleft()
            future.set_result(capture_call(function))
            del future, function  # release the last event while waiting

    def _fail_all(self, exc: Exception) -> None:
        with self._lock:
            failed, self._busy = list(self._waiting), False
            self._waiting.clear()
        for future, _ in failed:
            future.set_result(Failed(exc))


class SinkPort:
    """One sink.

    ``emit`` gives it an event and returns an awaitable if that has to be waited for. A failure is
    logged when it begins, and again when it is over: there may be thousands of calls in between.
    """

    def __init__(self, sink: AuditSink) -> None:
        self.sink = sink
        self._call_emit = emitter_of(sink)
        self._writer = Writer() if can_block(sink) else None
        self.failures = 0  # since it last took an event
        self.problem = ""  # why it did not take the newest one
        self.dropped = 0  # events that found no room
        self._dropped_unsaid = 0  # of those, how many were not reported to the sink
        self._lock = threading.Lock()
        protect(self)
        when_full, size = check_waiting(sink)
        self.drops = when_full == "drop"
        self._room = Room(size)
        is_bounded = self._writer is not None or self.drops or hasattr(sink, "max_waiting")
        if self.drops:
            self.emit: Callable[[Any], Awaitable[None] | None] = self._emit_or_drop
        else:
            self.emit = self._emit_in_room if is_bounded else self._call_emit
        takes_entries = hasattr(sink.emit, "takes_entries")  # an override has no mark
        is_direct = not self.drops and not is_bounded and takes_entries
        self.writes_at_once = is_direct and bool(getattr(sink, "writes_at_once", False))

    @property
    def name(self) -> str:
        return type(self.sink).__name__

    @property
    def is_required(self) -> bool:
        return bool(getattr(self.sink, "required", True))

    def join_ledger(self, ledger: Any) -> bool:
        """Return whether the ledger writes the events of its steps to this sink, in the same
        transactions.
        """
        join = getattr(self.sink, "join_ledger", None)
        return join is not None and bool(join(ledger))

    def prepare(self, entry: Entry) -> Any:
        """Return an event in the form in which the ledger writes it."""
        sink: Any = self.sink
        return sink.prepare(entry)

    def _emit_in_room(self, event: Any) -> Awaitable[None]:
        give = self._prepare(event)
        return self._start(give) if self._room.try_take() else self._wait_and_start(give)

    def _prepare(self, event: Any) -> Callable[[], Any]:
        """Return the function that gives the event to the sink, wherever it is called."""
        if self._writer is None and not self.drops:
            return partial(self._call_emit, event)
        if isinstance(event, Entry):
            event.to_json()  # here, because the parts of a line are shared by the events of a call
        return partial(copy_context().run, self._call_emit, event)

    def _start(self, give: Callable[[], Any]) -> Awaitable[None]:
        """Give the sink an event that has its place; it leaves the place when it is written."""
        if self._writer is None:
            return PlacedEvent(give, self._room)
        future = self._writer.submit(give)
        future.add_done_callback(lambda _: self._room.give_back())
        return _await_answer(self, future)

    async def _wait_and_start(self, give: Callable[[], Any]) -> None:
        await wait_done(self._room.join_line())
        await self._start(give)

    # --- Without waiting --------------------------------------------------------------------------

    def _emit_or_drop(self, event: Any) -> None:
        if not self._room.try_take():
            self._note_drop()
            return
        if self._dropped_unsaid and self._room.try_take():
            self._send(self._take_drop_event())
        self._send(event)

    def _send(self, event: Any) -> None:
        """Give the sink an event that has its place, without waiting for the sink."""
        try:
            give = self._prepare(event)
            if self._writer is None:
                sent = PORTAL.start(_finish(give))
            else:
                sent = self._writer.submit(give)
        except Exception as exc:  # such as a thread that cannot be started
            self._room.give_back()
            self.note_failure(exc)
        else:
            sent.add_done_callback(self._note_end)

    def _note_end(self, ended: Future[Any]) -> None:
        self._room.give_back()
        answer = ended.result()
        if type(answer) is Failed:
            self.note_failure(answer.error)
        elif self.failures:
            self.note_success()

    def _note_drop(self) -> None:
        with self._lock:
            self.dropped += 1
            self._dropped_unsaid += 1
            is_first = self._dropped_unsaid == 1
        if is_first:
            log(
                AUDIT_DROPPED,
                "audit sink %s has %d events waiting; further ones are dropped.",
                self.name,
                self._room.size,
                sink=self.name,
            )

    def _take_drop_event(self) -> Any:
        with self._lock:
            dropped, self._dropped_unsaid = self._dropped_unsaid, 0
        return make_drop_event(time.time(), dropped, self._room.size)

    # --- The end ----------------------------------------------------------------------------------

    def close(self) -> Awaitable[None] | None:
        """Close the sink, after all events that it was given."""
        close = getattr(self.sink, "close", None)
        if self.drops:
            return self._close_when_empty(close)
        if close is None:
            return None
        if self._writer is not None:
            return self._start(close) if self._room.try_take() else self._wait_and_start(close)
        closing: Awaitable[None] | None = close()
        return closing

    async def _close_when_empty(self, close: Callable[[], Any] | None) -> None:
        await wait_done(self._room.await_empty())
        if self._dropped_unsaid and self._room.try_take():
            self._send(self._take_drop_event())
            await wait_done(self._room.await_empty())
        closing = None if close is None else close()
        if isawaitable(closing):
            await closing

    def note_failure(self, exc: BaseException) -> None:
        with self._lock:
            self.failures += 1
            self.problem = describe(exc)
            is_first = self.failures == 1
        if is_first:
            log(
                AUDIT_FAILED,
                "audit sink %s failed; %s until it can be written again: %s",
                self.name,
                "calls are denied"
                if self.is_required and not self.drops
                else "its events are lost",
                self.problem,
                sink=self.name,
            )

    def note_success(self) -> None:
        with self._lock:
            failures, self.failures, self.problem = self.failures, 0, ""
        if failures:
            log(
                AUDIT_WRITES_AGAIN,
                "audit sink %s can be written again; it had failed for %d events.",
                self.name,
                failures,
                sink=self.name,
            )


class PlacedEvent:
    """An event for a sink that is awaited, and that leaves its place when it is written or given
    up.
    """

    __slots__ = ("_pending", "_room")

    def __init__(self, give: Callable[[], Any], room: Room) -> None:
        self._room: Room | None = room
        try:
            self._pending = give()
        except BaseException:
            self._leave()
            raise

    def __await__(self) -> Generator[Any, Any, None]:
        try:
            if isawaitable(self._pending):
                yield from self._pending.__await__()
        finally:
            self._leave()

    def close(self) -> None:
        close(self._pending)
        self._leave()

    def _leave(self) -> None:
        room, self._room = self._room, None
        if room is not None:
            room.give_back()


async def _finish(give: Callable[[], Any]) -> None:
    pending = give()
    if isawaitable(pending):
        await pending


def check_waiting(sink: Any) -> tuple[str, int]:
    """Return what becomes of an event that finds no room, "block" or "drop", and how many events
    have room.
    """
    when_full = getattr(sink, "when_full", "block")
    if when_full not in WHEN_FULL:
        hint = 'Use "block", so that calls wait, or "drop".'
        raise EdictumConfigError(f"when_full of an audit sink is {when_full!r}.", hint=hint)
    size = getattr(sink, "max_waiting", MAX_WAITING)
    if not isinstance(size, int) or size < 1:
        raise EdictumConfigError(
            f"max_waiting of an audit sink is {size!r}.", hint="Use 1 or more."
        )
    return when_full, size


async def _await_answer(port: SinkPort, future: Future[Any]) -> None:
    """Wait for a sink's answer from its thread. The port is kept alive meanwhile."""
    await wait_done(future)
    answer = future.result()
    if type(answer) is Failed and not isinstance(answer.error, USER_ERRORS):
        # a KeyboardInterrupt in a thread was not a user at the keyboard
        error = answer.error
        raise RuntimeError(f"{type(error).__name__}: {describe(error)}") from error
    answer = uncapture(answer)
    if isawaitable(answer):
        await answer


class SinkPorts:
    """The ports of all sinks that are in use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        protect(self)
        # A port keeps its sink, so no id is used anew while its port is here.
        self._by_id: weakref.WeakValueDictionary[int, SinkPort] = weakref.WeakValueDictionary()

    def find(self, sink: AuditSink) -> SinkPort:
        """Return the port of a sink: the same one for as long as it is in use."""
        with self._lock:
            port = self._by_id.get(id(sink))
            if port is None:
                port = self._by_id[id(sink)] = SinkPort(sink)
            return port


PORTS = SinkPorts()
