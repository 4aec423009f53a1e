"""A pool of daemon threads: a tool body that hangs must never keep the process from ending.

``concurrent.futures`` joins its threads at exit, so one hung tool would hang the process. These
threads are reused while they are idle and simply left behind when a body does not return. Those
that were left behind are counted; when there are too many, new bodies are refused, because every
further one would cost a thread for good.
"""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from types import CoroutineType
from typing import Any

from edictum.execution.failures import NotStarted

MAX_IDLE = 8
MAX_ABANDONED = 64


class DaemonPool:
    """Runs functions in daemon threads, one thread per running function, idle threads first."""

    def __init__(self, name: str = "edictum-tool", max_abandoned: int = MAX_ABANDONED) -> None:
        self._name = name
        self.max_abandoned = max_abandoned
        self._forget()
        _POOLS.add(self)

    def _forget(self) -> None:
        """Start anew: in the child of a fork the threads are gone, and the lock may be held by one
        of them.
        """
        self._lock = threading.Lock()
        self._idle: list[queue.SimpleQueue[Callable[[], None] | None]] = []
        self._abandoned = 0

    @property
    def abandoned(self) -> int:
        """How many bodies nobody waits for any more are still running."""
        return self._abandoned

    def submit(self, function: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()  # it starts now; nobody can cancel it any more

        def job() -> None:
            try:
                future.set_result(function())
            except (
                StopIteration
            ) as exc:  # no future of asyncio carries one, and who waits would not be told
                future.set_exception(_told(exc))
            except (
                BaseException
            ) as exc:  # SystemExit of a tool is the tool's failure, not the end of the worker
                future.set_exception(exc)

        self._worker().put(job)
        return future

    def abandon(self, future: Future[Any]) -> None:
        """Nobody waits for this body any more. It is counted until it ends, and what it then
        returns is dropped.
        """
        with self._lock:
            self._abandoned += 1
        future.add_done_callback(self._returned)

    def _returned(self, future: Future[Any]) -> None:
        with self._lock:
            self._abandoned -= 1
        result = None if future.exception() else future.result()
        value = result[0] if isinstance(result, tuple) else result
        if type(value) is CoroutineType:
            value.close()

    def _worker(self) -> queue.SimpleQueue[Callable[[], None] | None]:
        with self._lock:
            if self._abandoned >= self.max_abandoned:
                raise NotStarted(
                    f"{self._abandoned} tools that ran out of time are still running in their"
                    " threads, so no further one is started. Run tools that can hang with"
                    ' run_in="process", where they can be stopped.'
                )
            if self._idle:
                return self._idle.pop()
        inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        begin(threading.Thread(target=self._serve, args=(inbox,), name=self._name, daemon=True))
        return inbox

    def _serve(self, inbox: queue.SimpleQueue[Callable[[], None] | None]) -> None:
        while (job := inbox.get()) is not None:
            job()
            del job  # hold nothing of the last call while idle
            with self._lock:
                if len(self._idle) >= MAX_IDLE:
                    return
                self._idle.append(inbox)


def begin(thread: threading.Thread) -> None:
    """Start a thread. A machine that has none left is no reason to leave a call open."""
    try:
        thread.start()
    except RuntimeError as exc:
        raise NotStarted(f"No thread could be started for it: {exc}.") from exc


def _told(exc: StopIteration) -> RuntimeError:
    told = RuntimeError("it raised StopIteration")
    told.__cause__ = exc
    return told


_POOLS: weakref.WeakSet[DaemonPool] = weakref.WeakSet()


def _after_fork() -> None:
    for pool in list(_POOLS):
        pool._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

POOL = DaemonPool()
