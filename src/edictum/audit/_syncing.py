"""One ``fsync`` for all events that wait for one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any

from edictum.execution.failures import NotStarted
from edictum.execution.forks import call_in_child, protect
from edictum.execution.threads import DaemonPool
from edictum.execution.waiting import wait_done

SYNC_THREADS = DaemonPool("edictum-audit-sync")


class PendingWrite:
    """An event that is in the file and not yet on the disk. It is durable once this was awaited;
    not awaiting it leaves that to the next ``fsync``.
    """

    __slots__ = ("_future",)

    def __init__(self, future: Future[None]) -> None:
        self._future = future

    def __await__(self) -> Generator[Any, Any, None]:
        yield from wait_done(self._future).__await__()
        self._future.result()


class SyncGroup:
    """Calls a function in a thread, once for everything that waits when it begins.

    What comes while it runs waits for the next time, so a slow disk makes larger groups. The
    function is given the smallest number of those that wait.
    """

    def __init__(self, sync: Callable[[int], None]) -> None:
        self._sync = sync
        self._lock = threading.Lock()
        self._reset()
        protect(self)
        call_in_child(self._reset)

    def _reset(self) -> None:
        """Start anew in a forked child: what waits belongs to the parent."""
        self._waiting: list[tuple[int, Future[None]]] = []
        self._is_busy = False

    def join(self, number: int) -> PendingWrite:
        """Return a future that is done when the function was called after this moment."""
        future: Future[None] = Future()
        with self._lock:
            self._waiting.append((number, future))
            starts, self._is_busy = not self._is_busy, True
        if starts:
            try:
                SYNC_THREADS.submit(self._work)
            except NotStarted as exc:
                self._answer(self._take(), exc)
        return PendingWrite(future)

    def _take(self) -> list[tuple[int, Future[None]]]:
        with self._lock:
            taken, self._waiting = self._waiting, []
            self._is_busy = bool(taken)
        return taken

    def _work(self) -> None:
        while taken := self._take():
            try:
                self._sync(min(number for number, _ in taken))
            except Exception as exc:
                self._answer(taken, exc)
            else:
                self._answer(taken, None)

    def _answer(self, taken: list[tuple[int, Future[None]]], error: Exception | None) -> None:
        for _, future in taken:
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)
