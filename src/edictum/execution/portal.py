"""The portal: one event loop in a daemon thread, for synchronous hosts with asynchronous ports or
tools.

``portal.run(awaitable)`` waits for it from any thread, also from inside another running loop. It is
started when it is first needed and again after a fork. A call from the portal's own thread gets a
loop of its own, since that thread cannot wait for itself.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import Awaitable
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Self, TypeVar

from edictum.execution.failures import NotStarted
from edictum.execution.forks import protect
from edictum.execution.threads import begin

T = TypeVar("T")


async def _as_coroutine(awaitable: Awaitable[T]) -> tuple[T | None, BaseException | None]:
    """What the awaitable ends with, as a value: a SystemExit that left its task would end the loop
    for everybody.
    """
    try:
        return await awaitable, None
    except asyncio.CancelledError:
        raise
    except BaseException as exc:
        return None, exc


class Portal:
    """Runs awaitables for threads that cannot await."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pid = 0

    def run(self, awaitable: Awaitable[T], timeout: float | None = None) -> T:
        """The awaitable's result. At the timeout it is cancelled and TimeoutError is raised."""
        if serves_threads():
            with Portal() as nested:
                return nested._run(awaitable, timeout)
        return self._run(awaitable, timeout)

    def _run(self, awaitable: Awaitable[T], timeout: float | None) -> T:
        try:
            loop = self._running_loop()
        except NotStarted:
            if hasattr(awaitable, "close"):
                awaitable.close()
            raise
        context = contextvars.copy_context()
        outside: Future[T] = Future()
        loop.call_soon_threadsafe(self._start, loop, awaitable, context, outside)
        try:
            return outside.result(timeout)
        except (FutureTimeout, KeyboardInterrupt):
            if not outside.done():
                outside.cancel()
            raise
        except (
            CancelledError
        ) as exc:  # the tool cancelled itself; for a thread that is an ordinary failure
            raise asyncio.CancelledError from exc

    @staticmethod
    def _start(
        loop: asyncio.AbstractEventLoop,
        awaitable: Awaitable[Any],
        context: contextvars.Context,
        outside: Future[Any],
    ) -> None:
        task = loop.create_task(_as_coroutine(awaitable), context=context)

        def finish(done: asyncio.Task[Any]) -> None:
            if outside.cancelled():
                return
            if done.cancelled():
                outside.cancel()
                return
            value, error = done.result()
            if error is not None:
                outside.set_exception(error)
            else:
                outside.set_result(value)

        task.add_done_callback(finish)
        outside.add_done_callback(
            lambda f: loop.call_soon_threadsafe(task.cancel) if f.cancelled() else None
        )

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._pid != os.getpid():
                loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_serve, args=(loop,), name="edictum-portal", daemon=True
                )
                try:
                    begin(self._thread)
                except NotStarted:
                    loop.close()
                    raise
                self._pid, self._loop = os.getpid(), loop
            return self._loop

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)


_HERE = threading.local()


def serves_threads() -> bool:
    """Whether this thread is a portal's: what runs here runs for somebody who waits in another
    thread.
    """
    return getattr(_HERE, "serves", False)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Run a portal's loop; once it is stopped, end what was left running in it."""
    _HERE.serves = True
    try:
        loop.run_forever()
    finally:
        loop.run_until_complete(_end_all(asyncio.all_tasks(loop)))
        loop.close()


async def _end_all(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


PORTAL = Portal()
protect(PORTAL)
