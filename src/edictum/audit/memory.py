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
    """Keeps the newest ``max_events`` events. It takes entries as they are and makes events of them when they are read."""

    def __init__(self, max_events: int = 50_000) -> None:
        if max_events < 1:
            raise ValueError(f"max_events is {max_events}; use 1 or more")
        self._ring: deque[Entry | AuditEvent] = deque(maxlen=max_events)
        self._lock = threading.Lock()
        self._total = 0

    def take(self, entry: Entry) -> None:
        """The fast way in: the event is made when somebody reads it."""
        with self._lock:
            self._ring.append(entry)
            self._total += 1

    async def emit(self, event: AuditEvent) -> None:
        with self._lock:
            self._ring.append(event)
            self._total += 1

    @property
    def events(self) -> list[AuditEvent]:
        with self._lock:
            kept = list(self._ring)
        return [_event(item) for item in kept]

    def mark(self) -> int:
        """A position; ``since_mark`` gives what came after it."""
        return self._total

    def since_mark(self, mark: int) -> list[AuditEvent]:
        with self._lock:
            oldest = self._total - len(self._ring)
            if mark > self._total or mark < 0:
                raise ValueError(f"mark {mark} is not from this sink: {self._total} events have been collected")
            if mark < oldest:
                raise MarkEvictedError(
                    f"mark {mark} is too old: the buffer starts at event {oldest}.", hint="Raise max_events or read sooner."
                )
            kept = list(self._ring)[mark - oldest :]
        return [_event(item) for item in kept]

    def last(self) -> AuditEvent:
        """The newest event; IndexError when there is none."""
        with self._lock:
            item = self._ring[-1]
        return _event(item)

    def filter(self, action: AuditAction | str) -> list[AuditEvent]:
        return [event for event in self.events if event.action == action]

    def clear(self) -> None:
        with self._lock:
            self._ring.clear()


def _event(item: Entry | AuditEvent) -> AuditEvent:
    return item.event() if isinstance(item, Entry) else item
