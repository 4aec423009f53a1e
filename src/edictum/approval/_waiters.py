"""Waiters: one thread asks a store what has changed, however many calls wait for a person."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from edictum.errors import EdictumError
from edictum.execution.forks import call_in_child
from edictum.execution.threads import start_thread

LOOK_EVERY_S = 0.1
# what is asked: since which change, and whose leases are renewed; returns the newest change and ids
Poll = Callable[[int, list[str]], tuple[int, list[str]]]


class Waiter:
    """A call that waits, in its event loop, for its request to change."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()

    def wake(self) -> None:
        """Tell the waiter, from any thread."""
        try:
            self._loop.call_soon_threadsafe(self._changed.set)
        except RuntimeError:  # its event loop was closed
            return

    def forget_changes(self) -> None:
        """Wait for what changes from now on."""
        self._changed.clear()

    async def wait(self, timeout_s: float) -> None:
        """Return when the request has changed, or the time is over."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return


class Waiters:
    """All that wait for the requests of one store in this process."""

    def __init__(self, poll: Poll, renew_every_s: float) -> None:
        self._poll = poll
        self._renew_every_s = renew_every_s
        self._reset()
        call_in_child(self._reset)

    def _reset(self) -> None:
        """Begin anew: in a forked child the waiters and the thread are the parent's."""
        self._lock = threading.Lock()
        self._waiting: dict[str, list[Waiter]] = {}
        self._thread: threading.Thread | None = None

    @contextmanager
    def join(self, approval_id: str) -> Iterator[Waiter]:
        """Give a waiter that is woken when the request changes."""
        waiter = Waiter()
        with self._lock:
            self._waiting.setdefault(approval_id, []).append(waiter)
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="edictum-approvals", daemon=True)
                start_thread(thread)
                self._thread = thread
        try:
            yield waiter
        finally:
            with self._lock:
                others = self._waiting[approval_id]
                others.remove(waiter)
                if not others:
                    del self._waiting[approval_id]

    def wake(self, approval_ids: Iterable[str]) -> None:
        """Tell those that wait for these requests."""
        with self._lock:
            woken = [it for key in approval_ids for it in self._waiting.get(key, ())]
        for waiter in woken:
            waiter.wake()

    def _list(self) -> list[str]:
        with self._lock:
            if not self._waiting:
                self._thread = None  # the next one that waits starts another
            return list(self._waiting)

    def _run(self) -> None:
        since, renewed_at = -1, time.monotonic()
        while waiting := self._list():
            is_due = time.monotonic() - renewed_at >= self._renew_every_s
            try:
                newest, changed = self._poll(since, waiting if is_due else [])
            except EdictumError:  # the calls say why when their time is over
                time.sleep(LOOK_EVERY_S)
                continue
            renewed_at = time.monotonic() if is_due else renewed_at
            # what changed before the first look is not known, nor when numbers began anew
            self.wake(changed if 0 <= since <= newest else waiting)
            since = newest
            time.sleep(LOOK_EVERY_S)
