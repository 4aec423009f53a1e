"""The portal: an event loop in a daemon thread, by which synchronous hosts await.

``PORTAL.run(awaitable)`` waits for it from any thread, even from inside another running loop. It is
started when it is first needed and again after a fork. A call from the portal's own thread gets a
loop of its own, since that thread cannot wait for itself.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Awaitable
from typing import Any, Self, TypeVar

from edictum.execution.failures import NotStarted
from edictum.execution.forks import call_in_child, protect
from edictum.execution.threads import start_thread
from edictum.execution.waiting import capture, close, uncapture

_Value = TypeVar("_Value")


class Portal:
    """Runs awaitables for threads that cannot await."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        protect(self)
        call_in_child(self._reset)

    def _reset(self) -> None:
        self._parents_loop = self._loop  # referenced, so that it is not closed in the child
        self._loop = None

    def run(self, awaitable: Awaitable[_Value], timeout: float | None = None) -> _Value:
        """Return the awaitable's result. At the timeout cancel it and raise TimeoutError."""
        result: _Value = uncapture(self.capture(awaitable, timeout))
        return result

    def capture(self, awaitable: Awaitable[Any], timeout: float | None = None) -> Any:
        """Do as ``run``, but return what the awaitable raises, as a ``Failed``."""
        if serves_threads():
            with Portal() as nested:
                return nested._capture(awaitable, timeout)
        return self._capture(awaitable, timeout)

    def _capture(self, awaitable: Awaitable[Any], timeout: float | None) -> Any:
        try:
            loop = self._running_loop()
        except NotStarted:
            close(awaitable)
            raise
        running = asyncio.run_coroutine_threadsafe(capture(awaitable), loop)
        try:
            return running.result(timeout)
        except (TimeoutError, KeyboardInterrupt):
            running.cancel()
            raise
        except concurrent.futures.CancelledError as exc:  # the portal ended before it began
            raise asyncio.CancelledError from exc

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                thread = threading.Thread(
                    target=_serve, args=(loop,), name="edictum-portal", daemon=True
                )
                try:
                    start_thread(thread)
                except NotStarted:
                    loop.close()
                    raise
                self._loop = loop
            return self._loop

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)


_THREAD = threading.local()


def serves_threads() -> bool:
    """Return whether this thread is a portal's, where things run for callers elsewhere."""
    return getattr(_THREAD, "serves", False)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Run a portal's loop; once it is stopped, end what was left running in it."""
    _THREAD.serves = True
    try:
        loop.run_forever()
    finally:
        loop.run_until_complete(_cancel_all(asyncio.all_tasks(loop)))
        loop.close()


async def _cancel_all(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


PORTAL = Portal()
