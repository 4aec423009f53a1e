"""The portal: an event loop in a daemon thread, by which synchronous hosts await.

``PORTAL.run(awaitable)`` waits for it from any thread, even from inside another running loop. It is
started when it is first needed and again after a fork. A call from the portal's own thread gets a
loop of its own, since that thread cannot wait for itself.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Self, TypeVar

from edictum.core.effects import Ran, RunTool
from edictum.execution.captured import capture, close, uncapture
from edictum.execution.failures import NotStarted
from edictum.execution.forks import call_in_child, protect
from edictum.execution.threads import start_thread

INTERRUPT_S = 1.0  # for a call that was interrupted to end
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

    def run(self, awaitable: Awaitable[_Value]) -> _Value:
        """Return the awaitable's result. A KeyboardInterrupt in the calling thread cancels it."""
        result: _Value = uncapture(self.capture(awaitable))
        return result

    def capture(self, awaitable: Awaitable[Any]) -> Any:
        """Do as ``run``, but return an exception of the awaitable as a ``Failed``."""
        if serves_threads():
            with Portal() as nested:
                return nested._capture(awaitable)
        return self._capture(awaitable)

    def start(self, awaitable: Awaitable[Any]) -> concurrent.futures.Future[Any]:
        """Start to run the awaitable, and return a future of its result at once, captured as by
        ``capture``.

        Raises NotStarted when no thread can be started.
        """
        try:
            loop = self._running_loop()
        except NotStarted:
            close(awaitable)
            raise
        return asyncio.run_coroutine_threadsafe(capture(awaitable), loop)

    def _capture(self, awaitable: Awaitable[Any]) -> Any:
        running = self.start(awaitable)
        try:
            return running.result()
        except KeyboardInterrupt:
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
    """Run a portal's loop; once it is stopped, cancel what is still running in it."""
    _THREAD.serves = True
    try:
        while not _run_loop(loop):
            pass
    finally:
        loop.run_until_complete(_cancel_all(asyncio.all_tasks(loop)))
        loop.close()


def _run_loop(loop: asyncio.AbstractEventLoop) -> bool:
    """Run a loop until it is stopped; return False if an exception ended it that a task raised.

    asyncio gives such an exception to the caller of the task, and ends the loop with it as well.
    """
    try:
        loop.run_forever()
    except (KeyboardInterrupt, SystemExit):
        return False
    return True


async def _cancel_all(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


PORTAL = Portal()
_ENGINES = Portal()  # no tool runs in it, so that deadlines hold


def run_engine_sync(run: Callable[[RunTool], Awaitable[Ran]], effect: RunTool) -> Ran:
    """Return how a body ends that an asynchronous engine runs, for a host that cannot await."""
    ended: concurrent.futures.Future[Ran] = concurrent.futures.Future()

    async def end() -> None:
        ended.set_result(await run(effect))

    try:
        _ENGINES.run(end())
        return ended.result()
    except NotStarted as exc:
        return Ran(None, exc, not_started=True)
    except KeyboardInterrupt as exc:
        # the call is cancelled by now, and says how far it has come
        if not concurrent.futures.wait((ended,), INTERRUPT_S).done:
            return Ran(None, exc, cancelled=True, body_may_be_running=True)
        ran = ended.result()
        running, not_started = ran.body_may_be_running, ran.not_started
        return Ran(None, exc, ran.elapsed_s, None, True, running, not_started=not_started)
