"""A pool of daemon threads: a tool body that hangs must never keep the process from ending.

``concurrent.futures`` joins its threads at exit. These are reused while they are idle and left
behind when a body does not return; when too many were left behind, new bodies are refused.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import CoroutineType
from typing import Any, TypeAlias

from edictum.core.decision import Failed
from edictum.execution.failures import NotStarted, Unfinished
from edictum.execution.forks import call_in_child

MAX_IDLE = 8
MAX_ABANDONED = 64

Inbox: TypeAlias = "queue.SimpleQueue[Callable[[], None]]"


class DaemonPool:
    """Runs functions in daemon threads, one thread per running function, idle threads first."""

    def __init__(self, name: str = "edictum-tool", max_abandoned: int = MAX_ABANDONED) -> None:
        self._name = name
        self.max_abandoned = max_abandoned
        self._reset()
        call_in_child(self._reset)

    def _reset(self) -> None:
        """Start anew: a forked child has none of the threads, and the lock may be held by one."""
        self._lock = threading.Lock()
        self._idle: list[Inbox] = []
        self.abandoned = 0  # functions that were left behind and are still running

    def submit(self, function: Callable[[], Any]) -> Future[Any]:
        """Start a function in a thread. Raises NotStarted when there is none for it."""
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()  # it starts now and cannot be cancelled any more

        def job() -> None:
            try:
                future.set_result(function())
            except StopIteration as exc:  # an asyncio future cannot carry one
                error = RuntimeError("it raised StopIteration")
                error.__cause__ = exc
                future.set_exception(error)
            except BaseException as exc:  # a tool's SystemExit does not end the worker
                future.set_exception(exc)

        self._take_worker().put(job)
        return future

    def leave(self, future: Future[Any], by: BaseException | None = None) -> Failed:
        """Leave a function behind, counted until it ends. Return that it is unfinished."""
        still_running = not future.done()
        with self._lock:
            self.abandoned += 1
        future.add_done_callback(self._forget)
        return Failed(Unfinished(still_running, by))

    def _forget(self, future: Future[Any]) -> None:
        with self._lock:
            self.abandoned -= 1
        value = None if future.exception() else future.result()
        if type(value) is CoroutineType:
            value.close()

    def _take_worker(self) -> Inbox:
        with self._lock:
            if self.abandoned >= self.max_abandoned:
                raise NotStarted(
                    f"{self.abandoned} tools that ran out of time are still running in their"
                    " threads, so no further one is started. Run tools that can hang with"
                    ' run_in="process", where they can be stopped.'
                )
            if self._idle:
                return self._idle.pop()
        inbox: Inbox = queue.SimpleQueue()
        start_thread(
            threading.Thread(target=self._serve, args=(inbox,), name=self._name, daemon=True)
        )
        return inbox

    def _serve(self, inbox: Inbox) -> None:
        while True:
            job = inbox.get()
            job()
            del job  # hold nothing of the last call while idle
            with self._lock:
                if len(self._idle) >= MAX_IDLE:
                    return
                self._idle.append(inbox)


def start_thread(thread: threading.Thread) -> None:
    """Start a thread. Raises NotStarted when the machine has none left."""
    try:
        thread.start()
    except RuntimeError as exc:
        raise NotStarted(f"No thread could be started for it: {exc}.") from exc


POOL = DaemonPool()
