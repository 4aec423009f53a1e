"""CollectingAuditSink: events in memory, in a ring."""

from __future__ import annotations

import threading
from collections import deque

from edictum.core.events import AuditAction, AuditEvent, Entry
from edictum.errors import EdictumError


class MarkEvictedError(EdictumError):
    """Events after the mark are no longer in the buffer."""

    code = "mark_evicted"


class CollectingAuditSink:
    """Keeps the newest ``max_events`` events. It takes entries as they are and makes events of them when they are read.

    Appending to a deque is atomic, so taking an entry needs no lock; what exceeds the size is cut off in batches.
    """

    def __init__(self, max_events: int = 50_000) -> None:
        if max_events < 1:
            raise ValueError(f"max_events is {max_events}; use 1 or more")
        self._max_events = max_events
        self._trim_at = max_events + min(max_events, 1_024)
        self._ring: deque[Entry | AuditEvent] = deque()
        self._lock = threading.Lock()
        self._dropped = 0

    def take(self, entry: Entry | AuditEvent) -> None:
        """The fast way in: the event is made when somebody reads it."""
        ring = self._ring
        ring.append(entry)
        if len(ring) > self._trim_at:
            self._trim()

    async def emit(self, event: AuditEvent) -> None:
        self.take(event)

    def _trim(self) -> None:
        with self._lock:
            while len(self._ring) > self._max_events:
                self._ring.popleft()
                self._dropped += 1

    def _kept(self) -> tuple[int, list[Entry | AuditEvent]]:
        """The position of the oldest event that is kept, and all that are."""
        self._trim()
        with self._lock:
            return self._dropped, list(self._ring)

    @property
    def events(self) -> list[AuditEvent]:
        return [_event(item) for item in self._kept()[1]]

    def mark(self) -> int:
        """A position; ``since_mark`` gives what came after it."""
        oldest, kept = self._kept()
        return oldest + len(kept)

    def since_mark(self, mark: int) -> list[AuditEvent]:
        oldest, kept = self._kept()
        if mark < 0 or mark > oldest + len(kept):
            raise ValueError(f"mark {mark} is not from this sink: {oldest + len(kept)} events have been collected")
        if mark < oldest:
            raise MarkEvictedError(f"mark {mark} is too old: the buffer starts at event {oldest}.", hint="Raise max_events or read sooner.")
        return [_event(item) for item in kept[mark - oldest :]]

    def last(self) -> AuditEvent:
        """The newest event; IndexError when there is none."""
        return _event(self._ring[-1])

    def filter(self, action: AuditAction | str) -> list[AuditEvent]:
        return [event for event in self.events if event.action == action]

    def clear(self) -> None:
        with self._lock:
            self._dropped += len(self._ring)
            self._ring.clear()


def _event(item: Entry | AuditEvent) -> AuditEvent:
    return item.event() if isinstance(item, Entry) else item
