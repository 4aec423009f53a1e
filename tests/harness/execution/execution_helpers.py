"""What the execution tests share: Celery workers, a server that never answers, and waiting for
something to come true.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

from edictum.execution.worker_process import descendants

HERE = Path(__file__).parent


class CeleryWorker:
    """``celery worker`` with one process, in a process group of its own."""

    def __init__(self, url: str, *options: str) -> None:
        command = [
            sys.executable,
            "-m",
            "celery",
            "-A",
            "celery_bodies",
            "worker",
            "--concurrency=1",
            "--loglevel=WARNING",
            "--without-gossip",
            "--without-mingle",
            *options,
        ]
        environment = {**os.environ, "EDICTUM_TEST_BROKER": url, "PYTHONPATH": str(HERE)}
        self.process = subprocess.Popen(
            command,
            env=environment,
            cwd=HERE,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def kill(self) -> None:
        """All of it, at once, as a machine that loses power."""
        for pid in (self.process.pid, *descendants(self.process.pid)):
            os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.kill()


def pids_in(path: Path) -> list[int]:
    """The numbers in a file; none, if there is no file."""
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


class SilentServer:
    """Accepts connections, reads what it is sent, and never answers: a stopped server, or a
    firewall that drops.
    """

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.heard = threading.Event()
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it is released
            while True:
                self._open.append(self._listening.accept()[0])
                threading.Thread(target=self._read, args=(self._open[-1],), daemon=True).start()

    def _read(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while connection.recv(65_536):
                self.heard.set()

    def release(self) -> None:
        """End all connections, so that nobody waits any longer."""
        for each in (self._listening, *self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
