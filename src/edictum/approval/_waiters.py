"""Waiters: one thread watches a store for changes, however many calls wait for a person.

A store that can push changes is listened to, and polled only now and then; any other is polled
often.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from contextlib import aclosing, contextmanager, suppress
from typing import Protocol, TypeAlias, runtime_checkable

from edictum.errors import EdictumError
from edictum.execution.forks import call_in_child
from edictum.execution.threads import start_thread
from edictum.sessions._batching import Unavailable

LOOK_EVERY_S = 0.1
LISTEN_AGAIN_S = 1.0
LISTENED_LOOK_EVERY_S = 2.0  # a dead connection reports nothing
# what is asked: since which change, and whose leases are renewed; returns the newest change and ids
Look: TypeAlias = Callable[[int, list[str]], Awaitable[tuple[int, list[str]]]]
# yields ids of requests that change; first an empty list, once nothing can be missed
Listen: TypeAlias = Callable[[], AsyncGenerator[list[str], None]]


@runtime_checkable
class PushingStore(Protocol):
    """A store that can report changes as they happen, if ``can_push`` is True."""

    can_push: bool

    def listen(self) -> AsyncGenerator[list[str], None]: ...


class Waiter:
    """A call that waits, in its event loop, for its request to change. One that ``holds`` the
    request has asked it: while it waits, no other call takes the request over.
    """

    def __init__(self, *, holds: bool) -> None:
        self.holds = holds
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()

    def wake(self) -> None:
        """Wake the waiter, from any thread."""
        try:
            self._loop.call_soon_threadsafe(self._changed.set)
        except RuntimeError:  # its event loop was closed
            return

    def forget_changes(self) -> None:
        """Ignore earlier changes: wait for those from now on."""
        self._changed.clear()

    async def wait(self, timeout_s: float) -> None:
        """Return when the request has changed, or the time is over."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return


class Waiters:
    """All calls of this process that wait for requests of one store."""

    def __init__(self, look: Look, listen: Listen | None, renew_every_s: float) -> None:
        self._look = look
        self._listen = listen
        self._renew_every_s = renew_every_s
        self._reset()
        call_in_child(self._reset)

    def _reset(self) -> None:
        """Start anew: in a forked child the waiters and the thread are the parent's."""
        self._lock = threading.Lock()
        self._waiting: dict[str, list[Waiter]] = {}
        self._thread: threading.Thread | None = None

    @contextmanager
    def join(self, approval_id: str, *, holds: bool = True) -> Iterator[Waiter]:
        """Give a waiter that is woken when the request changes."""
        waiter = Waiter(holds=holds)
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
        """Wake the waiters for these requests."""
        with self._lock:
            woken = [it for key in approval_ids for it in self._waiting.get(key, ())]
        for waiter in woken:
            waiter.wake()

    def list_ids(self) -> list[str]:
        """Return the requests that are waited for; if there are none, the thread must end."""
        with self._lock:
            if not self._waiting:
                self._thread = None  # the next one that waits starts another
            return list(self._waiting)

    def list_leases(self) -> list[str]:
        """Return the requests whose askers wait."""
        with self._lock:
            return [key for key, them in self._waiting.items() if any(it.holds for it in them)]

    def _run(self) -> None:
        asyncio.run(StoreWatch(self, self._look, self._listen, self._renew_every_s).run())


class StoreWatch:
    """Watches a store for changes, in an event loop of its own, for as long as calls wait."""

    def __init__(
        self, waiters: Waiters, look: Look, listen: Listen | None, renew_every_s: float
    ) -> None:
        self._waiters = waiters
        self._look = look
        self._listen = listen
        self._renew_every_s = renew_every_s
        self._is_listening = False
        self._is_due = asyncio.Event()  # a look: what was pushed may have been missed

    async def run(self) -> None:
        listening = asyncio.ensure_future(self._listen_on())
        try:
            await self._look_on()
        finally:
            listening.cancel()
            await asyncio.wait([listening])

    async def _look_on(self) -> None:
        since, renewed_at = -1, time.monotonic()
        while waiting := self._waiters.list_ids():
            renews = time.monotonic() - renewed_at >= self._renew_every_s
            try:
                newest, changed = await self._look(
                    since, self._waiters.list_leases() if renews else []
                )
            except EdictumError:  # the calls report why when their time is over
                await asyncio.sleep(LOOK_EVERY_S)
                continue
            renewed_at = time.monotonic() if renews else renewed_at
            # changes before the first look, or before the numbers restarted, are not known
            self._waiters.wake(changed if 0 <= since <= newest else waiting)
            since = newest
            await self._pause()

    async def _pause(self) -> None:
        """Wait until it is time to poll again."""
        every_s = LISTENED_LOOK_EVERY_S if self._is_listening else LOOK_EVERY_S
        with suppress(TimeoutError):
            async with asyncio.timeout(min(every_s, self._renew_every_s)):
                await self._is_due.wait()
        self._is_due.clear()

    async def _listen_on(self) -> None:
        """Listen to a store that can push, reconnecting whenever the connection is lost."""
        while self._listen is not None:
            with suppress(Unavailable):
                async with aclosing(self._listen()) as pushed:
                    async for ids in pushed:
                        self._note(is_listening=True)
                        self._waiters.wake(ids)
            self._note(is_listening=False)
            await asyncio.sleep(LISTEN_AGAIN_S)

    def _note(self, *, is_listening: bool) -> None:
        if is_listening is not self._is_listening:
            self._is_listening = is_listening
            self._is_due.set()
