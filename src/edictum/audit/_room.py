"""Room: how many events may wait for a sink at the same time."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future

from edictum.errors import BackendError
from edictum.execution.forks import call_in_child, protect

MAX_LINE = 10_000  # callers, cancelled ones among them, that wait for room


class Room:
    """Places for ``size`` events. A caller that finds no place waits in line, or gives up."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._lock = threading.Lock()
        self._reset()
        protect(self)
        call_in_child(self._reset)

    def _reset(self) -> None:
        """Start anew: what waits when a process forks is the parent's."""
        self._taken = 0
        self._line: deque[Future[None]] = deque()
        self._emptied: list[Future[None]] = []

    def try_take(self) -> bool:
        """Take a place if one is free and no caller waits for it; return whether it was taken."""
        with self._lock:
            if self._taken >= self.size or self._line:
                return False
            self._taken += 1
            return True

    def join_line(self) -> Future[None]:
        """Return a future that is done when a place was taken for the caller, in the order of
        requests.
        """
        place: Future[None] = Future()
        with self._lock:
            if len(self._line) >= MAX_LINE:
                waiting = self.size + MAX_LINE
                raise BackendError(f"{waiting:,} events wait for a sink that does not return.")
            if self._taken < self.size and not self._line:
                self._taken += 1
                place.set_result(None)
            else:
                self._line.append(place)
        return place

    def give_back(self) -> None:
        """Give a place to the first in line, or leave it free."""
        with self._lock:
            if self._line:
                done = [self._line.popleft()]
            else:
                self._taken -= 1
                done, self._emptied = ([], self._emptied) if self._taken else (self._emptied, [])
        for future in done:
            future.set_result(None)

    def await_empty(self) -> Future[None]:
        """Return a future that is done when no event waits."""
        empty: Future[None] = Future()
        with self._lock:
            if self._taken:
                self._emptied.append(empty)
            else:
                empty.set_result(None)
        return empty
