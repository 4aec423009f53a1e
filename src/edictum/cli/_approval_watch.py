"""``edictum approvals watch``: requests as they come, answered with one key."""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from edictum.approval import ApprovalQueue, GrantTerms, QueuedApproval
from edictum.cli._approval_answers import edit_args
from edictum.cli._approval_options import (
    add_approver,
    add_json,
    add_row_filters,
    format_request,
    list_all,
    read_approver,
    to_json_line,
)
from edictum.errors import BackendError, EdictumConfigError, EdictumInputError
from edictum.execution.portal import PORTAL

WATCH_EVERY_S = 0.5
KEYS = "[y] yes  [n] no  [e] edit  [g] yes for this session  [s] later  [q] quit"


def add_arguments(name: str, parser: argparse.ArgumentParser) -> None:
    add_row_filters(parser)
    add_approver(parser)
    add_json(parser)


def run(queue: ApprovalQueue, options: argparse.Namespace) -> int:
    """Show requests until q or Ctrl-C; without a terminal, or with --json, they are printed."""
    watch = _Watch(queue, options)
    if options.json or not sys.stdin.isatty() or not sys.stdout.isatty():
        return watch.print_all()
    return watch.ask_all(read_approver(options))


class _Watch:
    def __init__(self, queue: ApprovalQueue, options: argparse.Namespace) -> None:
        self._queue = queue
        self._options = options
        self._seen: set[str] = set()  # printed, or left for later
        self._problem = ""  # why the store cannot be asked

    def _list_new(self) -> list[QueuedApproval]:
        """Return pending requests not seen before, the oldest first; none while the store does not
        answer, which is reported once.
        """
        try:
            found, problem = self._list_pending(), ""
        except BackendError as exc:
            found, problem = [], str(exc)
        if problem and not self._problem:
            print(f"edictum approvals: {problem}", file=sys.stderr, flush=True)
        self._problem = problem
        return [row for row in found if row.approval_id not in self._seen]

    def _list_pending(self) -> list[QueuedApproval]:
        wanted = {"session_id": self._options.session, "tool_name": self._options.tool}
        found = list_all(self._queue.pending, after=None, **wanted)
        self._seen &= {row.approval_id for row in found}
        return found

    def print_all(self) -> int:
        while True:
            for row in self._list_new():
                self._seen.add(row.approval_id)
                text = to_json_line(row) if self._options.json else f"{format_request(row)}\n"
                print(text, flush=True)
            time.sleep(WATCH_EVERY_S)

    def ask_all(self, approver: str) -> int:
        """Show one request after the other, and act on the keys that are pressed."""
        shown: str | None = None
        with _open_terminal() as terminal:
            print("Requests are shown as they come; q quits.", flush=True)
            while True:
                new = self._list_new()
                if not new:
                    shown = None
                elif new[0].approval_id != shown:
                    shown = new[0].approval_id
                    print(f"\n{format_request(new[0])}", flush=True)
                    terminal.forget_keys()  # typed before this could be read
                    print(KEYS, flush=True)
                key = terminal.read_key(WATCH_EVERY_S)
                if key in ("q", "\x04"):
                    return 0
                if new and key:
                    self._answer(new[0], key, approver, terminal)

    def _answer(self, row: QueuedApproval, key: str, approver: str, terminal: Terminal) -> None:
        if key == "s":
            self._seen.add(row.approval_id)
            return
        make = _ANSWERS.get(key)
        if make is None:
            return
        try:
            with terminal.in_lines():
                approved, said = make(row)
            done = PORTAL.run(
                self._queue.answer(row.approval_id, approved, approver=approver, **said)
            )
        except (BackendError, EdictumInputError) as exc:
            print(f"Not taken: {exc}\n{KEYS}", flush=True)
            return
        if done.status == "pending":  # it takes more than one yes
            self._seen.add(row.approval_id)
        print(f"{done.approval_id}  {done.status}", flush=True)


# --- What the keys say ----------------------------------------------------------------------------


def _say_yes(row: QueuedApproval) -> tuple[bool, dict[str, Any]]:
    return True, {}


def _say_yes_for_session(row: QueuedApproval) -> tuple[bool, dict[str, Any]]:
    return True, {"grant": GrantTerms(scope="session")}


def _say_no(row: QueuedApproval) -> tuple[bool, dict[str, Any]]:
    reason = input("Why? (Enter for no reason) ").strip()
    return False, {"reason": reason or None}


def _say_yes_with_changes(row: QueuedApproval) -> tuple[bool, dict[str, Any]]:
    return True, {"args": edit_args(row.tool_args)}


_ANSWERS: dict[str, Callable[[QueuedApproval], tuple[bool, dict[str, Any]]]] = {
    "y": _say_yes,
    "g": _say_yes_for_session,
    "n": _say_no,
    "e": _say_yes_with_changes,
}


# --- The terminal ---------------------------------------------------------------------------------


class Terminal:
    """Standard input, read key by key."""

    def __init__(self, modes: Any, fd: int) -> None:
        self._modes = modes  # the module termios
        self._fd = fd
        self._before = modes.tcgetattr(fd)

    def take_keys(self) -> None:
        """Switch to reading single keys without echo."""
        now = self._modes.tcgetattr(self._fd)
        now[3] &= ~(self._modes.ECHO | self._modes.ICANON)
        self._modes.tcsetattr(self._fd, self._modes.TCSADRAIN, now)

    def restore(self) -> None:
        """Switch back to reading lines."""
        self._modes.tcsetattr(self._fd, self._modes.TCSADRAIN, self._before)

    def forget_keys(self) -> None:
        """Discard keys that were typed and not read yet."""
        self._modes.tcflush(self._fd, self._modes.TCIFLUSH)

    def read_key(self, timeout_s: float) -> str:
        """Return the next key, "" if there is none in time, Ctrl-D at the end of the input."""
        if not select.select([self._fd], [], [], timeout_s)[0]:
            return ""
        return os.read(self._fd, 1).decode("utf-8", "replace") or "\x04"

    @contextlib.contextmanager
    def in_lines(self) -> Iterator[None]:
        """Read lines within this context, so that a person can type one, or use an editor."""
        self.restore()
        try:
            yield
        finally:
            self.take_keys()


@contextlib.contextmanager
def _open_terminal() -> Iterator[Terminal]:
    try:
        import termios
    except ImportError as exc:
        hint = "Use edictum approvals list, approve and deny, or watch --json."
        raise EdictumConfigError(
            "This system has no terminal to read keys from.", hint=hint
        ) from exc
    terminal = Terminal(termios, sys.stdin.fileno())
    terminal.take_keys()
    try:
        yield terminal
    finally:
        terminal.restore()
