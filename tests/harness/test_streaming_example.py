"""examples/streaming in a terminal: Ctrl-C in the middle of a turn, and the next turn knows."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from support.processes import ROOT
from support.waiting import wait_until

EXAMPLE = ROOT / "examples" / "streaming" / "terminal.py"


class Terminal:
    """The example in a process of its own, with what it has written so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.written = ""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        while letter := self._process.stdout.read(1):
            self.written += letter

    def say(self, text: str) -> None:
        assert self._process.stdin is not None
        self.written = ""
        self._process.stdin.write(f"{text}\n")
        self._process.stdin.flush()

    def wait_for(self, text: str) -> None:
        def find() -> bool:
            assert self._process.poll() is None, self.written
            return text in self.written

        wait_until(find)

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)


@contextmanager
def open_terminal(archive_seconds: str) -> Iterator[Terminal]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [sys.executable, str(EXAMPLE)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**environment, "ARCHIVE_SECONDS": archive_seconds},
    ) as process:
        try:
            yield Terminal(process)
        finally:
            process.kill()


def test_a_turn_is_stopped_in_the_middle_and_the_next_one_knows_what_ran() -> None:
    with open_terminal("3") as terminal:
        terminal.say("Archive everything.")
        terminal.wait_for("I will archive all files, one after the other.")
        terminal.wait_for('archive letters ... {"result": "letters is in the archive"}')
        terminal.wait_for("archive photos ...")
        terminal.interrupt()
        terminal.wait_for("(stopped)\n> ")
        assert "archive taxes" not in terminal.written
        terminal.say("What did you do?")
        terminal.wait_for("(answered)")
        said = terminal.written
    assert "letters: letters is in the archive" in said
    assert "photos: The caller was cancelled while the tool ran. Whether it took effect" in said
    assert "taxes: Blocked: The turn was cancelled before this call was made." in said
    assert "secrets: Blocked: The turn was cancelled before this call was made." in said


def test_a_turn_that_is_left_alone_ends_with_its_answer() -> None:
    with open_terminal("0.01") as terminal:
        terminal.say("Archive everything.")
        terminal.wait_for("(answered)")
        said = terminal.written
    assert "taxes: taxes is in the archive" in said
    assert "secrets: Blocked: Secrets stay where they are." in said
