"""One worker process, seen from its host: start it, talk to it, kill it with its descendants."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from time import perf_counter

from edictum.execution import worker as protocol
from edictum.execution.threads import DaemonPool

MAX_FRAME_BYTES = 1 << 40
CHUNK = 1 << 20
DEATH_S = 0.1  # for a killed process to be gone; after that it is waited for in the background

BOOT = (
    "import runpy, sys; given = sys.argv[1:]; sys.argv[1:] = []; sys.path[:] = given[4:]; "
    "runpy.run_path(given[0])['serve'](*map(int, given[1:4]))"
)
WORKER_FILE = str(Path(protocol.__file__))
# What a worker gets of the host's environment by itself; secrets are usually elsewhere in it.
PASSED_NAMES = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TEMP", "TMP"),
        *("VIRTUAL_ENV", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR", "SYSTEMROOT"),
    }
)
PASSED_PREFIXES = ("LC_", "PYTHON")

# For killing, reaping and replacing workers, none of which may block an event loop.
PROCESS_HELPERS = DaemonPool("edictum-workers")


class WorkerDied(Exception):
    """The worker's socket was closed."""


class NotSent(Exception):
    """The worker was dead before it had the request."""


def minimal_environment() -> dict[str, str]:
    """Return the part of this process's environment that programs need to start."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in PASSED_NAMES or name.startswith(PASSED_PREFIXES)
    }


class Worker:
    """A process and the socket to it."""

    def __init__(self, lifeline: int, memory: int, env: Mapping[str, str]) -> None:
        self.ready = False
        self.socket, theirs = socket.socketpair()
        numbers = (theirs.fileno(), lifeline, memory)
        command = [sys.executable, "-c", BOOT, WORKER_FILE, *map(str, numbers), *sys.path]
        try:
            self.process = subprocess.Popen(  # noqa: S603
                command,
                stdin=subprocess.DEVNULL,
                env={**minimal_environment(), **env},
                pass_fds=(theirs.fileno(), lifeline),
                start_new_session=True,
            )
        except BaseException:
            self.socket.close()
            raise
        finally:
            theirs.close()

    async def exchange(self, request: bytes) -> bytes:
        """Send a request and return the reply. Raises NotSent or WorkerDied."""
        loop = asyncio.get_running_loop()
        self.socket.setblocking(False)
        try:
            await loop.sock_sendall(self.socket, request)
        except OSError as exc:
            raise NotSent from exc
        if not self.ready:
            await self._receive(len(protocol.READY))
            self.ready = True
        length = int.from_bytes(await self._receive(protocol.LENGTH), "big")
        if length >= MAX_FRAME_BYTES:
            raise WorkerDied
        return await self._receive(length)

    async def _receive(self, count: int) -> bytes:
        loop, data = asyncio.get_running_loop(), bytearray()
        while len(data) < count:
            try:
                more = await loop.sock_recv(self.socket, min(count - len(data), CHUNK))
            except ConnectionError as exc:
                raise WorkerDied from exc
            if not more:
                raise WorkerDied
            data += more
        return bytes(data)

    def kill(self) -> bool:
        """Kill the worker with everything it has started. Return whether it may have begun a
        request.
        """
        if self.process.returncode is None:  # else its number may belong to another process by now
            kill_tree(self.process.pid)
            try:
                self.process.wait(DEATH_S)
            except subprocess.TimeoutExpired:
                PROCESS_HELPERS.submit(self.process.wait)
        may_have_begun = self.ready or self._has_sent_ready()
        self.socket.close()
        return may_have_begun

    def _has_sent_ready(self) -> bool:
        self.socket.setblocking(False)
        try:
            return bool(self.socket.recv(1))
        except OSError:
            return False

    def exit_reason(self) -> str:
        """Return how the worker died, now that its socket is closed. Kill what it has started."""
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
        """Return whether the process ends within DEATH_S. It is not reaped, so its number stays its
        own.
        """
        until, flags = perf_counter() + DEATH_S, os.WEXITED | os.WNOHANG | os.WNOWAIT
        with suppress(ChildProcessError):  # other code in this process has reaped it
            while os.waitid(os.P_PID, self.process.pid, flags) is None:
                if perf_counter() > until:
                    return False
                time.sleep(0.001)
        return True

    def forget(self) -> None:
        """Release the parent's worker in a forked child, without touching it."""
        self.socket.close()
        self.process.returncode = 0  # it is not this process's child


# --- Killing --------------------------------------------------------------------------------------


def kill_tree(pid: int) -> None:
    """Kill a worker's process group and its other descendants; stop it first, kill it last."""
    _send_signal(os.kill, pid, signal.SIGSTOP)
    killed: set[int] = set()
    while found := descendants(pid) - killed:
        for descendant in found:
            _send_signal(os.kill, descendant, signal.SIGKILL)
        killed |= found
    _send_signal(os.killpg, pid, signal.SIGKILL)


def _send_signal(send: Callable[[int, int], None], pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):  # gone already, or of another user
        send(pid, number)


def descendants(pid: int) -> set[int]:
    """Return the children of a process, and theirs; none where there is no /proc."""
    found: set[int] = set()
    queue = [pid]
    while queue:
        for child in _children(queue.pop()) - found:
            found.add(child)
            queue.append(child)
    return found


def _children(pid: int) -> set[int]:
    children: set[int] = set()
    with suppress(OSError, ValueError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                children.update(map(int, file.read().split()))
    return children
