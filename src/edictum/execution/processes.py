"""Running tool bodies in processes that can be killed.

A pool keeps warm workers (see ``worker``), each a fresh interpreter, started once and used for many
calls. They are neither forked from the host, whose threads may hold locks at that moment, nor from
a fork server, which would be one more process to look after: a new interpreter is ready in some
tens of milliseconds, and a pool replaces a worker before it is needed again.

At the deadline, and when the caller is cancelled, a worker is killed with everything that its tool
has started. The same happens after a call that left a process behind. A worker that dies by itself
is a typed end, too: ``Ran.lost`` says how it died.

Functions go to a worker by name and arguments by pickle. Context variables are not carried over. A
worker serves many calls, so what a tool changes in its process (``os.environ``, module globals) the
next tool finds there. Workers protect the host from tools that hang or crash, not from malicious
code: results come back by pickle.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from edictum.core.effects import Ran, RunTool
from edictum.core.freeze import thaw_args
from edictum.execution import worker as protocol
from edictum.execution.failures import Lost, NotReturned, NotStarted, RemoteError, RemoteTraceback
from edictum.execution.threads import DaemonPool
from edictum.execution.waiting import wait_done

MAX_RESULT_BYTES = 64 << 20
MAX_FRAME_BYTES = 1 << 40
MAX_ATTEMPTS = 3
DEATH_S = 0.1  # how long a killed process may take to be gone before nobody waits for it any more
CHUNK = 1 << 16

BOOT = (
    "import runpy, sys; given = sys.argv[1:]; sys.argv[1:] = []; sys.path[:] = given[4:]; "
    "runpy.run_path(given[0])['main'](*map(int, given[1:4]))"
)
WORKER_FILE = str(Path(protocol.__file__))

HELPERS = DaemonPool(
    "edictum-workers"
)  # for killing, burying and replacing workers: none of it blocks an event loop
clock = time.perf_counter


class _Died(Exception):
    """The worker's socket was closed."""


class _NotSent(Exception):
    """The worker was dead before it had the request."""


class Worker:
    """One process, and the socket to it."""

    def __init__(self, lifeline: int, memory: int) -> None:
        self.ready = False
        self.socket, theirs = socket.socketpair()
        command = [
            sys.executable,
            "-c",
            BOOT,
            WORKER_FILE,
            str(theirs.fileno()),
            str(lifeline),
            str(memory),
            *sys.path,
        ]
        try:
            self.process = subprocess.Popen(  # noqa: S603
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), lifeline),
                start_new_session=True,
            )
        except BaseException:
            self.socket.close()
            raise
        finally:
            theirs.close()

    def alive(self) -> bool:
        return self.process.poll() is None

    async def exchange(self, request: bytes) -> bytes:
        """Send a request and wait for the reply."""
        loop = asyncio.get_running_loop()
        self.socket.setblocking(False)
        try:
            await loop.sock_sendall(self.socket, request)
        except OSError as exc:
            raise _NotSent from exc
        reader = _Reader(self.ready)
        while reader.missing:
            self._take(reader, await _or_died(loop.sock_recv(self.socket, reader.missing)))
        return bytes(reader.data)

    def exchange_sync(self, request: bytes, deadline: float | None) -> bytes:
        """As ``exchange``, from a thread that may block; raises TimeoutError at the deadline."""
        try:
            self._until(deadline)
            self.socket.sendall(request)
        except TimeoutError:
            raise
        except OSError as exc:
            raise _NotSent from exc
        reader = _Reader(self.ready)
        while reader.missing:
            self._until(deadline)
            self._take(reader, self._receive(reader.missing))
        return bytes(reader.data)

    def _receive(self, count: int) -> bytes:
        try:
            return self.socket.recv(count)
        except ConnectionError as exc:
            raise _Died from exc

    def _until(self, deadline: float | None) -> None:
        if deadline is not None and deadline <= clock():
            raise TimeoutError
        self.socket.settimeout(None if deadline is None else deadline - clock())

    def _take(self, reader: _Reader, data: bytes) -> None:
        if not data:
            raise _Died
        reader.feed(data)
        self.ready = self.ready or reader.ready

    def end(self) -> bool:
        """Kill the worker with all it has started. Says whether it may have begun its first
        request.
        """
        if self.process.returncode is None:  # else its number may belong to somebody else by now
            kill_tree(self.process.pid)
            self.buried()
        begun = self.ready or self._says_ready()
        self.socket.close()
        return begun

    def buried(self) -> int | None:
        """The exit status of a process that is ending. One that takes long to die is waited for in
        the background.
        """
        try:
            return self.process.wait(DEATH_S)
        except subprocess.TimeoutExpired:
            HELPERS.submit(self.process.wait)
            return None

    def _says_ready(self) -> bool:
        self.socket.setblocking(False)
        try:
            return bool(self.socket.recv(1))
        except OSError:
            return False

    def obituary(self) -> str:
        """How the worker died, now that its socket is closed. What it has started is killed before
        it is buried.
        """
        if not self._has_ended():
            return "its worker closed the connection to the host"
        kill_tree(self.process.pid)
        status = self.process.wait()
        if status >= 0:
            return f"its worker process ended with exit code {status}"
        name = signal.Signals(-status).name
        why = {
            "SIGXCPU": ": it used up its CPU time",
            "SIGKILL": ", perhaps because the machine ran out of memory",
        }.get(name, "")
        return f"its worker process was killed by signal {-status} ({name}){why}"

    def _has_ended(self) -> bool:
        until = clock() + DEATH_S
        try:
            while (
                os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
            ):
                if clock() > until:
                    return False
                time.sleep(0.001)
        except ChildProcessError:
            pass  # somebody else in this process waits for all children, and has buried it
        return True

    def forget(self) -> None:
        """In the child of a fork: let go of the parent's worker without touching it."""
        self.socket.close()
        self.process.returncode = 0  # it is not this process's child


async def _or_died(receiving: Any) -> bytes:
    try:
        data: bytes = await receiving
    except ConnectionError as exc:
        raise _Died from exc
    return data


class _Reader:
    """Puts a reply together from what comes in; ``missing`` is how many bytes to ask for next, 0 at
    the end.
    """

    def __init__(self, ready: bool) -> None:
        self.ready = ready
        self.data = bytearray()
        self.missing = CHUNK
        self._length: int | None = None

    def feed(self, data: bytes) -> None:
        if not self.ready:
            self.ready, data = True, data[len(protocol.READY) :]
        self.data += data
        if self._length is None:
            if len(self.data) < protocol.LENGTH:
                return
            self._length = int.from_bytes(self.data[: protocol.LENGTH], "big")
            del self.data[: protocol.LENGTH]
        left = self._length - len(self.data)
        if not 0 <= left < MAX_FRAME_BYTES:
            raise _Died
        self.missing = min(left, CHUNK * 16)


# --- Killing --------------------------------------------------------------------------------------


def kill_tree(pid: int) -> None:
    """Kill a worker's process group, and the descendants that have left it.

    The worker is stopped first and killed last: as long as it exists, whatever its descendants
    start stays below it.
    """
    _signal(os.kill, pid, signal.SIGSTOP)
    killed: set[int] = set()
    while found := descendants(pid) - killed:
        for descendant in found:
            _signal(os.kill, descendant, signal.SIGKILL)
        killed |= found
    _signal(os.killpg, pid, signal.SIGKILL)


def _signal(send: Callable[[int, int], None], pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):  # gone already, or running as somebody else
        send(pid, number)


def descendants(pid: int) -> set[int]:
    """The children of a process, and theirs. Empty where there is no /proc: then the group is all
    that is known.
    """
    found: set[int] = set()
    queue = [pid]
    while queue:
        for child in _children(queue.pop()) - found:
            found.add(child)
            queue.append(child)
    return found


def _children(pid: int) -> set[int]:
    children: set[int] = set()
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                children.update(map(int, file.read().split()))
    except (OSError, ValueError):
        pass
    return children


# --- The pool -------------------------------------------------------------------------------------


class ProcessPool:
    """Runs bodies in worker processes. ``run_in="process"`` uses one pool for all; a pool of your
    own has its own limits.

    ``memory_bytes`` bounds the address space of a worker and of each process that it starts,
    ``cpu_s`` the CPU time of one call, ``max_result_bytes`` what a body may return.
    """

    def __init__(
        self,
        max_workers: int | None = None,
        *,
        memory_bytes: int | None = None,
        cpu_s: float | None = None,
        max_result_bytes: int = MAX_RESULT_BYTES,
    ) -> None:
        self.max_workers = max_workers or max(4, os.cpu_count() or 1)
        self._memory, self._cpu_s, self._max_result = memory_bytes or 0, cpu_s, max_result_bytes
        self._workers: set[Worker] = set()
        self._lifeline: list[int] = []
        self._closings = 0
        self._start_over()
        self._finalizer = weakref.finalize(self, _end_all, self._workers, self._lifeline)
        _POOLS.add(self)

    def _start_over(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[Worker] = []
        self._waiting: deque[Future[Worker]] = deque()
        self._count = 0

    def _forget(self) -> None:
        """In the child of a fork: the workers are the parent's, and the lock may have been held by
        one of its threads.
        """
        for worker in self._workers:
            worker.forget()
        self._workers.clear()
        _close_all(self._lifeline)
        self._start_over()

    def close(self) -> None:
        """Kill all workers, busy ones too. A call after this starts new ones."""
        with self._lock:
            waiting, self._waiting = self._waiting, deque()
            idle, self._idle, self._count = self._idle, [], 0
            self._closings += 1
            busy = self._workers.difference(idle)
            self._workers.clear()
            lifeline = self._lifeline[:]
            self._lifeline.clear()
        for worker in busy:
            kill_tree(worker.process.pid)  # whoever uses its socket sees the end, and closes it
        _end_all(set(idle), lifeline)
        for future in waiting:
            if future.set_running_or_notify_cancel():
                future.set_exception(NotStarted("The pool of worker processes was closed."))

    def warm(self, count: int = 1) -> None:
        """Start workers ahead of the first calls."""
        for _ in range(count):
            self._replace(self._closings)

    # --- One call

    async def run(self, effect: RunTool) -> Ran:
        started, worker = clock(), None
        deadline = None if effect.timeout_s is None else started + effect.timeout_s
        try:
            request = self._request(effect)
            async with asyncio.timeout(effect.timeout_s) as scope:
                for _ in self._attempts():
                    worker = await self._acquire()
                    with self._retired_if_dead(worker):
                        reply = await worker.exchange(request)
                        break
        except NotStarted as exc:
            return Ran(None, exc, clock() - started, not_started=True)
        except _Died:
            return await self._helped(
                lambda: self._bury(effect, worker, clock() - started)
            ) or _lost(effect, "it died", clock() - started)
        except GeneratorExit:
            self._discard(worker)
            raise
        except BaseException as exc:
            begun = await self._helped(lambda: self._discard(worker))
            if isinstance(exc, TimeoutError) and scope.expired():
                return Ran(None, None, clock() - started, deadline, not_started=begun is False)
            return Ran(None, exc, clock() - started, cancelled=True, not_started=begun is False)
        return self._ended(effect, worker, reply, clock() - started)

    def run_sync(self, effect: RunTool) -> Ran:
        started, worker = clock(), None
        deadline = None if effect.timeout_s is None else started + effect.timeout_s
        try:
            request = self._request(effect)
            for _ in self._attempts():
                worker = self._acquire_sync(deadline)
                with self._retired_if_dead(worker):
                    reply = worker.exchange_sync(request, deadline)
                    break
        except NotStarted as exc:
            return Ran(None, exc, clock() - started, not_started=True)
        except _Died:
            return self._bury(effect, worker, clock() - started)
        except TimeoutError:
            begun = self._discard(worker)
            return Ran(None, None, clock() - started, deadline, not_started=not begun)
        except BaseException as exc:
            begun = self._discard(worker)
            return Ran(None, exc, clock() - started, cancelled=True, not_started=not begun)
        return self._ended(effect, worker, reply, clock() - started)

    @staticmethod
    def _attempts() -> Iterator[int]:
        """A worker can die while it is idle; then nothing has begun, and another gets the request.
        But not for ever.
        """
        yield from range(MAX_ATTEMPTS)
        raise NotStarted(f"{MAX_ATTEMPTS} worker processes died before they took the call.")

    @contextmanager
    def _retired_if_dead(self, worker: Worker) -> Iterator[None]:
        try:
            yield
        except _NotSent:
            self._discard(worker)

    @staticmethod
    async def _helped(function: Callable[[], Any]) -> Any:
        """Run a function that may block in a helper thread. It is seen through; a cancellation
        meanwhile only stops the waiting.
        """
        future = HELPERS.submit(function)
        try:
            await wait_done(future)
        except asyncio.CancelledError:
            return None
        return future.result()

    def _request(self, effect: RunTool) -> bytes:
        tool = effect.call.tool_name
        target = _packed(
            effect.body,
            f"The function of {tool!r} cannot be sent to a worker process",
            "Define it at the top of a module",
        )
        args = _packed(
            thaw_args(effect.call.args),
            f"The arguments of {tool!r} cannot be sent to a worker process",
            "Pass plain data",
        )
        script = _host_script(tool) if b"__main__" in target else None
        request = (list(sys.path), script, self._cpu_s, self._max_result, target, args)
        return protocol.frame(pickle.dumps(request, 5))

    def _ended(self, effect: RunTool, worker: Worker | None, reply: bytes, elapsed_s: float) -> Ran:
        assert worker is not None
        try:
            message: protocol.Reply = pickle.loads(reply)  # noqa: S301 - see the head of this file
        except Exception:
            self._discard(worker)
            return _lost(effect, "something else wrote to the host in its worker's name", elapsed_s)
        if message[-1]:
            HELPERS.submit(lambda: self._discard(worker))  # with what its tool left running
        else:
            self._give(worker)
        return _ran(message, elapsed_s, self._max_result)

    # --- Workers

    async def _acquire(self) -> Worker:
        taken = self._take()
        if isinstance(taken, Worker):
            return taken
        try:
            return await asyncio.wrap_future(taken)
        except BaseException:
            self._give_up(taken)
            raise

    def _acquire_sync(self, deadline: float | None) -> Worker:
        taken = self._take()
        if isinstance(taken, Worker):
            return taken
        try:
            return taken.result(None if deadline is None else max(0.0, deadline - clock()))
        except BaseException:
            self._give_up(taken)
            raise

    def _give_up(self, future: Future[Worker]) -> None:
        """Nobody waits any more; a worker that was handed over in the same moment goes to the
        next.
        """
        if not future.cancel() and future.exception() is None:
            self._give(future.result())

    def _take(self) -> Worker | Future[Worker]:
        """An idle worker, or a new one, or the promise of the next that is free."""
        if protocol.MAIN in os.environ:
            raise NotStarted(
                "A script is being imported by a worker process. Start its work below `if __name__"
                " == '__main__':`."
            )
        with self._lock:
            while self._idle:
                worker = self._idle.pop()
                if worker.alive():
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
        """A new worker, in a place that is already counted; unless the pool was closed since it had
        been so often.
        """
        try:
            with self._lock:
                if closings not in (None, self._closings):
                    raise NotStarted("The pool of worker processes was closed.")
                if not self._lifeline:
                    self._lifeline.extend(os.pipe())
                worker = Worker(self._lifeline[0], self._memory)
                self._workers.add(worker)
        except OSError as exc:
            with self._lock:
                self._count -= 1
            raise NotStarted(f"A worker process could not be started: {exc}") from exc
        return worker

    def _give(self, worker: Worker) -> None:
        with self._lock:
            if worker in self._workers:
                return self._hand_on(worker)
        HELPERS.submit(
            worker.end
        )  # the pool was closed meanwhile; it killed the worker, and nobody else buries it
        return None

    def _hand_on(self, worker: Worker) -> None:
        while self._waiting:
            future = self._waiting.popleft()
            if future.set_running_or_notify_cancel():
                future.set_result(worker)
                return
        self._idle.insert(
            len(self._idle) if worker.ready else 0, worker
        )  # warm ones are taken first

    def _retire(self, worker: Worker) -> None:
        """Take a worker out of the pool, and put another in its place."""
        with self._lock:
            if worker not in self._workers:
                return
            self._workers.discard(worker)
            self._count -= 1
            closings = self._closings
        HELPERS.submit(lambda: self._replace(closings))

    def _replace(self, closings: int) -> None:
        """A worker for those to come; not in a pool that was closed meanwhile, where nobody would
        end it.
        """
        with self._lock:
            enough = self._count >= self.max_workers or closings != self._closings
            if enough or not self._finalizer.alive:  # or the host is ending
                return
            self._count += 1
        try:
            self._give(self._start(closings))
        except NotStarted:
            return  # the next call tries again, and says why

    def _discard(self, worker: Worker | None) -> bool:
        """Kill a worker. Says whether it may have begun."""
        if worker is None:
            return False
        self._retire(worker)
        return worker.end()

    def _bury(self, effect: RunTool, worker: Worker | None, elapsed_s: float) -> Ran:
        """The end of a worker that died by itself. What it has started is killed."""
        assert worker is not None
        why = worker.obituary()
        begun = self._discard(worker)
        return _lost(effect, why, elapsed_s, not_started=not begun)


def _lost(effect: RunTool, why: str, elapsed_s: float, not_started: bool = False) -> Ran:
    text = f"Tool {effect.call.tool_name!r} was lost: {why}."
    return Ran(None, Lost(text), elapsed_s, lost=text, not_started=not_started)


def _packed(value: Any, what: str, hint: str) -> bytes:
    try:
        return pickle.dumps(value, 5)
    except Exception as exc:
        raise NotStarted(f"{what}: {type(exc).__name__}: {exc}. {hint}.") from exc


def _host_script(tool: str) -> tuple[str, str]:
    """How a worker finds what the host's own script defines."""
    main = sys.modules["__main__"]
    sys.modules.setdefault(
        "__mp_main__", main
    )  # the name under which a worker sends such values back
    if (spec := getattr(main, "__spec__", None)) is not None:
        return "module", spec.name
    if (path := getattr(main, "__file__", None)) is not None:
        return "path", os.path.abspath(path)
    raise NotStarted(
        f"The function of {tool!r} is defined interactively; a worker process cannot import it."
        " Define it in a module."
    )


def _ran(reply: protocol.Reply, elapsed_s: float, max_bytes: int) -> Ran:
    kind, text, type_name, where, packed, _ = reply
    if kind == "too large":
        return Ran(
            None,
            NotReturned(f"It returned {text} bytes, more than the {max_bytes} that are allowed."),
            elapsed_s,
        )
    if kind == "unsent":
        return Ran(
            None,
            NotReturned(f"It ended, but its result cannot be sent back: {type_name}: {text}"),
            elapsed_s,
        )
    try:
        value = pickle.loads(packed)  # noqa: S301 - see the head of this file
    except KeyboardInterrupt:
        raise
    except BaseException as exc:  # SystemExit in what a tool has sent does not end the host
        if kind == "value":
            return Ran(
                None,
                NotReturned(
                    f"It ended, but its result cannot be read: {type(exc).__name__}: {exc}"
                ),
                elapsed_s,
            )
        value = RemoteError(f"{type_name}: {text}", type_name)
    if kind == "value":
        return Ran(value, None, elapsed_s)
    if kind == "refused":
        return Ran(
            None,
            NotStarted(f"A worker process could not load the tool: {type_name}: {text}"),
            elapsed_s,
            not_started=True,
        )
    value.__cause__ = RemoteTraceback(where)
    return Ran(None, value, elapsed_s)


def _end_all(workers: set[Worker], lifeline: list[int]) -> None:
    for worker in list(workers):
        worker.end()
    workers.clear()
    _close_all(lifeline)


def _close_all(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())


_POOLS: weakref.WeakSet[ProcessPool] = weakref.WeakSet()


def _after_fork() -> None:
    for pool in list(_POOLS):
        pool._forget()


os.register_at_fork(after_in_child=_after_fork)

PROCESSES = ProcessPool()
