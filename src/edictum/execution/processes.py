"""Run tool bodies in processes that can be killed.

A pool keeps warm workers (see ``worker``), each a fresh interpreter that serves many calls. They
are not forked from the host, whose threads may hold locks at that moment. At the deadline, and when
the caller is cancelled, a worker is killed with everything that its tool has started; the same
happens after a call that left a process behind.

Functions go to a worker by name and arguments by pickle. Of context variables only the trace
context of OpenTelemetry is carried over, and what a tool changes in its process (``os.environ``,
module globals) the next tool finds there.
Workers protect the host from tools that hang or crash, not from malicious code: results come back
by pickle.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
import threading
import weakref
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import Any

from edictum.core.decision import Failed
from edictum.core.effects import Ran, RunTool
from edictum.core.freeze import thaw_args
from edictum.errors import EdictumConfigError
from edictum.execution import worker as protocol
from edictum.execution.engines import MAX_RESULT_BYTES
from edictum.execution.failures import Lost, NotReturned, NotStarted, RemoteError, RemoteTraceback
from edictum.execution.forks import call_in_child
from edictum.execution.portal import run_engine_sync
from edictum.execution.trace_context import write_context
from edictum.execution.waiting import run_in_thread
from edictum.execution.worker_process import PROCESS_HELPERS, NotSent, Worker, WorkerDied, kill_tree

MAX_ATTEMPTS = 3
_CLOSED = "The pool of worker processes was closed."


class ProcessPool:
    """Runs bodies in worker processes; ``run_in="process"`` uses one pool for all.

    ``memory_bytes`` bounds the address space of a worker and of each process that it starts,
    ``cpu_s`` the CPU time of one call, ``max_result_bytes`` what a body may return. Workers get
    little of this process's environment (``PATH``, ``HOME``, locale, time zone, ``PYTHON*`` and
    the like), and ``env`` in addition.
    """

    def __init__(
        self,
        max_workers: int | None = None,
        *,
        memory_bytes: int | None = None,
        cpu_s: float | None = None,
        max_result_bytes: int = MAX_RESULT_BYTES,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._env = _check_environment({} if env is None else env)
        _check_bounds(
            max_workers=max_workers,
            memory_bytes=memory_bytes,
            cpu_s=cpu_s,
            max_result_bytes=max_result_bytes,
        )
        self.max_workers = max_workers or max(4, os.cpu_count() or 1)
        self._memory, self._cpu_s, self._max_result = memory_bytes or 0, cpu_s, max_result_bytes
        self._workers: set[Worker] = set()
        self._lifeline: list[int] = []
        self._closings = 0
        self._start_over()
        self._finalizer = weakref.finalize(self, _kill_all, self._workers, self._lifeline)
        call_in_child(self._forget_workers)

    def _start_over(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[Worker] = []
        self._waiting: deque[Future[Worker]] = deque()
        self._count = 0

    def _forget_workers(self) -> None:
        """Forget all workers, in a forked child: they are the parent's."""
        for worker in self._workers:
            worker.forget()
        self._workers.clear()
        _close_all(self._lifeline)
        self._start_over()

    def close(self) -> None:
        """Kill all workers, even busy ones. A call after this starts new ones."""
        with self._lock:
            waiting, self._waiting = self._waiting, deque()
            idle, self._idle, self._count = self._idle, [], 0
            self._closings += 1
            busy = self._workers.difference(idle)
            self._workers.clear()
            lifeline = self._lifeline[:]
            self._lifeline.clear()
        for worker in busy:
            kill_tree(worker.process.pid)  # its call sees the end of the socket, and closes it
        _kill_all(set(idle), lifeline)
        for future in waiting:
            if future.set_running_or_notify_cancel():
                future.set_exception(NotStarted(_CLOSED))

    def count_workers(self) -> int:
        """Return how many workers there are, busy and idle."""
        return len(self._workers)

    def warm(self, count: int = 1) -> None:
        """Start workers ahead of the first calls."""
        for _ in range(count):
            self._replace(self._closings)

    # --- One call

    async def run(self, effect: RunTool) -> Ran:
        call = _Call(effect)
        try:
            request = self._request(effect)
            async with asyncio.timeout(effect.timeout_s) as scope:
                reply = await self._exchange(call, request)
        except NotStarted as exc:
            return Ran(None, exc, call.elapsed_s, not_started=True)
        except GeneratorExit:
            self._discard(call.worker)
            raise
        except BaseException as exc:
            overdue = isinstance(exc, TimeoutError) and scope.expired()
            end = partial(self._end_worker, call.worker, exc)
            ended = await run_in_thread(end, pool=PROCESS_HELPERS)
            begun, reason = (True, "it died") if type(ended) is Failed else ended
            return call.report_end(exc, overdue, begun, reason)
        return self._take_reply(call, reply)

    def run_sync(self, effect: RunTool) -> Ran:
        return run_engine_sync(self.run, effect)

    async def _exchange(self, call: _Call, request: bytes) -> bytes:
        """Return a worker's reply. A worker that died while idle has begun nothing, so another one
        is asked.
        """
        for _ in range(MAX_ATTEMPTS):
            call.worker = await self._acquire()
            try:
                return await call.worker.exchange(request)
            except NotSent:
                self._discard(call.worker)
        raise NotStarted(f"{MAX_ATTEMPTS} worker processes died before they took the call.")

    def _request(self, effect: RunTool) -> bytes:
        tool = effect.call.tool_name
        target = _pickle(effect.body, f"function of {tool!r}", "Define it at the top of a module.")
        args = _pickle(thaw_args(effect.call.args), f"arguments of {tool!r}", "Pass plain data.")
        script = _host_script(tool) if b"__main__" in target else None
        bounds = (self._cpu_s, self._max_result)
        request = (list(sys.path), script, *bounds, target, args, write_context())
        return protocol.frame(pickle.dumps(request, 5))

    def _take_reply(self, call: _Call, reply: bytes) -> Ran:
        worker = call.worker
        assert worker is not None
        try:
            message: protocol.WorkerReply = pickle.loads(reply)  # noqa: S301 - see above
        except Exception:
            self._discard(worker)
            return call.report_loss("something else wrote to the host in its worker's name")
        if message[-1]:  # its tool left processes running
            PROCESS_HELPERS.submit(lambda: self._discard(worker))
        else:
            self._give(worker)
        return _read_reply(message, call.elapsed_s, self._max_result)

    # --- Workers

    async def _acquire(self) -> Worker:
        taken = self._take()
        if isinstance(taken, Worker):
            return taken
        try:
            return await asyncio.wrap_future(taken)
        except BaseException:
            # one that was handed over in the same moment goes to the next call
            if not taken.cancel() and taken.exception() is None:
                self._give(taken.result())
            raise

    def _take(self) -> Worker | Future[Worker]:
        """Return an idle worker, a new one, or a future of the next one that becomes free."""
        if protocol.MAIN in os.environ:
            raise NotStarted(
                "A script is being imported by a worker process. Start its work below `if __name__"
                " == '__main__':`."
            )
        with self._lock:
            while self._idle:
                worker = self._idle.pop()
                if worker.process.poll() is None:
                    return worker
                self._count -= 1
                self._workers.discard(worker)
                worker.socket.close()
            if self._count >= self.max_workers:
                future: Future[Worker] = Future()
                self._waiting.append(future)
                return future
            self._count += 1
        return self._start()

    def _start(self, closings: int | None = None) -> Worker:
        """Start a worker whose place is already counted; raise NotStarted if the pool was closed
        meanwhile.
        """
        try:
            with self._lock:
                if closings not in (None, self._closings):
                    raise NotStarted(_CLOSED)
                if not self._lifeline:
                    self._lifeline.extend(os.pipe())
                worker = Worker(self._lifeline[0], self._memory, self._env)
                self._workers.add(worker)
        except OSError as exc:
            with self._lock:
                self._count -= 1
            raise NotStarted(f"A worker process could not be started: {exc}") from exc
        return worker

    def _give(self, worker: Worker) -> None:
        with self._lock:
            if worker not in self._workers:  # the pool was closed meanwhile
                PROCESS_HELPERS.submit(worker.kill)
                return
            while self._waiting:
                future = self._waiting.popleft()
                if future.set_running_or_notify_cancel():
                    future.set_result(worker)
                    return
            # warm ones are taken first
            self._idle.insert(len(self._idle) if worker.ready else 0, worker)

    def _replace(self, closings: int) -> None:
        """Start a worker for later calls, unless the pool was closed since ``closings``."""
        with self._lock:
            enough = self._count >= self.max_workers or closings != self._closings
            if enough or not self._finalizer.alive:  # or the host is ending
                return
            self._count += 1
        with suppress(NotStarted):  # the next call tries again, and says why
            self._give(self._start(closings))

    def _discard(self, worker: Worker | None) -> bool:
        """Kill a worker and replace it. Return whether it may have begun the request."""
        if worker is None:
            return False
        with self._lock:
            if worker in self._workers:
                self._workers.discard(worker)
                self._count -= 1
                PROCESS_HELPERS.submit(partial(self._replace, self._closings))
        return worker.kill()

    def _end_worker(self, worker: Worker | None, exc: BaseException) -> tuple[bool, str]:
        """Kill a worker that gave no reply. Return whether it may have begun, and how it died."""
        died = isinstance(exc, WorkerDied) and worker is not None
        reason = worker.exit_reason() if died else ""  # type: ignore[union-attr] # see above
        return self._discard(worker), reason


def _check_environment(env: Any) -> dict[str, str]:
    hint = 'Use a dict of texts, such as {"DATABASE_URL": url}, or dict(os.environ) for all.'
    if not isinstance(env, Mapping):
        raise EdictumConfigError(f"ProcessPool: env is {type(env).__name__}.", hint=hint)
    for name, value in env.items():
        is_text = isinstance(name, str) and isinstance(value, str)
        if not is_text or not name or "=" in name or "\0" in name + value:
            problem = f"ProcessPool: env has a name or value that is not usable: {name!r:.80}."
            raise EdictumConfigError(problem, hint=hint)
    return dict(env)


def _check_bounds(**bounds: Any) -> None:
    for name, value in bounds.items():
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        may_be_fraction = name == "cpu_s" or isinstance(value, int)
        if value is not None and not (is_number and may_be_fraction and value > 0):
            hint = "Use a number, more than 0, or None."
            raise EdictumConfigError(f"ProcessPool: {name} is {value!r:.80}.", hint=hint)


class _Call:
    """One call under way."""

    def __init__(self, effect: RunTool) -> None:
        self._tool = effect.call.tool_name
        self._started = perf_counter()
        self.deadline = None if effect.timeout_s is None else self._started + effect.timeout_s
        self.worker: Worker | None = None

    @property
    def elapsed_s(self) -> float:
        return perf_counter() - self._started

    def report_loss(self, reason: str, not_started: bool = False) -> Ran:
        text = f"Tool {self._tool!r} was lost: {reason}."
        return Ran(None, Lost(text), self.elapsed_s, lost=text, not_started=not_started)

    def report_end(self, exc: BaseException, overdue: bool, begun: bool, reason: str) -> Ran:
        """Return how a call without a reply has ended."""
        if isinstance(exc, WorkerDied):
            return self.report_loss(reason, not_started=not begun)
        if overdue:
            return Ran(None, None, self.elapsed_s, self.deadline, not_started=not begun)
        return Ran(None, exc, self.elapsed_s, cancelled=True, not_started=not begun)


def _pickle(value: Any, what: str, hint: str) -> bytes:
    try:
        return pickle.dumps(value, 5)
    except Exception as exc:
        problem = f"The {what} cannot be sent to a worker process"
        raise NotStarted(f"{problem}: {type(exc).__name__}: {exc}. {hint}") from exc


def _host_script(tool: str) -> tuple[str, str]:
    """Return how a worker finds the functions that the host's own script defines."""
    main = sys.modules["__main__"]
    # the name under which a worker sends such values back
    sys.modules.setdefault("__mp_main__", main)
    if (spec := getattr(main, "__spec__", None)) is not None:
        return "module", spec.name
    if (path := getattr(main, "__file__", None)) is not None:
        return "path", os.path.abspath(path)
    raise NotStarted(
        f"The function of {tool!r} is defined interactively; a worker process cannot import it."
        " Define it in a module."
    )


def _read_reply(reply: protocol.WorkerReply, elapsed_s: float, max_bytes: int) -> Ran:
    """Return the Ran that a worker's reply describes."""
    kind, text, type_name, where, packed, _ = reply
    if kind == "too large":
        problem = f"It returned {text} bytes, more than the {max_bytes} that are allowed."
        return Ran(None, NotReturned(problem), elapsed_s)
    if kind == "unsent":
        problem = f"It ended, but its result cannot be sent back: {type_name}: {text}"
        return Ran(None, NotReturned(problem), elapsed_s)
    if kind == "refused":
        problem = f"A worker process could not load the tool: {type_name}: {text}"
        return Ran(None, NotStarted(problem), elapsed_s, not_started=True)
    try:
        value = pickle.loads(packed)  # noqa: S301 - see the head of this file
    except KeyboardInterrupt:
        raise
    except BaseException as exc:  # SystemExit in what a tool has sent does not end the host
        if kind == "value":
            problem = f"It ended, but its result cannot be read: {type(exc).__name__}: {exc}"
            return Ran(None, NotReturned(problem), elapsed_s)
        value = RemoteError(f"{type_name}: {text}", type_name)
    if kind == "value":
        return Ran(value, None, elapsed_s)
    value.__cause__ = RemoteTraceback(where)
    return Ran(None, value, elapsed_s)


def _kill_all(workers: set[Worker], lifeline: list[int]) -> None:
    for worker in list(workers):
        worker.kill()
    workers.clear()
    _close_all(lifeline)


def _close_all(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())


PROCESSES = ProcessPool()
