"""Tools for worker processes: they are sent by name, so they live in a module. Most of them
misbehave.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

REQUEST = contextvars.ContextVar("request", default="unset")


def add(a: int, b: int) -> int:
    return a + b


async def add_later(a: int, b: int) -> int:
    await asyncio.sleep(0)
    return a + b


def pid() -> int:
    return os.getpid()


def request() -> str:
    return REQUEST.get()


def nap(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def spin() -> None:
    end = time.monotonic() + 60  # a test in which nobody kills it fails, and does not hang
    while time.monotonic() < end:
        pass


def spin_deaf() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    spin()


async def hang_in_finally() -> None:
    try:
        await asyncio.sleep(600)
    finally:
        await asyncio.sleep(600)


def family(path: str, *, hang: bool = True) -> str:
    """A child, its child, and one that cut itself loose in a session of its own. Their pids are in
    the file.
    """
    script = (
        f"echo $$ >> {path}; (echo $BASHPID >> {path}; sleep 600) & setsid bash -c 'echo $$ >>"
        f" {path}; sleep 600' & sleep 600"
    )
    subprocess.Popen(["bash", "-c", script])
    while not Path(path).exists() or len(Path(path).read_text().split()) < 3:
        time.sleep(0.01)
    if hang:
        time.sleep(600)
    return "done"


def fork_and_return() -> str:
    return "child" if os.fork() == 0 else "parent"


def fork_twice() -> str:
    """What the child has opened, perhaps under the number of the worker's socket, is open in its
    own child as well.
    """
    answer, tell = os.pipe()
    if os.fork() == 0:
        opened = [number for _ in range(50) for number in os.pipe()]
        if os.fork() == 0:
            there = [number for number in opened if os.path.exists(f"/dev/fd/{number}")]
            os.write(tell, b"open" if len(there) == len(opened) else b"gone")
        else:
            os.wait()
        os._exit(0)
    os.wait()
    return os.read(answer, 4).decode()


def fork_and_sleep(path: str) -> str:
    child = os.fork()
    if child == 0:
        time.sleep(600)
    Path(path).write_text(str(child))
    return "parent"


def fork_and_die() -> None:
    """The child keeps everything open that it inherited."""
    if os.fork() == 0:
        time.sleep(600)
    os._exit(5)


def leave(code: Any) -> None:
    sys.exit(code)


def crash(code: int) -> None:
    os._exit(code)


def kill_self(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(600)


def close_everything() -> None:
    os.closerange(3, 256)
    time.sleep(600)


def shout_into_the_socket() -> None:
    """Write to every descriptor that can be written to, as a confused program might."""
    for fd in range(3, 256):
        try:
            os.write(fd, (5).to_bytes(8, "big") + b"hello")
        except OSError:
            continue
    time.sleep(600)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def raise_unspeakable() -> None:
    raise Unspeakable


class TwoPart(Exception):
    """Can be pickled, but not read back: its __init__ wants two."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


def raise_two_part() -> None:
    raise TwoPart("this", "that")


def raise_local() -> None:
    class Local(Exception):
        pass

    raise Local("from inside")


def raise_value_error(text: str) -> None:
    raise ValueError(text)


def raise_interrupt() -> None:
    raise KeyboardInterrupt


class Unreadable:
    def __reduce__(self) -> Any:
        return int, ("no number",)


def unreadable() -> Any:
    return Unreadable()


class LeavesWhenRead:
    def __reduce__(self) -> Any:
        return sys.exit, (3,)


def leaves_when_read() -> Any:
    return LeavesWhenRead()


def unpicklable() -> Any:
    return lambda: 1


def text_of(size: int) -> str:
    return "x" * size


def eat(count: int) -> int:
    return len(bytearray(count))


def keep(value: Any) -> Any:
    return value
