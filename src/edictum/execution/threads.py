"""A pool of daemon threads: a tool body that hangs must never keep the process from ending.

``concurrent.futures`` joins its threads at exit. Here threads are reused while idle, and left
behind when a function does not return. Those left behind are counted, for tools by guard and tool,
so that a tool that hangs stops no other. When too many are running, no further function is started.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from types import CoroutineType
from typing import Any, TypeAlias

from edictum.core.decision import Failed
from edictum.execution.failures import NoThread, NotStarted, Unfinished
from edictum.execution.forks import call_in_child

MAX_IDLE = 8
MAX_ABANDONED = 64  # per tool of a guard, and for all other functions together
MAX_TOOLS = 1_000

Inbox: TypeAlias = "queue.SimpleQueue[Callable[[], None]]"


class AbandonedCalls:
    """Counts functions that were left behind in their threads and are still running."""

    def __init__(self, what: str, maximum: int = MAX_ABANDONED) -> None:
        self.what, self.maximum = what, maximum
        self._reset()
        call_in_child(self._reset)

    def _reset(self) -> None:
        """Start anew: a forked child has none of the threads, and the lock may be held by one."""
        self._lock = threading.Lock()
        self.count = 0

    def check(self) -> None:
        """Raise NoThread when as many as allowed are running."""
        if self.count >= self.maximum:
            raise NoThread(
                f"{self.count} calls of {self.what} that timed out are still running in"
                " their threads, so no further one is started."
            )

    def add(self, future: Future[Any]) -> None:
        """Count a function until it ends."""
        with self._lock:
            self.count += 1
        future.add_done_callback(self._forget)

    def _forget(self, future: Future[Any]) -> None:
        with self._lock:
            self.count -= 1
        value = None if future.exception() else future.result()
        if type(value) is CoroutineType:
            value.close()


class AbandonedByTool:
    """The counts of one guard, by tool."""

    def __init__(self, maximum: int = MAX_ABANDONED) -> None:
        self.maximum = maximum
        self._by_tool: dict[str, AbandonedCalls] = {}

    def find(self, tool: str) -> AbandonedCalls:
        known = self._by_tool.get(tool)
        if known is None:
            self._drop_idle()
            known = self._by_tool.setdefault(tool, AbandonedCalls(repr(tool), self.maximum))
        return known

    def _drop_idle(self) -> None:
        """Forget tools of which no call is left behind: a model can invent any number of names."""
        if len(self._by_tool) >= MAX_TOOLS:
            for tool, calls in list(self._by_tool.items()):
                if not calls.count:
                    self._by_tool.pop(tool, None)

    def count(self) -> int:
        """Return how many calls of all tools are left behind."""
        return sum(self.by_tool().values())

    def by_tool(self) -> dict[str, int]:
        """Return the tools of which calls are left behind, and how many."""
        known = list(self._by_tool.items())
        return {tool: calls.count for tool, calls in known if calls.count}


class DaemonPool:
    """Runs functions in daemon threads, one per running function; idle threads are used first.

    ``abandoned`` counts functions left behind that are not tools.
    """

    def __init__(self, name: str = "edictum-tool") -> None:
        self._name = name
        self.abandoned = AbandonedCalls("user-supplied functions")
        self._reset()
        call_in_child(self._reset)

    def _reset(self) -> None:
        """Start anew: a forked child has none of the threads, and the lock may be held by one."""
        self._lock = threading.Lock()
        self._idle: list[Inbox] = []

    def submit(
        self, function: Callable[[], Any], abandoned: AbandonedCalls | None = None
    ) -> Future[Any]:
        """Start a function in a thread. Raises NoThread when there is none for it."""
        (abandoned or self.abandoned).check()
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()  # it starts now and cannot be cancelled any more
        self._take_worker().put(partial(_run_job, future, function))
        return future

    def leave(
        self,
        future: Future[Any],
        by: BaseException | None = None,
        abandoned: AbandonedCalls | None = None,
    ) -> Failed:
        """Leave a function behind, counted until it ends. Return Failed with Unfinished."""
        still_running = not future.done()
        (abandoned or self.abandoned).add(future)
        return Failed(Unfinished(still_running, by))

    def _take_worker(self) -> Inbox:
        with self._lock:
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
            del job  # release the last call while idle
            with self._lock:
                if len(self._idle) >= MAX_IDLE:
                    return
                self._idle.append(inbox)


def _run_job(future: Future[Any], function: Callable[[], Any]) -> None:
    """Run a function, and put into the future what it returns or raises."""
    try:
        future.set_result(function())
    except StopIteration as exc:  # an asyncio future cannot carry one
        error = RuntimeError("it raised StopIteration")
        error.__cause__ = exc
        future.set_exception(error)
    except BaseException as exc:  # a tool's SystemExit does not end the worker
        future.set_exception(exc)
    finally:
        del future, function  # as in ``start_inline``


def start_thread(thread: threading.Thread) -> None:
    """Start a thread. Raises NotStarted when the machine has none left."""
    try:
        thread.start()
    except RuntimeError as exc:
        raise NotStarted(f"No thread could be started for it: {exc}.") from exc


POOL = DaemonPool()
