"""A sink as guards use it: how it is given events, and whether it fails.

A sink that may block is written to by one thread at a time, in the order in which its events came;
what waits for its answer is the call, not the event loop. Guards that share a sink share its port,
and so its order.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from typing import Any

from edictum._logs import AUDIT_FAILED, AUDIT_WRITES_AGAIN, log
from edictum.audit.sinks import AuditSink, emitter_of
from edictum.core.decide import describe
from edictum.core.decision import USER_ERRORS, Failed
from edictum.core.events import Entry
from edictum.errors import BackendError
from edictum.execution.failures import NotStarted
from edictum.execution.forks import call_in_child, protect
from edictum.execution.threads import DaemonPool
from edictum.execution.waiting import capture_call, uncapture, wait_done

MAX_WAITING = 10_000  # events for one sink that hangs
WRITER_THREADS = DaemonPool("edictum-audit")


def can_block(sink: Any) -> bool:
    """Return whether a sink must not be called in an event loop: what it says of itself as
    ``blocking``, or else whether its ``emit`` is an ordinary function.
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
            if len(self._waiting) >= MAX_WAITING:
                raise BackendError(f"{MAX_WAITING:,} events wait for a sink that does not return.")
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
                future, function = self._waiting[0]
            answer = capture_call(function)
            with self._lock:
                self._waiting.popleft()  # what is being written counts as waiting until now
            future.set_result(answer)
            del (
                future,
                function,
                answer,
            )  # hold nothing of the last event while the next one is written

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
        self.emit = self._call_emit if self._writer is None else self._emit_in_thread
        self.failures = 0  # since it last took an event
        self.problem = ""  # why it did not take the newest one
        self._lock = threading.Lock()
        protect(self)

    @property
    def name(self) -> str:
        return type(self.sink).__name__

    @property
    def is_required(self) -> bool:
        return bool(getattr(self.sink, "required", True))

    def _emit_in_thread(self, event: Any) -> Awaitable[None]:
        if isinstance(event, Entry):
            event.to_json()  # here, because the parts of a line are shared by the events of a call
        return self._submit(partial(copy_context().run, self._call_emit, event))

    def _submit(self, function: Callable[[], Any]) -> Awaitable[None]:
        assert self._writer is not None
        return _await_answer(self, self._writer.submit(function))

    def close(self) -> Awaitable[None] | None:
        """Close the sink, behind all events that it was given."""
        close = getattr(self.sink, "close", None)
        if close is None:
            return None
        if self._writer is not None:
            return self._submit(close)
        closing: Awaitable[None] | None = close()
        return closing

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
                "calls are denied" if self.is_required else "its events are lost",
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


async def _await_answer(port: SinkPort, future: Future[Any]) -> None:
    """Wait for what a sink answers in its thread. The port is kept for as long as that takes."""
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
