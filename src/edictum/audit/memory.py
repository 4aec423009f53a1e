"""CollectingAuditSink: events in memory, in a ring."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from edictum._audit_event import AuditAction, AuditEvent
from edictum.audit._filters import EventData, EventFilter
from edictum.audit._reading import LogReading, filter_events
from edictum.core.events import Closing, Entry, event_from_json
from edictum.core.freeze import is_large
from edictum.core.limits import Counters
from edictum.core.redaction import shorten
from edictum.core.values import dumps
from edictum.errors import EdictumError
from edictum.execution.forks import protect

DEFAULT_EVENTS = 10_000
LAST_CALLS = 5  # that a person is shown
MAX_SHOWN_ARGS = 300  # characters of their arguments
OPENING_FIELDS = 7  # of an event that does not end a call
DEFAULT_BYTES = 16 * 1024 * 1024  # of events that are kept as lines

# (at, context, action, call, decision, attempts, executions), and for a closing event the fields of
# its Closing behind these. It costs a sixth of an Entry, and few events are ever read. Only calls
# with small arguments are kept so: it keeps them as they are.
RawEvent: TypeAlias = tuple[Any, ...]
# A line of JSON, redacted and bounded, for events whose call has large arguments.
Kept: TypeAlias = RawEvent | Entry | AuditEvent | str


class MarkEvictedError(EdictumError):
    """Events after the mark are no longer in the buffer."""

    code = "mark_evicted"


class CollectingAuditSink:
    """Keeps the newest ``max_events`` events; they are made when they are read.

    Events whose call has large arguments are kept as they are written to a file, redacted and
    bounded, ``max_bytes`` of them at most. Appending to a deque is atomic, so taking a small event
    needs no lock; what exceeds the size is dropped in batches.
    """

    def __init__(self, max_events: int = DEFAULT_EVENTS, max_bytes: int = DEFAULT_BYTES) -> None:
        if max_events < 1:
            raise ValueError(f"max_events is {max_events}; use 1 or more")
        self._max_events, self._max_bytes = max_events, max_bytes
        self._trim_at = max_events + min(max_events, 1_024)
        self._taken: deque[Kept] = deque()
        self._read: deque[AuditEvent | str] = deque()  # older than all in ``_taken``
        self._bytes = 0  # of the lines in both
        self._lock = threading.Lock()
        protect(self)
        self._dropped = 0

    def make_empty(self) -> CollectingAuditSink:
        """Return a new sink of the same size."""
        return CollectingAuditSink(self._max_events, self._max_bytes)

    @property
    def append(self) -> Callable[[RawEvent], None]:
        """Appends without looking at the size; a ``take`` must follow."""
        return self._taken.append

    def take(self, item: RawEvent | Entry | AuditEvent) -> None:
        """Keep an item from which an event is made when it is read."""
        if type(item) is Entry and is_large(item.call.args):
            self._take_line(item.to_json())
            return
        taken = self._taken
        taken.append(item)
        if len(taken) > self._trim_at:
            with self._lock:
                self._cut()

    def _take_line(self, line: str) -> None:
        with self._lock:
            self._taken.append(line)
            self._bytes += len(line)
            self._cut()

    async def emit(self, event: AuditEvent) -> None:
        self.take(event)

    def _cut(self, size: int | None = None) -> None:
        """Drop the oldest items, down to the size. Needs the lock."""
        excess = len(self._read) + len(self._taken) - (self._max_events if size is None else size)
        if self._bytes == 0:  # no lines: only their number counts
            self._drop_small(max(0, excess))
            return
        while excess > 0 or self._bytes > self._max_bytes:
            oldest = (self._read or self._taken).popleft()
            self._bytes -= len(oldest) if type(oldest) is str else 0
            self._dropped += 1
            excess -= 1

    def _drop_small(self, count: int) -> None:
        """Drop so many of the oldest items, none of which is a line."""
        read = min(count, len(self._read))
        for pop, times in ((self._read.popleft, read), (self._taken.popleft, count - read)):
            for _ in range(times):
                pop()
        self._dropped += count

    def _read_all(self) -> tuple[int, list[AuditEvent]]:
        """Return the position of the oldest event that is kept, and all of them."""
        with self._lock:
            self._cut()
            oldest, read, taken = self._dropped, list(self._read), list(self._taken)
        # without the lock: this calls user code
        made = [item if type(item) is str else _event(item) for item in taken]
        with self._lock:
            if taken and self._taken and self._taken[0] is taken[0]:  # all are still there
                self._read.extend(made)
                for _ in made:
                    self._taken.popleft()
        return oldest, [_event(item) for item in read + made]

    @property
    def events(self) -> list[AuditEvent]:
        return self._read_all()[1]

    def mark(self) -> int:
        """Return a position; ``since_mark`` returns what came after it."""
        with self._lock:
            self._cut()
            return self._dropped + len(self._read) + len(self._taken)

    def since_mark(self, mark: int) -> list[AuditEvent]:
        oldest, kept = self._read_all()
        if mark < 0 or mark > oldest + len(kept):
            raise ValueError(
                f"mark {mark} is not from this sink: {oldest + len(kept)} events have been"
                " collected"
            )
        if mark < oldest:
            raise MarkEvictedError(
                f"mark {mark} is too old: the buffer starts at event {oldest}.",
                hint="Raise max_events or read sooner.",
            )
        return kept[mark - oldest :]

    def last(self) -> AuditEvent:
        """Return the newest event; raises IndexError when there is none."""
        with self._lock:
            newest = self._taken[-1] if self._taken else self._read[-1]
        return _event(newest)

    def list_last_calls(self, session_id: str, count: int = LAST_CALLS) -> list[dict[str, Any]]:
        """Return the calls of a session that ended last, the newest first, without secrets."""
        with self._lock:
            kept = [*self._read, *self._taken]
        ended: list[dict[str, Any]] = []
        for item in reversed(kept):
            if len(ended) >= count:
                break
            if _may_end_call(item, session_id) and (event := _event(item)).outcome is not None:
                ended.append(
                    {
                        "tool_name": event.tool_name,
                        "tool_args": shorten(dumps(event.tool_args), MAX_SHOWN_ARGS),
                        "outcome": event.outcome,
                        "at": event.timestamp.isoformat(),
                    }
                )
        return ended

    def filter(self, action: AuditAction | str) -> list[AuditEvent]:
        return [event for event in self.events if event.action == action]

    def read_events(self, wanted: EventFilter, reading: LogReading) -> Iterator[EventData]:
        """Yield the events that are kept and match, as data."""
        events = (event.to_dict() for event in self.events)
        return filter_events(events, wanted)

    def clear(self) -> None:
        with self._lock:
            self._cut(0)


class NoLocalEvents(CollectingAuditSink):
    """Keeps nothing: for guards that are made with ``local_events=0``."""

    def __init__(self) -> None:
        super().__init__(max_events=1)

    def make_empty(self) -> CollectingAuditSink:
        return NoLocalEvents()

    @property
    def append(self) -> Callable[[RawEvent], None]:
        return self.take

    def take(self, item: RawEvent | Entry | AuditEvent) -> None:
        """Forget the event."""


def _may_end_call(item: Kept, session_id: str) -> bool:
    """Return whether an item may be the end of a call of this session, without making the event."""
    if isinstance(item, str):
        return session_id in item and event_from_json(item).session_id == session_id
    if isinstance(item, tuple):
        return len(item) > OPENING_FIELDS and item[3].run_id == session_id
    if isinstance(item, Entry):
        return item.closing is not None and item.call.run_id == session_id
    return item.session_id == session_id


def _event(item: Kept) -> AuditEvent:
    if isinstance(item, str):
        return event_from_json(item)
    if isinstance(item, tuple):
        item = _entry(item)
    return item.event() if isinstance(item, Entry) else item


def _entry(raw: RawEvent) -> Entry:
    at, context, action, call, decision, attempts, executions, *closing = raw
    counters = Counters(attempts, executions)
    entry = Entry(context, action, call, decision, counters, Closing(*closing) if closing else None)
    entry.at = at
    return entry
