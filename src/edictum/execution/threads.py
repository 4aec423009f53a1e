"""A pool of daemon threads: a tool body that hangs must never keep the process from ending.

``concurrent.futures`` joins its threads at exit, so one hung tool would hang the process. These threads are reused while they
are idle and simply left behind when a body does not return.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

MAX_IDLE = 8


class DaemonPool:
    """Runs functions in daemon threads, one thread per running function, idle threads first."""

    def __init__(self, name: str = "edictum-tool") -> None:
        self._name = name
        self._lock = threading.Lock()
        self._idle: list[queue.SimpleQueue[Callable[[], None] | None]] = []
        self._pid = os.getpid()

    def submit(self, function: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()

        def job() -> None:
            try:
                future.set_result(function())
            except BaseException as exc:  # SystemExit of a tool is the tool's failure, not the end of the worker
                future.set_exception(exc)

        self._worker().put(job)
        return future

    def _worker(self) -> queue.SimpleQueue[Callable[[], None] | None]:
        with self._lock:
            if self._pid != os.getpid():  # after a fork the threads are gone
                self._pid, self._idle = os.getpid(), []
            if self._idle:
                return self._idle.pop()
        inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._serve, args=(inbox,), name=self._name, daemon=True).start()
        return inbox

    def _serve(self, inbox: queue.SimpleQueue[Callable[[], None] | None]) -> None:
        while (job := inbox.get()) is not None:
            job()
            del job  # hold nothing of the last call while idle
            with self._lock:
                if len(self._idle) >= MAX_IDLE:
                    return
                self._idle.append(inbox)


POOL = DaemonPool()
