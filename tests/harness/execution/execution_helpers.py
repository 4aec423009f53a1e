"""What the execution tests share: Celery workers, and waiting for something to come true."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edictum.execution.processes import descendants

HERE = Path(__file__).parent


class CeleryWorker:
    """``celery worker`` with one process, in a process group of its own."""

    def __init__(self, url: str) -> None:
        command = [sys.executable, "-m", "celery", "-A", "celery_bodies", "worker", "--concurrency=1", "--loglevel=WARNING",
                   "--without-gossip", "--without-mingle"]  # fmt: skip
        environment = {**os.environ, "EDICTUM_TEST_BROKER": url, "PYTHONPATH": str(HERE)}
        self.process = subprocess.Popen(
            command, env=environment, cwd=HERE, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
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


def eventually(check: Callable[[], Any], timeout_s: float = 60.0) -> Any:
    """What ``check`` answers as soon as it is true."""
    deadline = time.monotonic() + timeout_s
    while not (answer := check()):
        assert time.monotonic() < deadline, f"{check} did not come true"
        time.sleep(0.01)
    return answer
