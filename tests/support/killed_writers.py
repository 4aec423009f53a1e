"""Processes that write and are killed, one after the other, at random moments."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

from support.processes import ROOT

WRITERS = 4
Acknowledge = Callable[[str], None]
Write = Callable[[int, Acknowledge], object]


def run_program(program: str, *arguments: object) -> None:
    """Run a program that calls ``kill_writers``."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    env = {**os.environ, "PYTHONPATH": f"{ROOT}/src:{ROOT}/tests"}
    subprocess.run(command, check=True, timeout=3_600, env=env)


def kill_writers(write: Write, folder: str, kills: int, seed: int, most: int) -> None:
    """Let four forked processes write, and kill one after the other after 1 to ``most`` events
    that it has acknowledged; another takes its place. At the end all are killed.

    ``write`` is given the number of its process, and what it calls for each event that is written:
    the name of the event then stands in the file ``acks`` of the folder.
    """
    rolls = random.Random(seed)
    running = [_start(write, folder, number) for number in range(WRITERS)]
    for number in range(WRITERS, WRITERS + kills):
        child, read = running.pop(rolls.randrange(WRITERS))
        left = rolls.randrange(1, most)
        while left:
            got = os.read(read, left)
            assert got, "a writer has ended by itself"
            left -= len(got)
        _kill([(child, read)])
        running.append(_start(write, folder, number))
    _kill(running)


def _start(write: Write, folder: str, number: int) -> tuple[int, int]:
    read, acknowledged = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        _run_child(write, folder, number, acknowledged)
    os.close(acknowledged)
    return child, read


def _run_child(write: Write, folder: str, number: int, acknowledged: int) -> NoReturn:
    acks = os.open(f"{folder}/acks", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def acknowledge(name: str) -> None:
        os.write(acks, f"{name}\n".encode())
        os.write(acknowledged, b".")

    try:
        write(number, acknowledge)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _kill(children: Sequence[tuple[int, int]]) -> None:
    for child, read in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(read)
