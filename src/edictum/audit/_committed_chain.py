"""The chain of a connection to a database: it continues from what was committed."""

from __future__ import annotations

import threading
import weakref
from contextlib import suppress
from pathlib import Path

from edictum._logs import AUDIT_HEADS, log
from edictum.audit._heads import Chain, SinkChain
from edictum.audit.chain import ChainPosition
from edictum.execution.forks import protect


class CommittedChain:
    """Chains the events that one connection writes. A transaction that fails, or whose result is
    unknown, ends the chain: the next record begins another one.
    """

    def __init__(self, chain: Chain, path: Path) -> None:
        self._chain = SinkChain(chain, path, fsync=True)
        self._path = path
        self._uncommitted: ChainPosition | None = None
        self._timer: threading.Timer | None = None
        self._lock = threading.Lock()
        protect(self)

    def append(self, event: str) -> str:
        """Return the record of an event, given as canonical JSON, for the transaction under way."""
        record, self._uncommitted = (self._uncommitted or self._chain.position).append(event)
        return record

    def note_commit(self) -> None:
        """Continue behind what was committed; write a head if one is due."""
        position, self._uncommitted = self._uncommitted, None
        if position is None:
            return
        with self._lock:
            if self._chain.advance(position):
                self._write_head()
            elif self._timer is None:
                self._start_timer()

    def forget(self) -> None:
        """Begin another chain if a transaction with records of this one has failed."""
        if self._uncommitted is not None:
            self._uncommitted = None
            with self._lock:
                self._chain.leave_off()

    def close(self) -> None:
        """Write a head that says that the chain has ended, if it has begun."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._chain.has_records():
                self._write_head(is_closing=True)

    def write_due_head(self) -> None:
        """Write a head if there are records that none lists."""
        with self._lock:
            self._timer = None
            if self._chain.has_unlisted():
                self._write_head()

    def _start_timer(self) -> None:
        """Start a timer that writes a due head when no event comes."""
        due = [weakref.WeakMethod(self.write_due_head)]
        self._timer = threading.Timer(self._chain.head_seconds, _call_alive, due)
        self._timer.daemon = True
        with suppress(RuntimeError):  # no thread could be started; the next event looks as well
            self._timer.start()

    def _write_head(self, *, is_closing: bool = False) -> None:
        """Write a head; the events are committed, so a failure is logged only."""
        try:
            self._chain.write_head(is_closing=is_closing)
        except Exception as exc:
            log(AUDIT_HEADS, "a head of %s could not be written: %s", self._path, exc)


def _call_alive(method: weakref.WeakMethod[object]) -> None:  # type: ignore[type-var]  # a method
    call = method()
    if call is not None:
        call()  # type: ignore[operator]  # what a WeakMethod returns
